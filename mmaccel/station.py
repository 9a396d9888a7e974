"""What a pruner sees on a live model (LiveStation) and what is remembered of one event (Event, Stop).

Knows columns, observed attention and the picture's facts. Does not gather, hook or write caches: walk.py does.
"""

import sys
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mmaccel.columns import BoolTensor, LongTensor, VisionView, instruction_columns
from mmaccel.observe import Record, attention_rows
from mmaccel.pruning.budget import History

if TYPE_CHECKING:
    from mmaccel.walk import EventWalk


class Watch:
    """Milliseconds between two points of the stream; on CUDA by events, read without a sync until asked for."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._marks: list[Any] = []
        self.mark()

    def mark(self) -> None:
        if self._cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._marks.append(event)
        else:
            self._marks.append(time.perf_counter())

    @property
    def ms(self) -> float:
        first, last = self._marks[0], self._marks[-1]
        if not self._cuda:
            return (last - first) * 1e3
        last.synchronize()
        return first.elapsed_time(last)


@dataclass(frozen=True)
class Stop:
    """One station of one event. column: [B, M] surviving columns, -1 = filler; visual: [B] surviving visual tokens."""

    layer: int
    column: LongTensor
    visual: LongTensor
    watch: Watch

    @property
    def prune_ms(self) -> float:
        """Scoring, selecting and gathering."""
        return self.watch.ms


@dataclass
class Event:
    """One pruning event. prompt, visual: [B] alive and prunable columns before it; past: logical length before it."""

    past: int
    prompt: Tensor
    visual: Tensor
    visual_mask: BoolTensor  # [B, q]
    grid_of: Callable[[], Tensor] = field(repr=False)
    stops: list[Stop] = field(default_factory=list)

    @cached_property
    def grid(self) -> Tensor:
        """[B, q, 5] (image, tile, t, y, x) of every visual column, -1 for text."""
        return self.grid_of()


@dataclass(frozen=True)
class PictureFacts:
    """What one feature call saw: pixels and sizes as given to it; rows: tower layer → per picture [H, n] attention."""

    pixels: Tensor | None = None
    sizes: Tensor | None = None
    rows: dict[int, list[Tensor]] = field(default_factory=dict)

    @cached_property
    def digests(self) -> list[int]:
        """A content hash per tile of every picture in prompt order, the same in any batch."""
        if self.pixels is None:
            return []
        parts: Any = self.pixels
        if self.sizes is not None:
            parts = self.pixels.split(self.sizes.prod(-1).tolist())
        elif self.pixels.ndim == 5:  # [B, tiles, 3, H, W], rows filled up with empty tiles
            parts = [tile for tile in self.pixels.flatten(0, 1) if bool(tile.any())]
        return [zlib.crc32(part.detach().float().cpu().contiguous().numpy().tobytes()) for part in parts]


@dataclass(frozen=True)
class Brought:
    """The facts of all pictures and videos that one forward brings."""

    parts: tuple[PictureFacts, ...]

    @property
    def digests(self) -> list[int]:
        return [digest for part in self.parts for digest in part.digests]

    def rows(self, layer: int) -> list[Tensor]:
        recorded = sorted({known for part in self.parts for known in part.rows})
        if layer not in recorded:
            raise RuntimeError(
                f"vision layer: got {layer}, recorded are {recorded or 'none'}; ask for it in needs(), and let the "
                "pictures be encoded inside the block"
            )
        return [row for part in self.parts for row in part.rows.get(layer, [])]


@dataclass(frozen=True)
class Observed:
    """A record with the prompt columns its new keys stand for. index: [B, n] local columns; ok: [B, n] not filler."""

    record: Record
    index: Tensor
    ok: Tensor
    rotary: Callable[[], tuple[Tensor, Tensor]]
    module: Any


class LiveStation:
    """The Station contract (columns.py) on a running model."""

    def __init__(self, walk: "EventWalk", layer: int, hidden: Tensor, arguments: dict) -> None:
        self._walk, self._arguments = walk, arguments
        self.layer, self.hidden = layer, hidden
        self._index, self._ok = walk.standing()  # [B, q] local columns, [B, q] not filler

    def _take(self, whole: Tensor, filler: Any) -> Tensor:
        """[B, q, …] of a whole-prompt tensor [B, Q, …] at the standing columns."""
        shape = (*self._index.shape, *whole.shape[2:])
        index = self._index.view(*self._index.shape, *[1] * (whole.ndim - 2)).expand(shape)
        ok = self._ok.view(*self._ok.shape, *[1] * (whole.ndim - 2))
        return whole.gather(1, index).masked_fill(~ok, filler)

    @cached_property
    def embeds(self) -> Tensor:
        return self._take(self._walk.embeds, 0.0)

    @cached_property
    def ids(self) -> Tensor:
        return self._take(self._walk.ids, 0)

    @cached_property
    def column(self) -> Tensor:
        return (self._index + self._walk.past).masked_fill(~self._ok, -1)

    @cached_property
    def alive(self) -> Tensor:
        return self._take(self._walk.alive, False) if self._walk.index is None else self._ok

    @cached_property
    def visual(self) -> Tensor:
        return self._take(self._walk.visual, False)

    @cached_property
    def instruction(self) -> Tensor:
        whole = instruction_columns(self._walk.alive, self._walk.visual)
        upto = torch.arange(whole.shape[1], device=whole.device) <= self._walk.anchor[:, None]
        return self._take(whole & upto, False)

    @cached_property
    def grid(self) -> Tensor:
        return self._take(self._walk.event.grid, -1)

    @property
    def mass(self) -> Tensor:
        return self._walk.mass

    @cached_property
    def region(self) -> Tensor | None:
        whole = self._walk.region
        return None if whole is None else self._take(whole, False)

    @cached_property
    def anchor(self) -> Tensor:
        """[B] local index among the standing columns."""
        return self._place(self._index, self._ok, self._walk.anchor[:, None])[:, 0]

    @cached_property
    def key(self) -> tuple[int, ...]:
        return self._walk.row_keys()

    @cached_property
    def history(self) -> History:
        walk = self._walk
        column = torch.arange(walk.past, walk.past + walk.width, device=walk.ids.device).expand_as(walk.ids)
        history = History.start(
            walk.attachment.depth, column.masked_fill(~walk.alive, -1), walk.event.grid, walk.visual
        )
        for stop in walk.event.stops:
            history = history.after(stop.layer, stop.column)
        return history

    def _place(self, index: Tensor, ok: Tensor, columns: Tensor) -> Tensor:
        """Where prompt columns [B, r] (-1 stays -1) stand among `index` [B, n]; every one of them does."""
        B, n = index.shape
        table = columns.new_full((B, self._walk.width + 1), -1)  # the last cell takes the fillers
        spots = torch.arange(n, device=index.device).expand(B, -1)
        table.scatter_(1, index.masked_fill(~ok, self._walk.width), spots)
        return table.gather(1, columns.clamp(min=0)).masked_fill(columns < 0, -1)

    def _rows(self, rows: Tensor | None) -> Tensor:
        """[B, r] prompt columns of the asked rows, right-aligned, -1 = empty."""
        if rows is None:
            return self._walk.anchor[:, None]
        rows = rows & self._ok
        count = rows.sum(1, keepdim=True)
        r = int(count.max())
        order = rows.to(torch.int8).argsort(dim=1, stable=True)[:, self._index.shape[1] - r :]  # [B, r]
        empty = torch.arange(r, device=rows.device) < r - count
        return self._index.gather(1, order).masked_fill(empty, -1)

    def attention(self, layer: int, rows: Tensor | None = None, rope: bool = True) -> Tensor:
        """[B, H, r, q] fp32 softmax rows over all keys, cut to the standing columns.

        rows: [B, q] bool, default the anchor; a batch row that asks for fewer gets empty rows of zeros at the left.
        rope=False scores as if queries and keys had not been rotated (a first event only).
        """
        seen = self._walk.observed(layer, self.layer, self.hidden, self._arguments)
        record = seen.record if rope else self._unrotated(seen)
        columns = self._rows(rows)  # [B, r]
        at = self._place(seen.index, seen.ok, columns)
        weights = attention_rows(record, at, self._visible(layer, seen, columns))  # [B, H, r, m]
        new = weights[..., weights.shape[-1] - seen.index.shape[1] :]  # [B, H, r, n]
        place = self._place(seen.index, seen.ok, self._index.masked_fill(~self._ok, -1))  # [B, q]
        index = place.clamp(min=0)[:, None, None].expand(-1, new.shape[1], new.shape[2], -1)
        return new.gather(3, index).masked_fill((place < 0)[:, None, None], 0.0)

    def keys(self, layer: int) -> Tensor:
        """[B, Hkv, q, d] after rotary embedding."""
        seen = self._walk.observed(layer, self.layer, self.hidden, self._arguments)
        new = seen.record.key[:, :, seen.record.key.shape[2] - seen.index.shape[1] :]
        place = self._place(seen.index, seen.ok, self._index.masked_fill(~self._ok, -1)).clamp(min=0)  # [B, q]
        return new.gather(2, place[:, None, :, None].expand(-1, new.shape[1], -1, new.shape[3]))

    def _visible(self, layer: int, seen: Observed, columns: Tensor) -> Tensor | None:
        """[B, r, m] causal over columns and padding; only where the backend's own mask does not say it."""
        if seen.record.mask is not None and seen.record.mask.ndim == 4:
            return None
        key = self._walk.key_columns(layer, seen)  # [B, m]
        query = (columns + self._walk.past)[..., None]
        return (key[:, None] >= 0) & (key[:, None] <= query)

    def _unrotated(self, seen: Observed) -> Record:
        if self._walk.past:
            raise ValueError("attention(rope=False): got a conversation with past columns, valid is a first event")
        rotate = sys.modules[type(seen.module).__module__].apply_rotary_pos_emb
        cos, sin = seen.rotary()
        query, key = rotate(seen.record.query, seen.record.key, cos, -sin)  # the inverse rotation
        return Record(query, key, seen.record.mask, seen.record.scale)

    def vision(self) -> VisionView:
        return TowerView(self._walk.facts, self._walk.tiles())


@dataclass(frozen=True)
class TowerView:
    """The VisionView contract over what the feature call recorded. tiles: [B] per row of the batch."""

    facts: Brought
    tiles: list[int]

    def attention(self, layer: int) -> list[Tensor]:
        """Per tile in batch order [H, n]; where beams repeat rows, the same row is given for each."""
        recorded = self.facts.rows(layer)
        shares = by_row(recorded, self.tiles)
        if shares is None:
            raise RuntimeError(
                f"vision layer {layer}: {len(recorded)} recorded rows for tiles {self.tiles} in the batch"
            )
        return [row for share in shares for row in share]


def by_row(values: Sequence[Any], counts: list[int]) -> list[list[Any]] | None:
    """Each row's `values`, one a tile in prompt order; rows repeated by beams share theirs. None if unclear."""
    for repeats in range(1, len(counts) + 1):
        sources = counts[::repeats]
        if len(counts) % repeats or sum(sources) != len(values):
            continue
        if [count for count in sources for _ in range(repeats)] == counts:
            ends = list(accumulate(sources))
            return [list(values[end - count : end]) for end, count in zip(ends, sources) for _ in range(repeats)]
    return None
