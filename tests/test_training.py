"""Training heads: bad data is named, features are what the loop shows, checkpoints go on as if nothing had happened."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.state import AcceleratorState
from PIL import Image
from running import write_tiny_llava
from safetensors.torch import load_file, save_file
from transformers import AutoModelForImageTextToText

from mmaccel.attach import attach
from mmaccel.decoding.speculate import Speculate
from mmaccel.drafting.base import DraftHead, Loss, Seen, Target
from mmaccel.drafting.eagle import Eagle
from mmaccel.drafting.eagle3 import Eagle3
from mmaccel.drafting.lookup import Lookup
from mmaccel.drafting.medusa import Medusa
from mmaccel.drafting.recurrent import Recurrent
from mmaccel.drafting.vispec import ViSpec
from mmaccel.models.load import VLM
from mmaccel.pruning.fastv import FastV
from mmaccel.training.data import Llava, SceneChats
from mmaccel.training.features import felt
from mmaccel.training.formats import (
    load_head,
    new_head,
    restored,
    save_head,
    save_medusa_full,
    save_speculators,
    sizes_of,
)
from mmaccel.training.rows import Rows
from mmaccel.training.taps import OFFSETS, read_taps, write_taps
from mmaccel.training.trainer import Order, Plan, Trainer, live_acceptance
from mmaccel.training.vocabulary import give_vocabulary


@pytest.fixture(scope="module")
def vlm(tmp_path_factory):
    return VLM.load(write_tiny_llava(tmp_path_factory.mktemp("tiny") / "llava"))


@pytest.fixture(scope="module")
def chats():
    return SceneChats(12, kinds=("colour", "count", "caption"))


def eagle3_for(vlm: Any, **more: Any) -> Eagle3:
    torch.manual_seed(1)
    text = vlm.model.config.get_text_config()
    head = new_head("eagle3", vlm.model.config, {"taps": (1, 2), "vocabulary": text.vocab_size // 2, **more})
    assert isinstance(head, Eagle3)
    head.speak(torch.arange(text.vocab_size)[::2][: text.vocab_size // 2])
    return head


def eagle_for(vlm: Any, **more: Any) -> Eagle:
    torch.manual_seed(0)
    return Eagle(sizes_of(vlm.model.config), **more)


# --- data ------------------------------------------------------------------------------------------------------------


def said(*turns: tuple[str, str]) -> list[dict[str, str]]:
    return [{"from": role, "value": value} for role, value in turns]


GOOD = said(("human", "<image>\nWhat is it?"), ("gpt", "A cat."), ("human", "And here? <image>"), ("gpt", "A dog."))
BAD = [
    ({"conversations": said(("human", "<image>\nWhat?"), ("gpt", "x")), "image": "no.png"}, "image: no.png is not in"),
    ({"conversations": said(("gpt", "x"), ("human", "y"))}, "roles are out of order: assistant, user"),
    ({"conversations": said(("human", "What?"), ("gpt", "x")), "image": "a.png"}, "has 1 pictures and 0 <image> marks"),
    ({"conversations": said(("human", "<image> What?"), ("gpt", "x"))}, "has 0 pictures and 1 <image> marks"),
    ({"conversations": said(("human", "What?"), ("robot", "x"))}, "turn 1: from 'robot', valid are human and gpt"),
    ({"conversations": said(("human", "What?"), ("gpt", " "))}, "turn 1: is empty"),
    ({"conversations": said(("human", "What?"), ("gpt", "<image>"))}, "turn 1: an answer holds <image>"),
    ({"conversations": said((["human"], "What?"), ("gpt", "x"))}, "turn 0: from ['human'], valid are"),
    ({"image": 5, "conversations": GOOD}, "not iterable"),
    ({"image": "x" * 300, "conversations": GOOD}, "File name too long"),
    ({"conversations": []}, "roles are out of order: none"),
    ({"image": "../secret.png", "conversations": GOOD}, "image: ../secret.png is outside"),
    ([], "has no list `conversations`"),
]  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    for name in ("a.png", "b.png"):
        Image.new("RGB", (30, 20), "red").save(tmp_path / name)
    return tmp_path


@pytest.mark.parametrize("ending", ["json", "jsonl"])
def test_a_good_record_is_read_and_every_bad_one_is_named(folder, ending):
    records = [{"id": "one", "image": ["a.png", "b.png"], "conversations": GOOD}, *[record for record, _ in BAD]]
    file = folder / f"data.{ending}"
    lines = "\n".join(map(json.dumps, records)) + '\n{"broken\n'
    file.write_text(json.dumps(records) if ending == "json" else lines)
    data = Llava(str(file))
    assert len(data) == 1
    for problem, (_, words) in zip(data.problems, BAD):
        assert words in problem.said
    assert len(data.problems) == len(BAD) + (ending == "jsonl")
    assert data.problems[0].where.endswith("record 2" if ending == "json" else ":2")
    if ending == "jsonl":
        assert f"data.jsonl:{len(records) + 1}: is no JSON" in str(data.problems[-1])
    one = data[0]
    assert [message["role"] for message in one.messages] == ["user", "assistant"] * 2
    assert [part["type"] for part in one.messages[0]["content"]] == ["image", "text"]
    assert [part["type"] for part in one.messages[2]["content"]] == ["text", "image"]
    assert one.messages[2]["content"][1]["image"].size == (30, 20)
    with pytest.raises(ValueError, match=r"more than data\.most_bad = 3 bad records, the first are:\n .*no.png"):
        Llava(str(file), most_bad=3)


def test_files_that_are_no_data(folder):
    with pytest.raises(FileNotFoundError, match=r"data\.path: .*none\.json is no file"):
        Llava(str(folder / "none.json"))
    for text, words in (("{", r"x\.json:1: is no JSON"), ("{}", "got a dict, valid is a list"), ("[]", "no good conv")):
        (folder / "x.json").write_text(text)
        with pytest.raises(ValueError, match=words):
            Llava(str(folder / "x.json"))


def test_scenes_to_train_on_are_not_the_benchmarks():
    one, two = SceneChats(4)[2], SceneChats(9)[2]
    assert (one.id, one.messages[1]) == (two.id, two.messages[1])
    assert SceneChats(4, seed=1)[2].messages[1] != one.messages[1]
    with pytest.raises(ValueError, match=r"data\.kinds: got \['x'\]"):
        SceneChats(kinds=["x"])


def parquet(folder: Path, images: list, talks: list, **more: list) -> Path:
    import datasets

    kind = datasets.List(datasets.Image()) if isinstance(images[0], list) else datasets.Image()
    turn = {"from": datasets.Value("string"), "value": datasets.Value("string")}
    features = datasets.Features({
        "image": kind, "conversations": datasets.List(turn),
        **{name: datasets.Value("string") for name in more},
    })  # fmt: skip
    table = datasets.Dataset.from_dict({"image": images, "conversations": talks, **more}, features=features)
    table.to_parquet(str(folder / "rows.parquet"))
    return folder / "rows.parquet"


def test_rows_of_a_data_set_are_conversations(folder):
    picture = Image.open(folder / "a.png").convert("RGB")
    one = said(("human", "<image>\nWhat is it?"), ("gpt", "A cat."))
    plain, lost = said(("human", "Hi"), ("gpt", "Ho")), said(("human", "No mark"), ("gpt", "x"))
    talks = [one, said(("gpt", "x")), plain, lost]
    file = parquet(folder, [picture, picture, None, picture], talks, id=list("abcd"))
    source = Rows(str(file))
    assert (len(source), [str(p) for p in source.problems]) == (
        3, [f"{file}:row 1: roles are out of order: assistant; valid is user, assistant, user, …"],
    )  # fmt: skip
    assert source[0].id == "a"
    content = source[0].messages[0]["content"]
    assert content[0]["image"].tobytes() == picture.tobytes()
    assert content[1]["text"] == "What is it?"
    assert source[1].messages[0]["content"] == "Hi"
    assert source.answers(0) == ["A cat."]
    with pytest.raises(ValueError, match="row 3: has 1 pictures and 0 <image> marks"):
        source[2]
    assert Rows(str(file), text_only=True)[0].messages[0]["content"] == content[1:]
    assert len(Rows(str(file), limit=1)) == 1
    two = parquet(folder, [[picture, picture]], [GOOD])
    assert len([p for m in Rows(str(two))[0].messages if isinstance(m["content"], list) for p in m["content"]
                if p["type"] == "image"]) == 2  # fmt: skip
    for words, wrong in (("more than data.most_bad = 0", {"most_bad": 0}), ("got \\['x'\\]", {"image": "x"})):
        with pytest.raises(ValueError, match=words):
            Rows(str(parquet(folder, [picture, picture], [one, said(("gpt", "x"))])), **wrong)
    with pytest.raises(FileNotFoundError, match="is no file"):
        Rows(str(folder / "none.parquet"))


def test_text_alone_is_the_same_words_without_the_pictures(vlm, folder):
    (folder / "x.json").write_text(json.dumps([{"image": ["a.png", "b.png"], "conversations": GOOD}]))
    whole, bare = Llava(str(folder / "x.json"))[0], Llava(str(folder / "x.json"), text_only=True)[0]
    assert [m["content"] for m in bare.messages if m["role"] == "assistant"] == ["A cat.", "A dog."]
    texts = [[part for part in m["content"] if part["type"] == "text"] for m in whole.messages if m["role"] == "user"]
    assert [m["content"] for m in bare.messages if m["role"] == "user"] == texts
    one, two = (SceneChats(3, text_only=flag)[1] for flag in (False, True))
    assert one.messages[1] == two.messages[1]
    assert not bool(felt(vlm, [two.messages]).seen.visual.any())
    assert bool(felt(vlm, [one.messages]).seen.visual.any())


# --- features --------------------------------------------------------------------------------------------------------


def rows(seen: Seen, row: int) -> list[torch.Tensor]:
    valid = seen.whole[row]
    parts = [seen.ids, seen.position, seen.hidden, seen.embeds, *seen.taps]
    return [part[row][valid] for part in parts]


@pytest.mark.parametrize("pruner", [None, FastV(layer=1, ratio=0.6)], ids=["whole", "pruned"])
def test_a_row_of_a_batch_is_its_own_and_what_the_loop_shows(vlm, chats, pruner):
    three = [chats[k].messages for k in range(3)]
    together = felt(vlm, three, taps=(0, 2), pruner=pruner)
    for row, messages in enumerate(three):
        alone = felt(vlm, [messages], taps=(0, 2), pruner=pruner)
        for ours, theirs in zip(rows(together.seen, row), rows(alone.seen, 0)):
            assert torch.allclose(ours, theirs, atol=1e-4)
        words = together.seen.ids[row][together.answer[row]]
        assert vlm.tokenizer.decode(words, skip_special_tokens=True).strip() == messages[-1]["content"]
    head = Witness(sizes_of(vlm.model.config), levels=2, beam=1)
    context = attach(vlm.model, pruner) if pruner else torch.no_grad()
    with context:
        inputs = vlm.inputs([three[1][:-1]])
        vlm.model.generate(**inputs, custom_generate=Speculate(head), max_new_tokens=2, do_sample=False)
    shown = head.__dict__["shown"][0]
    alone = felt(vlm, [three[1]], taps=(0, 2), pruner=pruner)
    size = int(shown.whole.sum())
    for ours, theirs in zip(rows(alone.seen, 0), rows(shown, 0)):
        assert torch.allclose(ours[:size], theirs, atol=1e-4)
    assert not alone.answer[0][:size].any()
    assert bool(alone.answer[0][size])
    assert (pruner is None) == (size == inputs["input_ids"].shape[1])


class Witness(Eagle):
    taps = (0, 2)

    def observe(self, state: Any, seen: Seen) -> None:
        self.__dict__.setdefault("shown", []).append(seen)
        super().observe(state, seen)


def test_features_need_the_picture(vlm, chats):
    """Hidden states that do not change with the picture would teach a head nothing about pictures."""
    messages = chats[0].messages
    grey = Image.new("RGB", (336, 336), "grey")
    other = [{"role": "user", "content": [{"type": "image", "image": grey}, messages[0]["content"][1]]}, messages[1]]
    one, two = (felt(vlm, [m]).seen.hidden for m in (messages, other))
    assert not torch.allclose(one[:, -1], two[:, -1], atol=1e-3)


def test_an_answer_that_was_cut_away_is_counted(vlm, chats):
    messages = [chats[k].messages for k in (0, 2)]
    cut = felt(vlm, messages, longest=100)
    assert cut.cut == 2
    assert not cut.answer.any()
    head = Medusa(vlm.model.config.get_text_config().hidden_size, vlm.model.config.get_text_config().vocab_size)
    for one in (head, eagle_for(vlm)):
        assert one.loss(cut.seen, cut.answer, Target.of(vlm.model)).total.item() == 0.0, "no answer, no loss, no NaN"


# --- checkpoints -----------------------------------------------------------------------------------------------------


def test_heads_come_back_from_the_disk(vlm, tmp_path):
    text = vlm.model.config.get_text_config()
    heads: dict[str, DraftHead] = {
        "eagle": eagle_for(vlm, levels=3, beam=2, nodes=9, image_input="hidden"),
        "eagle_without_bias": eagle_for(vlm, fc_bias=False),
        "eagle3": eagle3_for(vlm, norm_before_fc=True),
        "eagle3.1": eagle3_for(vlm, fc_norm=True, norm_output=True, norm_before_residual=True, image_input="merged"),
        "vispec": ViSpec(sizes_of(vlm.model.config), queries=3, levels=2),
        "medusa": Medusa(text.hidden_size, text.vocab_size, heads=3, layers=2, widths=(3, 2)),
        "medusa_shared": Medusa(text.hidden_size, text.vocab_size, heads=2, own_head=False),
    }
    for name, head in heads.items():
        folder = save_head(head, tmp_path / name, {"target": "tiny"})
        again = load_head(folder)
        assert type(again) is type(head)
        for key, x in head.state_dict().items():
            assert torch.equal(x, again.state_dict()[key])
        if isinstance(head, Recurrent):
            assert isinstance(again, Recurrent)
            assert again.taps == head.taps
            assert (again.levels, again.beam, again.nodes) == (head.levels, head.beam, head.nodes)
            assert again.image_input == head.image_input
        else:
            assert isinstance(again, Medusa)
            assert isinstance(head, Medusa)
            assert again.tree == head.tree
    assert json.loads((tmp_path / "medusa" / "config.json").read_text())["base_model_name_or_path"] == "tiny"
    assert "bias" in json.loads((tmp_path / "eagle" / "config.json").read_text())
    # the public code draws a random embedding for a config that names the target's width, and says nothing
    config = json.loads((tmp_path / "eagle3" / "config.json").read_text())
    assert "target_hidden_size" not in config
    assert config["num_aux_hidden_states"] == 2
    assert {"d2t", "t2d"} <= set(load_file(tmp_path / "eagle3" / "model.safetensors"))
    whole = new_head("eagle3", vlm.model.config, {"taps": (1, 2)})  # says every word: engines have no place for a map
    folder = save_head(whole, tmp_path / "whole")
    assert not {"d2t", "t2d"} & set(load_file(folder / "model.safetensors"))
    assert all(torch.equal(x, whole.state_dict()[key]) for key, x in load_head(folder).state_dict().items())
    assert sorted(load_file(tmp_path / "medusa" / "medusa_lm_head.safetensors"))[:3] == [
        "0.0.linear.bias", "0.0.linear.weight", "0.1.linear.bias",
    ]  # fmt: skip
    assert load_head(tmp_path / "eagle", levels=1).levels == 1  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="head: got Lookup, which has no weights"):
        save_head(Lookup(), tmp_path / "lookup")


def test_a_head_of_ones_own_is_trained_and_comes_back(vlm, chats, tmp_path):
    class Own(DraftHead):
        """Guesses the token after next from the last state alone."""

        watches = True

        def __init__(self) -> None:
            super().__init__()
            text = vlm.model.config.get_text_config()
            self.out = torch.nn.Linear(text.hidden_size, text.vocab_size)

        def start(self, target: Target, rows: int) -> Any:
            raise NotImplementedError

        def propose(self, *args: Any) -> Any:
            raise NotImplementedError

        def loss(self, seen: Seen, answer: torch.Tensor, target: Target) -> Loss:  # type: ignore[override]
            assert seen.hidden is not None
            known = answer[:, 2:]
            each = torch.nn.functional.cross_entropy(self.out(seen.hidden[:, :-2][known]), seen.ids[:, 2:][known])
            return Loss(each, {"loss_0": (each.detach() * known.sum(), known.sum())})

    plan = replace(PLAN, loss={})
    lines = list(Trainer(vlm, head := Own(), chats, plan, tmp_path).run())
    assert lines[-1]["loss_0"] < lines[0]["loss_0"]
    again = restored(Own(), tmp_path)
    assert all(torch.equal(x, again.state_dict()[name]) for name, x in head.state_dict().items())


def test_a_speculators_folder_is_the_same_head(vlm, tmp_path):
    head = eagle3_for(vlm, norm_before_fc=True)
    folder = save_speculators(head, tmp_path / "s", "some/model", ["LlavaForConditionalGeneration"])
    config = json.loads((folder / "config.json").read_text())
    assert (config["speculators_model_type"], config["norm_before_residual"]) == ("eagle3", False)
    assert config["speculators_config"]["verifier"]["name_or_path"] == "some/model"
    assert config["speculators_config"]["proposal_methods"][0]["speculative_tokens"] == head.levels
    assert config["transformer_layer_config"]["model_type"] == "llama"
    assert "layers.0.self_attn.q_proj.weight" in load_file(folder / "model.safetensors")
    again = load_head(folder)
    assert isinstance(again, Eagle3)
    assert (again.taps, again.levels, again.norm_before_residual) == (head.taps, head.levels, False)
    assert all(torch.equal(x, again.state_dict()[key]) for key, x in head.state_dict().items())
    del config["norm_before_residual"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="norm_before_residual: the config does not say"):
        load_head(folder)
    (folder / "config.json").write_text(json.dumps(config | {"speculators_model_type": "dflash"}))
    with pytest.raises(ValueError, match="speculators_model_type: got 'dflash', valid is eagle3"):
        load_head(folder)


def test_medusa_heads_come_among_their_targets_weights(vlm, tmp_path):
    text = vlm.model.config.get_text_config()
    head = Medusa(text.hidden_size, text.vocab_size, heads=3, layers=2, widths=(3, 2))
    folder = save_medusa_full(head, tmp_path / "full", vlm.path)
    again = load_head(folder)
    assert all(torch.equal(x, again.state_dict()[key]) for key, x in head.state_dict().items())
    names = AutoModelForImageTextToText.from_pretrained(folder, output_loading_info=True)[1]["unexpected_keys"]
    found = [name for name in names if name.startswith("medusa_head.")]  # what another reader finds
    assert len(found) == len(head.state_dict())
    whole = VLM.load(folder)  # and it is still the target
    for name, p in vlm.model.named_parameters():
        assert torch.equal(p, whole.model.get_parameter(name)), name


def test_an_eagle3_is_read_under_both_names_and_says_its_taps(vlm, tmp_path):
    head = eagle3_for(vlm)
    folder = save_head(head, tmp_path / "e")
    config = json.loads((folder / "config.json").read_text())
    assert config["eagle_aux_hidden_state_layer_ids"] == [1, 2]
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [0, 1]
    tensors = load_file(folder / "model.safetensors")
    renamed = {name.replace("midlayer.", "layers.0."): x for name, x in tensors.items()}
    save_file(renamed | {"embed_tokens.weight": torch.zeros(3, 3)}, folder / "model.safetensors")
    again = load_head(folder)
    for name, x in head.state_dict().items():
        assert torch.equal(x, again.state_dict()[name])
    del config["eagle_aux_hidden_state_layer_ids"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="taps: this config does not say which hidden states"):
        load_head(folder)
    assert load_head(folder, taps=[0, 1]).taps == (0, 1)


def test_taps_in_the_numbers_of_others():
    for written in OFFSETS:
        assert read_taps(write_taps((2, 16, 29), written), written, 32) == (2, 16, 29)
    assert write_taps((2, 16, 29), "sglang") == [1, 15, 28] == write_taps((2, 16, 29), "modelopt")
    assert write_taps((2, 16, 29), "vllm") == [2, 16, 29]
    with pytest.raises(ValueError, match="cannot be written as dflash counts"):
        write_taps((0, 3), "dflash")
    with pytest.raises(ValueError, match=r"hidden states \[32\] of 32 layers"):
        read_taps([31], "sglang", 32)
    with pytest.raises(ValueError, match="got the convention 'x', valid are hidden_states"):
        read_taps([1], "x", 4)


def test_missing_and_misnamed_weights_are_listed(vlm, tmp_path):
    folder = save_head(eagle_for(vlm), tmp_path / "e")
    tensors = load_file(folder / "model.safetensors")
    tensors["midlayer.mlp.up_proj.weight"] = tensors.pop("layers.0.mlp.up_proj.weight")
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"missing \['layers\.0\.mlp\.up_proj.*unknown \['midlayer\.mlp\.up_proj"):
        load_head(folder)
    with pytest.raises(FileNotFoundError, match=r"has no config\.json"):
        load_head(tmp_path)


def test_published_eagles_leave_the_bias_out_of_their_config(vlm, tmp_path):
    for bias in (True, False):
        folder = save_head(eagle_for(vlm, fc_bias=bias), tmp_path / str(bias))
        config = json.loads((folder / "config.json").read_text())
        del config["bias"], config["mmaccel"]
        (folder / "config.json").write_text(json.dumps(config))
        torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()
        head = load_head(folder)
        assert isinstance(head, Eagle)
        assert (head.fc.bias is not None) == bias


# --- the loop --------------------------------------------------------------------------------------------------------

PLAN = Plan(steps=6, batch=2, rate=3e-3, warmup=2, save_every=3, say_every=2, loss={"steps": 2, "noise": 0.1})


def trained(vlm: Any, chats: Any, folder: Path, plan: Plan = PLAN, resume: bool = False) -> tuple[Trainer, list[dict]]:
    trainer = Trainer(vlm, eagle_for(vlm), chats, plan, folder)
    assert trainer.resume() == resume
    return trainer, list(trainer.run())


def test_a_small_vocabulary_is_what_the_answers_say(vlm):
    source = SceneChats(20, kinds=("colour", "count"))
    assert source.answers(3) == [source[3].messages[1]["content"]]
    head = new_head("eagle3", vlm.model.config, {"vocabulary": 60})
    give_vocabulary(head, vlm, source, 20)
    said = {
        token for k in range(20) for token in vlm.tokenizer.encode(f" {source.answers(k)[0]}", add_special_tokens=False)
    }
    assert said <= set(head.names().tolist())
    assert set(vlm.stop_ids) <= set(head.names().tolist())
    before = head.d2t.clone()
    give_vocabulary(eagle_for(vlm), vlm, source, 20)  # says all
    assert torch.equal(before, head.d2t)


def test_a_run_that_goes_on_is_the_run_that_was_not_stopped(vlm, chats, tmp_path):
    before = {name: p.clone() for name, p in vlm.model.named_parameters()}
    whole, lines = trained(vlm, chats, tmp_path / "whole")
    assert [line["step"] for line in lines] == [2, 4, 6]
    assert lines[-1]["loss_0"] < lines[0]["loss_0"]
    stopped = Trainer(vlm, eagle_for(vlm), chats, PLAN, tmp_path / "part")
    for line in stopped.run():
        if line["step"] == 4:
            break  # killed: the checkpoint is that of step 3
    parts, _ = trained(vlm, chats, tmp_path / "part", resume=True)
    for name, x in whole.bare.state_dict().items():
        assert torch.equal(x, parts.bare.state_dict()[name]), name
    assert parts.cursor == whole.cursor == 12
    assert all(torch.equal(p, before[name]) for name, p in vlm.model.named_parameters())
    with pytest.raises(ValueError, match="was trained with seed 0, now 1"):
        Trainer(vlm, eagle_for(vlm), chats, replace(PLAN, seed=1), tmp_path / "part").resume()


def test_mixed_precision_learns_and_keeps_fp32_weights(vlm, chats, tmp_path):
    exact = trained(vlm, chats, tmp_path / "fp32")[1]
    AcceleratorState._reset_state()  # one precision a process
    try:
        mixed, lines = trained(vlm, chats, tmp_path / "bf16", replace(PLAN, mixed="bf16"))
    finally:
        AcceleratorState._reset_state()
    assert all(p.dtype == torch.float32 for p in mixed.bare.parameters())
    assert lines[-1]["loss_0"] == pytest.approx(exact[-1]["loss_0"], rel=0.05)
    assert lines[-1]["loss_0"] != exact[-1]["loss_0"]
    with pytest.raises(ValueError, match="mixed: got 'fp8', valid are no and bf16"):
        replace(PLAN, mixed="fp8")


def test_accumulation_is_a_larger_batch(vlm, tmp_path):
    """Answers of equal length, so that the mean of means is the mean."""
    plain = replace(PLAN, loss={}, steps=2, batch=4, clip=1e9)
    many = SceneChats(60, kinds=("exist",))
    sizes = {k: int(felt(vlm, [many[k].messages]).answer.sum()) for k in range(60)}
    common = max(set(sizes.values()), key=list(sizes.values()).count)
    same = [many[k] for k, size in sizes.items() if size == common][:12]
    half, _ = trained(vlm, same, tmp_path / "half", replace(plain, batch=2))
    one, _ = trained(vlm, same, tmp_path / "one", plain)
    two, _ = trained(vlm, same, tmp_path / "two", replace(plain, batch=2, accumulate=2))
    for name, x in one.bare.state_dict().items():
        assert torch.allclose(x, two.bare.state_dict()[name], atol=1e-5), name
    assert any(
        not torch.allclose(x, half.bare.state_dict()[name], atol=1e-4) for name, x in one.bare.state_dict().items()
    )


def test_pictures_that_cannot_be_read_are_skipped_and_counted(vlm, chats, tmp_path):
    class Broken:
        def __len__(self) -> int:
            return 6

        def __getitem__(self, index: int) -> Any:
            if index % 3 == 0:
                raise OSError("no picture")
            return chats[index]

    trainer, lines = trained(vlm, Broken(), tmp_path, replace(PLAN, steps=9))  # several times round
    assert lines[-1]["skipped"] > 6
    assert trainer.wrong[-1] == "OSError: no picture"

    class Nothing(Broken):
        def __getitem__(self, index: int) -> Any:
            raise ValueError("cut off")

    with pytest.raises(ValueError, match="no conversation can be used; the last said: ValueError: cut off"):
        trained(vlm, Nothing(), tmp_path / "none")


def test_what_the_target_refuses_is_skipped_and_counted(vlm, chats, tmp_path):
    """One that is longer than the context, between good ones."""
    long = [{"role": "user", "content": "word " * 6000}, {"role": "assistant", "content": "x"}]

    class Mixed:
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Any:
            return replace(chats[index], messages=long) if index == 2 else chats[index]

    trainer, lines = trained(vlm, Mixed(), tmp_path, replace(PLAN, steps=4))
    assert lines[-1]["step"] == 4
    assert (lines[-1]["skipped"] > 0) == ("context" in " ".join(trainer.wrong))


def test_pictures_keep_their_depth_and_broken_ones_say_so(folder):
    import numpy as np

    ramp = np.linspace(0, 65535, 600).astype(np.uint16).reshape(20, 30)
    Image.fromarray(ramp).save(folder / "a.png")
    record = {"id": "x", "image": "a.png", "conversations": said(("human", "<image>"), ("gpt", "x"))}
    (folder / "d.json").write_text(json.dumps([record]))
    data = Llava(str(folder / "d.json"))
    assert data[0].messages[0]["content"][0]["image"].getpixel((29, 19)) == 65535
    (folder / "a.png").write_bytes((folder / "a.png").read_bytes()[:60])
    with pytest.raises(ValueError, match="cannot be decoded"):
        data[0]


def test_the_order_is_shuffled_anew_and_the_same_for_a_seed():
    one, two = Order(10, 3), Order(10, 3)
    first = [one[k] for k in range(20)]
    assert first == [two[k] for k in (*range(15, 20), *range(20))][5:]
    assert sorted(first[:10]) == sorted(first[10:]) == list(range(10))
    assert first[:10] != first[10:]
    assert first[:10] != [Order(10, 4)[k] for k in range(10)]


def test_live_acceptance_counts_what_the_loop_counts(vlm, chats):
    head = eagle_for(vlm, levels=2, beam=2, nodes=4)
    prompts = [chats[k].messages[:-1] for k in range(2)]
    found = live_acceptance(vlm, head, prompts, 6)
    assert 1.0 <= found["tau"] <= 3.0
    assert len(found["accepted_by_depth"]) == 2


def test_the_rate_warms_up_and_falls_to_nothing():
    plan = Plan(steps=100, warmup=10)
    shares = [plan.share(step) for step in range(101)]
    assert shares[0] == 0.1
    assert shares[10] == 1.0
    assert shares[100] == pytest.approx(0.0)
    with pytest.raises(ValueError, match="batch: got 0"):
        Plan(batch=0)
