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
    fillers: whether `fixed` holds any -1. shift: [B] columns removed per row so far (compact positions), or None.
    """

    fixed: Tensor | None
    fixed_end: int
    fillers: bool
    shift: Tensor | None

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
            _truncate(self, self.get_seq_length() - drop)

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
        if self.shift is not None:
            self.shift = self.shift.repeat_interleave(repeats, 0)


def _forget(layer: ColumnLayer) -> None:
    layer.fixed, layer.fixed_end, layer.fillers, layer.shift = None, 0, False, None


def _select_rows(layer: ColumnLayer, rows: Tensor) -> None:
    if layer.fixed is not None:
        layer.fixed = layer.fixed[rows.to(layer.fixed.device)]
    if layer.shift is not None:
        layer.shift = layer.shift[rows.to(layer.shift.device)]


def layers_of(cache: Cache) -> list[Any]:
    """The layers, of whatever kind the library chose."""
    return cache.layers


def adopt(cache: Cache, first: int = 0) -> None:
    """Teaches the layers from `first` on to know their columns, in place; raises for a kind that cannot be pruned."""
    if getattr(cache, "offloading", False):
        raise ValueError("cache: got an offloaded cache, valid is a cache that stays on the device")
    for index, layer in enumerate(layers_of(cache)[first:], first):
        if isinstance(layer, ColumnLayer):
            continue
        if type(layer) is not DynamicLayer:
            raise ValueError(
                f"cache: layer {index} is a {type(layer).__name__}, valid: DynamicLayer (full attention); "
                "static, sliding, quantized and linear layers cannot hold a pruned row"
            )
        layer.__class__ = ColumnLayer  # single inheritance, so the object layout is the same
        _forget(layers_of(cache)[index])


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
    return _columns(stored, stored.get_seq_length())


def _columns(layer: Any, end: int) -> Tensor:
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


def settle(cache: Cache, layer: int, slots: Slots, shift: Tensor | None = None) -> None:
    """Says which columns an adopted layer holds from now on."""
    stored = layers_of(cache)[layer]
    assert isinstance(stored, ColumnLayer)
    if slots.fixed.shape[1] == slots.fixed_end and not slots.fillers and shift is None:
        _forget(stored)  # nothing is missing: slots and columns coincide
        return
    stored.fixed, stored.fixed_end, stored.fillers, stored.shift = slots.fixed, slots.fixed_end, slots.fillers, shift


def commit(cache: Cache, tail: int, keep: Tensor) -> None:
    """Of each layer's last `tail` slots keeps those of `keep` [B, tail], per row.

    The kept ones are right-aligned; rows that keep fewer get dead columns at the left of the new tail, and the logical
    length shrinks to the longest row's. Positions are the caller's: they do not count dead columns.
    """
    counts = keep.sum(1).tolist()
    longest = max(counts)
    if longest == tail and min(counts) == tail:
        return
    end = logical_length(cache) - tail + longest
    order = keep.to(torch.int8).argsort(dim=1, stable=True)[:, tail - longest :]  # [B, m] dead first, kept in order
    dead = torch.arange(longest, device=keep.device) < longest - keep.sum(1, keepdim=True)  # [B, m]
    ragged = min(counts) < longest
    if ragged:
        adopt(cache)
    for stored in layers_of(cache):
        before = _columns(stored, end - longest) if ragged else None
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
        for layer in layers_of(cache):
            _truncate(layer, length)


def _truncate(layer: Any, length: int) -> None:
    """Cuts an adopted layer to the logical `length`."""
    physical = layer._physical()
    if layer.fixed is None or length >= layer.fixed_end:
        keep = length - layer._gap()
    else:
        keep = _boundary(layer.fixed, length)
        layer.fixed, layer.fixed_end = layer.fixed[:, :keep], length
        layer.fillers = bool((layer.fixed < 0).any())
    if keep < physical:
        layer.keys, layer.values = layer.keys[..., :keep, :], layer.values[..., :keep, :]


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
