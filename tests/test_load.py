"""Checkpoints in the public formats load whole, their pictures count as documented, and what is wrong is said early."""

import io
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from layouts.weights import FAMILIES, HERE, NAMES, write_checkpoint
from PIL import Image
from safetensors.torch import load_file, save_file

from mmaccel.models.inputs import Processor, prepared
from mmaccel.models.load import KEPT_WHOLE, VLM
from mmaccel.registry import build, names

# family → (width, height) → visual tokens as published: (336/14)²; (w/28)(h/28) and (w/32)(h/32), rounded to whole
# merged patches within the limits; 64 a tile of 512, for the tiles of the picture scaled to 2048 and for the whole once
DOCUMENTED = {
    "llava": {(640, 480): 576, (90, 300): 576},
    "qwen2_5_vl": {(640, 480): 23 * 17, (90, 300): 3 * 11, (20, 20): 4},
    "qwen3_vl": {(640, 480): 20 * 15, (20, 20): 64},
    "smolvlm": {(640, 480): (4 * 3 + 1) * 64, (2000, 480): (4 * 1 + 1) * 64},
}


def picture(width: int = 120, height: int = 90, seed: int = 0) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def user(text: str, *pictures: Image.Image) -> dict:
    shown = [{"type": "image", "image": p} for p in pictures]
    return {"role": "user", "content": [*shown, {"type": "text", "text": text}]}


def assistant(text: str) -> dict:
    return {"role": "assistant", "content": [{"type": "text", "text": text}]}


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    """One whole checkpoint a family, as on the Hub."""
    made = {}
    for family in FAMILIES:
        made[family] = tmp_path_factory.mktemp(family)
        write_checkpoint(made[family], family, "old" if (family, "old") in NAMES else "new")
    return made


@pytest.fixture(scope="module")
def vlms(folders) -> dict[str, VLM]:
    return {family: VLM.load(folder) for family, folder in folders.items()}


@pytest.fixture(scope="module")
def processors() -> dict[str, Processor]:
    return {family: Processor.load(HERE / family) for family in FAMILIES}


@pytest.fixture
def broken(tmp_path):
    """A fresh LLaVA checkpoint to damage."""
    write_checkpoint(tmp_path, "llava", "old", sharded=True)
    return tmp_path


def edit(file: Path, **changes) -> None:
    content = json.loads(file.read_text())
    for key, value in changes.items():
        content.pop(key, None)
        if value is not None:
            content[key] = value
    file.write_text(json.dumps(content))


# ── weights ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("stored", ["single", "sharded", "pickle", "bfloat16"])
@pytest.mark.parametrize(("family", "layout"), NAMES)
def test_every_layout_loads_every_weight(family, layout, stored, tmp_path):
    dtype = torch.bfloat16 if stored == "bfloat16" else torch.float32
    written = write_checkpoint(
        tmp_path, family, layout, sharded=stored == "sharded", pickle=stored == "pickle", dtype=dtype
    )
    vlm = VLM.load(tmp_path)
    loaded = vlm.model.state_dict()
    assert set(loaded) - set(written) <= {"lm_head.weight"}  # tied, so not in the file
    assert all(torch.equal(loaded[name], tensor.float()) for name, tensor in written.items())
    assert not vlm.model.training
    assert vlm.model.config.model_type in vlm.family.model_types
    assert (vlm.path, vlm.source, vlm.revision) == (tmp_path, str(tmp_path), None)


def test_the_first_smolvlms_are_idefics3(folders, vlms, tmp_path):
    """Same files under another model_type: same weights, same prompt, same logits."""
    shutil.copytree(folders["smolvlm"], tmp_path, dirs_exist_ok=True)
    vision = json.loads((tmp_path / "config.json").read_text())["vision_config"] | {"model_type": "idefics3_vision"}
    edit(tmp_path / "config.json", model_type="idefics3", architectures=None, vision_config=vision)
    edit(tmp_path / "preprocessor_config.json", image_processor_type="Idefics3ImageProcessor")
    vlm, twin, talk = VLM.load(tmp_path), vlms["smolvlm"], [[user("What is it?", picture(600, 100))]]
    assert type(vlm.model).__name__ == "Idefics3ForConditionalGeneration"
    with torch.no_grad():
        ours, theirs = (v.model(**v.inputs(talk)).logits[0, -1] for v in (vlm, twin))
    assert torch.allclose(ours, theirs, atol=1e-4)


