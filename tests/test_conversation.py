"""Conversations with several pictures: events on a pruned cache, and what becomes of it by rollback, fork and commits.

The oracle reads which columns left from the events alone and replays them as key masks, without cache, on the whole
conversation; under compact positions it renumbers by its own count.
"""

from itertools import accumulate
from typing import Any

import pytest
import torch
from oracle import PLANS, close
from test_mechanism import Talk, model_of, some_tokens, tree_mask
from tiny import FAMILIES, inputs, row_inputs
from torch import Tensor

import mmaccel.walk as walk
from mmaccel import cache as caches
from mmaccel.attach import attach
from mmaccel.cache import cache_argument, cache_in, logical_length
from mmaccel.columns import Needs, Selection, Station
from mmaccel.pruning.base import Pruner
from mmaccel.pruning.pyramiddrop import PyramidDrop


def turn(before: int, after: int, *shapes: tuple[int, int]) -> dict:
    return {"shapes": list(shapes), "before": before, "after": after}


TALKS = {
    "three pictures": [
        [turn(3, 5, (3, 4))],
        [turn(0, 3)],
        [turn(2, 4, (2, 2), (2, 3))],
        [turn(0, 1)],
        [turn(1, 6, (1, 2))],
    ],
    "ragged": [
        [turn(3, 5, (3, 4)), turn(2, 9, (2, 2), (1, 2))],
        [turn(2, 4, (2, 2)), turn(1, 2, (3, 3))],
        [turn(0, 3), turn(0, 3)],
        [turn(2, 3), turn(2, 2, (2, 2))],
    ],
    "text first": [[turn(6, 2), turn(3, 2)], [turn(2, 4, (2, 2)), turn(1, 2, (3, 3))], [turn(0, 3), turn(0, 3)]],
}
ONE_D = ("llava", "smolvlm")


class Switching(Pruner):
    """Other stations in every event, as when pruners are changed between turns."""

    def stations(self, depth: int) -> tuple[int, ...]:
        return (0, 1, 2, 3)

    def select(self, station: Station) -> Selection:
        past = int(station.history.column.amax()) + 1 - station.history.column.shape[1]
        acting = (0, 2) if past == 0 else ((1, 3) if past % 2 else (3,))
        gone = station.visual & (station.column % 3 == station.layer % 3) & (station.layer in acting)
        return Selection(station.alive & ~gone)


PRUNERS = {**PLANS, "switching": Switching()}


def parts_of(family: str, given: dict, rows: list[dict]) -> list[Any]:
    """Per row the pixels (and sizes) of its pictures."""
    if "pixel_values" not in given:
        return [None] * len(rows)
    if family == "smolvlm":
        return list(given["pixel_values"].split(1))
    counts = [len(row["shapes"]) for row in rows]
    if family == "llava":
        return list(given["pixel_values"].split(counts))
    pixels = given["pixel_values"].split(given["image_grid_thw"].prod(-1).tolist())
    ends = list(accumulate(counts))
    return [
        (pixels[end - count : end], given["image_grid_thw"][end - count : end])
        for end, count in zip(ends, counts, strict=True)
    ]


def conversation(family: str, turns: list[list[dict]]) -> tuple[list[dict], dict]:
    """The turns' own inputs, and those of the whole conversation in one prompt."""
    given = [inputs(family, rows, seed=10 + i) for i, rows in enumerate(turns)]
    names = ("input_ids", "attention_mask", "mm_token_type_ids")
    whole = {name: torch.cat([part[name] for part in given], 1) for name in names if name in given[0]}
    parts = [parts_of(family, part, rows) for part, rows in zip(given, turns, strict=True)]
    if family == "smolvlm":
        whole["pixel_values"] = torch.cat([part["pixel_values"] for part in given if "pixel_values" in part], 1)
        return given, whole
    by_row = [part[row] for row in range(len(turns[0])) for part in parts if part[row] is not None]
    if family == "llava":
        whole["pixel_values"] = torch.cat(by_row)
    else:
        whole["pixel_values"] = torch.cat([pixels for tensors, _ in by_row for pixels in tensors])
        whole["image_grid_thw"] = torch.cat([sizes for _, sizes in by_row])
    return given, whole


