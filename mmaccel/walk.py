"""One forward through the decoder while columns leave (EventWalk), and the forwards after it (narrow_later_forward).

Knows the library's layer convention: hidden states first, mask, rotary pair and position ids by keyword. What enters a
layer is gathered by column; nothing is recomputed that the library has computed. Does not know methods or families.
"""

import functools
import zlib
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from mmaccel import cache as caches
from mmaccel.columns import Selection
from mmaccel.masks import View, layer_mask
from mmaccel.models.family import GridFacts
from mmaccel.observe import Captured, Record, recording
from mmaccel.pruning.select import merge
from mmaccel.station import Brought, Event, LiveStation, Observed, Stop, Watch, by_row

if TYPE_CHECKING:
    from mmaccel.attach import Attachment


def _mask_form(text: Any, hidden: Tensor) -> dict[str, Any]:
    backend = text.config._attn_implementation or "eager"
    return {"flash": "flash" in backend, "additive": hidden.dtype if backend == "eager" else None}


class Reduction:
    """What one stop does to any [B, n, D] per-column tensor: gather, or mass-weighted mean where columns are merged."""

    def __init__(self, order: Tensor, keep: Tensor, into: Tensor | None, mass: Tensor) -> None:
        self.order, self.mass_before, self.mass = order, mass, mass.gather(1, order)  # [B, M], [B, n], [B, M]
        self.into = None
        if into is not None:
            own = torch.arange(into.shape[1], device=into.device).expand_as(into)
            self.into = torch.where(keep, own, into)  # [B, n]
            self.mass = merge(mass[..., None], mass, self.into)[1].gather(1, order)

    def __call__(self, whole: Tensor) -> Tensor:
        """[B, n, D] → [B, M, D]"""
        if self.into is not None:
            whole = merge(whole, self.mass_before, self.into)[0]
        return self.picked(whole)

    def picked(self, whole: Tensor) -> Tensor:
        """[B, n, D] → [B, M, D] what stands, nothing merged."""
        return whole.gather(1, self.order[..., None].expand(-1, -1, whole.shape[-1]))


