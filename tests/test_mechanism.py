"""Pruned really equals masked: every check here is also shown to fail on one deliberately wrong variant."""

from contextlib import contextmanager
from typing import Any

import pytest
import torch
from oracle import PLANS, SUPPRESS, DropCodes, close, oracle_logits
from tiny import DEPTH, FAMILIES, IMAGE, ONE, RAGGED, inputs, row_inputs, tiny
from torch import Tensor

import mmaccel.walk as walk
from mmaccel import cache as caches
from mmaccel.attach import Attachment, attach
from mmaccel.cache import ColumnLayer, cache_argument, cache_in, columns, logical_length, physical_length
from mmaccel.columns import Selection
from mmaccel.masks import layer_mask
from mmaccel.pruning.base import FunctionPruner

TWO = RAGGED[:2]
BACKENDS = ("sdpa", "eager")
KEEP_ALL = FunctionPruner(lambda station: station.alive, 0)
every_family = pytest.mark.parametrize("family", FAMILIES)
every_backend = pytest.mark.parametrize("attention", BACKENDS)
MODELS: dict[tuple, Any] = {}


def model_of(family: str, attention: str = "sdpa", seed: int = 0) -> Any:
    if (family, attention, seed) not in MODELS:
        MODELS[family, attention, seed] = tiny(family, attention, seed)
    return MODELS[family, attention, seed]


def generated(model: Any, given: dict, steps: int = 12, **more: Any) -> Any:
    return model.generate(
        **given, max_new_tokens=steps, do_sample=False, suppress_tokens=SUPPRESS, output_logits=True,
        return_dict_in_generate=True, **more,
    )  # fmt: skip


# -- own loop: positions are explicit --------------------------------------------------------------------------------


class Talk:
    """A conversation driven by hand: a cache, the mask, the next position per row (and axis)."""

    def __init__(self, model: Any, given: dict[str, Tensor]) -> None:
        self.model, self.mask = model, given["attention_mask"]
        self.name = cache_argument(model)
        if "mm_token_type_ids" not in given:  # as generate does: padding has no position
            given = {"position_ids": (self.mask.cumsum(1) - 1).clamp(min=0), **given}
        with torch.no_grad():
            out = model(**given, use_cache=True)
        self.cache, self.logits = cache_in(out), out.logits[:, -1]
        self.next = self.mask.sum(1)  # [B]
        self.delta = torch.zeros_like(self.next)
        if "mm_token_type_ids" in given:
            types = {"mm_token_type_ids": given["mm_token_type_ids"]}
            _, delta = model.model.get_rope_index(
                given["input_ids"], image_grid_thw=given.get("image_grid_thw"), attention_mask=self.mask, **types
            )
            self.delta = delta.view(-1)

    def positions(self, depth: Tensor) -> Tensor:
        text = self.next[:, None] + depth  # [B, t]
        if self.model.config.model_type.startswith("qwen"):
            rotary = text + self.delta[:, None]
            return torch.stack([text, rotary, rotary, rotary])
        return text

    @torch.no_grad()
    def forward(self, tokens: Tensor, depth: Tensor, mask: Tensor | None = None) -> Tensor:
        """[B, t, V] logits of [B, t] new columns; `depth` [B, t] counts from the next position."""
        grown_mask = torch.cat([self.mask, torch.ones_like(tokens)], 1)
        given = {"attention_mask": grown_mask if mask is None else mask, self.name: self.cache}
        logits = self.model(input_ids=tokens, position_ids=self.positions(depth), **given).logits
        if mask is None:
            self.mask, self.next = grown_mask, self.next + tokens.shape[1]
        return logits

    def say(self, tokens: Tensor) -> Tensor:
        """[B, t, V] one by one."""
        return torch.cat([self.forward(token, torch.zeros_like(token)) for token in tokens.split(1, 1)], 1)


def some_tokens(batch: int, count: int, seed: int = 5) -> Tensor:
    return torch.randint(3, 80, (batch, count), generator=torch.Generator().manual_seed(seed))


# -- checks: each is a test below, and fails on its wrong variant ------------------------------------------------------


def check_identity(family: str, attention: str, pruner: Any = KEEP_ALL) -> None:
    model = model_of(family, attention)
    for rows in ([ONE], RAGGED):
        given = inputs(family, rows)
        with torch.no_grad():
            bare = model(**given, use_cache=True)
            with attach(model, pruner):
                held = model(**given, use_cache=True)
        assert torch.equal(bare.logits, held.logits)
        for a, b in zip(cache_in(bare).layers, cache_in(held).layers, strict=True):
            assert torch.equal(a.keys, b.keys)
            assert torch.equal(a.values, b.values)