def positions_of(model: Any, whole: dict) -> Tensor:
    mask = whole["attention_mask"]
    text = (mask.cumsum(1) - 1).clamp(min=0)
    if "mm_token_type_ids" not in whole:
        return text
    rotary, _ = model.model.get_rope_index(
        whole["input_ids"], image_grid_thw=whole.get("image_grid_thw"), attention_mask=mask,
        mm_token_type_ids=whole["mm_token_type_ids"],
    )  # fmt: skip
    return torch.cat([text[None], rotary])


@torch.no_grad()
def talked(model: Any, given: list[dict], whole: dict, positions: Tensor) -> tuple[Tensor, Any]:
    """[B, turns, V] the logits that end each turn, over one growing cache."""
    cache, at, ends = None, 0, []
    for part in given:
        q = part["input_ids"].shape[1]
        more = {cache_argument(model): cache} if cache is not None else {}
        mask = whole["attention_mask"][:, : at + q]
        told = {name: value for name, value in part.items() if name != "attention_mask"}
        out = model(**told, **more, attention_mask=mask, position_ids=positions[..., at : at + q], use_cache=True)
        cache, at = cache_in(out), at + q
        ends.append(out.logits[:, -1])
    return torch.stack(ends, 1), cache


def gone_from(events: list[Any], layer: int, alive: Tensor) -> Tensor:
    """[B, n] columns that no longer stand at this layer, by the events' stops."""
    B, n = alive.shape
    gone = torch.zeros(B, n, dtype=torch.bool)
    for event in events:
        reached = [stop for stop in event.stops if stop.layer <= layer]
        if reached:
            stands = torch.zeros(B, n + 1, dtype=torch.bool)
            stands.scatter_(1, reached[-1].column.masked_fill(reached[-1].column < 0, n), True)
            span = torch.zeros(B, n, dtype=torch.bool)
            span[:, event.past : event.past + event.visual_mask.shape[1]] = True
            gone |= span & alive & ~stands[:, :n]
    return gone


@torch.no_grad()
def replayed(model: Any, whole: dict, positions: Tensor, events: list[Any], ends: list[int], compact: bool) -> Tensor:
    alive, text = whole["attention_mask"].bool(), model.get_decoder()
    n = alive.shape[1]
    causal = torch.ones(n, n, dtype=torch.bool).tril()[None] & alive[:, None]
    handles = []
    for layer, block in enumerate(text.layers):
        gone = gone_from(events, layer, alive)
        seen = ((causal & ~gone[:, None]) | torch.eye(n, dtype=torch.bool))[:, None]
        if model.config._attn_implementation == "eager":
            seen = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
        renumbered = positions - (gone.cumsum(1) - gone.long()) if compact else None

        def hook(module: Any, args: tuple, kwargs: dict, seen: Tensor = seen, places: Any = renumbered) -> tuple:
            kwargs = {**kwargs, "attention_mask": seen}
            if places is not None:
                kwargs["position_embeddings"] = text.rotary_emb(args[0], places)
            return args, kwargs

        handles.append(block.register_forward_pre_hook(hook, with_kwargs=True))
    try:
        logits = model(**whole, position_ids=positions, use_cache=False).logits
    finally:
        for handle in handles:
            handle.remove()
    return logits[:, [end - 1 for end in ends]]


def check_talk(family: str, talk: str, pruner: Pruner, attention: str = "sdpa", compact: bool = False) -> None:
    model = model_of(family, attention)
    given, whole = conversation(family, TALKS[talk])
    positions = positions_of(model, whole)
    with attach(model, pruner, positions="compact" if compact else "original") as attachment:
        got, _ = talked(model, given, whole, positions)
    ends = list(accumulate(part["input_ids"].shape[1] for part in given))
    close(got, replayed(model, whole, positions, attachment.events, ends, compact), 2e-4)
    assert len(attachment.events) >= 1
    assert all(int(event.stops[-1].visual.sum()) < int(event.visual.sum()) for event in attachment.events)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("talk", TALKS)
@pytest.mark.parametrize("pruner", PRUNERS)
def test_pictures_in_later_turns_equal_the_oracle(family: str, talk: str, pruner: str) -> None:
    check_talk(family, talk, PRUNERS[pruner])
    if family in ONE_D:
        check_talk(family, talk, PRUNERS[pruner], compact=True)


