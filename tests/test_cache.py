"""Kept features are the features, and what a training needs is said before it starts."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from running import write_tiny_llava
from transformers import AutoModelForImageTextToText, LlavaConfig

from mmaccel.drafting.eagle import Eagle
from mmaccel.models.load import VLM
from mmaccel.pruning.fastv import FastV
from mmaccel.training.cache import Cache, rows, size_of
from mmaccel.training.data import SceneChats
from mmaccel.training.estimate import Trial, memory, said
from mmaccel.training.features import felt
from mmaccel.training.formats import new_head, sizes_of
from mmaccel.training.trainer import Plan, Trainer

PLAN = Plan(steps=6, batch=2, rate=3e-3, warmup=2, save_every=3, say_every=2, loss={"steps": 2})


@pytest.fixture(scope="module")
def vlm(tmp_path_factory):
    return VLM.load(write_tiny_llava(tmp_path_factory.mktemp("tiny") / "llava"))


@pytest.fixture(scope="module")
def chats():
    return SceneChats(4, kinds=("colour", "caption"))


@pytest.mark.parametrize("pruner", [None, FastV(layer=1, ratio=0.6)], ids=["whole", "pruned"])
def test_a_row_comes_back_as_it_was_felt(vlm, chats, tmp_path, pruner):
    cache = Cache(tmp_path / "c", {"a": 1})
    found = felt(vlm, [chats[k].messages for k in range(2)], taps=(0, 2), pruner=pruner)
    for place, row in enumerate(rows(found)):
        cache.save(place, row)
        valid, back = found.seen.whole[place], cache.load(place)
        assert back is not None
        for name in ("ids", "position", "hidden", "embeds", "visual"):
            assert torch.equal(getattr(back.seen, name)[0], getattr(found.seen, name)[place][valid]), name
        for mine, theirs in zip(back.seen.taps, found.seen.taps, strict=True):
            assert torch.equal(mine[0], theirs[place][valid])
        assert torch.equal(back.answer[0], found.answer[place][valid])
        assert back.cut == 0
        size = (tmp_path / "c" / f"{place:08d}.safetensors").stat().st_size
        assert abs(size_of(row) / size - 1) < 0.1  # what the disk is asked for is what is written
    assert cache.load(5) is None
    assert cache.room(1)
    assert not cache.room(1e18)
    with pytest.raises(ValueError, match="a: was 1, now 2"):
        Cache(tmp_path / "c", {"a": 2})


def test_training_from_kept_features_is_training(vlm, chats, tmp_path, monkeypatch):
    def trained(name: str, cache: Cache | None) -> Trainer:
        torch.manual_seed(0)
        trainer = Trainer(vlm, Eagle(sizes_of(vlm.model.config)), chats, PLAN, tmp_path / name, cache=cache)
        list(trainer.run())
        return trainer

    plain, kept = trained("plain", None), trained("kept", Cache(tmp_path / "c", {}))
    assert len(list((tmp_path / "c").glob("*.safetensors"))) == len(chats)
    monkeypatch.setattr(vlm.model, "forward", None)  # all of them are there: the target is not asked again
    again = trained("again", Cache(tmp_path / "c", {}))
    for name, x in plain.bare.state_dict().items():
        assert torch.allclose(x, kept.bare.state_dict()[name], atol=1e-5), name
        assert torch.allclose(x, again.bare.state_dict()[name], atol=1e-5), name


def test_a_conversation_twice_in_a_batch_counts_twice(vlm, chats, tmp_path):
    """With kept features as without: a batch that crosses a turn of the data, or is larger than it."""
    plan = replace(PLAN, batch=6)
    for cache in (None, Cache(tmp_path / "c", {})):
        torch.manual_seed(0)
        trainer = Trainer(vlm, Eagle(sizes_of(vlm.model.config)), chats, plan, tmp_path, cache=cache)
        assert [len(trainer.felt().answer) for _ in range(3)] == [6, 6, 6]


def test_a_trial_changes_nothing(vlm, chats, tmp_path):
    torch.manual_seed(0)
    trainer = Trainer(vlm, Eagle(sizes_of(vlm.model.config)), chats, PLAN, tmp_path)
    before = {name: x.clone() for name, x in trainer.bare.state_dict().items()}
    trial = trainer.trial()
    assert (trainer.cursor, trainer.step, trainer.skipped) == (0, 0, 0)
    assert all(torch.equal(x, before[name]) for name, x in trainer.bare.state_dict().items())
    assert all(p.grad is None for p in [*trainer.bare.parameters(), *vlm.model.parameters()])
    assert all(p.requires_grad for p in vlm.model.parameters())
    assert trial.columns > 100
    assert 0 < trial.answer < trial.columns
    assert trial.sums == ("loss_0", "distance_0", "right_0", "loss_1", "distance_1", "right_1")
    need = memory(vlm.model, trainer.bare, columns=trial.columns, answer=trial.answer, batch=2, steps=2)
    text = said(trial, need, PLAN, 4, cached=True)
    assert text.startswith("memory: about ")
    assert "for 4 conversations" in text
    many = replace(PLAN, steps=3600)
    hour = said(Trial(1.0, 1.0, 9, 9, 1), need, many, 4, cached=False)
    assert "time: about 2 h 00 min" in hour
    assert "time: about 1 h 00 min" in said(
        Trial(1.0, 1.0, 9, 9, 1), need, many, 4, cached=True
    )  # felt once: 2 batches


def test_what_autograd_holds_is_what_was_said(vlm, chats):
    """The step's bytes are counted as autograd saves them, and lie below the estimate, not far below."""
    found = felt(vlm, [chats[k].messages for k in range(2)])
    held: dict[tuple[int, int], int] = {}

    def count(x: torch.Tensor) -> torch.Tensor:
        held[(x.untyped_storage().data_ptr(), x.untyped_storage().nbytes())] = x.untyped_storage().nbytes()
        return x

    torch.manual_seed(0)
    head = Eagle(sizes_of(vlm.model.config))
    for steps in (1, 4):
        held.clear()
        with torch.autograd.graph.saved_tensors_hooks(count, lambda x: x):
            loss = head.loss(found.seen, found.answer, target_of(vlm), steps=steps)
        columns = found.seen.ids.shape[1]
        asked = columns - int(found.answer.any(0).int().argmax())
        need = memory(vlm.model, head, columns=columns, answer=asked, batch=2, steps=steps)
        assert 0.3 * need.step < sum(held.values()) < need.step, steps
        loss.total.detach()


