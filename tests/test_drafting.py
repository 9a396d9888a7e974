"""Every head against a slow loop of its paper's formula, what it is shown, and losslessness through the one loop."""

import itertools
import re
import sys
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, TopKLogitsWarper, TopPLogitsWarper

from mmaccel.attach import attach
from mmaccel.cache import cache_argument, cache_in
from mmaccel.columns import Needs
from mmaccel.decoding.speculate import Speculate
from mmaccel.drafting.assistant import Assistant
from mmaccel.drafting.base import PADDING, ROOT, Draft, DraftHead, Seen, Target
from mmaccel.drafting.eagle import Eagle
from mmaccel.drafting.eagle3 import Eagle3, default_taps, frequent
from mmaccel.drafting.layer import Keys, Sizes, rotated, turned
from mmaccel.drafting.lookup import Lookup
from mmaccel.drafting.medusa import Medusa
from mmaccel.drafting.recurrent import Grown, Recurrent
from mmaccel.drafting.trees import Pool, Shape, product
from mmaccel.drafting.vispec import ViSpec
from mmaccel.pruning import pool
from mmaccel.pruning.fastv import FastV
from mmaccel.pruning.pyramiddrop import PyramidDrop
from mmaccel.pruning.uniform import Uniform
from mmaccel.training.formats import EAGLE3_FLAGS, sizes_of
from tests import tiny as tiny_models
from tests.tiny import RAGGED

WIDTH, VOCABULARY = 16, 29
SIZES = Sizes(WIDTH, 4, 2, 6, 24)


def paths(draft: Draft, row: int) -> dict[tuple[int, ...], int]:
    """The token path of every real node → how often it is there."""
    found: list[tuple[int, ...]] = []
    for token, parent in zip(draft.tokens[row].tolist(), draft.parent[row].tolist()):
        above = found[parent] if parent >= 0 else ()
        found.append((*above, token) if parent != PADDING else (-1,))
    real = [path for path in found if -1 not in path]
    return {path: real.count(path) for path in real}


# --- trees -----------------------------------------------------------------------------------------------------------


def test_a_fixed_tree_hangs_together():
    shape = Shape.of([[1], [0], [0, 0], [0, 1], [1, 0], [0, 0, 0]])
    assert shape.parent == (ROOT, ROOT, 0, 0, 1, 2)
    assert (shape.depth, shape.rank) == ((1, 1, 2, 2, 2, 3), (0, 1, 0, 1, 0, 0))
    assert [shape.choices(level) for level in (1, 2, 3)] == [2, 2, 1]
    assert shape.cut(2).parent == (ROOT, ROOT, 0, 0, 1)
    assert Shape.widths([3, 2]).parent == (ROOT, ROOT, ROOT, 0, 0)
    with pytest.raises(ValueError, match=r"tree: got \[\[1, 0\]\] without the node above"):
        Shape.of([[0], [1, 0]])
    with pytest.raises(ValueError, match="widths: got"):
        Shape.widths([2, 0])


def test_a_product_takes_each_levels_own_choices():
    choices = [torch.tensor([[5, 6], [7, 8]]), torch.tensor([[1, 2], [3, 4]])]
    draft = product(Shape.of([[0], [1], [0, 1], [1, 0]]), choices)
    assert set(paths(draft, 0)) == {(5,), (6,), (5, 2), (6, 1)}
    assert set(paths(draft, 1)) == {(7,), (8,), (7, 4), (8, 3)}
    assert product(Shape.of([[0]]).cut(0), choices).size == 0


def slow_tree(table: Tensor, first: Tensor, width: int, levels: int, nodes: int) -> set[tuple[int, ...]]:
    """table [V, V] log-probabilities of the next token, first [V] of the first: every path by hand."""
    pool: dict[tuple[int, ...], float] = {}
    frontier: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    for _ in range(levels):
        offered = []
        for path, score in frontier:
            law = table[path[-1]] if path else first
            offered += [((*path, int(t)), score + float(law[t])) for t in law.argsort(descending=True)[:width]]
        pool |= dict(offered)
        frontier = sorted(offered, key=lambda item: -item[1])[:width]
    return set(sorted(pool, key=lambda path: -pool[path])[:nodes])


@pytest.mark.parametrize(("width", "levels", "nodes"), [(3, 4, 9), (1, 4, 4), (4, 2, 20), (2, 5, 3)])
def test_a_grown_tree_is_the_best_of_all_paths(width, levels, nodes):
    torch.manual_seed(width)
    tables = torch.randn(2, 12, 12).log_softmax(-1)
    firsts = torch.randn(2, 12).log_softmax(-1)
    pool = Pool(width)
    frontier = pool.offer(firsts[:, None])
    for _ in range(levels - 1):
        law = torch.stack([tables[row][frontier.tokens[row]] for row in range(2)])
        frontier = pool.offer(law, frontier)
    draft = pool.best(nodes)
    assert (draft.parent < torch.arange(draft.size)).all()
    for row in range(2):
        found = paths(draft, row)
        assert set(found) == slow_tree(tables[row], firsts[row], width, levels, nodes)
        assert set(found.values()) == {1}


def test_a_certain_child_does_not_crowd_out_its_parent():
    pool = Pool(2)
    certain = torch.full((1, 1, 4), -50.0)
    certain[..., 2] = 0.0
    frontier = pool.offer(certain)
    for _ in range(3):
        frontier = pool.offer(certain.expand(1, 2, 4), frontier)
    draft = pool.best(2)
    assert set(paths(draft, 0)) == {(2,), (2, 2)}


# --- heads -----------------------------------------------------------------------------------------------------------