def check_oracle(family: str, attention: str, plan: DropCodes, rows: list[dict], steps: int = 12) -> None:
    model, given = model_of(family, attention), inputs(family, rows)
    with attach(model, plan):
        out = generated(model, given, steps)
        with torch.no_grad():
            prefill = model(**given).logits[:, -1]
    tokens = out.sequences[:, given["input_ids"].shape[1] :]
    wanted = oracle_logits(model, given, tokens[:, :-1], plan)
    close(torch.stack(out.logits, 1), wanted)
    close(prefill, wanted[:, 0])
    allowed = wanted.clone()
    allowed[..., SUPPRESS] = -torch.inf
    assert torch.equal(allowed.argmax(-1), tokens)


def check_rows(family: str, attention: str, plan: DropCodes) -> None:
    model, given = model_of(family, attention), inputs(family, RAGGED)
    with attach(model, plan):
        batch = generated(model, given, 6)
        for index in range(len(RAGGED)):
            single = generated(model, row_inputs(family, RAGGED, index), 6)
            close(torch.stack(batch.logits, 1)[index], torch.stack(single.logits, 1)[0])


def check_slots(family: str) -> None:
    model, given = model_of(family), inputs(family, [ONE])
    length, count = given["input_ids"].shape[1], int((given["input_ids"] == IMAGE).sum())
    with attach(model, PLANS["at 0 and 2"]) as attachment:
        talk = Talk(model, given)
        first, second = (int(stop.visual) for stop in attachment.events[0].stops)
        for layer in range(DEPTH):
            kept = first if layer < 2 else second
            assert physical_length(talk.cache, layer) == length - count + kept
            assert columns(talk.cache, layer).shape[1] == length - count + kept
        assert logical_length(talk.cache) == length
        talk.say(some_tokens(1, 3))
        assert physical_length(talk.cache, 3) == length - count + second + 3
        assert columns(talk.cache, 3)[0, -3:].tolist() == [length, length + 1, length + 2]
    assert 0 < second < first < count


def check_block(family: str, attention: str, rows: list[dict] = TWO) -> None:
    model, given = model_of(family, attention), inputs(family, rows)
    tokens = some_tokens(len(rows), 5)
    with attach(model, PLANS["at 0 and 2"]):
        one, block = Talk(model, given), Talk(model, given)
        close(block.forward(tokens, torch.arange(5).expand(len(rows), -1)), one.say(tokens))


def tree_mask(talk: Talk, parent: list[int], attention: str) -> Tensor:
    """[B, 1, t, L+t] each node sees the past, its ancestors and itself, over logical columns."""
    past, t = logical_length(talk.cache), len(parent)
    own = torch.zeros(t, t, dtype=torch.bool)
    for node, above in enumerate(parent):
        own[node, node] = True
        if above >= 0:
            own[node] |= own[above]
    seen = torch.cat([talk.mask.bool()[:, None].expand(-1, t, -1), own.expand(len(talk.mask), -1, -1)], 2)[:, None]
    assert seen.shape[-1] == past + t
    if attention == "eager":  # HF adds what it is given: a bool mask would be 0 and 1
        return torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
    return seen


def check_tree(family: str, attention: str, parent: tuple[int, ...] = (-1, -1, 0, 2)) -> None:
    model, given = model_of(family, attention), inputs(family, TWO)
    tokens, depth = some_tokens(2, 4), torch.tensor([[0, 0, 1, 2]]).expand(2, -1)
    with attach(model, PLANS["at 2"]):
        tree, path, side = (Talk(model, given) for _ in range(3))
        logits = tree.forward(tokens, depth, tree_mask(tree, list(parent), attention))
        close(logits[:, [0, 2, 3]], path.say(tokens[:, [0, 2, 3]]))
        close(logits[:, [1]], side.say(tokens[:, [1]]))
        keep = torch.tensor([[True, False, True, True]]).expand(2, -1)
        caches.commit(tree.cache, 4, keep)
        tree.mask, tree.next = torch.cat([tree.mask, torch.ones(2, 3, dtype=torch.long)], 1), tree.next + 3
        assert logical_length(tree.cache) == logical_length(path.cache)
        more = some_tokens(2, 2, seed=9)
        close(tree.say(more), path.say(more))