def target_of(vlm: Any) -> Any:
    from mmaccel.drafting.base import Target

    return Target.of(vlm.model)


def test_the_recipe_for_a_7b_fits_24_gb():
    """docs/training.md: LLaVA-1.5-7B in bf16 with an EAGLE head in fp32, one conversation at a time."""
    config = LlavaConfig(
        text_config={
            "model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 32064,
        },
        vision_config={
            "model_type": "clip_vision_model", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24,
            "num_attention_heads": 16, "image_size": 336, "patch_size": 14, "projection_dim": 768,
        },
    )  # fmt: skip
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(config).to(torch.bfloat16)
        head = new_head("eagle", config, {})
        third = new_head("eagle3", config, {"vocabulary": 32000})
    params = sum(p.numel() for p in model.parameters())
    assert abs(params / 7.06e9 - 1) < 0.01
    need = memory(model, head, columns=1024, answer=384, batch=1, steps=1)
    assert need.target == 2 * params
    assert need.head == 16 * sum(p.numel() for p in head.parameters())
    assert need.total < 0.9 * 24e9, str(need)
    assert memory(model, head, columns=1024, answer=384, batch=8, steps=5).total > 24e9  # the bound says no, too
    taps = memory(model, third, columns=600, answer=128, batch=1, taps=3, steps=7)
    fused = taps.features - memory(model, third, columns=600, answer=128, batch=1, steps=7).features
    assert 14e6 < fused < 15e6  # the fused taps of one sample