class Plain:
    """A target of random weights."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.embed = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.logits = torch.nn.Linear(WIDTH, VOCABULARY, bias=False)

    def target(self) -> Target:
        return Target(self.embed, self.logits, WIDTH, 4, VOCABULARY)


def columns(rows: list[int], length: int, seed: int = 0) -> Seen:
    """Right-aligned random columns, `rows` of them valid per row."""
    torch.manual_seed(seed)
    valid = torch.arange(length) >= length - torch.tensor(rows)[:, None]
    ids = torch.randint(0, VOCABULARY, (len(rows), length))
    visual = torch.rand(len(rows), length) < 0.4
    position = (valid.long().cumsum(1) * 2 - 1).clamp(min=0)  # with gaps, as after pruning
    embeds, hidden, *taps = (torch.randn(len(rows), length, WIDTH) for _ in range(5))
    return Seen(ids, position, valid, hidden, tuple(taps), embeds, visual)


def slow_lookup(ids: list[int], ngram: int, tokens: int) -> list[int]:
    for n in range(min(ngram, len(ids) - 1), 0, -1):
        for end in range(len(ids) - 1, n - 1, -1):
            if ids[end - n : end] == ids[-n:]:
                return ids[end : end + tokens]
    return []


def test_lookup_is_the_last_match_of_the_longest_run():
    generator = torch.Generator().manual_seed(0)
    head, matched = Lookup(ngram=3, tokens=4), 0
    for _ in range(60):
        state = head.start(Plain().target(), 2)
        said: list[list[int]] = [[], []]
        for rows in ([7, 4], [2, 1], [1, 3]):
            seen = columns(rows, max(rows), int(torch.randint(0, 10**6, (1,), generator=generator)))
            seen = Seen(seen.ids % 4, seen.position, seen.valid)
            head.observe(state, seen)
            for row, count in enumerate(rows):
                said[row] += seen.ids[row, -count:].tolist()
            token = torch.randint(0, 4, (2,), generator=generator)
            draft = head.propose(state, token, torch.zeros(2, 1, dtype=torch.long), 3, None)
            for row in range(2):
                wanted = slow_lookup([*said[row], int(token[row])], 3, 3)
                assert list(paths(draft, row)) == [tuple(wanted[: n + 1]) for n in range(len(wanted))]
                matched += bool(wanted)
    assert matched > 100


def test_medusa_is_a_product_of_heads_that_share_nothing():
    plain, head = Plain(), Medusa(WIDTH, VOCABULARY, heads=3, layers=2, widths=(3, 2))
    for block in head.blocks.modules():
        if isinstance(block, torch.nn.Linear):
            torch.nn.init.normal_(block.weight)
    weights = [id(p) for p in head.parameters()]
    assert len(set(weights)) == len(weights) == 3 * (2 * 2 + 1)
    state = head.start(plain.target(), 2)
    first, later = columns([5, 3], 5), columns([2, 0], 2, seed=4)
    head.observe(state, first)
    head.observe(state, later)
    assert first.hidden is not None
    assert later.hidden is not None
    hidden = torch.stack([later.hidden[0, -1], first.hidden[1, -1]])
    draft = head.propose(state, torch.tensor([1, 2]), torch.zeros(2, 1), 9, None)
    for row in range(2):
        best = []
        for level, width in ((0, 3), (1, 2)):
            x = hidden[row]
            for block in head.blocks[level]:
                x = x + torch.nn.functional.silu(block.linear(x))
            best.append(head.outputs[level](x).topk(width).indices.tolist())
        wanted = {(a,) for a in best[0]} | {(best[0][0], b) for b in best[1]}
        assert set(paths(draft, row)) == wanted
    assert head.propose(state, torch.tensor([1, 2]), torch.zeros(2, 1), 1, None).size == 3
    with pytest.raises(ValueError, match="tree: got 4 levels, valid are at most heads = 3"):
        Medusa(WIDTH, VOCABULARY, heads=3, widths=(1, 1, 1, 1))


def rms(x: Tensor, norm: Any) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight


def slow_pair(head: Recurrent, embed: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """(residual, what attention reads) of one place, by the papers' formulas."""
    if isinstance(head, Eagle):
        x = head.fc.weight @ torch.cat([embed, hidden])
        x = x if head.fc.bias is None else x + head.fc.bias
        return x, x
    assert isinstance(head, Eagle3)
    g = rms(hidden, head.midlayer.hidden_norm)
    return g if head.norm_before_residual else hidden, torch.cat([rms(embed, head.midlayer.input_layernorm), g])


def slow_rest(head: Recurrent, x: Tensor) -> Tensor:
    layer = head.layer if isinstance(head, Eagle) else head.midlayer  # type: ignore[attr-defined]
    n, mlp = rms(x, layer.post_attention_layernorm), layer.mlp
    x = x + mlp.down_proj.weight @ (torch.nn.functional.silu(mlp.gate_proj.weight @ n) * (mlp.up_proj.weight @ n))
    return rms(x, head.norm) if isinstance(head, Eagle3) and head.norm_output else x


def slow_slots(head: ViSpec, run: list[Tensor]) -> list[Tensor]:
    """What the queries find in one picture."""
    part, found = head.imadpt, []
    for query in part.q:  # [H, d]
        mixed = []
        for at, one in enumerate(query):
            own = slice(at * len(one), (at + 1) * len(one))
            k, v = (torch.stack([proj.weight[own] @ x for x in run]) for proj in (part.k_proj, part.v_proj))
            mixed.append((k @ one * len(one) ** -0.5).softmax(-1) @ v)
        found.append(part.o_proj.weight @ torch.cat(mixed))
    return found


def slow_pairs(
    head: Recurrent, tokens: list[Tensor], hidden: list[Tensor], pictured: list[bool]
) -> list[tuple[Tensor, Tensor] | None]:
    """One per place; None where it is left out. pictured: the token after is a picture's."""
    if not isinstance(head, ViSpec):
        left = head.image_input == "none"
        return [None if left and p else slow_pair(head, e, h) for e, h, p in zip(tokens, hidden, pictured)]
    sight, out, at = torch.zeros(WIDTH), list[tuple[Tensor, Tensor] | None](), 0
    while at < len(tokens):
        if not pictured[at]:
            h = head.img_fc.weight @ torch.cat([hidden[at], sight]) + head.img_fc.bias
            out.append(slow_pair(head, tokens[at], h))
            at += 1
            continue
        end = at
        while end < len(tokens) and pictured[end]:
            end += 1
        *slots, sight = slow_slots(head, tokens[at:end])
        slots = slots[-(end - at) :] if slots else []
        out += [None] * (end - at - len(slots)) + [(slot, slot) for slot in slots]
        at = end
    return out