def test_dtype_and_attention_are_what_was_asked_for(folders):
    vlm = VLM.load(folders["llava"], dtype="bfloat16", attention="eager")
    assert vlm.model.dtype == torch.bfloat16
    assert vlm.model.get_decoder().config._attn_implementation == "eager"


def test_a_folder_the_library_saved_itself_loads(vlms, tmp_path):
    """Today's save_pretrained: the library's own names and files, the image processor in processor_config.json."""
    from transformers import LlavaProcessor

    old = vlms["llava"]
    old.model.save_pretrained(tmp_path)
    template = old.processor.template
    joined = LlavaProcessor(old.processor.image_processor, old.tokenizer, chat_template=template, patch_size=14)
    joined.num_additional_image_tokens, joined.vision_feature_select_strategy = 1, "default"
    joined.save_pretrained(tmp_path)
    new = VLM.load(tmp_path)
    a, b = (v.inputs([[user("What is it?", picture())]]) for v in (old, new))
    assert torch.equal(a["input_ids"], b["input_ids"])
    with torch.no_grad():
        assert torch.equal(old.model(**a).logits, new.model(**b).logits)


def test_generation_config_is_completed_and_otherwise_left_alone(vlms, broken):
    qwen = vlms["qwen2_5_vl"]
    assert qwen.model.generation_config.repetition_penalty == 1.05  # the checkpoint's own default
    assert qwen.stop_ids == tuple(qwen.tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"]))
    (broken / "generation_config.json").unlink()
    edit(broken / "config.json", pad_token_id=None)
    vlm = VLM.load(broken)
    assert vlm.stop_ids == (vlm.tokenizer.eos_token_id,)
    assert vlm.model.generation_config.pad_token_id == vlm.tokenizer.pad_token_id


# ── pictures and prompts ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("family", FAMILIES)
def test_visual_tokens_are_the_documented_ones(processors, family):
    for (width, height), tokens in DOCUMENTED[family].items():
        inputs = processors[family].inputs([[user("What is it?", picture(width, height))]])
        assert inputs.visual_tokens == [tokens]
        assert (inputs["input_ids"] == processors[family].layout.config.image_token_id).sum() == tokens


@pytest.mark.parametrize("family", FAMILIES)
def test_batch_with_and_without_pictures(vlms, family):
    """Left padding, several pictures a row, rows without: each row as alone, the tower gives what the prompt holds."""
    vlm, tall = vlms[family], picture(40, 90, seed=1)
    conversations = [
        [user("What is it?", picture())],
        [user("Which is left?", tall, picture(64, 64, seed=2)), assistant("A red cube."), user("yes?")],
        [user("How many chairs are there?")],
    ]
    if family == "smolvlm":  # long pictures have few tiles
        conversations[0] = [user("What is it?", picture(600, 100))]
        conversations[1] = [user("Which is left?", picture(900, 200, seed=1)), assistant("A red cube."), user("yes?")]
    inputs = vlm.inputs(conversations)
    features = {k: v for k, v in inputs.items() if k.startswith(("pixel", "image_grid"))}
    with torch.no_grad():
        given = vlm.model.model.get_image_features(**features, return_dict=True).pooler_output
        logits = vlm.model(**inputs).logits[:, -1]  # [B, V]
        pale = vlm.model(**{**inputs, "pixel_values": inputs["pixel_values"] * 0.5}).logits[:, -1]
    given = given if isinstance(given, torch.Tensor) else torch.cat(list(given))
    assert given.numel() // given.shape[-1] == sum(inputs.visual_tokens)
    replies = vlm.model.generate(**inputs, max_new_tokens=2, do_sample=False, repetition_penalty=1.0)
    assert torch.equal(replies[:, inputs["input_ids"].shape[1]], logits.argmax(-1))
    assert inputs["attention_mask"].sum(1).tolist() == inputs.prompt_tokens
    for row, conversation in enumerate(conversations):
        alone = vlm.inputs([conversation])
        assert alone.prompt_hash == [inputs.prompt_hash[row]]
        assert torch.equal(alone["input_ids"][0], inputs["input_ids"][row, -inputs.prompt_tokens[row] :])
        with torch.no_grad():
            assert torch.allclose(vlm.model(**alone).logits[0, -1], logits[row], atol=1e-4)
    moved = (pale - logits).abs().amax(1)
    assert (moved[:2] > 1e-3).all()
    assert moved[2] < 1e-5
    assert ("mm_token_type_ids" in inputs) == (vlm.family.rope == "mrope")


def test_llava_equals_the_librarys_own_processor(vlms):
    from transformers import LlavaProcessor

    vlm = vlms["llava"]
    theirs = LlavaProcessor.from_pretrained(vlm.path)
    theirs.tokenizer.padding_side = "left"
    conversations = [
        [user("What is it?", picture(200, 100)), assistant("A red cube."), user("yes?")],
        [user("How many?", picture(64, 90, seed=1), picture(30, 30, seed=2))],
    ]
    wanted = theirs.apply_chat_template(
        conversations, add_generation_prompt=True, tokenize=True, return_dict=True,
        processor_kwargs={"padding": True, "return_tensors": "pt"},
    )  # fmt: skip
    inputs = vlm.inputs(conversations)
    for name in ("input_ids", "attention_mask", "pixel_values"):
        assert torch.equal(inputs[name], wanted[name])


def test_tiles_are_named_as_the_library_names_them(processors):
    from transformers.models.smolvlm.processing_smolvlm import get_image_prompt_string

    layout = processors["smolvlm"].layout
    for rows, columns in ((3, 4), (0, 0)):
        wanted = get_image_prompt_string(rows, columns, 64, "<fake_token_around_image>", "<image>", "<global-img>")
        assert layout.written(rows, columns, 512, 512) == wanted


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
def test_qwen_positions_come_from_the_grid(vlms, family):
    """mm_token_type_ids marks the picture: its rows share a height position, its columns a width position."""
    vlm = vlms[family]
    inputs = vlm.inputs([[user("What is it?", picture(320, 200))]])
    marked = inputs["mm_token_type_ids"][0].bool()
    _, rows, columns = (inputs["image_grid_thw"][0] // torch.tensor([1, 2, 2])).tolist()
    assert marked.sum() == rows * columns
    text = {k: v for k, v in inputs.items() if k != "pixel_values"}
    positions, _ = vlm.model.model.get_rope_index(**text)  # [3, B, q]
    height, width = positions[1, 0, marked], positions[2, 0, marked]
    assert torch.equal((height - height[0]).view(rows, columns)[:, 0], torch.arange(rows))
    assert torch.equal((width - width[0]).view(rows, columns)[0], torch.arange(columns))


FORMATS = {
    "llava": "<s> USER: <image>\nWhat is it? ASSISTANT: A cube. USER: yes? ASSISTANT:",
    "qwen2_5_vl": "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n<|vision_start|>"
    "<|image_pad|><|vision_end|>What is it?<|im_end|>\n<|im_start|>assistant\nA cube.<|im_end|>\n<|im_start|>user\nyes?"
    "<|im_end|>\n<|im_start|>assistant\n",
    "qwen3_vl": "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>What is it?<|im_end|>\n"
    "<|im_start|>assistant\nA cube.<|im_end|>\n<|im_start|>user\nyes?<|im_end|>\n<|im_start|>assistant\n",
    "smolvlm": "<|im_start|>User:<image>What is it?<end_of_utterance>\nAssistant: A cube.<end_of_utterance>\nUser: yes?"
    "<end_of_utterance>\nAssistant:",
}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_template_and_its_fallback_write_the_published_format(processors, family):
    processor = processors[family]
    assert processor.template != processor.layout.template
    messages, _ = processor.read([[user("What is it?", picture()), assistant("A cube."), user("yes?")]], False)
    for template in (processor.template, processor.layout.template):
        rendered = replace(processor, template=template).render(messages[0], prompt=True)
        assert rendered == FORMATS[family].removeprefix("<s> ")


@pytest.mark.parametrize("family", FAMILIES)
def test_answers_mark_exactly_what_was_said(processors, family):
    processor = processors[family]
    talk = [user("What is it?", picture()), assistant("A red cube."), user("yes?"), assistant("Yes, it is.")]
    inputs = processor.inputs([talk, [user("How many?"), assistant("There are three chairs.")]], answers=True)
    stop = {"llava": "", "smolvlm": "<end_of_utterance>"}.get(family, "<|im_end|>")
    said = [processor.tokenizer.decode(ids[mark]) for ids, mark in zip(inputs["input_ids"], inputs.answer)]
    assert said[1].strip() == f"There are three chairs.{stop}"
    assert said[0].replace(" ", "") == f"Aredcube.{stop}Yes,itis.{stop}"
    prompt = processor.inputs([talk[:3]])["input_ids"][0]  # [q]
    whole = inputs["input_ids"][0][inputs["attention_mask"][0].bool()]
    assert torch.equal(whole[: len(prompt)], prompt)  # what is trained is what is generated from
    assert inputs.answer[0][inputs["attention_mask"][0].bool()][len(prompt)]


def test_answers_that_cannot_be_told_exactly_are_refused(processors):
    talk = [user("a"), assistant("thinking"), user("b"), assistant("Yes")]
    forgetful = (  # as templates of thinking models: only the last answer stays whole
        "{% for m in messages %}{{ m.role + ':' }}"
        "{% if m.role == 'user' or loop.last %}{{ m.content[0].text }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}"
    )
    with pytest.raises(ValueError, match="differently once it goes on"):
        replace(processors["qwen3_vl"], template=forgetful).inputs([talk], answers=True)
    glued = "{% for m in messages %}{{ m.content[0].text }}{% endfor %}{% if add_generation_prompt %}{% endif %}"
    with pytest.raises(ValueError, match="joins the answer"):
        replace(processors["qwen3_vl"], template=glued).inputs([[user("What i"), assistant("s it")]], answers=True)
    with pytest.raises(ValueError, match="empty"):
        processors["llava"].inputs([[user("a"), assistant("")]], answers=True)


def test_pictures_arrive_upright_and_in_rgb(processors):
    processor = processors["qwen3_vl"]
    lying = picture(96, 64)
    exif = lying.getexif()
    exif[0x0112] = 6  # turn by 90° to see it
    lying.info["exif"] = exif.tobytes()
    buffer = io.BytesIO()
    lying.save(buffer, "PNG", exif=exif)
    turned = processor.inputs([[user("?", Image.open(buffer))]])
    straight = processor.inputs([[user("?", picture(96, 64).transpose(Image.Transpose.ROTATE_270))]])
    assert torch.equal(turned["pixel_values"], straight["pixel_values"])
    grey = Image.fromarray(np.full((64, 96), 40000, np.uint16))
    eight = Image.fromarray(np.full((64, 96), 40000 // 256, np.uint8))
    a, b = (processor.inputs([[user("?", p)]])["pixel_values"] for p in (grey, eight))
    assert torch.equal(a, b)
    thin = processor.inputs([[user("?", picture(90, 3).convert("RGBA"))]])["image_grid_thw"][0]  # 3 lines, not channels
    assert thin[2] > thin[1]


def test_hashes_follow_content(processors, tmp_path):
    processor = processors["llava"]
    a, b = (processor.inputs([[user(text)]]).prompt_hash for text in ("one", "two"))
    assert a != b
    shutil.copytree(HERE / "llava", tmp_path / "copy")
    assert Processor.load(tmp_path / "copy").hash == processor.hash
    edit(tmp_path / "copy" / "preprocessor_config.json", do_center_crop=False)
    assert Processor.load(tmp_path / "copy").hash != processor.hash


# ── what is refused ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("conversation", "message"),
    [
        ([user("?", picture(40, 30))], "1200|0.0 million pixels"),
        ([user("what does <image> mean?")], "stands for a picture"),
        ([user("?"), assistant("yes")], "ends with 'assistant'"),
        ([], "is empty"),
        ([{"role": "robot", "content": "?"}], "got role 'robot'"),
        ([{"role": "user", "content": [{"type": "image", "image": "cat.png"}]}], "got str, expected a PIL image"),
        ([{"role": "user", "content": [{"type": "video"}]}], "type 'video'"),
        ([user("word " * 5000)], "context is 4096"),
    ],
)
def test_conversations_that_are_refused(processors, conversation, message):
    with pytest.raises(ValueError, match=message):
        replace(processors["llava"], max_pixels=1000).inputs([conversation])


def test_a_truncated_picture_is_named(processors, tmp_path):
    picture(300, 200).save(tmp_path / "whole.jpg")
    (tmp_path / "cut.jpg").write_bytes((tmp_path / "whole.jpg").read_bytes()[:2000])
    with pytest.raises(ValueError, match="row 0, picture 0: 300×200, cannot be decoded"):
        processors["llava"].inputs([[user("?", Image.open(tmp_path / "cut.jpg"))]])


@pytest.mark.parametrize(
    ("family", "file", "changes", "message"),
    [
        ("llava", "processor_config.json", {"num_additional_image_tokens": 0}, "holds 575 visual tokens.*give 576"),
        ("smolvlm", "processor_config.json", {"image_seq_len": 81}, "holds 1053 visual tokens.*give 832"),
        ("qwen3_vl", "preprocessor_config.json", {"merge_size": 4}, "visual tokens.*will give"),
        ("qwen3_vl", "preprocessor_config.json", {"patch_size": 14}, "patches of 1176 numbers.*expects 1536"),
        ("llava", "preprocessor_config.json", {"crop_size": {"height": 224, "width": 224}}, "224×224.*336×336"),
    ],
)
def test_wrong_counts_raise_with_both_numbers(family, file, changes, message, tmp_path):
    shutil.copytree(HERE / family, tmp_path, dirs_exist_ok=True)
    edit(tmp_path / file, **changes)
    with pytest.raises(ValueError, match=message):
        Processor.load(tmp_path).inputs([[user("?", picture(640, 480))]])


def test_old_llava_folders_without_processor_config_count_right(tmp_path):
    shutil.copytree(HERE / "llava", tmp_path, dirs_exist_ok=True)
    (tmp_path / "processor_config.json").unlink()
    (tmp_path / "chat_template.json").unlink()
    assert Processor.load(tmp_path).inputs([[user("?", picture())]]).visual_tokens == [576]


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("config.json", "no config.json"),
        ("preprocessor_config.json", "processor is missing: preprocessor_config.json"),
        ("tokenizer.json", "processor is missing: tokenizer.json"),
        ("model-00002-of-00003.safetensors", "names 3 files, missing are model-00002-of-00003.safetensors"),
        ("model.safetensors.index.json", "no weights; expected one of model.safetensors"),
    ],
)
def test_missing_files_are_named_before_anything_loads(broken, missing, message, monkeypatch):
    monkeypatch.setattr("mmaccel.models.load.load_weights", lambda *_: pytest.fail("the weights were read"))
    (broken / missing).unlink()
    with pytest.raises(ValueError, match=message):
        VLM.load(broken)


def test_cut_off_weights_are_found_before_anything_loads(broken, monkeypatch):
    monkeypatch.setattr("mmaccel.models.load.load_weights", lambda *_: pytest.fail("the weights were read"))
    shard = broken / "model-00001-of-00003.safetensors"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-100])
    with pytest.raises(ValueError, match="cut off"):
        VLM.load(broken)
    shard.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    with pytest.raises(ValueError, match="Git LFS pointer"):
        VLM.load(broken)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop("language_model.lm_head.weight"), r"the checkpoint lacks: lm_head\.weight"),
        (lambda w: w.update({"language_model.model.layers.7.x": torch.zeros(2)}), r"does not know: .*layers\.7\.x"),
    ],
)
def test_weights_whose_names_do_not_match_are_refused(tmp_path, change, message):
    write_checkpoint(tmp_path, "llava", "old")
    weights = load_file(tmp_path / "model.safetensors")
    change(weights)
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=message):
        VLM.load(tmp_path)