@pytest.mark.parametrize("family", FAMILIES)
def test_pictures_in_later_turns_under_eager(family: str) -> None:
    check_talk(family, "ragged", PRUNERS["switching"], "eager")


def test_text_guided_rows_over_a_pruned_past() -> None:
    """PyramidDrop's own row, run ahead over past slots: what it chose is gone exactly, under sdpa and eager."""
    pruner = PyramidDrop(layers=(1, 2, 4), ratio=0.5)
    for attention in ("sdpa", "eager"):
        check_talk("llava", "ragged", pruner, attention, compact=True)
        check_talk("smolvlm", "three pictures", pruner, attention)


def test_rows_over_a_pruned_past_equal_eager() -> None:
    model, eager = model_of("llava"), model_of("llava", "eager")
    given, whole = conversation("llava", TALKS["ragged"])
    positions = positions_of(model, whole)
    found: dict[str, list[Tensor]] = {}

    class Reading(Switching):
        def needs(self, depth: int) -> Needs:
            return Needs(text_layers=(2, 3))

        def select(self, station: Station) -> Selection:
            if station.layer == 3:
                found[name] = [station.attention(2), station.attention(3)]
            return super().select(station)

    for one in (model, eager):
        name = one.config._attn_implementation
        with attach(one, Reading()):
            talked(one, given[:2], whole, positions)
    for got, wanted in zip(found["sdpa"], found["eager"], strict=True):
        close(got, wanted, 1e-5)
        assert bool((got.sum(-1) < 0.999).any())  # the rest of the mass lies on past columns


@pytest.mark.parametrize("family", FAMILIES)
def test_rollback_across_an_event(family: str) -> None:
    """Back to where the second picture began, and the same turns again: the same logits."""
    model = model_of(family)
    given, whole = conversation(family, TALKS["ragged"])
    positions = positions_of(model, whole)
    for compact in (False, True) if family in ONE_D else (False,):
        with attach(model, PLANS["at 0 and 2"], positions="compact" if compact else "original"):
            wanted, cache = talked(model, given[:3], whole, positions)
            first = given[0]["input_ids"].shape[1]
            caches.rollback(cache, first)
            at, got = first, []
            for part in given[1:3]:
                q = part["input_ids"].shape[1]
                told = {name: value for name, value in part.items() if name != "attention_mask"}
                with torch.no_grad():
                    out = model(
                        **told, attention_mask=whole["attention_mask"][:, : at + q],
                        position_ids=positions[..., at : at + q], **{cache_argument(model): cache},
                    )  # fmt: skip
                at += q
                got.append(out.logits[:, -1])
        close(torch.stack(got, 1), wanted[:, 1:])


def test_rollback_into_a_pruned_prompt() -> None:
    """Where a cut would fall on different slots in different rows, or between two numberings, it is refused."""
    model = model_of("llava")
    given, whole = conversation("llava", TALKS["ragged"])
    refused: dict[str, list[int]] = {"original": [], "compact": []}
    for positions, lengths in refused.items():
        with attach(model, PLANS["at 2"], positions=positions):
            _, cache = talked(model, given[:1], whole, positions_of(model, whole))
        end = caches.layers_of(cache)[-1].fixed_end
        for length in range(1, end):
            twin = caches.fork(cache)
            try:
                caches.rollback(twin, length)
            except ValueError:
                lengths.append(length)
                assert logical_length(twin) == logical_length(cache)  # refused as a whole
            else:
                for layer in range(6):
                    held = caches.columns(twin, layer)
                    before = caches.columns(cache, layer)
                    for row in range(2):
                        kept = before[row][(before[row] >= 0) & (before[row] < length)]
                        assert torch.equal(held[row][held[row] >= 0], kept)
    assert 0 < len(refused["original"]) < end - 1
    assert refused["compact"] == list(range(1, end))
    with pytest.raises(ValueError, match=r"valid are 0 … "):
        caches.rollback(cache, 1 << 20)