class EventWalk:
    """The state of one pruning event, from the text model's entry to its exit."""

    def __init__(
        self, attachment: "Attachment", ids: Tensor | None, mask: Any, facts: Brought, arguments: dict, logits: int
    ) -> None:
        if ids is None:
            raise ValueError(
                "input_ids: got none, valid is the prompt's ids: a pruner must know which columns are visual"
            )
        self.attachment, self.facts, self.ids = attachment, facts, ids
        self.embeds: Tensor = arguments["inputs_embeds"]  # [B, Q, D]
        self.cache: Any = caches.cache_in(arguments)
        self.past = caches.logical_length(self.cache)
        self.positions: Tensor | None = arguments.get("position_ids")
        self.width = ids.shape[1]
        self.padding = mask if isinstance(mask, Tensor) and mask.ndim == 2 else None  # [B, L]
        self.alive = torch.ones_like(ids, dtype=torch.bool)
        if self.padding is not None:
            self.alive = self.padding[:, -self.width :].bool()
        self.visual = torch.zeros_like(self.alive)
        for token in attachment.family.visual_ids(attachment.model.config):
            self.visual |= ids == token
        self.visual &= self.alive
        last = torch.where(self.alive, torch.arange(self.width, device=ids.device), -1).amax(1)
        self.anchor = last.clamp(max=self.width - logits)  # [B] a draft behind the prompt is no part of the question
        self.region, attachment.region = attachment.region, None  # it is this prompt's
        if self.region is not None and self.region.shape != ids.shape:
            raise ValueError(f"region: got {tuple(self.region.shape)}, expected the prompt's {tuple(ids.shape)}")
        self.index: Tensor | None = None  # [B, M] local columns still standing; None = all
        self.ok: Tensor | None = None  # [B, M] not filler
        self.fillers = False
        self.mass = self.alive.float()
        self.reductions: list[Reduction] = []
        self.segments: list[tuple[int, Tensor, Tensor]] = []  # (from layer, index, ok)
        self._records: dict[int, Observed] = {}
        self._made: dict[Any, Any] = {}  # gathered masks and rotary pairs, shared by the layers of a segment
        self._rotary_given: Any = None
        self._open = ExitStack()
        self.event = Event(
            self.past,
            self.alive.sum(1),
            self.visual.sum(1),
            self.visual,
            functools.partial(
                attachment.family.grid, GridFacts(attachment.model.config, ids, self.visual, self.positions)
            ),
        )
        self._refuse_chunks()

    def _refuse_chunks(self) -> None:
        if not self.attachment.needs.text_layers:
            return
        index = torch.arange(self.width, device=self.ids.device)
        last = torch.where(self.visual, index, -1).amax(1)
        if bool(((last >= self.anchor) & (last >= 0)).any()):
            raise ValueError(
                "a text-guided pruner got a prompt that ends with its picture (a chunked prefill, or a question put "
                "first): the anchor must come after the last visual column; use one prefill, or a text-agnostic pruner"
            )

    # -- begin and end -----------------------------------------------------------------------------------------------

    def open(self) -> None:
        attachment, text = self.attachment, self.attachment.text
        if self.cache is not None:
            caches.check_kinds(self.cache, attachment.stations[0])
        attachment.in_flight = self._open
        pruned = caches.pruned_from(self.cache)
        first = min([*attachment.stations, attachment.depth if pruned is None else pruned])
        for layer in range(first, attachment.depth):
            hook = functools.partial(self.before_layer, layer)
            handle = text.layers[layer].register_forward_pre_hook(hook, with_kwargs=True)
            self._open.callback(handle.remove)
        for layer in attachment.needs.text_layers:
            if any(layer < station for station in attachment.stations):
                module = text.layers[layer].self_attn
                self._open.enter_context(recording(module, functools.partial(self._keep, layer, module)))
        if attachment.family.inject:
            self._wrap_injection(attachment.family.inject)
        handle = text.register_forward_hook(self.close, always_call=True)
        self._open.callback(handle.remove)

    def close(self, module: nn.Module, args: Any, output: Any) -> None:
        """Takes every hook away and, where the forward came to its end, tells the cache layers their columns."""
        self._open.close()
        self._records.clear()
        self._made.clear()
        if output is None:
            return
        self.attachment.events.append(self.event)
        cache: Any = self.cache if self.cache is not None else caches.cache_in(output)
        if cache is not None and self.segments:
            self._settle(cache)

    def _settle(self, cache: Any) -> None:
        caches.adopt(cache, self.segments[0][0])
        made: dict[Any, Any] = {}
        for layer in range(self.segments[0][0], self.attachment.depth):
            _, index, ok = [segment for segment in self.segments if segment[0] <= layer][-1]
            before = cache.layers[layer]
            name = ("slots", id(index), id(before.fixed))
            if name not in made:
                new = (index + self.past).masked_fill(~ok, -1)
                made[name] = caches.Slots.of(torch.cat([self._past_columns(before), new], 1), self.past + self.width)
            if self.attachment.positions == "compact":
                before.shifts += ((self.past, made[name].fixed_end, self._shift(before.shift, index, ok, made)),)
            caches.settle(cache, layer, made[name])

    def _shift(self, before: Tensor | None, index: Tensor, ok: Tensor, made: dict) -> Tensor:
        """[B] columns removed from this row up to this layer; one tensor for all layers that share it."""
        name = ("shift", id(before), id(index))
        if name not in made:
            removed = self.alive.sum(1) - ok.sum(1)
            made[name] = removed if before is None else before + removed
        return made[name]

    # -- layers ------------------------------------------------------------------------------------------------------

    def before_layer(self, layer: int, module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        hidden, rest = args[0], args[1:]
        self._rotary_given = kwargs["position_embeddings"]
        narrowed = self._narrow(layer, hidden, kwargs)
        if layer in self.attachment.stations:
            before = self.index
            hidden = self._stop(layer, hidden, narrowed)
            if self.index is not before:
                narrowed = self._narrow(layer, hidden, kwargs)
            if layer == self.attachment.stations[-1]:
                self._records.clear()
        return (hidden, *rest), narrowed

    def standing(self) -> tuple[Tensor, Tensor]:
        """([B, M] local columns, [B, M] not filler) before the next layer."""
        if self.index is not None and self.ok is not None:
            return self.index, self.ok
        every = torch.arange(self.width, device=self.ids.device).expand_as(self.ids)
        return every, torch.ones_like(self.alive)

    def _narrow(self, layer: int, hidden: Tensor, kwargs: dict) -> dict:
        """The layer's keyword arguments for the columns that stand, or as they came where that is all."""
        stored = self.cache.layers[layer] if self.cache is not None and layer < len(self.cache.layers) else None
        fixed = getattr(stored, "fixed", None)
        if self.index is None and fixed is None:
            return kwargs
        index, ok = self.standing()
        mask = kwargs["attention_mask"]
        name = ("mask", id(mask), id(self.index), id(fixed))
        if name not in self._made:
            query = (index + self.past).masked_fill(~ok, -1)
            key = torch.cat([self._past_columns(stored), query], 1)
            fillers = self.fillers or bool(getattr(stored, "fillers", False))
            view = View(query, key, self.past, fillers)
            self._made[name] = layer_mask(mask, view, **_mask_form(self.attachment.text, hidden))
        pair = self._rotary(self.index, index, ok, getattr(stored, "shift", None))
        return {**kwargs, "attention_mask": self._made[name], "position_embeddings": pair, "position_ids": None}

    def _past_columns(self, stored: Any) -> Tensor:
        """[B, P] columns this cache layer held before the event."""
        if stored is None or not self.past:
            return self.ids.new_zeros(len(self.ids), 0)
        return caches.columns_until(stored, self.past).to(self.ids.device).expand(len(self.ids), -1)

    def _rotary(self, standing: Tensor | None, index: Tensor, ok: Tensor, shift: Tensor | None) -> Any:
        """(cos, sin) at the columns `index` [B, M]; `standing` is None while all of them stand."""
        cos, sin = self._rotary_given
        compact = self.attachment.positions == "compact"
        if standing is None and not compact:
            return cos, sin
        name = ("rotary", id(cos), id(standing), id(shift))
        if name not in self._made:
            if compact:
                positions = self._compact_positions(standing, index, ok, shift)
                self._made[name] = self.attachment.text.rotary_emb(self.embeds, positions)
            else:
                at = index[..., None].expand(-1, -1, cos.shape[-1])
                self._made[name] = tuple(part.expand(len(index), -1, -1).gather(1, at) for part in (cos, sin))
        return self._made[name]

    def _compact_positions(self, standing: Tensor | None, index: Tensor, ok: Tensor, shift: Tensor | None) -> Tensor:
        """[B, M] the prompt renumbered among survivors."""
        positions = self.positions
        if positions is None:
            positions = torch.arange(self.past, self.past + self.width, device=index.device)[None]
        kept = self.alive if standing is None else torch.zeros_like(self.alive).scatter(1, index, ok)
        removed = (self.alive & ~kept).cumsum(1)  # [B, Q]
        renumbered = positions.expand_as(removed) - removed
        if shift is not None:
            renumbered = renumbered - shift[:, None]
        return renumbered.gather(1, index)

    # -- a station ---------------------------------------------------------------------------------------------------

    def _stop(self, layer: int, hidden: Tensor, narrowed: dict) -> Tensor:
        watch = Watch(hidden.device)
        station = LiveStation(self, layer, hidden, narrowed)
        selection = self.attachment.pruner.select(station)
        keep = self._checked(selection, station)
        text, lost = station.alive & ~station.visual & ~keep, torch.zeros_like(keep)
        if selection.into is not None:
            lost = (selection.into >= 0) & ~keep.gather(1, selection.into.clamp(min=0)) & station.alive
        kept, alive, dropped_text, into_nothing = torch.stack(
            [part.sum(1) for part in (keep, station.alive, text, lost)]
        ).tolist()
        if any(into_nothing):
            raise ValueError(f"Selection.into: {sum(into_nothing)} columns go into one that is not kept")
        if any(dropped_text):
            raise ValueError(f"Selection.keep: {sum(dropped_text)} text columns gone at layer {layer}; all must stay")
        if kept != alive or selection.into is not None or selection.value is not None:
            hidden = self._reduce(layer, hidden, keep, selection, kept)
        watch.mark()
        index, ok = self.standing()
        column = (index + self.past).masked_fill(~(ok & self.alive.gather(1, index)), -1)
        self.event.stops.append(Stop(layer, column, (keep & station.visual).sum(1), watch))
        return hidden

    @staticmethod
    def _checked(selection: Selection, station: LiveStation) -> Tensor:
        shape = tuple(station.hidden.shape[:2])
        keep = selection.keep
        if keep.dtype != torch.bool or tuple(keep.shape) != shape:
            raise ValueError(f"Selection.keep: got {keep.dtype} {tuple(keep.shape)}, expected torch.bool {shape}")
        if selection.into is not None and tuple(selection.into.shape) != shape:
            raise ValueError(f"Selection.into: got {tuple(selection.into.shape)}, expected {shape}")
        if selection.value is not None and selection.value.shape != station.hidden.shape:
            wanted = tuple(station.hidden.shape)
            raise ValueError(f"Selection.value: got {tuple(selection.value.shape)}, expected {wanted}")
        return keep & station.alive

    def _reduce(self, layer: int, hidden: Tensor, keep: Tensor, selection: Selection, kept: list[int]) -> Tensor:
        """[B, n, D] → [B, M, D]; moves index, ok and mass along."""
        M = max(kept)
        ranked = keep.to(torch.int8).argsort(dim=1, stable=True)  # [B, n] dropped first, survivors ascending
        order = ranked[:, keep.shape[1] - M :]  # [B, M] fillers left
        reduction = Reduction(order, keep, selection.into, self.mass)
        self.reductions.append(reduction)
        hidden = reduction(hidden) if selection.value is None else reduction.picked(selection.value)
        index, _ = self.standing()
        self.index, self.ok = index.gather(1, order), keep.gather(1, order)
        self.mass = reduction.mass * self.ok
        self.fillers = min(kept) < M
        self.segments.append((layer, self.index, self.ok))
        return hidden

    # -- what a station may ask for ----------------------------------------------------------------------------------

    def _keep(self, layer: int, module: nn.Module, record: Record) -> None:
        standing, (index, ok) = self.index, self.standing()
        shift = getattr(self.cache.layers[layer], "shift", None) if self.past else None
        rotary = functools.partial(self._rotary, standing, index, ok, shift)
        self._records[layer] = Observed(record, index, ok & self.alive.gather(1, index), rotary, module)

    def observed(self, layer: int, at: int, hidden: Tensor, arguments: dict) -> Observed:
        """The record of `layer` for the station at `at`; that layer itself is run ahead, without cache."""
        asked = self.attachment.needs.text_layers
        if layer not in asked or layer > at:
            valid = [known for known in asked if known <= at]
            raise ValueError(
                f"attention: got layer {layer} at station {at}, valid are those of needs() so far: {valid}"
            )
        if layer < at:
            return self._records[layer]
        block = self.attachment.text.layers[layer]
        try:
            with recording(block.self_attn, functools.partial(self._keep, layer, block.self_attn), dry=True):
                block.self_attn(
                    hidden_states=block.input_layernorm(hidden),
                    attention_mask=arguments["attention_mask"],
                    position_embeddings=arguments["position_embeddings"],
                )
        except Captured:
            pass
        seen = self._records.pop(layer)
        if self.past:
            key = torch.cat([self.cache.layers[layer].keys, seen.record.key], 2)
            seen = replace(seen, record=replace(seen.record, key=key))
        return seen

    def key_columns(self, layer: int, seen: Observed) -> Tensor:
        """[B, m] columns of an observed layer's keys, past ones first, -1 where nobody may look."""
        stored = self.cache.layers[layer] if self.cache is not None and self.past else None
        past = self._past_columns(stored)
        if self.padding is not None and self.padding.shape[1] == self.past + self.width and past.shape[1]:
            seen_past = self.padding.gather(1, past.clamp(min=0)).bool()
            past = past.masked_fill(~seen_past, -1)
        return torch.cat([past, (seen.index + self.past).masked_fill(~seen.ok, -1)], 1)

    def tiles(self) -> list[int]:
        """[B] tiles (or pictures, or frames) in each row, by their first tokens."""
        return ((self.event.grid[..., 2:] == 0).all(-1) & self.visual).sum(1).tolist()

    def row_keys(self) -> tuple[int, ...]:
        """[B] a hash of each row's own ids and pictures, the same in any batch."""
        pictures = by_row(self.facts.digests, self.tiles())
        if pictures is None:  # videos beside pictures: they can be told apart at batch 1 only
            pictures = [self.facts.digests if len(self.ids) == 1 else []] * len(self.ids)
        keys = []
        for row, mine in enumerate(pictures):
            ids = self.ids[row][self.alive[row]].cpu().numpy().tobytes()
            keys.append(zlib.crc32(ids + repr(mine).encode()))
        return tuple(keys)

    # -- features added after a layer --------------------------------------------------------------------------------

    def _wrap_injection(self, name: str) -> None:
        """DeepStack adds visual features after the first layers by a whole-prompt mask: give it what stands."""
        text: Any = self.attachment.text
        original = getattr(text, name)

        @functools.wraps(original)
        def inject(hidden: Tensor, mask: Tensor, features: Tensor) -> Tensor:
            if self.index is None:
                return original(hidden, mask, features)
            whole = features.new_zeros(*mask.shape, features.shape[-1]).to(hidden.device)
            whole[mask.to(hidden.device)] = features.to(hidden.device)
            for reduction in self.reductions:
                whole = reduction(whole)
            return hidden + whole.to(hidden.dtype)

        setattr(text, name, inject)
        self._open.callback(delattr, text, name)


# -- forwards after an event -----------------------------------------------------------------------------------------


def narrow_later_forward(attachment: "Attachment", kwargs: dict) -> dict:
    """Prepares a forward that brings no picture over a pruned cache; returns its keyword arguments.

    A plain decode step at batch 1 needs no hook: one query sees every slot, and slots carry their rotation.
    """
    text = attachment.text
    cache: Any = caches.cache_in(kwargs)
    given = kwargs["inputs_embeds"] if kwargs.get("inputs_embeds") is not None else kwargs["input_ids"]
    shifts: list[Any] = [getattr(layer, "shift", None) for layer in cache.layers]
    shifted = any(shift is not None for shift in shifts)
    if shifted and all(shift is shifts[0] for shift in shifts):
        # a station at 0 numbers all layers alike: one subtraction, not a hook a layer
        kwargs, shifted = {**kwargs, "position_ids": _positions(cache, given, kwargs) - shifts[0][:, None]}, False
    backend = text.config._attn_implementation or "eager"
    padding = kwargs.get("attention_mask")
    plain = given.shape[1] == 1 and backend != "eager" and not shifted
    plain = plain and not any(getattr(layer, "fillers", False) for layer in cache.layers)
    if plain and (padding is None or (padding.ndim == 2 and bool(padding.all()))):
        return {**kwargs, "attention_mask": None}
    later = LaterForward(text, cache, kwargs, given, shifted)
    attachment.in_flight = later.open()
    return kwargs


def _positions(cache: Any, given: Tensor, kwargs: dict) -> Tensor:
    """[B, q] position ids of this forward."""
    positions = kwargs.get("position_ids")
    if positions is None:
        past = caches.logical_length(cache)
        positions = torch.arange(past, past + given.shape[1], device=given.device)[None]
    return positions.expand(len(given), -1)


class LaterForward:
    """Hooks for one forward over a pruned cache: mask columns, and positions where layers are numbered differently."""

    def __init__(self, text: Any, cache: Any, kwargs: dict, given: Tensor, shifted: bool) -> None:
        self.text, self.cache, self.shifted = text, cache, shifted
        self.past, self.q, self.B = caches.logical_length(cache), given.shape[1], len(given)
        self.positions = _positions(cache, given, kwargs) if shifted else None
        self._made: dict[Any, Any] = {}
        self._open = ExitStack()

    def open(self) -> ExitStack:
        for layer, stored in enumerate(self.cache.layers):
            if isinstance(stored, caches.ColumnLayer) and (stored.fixed is not None or stored.shifts):
                hook = functools.partial(self.before_layer, stored)
                self._open.callback(self.text.layers[layer].register_forward_pre_hook(hook, with_kwargs=True).remove)
        self._open.callback(self.text.register_forward_hook(self.close, always_call=True).remove)
        return self._open

    def close(self, module: nn.Module, args: Any, output: Any) -> None:
        self._open.close()

    def before_layer(self, stored: Any, module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        hidden, mask = args[0], kwargs["attention_mask"]
        name = (id(mask), id(stored.fixed))
        if name not in self._made:
            query = torch.arange(self.past, self.past + self.q, device=hidden.device).expand(self.B, -1)
            key = torch.cat([caches.columns_until(stored, self.past).to(hidden.device), query], 1)
            view = View(query, key, self.past, stored.fillers)
            self._made[name] = layer_mask(mask, view, **_mask_form(self.text, hidden))
        changed = {**kwargs, "attention_mask": self._made[name], "position_ids": None}
        if self.shifted and stored.shift is not None:
            changed["position_embeddings"] = self._rotary(hidden, stored.shift)
        return args, changed

    def _rotary(self, hidden: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
        if id(shift) not in self._made:
            assert self.positions is not None
            self._made[id(shift)] = self.text.rotary_emb(hidden, self.positions - shift[:, None])
        return self._made[id(shift)]
