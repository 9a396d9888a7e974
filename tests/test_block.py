"""The block drafter against slow loops of its formula, what it remembers, and losslessness through the one loop."""

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from test_drafting import SIZES, Plain, columns, rms
from torch import Tensor

from mmaccel import registry
from mmaccel.attach import attach
from mmaccel.decoding.speculate import Speculate
from mmaccel.drafting.base import Seen, Target
from mmaccel.drafting.block import Block, place, spread
from mmaccel.drafting.layer import Sizes
from mmaccel.pruning.fastv import FastV
from mmaccel.training.formats import restored, save_head, sizes_of
from tests import tiny as tiny_models
from tests.tiny import RAGGED

TOKENS = 4


def block(**more: Any) -> Block:
    torch.manual_seed(2)
    head = Block(SIZES, **({"taps": (0, 1, 3), "tokens": TOKENS} | more))
    for name, p in head.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(p, 0.5, 1.5)
        else:  # wide enough that what is attended to changes the words
            torch.nn.init.normal_(p, 0.0, 0.5)
    return head.eval()


def shown(head: Block, rows: list[int], length: int, seed: int = 0) -> Seen:
    seen = columns(rows, length, seed)
    return seen if head.taps else replace(seen, taps=())


def states(seen: Seen, row: int) -> list[tuple[Tensor, int]]:
    """(the fused states, the position) of a row's own columns."""
    assert seen.hidden is not None
    at = seen.whole[row].nonzero()[:, 0].tolist()
    return [
        (torch.cat([*(tap[row, i] for tap in seen.taps), seen.hidden[row, i]]), int(seen.position[row, i])) for i in at
    ]