@pytest.mark.parametrize("family", FAMILIES)
def test_fork_repeat_and_select(family: str) -> None:
    model, tokens = model_of(family), some_tokens(1, 3)
    given, _ = conversation(family, TALKS["three pictures"])
    for compact in (False, True) if family in ONE_D else (False,):
        with attach(model, PLANS["at 0 and 2"], positions="compact" if compact else "original"):
            wanted = Talk(model, given[0]).say(tokens)
            many = Talk(model, given[0])
            many.cache.batch_repeat_interleave(3)
            many.mask, many.next, many.delta = many.mask.repeat(3, 1), many.next.repeat(3), many.delta.repeat(3)
            close(many.say(tokens.repeat(3, 1)), wanted.expand(3, -1, -1))
            many.cache.batch_select_indices(torch.tensor([1]))
            many.mask, many.next, many.delta = many.mask[:1], many.next[:1], many.delta[:1]
            more = Talk(model, given[0])
            more.say(tokens)
            close(many.say(tokens), more.say(tokens))


@pytest.mark.parametrize("family", ONE_D)
def test_ragged_commits_twice_then_another_picture(family: str) -> None:
    for attention in ("sdpa", "eager"):
        for compact in (False, True):
            check_ragged_talk(family, attention, compact)


def check_ragged_talk(family: str, attention: str, compact: bool) -> None:
    model, turns = model_of(family, attention), TALKS["ragged"][:2]
    given, _ = conversation(family, turns)
    keeps = [torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0]]).bool(), torch.tensor([[1, 0, 0], [1, 1, 0]]).bool()]
    drafts, after = [some_tokens(2, 4), some_tokens(2, 3, seed=8)], some_tokens(2, 2, seed=4)
    with attach(model, PLANS["at 0 and 2"], positions="compact" if compact else "original"):
        talk = Talk(model, given[0])
        for keep, tokens in zip(keeps, drafts, strict=True):
            t = tokens.shape[1]
            talk.forward(tokens, torch.arange(t).expand(2, -1), tree_mask(talk, [-1, *range(t - 1)], attention))
            caches.commit(talk.cache, t, keep)
            counts = keep.sum(1)
            longest = int(counts.max())
            talk.mask = torch.cat([talk.mask, (torch.arange(longest) >= longest - counts[:, None]).long()], 1)
            talk.next = talk.next + counts
        ended, said = picture_turn(talk, given[1]), talk.say(after)
        for row in range(2):
            alone = Talk(model, row_inputs(family, turns[0], row, seed=10))
            for keep, tokens in zip(keeps, drafts, strict=True):
                alone.say(tokens[row : row + 1, keep[row]])
            close(ended[row], picture_turn(alone, row_inputs(family, turns[1], row, seed=11))[0], 2e-4)
            close(said[row], alone.say(after[row : row + 1])[0], 2e-4)


@torch.no_grad()
def picture_turn(talk: Talk, part: dict) -> Tensor:
    """[B, V] the logits that end a turn which brings pictures (1-D positions)."""
    talk.mask = torch.cat([talk.mask, part["attention_mask"]], 1)
    places = talk.next[:, None] + (part["attention_mask"].cumsum(1) - 1).clamp(min=0)
    told = {name: value for name, value in part.items() if name != "attention_mask"}
    out = talk.model(**told, attention_mask=talk.mask, position_ids=places, **{talk.name: talk.cache})
    talk.next = talk.next + part["attention_mask"].sum(1)
    return out.logits[:, -1]


# -- nothing stays behind ----------------------------------------------------------------------------------------------


def test_an_interrupt_leaves_the_model_as_it_was() -> None:
    model, given = model_of("qwen3_vl", "eager"), inputs("qwen3_vl")
    with torch.no_grad():
        bare = model(**given).logits

    def interrupted(station: Station) -> Tensor:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), attach(model, interrupted, layer=2):
        model(**given)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert "_deepstack_process" not in vars(model.get_decoder())
    with torch.no_grad():
        assert torch.equal(model(**given).logits, bare)


def test_events_do_not_keep_conversations_alive() -> None:
    import gc

    from transformers import DynamicCache

    model, given = model_of("llava"), inputs("llava")
    with attach(model, PLANS["at 2"]) as attachment:
        for _ in range(5):
            model.generate(**given, max_new_tokens=2)
    gc.collect()
    assert len(attachment.events) == 5
    assert sum(type(thing) is DynamicCache for thing in gc.get_objects()) <= 1  # the library's own last one at most
    assert attachment.events[0].grid.shape == (1, given["input_ids"].shape[1], 5)


