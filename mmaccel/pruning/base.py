"""The pruner contract: stations, needs, select; and the three shapes most pruners have.

A pruner is frozen: no state, no model, no cache. This module knows columns and budgets. It does not know models, hooks
or caches: a pruner meets the model through the Station alone.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import BoolTensor, LongTensor, Tensor

from mmaccel.columns import Needs, Selection, Station
from mmaccel.pruning.budget import Budget, History, history_of
from mmaccel.pruning.select import group_key, keep_best, merge

__all__ = [
    "Budgeted",
    "Chain",
    "FunctionPruner",
    "History",
    "Narrowed",
    "Pruner",
    "ScorePruner",
    "checked_layer",
    "checked_layers",
    "history_of",
]


class Pruner(ABC):
    """Says, at each of its stations, which columns go on."""

    positions: ClassVar[str] = "original"  # or "compact": what the method's own code does, the default of attach

    @abstractmethod
    def stations(self, depth: int) -> tuple[int, ...]:
        """Increasing decoder layers (0 … depth-1) before which `select` is asked; raises for one beyond the depth."""

    def needs(self, depth: int) -> Needs:
        return Needs()

    @abstractmethod
    def select(self, station: Station) -> Selection: ...


@dataclass(frozen=True)
class FunctionPruner(Pruner):
    """A bare function Station → Selection (or → keep [B, q]) at one layer: `attach(model, fn, layer=2)`.

    It may read the attention of the layer before and of its own layer.
    """

    function: Callable[[Station], Selection | BoolTensor | Tensor]
    layer: int

    def stations(self, depth: int) -> tuple[int, ...]:
        return (checked_layer(self.layer, depth),)

    def needs(self, depth: int) -> Needs:
        return Needs(text_layers=tuple(layer for layer in (self.layer - 1, self.layer) if layer >= 0))

    def select(self, station: Station) -> Selection:
        answer = self.function(station)
        return answer if isinstance(answer, Selection) else Selection(keep=answer)  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class Budgeted(Pruner):
    """A pruner with a budget, its dials as flat fields: `FastV(layer=2, ratio=0.5)`, `pruner.ratio=0.9`.

    Exactly one of ratio, keep, tokens, mean_tokens is given. A yaml sets ratio; to use another dial, set ratio to null.
    """

    ratio: float | None = None
    keep: float | None = None
    tokens: int | None = None
    mean_tokens: float | None = None
    scope: str = "per_image"
    allow_zero: bool = False

    def __post_init__(self) -> None:
        _ = self.budget  # a wrong budget is an error here, not at the first picture

    @cached_property
    def budget(self) -> Budget:
        return Budget(self.ratio, self.keep, self.tokens, self.mean_tokens, self.scope, self.allow_zero)

    def kept(self, station: Station) -> LongTensor:
        """[B, q] how many tokens the group of each visual column keeps here."""
        return self.budget.kept(station)


@dataclass(frozen=True, kw_only=True)
class ScorePruner(Budgeted):
    """A budget and a score: of each group the best stay, ties to the lower column, order unchanged."""

    @abstractmethod
    def score(self, station: Station) -> Tensor: ...  # [B, q]

    def select(self, station: Station) -> Selection:
        key = group_key(station.grid, station.visual, self.budget.scope)  # [B, q]
        return Selection(keep=keep_best(station, self.score(station), key, self.kept(station)))


@dataclass(frozen=True)
class Chain(Pruner):
    """Several pruners on one model: the stations are the union, and each sees what the one before left.

    At a common station they are asked in order. Positions are compact only if every member's own are.
    """

    pruners: Sequence[Pruner]

    def __post_init__(self) -> None:
        object.__setattr__(self, "pruners", tuple(self.pruners))
        wrong = [member for member in self.pruners if not isinstance(member, Pruner)]
        if wrong or not self.pruners:
            raise ValueError(f"pruners: got {wrong or 'none'}, valid is a list of one or more pruners")

    @property
    def positions(self) -> str:  # type: ignore[override]
        return "compact" if all(member.positions == "compact" for member in self.pruners) else "original"

    def stations(self, depth: int) -> tuple[int, ...]:
        return tuple(sorted({layer for member in self.pruners for layer in member.stations(depth)}))

    def needs(self, depth: int) -> Needs:
        needs = Needs()
        for member in self.pruners:
            needs = needs | member.needs(depth)
        return needs

    def select(self, station: Station) -> Selection:
        depth = history_of(station).depth
        acting = [member for member in self.pruners if station.layer in member.stations(depth)]
        selection = acting[0].select(station)
        for member in acting[1:]:
            view = Narrowed(station, selection)
            selection = view.then(member.select(view))
        return selection


class Narrowed:
    """A Station seen after a Selection: the same q columns, those not kept no longer alive, means and masses applied.

    Attention rows, keys and the vision view are the station's own: they were computed before anything was dropped.
    """

    def __init__(self, station: Station, selection: Selection) -> None:
        keep: BoolTensor = selection.keep & station.alive  # type: ignore[assignment]  # [B, q]
        index = torch.arange(keep.shape[1], device=keep.device).expand_as(keep)  # [B, q]
        self.station = station
        self.moved = selection.into is not None or selection.value is not None
        self.into = torch.where(keep, index, -1) if selection.into is None else selection.into  # [B, q]
        hidden, self.mass = merge(station.hidden, station.mass, self.into)  # [B, q, D], [B, q]
        self.hidden = hidden if selection.value is None else selection.value
        self.valued = selection.value is not None
        self.layer, self.ids, self.embeds, self.key = station.layer, station.ids, station.embeds, station.key
        self.alive = keep
        self.visual: BoolTensor = station.visual & keep  # type: ignore[assignment]  # [B, q]
        self.column: LongTensor = station.column.masked_fill(~keep, -1)  # type: ignore[assignment]  # [B, q]
        self.grid: LongTensor = station.grid.masked_fill(~keep[..., None], -1)  # type: ignore[assignment]  # [B, q, 5]
        self.instruction, self.anchor, self.region = station.instruction, station.anchor, station.region
        self.history = getattr(station, "history", None)
        self.attention, self.keys, self.vision = station.attention, station.keys, station.vision

    def then(self, second: Selection) -> Selection:
        """Both selections as one over the original columns."""
        keep = second.keep & self.alive  # [B, q]
        if second.into is None and second.value is None and not self.moved:
            return Selection(keep)  # type: ignore[arg-type]
        index = torch.arange(keep.shape[1], device=keep.device).expand_as(keep)  # [B, q]
        step = torch.where(keep, index, -1) if second.into is None else second.into  # [B, q]
        into = torch.where(self.into >= 0, step.gather(1, self.into.clamp(min=0)), -1)  # [B, q]
        value = second.value
        if value is None and self.valued:
            value = merge(self.hidden, self.mass, step)[0]  # [B, q, D]
        return Selection(keep, into, value)  # type: ignore[arg-type]


def checked_layer(layer: int, depth: int | None = None, least: int = 0, name: str = "layer") -> int:
    """`layer` if it is a whole number from `least` on and, where the depth is known, a layer of such a decoder."""
    whole = isinstance(layer, int) and not isinstance(layer, bool)
    if not whole or layer < least or (depth is not None and layer >= depth):
        valid = f"whole numbers from {least} on"
        if depth is not None:
            valid = f"{least} … {depth - 1} (the model has {depth} decoder layers)"
        raise ValueError(f"{name}: got {layer!r}, valid are {valid}")
    return layer


def checked_layers(layers: Iterable[int], depth: int | None = None, least: int = 0) -> tuple[int, ...]:
    """`layers` as an increasing tuple of checked layers."""
    layers = tuple(checked_layer(layer, depth, least, "layers") for layer in layers)
    if not layers or list(layers) != sorted(set(layers)):
        raise ValueError(f"layers: got {list(layers)}, valid are one or more increasing layers")
    return layers