def slow_feature(
    head: Recurrent, tokens: list[Tensor], hidden: list[Tensor], position: list[int], pictured: list[bool]
) -> Tensor:
    """[D] the last feature of a whole sequence of pairs (embedding of the token after, hidden state), no cache."""
    every = slow_pairs(head, tokens, hidden, pictured)
    position = [where for where, pair in zip(position, every, strict=True) if pair is not None]
    pairs = [pair for pair in every if pair is not None]
    read = torch.stack([read for _, read in pairs])[None]
    q, k, v = head.attention.heads(read, torch.tensor(position)[None, None])
    sizes, out = head.sizes, []
    for at in range(sizes.heads):
        group = at // (sizes.heads // sizes.kv_heads)
        share = (k[0, group] @ q[0, at, -1] * sizes.head_dim**-0.5).softmax(-1)
        out.append(share @ v[0, group])
    return slow_rest(head, pairs[-1][0] + head.attention.o_proj.weight @ torch.cat(out))


def slow_law(head: Recurrent, plain: "Plain", feature: Tensor) -> Tensor:
    """[V of the target] log-probabilities, −inf where the head has no word."""
    if isinstance(head, Eagle):
        return plain.logits(feature).log_softmax(-1)
    assert isinstance(head, Eagle3)
    own = head.lm_head.weight @ (feature if head.norm_output else rms(feature, head.norm))
    law = torch.full((VOCABULARY,), -torch.inf)
    for at, value in enumerate(own.log_softmax(-1)):
        law[at + int(head.d2t[at])] = value
    return law


def slow_given(head: Recurrent, seen: Seen, row: int, at: int) -> Tensor:
    """What of the target stands for one column."""
    if isinstance(head, Eagle):
        assert seen.hidden is not None
        return seen.hidden[row, at]
    assert isinstance(head, Eagle3)
    fused = torch.cat([tap[row, at] for tap in seen.taps])
    fused = fused if head.input_norm is None else rms(fused, head.input_norm)
    if head.fc_norm is not None:
        fused = torch.cat([rms(part, norm) for part, norm in zip(fused.split(WIDTH), head.fc_norm)])
    return head.fc.weight @ fused


def eagle3(**more: Any) -> Eagle3:
    sizes = replace(SIZES, read=2 * WIDTH)
    head = Eagle3(sizes, taps=(0, 1, 3), vocabulary=17, target_vocabulary=VOCABULARY, **more)
    head.speak(torch.tensor([0, 1, 2, 3, 4, 5, 8, 9, 11, 12, 13, 17, 20, 21, 22, 25, 28]))
    for name, p in head.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(p, 0.5, 1.5)
    return head


RECURRENT = {
    "eagle": lambda **more: Eagle(SIZES, fc_bias=True, **more),
    "eagle3": lambda **more: eagle3(**more),
    "eagle3.1": lambda **more: eagle3(**dict.fromkeys(EAGLE3_FLAGS, True), **more),
    "vispec": lambda **more: vispec(**more),
}
INPUTS = [(kind, how) for kind in RECURRENT if kind != "vispec" for how in ("placeholder", "merged", "hidden", "none")]


def vispec(**more: Any) -> ViSpec:
    head = ViSpec(SIZES, fc_bias=True, queries=3, **({"image_input": "compressed"} | more))
    torch.nn.init.normal_(head.img_fc.weight, 0, 0.2)
    torch.nn.init.normal_(head.img_fc.bias, 0, 0.2)
    return head


@torch.no_grad()
@pytest.mark.parametrize(("kind", "image_input"), [*INPUTS, ("vispec", "compressed")])
@pytest.mark.parametrize("beam", [1, 3])
def test_a_head_with_its_cache_is_the_whole_sequence_run_anew(kind, image_input, beam):
    """Three rounds with ragged commits; at each, the tree is grown by hand, every node from the whole sequence."""
    plain, levels, nodes = Plain(), 3, 7
    torch.manual_seed(2)
    head = RECURRENT[kind](levels=levels, beam=beam, nodes=nodes, image_input=image_input).eval()
    state = head.start(plain.target(), 2)
    token = torch.zeros(2, dtype=torch.long)
    known: list[dict[str, list]] = [{"embed": [], "hidden": [], "position": [], "visual": []} for _ in range(2)]
    for turn, rows in enumerate(([6, 4], [1, 3], [2, 1])):
        seen = columns(rows, max(rows), seed=turn + 7)
        assert seen.valid is not None
        assert seen.hidden is not None
        assert seen.embeds is not None
        base = torch.tensor([[max(k["position"], default=-1) + 1] for k in known])
        seen = replace(seen, position=seen.position + base)
        assert seen.visual is not None
        assert seen.embeds is not None
        if turn:  # no answer holds a picture
            seen = replace(seen, visual=torch.zeros_like(seen.visual), embeds=plain.embed(seen.ids))
        for row, count in enumerate(rows if turn else ()):  # a step commits the token it was asked below first
            first = max(rows) - count
            seen.ids[row, first], seen.visual[row, first] = token[row], False
            seen.embeds[row, first] = plain.embed(token[row])
        head.observe(state, seen)
        token = torch.tensor([3 + turn, 5 + turn])
        for row, count in enumerate(rows):
            for at in range(max(rows) - count, max(rows)):
                embed = plain.embed(seen.ids[row, at])
                if image_input in ("merged", "compressed"):
                    embed = seen.embeds[row, at]
                if image_input == "hidden" and seen.visual[row, at]:
                    embed = torch.zeros(WIDTH)
                known[row]["embed"].append(embed)
                known[row]["hidden"].append(slow_given(head, seen, row, at))
                known[row]["position"].append(int(seen.position[row, at]))
                known[row]["visual"].append(bool(seen.visual[row, at]))
        position = torch.tensor([[known[row]["position"][-1] + 1] for row in range(2)])
        draft = head.propose(state, token, position, 9, None)
        for row in range(2):
            tokens = [*known[row]["embed"][1:], plain.embed(token[row])]
            at = known[row]["position"]

            def law(path: tuple[int, ...], tokens=tokens, at=at, row=row) -> tuple[Tensor, Tensor]:
                hidden = list(known[row]["hidden"])
                more, where = list(tokens), list(at)
                for depth in range(len(path) + 1):
                    pictured = [*known[row]["visual"][1:], *[False] * (depth + 1)]
                    feature = slow_feature(head, more, hidden, where, pictured)
                    if depth < len(path):
                        more.append(plain.embed(torch.tensor(path[depth])))
                        hidden.append(feature)
                        where.append(at[-1] + 1 + depth)
                return slow_law(head, plain, feature), feature

            pool: dict[tuple[int, ...], float] = {}
            frontier: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
            for _ in range(levels):
                offered = []
                for path, score in frontier:
                    values, best = law(path)[0].topk(beam)
                    offered += [((*path, int(t)), score + float(v)) for v, t in zip(values, best)]
                pool |= dict(offered)
                frontier = sorted(offered, key=lambda item: -item[1])[:beam]
            wanted = set(sorted(pool, key=lambda path: -pool[path])[:nodes])
            assert set(paths(draft, row)) == wanted, (turn, row)


