"""The one mechanism: stations on a Hugging Face model, entered and left as a context manager.

`with attach(model, pruner): model.generate(**inputs)`. Columns are really removed at the pruner's stations: hidden
states are gathered once, later layers get the rows and columns of mask and rotary embedding that still stand, and every
cache layer knows its columns (cache.py). Hooks sit on decoder layers only for forwards that need them; a plain decode
step at batch 1 runs the library's layers bare. Nothing of the model is changed after the block.

A *pruning event* is a forward that brings pictures; verify steps and plain later turns never prune.
"""

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from mmaccel import cache as caches
from mmaccel.columns import Needs, Station
from mmaccel.models.family import Family, family_of
from mmaccel.observe import Record, attention_rows, column_means, recording
from mmaccel.pruning.base import FunctionPruner, Pruner
from mmaccel.station import Event, PictureFacts
from mmaccel.walk import EventWalk, narrow_later_forward

POSITIONS = ("original", "compact")


class Attachment:
    """A pruner on a model for the time of a `with` block; `events` says what happened, one entry per pruning event."""

    def __init__(self, model: Any, pruner: Pruner, positions: str) -> None:
        self.model, self.pruner, self.positions = model, pruner, positions
        self.base: Any = model.model
        self.text: Any = model.get_decoder()
        self.family: Family = family_of(model)
        self.depth = len(self.text.layers)
        self.stations = tuple(pruner.stations(self.depth))
        self.needs: Needs = pruner.needs(self.depth)
        self.events: list[Event] = []
        self.region: Tensor | None = None  # [B, q] evidence of the next prompt, set by whoever knows it
        self.first_logit = 1  # how many of the last columns have their logits asked for
        self._pending: dict[str, Any] | None = None  # the forward that has begun and has not reached the text model yet
        self._check()

    def _check(self) -> None:
        if self.positions not in POSITIONS:
            raise ValueError(f"positions: got {self.positions!r}, valid are {', '.join(POSITIONS)}")
        if self.positions == "compact" and self.family.rope == "mrope":
            raise ValueError("positions: compact is refused for M-RoPE families, valid is original")
        for layer in self.needs.text_layers:
            if not 0 <= layer < self.depth:
                raise ValueError(f"needs.text_layers: got {layer}, valid are 0 … {self.depth - 1}")
            if not any(layer <= station for station in self.stations):
                raise ValueError(f"needs.text_layers: layer {layer} runs after the last station {max(self.stations)}")
        if "cls" in self.needs.vision and self.family.cls_index is None:
            raise ValueError(f"needs.vision: got cls, but a {self.model.config.model_type} tower has none; valid: mean")
        if self.needs.vision - {"cls", "mean", "hidden"}:
            raise ValueError(f"needs.vision: got {sorted(self.needs.vision)}, built so far are cls, mean, hidden")

    # -- hooks -------------------------------------------------------------------------------------------------------

    def outer_forward(self, module: nn.Module, args: tuple, kwargs: dict) -> None:
        wanted = kwargs.get("logits_to_keep", 0)
        self.first_logit = wanted if isinstance(wanted, int) and wanted > 1 else 1
        if kwargs.get("labels") is not None:
            raise ValueError("labels: valid is None while a pruner is attached; gather labels by the event's columns")

    def base_forward(self, module: nn.Module, args: tuple, kwargs: dict) -> None:
        given = kwargs
        if args:
            given = {**inspect.signature(self.base.forward).bind_partial(*args).arguments, **kwargs}
        self._pending = {
            "ids": given.get("input_ids"),
            "mask": given.get("attention_mask"),
            "facts": _facts_in(given.get("mm_encoder_outputs")),
        }

    def text_forward(self, module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        pending, self._pending = self._pending, None
        logits, self.first_logit = self.first_logit, 1
        if pending is not None and pending["facts"] is not None:
            walk = EventWalk(self, pending["ids"], pending["mask"], pending["facts"], kwargs, logits)
            walk.open()
            return None
        if caches.pruned_from(caches.cache_in(kwargs)) is None:
            return None
        return args, narrow_later_forward(self.text, kwargs)

    def encode(self, original: Callable, modality: str, args: tuple, kwargs: dict) -> Any:
        """The family's own feature call, observed; facts ride on its output and on the forward that is under way."""
        records: dict[int, list[Record]] = {}
        with _observing(self.family.tower(self.base), self.needs.vision_layers, records):
            output = original(*args, **kwargs)
        pixels = kwargs.get(_PIXELS[modality], args[0] if args else None)
        sizes = kwargs.get(f"{modality}_grid_thw", args[1] if len(args) > 1 and modality == "image" else None)
        facts = PictureFacts(pixels, sizes, self._tower_rows(records))
        if not isinstance(output, tuple):
            output.mmaccel_facts = facts
        if self._pending is not None:
            self._pending["facts"] = facts
        return output

    def _tower_rows(self, records: dict[int, list[Record]]) -> dict[int, list[Tensor]]:
        """Per observed tower layer, per picture (or window) [H, n]: the CLS row, or the mean row without CLS."""
        rows: dict[int, list[Tensor]] = {}
        for layer, calls in records.items():
            rows[layer] = []
            for record in calls:
                if self.family.cls_index is None:
                    score = column_means(record)  # [N, H, n]
                else:
                    at = torch.full((len(record.query), 1), self.family.cls_index, device=record.query.device)
                    score = attention_rows(record, at, None)[:, :, 0]  # [N, H, n]
                rows[layer].extend(score)
        return rows


_PIXELS = {"image": "pixel_values", "video": "pixel_values_videos"}


def _facts_in(outputs: Any) -> PictureFacts | None:
    """The facts that ride on pre-encoded features; features encoded outside the block carry only themselves."""
    if not isinstance(outputs, dict):
        return None
    present = [features for features in outputs.values() if features is not None]
    if not present:
        return None
    return getattr(present[0], "mmaccel_facts", PictureFacts(None, None, {}))


@contextmanager
def _observing(modules: list[nn.Module], layers: tuple[int, ...], into: dict[int, list[Record]]) -> Iterator[None]:
    """Records every attention call of the asked tower layers; windowed towers call once per window."""
    if not layers:
        yield
        return
    layer, rest = layers[0], layers[1:]
    calls = into.setdefault(layer, [])
    with recording(modules[layer], calls.append), _observing(modules, rest, into):
        yield


@contextmanager
def attach(
    model: Any,
    pruner: Pruner | Callable[[Station], Any],
    *,
    layer: int | None = None,
    positions: str | None = None,
) -> Iterator[Attachment]:
    """Prunes `model` for the time of the block.

    pruner: a Pruner, or a function Station → Selection (or keep [B, q]) with `layer`.
    positions: "original" or "compact"; None takes the pruner's own default (original where M-RoPE refuses compact).
    Raises for an unsupported family, a layer beyond the depth, and a model that has a pruner attached already.
    """
    if not isinstance(pruner, Pruner):
        if layer is None:
            raise ValueError(
                "layer: got None, valid with a function is the decoder layer in front of which it is asked"
            )
        pruner = FunctionPruner(pruner, layer)
    elif layer is not None:
        raise ValueError("layer: only valid with a bare function; a Pruner knows its stations")
    if positions is None:
        positions = "original" if family_of(model).rope == "mrope" else pruner.positions
    attachment = Attachment(model, pruner, positions)
    if any(hasattr(wrapped, "mmaccel") for wrapped in vars(attachment.base).values()):
        raise RuntimeError("attach: this model has a pruner attached already; leave that block first, or use a Chain")
    handles = [
        model.register_forward_pre_hook(attachment.outer_forward, with_kwargs=True),
        attachment.base.register_forward_pre_hook(attachment.base_forward, with_kwargs=True),
        attachment.text.register_forward_pre_hook(attachment.text_forward, with_kwargs=True),
    ]
    wrapped = [name for name in ("get_image_features", "get_video_features") if hasattr(attachment.base, name)]
    own = {name: vars(attachment.base)[name] for name in wrapped if name in vars(attachment.base)}  # others' wraps
    for name in wrapped:
        _wrap(attachment, name)
    try:
        yield attachment
    finally:
        for handle in handles:
            handle.remove()
        for name in wrapped:
            delattr(attachment.base, name)
        vars(attachment.base).update(own)


def _wrap(attachment: Attachment, name: str) -> None:
    original = getattr(attachment.base, name)
    modality = name.split("_")[1]

    @functools.wraps(original)  # generate reads the signature to know which inputs to hand over
    def encode(*args: Any, **kwargs: Any) -> Any:
        return attachment.encode(original, modality, args, kwargs)

    encode.mmaccel = True  # type: ignore[attr-defined]
    setattr(attachment.base, name, encode)
