"""Uniform: the control that keeps evenly spaced tokens in raster order, round(linspace(0, n − 1, k)) of each picture.

Halves round up. In whole numbers throughout, so that CPU and GPU agree. One token kept is the first.
"""

from dataclasses import dataclass

import torch
from torch import BoolTensor, Tensor

from mmaccel.columns import Selection, Station
from mmaccel.pruning.random import Control
from mmaccel.pruning.select import group_size, order_in_group


@dataclass(frozen=True)
class Uniform(Control):
    """At `layer` with its own budget, or `like` another pruner at its stations and with its counts."""

    def select(self, station: Station) -> Selection:
        key = self.groups(station)  # [B, q]
        chosen = on_linspace(order_in_group(key), group_size(key), self.kept(station))  # [B, q]
        return Selection(keep=torch.where(station.visual, chosen, station.alive))  # type: ignore[arg-type]


def on_linspace(place: Tensor, size: Tensor, kept: Tensor) -> BoolTensor:
    """[B, q] whether `place` is one of round(linspace(0, size − 1, kept)); all [B, q].

    Point j lies at j·(size − 1)/(kept − 1). The first j whose point rounds to `place` or beyond is found, then checked.
    """
    gaps, steps = (size - 1).clamp(min=1), (kept - 1).clamp(min=0)  # [B, q]
    j = -(-((2 * place - 1) * steps) // (2 * gaps))  # [B, q] ceil((place − ½)·steps/gaps)
    j = j.clamp(min=0)
    hit = (2 * j * gaps < (2 * place + 1) * steps.clamp(min=1)) & (j <= steps)
    return torch.where(kept > 1, hit, (place == 0) & (kept == 1))  # type: ignore[return-value]
