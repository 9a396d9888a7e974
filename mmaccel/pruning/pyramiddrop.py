"""PyramidDrop, Xing et al. 2024, https://arxiv.org/abs/2410.17247: fewer tokens stage by stage, ranked before each.

At stage i (i = 1, 2, 3) λ^i of the tokens that stood before the first stage stay: those with the largest attention of
one row of the stage's own layer, run ahead without cache, mean over heads. The public code renumbers positions at each
stage, so `positions` is "compact". It reads the first picture only and truncates counts; we treat every picture and
round. In a Chain, tokens another member dropped at the first stage's own layer still count as having stood there.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
from torch import LongTensor, Tensor

from mmaccel.columns import Needs, Station
from mmaccel.pruning.base import ScorePruner, checked_layers, history_of
from mmaccel.pruning.budget import History, refuse_infeasible
from mmaccel.pruning.fastv import anchor_row, checked_anchor
from mmaccel.pruning.select import group_key, group_size

BISECTIONS = 60


@dataclass(frozen=True)
class PyramidDrop(ScorePruner):
    """layers: the stages; None puts three at the quarters of the depth (8, 16, 24 of 32).

    The budget sets λ, the share each stage keeps: keep = λ, ratio = 1 − λ, tokens = what the last stage leaves,
    mean_tokens = average over the decoder layers, for which λ is solved per picture.
    """

    positions: ClassVar[str] = "compact"

    layers: tuple[int, ...] | None = None
    anchor: str = "last"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layers is not None:
            object.__setattr__(self, "layers", checked_layers(self.layers))
        checked_anchor(self.anchor)

    def stations(self, depth: int) -> tuple[int, ...]:
        if self.layers is not None:
            return checked_layers(self.layers, depth)
        if depth < 4:
            raise ValueError(f"layers: got None, whose quarters need 4 decoder layers (got {depth}); give a list")
        return tuple(depth // 4 * stage for stage in (1, 2, 3))

    def needs(self, depth: int) -> Needs:
        return Needs(text_layers=self.stations(depth))

    def score(self, station: Station) -> Tensor:  # [B, q]
        return anchor_row(station, station.layer, self.anchor)

    def kept(self, station: Station) -> LongTensor:
        """[B, q] λ^i of the group's tokens before the first stage, never more than stand."""
        history = history_of(station)
        stages = self.stations(history.depth)
        stage = stages.index(station.layer) + 1
        key = group_key(station.grid, station.visual, self.scope)  # [B, q]
        first = group_size(key, history.keys(self.scope, stages[0])).double()  # [B, q]
        if self.budget.share is not None:
            wanted = first * self.budget.share**stage
        elif self.tokens is not None:
            wanted = first * (self.tokens / first.clamp(min=1)).clamp(max=1) ** (stage / len(stages))
        else:
            wanted = first * self._solved(history, stages, key, first) ** stage
        return self.budget.whole(wanted, group_size(key))

    def _solved(self, history: History, stages: tuple[int, ...], key: Tensor, first: Tensor) -> Tensor:
        """[B, q] the λ with which the average over layers is `mean_tokens`, by bisection."""
        assert self.mean_tokens is not None
        ends = (*stages, history.depth)
        spans = [after - before for before, after in pairwise(ends)]  # layers each stage rules
        wanted = self.mean_tokens * history.depth - first * stages[0]  # [B, q] layer inputs left to spend
        low, high = torch.zeros_like(first), torch.ones_like(first)
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            spent = sum(span * (first * middle**stage).clamp(min=1) for stage, span in enumerate(spans, 1))
            low, high = torch.where(spent < wanted, middle, low), torch.where(spent < wanted, high, middle)
        least = (first * stages[0] + sum(spans)) / history.depth  # [B, q] with one token from the first stage on
        refuse_infeasible(self.mean_tokens, wanted / sum(spans), least, key, f"with stages {list(stages)}")
        return high