def test_a_failed_forward_leaves_no_event() -> None:
    model, given = model_of("llava"), inputs("llava")
    with attach(model, lambda station: 1 // 0, layer=2) as attachment, pytest.raises(ZeroDivisionError):
        model(**given)
    assert attachment.events == []


def test_what_cannot_be_right_is_refused() -> None:
    model, given = model_of("llava"), inputs("llava")
    with attach(model, PLANS["at 2"]), pytest.raises(ValueError, match="prefill_chunk_size"):
        model.generate(**given, max_new_tokens=2, prefill_chunk_size=8)
    with attach(model, PLANS["at 2"]), pytest.raises(ValueError, match="labels"):
        model(**given, labels=given["input_ids"])
    with attach(model, lambda s: s.visual, layer=2), pytest.raises(ValueError, match="text columns gone at layer 2"):
        model(**given)
    into_nothing = lambda s: Selection(s.alive & ~s.visual, s.column * 0 + 4)  # noqa: E731
    with attach(model, into_nothing, layer=0), pytest.raises(ValueError, match="go into one that is not kept"):
        model(**given)
    with (
        pytest.raises(ValueError, match="refused for M-RoPE"),
        attach(model_of("qwen3_vl"), PLANS["at 2"], positions="compact"),
    ):
        pass
    from transformers import StaticCache

    static = StaticCache(config=model.get_decoder().config, max_cache_len=64)
    with attach(model, PLANS["at 2"]), pytest.raises(ValueError, match="StaticLayer"):
        model(**given, **{cache_argument(model): static})
    with (
        attach(model, PyramidDrop(layers=(1, 2, 4), ratio=0.5)),
        pytest.raises(ValueError, match="ends with its picture"),
    ):
        model(**{name: value[:, :-6] if value.ndim == 2 else value for name, value in given.items()})


# -- and they bite -----------------------------------------------------------------------------------------------------


def past_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        walk.EventWalk, "_past_columns", lambda self, stored: torch.arange(self.past).expand(len(self.ids), -1)
    )


def shift_forgotten(patch: pytest.MonkeyPatch) -> None:
    plain = walk.EventWalk._compact_positions
    patch.setattr(walk.EventWalk, "_compact_positions", lambda self, *given: plain(self, *given[:-1], None))


def later_shift_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        walk.LaterForward, "_rotary", lambda self, hidden, shift: self.text.rotary_emb(hidden, self.positions)
    )


def rollback_keeps_the_shift(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(caches, "_shifts_before", lambda shifts, length: shifts)


def shift_not_repeated(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(caches.ColumnLayer, "batch_repeat_interleave", caches.DynamicLayer.batch_repeat_interleave)


WRONG = [
    (past_forgotten, lambda: check_talk("llava", "ragged", PLANS["at 0 and 2"])),
    (shift_forgotten, lambda: check_talk("llava", "ragged", PLANS["at 0 and 2"], compact=True)),
    (later_shift_forgotten, lambda: check_talk("llava", "three pictures", PLANS["at 2"], compact=True)),
    (rollback_keeps_the_shift, lambda: test_rollback_across_an_event("llava")),
    (shift_not_repeated, lambda: test_fork_repeat_and_select("llava")),
]


@pytest.mark.parametrize(("wrong", "check"), WRONG, ids=[wrong.__name__ for wrong, _ in WRONG])
def test_the_check_fails_on_a_wrong_variant(wrong: Any, check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    check()
    wrong(monkeypatch)
    with pytest.raises((AssertionError, RuntimeError, IndexError)):
        check()


def test_lengths_after_everything() -> None:
    model, tokens = model_of("llava"), some_tokens(1, 2)
    with attach(model, PLANS["at 2"]):
        talk = Talk(model, inputs("llava"))
        before = logical_length(talk.cache)
        talk.say(tokens)
        talk.cache.crop(-1)
        assert logical_length(talk.cache) == before + 1
        for layer in caches.layers_of(talk.cache):
            assert layer.get_seq_length() == before + 1