def test_what_an_eagle_cannot_be():
    for words, wrong in (("levels: got 0", {"levels": 0}), ("image_input: got 'x'", {"image_input": "x"})):
        with pytest.raises(ValueError, match=words):
            Eagle(SIZES, **wrong)
    with pytest.raises(ValueError, match="heads: got 3 over 2 key/value heads"):
        Sizes(WIDTH, 3, 2, 6, 24)
    with pytest.raises(ValueError, match="eagle: got a head of width 16, the target's is 8"):
        Eagle(SIZES).start(Target(torch.nn.Embedding(3, 8), torch.nn.Linear(8, 3), 8, 2, 3), 1)


def test_states_fork_and_select():
    plain, head = Plain(), Eagle(SIZES, levels=2, beam=2, nodes=4)
    state = head.start(plain.target(), 2)
    head.observe(state, columns([4, 2], 4))
    token, position = torch.tensor([1, 2]), torch.tensor([[9], [9]])
    apart = state.fork()
    with torch.no_grad():
        first = head.propose(apart, token, position, 5, None)
    assert state.waiting is not None, "what the fork drafted is not in the state it was forked from"
    assert state.keys.length == 0
    other = state.select(torch.tensor([1]))
    with torch.no_grad():
        both, alone = (
            head.propose(state, token, position, 5, None),
            head.propose(other, token[1:], position[1:], 5, None),
        )
    assert paths(both, 1) == paths(alone, 0)
    assert torch.equal(both.tokens, first.tokens)
    assert isinstance(state.keys, Keys)
    assert state.keys.length == 4
    assert Grown.none(state.keys).sees.shape[2] == 0


# --- through the loop ------------------------------------------------------------------------------------------------


@cache
def model_of(family: str) -> Any:
    return tiny_models.tiny(family, "sdpa")


def heads_for(model: Any) -> dict[str, DraftHead]:
    text = model.config.get_text_config()
    width, vocabulary = text.hidden_size, text.vocab_size
    torch.manual_seed(5)
    sizes = Sizes(width, 4, 2, 8, 32)
    return {
        "lookup": Lookup(2, 5),
        "medusa": Medusa(width, vocabulary, heads=3, widths=(3, 2, 1)),
        "medusa_shared": Medusa(width, vocabulary, heads=2, widths=(2, 2), own_head=False),
        "eagle": Eagle(sizes, levels=3, beam=3, nodes=7),
        "eagle_chain": Eagle(sizes, levels=3, beam=1, image_input="hidden"),
        "eagle_blind": Eagle(sizes, levels=3, beam=2, nodes=5, image_input="none"),
        "vispec": ViSpec(sizes, levels=3, beam=2, nodes=5),
        "eagle3": Eagle3(
            replace(sizes, read=2 * width),
            taps=(0, 1, 2),
            vocabulary=vocabulary // 2,
            target_vocabulary=vocabulary,
            levels=3,
            beam=2,
            nodes=5,
        ),
    }


PRUNERS = {
    "none": None, "fastv": FastV(layer=1, ratio=0.5), "first": Uniform(layer=0, ratio=0.6),
    "stages": PyramidDrop(layers=(1, 2), ratio=0.5),
}  # fmt: skip


@pytest.mark.parametrize("rows", [None, RAGGED], ids=["one", "ragged"])
@pytest.mark.parametrize("pruner", PRUNERS)
@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl"])
def test_every_head_over_every_pruner_says_what_plain_decoding_says(family, pruner, rows):
    model, inputs = model_of(family), tiny_models.inputs(family, rows)
    with nullcontext() if PRUNERS[pruner] is None else attach(model, PRUNERS[pruner]):
        plain = model.generate(**inputs, custom_generate=Speculate(), max_new_tokens=14, do_sample=False)
        for name, head in heads_for(model).items():
            speculate = Speculate(head)
            said = model.generate(**inputs, custom_generate=speculate, max_new_tokens=14, do_sample=False)
            assert torch.equal(said, plain), name
            assert speculate.stats.nodes > 0 or name == "lookup"


@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl"])
def test_a_prompt_may_end_right_after_a_picture(family):
    """The head's last pair is the picture's last column with the token that was said, not with a placeholder."""
    rows = [{"shapes": [(3, 4)], "before": 3, "after": 0}, {"shapes": [(2, 2), (2, 3)], "before": 2, "after": 0}]
    model, inputs = model_of(family), tiny_models.inputs(family, rows)
    plain = model.generate(**inputs, custom_generate=Speculate(), max_new_tokens=10, do_sample=False)
    for name, head in heads_for(model).items():
        said = model.generate(**inputs, custom_generate=Speculate(head), max_new_tokens=10, do_sample=False)
        assert torch.equal(said, plain), name


def test_a_batch_of_text_alone_trains_every_weight():
    """Processes that train together wait for all of them; what no picture reached gets zeros."""
    plain = Plain()
    seen, answer = columns([8, 6], 8), torch.ones(2, 8, dtype=torch.bool)
    head = vispec()
    head.loss(replace(seen, visual=torch.zeros_like(answer)), answer, plain.target()).total.backward()
    assert all(p.grad is not None for p in head.parameters())
    assert not any(bool(p.grad.any()) for p in head.imadpt.parameters())


def small_model(vocabulary: int) -> Any:
    config = LlamaConfig(vocab_size=vocabulary, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
                         num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=512)  # fmt: skip
    torch.manual_seed(9)
    return LlamaForCausalLM(config).eval()


