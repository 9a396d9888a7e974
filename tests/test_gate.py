"""The gate: short answers never pay, a head that pays stays open, one that does not is closed within its budget."""

from typing import Any

import pytest
import torch
from torch import Tensor

from mmaccel.attach import attach
from mmaccel.decoding.speculate import Speculate
from mmaccel.drafting.base import Draft, DraftHead, Seen, Stateless, Target
from mmaccel.drafting.gate import Gate, Ledger
from mmaccel.pruning.fastv import FastV
from tests import tiny as tiny_models


class Told(DraftHead):
    """Drafts the next `right` true tokens; counts what it was asked and shown."""

    shape = "chain"

    def __init__(self, truth: list[int], right: int) -> None:
        super().__init__()
        self.truth, self.right = truth, right
        self.started, self.asked, self.seen = 0, 0, 0

    def start(self, target: Target, rows: int) -> Stateless:
        self.started += 1
        self.seen = 0
        return Stateless()

    def observe(self, state: Any, seen: Seen) -> None:
        self.seen += seen.ids.shape[1]

    def propose(self, state: Any, token: Tensor, position: Tensor, limit: int, sampler: Any) -> Draft:
        self.asked += 1
        new = self.seen - PROMPT
        chain = torch.tensor([self.truth[new + 1 :][: min(self.right, limit)]], dtype=torch.long)
        return Draft.chain(chain.expand(len(token), -1))


class Clock:
    """Every look is `plain` ms after the last, `drafted` where the step between drafted."""

    def __init__(self, plain: float, drafted: float) -> None:
        self.plain, self.drafted, self.now, self.steps = plain, drafted, 0.0, []

    def __call__(self) -> float:
        return self.now

    def step(self, drafts: bool) -> None:
        self.steps.append(drafts)
        self.now += (self.drafted if drafts else self.plain) / 1e3


MODEL, INPUTS = tiny_models.tiny("llava", "sdpa"), tiny_models.inputs("llava")
PROMPT = INPUTS["input_ids"].shape[1]


def answer(head: DraftHead | None, new: int = 40) -> tuple[Tensor, Speculate]:
    speculate = Speculate(head)
    said = MODEL.generate(**INPUTS, custom_generate=speculate, max_new_tokens=new, do_sample=False)
    return said[0, PROMPT:], speculate


def gated(right: int, plain: float, drafted: float, **more: Any) -> tuple[Gate, Told, Clock]:
    clock, head = Clock(plain, drafted), Told(answer(None)[0].tolist(), right)
    gate = Gate(head, clock=clock, **more)
    propose = gate.propose

    def timed(*args: Any) -> Draft:
        draft = propose(*args)
        clock.step(draft.size > 0)
        return draft

    gate.propose = timed  # type: ignore[method-assign]
    return gate, head, clock


def test_a_short_answer_never_starts_the_head():
    gate, head, _ = gated(3, 10, 10)
    said, speculate = answer(gate, 5)
    assert torch.equal(said, answer(None, 5)[0])
    assert (head.started, head.asked, speculate.stats.nodes) == (0, 0, 0)


def test_a_head_that_pays_stays_open_from_the_first_token_on_that_it_may():
    gate, head, clock = gated(3, plain=10, drafted=15)
    said, speculate = answer(gate)
    assert torch.equal(said, answer(None)[0])
    assert head.started == 1
    assert clock.steps == [False] * 4 + [True] * (len(clock.steps) - 4)
    assert speculate.stats.tau > 2
    assert gate.ledger.drafted == pytest.approx(15 / 4, rel=0.2)
    before = head.asked
    answer(gate)
    assert (head.started, head.asked > before) == (2, True), "the next answer opens again"


@pytest.mark.parametrize("budget", [0.02, 0.2])
def test_a_head_that_does_not_pay_is_closed_within_its_budget(budget):
    gate, _, clock = gated(1, plain=10, drafted=40, budget=budget)
    for _ in range(6):
        said, _ = answer(gate)
        assert torch.equal(said, answer(None)[0])
    drafted = sum(clock.steps)
    assert 0 < drafted < len(clock.steps) / 4
    lost = drafted * (40 - 2 * 10)
    assert lost <= budget * gate.ledger.total + 2 * 20, "the step that crosses it, and the last, which nobody measures"


def test_one_that_is_wrong_every_time_is_tried_and_closed():
    gate, _, clock = gated(0, plain=10, drafted=12)
    answer(gate)
    assert not any(clock.steps), "an empty draft is plain decoding"
    gate, head, clock = gated(3, plain=10, drafted=30)
    head.truth = [(token + 1) % 90 for token in head.truth]
    answer(gate)
    assert sum(clock.steps) <= 2
    assert gate.ledger.drafted == pytest.approx(30)


