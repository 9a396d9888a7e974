"""A gate in front of a head: it drafts where that pays, or where the target looks away from its pictures, and decodes
plainly elsewhere.

`auto`: every answer begins plainly for `first` tokens, so that a short one never pays for a head: its pass over the
prompt waits until the gate opens. Then it drafts while tokens come cheaper so than plainly, or while what was lost in
trying stays below `budget` of the time. The loop waits for the device once a step, so that the wall time between steps
is the step's own. What was learned of costs is kept between answers; of a conversation nothing is.

`text_segments`: after such a beginning it drafts where one layer's attention on pictures fell below a threshold in the
step before: what is said then hangs on the words (after https://arxiv.org/abs/2603.14989).
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from mmaccel.drafting.base import PADDING, Draft, DraftHead, DraftState, Loss, Seen, Target

MODES = ("always", "auto", "text_segments", "off")
KEPT = 0.9  # of the running means, a step


@dataclass
class Ledger:
    """plain, drafted: ms per token of such steps.  spent: ms that drafting took beyond what its tokens cost plainly.
    total: ms of all steps."""

    plain: float | None = None
    drafted: float | None = None
    spent: float = 0.0
    total: float = 0.0

    def enter(self, ms: float, tokens: float, drafted: bool) -> None:
        """One step that said `tokens` tokens a row."""
        self.total += ms
        each = ms / max(tokens, 1.0)
        if drafted:
            self.drafted = each if self.drafted is None else KEPT * self.drafted + (1 - KEPT) * each
            if self.plain is not None:
                self.spent = max(self.spent + ms - tokens * self.plain, 0.0)
        else:
            self.plain = each if self.plain is None else KEPT * self.plain + (1 - KEPT) * each

    def opens(self, budget: float) -> bool:
        if self.plain is None:
            return False
        return (self.drafted is not None and self.drafted < self.plain) or self.spent <= budget * self.total


@dataclass
class Gated(DraftState):
    """inner: the head's own state, None while the gate was never open.  held: what the head has not been shown yet."""

    target: Target
    rows: int
    inner: DraftState | None = None
    held: list[Seen] = field(default_factory=list)
    said: float = 0.0  # tokens a row since the answer began
    step: tuple[float, bool] | None = None  # when the step under way began, and whether it drafts
    fresh: float = 0.0  # tokens a row of the step that ended
    looked: Tensor | None = None  # [B] the share of attention on pictures in that step

    def fork(self) -> "Gated":
        return replace(self, inner=None if self.inner is None else self.inner.fork(), held=list(self.held), step=None)

    def select(self, rows: Tensor) -> "Gated":
        inner = None if self.inner is None else self.inner.select(rows)
        held = [seen.select(rows) for seen in self.held]
        looked = None if self.looked is None else self.looked[rows]
        return replace(self, rows=len(rows), inner=inner, held=held, step=None, looked=looked)


class Gate(DraftHead):
    """speculate: `auto` or `text_segments`, or `always` and `off` for comparison.  first: tokens of every answer that
    are said plainly.  budget: share of the decoding time that may be lost in trying.  layer, below: whose attention on
    pictures must be below what share for text_segments to draft (in other modes it is only noted)."""

    def __init__(
        self, head: DraftHead, speculate: str = "auto", first: int = 4, budget: float = 0.02,
        clock: Callable[[], float] = time.perf_counter, layer: int | None = None, below: float = 0.1,
    ) -> None:  # fmt: skip
        super().__init__()
        if speculate not in MODES:
            raise ValueError(f"speculate: got {speculate!r}, valid are {', '.join(MODES)}")
        if first < 1 or budget < 0:
            raise ValueError(
                f"first, budget: got {first}, {budget}, valid are whole numbers from 1 on and shares from 0 on"
            )
        if speculate == "text_segments" and layer is None:
            raise ValueError("layer: got None, valid with text_segments is the number of a decoder layer")
        if not 0 <= below <= 1:
            raise ValueError(f"below: got {below}, valid are shares of attention from 0 to 1")
        self.looks, self.below, self.pruner = layer, below, head.pruner
        self.head, self.mode, self.first, self.budget, self.clock = head, speculate, first, budget, clock
        self.shape, self.watches, self.taps = head.shape, head.watches, head.taps
        self.ledger = Ledger()

    def fits(self, width: int, vocabulary: int) -> None:
        self.head.fits(width, vocabulary)

    def start(self, target: Target, rows: int) -> Gated:
        return Gated(target, rows)

    def observe(self, state: DraftState, seen: Seen) -> None:
        assert isinstance(state, Gated)
        if state.step is not None:
            state.fresh = seen.ids.shape[1] if seen.valid is None else float(seen.valid.sum()) / max(state.rows, 1)
            state.said += state.fresh
        ended = None if seen.valid is None else ~seen.valid[:, -1]  # a row that says nothing more opens no gate
        state.looked = seen.looked if seen.looked is None or ended is None else seen.looked.masked_fill(ended, 1.0)
        if state.inner is None:
            state.held.append(seen)
        else:
            self.head.observe(state.inner, seen)

    def propose(self, state: DraftState, token: Tensor, position: Tensor, limit: int, sampler: Any) -> Draft:
        assert isinstance(state, Gated)
        now = self.clock()
        if state.step is not None:
            self.ledger.enter(1e3 * (now - state.step[0]), state.fresh, state.step[1])
        drafts = limit > 0 and self.open(state)
        state.step = (now, drafts)
        if not drafts:
            return Draft.empty(len(token), token.device)
        if state.inner is None:
            state.inner = self.head.start(state.target, state.rows)
            for seen in state.held:
                self.head.observe(state.inner, seen)
            state.held = []
        draft = self.head.propose(state.inner, token, position, limit, sampler)
        if self.mode != "text_segments" or state.looked is None:
            return draft
        return replace(draft, parent=draft.parent.masked_fill((state.looked >= self.below)[:, None], PADDING))

    def open(self, state: Gated) -> bool:
        if self.mode in ("always", "off"):
            return self.mode == "always"
        if self.mode == "text_segments":
            away = state.looked is not None and bool((state.looked < self.below).any())
            return state.said >= self.first and away
        return state.said >= self.first and self.ledger.opens(self.budget)

    def loss(self, seen: Seen, answer: Tensor, target: Target, **dials: Any) -> Loss:
        return self.head.loss(seen, answer, target, **dials)