@torch.no_grad()
@pytest.mark.parametrize("rows", [None, RAGGED], ids=["one", "ragged"])
def test_an_assistant_says_what_it_would_say_alone(rows):
    """Its drafts, step by step under acceptances, are its own greedy continuation of the text said so far."""
    model, inputs = model_of("llava"), tiny_models.inputs("llava", rows)
    small = small_model(model.config.get_text_config().vocab_size)
    drafts: list[tuple[list[list[int]], Draft]] = []

    class Kept(Assistant):
        def propose(self, state: Any, token: Tensor, *rest: Any) -> Draft:
            draft = super().propose(state, token, *rest)
            drafts.append(([[*row.said, last] for row, last in zip(state.rows, token.tolist())], draft))
            return draft

    plain = model.generate(**inputs, custom_generate=Speculate(), max_new_tokens=9, do_sample=False)
    said = model.generate(**inputs, custom_generate=Speculate(Kept(small, 3)), max_new_tokens=9, do_sample=False)
    assert torch.equal(said, plain)
    for texts, draft in drafts:
        for row, text in enumerate(texts):
            assert model.config.image_token_id not in text
            ids = torch.tensor([text])
            for token in draft.tokens[row].tolist():
                assert int(small(input_ids=ids).logits[0, -1].argmax()) == token
                ids = torch.cat([ids, torch.tensor([[token]])], 1)
    with pytest.raises(ValueError, match="assistant: got a model of 7 tokens"):
        Assistant(small_model(7)).fits(1, 128)
    state = Assistant(small).start(Target.of(model), 2)
    state.rows[0].said.append(4)
    assert state.fork().select(torch.tensor([1])).rows[0].said == []


class Witness(Eagle):
    """Keeps what it is shown."""

    taps = (0, 2, 3)

    def observe(self, state: Any, seen: Seen) -> None:
        self.__dict__.setdefault("shown", []).append(seen)
        super().observe(state, seen)


@pytest.mark.parametrize("rows", [None, RAGGED], ids=["one", "ragged"])
@pytest.mark.parametrize("pruner", PRUNERS)
@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl"])
def test_a_head_is_shown_the_columns_that_reached_the_end(family, pruner, rows):
    """Against one forward of the library's over everything said, where pruning removes nothing it is all of it; with a
    pruner the shown columns are the last layer's, and what is shown of text before the station is the library's."""
    model, inputs = model_of(family), tiny_models.inputs(family, rows)
    text = model.config.get_text_config()
    torch.manual_seed(6)
    head = Witness(Sizes(text.hidden_size, 4, 2, 8, 32), levels=2, beam=2, nodes=4)
    image = model.config.image_token_id
    with nullcontext() if PRUNERS[pruner] is None else attach(model, PRUNERS[pruner]) as attachment:
        said = model.generate(**inputs, custom_generate=Speculate(head), max_new_tokens=8, do_sample=False)
        if PRUNERS[pruner] is not None:
            kept = attachment.events[0].stops[-1].column
    whole = head.__dict__["shown"][0]
    for seen in head.__dict__["shown"][1:]:
        whole = whole.then(seen)
    assert whole.valid is not None
    for row in range(len(said)):
        valid = whole.valid[row]
        ids = whole.ids[row][valid].tolist()
        prompt = inputs["input_ids"][row][inputs["attention_mask"][row].bool()].tolist()
        answer = said[row, inputs["input_ids"].shape[1] :].tolist()
        left = sum(token == image for token in ids)
        assert [token for token in ids if token != image] == [t for t in (*prompt, *answer) if t != image][
            : len(ids) - left
        ]
        assert whole.visual[row][valid].tolist() == [token == image for token in ids]
        if PRUNERS[pruner] is None:
            assert left == prompt.count(image)
        else:
            columns_left = kept[row][kept[row] >= 0]
            assert left == int((inputs["input_ids"][row][columns_left] == image).sum())
            assert left < prompt.count(image) or not left
    if PRUNERS[pruner] is None and rows is None:
        again = {**inputs, "input_ids": said[:, :-1], "attention_mask": torch.ones_like(said[:, :-1])}
        again = {name: value for name, value in again.items() if name != "mm_token_type_ids"}
        if "mm_token_type_ids" in inputs:
            again["mm_token_type_ids"] = (again["input_ids"] == image).int()
        states = model(**again, output_hidden_states=True).hidden_states
        for tap, shown in zip(head.taps, whole.taps):
            assert torch.allclose(shown[0][whole.valid[0]], states[tap][0][: int(whole.valid.sum())], atol=1e-4)
        assert torch.allclose(whole.hidden[0][whole.valid[0]], states[-1][0][: int(whole.valid.sum())], atol=1e-4)
        assert torch.allclose(whole.embeds[0][whole.valid[0]], states[0][0][: int(whole.valid.sum())], atol=1e-4)
    positions = whole.position if whole.position.ndim == 2 else whole.position[0]
    for row, valid in itertools.product(range(len(said)), (whole.valid,)):
        assert (positions[row][valid[row]].diff() >= 0).all()


class Oracle(DraftHead):
    """Knows each row's answer and drafts so much of it, with a wrong sibling beside every right token."""

    watches, taps = True, (0, 2)

    def __init__(self, truth: list[list[int]], right: int) -> None:
        super().__init__()
        self.truth, self.right, self.shape = truth, right, "tree"
        self.shown: list[Seen] = []

    def start(self, target: Target, rows: int) -> Any:
        return None

    def observe(self, state: Any, seen: Seen) -> None:
        self.shown.append(seen)

    def propose(self, state: Any, token: Tensor, position: Tensor, limit: int, sampler: Any) -> Draft:
        new = [sum(int(seen.whole[row].sum()) for seen in self.shown[1:]) for row in range(len(token))]
        levels = min(self.right, limit)
        tokens = [[t for d in range(levels) for t in (ids[n + 1 + d], (ids[n + 1 + d] + 1) % 90)]
                  for ids, n in ((self.truth[row] + [0] * 20, n) for row, n in enumerate(new))]  # fmt: skip
        parent = [above for d in range(levels) for above in (2 * d - 2 if d else ROOT,) * 2]
        if not levels:
            return Draft.empty(len(token))
        return Draft(torch.tensor(tokens), torch.tensor(parent).expand(len(token), -1))

    def whole(self) -> Seen:
        found = self.shown[0]
        for seen in self.shown[1:]:
            found = found.then(seen)
        return found