def check_ragged_commit(family: str, attention: str = "sdpa") -> None:
    """Row 0 commits three of four, row 1 one of four: the next step of each row equals its own conversation."""
    model, given = model_of(family, attention), inputs(family, TWO)
    tokens, after = some_tokens(2, 4), some_tokens(2, 2, seed=9)
    with attach(model, PLANS["at 0 and 2"]):
        talk = Talk(model, given)
        talk.forward(tokens, torch.arange(4).expand(2, -1), tree_mask(talk, [-1, 0, 1, 2], attention))
        keep = torch.tensor([[True, True, True, False], [True, False, False, False]])
        caches.commit(talk.cache, 4, keep)
        assert columns(talk.cache, 3)[1, -3:].tolist()[:2] == [-1, -1]
        dead = torch.tensor([[1, 1, 1], [0, 0, 1]])
        talk.mask, talk.next = torch.cat([talk.mask, dead], 1), talk.next + torch.tensor([3, 1])
        got = talk.say(after)
        for row, count in ((0, 3), (1, 1)):
            alone = Talk(model, row_inputs(family, TWO, row))
            alone.say(tokens[row : row + 1, :count])
            close(got[row], alone.say(after[row : row + 1])[0])


def check_second_turn(family: str) -> None:
    model, given = model_of(family), inputs(family, [ONE])
    seen: list[int] = []
    handle = model.get_decoder().register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(kwargs["inputs_embeds"].shape[1]), with_kwargs=True
    )
    with attach(model, PLANS["at 0 and 2"]) as attachment:
        first = generated(model, given, 4)
        cache = cache_in(first)
        turn = torch.cat([first.sequences, some_tokens(1, 3)], 1)
        seen.clear()
        types = {}
        if "mm_token_type_ids" in given:
            types["mm_token_type_ids"] = torch.cat(
                [given["mm_token_type_ids"], torch.zeros(1, turn.shape[1] - given["input_ids"].shape[1]).int()], 1
            )
        second = generated(
            model,
            {"input_ids": turn, "attention_mask": torch.ones_like(turn), cache_argument(model): cache, **types},
            3,
        )
    handle.remove()
    assert len(attachment.events) == 1  # the second turn brings no picture
    assert seen == [4, 1, 1]  # the last reply token, never forwarded so far, and three new ones; then one each
    tokens = second.sequences[:, turn.shape[1] :]
    forced = torch.cat([turn[:, given["input_ids"].shape[1] :], tokens], 1)
    wanted = oracle_logits(model, given, forced[:, :-1], PLANS["at 0 and 2"])
    close(torch.stack(second.logits, 1), wanted[:, -3:])


def check_rollback(family: str) -> None:
    model, given = model_of(family), inputs(family, TWO)
    tokens, other = some_tokens(2, 4), some_tokens(2, 3, seed=9)
    with attach(model, PLANS["at 0 and 2"]):
        talk, wanted = Talk(model, given), Talk(model, given)
        length, mask, position = logical_length(talk.cache), talk.mask, talk.next
        talk.say(tokens)
        twin = caches.fork(talk.cache)
        caches.rollback(talk.cache, length)
        talk.mask, talk.next = mask, position
        close(talk.say(other), wanted.say(other))
        assert logical_length(twin) == length + 4  # the fork did not move
        talk.cache, talk.mask = twin, torch.cat([mask, torch.ones_like(tokens)], 1)
        talk.next = position + 4
        wanted = Talk(model, given)
        wanted.say(tokens)
        close(talk.say(other), wanted.say(other))


def check_beams(family: str) -> None:
    """Beam search over the pruned cache equals beam search that re-prunes the whole prompt at every step."""
    model, given = model_of(family), inputs(family, TWO)
    with attach(model, PLANS["at 0 and 2"]):
        cached, free = (
            model.generate(
                **given, max_new_tokens=6, num_beams=3, do_sample=False, suppress_tokens=SUPPRESS, use_cache=use,
                return_dict_in_generate=True, output_scores=True,
            )
            for use in (True, False)
        )  # fmt: skip
    assert torch.equal(cached.sequences, free.sequences)
    close(cached.sequences_scores, free.sequences_scores)