def test_weights_of_another_width_are_refused(broken):
    text = json.loads((broken / "config.json").read_text())["text_config"] | {"intermediate_size": 48}
    edit(broken / "config.json", text_config=text)
    with pytest.raises((ValueError, RuntimeError), match=r"shape|mismatch"):
        VLM.load(broken)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "fp8"}, "model.dtype: got 'fp8', valid are float32, bfloat16, float16"),
        ({"attention": "flex"}, "model.attention: got 'flex', valid are sdpa, eager, flash"),
        ({"device": "gpu"}, "model.device: got 'gpu'"),
        ({"quantization": "int3"}, "model.quantization: got 'int3'"),
        ({"revision": "main"}, "only Hub names have revisions"),
    ],
)
def test_options_that_are_refused(folders, options, message):
    with pytest.raises(ValueError, match=message):
        VLM.load(folders["llava"], **options)


def test_what_this_machine_lacks_is_said_with_its_install_line(folders, monkeypatch):
    monkeypatch.setattr("transformers.utils.is_flash_attn_2_available", lambda: False)
    with pytest.raises(ValueError, match=r"pip install 'mmaccel\[gpu\]'"):
        VLM.load(folders["llava"], attention="flash")
    monkeypatch.setattr("mmaccel.models.load.find_spec", lambda _: None)
    with pytest.raises(ValueError, match=r"pip install 'mmaccel\[quant\]'"):
        VLM.load(folders["llava"], quantization="nf4")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ValueError, match="torch finds no CUDA device here"):
        VLM.load(folders["llava"], device="cuda")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/nowhere/at/all", "got '/nowhere/at/all'; valid are a folder, 'pico' or a Hub name"),
        ("owner/unheard-of-model", "there is no such folder here, and as a Hub name it cannot be had"),
        (__file__, "expected the checkpoint's folder"),
    ],
)
def test_paths_that_are_refused(path, message):
    with pytest.raises(ValueError, match=message):
        VLM.load(path)