@pytest.mark.parametrize("rows", [None, RAGGED], ids=["one", "ragged"])
@pytest.mark.parametrize("pruner", PRUNERS)
@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl"])
def test_what_is_shown_does_not_depend_on_how_much_was_accepted(family, pruner, rows):
    """The columns of a run in which three tokens a step are accepted are those of a run that accepts none."""
    model, inputs = model_of(family), tiny_models.inputs(family, rows)
    size = inputs["input_ids"].shape[1]
    with nullcontext() if PRUNERS[pruner] is None else attach(model, PRUNERS[pruner]):
        options = {"max_new_tokens": 9, "do_sample": False}
        plain = model.generate(**inputs, custom_generate=Speculate(), **options)
        truth = plain[:, size:].tolist()
        seen = []
        for right in (0, 3):
            head = Oracle(truth, right)
            speculate = Speculate(head)
            assert torch.equal(model.generate(**inputs, custom_generate=speculate, **options), plain)
            assert (speculate.stats.accepted > 0) == (right > 0)
            seen.append(head.whole())
    for row in range(len(truth)):
        one, two = ([part[..., valid, :] if part.ndim == 2 and part.shape[0] == len(valid) else part for part in
                     (whole.ids[row][valid], whole.position[..., row, :][..., valid], *(x[row][valid] for x in
                      (whole.hidden, whole.embeds, *whole.taps)))]
                    for whole in seen for valid in (whole.whole[row],))  # fmt: skip
        assert torch.equal(one[0], two[0])
        assert torch.equal(one[1], two[1])
        for ours, theirs in zip(one[2:], two[2:]):
            assert torch.allclose(ours, theirs, atol=1e-4)


def test_an_fp32_head_drafts_for_a_bf16_target():
    model = tiny_models.tiny("llava", "sdpa").to(torch.bfloat16)
    inputs = tiny_models.inputs("llava")
    inputs["pixel_values"] = inputs["pixel_values"].to(torch.bfloat16)
    for head in heads_for(model).values():
        said = model.generate(**inputs, custom_generate=Speculate(head), max_new_tokens=5, do_sample=False)
        assert said.shape[1] == inputs["input_ids"].shape[1] + 5


def test_positions_are_time_or_all_three_whoever_hands_them_over():
    three = torch.arange(6).view(3, 1, 2)
    four = torch.cat([torch.full((1, 1, 2), 99), three])
    plain = Eagle(SIZES)
    full = Eagle(replace(SIZES, sections=(1, 1, 1)), rope="mrope")
    for handed in (three, four):
        assert torch.equal(plain.place(handed), three[:1])
        assert torch.equal(full.place(handed), three)
    assert torch.equal(plain.place(three[0]), three[:1])
    assert torch.equal(full.place(three[0]), three[:1].expand(3, -1, -1))
    with pytest.raises(ValueError, match="valid are sequential: its target has no M-RoPE"):
        Eagle(SIZES, rope="mrope")
    with pytest.raises(ValueError, match="rope: got 'x', valid are sequential, mrope"):
        Eagle(full.sizes, rope="x")
    with pytest.raises(ValueError, match=r"sections: got \(2, 2, 2\), valid are three that add up to 3"):
        replace(SIZES, sections=(2, 2, 2))


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
def test_a_head_on_three_axes_turns_as_its_target_does(family):
    """Queries of the head's rotation equal the library's own, on positions of a picture."""
    model = model_of(family)
    sizes = sizes_of(model.config)
    assert sum(sizes.sections) == sizes.head_dim // 2
    torch.manual_seed(0)
    position = torch.randint(0, 40, (3, 2, 7))
    q = torch.randn(2, sizes.heads, 7, sizes.head_dim)
    rotary = model.get_decoder().rotary_emb
    cos, sin = rotary(q, position)
    module = sys.modules[type(rotary).__module__]
    theirs, _ = module.apply_rotary_pos_emb(q, q, cos, sin)
    assert torch.allclose(rotated(q, *turned(position, sizes)), theirs, atol=1e-5)


@pytest.mark.parametrize("rows", [None, RAGGED], ids=["one", "ragged"])
def test_a_head_on_three_axes_sees_what_training_fed_it(rows):
    """Features of drafting and of the training form are the same, on M-RoPE positions and left padding."""
    model, inputs = model_of("qwen2_5_vl"), tiny_models.inputs("qwen2_5_vl", rows)
    torch.manual_seed(3)

    class Shown(Eagle):
        def observe(self, state: Any, seen: Seen) -> None:
            prompts.append(seen)
            super().observe(state, seen)

    prompts: list[Seen] = []
    head = Shown(sizes_of(model.config), levels=2, beam=1, nodes=2, rope="mrope").eval()
    plain = model.generate(**inputs, custom_generate=Speculate(), max_new_tokens=5, do_sample=False)
    said = model.generate(**inputs, custom_generate=Speculate(head), max_new_tokens=5, do_sample=False)
    assert torch.equal(plain, said)
    seen, target = prompts[0], Target.of(model)
    state = head.start(target, len(seen.ids))
    Eagle.observe(head, state, seen)
    token = said[:, inputs["input_ids"].shape[1]]
    feature = head.catch_up(state, token)[:, 0]
    after = replace(seen, ids=token[:, None], position=seen.position[..., -1:] + 1, valid=None,
                    hidden=seen.hidden[:, -1:], embeds=target.embed(token)[:, None],
                    visual=torch.zeros_like(token, dtype=torch.bool)[:, None])  # fmt: skip
    whole = seen.then(after)
    trained = head.unrolled(whole, target, 1)[0][:, -2]
    assert torch.allclose(feature, trained, atol=1e-5)


def test_a_head_that_watches_refuses_a_chunked_prompt():
    model, inputs = model_of("llava"), tiny_models.inputs("llava")
    head = heads_for(model)["eagle"]
    with pytest.raises(ValueError, match="prefill_chunk_size: valid is None with a head"):
        model.generate(**inputs, custom_generate=Speculate(head), max_new_tokens=4, prefill_chunk_size=8)


