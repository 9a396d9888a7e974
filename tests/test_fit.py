"""Refused before a load: bytes against free memory, tokens against the context, with the flags that would fit."""

import json
from pathlib import Path

import pytest
import torch
from layouts.weights import NAMES, random_model, write_checkpoint
from safetensors.torch import save_file

from mmaccel.models import fit as module
from mmaccel.models.checkpoint import Checkpoint
from mmaccel.models.fit import available, check_fit, container_room, weights

SMALL = {"visual_tokens": 576, "text_tokens": 40, "max_new_tokens": 32}


@pytest.fixture(scope="module")
def llava(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("llava")
    write_checkpoint(folder, "llava", "old", dtype=torch.float16)
    return folder


def limit(monkeypatch, amount: float) -> None:
    monkeypatch.setattr(module, "free_memory", lambda _: int(amount))


@pytest.mark.parametrize("pickle", [False, True])
@pytest.mark.parametrize(("family", "layout"), NAMES)
def test_bytes_are_those_of_the_loaded_model(family, layout, pickle, tmp_path):
    write_checkpoint(tmp_path, family, layout, sharded=True, pickle=pickle)
    model = random_model(family)
    for dtype, width in (("float32", 4), ("bfloat16", 2)):
        assert check_fit(tmp_path, dtype=dtype, **SMALL).weight_bytes == model.num_parameters() * width
    layers = model.get_decoder().layers
    linear = sum(m.weight.numel() for m in layers.modules() if isinstance(m, torch.nn.Linear))
    assert check_fit(tmp_path, **SMALL).weights.linear == linear


def test_a_head_stored_beside_its_tied_embedding_counts_once(tmp_path):
    weights_written = write_checkpoint(tmp_path, "qwen3_vl")
    head = {"lm_head.weight": weights_written["model.language_model.embed_tokens.weight"].clone()}
    save_file({**weights_written, **head}, tmp_path / "model.safetensors")
    assert check_fit(tmp_path, **SMALL).weight_bytes == random_model("qwen3_vl").num_parameters() * 4


def test_cache_bytes_are_those_of_the_librarys_cache(llava):
    model = random_model("llava")
    ids = torch.randint(10, 100, (3, 50))
    with torch.no_grad():
        cache = model(input_ids=ids, use_cache=True).past_key_values
    real = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    assert check_fit(llava, visual_tokens=0, text_tokens=45, max_new_tokens=5, batch=3).cache_bytes == real


def test_the_published_size_of_llava_7b(tmp_path):
    """The published config names few numbers; the rest are the library's defaults. 7.06 billion parameters."""
    config = {
        "architectures": ["LlavaForConditionalGeneration"], "image_token_index": 32000, "model_type": "llava",
        "text_config": {"max_position_embeddings": 4096, "model_type": "llama", "vocab_size": 32064},
        "tie_word_embeddings": False,
        "vision_config": {
            "hidden_size": 1024, "image_size": 336, "intermediate_size": 4096, "model_type": "clip_vision_model",
            "num_attention_heads": 16, "num_hidden_layers": 24, "patch_size": 14, "projection_dim": 768,
        },
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    on_the_hub = Checkpoint(tmp_path, "llava-hf/llava-1.5-7b-hf", "0" * 40, config, ())
    counted = weights(on_the_hub)
    assert counted.linear + counted.other == 7_063_427_072
    assert counted.linear == 32 * (4 * 4096**2 + 3 * 4096 * 11008)


def test_too_little_memory_names_the_flags_that_fit(llava, monkeypatch):
    full = check_fit(llava, **SMALL)
    limit(monkeypatch, full.needed - 1)
    with pytest.raises(ValueError) as refused:
        check_fit(llava, **SMALL)
    said = str(refused.value)
    assert "0.9 MiB" in said
    assert "576" not in said.split("Would fit")[1]
    flags = {"sampler.max_new_tokens=31", "model.dtype=bfloat16", "model.dtype=bfloat16 model.quantization=nf4"}
    assert all(flag in said for flag in flags)
    assert check_fit(llava, **{**SMALL, "max_new_tokens": 31}).fits
    assert check_fit(llava, dtype="bfloat16", **SMALL).fits


def test_a_flag_that_does_not_fit_is_not_offered(llava, monkeypatch):
    half = check_fit(llava, dtype="bfloat16", **SMALL).needed
    limit(monkeypatch, half - 1)
    with pytest.raises(ValueError, match="Would fit") as refused:
        check_fit(llava, **SMALL)
    assert "model.dtype=bfloat16 (" not in str(refused.value)
    assert "model.dtype=bfloat16 model.quantization=int8" in str(refused.value)
    limit(monkeypatch, 1000)
    with pytest.raises(ValueError, match="No flag fits; the least it takes is"):
        check_fit(llava, **SMALL)


def test_a_smaller_batch_is_offered(llava, monkeypatch):
    one = check_fit(llava, **SMALL).needed
    limit(monkeypatch, one)
    with pytest.raises(ValueError, match=r"Would fit: batch=1 \("):
        check_fit(llava, batch=8, **SMALL)


def test_context(llava):
    check_fit(llava, visual_tokens=576, text_tokens=20, max_new_tokens=3500)
    with pytest.raises(ValueError, match=r"576 visual \+ 20 text .* make 4097.*max_new_tokens=3500"):
        check_fit(llava, visual_tokens=576, text_tokens=20, max_new_tokens=3501)
    with pytest.raises(ValueError, match="Only smaller or fewer pictures would fit"):
        check_fit(llava, visual_tokens=5 * 1024, text_tokens=20, max_new_tokens=1)


def test_a_quantised_checkpoint_counts_as_stored(llava, tmp_path):
    import shutil

    shutil.copytree(llava, tmp_path, dirs_exist_ok=True)
    stored = {"quantization_config": {"quant_method": "bitsandbytes"}}
    config = json.loads((tmp_path / "config.json").read_text()) | stored
    (tmp_path / "config.json").write_text(json.dumps(config))
    fit = check_fit(tmp_path, dtype="bfloat16", **SMALL)
    assert fit.weight_bytes == random_model("llava").num_parameters() * 2  # written as float16


def test_unknown_memory_is_no_refusal(llava, monkeypatch):
    monkeypatch.setattr(module, "free_memory", lambda _: None)
    assert check_fit(llava, **SMALL).free is None


def test_free_memory_is_read_from_linux_and_from_the_containers_limit(tmp_path):
    (tmp_path / "meminfo").write_text("MemTotal:  2048 kB\nMemAvailable:    1024 kB\n")
    assert available(tmp_path / "meminfo") == 1024 * 1024
    assert available(tmp_path / "none") is None
    assert container_room(tmp_path) is None
    (tmp_path / "memory.current").write_text("700\n")
    (tmp_path / "memory.stat").write_text("anon 500\ninactive_file 200\n")
    (tmp_path / "memory.max").write_text("1000\n")
    assert container_room(tmp_path) == 500
    (tmp_path / "memory.max").write_text("max\n")
    assert container_room(tmp_path) is None


def test_wrong_names_are_refused(llava):
    with pytest.raises(ValueError, match=r"model\.dtype: got 'half'"):
        check_fit(llava, dtype="half", **SMALL)
    with pytest.raises(ValueError, match=r"model\.quantization: got 'int2'"):
        check_fit(llava, quantization="int2", **SMALL)
