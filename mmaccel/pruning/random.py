"""Random: the control every scoring method has to beat; a seeded subset of the standing tokens, in order.

The draw is a hash of (seed, sample key, layer, place among the row's visual tokens): the same sample keeps the same
tokens on every device, in every batch, and a smaller budget keeps a subset of a larger one.
"""

from dataclasses import dataclass

import torch
from torch import LongTensor, Tensor

from mmaccel.columns import Selection, Station
from mmaccel.pruning.base import Budgeted, checked_layer
from mmaccel.pruning.select import group_key, keep_best

WORD = (1 << 64) - 1


@dataclass(frozen=True)
class Control(Budgeted):
    """A pruner blind to the model: at `layer` with its own budget, or `like` another at its stations and counts."""

    layer: int = 2
    like: Budgeted | None = None

    def __post_init__(self) -> None:
        checked_layer(self.layer)
        if self.like is None:
            super().__post_init__()
            return
        if not isinstance(self.like, Budgeted):
            raise ValueError(f"like: got {self.like!r}, valid is a pruner with a budget, such as FastV")
        given = [name for name in ("ratio", "keep", "tokens", "mean_tokens") if getattr(self, name) is not None]
        if given:
            raise ValueError(f"like: got a pruner and {', '.join(given)}; valid is one of them, the other null")

    @property
    def positions(self) -> str:  # type: ignore[override]
        return "original" if self.like is None else self.like.positions

    def stations(self, depth: int) -> tuple[int, ...]:
        return (checked_layer(self.layer, depth),) if self.like is None else self.like.stations(depth)

    def kept(self, station: Station) -> LongTensor:
        return super().kept(station) if self.like is None else self.like.kept(station)

    def groups(self, station: Station) -> LongTensor:
        """[B, q] the keys of the groups that are counted, the mirrored pruner's own where there is one."""
        return group_key(station.grid, station.visual, self.scope if self.like is None else self.like.scope)


@dataclass(frozen=True)
class Random(Control):
    """seed: another number is another draw for every sample."""

    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise ValueError(f"seed: got {self.seed!r}, valid is a whole number")

    def select(self, station: Station) -> Selection:
        seeds = [mixed(mixed(mixed(self.seed) ^ key) ^ station.layer) for key in station.key]
        start = torch.tensor([signed(seed) for seed in seeds], device=station.visual.device)  # [B]
        draw = mixed_tensor(start[:, None] + station.visual.long().cumsum(1))  # [B, q]
        return Selection(keep=keep_best(station, draw, self.groups(station), self.kept(station)))


def mixed(word: int) -> int:
    """A 64-bit avalanche (the finaliser of SplitMix64) of a Python integer."""
    word = (word + 0x9E3779B97F4A7C15) & WORD
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & WORD
    return word ^ (word >> 31)


def mixed_tensor(word: Tensor) -> Tensor:
    """`mixed` of each element of an int64 tensor; its shifts are arithmetic, so the sign bits are masked away."""
    word = word + signed(0x9E3779B97F4A7C15)
    word = (word ^ ((word >> 30) & (WORD >> 30))) * signed(0xBF58476D1CE4E5B9)
    word = (word ^ ((word >> 27) & (WORD >> 27))) * signed(0x94D049BB133111EB)
    return word ^ ((word >> 31) & (WORD >> 31))


def signed(word: int) -> int:
    """The int64 with the bits of this unsigned 64-bit word."""
    return word - (1 << 64) if word >> 63 else word