# --- losses ----------------------------------------------------------------------------------------------------------


def test_medusas_loss_is_a_slow_loop():
    plain, head = Plain(), Medusa(WIDTH, VOCABULARY, heads=3)
    seen, answer = columns([9, 9], 9), torch.rand(2, 9) < 0.5
    assert seen.hidden is not None
    found = head.loss(seen, answer, plain.target(), decay=0.5)
    total = torch.zeros(())
    for level in range(3):
        each = [
            torch.nn.functional.cross_entropy(head.guess(seen.hidden[row, at], level), seen.ids[row, at + level + 2])
            for row in range(2)
            for at in range(9 - level - 2)
            if answer[row, at + level + 2]
        ]
        assert found.sums[f"loss_{level}"][1] == len(each)
        total = total + 0.5**level * torch.stack(each).mean()
    assert torch.allclose(found.total, total)


@pytest.mark.parametrize("begins", [0, 8])
@pytest.mark.parametrize(("kind", "image_input"), [*INPUTS, ("vispec", "compressed")])
def test_the_loss_is_drafting_itself(kind, image_input, begins):
    """Step i at place t is what a chain of depth i below t would feel: true pairs up to t, then its own features."""
    plain, n = Plain(), 12
    torch.manual_seed(3)
    head = RECURRENT[kind](levels=3, beam=1, image_input=image_input)
    if isinstance(head, Eagle):
        plain_words = torch.ones(VOCABULARY, dtype=torch.bool)
        dials = {"steps": 3, "decay": 0.5, "ce": 0.3}
    else:
        plain_words, dials = head.t2d, {"steps": 3, "decay": 0.5}
    seen, answer = columns([n, n - 2], n), torch.rand(2, n) < 0.6
    assert seen.visual is not None
    seen.visual[:, 4:] = False
    answer[:, :begins] = False  # a prompt, from which nothing is guessed
    if image_input in ("none", "compressed"):
        answer[:, :7] = False  # pairs within a picture are left out, or made of what is not there yet
    assert seen.hidden is not None
    assert seen.embeds is not None
    assert seen.valid is not None
    merged = image_input in ("merged", "compressed")

    def word(row: int, at: int) -> Tensor:
        if image_input == "hidden" and seen.visual[row, at]:
            return torch.zeros(WIDTH)
        return seen.embeds[row, at] if merged else plain.embed(seen.ids[row, at])

    found = head.loss(seen, answer, plain.target(), **dials)
    total = torch.zeros(())
    for step in range(3):
        each, right, places = [], 0, 0
        for row, first in ((0, 0), (1, 2)):
            for t in range(first, n - step - 2):
                if not answer[row, t + step + 2]:
                    continue
                tokens = [word(row, at + 1) for at in range(first, t + 1)]
                hidden = [slow_given(head, seen, row, at) for at in range(first, t + 1)]
                where = [int(seen.position[row, at]) for at in range(first, t + 1)]
                pictured = [bool(seen.visual[row, at + 1]) for at in range(first, t + 1)]
                feature = slow_feature(head, tokens, hidden, where, pictured)
                for deeper in range(1, step + 1):
                    tokens.append(word(row, t + 1 + deeper))
                    hidden.append(feature)
                    where.append(int(seen.position[row, t]) + deeper)
                    pictured.append(False)
                    feature = slow_feature(head, tokens, hidden, where, pictured)
                true = seen.hidden[row, t + step + 1]
                wanted, law = plain.logits(true), slow_law(head, plain, feature)
                places += 1
                right += int(law.argmax() == wanted.argmax())
                if not plain_words[wanted.argmax()]:
                    continue  # the head has no word for it
                soft = -(wanted[plain_words].softmax(-1) * law[plain_words]).sum()
                near = torch.nn.functional.smooth_l1_loss(feature, true) + 0.3 * soft
                each.append(near if isinstance(head, Eagle) else soft)
        assert found.sums[f"loss_{step}"][1] == len(each) > 0
        assert [int(x) for x in found.sums[f"right_{step}"]] == [right, places]
        total = total + 0.5**step * torch.stack(each).mean()
    assert torch.allclose(found.total, total, atol=1e-5)
    found.total.backward()
    assert all(p.grad is not None for p in head.parameters())


def test_a_heads_vocabulary_is_the_most_frequent_tokens():
    counts = torch.tensor([0, 5, 0, 9, 1, 0, 0])
    assert frequent(counts, 3).tolist() == [1, 3, 4]
    assert frequent(counts, 4, always=[6]).tolist() == [1, 3, 4, 6]
    assert frequent(counts, 6).tolist() == [0, 1, 2, 3, 4, 5], "unused ids fill up from below"
    head = eagle3()
    assert head.names().tolist() == [0, 1, 2, 3, 4, 5, 8, 9, 11, 12, 13, 17, 20, 21, 22, 25, 28]
    assert head.t2d.sum() == 17
    assert bool(head.t2d[head.names()].all())
    with pytest.raises(ValueError, match="valid are 17 increasing ids"):
        head.speak(torch.arange(17).flip(0))
    assert [default_taps(depth) for depth in (32, 8, 4)] == [(2, 16, 29), (2, 4, 5), (1, 2)]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"taps": (3, 1)}, "taps: got [3, 1], valid are increasing"),
        ({"vocabulary": 40}, "vocabulary: got 40, valid are 1 … 29"),
        ({"sizes": SIZES}, "sizes.read: got 16, valid for eagle3 is 2 × width = 32"),
    ],
)
def test_what_an_eagle3_cannot_be(more, said):
    words = {"sizes": replace(SIZES, read=2 * WIDTH), "taps": (1,), "vocabulary": 5, "target_vocabulary": VOCABULARY}
    with pytest.raises(ValueError, match=re.escape(said)):
        Eagle3(**(words | more))
    with pytest.raises(ValueError, match="eagle3: got a head for 29 tokens, the target has 30"):
        eagle3().fits(WIDTH, 30)