def check_prompt_lookup(family: str) -> None:
    model, given = model_of(family), inputs(family, [{"shapes": [(3, 4)], "before": 3, "after": 9}])
    given["input_ids"][0, -8:] = torch.tensor([20, 21, 22, 23, 20, 21, 22, 23])  # something to look up
    guided = FunctionPruner(_best_half, 2)
    with attach(model, guided) as attachment:
        plain = generated(model, given, 8).sequences
        looked = generated(model, given, 8, prompt_lookup_num_tokens=3).sequences
    assert torch.equal(plain, looked)
    a, b = (event.stops[0].column for event in attachment.events)
    assert torch.equal(a, b[:, : a.shape[1]])  # the draft behind the prompt does not guide the pruner


def _best_half(station: Any) -> Selection:
    score = station.attention(station.layer - 1).mean(1)[:, 0].masked_fill(~station.visual, -1)  # [B, q]
    rank = score.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
    return Selection(station.alive & (~station.visual | (rank < station.visual.sum(1, keepdim=True) // 2)))


def check_own_cache(family: str) -> None:
    from transformers import DynamicCache

    model, given = model_of(family), inputs(family, [ONE])
    mine = DynamicCache(config=model.get_decoder().config)
    with attach(model, PLANS["at 2"]):
        out = generated(model, {**given, cache_argument(model): mine}, 3)
    assert cache_in(out) is mine
    assert isinstance(mine.layers[3], ColumnLayer)
    assert not isinstance(mine.layers[1], ColumnLayer)
    assert physical_length(mine, 3) < physical_length(mine, 1) == logical_length(mine)


def check_interleaved(family: str) -> None:
    """Two conversations in turns on one model, and a second model attached inside, do not disturb each other."""
    model, second = model_of(family), model_of(family, seed=1)
    one, two = inputs(family, [ONE], seed=1), inputs(family, TWO[1:], seed=2)
    tokens, plan = some_tokens(1, 3), PLANS["at 0 and 2"]
    with attach(model, plan):
        alone = [Talk(model, given).say(tokens) for given in (one, two)]
        with attach(second, PLANS["at 2"]):
            elsewhere = Talk(second, one)
            a, b = Talk(model, one), Talk(model, two)
            mixed: list[list[Tensor]] = [[], []]
            for token in tokens.split(1, 1):
                mixed[0].append(a.say(token))
                elsewhere.say(token)
                mixed[1].append(b.say(token))
    for wanted, got in zip(alone, mixed, strict=True):
        close(torch.cat(got, 1), wanted)


def check_compact(family: str, layer: int = 0) -> None:
    """Station 0 with compact positions is the library called on the shortened prompt, prefill and decode."""
    model = model_of(family)
    plan = DropCodes(((layer, (1, 2)),))
    tokens = some_tokens(2, 4)
    given = inputs(family, TWO)
    with attach(model, plan, positions="compact") as attachment:
        talk = Talk(model, given)
        got = torch.cat([talk.logits[:, None], talk.say(tokens[:, :2])], 1)
        block = talk.forward(tokens[:, 2:], torch.arange(2).expand(2, -1))
        got = torch.cat([got, block], 1)  # [B, 5, V]
    text = model.get_decoder()
    for row in range(2):
        single = row_inputs(family, TWO, row)
        caught: list[Tensor] = []
        hook = lambda module, args, kwargs, caught=caught: caught.append(kwargs["inputs_embeds"])  # noqa: E731
        handle = text.register_forward_pre_hook(hook, with_kwargs=True)
        with torch.no_grad():
            model(**single)
        handle.remove()
        kept = attachment.events[0].stops[0].column[row]
        kept = kept[kept >= 0] - (given["input_ids"].shape[1] - single["input_ids"].shape[1])
        embeds = torch.cat([caught[0][:, kept], model.get_input_embeddings()(tokens[row : row + 1])], 1)
        with torch.no_grad():
            hidden = text(inputs_embeds=embeds, attention_mask=torch.ones(embeds.shape[:2])).last_hidden_state
            wanted = model.lm_head(hidden)[0, len(kept) - 1 :]
        close(got[row], wanted)


def check_untouched(family: str, attention: str) -> None:
    model, given = tiny(family, attention), inputs(family, [ONE])

    def facts() -> list[Any]:
        modules = dict(model.named_modules())
        state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        hooks = {n: (len(m._forward_hooks), len(m._forward_pre_hooks)) for n, m in modules.items()}
        own = {n: sorted(k for k in vars(m) if k != "rope_deltas") for n, m in modules.items()}
        configs = {n: id(m.config) for n, m in modules.items() if hasattr(m, "config")}
        parts = {n: m.config._attn_implementation for n, m in modules.items() if hasattr(m, "config")}
        return [
            state,
            hooks,
            own,
            configs,
            parts,
            model.config.to_dict(),
            type(model),
            [type(m) for m in modules.values()],
        ]

    with torch.no_grad():
        model(**given)  # caches its own lazy attributes first
        before, bare = facts(), model(**given).logits
        with attach(model, FunctionPruner(_best_half, 2)):
            generated(model, given, 3)
        with pytest.raises(ZeroDivisionError), attach(model, FunctionPruner(lambda station: 1 // 0, 2)):
            model(**given)
        after = facts()
    assert all(torch.equal(before[0][name], after[0][name]) for name in before[0])
    assert before[1:] == after[1:]
    with torch.no_grad():
        assert torch.equal(bare, model(**given).logits)


# -- the tests ---------------------------------------------------------------------------------------------------------


@every_family
@every_backend
def test_nothing_dropped_is_bit_equal(family: str, attention: str) -> None:
    check_identity(family, attention)


@every_family
@every_backend
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("rows", [[ONE], TWO], ids=["batch 1", "left-padded batch"])
def test_pruned_equals_the_masking_oracle(family: str, attention: str, plan: str, rows: list[dict]) -> None:
    check_oracle(family, attention, PLANS[plan], rows)


@every_family
@every_backend
def test_each_row_equals_its_batch_1_run(family: str, attention: str) -> None:
    check_rows(family, attention, PLANS["at 0 and 2"])


@every_family
def test_physical_slots_are_the_plan(family: str) -> None:
    check_slots(family)


@every_family
@every_backend
def test_a_block_of_five_equals_one_by_one(family: str, attention: str) -> None:
    check_block(family, attention)


@every_family
@every_backend
def test_a_tree_equals_its_paths_and_commits(family: str, attention: str) -> None:
    check_tree(family, attention)


@every_family
@every_backend
def test_rows_commit_different_lengths(family: str, attention: str) -> None:
    check_ragged_commit(family, attention)


@every_family
def test_a_second_turn_forwards_only_its_new_tokens(family: str) -> None:
    check_second_turn(family)


@every_family
def test_rollback_and_fork(family: str) -> None:
    check_rollback(family)


@every_family
def test_beams(family: str) -> None:
    check_beams(family)


@every_family
def test_prompt_lookup(family: str) -> None:
    check_prompt_lookup(family)


@every_family
def test_the_callers_cache_is_the_one_used(family: str) -> None:
    check_own_cache(family)


@every_family
def test_interleaved_conversations_and_two_models(family: str) -> None:
    check_interleaved(family)


@pytest.mark.parametrize("family", ["llava", "smolvlm"])
def test_compact_is_the_library_on_the_shortened_prompt(family: str) -> None:
    check_compact(family)


@every_family
@every_backend
def test_the_model_is_untouched_afterwards(family: str, attention: str) -> None:
    check_untouched(family, attention)


# -- and they bite -----------------------------------------------------------------------------------------------------


def physical_length_reported(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ColumnLayer, "get_seq_length", lambda self: self._physical())


def first_positions_instead_of_kept_ones(patch: pytest.MonkeyPatch) -> None:
    def first_ones(self: Any, standing: Any, index: Tensor, ok: Tensor, shift: Any) -> tuple:
        return tuple(part[:, : index.shape[1]] for part in self._rotary_given)

    patch.setattr(walk.EventWalk, "_rotary", first_ones)


def fillers_stay_visible(patch: pytest.MonkeyPatch) -> None:
    plain = walk.View
    patch.setattr(walk, "View", lambda query, key, first, fillers: plain(query, key, first, False))


def deepstack_unpatched(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(walk.EventWalk, "_wrap_injection", lambda self, name: None)


def gathers_although_nothing_left(patch: pytest.MonkeyPatch) -> None:
    def into_itself(self: Any, station: Any) -> Selection:
        return Selection(station.alive, torch.arange(station.alive.shape[1]).expand_as(station.alive))

    patch.setattr(FunctionPruner, "select", into_itself)


def only_masked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(walk.EventWalk, "_reduce", lambda self, layer, hidden, *rest: hidden)


def causal_mask_for_trees(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(walk, "layer_mask", lambda mask, view, **form: layer_mask(None, view, **form))


def blocks_see_ahead(patch: pytest.MonkeyPatch) -> None:
    def open_mask(mask: Tensor | None, view: Any, **form: Any) -> Tensor | None:
        made = layer_mask(mask, view, **form)
        return made if made is None else torch.ones_like(made) & (view.key >= 0)[:, None, None]

    patch.setattr(walk, "layer_mask", open_mask)


def left_aligned_commit(patch: pytest.MonkeyPatch) -> None:
    plain = caches._keep_tail
    patch.setattr(caches, "_keep_tail", lambda states, tail, order: plain(states, tail, order.flip(1)))


def crop_by_logical_slots(patch: pytest.MonkeyPatch) -> None:
    def wrong(layer: Any, length: int, cut: Any) -> None:
        layer.keys, layer.values = layer.keys[..., :length, :], layer.values[..., :length, :]

    patch.setattr(caches, "_truncate", wrong)


def anchor_behind_the_draft(patch: pytest.MonkeyPatch) -> None:
    plain = walk.EventWalk.__init__
    patch.setattr(walk.EventWalk, "__init__", lambda self, *given: plain(self, *given[:-1], 1))


def a_cache_of_its_own(patch: pytest.MonkeyPatch) -> None:
    plain = Attachment.text_forward

    def forked(self: Any, module: Any, args: tuple, kwargs: dict) -> Any:
        name = next(name for name in caches.CACHE_NAMES if name in kwargs)
        kwargs = {**kwargs, name: caches.fork(kwargs[name])}
        return plain(self, module, args, kwargs) or (args, kwargs)

    patch.setattr(Attachment, "text_forward", forked)


def delta_of_the_last_conversation(patch: pytest.MonkeyPatch) -> None:
    plain = Talk.positions

    def from_the_model(self: Talk, depth: Tensor) -> Tensor:
        self.delta = self.model.model.rope_deltas.view(-1)
        return plain(self, depth)

    patch.setattr(Talk, "positions", from_the_model)


def positions_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(walk.EventWalk, "_compact_positions", lambda self, _, index, *rest: self.positions.gather(1, index))


def config_left_behind(patch: pytest.MonkeyPatch) -> None:
    import mmaccel.observe as observe

    @contextmanager
    def recording(module: Any, recorder: Any, *, dry: bool = False):
        with observe.recording(module, recorder, dry=dry):
            yield
            held = module.config
        module.config = held

    patch.setattr(walk, "recording", recording)


WRONG = [
    (gathers_although_nothing_left, lambda: check_identity("llava", "sdpa")),
    (physical_length_reported, lambda: check_oracle("qwen2_5_vl", "sdpa", PLANS["at 0"], TWO)),
    (first_positions_instead_of_kept_ones, lambda: check_oracle("llava", "sdpa", PLANS["at 2"], [ONE])),
    (deepstack_unpatched, lambda: check_oracle("qwen3_vl", "sdpa", PLANS["at 0"], [ONE])),
    (fillers_stay_visible, lambda: check_oracle("llava", "eager", PLANS["at 2"], TWO)),
    (fillers_stay_visible, lambda: check_rows("llava", "sdpa", PLANS["at 0 and 2"])),
    (only_masked, lambda: check_slots("llava")),
    (causal_mask_for_trees, lambda: check_tree("llava", "sdpa")),
    (blocks_see_ahead, lambda: check_block("llava", "sdpa")),
    (left_aligned_commit, lambda: check_ragged_commit("llava")),
    (physical_length_reported, lambda: check_second_turn("llava")),
    (crop_by_logical_slots, lambda: check_rollback("llava")),
    (first_positions_instead_of_kept_ones, lambda: check_compact("llava")),
    (physical_length_reported, lambda: check_beams("llava")),
    (anchor_behind_the_draft, lambda: check_prompt_lookup("llava")),
    (a_cache_of_its_own, lambda: check_own_cache("llava")),
    (delta_of_the_last_conversation, lambda: check_interleaved("qwen2_5_vl")),
    (positions_kept, lambda: check_compact("llava")),
    (config_left_behind, lambda: check_untouched("llava", "sdpa")),
]


LIBRARY_STUMBLES = (physical_length_reported, deepstack_unpatched, left_aligned_commit, crop_by_logical_slots)


@pytest.mark.parametrize(("wrong", "check"), WRONG, ids=[f"{wrong.__name__}-{i}" for i, (wrong, _) in enumerate(WRONG)])
def test_the_check_fails_on_a_wrong_variant(wrong: Any, check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a difference in numbers; where the wrong variant breaks shapes inside the library, by its error."""
    check()
    wrong(monkeypatch)
    with pytest.raises((AssertionError, RuntimeError, IndexError) if wrong in LIBRARY_STUMBLES else AssertionError):
        check()