HUB = """
from pathlib import Path
import sys
from huggingface_hub import constants
from layouts.weights import write_checkpoint
from mmaccel.models.load import VLM

root, commit = Path(constants.HF_HUB_CACHE) / "models--owner--name", "a" * 40
write_checkpoint(root / "snapshots" / commit, "qwen2_5_vl", "old", sharded=True)
(root / "refs").mkdir()
(root / "refs" / "main").write_text(commit)
for revision in (None, "main", commit):
    vlm = VLM.load("owner/name", revision=revision)
    assert (vlm.source, vlm.revision, vlm.path.name) == ("owner/name", commit, commit)
try:
    VLM.load("owner/name", revision="v2")
except ValueError as refused:
    assert "as a Hub name it cannot be had" in str(refused)
else:
    sys.exit("an unknown revision was accepted")
"""


def test_a_hub_name_loads_from_its_cache(tmp_path):
    """In a process of its own: where the cache lies is read once, when the Hub's client is imported."""
    tests = Path(__file__).parent
    found = {"PYTHONPATH": f"{tests.parent}{os.pathsep}{tests}", "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    subprocess.run([sys.executable, "-c", HUB], check=True, env={**os.environ, **found})


def test_other_models_and_foreign_tokenizers_are_refused(broken):
    edit(broken / "config.json", image_token_index=5)
    with pytest.raises(ValueError, match="not of the same checkpoint"):
        VLM.load(broken)
    edit(broken / "config.json", model_type="bert")
    with pytest.raises(ValueError, match="model_type 'bert', supported are llava"):
        VLM.load(broken)


# ── configuration ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_model_yaml_loads_a_folder_of_its_family(folders):
    for name in names("model"):
        family = {"pico": "llava", "pico1": "llava"}.get(name, name)
        assert isinstance(build("model", name, {"path": str(folders[family])}), VLM)
    with pytest.raises(ValueError, match="valid keys are path, dtype"):
        build("model", "llava", {"pathh": "x"})


PICO = Path(__file__).parents[1] / "mmaccel" / "assets" / "pico" / "config.json"


@pytest.mark.skipif(not PICO.is_file(), reason="the embedded model is not in this checkout")
def test_the_embedded_model_loads_by_name():
    inputs = build("model", "pico").inputs([[user("What color is it?", picture(336, 336))]])
    assert inputs.visual_tokens == [576]


@pytest.mark.parametrize("family", FAMILIES)
def test_quantisation_reaches_the_decoder_only(folders, family):
    pytest.importorskip("bitsandbytes")
    model = VLM.load(folders[family], quantization="nf4").model
    narrow = [n for n, m in model.named_modules() if type(m).__module__.startswith("bitsandbytes")]
    depth = model.config.get_text_config().num_hidden_layers
    assert len(narrow) == 7 * depth
    assert not [n for n in narrow if n.startswith(KEPT_WHOLE)]


@pytest.mark.parametrize("family", FAMILIES)
def test_kept_whole_covers_every_linear_layer_outside_the_decoder(vlms, family):
    """A renamed tower or projector would silently be quantised."""
    model = vlms[family].model
    decoder = set(model.get_decoder().layers.modules())
    linear = {n: m for n, m in model.named_modules() if isinstance(m, torch.nn.Linear)}
    assert {n for n, m in linear.items() if m not in decoder} == {n for n in linear if n.startswith(KEPT_WHOLE)}


def test_a_strip_of_a_picture_is_refused_before_it_is_resized():
    with pytest.raises(ValueError, match=r"here: 1×2048, one side is more than 200 times the other"):
        prepared(Image.new("RGB", (1, 2048)), 10**6, "here")
    assert prepared(Image.new("RGB", (2, 400)), 10**6, "here").size == (2, 400)
