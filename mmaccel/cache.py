"""Functions over any library Cache whose layers hold different columns: adopt, columns, commit, rollback, fork.

A cache layer that was pruned stores fewer slots than the conversation has columns, yet reports the logical length, so
the library's own positions, masks and `generate` go on unchanged. State lives on the cache, never on the model.
This module knows slots and columns. It does not know models, pictures or pruners.
"""

import copy
import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

CACHE_NAMES = ("cache", "past_key_values")  # transformers ≥ 5.20, before


def cache_in(arguments: Any) -> Cache | None:
    """The cache in a mapping of keyword arguments or in a model output, whatever the library calls it."""
    for name in CACHE_NAMES:
        found = arguments.get(name)
        if found is not None:
            return found
    return None


class ColumnLayer(DynamicLayer):
    """A dynamic cache layer that knows its columns.

    fixed: [B, P0] columns of the first P0 slots, -1 = filler; None while slots and columns coincide.
    fixed_end: logical length at the end of those slots; the slots after them hold consecutive columns from there on.
    fillers: whether `fixed` holds any -1.
    shifts: under compact positions, per event (first column, column from which all rows count on, [B] columns removed
    in all so far).
    """

    fixed: Tensor | None
    fixed_end: int
    fillers: bool
    shifts: tuple[tuple[int, int, Tensor], ...]

    @property
    def shift(self) -> Tensor | None:
        """[B] columns removed per row so far, None where positions are the original ones."""
        return self.shifts[-1][2] if self.shifts else None

    def _physical(self) -> int:
        return super().get_seq_length()

    def _gap(self) -> int:
        return 0 if self.fixed is None else self.fixed_end - self.fixed.shape[1]

    def get_seq_length(self) -> int:
        physical = self._physical()
        return physical + self._gap() if physical else 0

    def reset(self) -> None:
        super().reset()
        _forget(self)

    def crop(self, tokens_to_remove: int) -> None:
        """Removes -n columns from the end; a positive number is the old library's absolute logical length."""
        if not self.is_initialized or tokens_to_remove == 0:
            return
        drop = -tokens_to_remove if tokens_to_remove < 0 else self.get_seq_length() - tokens_to_remove
        if drop > 0:
            length = self.get_seq_length() - drop
            _truncate(self, length, _cut(self, length))

    def reorder_cache(self, beam_idx: Any) -> None:
        super().reorder_cache(beam_idx)
        _select_rows(self, beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        super().batch_select_indices(indices)
        _select_rows(self, indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        super().batch_repeat_interleave(repeats)
        if self.fixed is not None:
            self.fixed = self.fixed.repeat_interleave(repeats, 0)
        self.shifts = tuple((start, end, shift.repeat_interleave(repeats, 0)) for start, end, shift in self.shifts)


def _forget(layer: ColumnLayer) -> None:
    layer.fixed, layer.fixed_end, layer.fillers, layer.shifts = None, 0, False, ()


def _select_rows(layer: ColumnLayer, rows: Tensor) -> None:
    if layer.fixed is not None:
        layer.fixed = layer.fixed[rows.to(layer.fixed.device)]
    layer.shifts = tuple((start, end, shift[rows.to(shift.device)]) for start, end, shift in layer.shifts)


def layers_of(cache: Cache) -> list[Any]:
    """The layers, of whatever kind the library chose."""
    return cache.layers


def check_kinds(cache: Cache, first: int = 0) -> None:
    """Raises for a cache whose layers from `first` on cannot hold pruned rows."""
    if getattr(cache, "offloading", False):
        raise ValueError("cache: got an offloaded cache, valid is a cache that stays on the device")
    for index, layer in enumerate(layers_of(cache)[first:], first):
        if type(layer) not in (DynamicLayer, ColumnLayer):
            raise ValueError(
                f"cache: layer {index} is a {type(layer).__name__}, valid: DynamicLayer (full attention); "
                "static, sliding, quantized and linear layers cannot hold a pruned row"
            )


def adopt(cache: Cache, first: int = 0) -> None:
    """Teaches the layers from `first` on to know their columns, in place; raises for a kind that cannot be pruned."""
    check_kinds(cache, first)
    for layer in layers_of(cache)[first:]:
        if not isinstance(layer, ColumnLayer):
            layer.__class__ = ColumnLayer  # single inheritance, so the object layout is the same
            _forget(layer)


def logical_length(cache: Cache | None) -> int:
    return 0 if cache is None else cache.get_seq_length()


def physical_length(cache: Cache, layer: int) -> int:
    """Slots that layer really stores."""
    stored = layers_of(cache)[layer]
    return stored.keys.shape[-2] if stored.is_initialized and stored.keys.numel() else 0


def pruned_from(cache: Cache | None) -> int | None:
    """The first layer whose slots are not simply the columns 0 … L-1, or None."""
    if cache is None:
        return None
    for index, layer in enumerate(layers_of(cache)):
        if isinstance(layer, ColumnLayer) and layer.fixed is not None:
            return index
    return None


def columns(cache: Cache, layer: int) -> Tensor:
    """[B, P] the logical column of every physical slot of that layer, -1 = filler."""
    stored = layers_of(cache)[layer]
    return columns_until(stored, stored.get_seq_length())


def columns_until(layer: Any, end: int) -> Tensor:
    """[B, P] columns of this layer's slots once it has grown to the logical length `end`."""
    if not layer.is_initialized:
        return torch.arange(end)[None]
    keys = layer.keys
    if not isinstance(layer, ColumnLayer) or layer.fixed is None:
        return torch.arange(end, device=keys.device).expand(keys.shape[0], -1)
    tail = torch.arange(layer.fixed_end, end, device=keys.device).expand(keys.shape[0], -1)
    return torch.cat([layer.fixed, tail], 1)


def cache_argument(model: Any) -> str:
    """The keyword under which this library's forward takes a cache."""
    known = inspect.signature(model.forward).parameters
    return next(name for name in CACHE_NAMES if name in known)


@dataclass(frozen=True)
class Slots:
    """Columns written into a layer by one event, shared by all layers that got the same ones."""

    fixed: Tensor  # [B, P0]
    fixed_end: int
    fillers: bool

    @classmethod
    def of(cls, column: Tensor, end: int) -> "Slots":
        """Splits [B, P] columns into the fixed part and a tail of consecutive columns that every row shares."""
        P = column.shape[1]
        expected = torch.arange(end - P, end, device=column.device)
        same = (column == expected).all(0)  # [P]
        tail, fillers = torch.stack([same.flip(0).cumprod(0).sum(), (column < 0).any().long()]).tolist()
        return cls(column[:, : P - tail], end - tail, bool(fillers))


def settle(cache: Cache, layer: int, slots: Slots) -> None:
    """Says which columns an adopted layer holds from now on."""
    stored = layers_of(cache)[layer]
    assert isinstance(stored, ColumnLayer)
    stored.fixed, stored.fixed_end, stored.fillers = slots.fixed, slots.fixed_end, slots.fillers
    if slots.fixed.shape[1] == slots.fixed_end and not slots.fillers:
        stored.fixed = None  # nothing is missing: slots and columns coincide


def commit(cache: Cache, tail: int, keep: Tensor) -> None:
    """Of each layer's last `tail` slots keeps those of `keep` [B, tail], per row.

    The kept ones are right-aligned; rows that keep fewer get dead columns at the left of the new tail, and the logical
    length shrinks to the longest row's. Positions are the caller's: they do not count dead columns.
    """
    order = torch.arange(1, tail + 1, device=keep.device)
    counts, ends = torch.stack([keep.sum(1), (keep * order).amax(1)]).tolist()  # the step's only wait
    longest = max(counts)
    if longest == tail and min(counts) == tail:
        return
    if counts == ends and min(counts) == longest:  # the first ones of every row: nothing has to move
        for stored in layers_of(cache):
            kept = stored.keys.shape[2] - tail + longest
            stored.keys, stored.values = stored.keys[:, :, :kept], stored.values[:, :, :kept]
        return
    end = logical_length(cache) - tail + longest
    order = keep.to(torch.int8).argsort(dim=1, stable=True)[:, tail - longest :]  # [B, m] dead first, kept in order
    dead = torch.arange(longest, device=keep.device) < longest - keep.sum(1, keepdim=True)  # [B, m]
    ragged = min(counts) < longest
    if ragged:
        adopt(cache)
    for stored in layers_of(cache):
        before = columns_until(stored, end - longest) if ragged else None
        stored.keys = _keep_tail(stored.keys, tail, order)
        stored.values = _keep_tail(stored.values, tail, order)
        if before is not None:
            new = torch.arange(end - longest, end, device=dead.device).expand_as(dead).masked_fill(dead, -1)
            stored.fixed, stored.fixed_end = torch.cat([before.to(new.device), new], 1), end
            stored.fillers = True


def _keep_tail(states: Tensor, tail: int, order: Tensor) -> Tensor:
    """[B, H, P, d] with the last `tail` slots replaced by those of `order` [B, m]."""
    head, last = states[:, :, : states.shape[2] - tail], states[:, :, states.shape[2] - tail :]
    index = order.to(states.device)[:, None, :, None].expand(-1, states.shape[1], -1, states.shape[3])
    return torch.cat([head, last.gather(2, index)], 2)


def rollback(cache: Cache, length: int) -> None:
    """Takes every layer back to the logical `length`; raises where that would cut through a pruned block."""
    now = logical_length(cache)
    if not 0 <= length <= now:
        raise ValueError(f"rollback: got length {length}, valid are 0 … {now}")
    if length < now:
        adopt(cache)
        cuts = [_cut(layer, length) for layer in layers_of(cache)]  # all of them first: a refusal changes nothing
        for layer, cut in zip(layers_of(cache), cuts):
            _truncate(layer, length, cut)


def _cut(layer: Any, length: int) -> tuple[int, tuple]:
    """(slots, shifts) that an adopted layer keeps at the logical `length`."""
    shifts = _shifts_before(layer.shifts, length)
    if layer.fixed is None or length >= layer.fixed_end:
        return length - layer._gap(), shifts
    return _boundary(layer.fixed, length), shifts


def _truncate(layer: Any, length: int, cut: tuple[int, tuple]) -> None:
    slots, layer.shifts = cut
    if layer.fixed is not None and length < layer.fixed_end:
        layer.fixed, layer.fixed_end = layer.fixed[:, :slots], length
        layer.fillers = bool((layer.fixed < 0).any())
    layer.keys, layer.values = layer.keys[..., :slots, :], layer.values[..., :slots, :]


def _shifts_before(shifts: tuple[tuple[int, int, Tensor], ...], length: int) -> tuple[tuple[int, int, Tensor], ...]:
    """The events that lie before `length`; raises where it cuts through one, whose positions would be neither's."""
    for start, end, _ in shifts:
        if start < length < end:
            raise ValueError(
                f"rollback: got length {length}, valid under compact positions: up to {start}, from {end} on"
            )
    return tuple(entry for entry in shifts if entry[1] <= length)


def _boundary(fixed: Tensor, length: int) -> int:
    """The slot at which every row passes from columns < length to columns ≥ length (or fillers)."""
    later = fixed >= length  # [B, P0]
    first = torch.where(later.any(1), later.int().argmax(1), fixed.shape[1])  # [B]
    cut = int(first.min())
    if bool(((fixed[:, cut:] >= 0) & (fixed[:, cut:] < length)).any()):
        raise ValueError(
            f"rollback: column {length} lies in a pruned block whose rows differ; valid: its start, its end"
        )
    while cut > 0 and bool((fixed[:, cut - 1] < 0).all()):
        cut -= 1  # fillers at the left of the dropped block
    return cut


def fork(cache: Cache) -> Cache:
    """An independent copy. Dynamic layers grow by concatenation, so tensors are shared until one of the two grows."""
    twin = copy.copy(cache)
    twin.layers = [copy.copy(layer) for layer in layers_of(cache)]
    return twin