# --- pruning that the head alone sees --------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [None, RAGGED], ids=["one", "ragged"])
@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl"])
def test_a_drafts_own_pruner_thins_what_it_is_shown_and_nothing_else(family, rows):
    """The head sees what a pruned target would have shown of the prompt, from the whole target; the words stay."""
    model, inputs = model_of(family), tiny_models.inputs(family, rows)
    text = model.config.get_text_config()
    pruner = FastV(layer=1, ratio=0.5)
    plain = model.generate(**inputs, custom_generate=Speculate(), max_new_tokens=8, do_sample=False)

    class Shown(Eagle):
        def observe(self, state: Any, seen: Seen) -> None:
            prompts.append(seen)
            super().observe(state, seen)

    def shown(own: Any) -> tuple[Seen, Tensor]:
        torch.manual_seed(5)
        head = Shown(Sizes(text.hidden_size, 4, 2, 8, 32), levels=3, beam=2, nodes=5)
        head.pruner = own
        prompts.clear()
        said = model.generate(**inputs, custom_generate=Speculate(head), max_new_tokens=8, do_sample=False)
        return prompts[0], said

    prompts: list[Seen] = []
    whole, said = shown(None)
    assert torch.equal(said, plain)
    thin, said = shown(pruner)
    assert torch.equal(said, plain)
    with attach(model, pruner) as attachment:
        model.generate(**inputs, custom_generate=Speculate(), max_new_tokens=2, do_sample=False)
    column = attachment.events[0].stops[0].column
    assert thin.visual is not None
    assert whole.hidden is not None
    assert thin.hidden is not None
    assert int(thin.visual.sum()) < int(whole.visual.sum())
    for row in range(len(plain)):
        kept = [int(c) for c in column[row] if c >= 0]
        own = [int(c) for c in whole.whole[row].nonzero()[:, 0]]
        want = [c for c in own if c in kept]
        assert torch.equal(thin.ids[row][thin.whole[row]], whole.ids[row][want])
        assert torch.equal(thin.hidden[row][thin.whole[row]], whole.hidden[row][want])
        assert torch.equal(thin.position[..., row, :][..., thin.whole[row]], whole.position[..., row, :][..., want])


def test_a_drafts_pruner_may_not_read_the_tower():
    class Towered(FastV):
        def needs(self, depth: int) -> Needs:
            return Needs(vision_layers=(-1,), vision=frozenset({"mean"}))

    model, inputs = model_of("llava"), tiny_models.inputs("llava")
    head = heads_for(model)["eagle"]
    head.pruner = Towered(layer=1, ratio=0.5)
    with pytest.raises(ValueError, match="reads the picture's tower, which has run before"):
        model.generate(**inputs, custom_generate=Speculate(head), max_new_tokens=2, do_sample=False)


def test_what_a_drafts_pruner_cannot_be():
    model, inputs = model_of("llava"), tiny_models.inputs("llava")
    head = heads_for(model)["eagle"]
    for wrong, said in ((PyramidDrop(layers=(1, 2), ratio=0.5), "stations"), (pool.Pool(layer=0, ratio=0.5), "merges")):
        head.pruner = wrong
        with pytest.raises(ValueError, match=rf"draft\.pruner: got one .*{said}"):
            model.generate(**inputs, custom_generate=Speculate(head), max_new_tokens=2, do_sample=False)


# --- sampling ---------------------------------------------------------------------------------------------------------


def exact_law(model: Any, inputs: dict, depth: int, warp: Any) -> dict[tuple[int, ...], float]:
    """Every answer of `depth` tokens and its chance, the slow way: token by token below a prefill of its own."""
    n, law = inputs["input_ids"].shape[1], dict[tuple[int, ...], float]({(): 1.0})
    for _ in range(depth):
        grown: dict[tuple[int, ...], float] = {}
        for line, mass in law.items():
            with torch.no_grad():
                out = model(**inputs, use_cache=True)
                for at, token in enumerate(line):
                    ids, position = torch.tensor([[token]]), torch.tensor([[n + at]])
                    out = model(input_ids=ids, position_ids=position, **{cache_argument(model): cache_in(out)})
            chances = warp(torch.zeros(1, n, dtype=torch.long), out.logits[:, -1])[0].softmax(-1)
            for token in chances.nonzero()[:, 0].tolist():
                grown[(*line, token)] = mass * float(chances[token])
        law = grown
    return law


@pytest.mark.parametrize("pruner", [None, FastV(layer=1, ratio=0.5)], ids=["whole", "pruned"])
def test_every_head_keeps_the_law_of_sampling(pruner):
    """Chi-square over answers of three tokens at temperature 1 with top-p, from a picture; the first is undrafted."""
    model, one, rows = model_of("llava"), tiny_models.inputs("llava"), 800
    many = {name: x.expand(rows, *x.shape[1:]) for name, x in one.items() if name != "pixel_values"}
    many["pixel_values"] = one["pixel_values"].repeat(rows, 1, 1, 1)
    cut = {"top_p": 0.9, "top_k": 4, "temperature": 1.0}

    def warp(ids: Tensor, scores: Tensor) -> Tensor:
        for warper in (TopKLogitsWarper(cut["top_k"]), TopPLogitsWarper(cut["top_p"])):
            scores = warper(ids, scores)
        return scores

    with nullcontext() if pruner is None else attach(model, pruner):
        law = exact_law(model, one, 3, warp)
        likely = [line for line, chance in law.items() if rows * chance >= 5]  # the others count as one
        assert 6 <= len(likely) <= 64
        for name, head in heads_for(model).items():
            speculate = Speculate(head, seed=11)
            said = model.generate(**many, custom_generate=speculate, max_new_tokens=3, do_sample=True, **cut)
            observed = dict.fromkeys(law, 0)
            for line in map(tuple, said[:, one["input_ids"].shape[1] :].tolist()):
                observed[line] += 1  # a KeyError is an answer that may not occur
            cells = [(observed[line], rows * law[line]) for line in likely]
            rest = rows - sum(seen for seen, _ in cells), rows - sum(meant for _, meant in cells)
            cells += [rest] if rest[1] > 1 else []
            statistic = sum((seen - meant) ** 2 / meant for seen, meant in cells)
            freedom = len(cells) - 1
            assert statistic < freedom + 5 * (2 * freedom) ** 0.5, (name, statistic)
            assert speculate.stats.nodes > 0 or name == "lookup"