def test_always_and_off():
    always, head, clock = gated(3, 10, 100, speculate="always")
    answer(always)
    assert all(clock.steps[:-1])
    off, head, clock = gated(3, 10, 1, speculate="off")
    answer(off)
    assert not any(clock.steps)
    assert head.started == 0
    for words, wrong in (("speculate: got 'x'", {"speculate": "x"}), ("first, budget: got 0", {"first": 0})):
        with pytest.raises(ValueError, match=words):
            Gate(head, **wrong)


def test_the_ledger():
    ledger = Ledger()
    assert not ledger.opens(0.5), "nothing is known of plain steps"
    ledger.enter(10, 1, drafted=False)
    assert ledger.opens(0.0)
    ledger.enter(35, 2, drafted=True)
    assert (ledger.drafted, ledger.spent, ledger.total) == (17.5, 15, 45)
    assert not ledger.opens(0.1)
    assert ledger.opens(0.4)
    for _ in range(40):
        ledger.enter(12, 3, drafted=True)
    assert ledger.opens(0.0)
    assert ledger.spent == 0


# --- text_segments ---------------------------------------------------------------------------------------------------


def slow_looks(said: Tensor, inputs: dict, layer: int) -> list[float]:
    """Attention on pictures of each answered column, from the eager backend's own matrices over the whole sequence."""
    model = tiny_models.tiny("llava", "eager")
    ids = said[None]
    more = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": inputs["pixel_values"]}
    with torch.no_grad():
        attention = model(**more, output_attentions=True).attentions[layer]  # [1, H, n, n]
    visual = ids[0] == model.config.image_token_id
    return attention[0, :, PROMPT:].masked_fill(~visual, 0.0).sum(-1).mean(0).tolist()


@pytest.mark.parametrize("right", [0, 2])
@pytest.mark.parametrize("layer", [0, 2])
def test_the_look_of_every_step_is_that_of_the_whole_sequence(right, layer):
    said, _ = answer(None)
    gate = Gate(Told(said.tolist(), right), speculate="always", layer=layer)
    again, speculate = answer(gate)
    assert torch.equal(said, again)
    looks = slow_looks(torch.cat([INPUTS["input_ids"][0], said]), INPUTS, layer)
    at, stats = 0, speculate.stats
    assert stats.looked[0] is None
    assert sum(stats.said) == len(said) - 1
    for look, count in zip(stats.looked, stats.said):
        if look is not None:  # the last column in the cache is the one before the token that is not in it yet
            assert look == pytest.approx(looks[at - 1], abs=1e-5)
        at += int(count)


def test_it_drafts_where_the_target_looks_away():
    said, _ = answer(None)
    _, always = answer(Gate(Told(said.tolist(), 2), speculate="always", layer=1))
    looks = sorted(look for look in always.stats.looked if look is not None)
    below = looks[len(looks) // 2]
    gate = Gate(Told(said.tolist(), 2), speculate="text_segments", layer=1, below=below, first=3)
    again, speculate = answer(gate)
    assert torch.equal(said, again)
    stats, told = speculate.stats, 0.0
    drafted = 0
    for look, count in zip(stats.looked, stats.said):
        may = told >= 3 and look is not None and look < below
        assert (count > 1) <= may
        drafted += count > 1
        told += count
    assert 0 < drafted < len(stats.said)
    with attach(MODEL, FastV(layer=1, ratio=0.5)):
        plain, _ = answer(None)
        again, speculate = answer(Gate(Told(plain.tolist(), 2), speculate="text_segments", layer=2, below=0.9, first=1))
    assert torch.equal(plain, again)
    assert speculate.stats.tau > 1.5


def test_rows_that_look_are_not_drafted_for():
    inputs = tiny_models.inputs("llava", tiny_models.RAGGED)
    gate = Gate(Told(list(range(50)), 2), speculate="text_segments", layer=1, below=0.5, first=1)
    state = gate.start(Target.of(MODEL), len(inputs["input_ids"]))
    state.said, state.looked = 5.0, torch.tensor([0.7, 0.2])
    draft = gate.propose(state, torch.tensor([1, 2]), torch.zeros(2, 1), 9, None)
    assert draft.real.tolist() == [[False, False], [True, True]]
    state.looked = torch.tensor([0.7, 0.9])
    assert gate.propose(state, torch.tensor([1, 2]), torch.zeros(2, 1), 9, None).size == 0


def test_what_a_gate_of_segments_cannot_be():
    with pytest.raises(ValueError, match="layer: got None, valid with text_segments"):
        Gate(Told([], 1), speculate="text_segments")
    with pytest.raises(ValueError, match="below: got 2"):
        Gate(Told([], 1), speculate="text_segments", layer=0, below=2)
    with pytest.raises(ValueError, match="layer: got 99, valid are 0 …"):
        answer(Gate(Told([], 1), speculate="always", layer=99))
