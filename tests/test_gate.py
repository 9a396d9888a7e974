"""The gate: short answers never pay, a head that pays stays open, one that does not is closed within its budget."""

from typing import Any

import pytest
import torch
from torch import Tensor

from mmaccel.decoding.speculate import Speculate
from mmaccel.drafting.base import Draft, DraftHead, Seen, Stateless, Target
from mmaccel.drafting.gate import Gate, Ledger
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
        return Draft.chain(torch.tensor([self.truth[new + 1 :][: min(self.right, limit)]], dtype=torch.long))


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