def slow_block(head: Block, known: list[tuple[Tensor, int]], anchor: Tensor, at: int) -> list[Tensor]:
    """[k] of [D]: what is guessed behind an anchor at `at`, one place and one attention head after the other."""
    felt = []
    for state, _ in known:
        parts = [rms(part, norm) for part, norm in zip(state.split(head.sizes.width), head.state_norms)]
        felt.append(rms(head.fc.weight @ torch.cat(parts), head.hidden_norm))
    x = [anchor, *head.masks]
    where = torch.tensor([*(position for _, position in known), *range(at, at + len(x))])[None, None]
    for layer in head.layers:
        attention: Any = layer.self_attn
        read = torch.stack([*felt, *(rms(y, layer.input_layernorm) for y in x)])
        q, k, v = attention.heads(read[None], where)
        groups = head.sizes.heads // head.sizes.kv_heads
        for i, y in enumerate(x):
            mixed = []
            for h in range(head.sizes.heads):
                share = (k[0, h // groups] @ q[0, h, len(felt) + i] * head.sizes.head_dim**-0.5).softmax(-1)
                mixed.append(share @ v[0, h // groups])
            y = y + attention.o_proj.weight @ torch.cat(mixed)
            x[i] = y + layer.mlp(rms(y, layer.post_attention_layernorm))  # type: ignore[operator, arg-type]
    return [rms(y, head.norm) for y in x[1:]]


@torch.no_grad()
@pytest.mark.parametrize("more", [{}, {"layers": 2}, {"taps": ()}], ids=str)
def test_a_draft_is_a_slow_loop_over_every_verified_column(more):
    """Three rounds with ragged commits; a row alone drafts what it drafts in the batch."""
    plain, head = Plain(), block(**more)
    state = head.start(plain.target(), 2)
    known: list[list[tuple[Tensor, int]]] = [[], []]
    for turn, rows in enumerate(([6, 4], [1, 3], [2, 1])):
        seen = shown(head, rows, max(rows), seed=turn + 7)
        base = torch.tensor([[max((at for _, at in one), default=-1) + 1] for one in known])
        seen = replace(seen, position=seen.position + base)
        head.observe(state, seen)
        for row in range(2):
            known[row] += states(seen, row)
        token, position = torch.tensor([3 + turn, 5 + turn]), torch.tensor([[one[-1][1] + 1] for one in known])
        draft = head.propose(state, token, position, 9, None)
        assert draft.q is None
        assert draft.parent.tolist() == [[-1, 0, 1, 2]] * 2
        for row in range(2):
            guess = slow_block(head, known[row], plain.embed(token[row]), int(position[row]))
            assert draft.tokens[row].tolist() == [int(plain.logits(x).argmax()) for x in guess], (turn, row)
            alone = state.select(torch.tensor([row]))
            one = head.propose(alone, token[row : row + 1], position[row : row + 1], 9, None)
            assert torch.equal(one.tokens[0], draft.tokens[row])


@torch.no_grad()
def test_a_limit_cuts_the_draft_and_not_the_block():
    plain, head, rows = Plain(), block(layers=2), 12
    state = head.start(plain.target(), rows)
    head.observe(state, shown(head, [5] * rows, 5))
    ask = (torch.arange(rows), torch.full((rows, 1), 9))
    whole = head.propose(state, *ask, 9, None).tokens
    assert whole.shape == (rows, TOKENS)
    for limit in range(TOKENS):
        assert torch.equal(head.propose(state, *ask, limit, None).tokens, whole[:, :limit])
    short = block(layers=2, tokens=1)
    short.load_state_dict(head.state_dict() | {"masks": head.masks[:1]})
    assert not torch.equal(short.propose(state, *ask, 1, None).tokens, whole[:, :1]), "the later masks are read"


@torch.no_grad()
def test_a_fork_goes_its_own_way():
    plain, head = Plain(), block(layers=2)
    state = head.start(plain.target(), 2)
    head.observe(state, shown(head, [4, 2], 4))
    ask = (torch.tensor([1, 2]), torch.tensor([[9], [9]]), TOKENS, None)
    before, apart = head.propose(state, *ask).tokens, state.fork()
    head.observe(apart, shown(head, [3, 3], 3, seed=1))
    other = head.propose(apart, *ask).tokens
    assert [keys.length for keys in (*state.keys, *apart.keys)] == [4, 4, 7, 7]
    assert torch.equal(head.propose(state, *ask).tokens, before)
    assert not torch.equal(other, before)
    turned = head.propose(state.select(torch.tensor([1, 0])), ask[0].flip(0), ask[1], TOKENS, None).tokens
    assert torch.equal(turned, before.flip(0))


def test_the_time_is_where_a_column_stands():
    three = torch.arange(6).view(3, 1, 2)
    four = torch.cat([torch.full((1, 1, 2), 99), three])  # generate puts an axis of text in front
    assert all(torch.equal(place(handed), three[:1]) for handed in (three[0], three, four))


@pytest.mark.parametrize(
    ("more", "said"),
    [({"tokens": 0}, "tokens: got 0, valid are"), ({"layers": 0}, "layers: got 0, valid are"),
     ({"taps": (3, 1)}, r"taps: got \[3, 1\], valid are increasing")],
)  # fmt: skip
def test_what_a_block_cannot_be(more, said):
    with pytest.raises(ValueError, match=said):
        block(**more)
    with pytest.raises(ValueError, match="block: got a head of width 16, the target's is 8"):
        block().start(Target(torch.nn.Embedding(3, 8), torch.nn.Linear(8, 3), 8, 2, 3), 1)


# --- the loss --------------------------------------------------------------------------------------------------------

ANSWER = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1, 1, 0, 0, 1, 1, 0], [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 1, 1]]).bool()


@pytest.mark.parametrize("layers", [1, 2])
def test_the_loss_is_drafting_from_every_place_of_an_answer(layers):
    """Two answers a row, one of a single token; the second row begins late. No block reaches past its own answer."""
    plain, head, n = Plain(), block(layers=layers), ANSWER.shape[1]
    seen, noted = shown(head, [n, n - 3], n), ANSWER.clone()
    noted[1, :3] = True  # a column that is not there is nobody's answer
    found = head.loss(seen, noted, plain.target(), gamma=1.5)
    each: list[list[Tensor]] = [[] for _ in range(TOKENS)]
    for row in range(2):
        for at in range(n):
            if not ANSWER[row, at]:
                continue
            before, stands = states(seen, row)[: int(seen.whole[row, :at].sum())], int(seen.position[row, at])
            guess = slow_block(head, before, plain.embed(seen.ids[row, at]), stands)
            for j, x in enumerate(guess):
                if at + 1 + j >= n or not ANSWER[row, at + 1 + j]:
                    break
                each[j].append(-plain.logits(x).log_softmax(-1)[seen.ids[row, at + 1 + j]])
    assert [len(one) for one in each] == [8, 5, 3, 2]
    weight = torch.exp(-torch.arange(TOKENS) / 1.5)
    wanted = sum(w * sum(one) for w, one in zip(weight, each)) / sum(w * len(one) for w, one in zip(weight, each))
    assert torch.allclose(found.total, wanted, atol=1e-5)
    for j, one in enumerate(each):
        total, count = found.sums[f"loss_{j}"]
        assert count == len(one)
        assert torch.allclose(total, sum(one), atol=1e-4)


def test_training_takes_some_of_the_places():
    plain, head, n = Plain(), block().train(), ANSWER.shape[1]
    seen = shown(head, [n, n - 3], n)
    took = set()
    for seed in range(8):
        torch.manual_seed(seed)
        found = head.anchored(seen, ANSWER & seen.whole, 2)
        assert found.known[..., 0].all()
        assert ANSWER.gather(1, found.at).all()
        took |= {tuple(sorted(row)) for row in found.at.tolist()}
        assert head.loss(seen, ANSWER, plain.target(), anchors=2).sums["loss_0"][1] == 4
    assert len(took) > 4
    one, two = (head.eval().anchored(seen, ANSWER & seen.whole, 2) for _ in range(2))
    assert torch.equal(one.at, two.at)
    assert one.known[..., 0].all()
    for name in ("anchors", "gamma"):
        with pytest.raises(ValueError, match=f"{name}: got 0, valid are"):
            head.loss(seen, ANSWER, plain.target(), **{name: 0})


def test_places_that_are_always_the_same_lie_apart():
    for first in (0, 7, 100):
        some = spread(first + 60, "cpu")[first:].topk(6).indices.sort().values
        assert int(some.diff().min()) >= 5


@pytest.mark.parametrize("answer", [torch.zeros(2, 6).bool(), torch.tensor([[0, 0, 1, 0, 0, 1]] * 2).bool()])
def test_without_a_place_to_guess_from_the_loss_is_nothing_and_reaches_every_weight(answer):
    plain, head = Plain(), block().train()
    found = head.loss(shown(head, [6, 3], 6), answer, plain.target())
    found.total.backward()
    assert found.total == 0
    assert all(p.grad is not None and not p.grad.any() for p in head.parameters())
    assert all(count == 0 for _, count in found.sums.values())


# --- through the loop ------------------------------------------------------------------------------------------------


class Shown(Block):
    """Remembers what it was shown."""

    def observe(self, state: Any, seen: Seen) -> None:
        self.seen = seen if state.keys[0].length == 0 else self.seen.then(seen)
        super().observe(state, seen)


def said_by(model: Any, inputs: dict, head: Any = None) -> tuple[Tensor, Speculate]:
    speculate = Speculate(head) if head else Speculate()
    return model.generate(**inputs, custom_generate=speculate, max_new_tokens=14, do_sample=False), speculate


@pytest.mark.parametrize("rows", [None, RAGGED], ids=["one", "ragged"])
@pytest.mark.parametrize("pruner", [None, FastV(layer=1, ratio=0.5)], ids=["whole", "pruned"])
@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl"])
def test_a_block_changes_nothing_and_learns_what_is_said(family, pruner, rows):
    """The words are plain decoding's, whether it is untrained and refused or trained on that answer and accepted."""
    model, inputs = tiny_models.tiny(family, "sdpa"), tiny_models.inputs(family, rows)
    torch.manual_seed(5)
    head = Shown(Sizes(64, 4, 2, 8, 32), taps=(1, 2), tokens=3)
    with nullcontext() if pruner is None else attach(model, pruner):
        plain, _ = said_by(model, inputs)
        said, before = said_by(model, inputs, head.eval())
        assert torch.equal(said, plain)
        assert before.stats.nodes > 0
        seen = head.seen.where(head.seen.whole)
        answer = torch.arange(seen.ids.shape[1]) >= seen.ids.shape[1] - 12
        optimiser, lost = torch.optim.Adam(head.train().parameters(), 1e-2), []
        for _ in range(25):
            found = head.loss(seen, answer.expand_as(seen.ids), Target.of(model))
            optimiser.zero_grad()
            found.total.backward()
            optimiser.step()
            lost.append(float(found.total.detach()))
        assert lost[-1] < 0.2 * lost[0]
        said, after = said_by(model, inputs, head.eval())
    assert torch.equal(said, plain)
    assert after.stats.steps < before.stats.steps
    assert after.stats.accepted > before.stats.accepted


@pytest.mark.parametrize(("theirs", "ours"), [(torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16)])
def test_head_and_target_may_be_of_two_precisions(theirs, ours):
    model, inputs = tiny_models.tiny("llava", "sdpa").to(theirs), tiny_models.inputs("llava")
    inputs["pixel_values"] = inputs["pixel_values"].to(theirs)
    said, speculate = said_by(model, inputs, Block(sizes_of(model.config), tokens=3).to(ours).eval())
    assert said.shape[1] == inputs["input_ids"].shape[1] + 14
    assert speculate.stats.nodes > 0


def test_it_comes_back_from_a_folder_and_from_its_yaml(tmp_path):
    head = block(layers=2)
    save_head(head, tmp_path)
    again = restored(Block(SIZES, taps=(0, 1, 3), layers=2, tokens=TOKENS), tmp_path)
    assert all(torch.equal(x, again.state_dict()[name]) for name, x in head.state_dict().items())
    with pytest.raises(ValueError, match=r"Block: missing \[\], unknown \['layers.1"):
        restored(block(), tmp_path)
    with pytest.raises(ValueError, match=r"of another shape \['masks: \(4, 16\) for \(2, 16\)'\]"):
        restored(block(layers=2, tokens=2), tmp_path)
    made = registry.instantiate(registry.load("draft", "block")["head"])
    assert isinstance(made, Block)
    made.fits(256, 1024)
    assert (made.taps, made.tokens) == ((2, 4, 6), 8)
