"""The moving data: what a pruner sees (Station, VisionView), what it asks for (Needs) and what it answers (Selection).

A *column* is the index of a token in the conversation as the library sees it; it never changes. A *station* is the
window before decoder layer `layer` through which a pruner looks at the columns that are still standing there.
This module knows nothing of models, caches or hooks.
"""

from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

BoolTensor = Tensor  # these names tell the reader a dtype; torch's own typed tensors do not survive an operation
LongTensor = Tensor

VISION_KINDS = frozenset({"cls", "mean", "keys", "qk", "hidden"})


@dataclass(frozen=True)
class Needs:
    """What a pruner reads; checked against the family when attached.

    `text_layers`: decoder layers whose attention rows or keys are read (a layer equal to the station's own is run once
    ahead, without cache). `vision_layers`: tower layers read; negative counts from the end. `vision`: what of them.
    """

    text_layers: tuple[int, ...] = ()
    vision_layers: tuple[int, ...] = ()
    vision: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        unknown = set(self.vision) - VISION_KINDS
        if unknown:
            raise ValueError(f"Needs.vision: got {sorted(unknown)}, valid are {sorted(VISION_KINDS)}")

    def __or__(self, other: "Needs") -> "Needs":
        return Needs(
            tuple(sorted({*self.text_layers, *other.text_layers})),
            tuple(sorted({*self.vision_layers, *other.vision_layers})),
            self.vision | other.vision,
        )


class VisionView(Protocol):
    """The picture's tower, per image of the batch in prompt order. `n` patches include CLS where the tower has one."""

    def attention(self, layer: int) -> list[Tensor]: ...  # per image [H, n]: the CLS row, or the mean row without CLS


class Station(Protocol):
    """Read-only window before decoder layer `layer` (0 = the embeddings that enter the decoder).

    B rows, q columns standing here (left fillers and padding have alive=False), D width, H heads.
    """

    layer: int
    hidden: Tensor  # [B, q, D]

    @property
    def embeds(self) -> Tensor: ...  # [B, q, D]  layer-0 input of the same columns

    @property
    def ids(self) -> LongTensor: ...  # [B, q]

    @property
    def column(self) -> LongTensor: ...  # [B, q]  increasing over alive columns, -1 = filler

    @property
    def alive(self) -> BoolTensor: ...  # [B, q]  not padding, not filler

    @property
    def visual(self) -> BoolTensor: ...  # [B, q]  prunable: visual and not protected

    @property
    def instruction(self) -> BoolTensor: ...  # [B, q]  text after the last picture, up to the anchor

    @property
    def grid(self) -> LongTensor: ...  # [B, q, 5]  (image, tile, t, y, x) of a visual token, -1 for text

    @property
    def mass(self) -> Tensor: ...  # [B, q]  how many original tokens each column stands for

    @property
    def anchor(self) -> LongTensor: ...  # [B]  local index (0 … q-1) of the last prompt column

    @property
    def region(self) -> BoolTensor | None: ...  # [B, q]  evidence, where the benchmark knows it

    @property
    def key(self) -> tuple[int, ...]: ...  # [B]  content hash of the row: seeds `random` per sample

    @property
    def history(self) -> Any: ...  # pruning.budget.History: the depth, and what earlier stations of this event dropped

    def attention(self, layer: int, rows: BoolTensor | None = None, rope: bool = True) -> Tensor: ...  # [B, H, r, q]

    def keys(self, layer: int) -> Tensor: ...  # [B, Hkv, q, d] after rotary embedding

    def vision(self) -> VisionView: ...


@dataclass(frozen=True)
class Selection:
    """A pruner's answer at one station.

    keep: [B, q] bool, read under alive; every alive text column must stay.
    into: [B, q] long or None: local index of the kept column this one is averaged into by mass, -1 = gone.
    value: [B, q, D] or None: what a kept column carries from here on; for methods that are no plain mean.
    """

    keep: BoolTensor
    into: LongTensor | None = None
    value: Tensor | None = None


@dataclass
class SyntheticStation:
    """A Station made of plain tensors: what a pruner is tested on, and what a notebook can build by hand.

    `attention_rows` [layer → B, H, r, q] and `layer_keys` [layer → B, Hkv, q, d] stand in for the observed model.
    """

    layer: int
    hidden: Tensor
    visual: Tensor
    ids: Tensor | None = None
    embeds: Tensor | None = None
    column: Tensor | None = None
    alive: Tensor | None = None
    instruction: Tensor | None = None
    grid: Tensor | None = None
    mass: Tensor | None = None
    anchor: Tensor | None = None
    region: Tensor | None = None
    key: tuple[int, ...] = ()
    attention_rows: dict[int, Tensor] = field(default_factory=dict)
    layer_keys: dict[int, Tensor] = field(default_factory=dict)
    vision_view: VisionView | None = None

    def __post_init__(self) -> None:
        B, q = self.visual.shape
        if self.ids is None:
            self.ids = torch.zeros(B, q, dtype=torch.long)
        if self.embeds is None:
            self.embeds = self.hidden
        if self.alive is None:
            self.alive = torch.ones(B, q, dtype=torch.bool)
        if self.column is None:
            self.column = torch.arange(q).expand(B, q).masked_fill(~self.alive, -1)
        if self.instruction is None:
            self.instruction = instruction_columns(self.alive, self.visual)
        if self.grid is None:
            self.grid = line_grid(self.visual)
        if self.mass is None:
            self.mass = torch.ones(B, q)
        if self.anchor is None:
            self.anchor = torch.where(self.alive, torch.arange(q), -1).amax(1)
        if not self.key:
            self.key = tuple(range(B))

    def attention(self, layer: int, rows: Tensor | None = None, rope: bool = True) -> Tensor:
        stored = self.attention_rows[layer]  # [B, H, r, q] or, for rows, [B, H, q, q]
        if stored.shape[2] != stored.shape[3]:
            return stored
        assert self.anchor is not None
        at = self.anchor[:, None] if rows is None else rows.nonzero()[:, 1].view(len(rows), -1)  # [B, r]
        return stored.gather(2, at[:, None, :, None].expand(-1, stored.shape[1], -1, stored.shape[3]))

    def keys(self, layer: int) -> Tensor:
        return self.layer_keys[layer]

    def vision(self) -> VisionView:
        if self.vision_view is None:
            raise RuntimeError("this station has no vision view; the pruner must ask for one in needs()")
        return self.vision_view


def instruction_columns(alive: Tensor, visual: Tensor) -> Tensor:
    """[B, q] text columns after the row's last visual column; all text where the row has no picture."""
    index = torch.arange(visual.shape[1], device=visual.device)
    last = torch.where(visual, index, -1).amax(1, keepdim=True)  # [B, 1]
    return alive & ~visual & (index > last)


def visual_runs(visual: Tensor) -> tuple[Tensor, Tensor]:
    """(run, offset), both [B, q]: number of the contiguous run a visual column lies in, and its place there."""
    before = torch.zeros_like(visual)
    before[:, 1:] = visual[:, :-1]
    start = visual & ~before
    run = start.cumsum(1) - 1
    index = torch.arange(visual.shape[1], device=visual.device).expand_as(run)
    return run, index - torch.where(start, index, 0).cummax(1).values


def line_grid(visual: Tensor) -> Tensor:
    """[B, q, 5] a grid for tests: every run of visual columns is one image of one line."""
    image, x = visual_runs(visual)
    zero = torch.zeros_like(image)
    grid = torch.stack([image, zero, zero, zero, x], -1)  # [B, q, 5]
    return grid.masked_fill(~visual[..., None], -1)
