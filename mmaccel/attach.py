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
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from mmaccel import cache as caches
from mmaccel.columns import Needs, Station
from mmaccel.models.family import Family, family_of
from mmaccel.observe import Record, attention_rows, column_means, recording
from mmaccel.pruning.base import FunctionPruner, Pruner
from mmaccel.station import Brought, Event, PictureFacts
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
        self.in_flight: ExitStack | None = None  # the hooks of the forward that is under way
        self._pending: dict[str, Any] | None = None  # the forward that has begun and has not reached the text model yet
        self._encoding = False
        self._check_text()
        self._check_vision()

    def _check_text(self) -> None:
        refusal = self.family.refusal(self.model.config)
        if refusal:
            raise ValueError(refusal)
        if self.positions not in POSITIONS:
            raise ValueError(f"positions: got {self.positions!r}, valid are {', '.join(POSITIONS)}")
        if self.positions == "compact" and self.family.rope == "mrope":
            raise ValueError("positions: compact is refused for M-RoPE families, valid is original")
        valid = list(range(self.depth))
        if not self.stations or list(self.stations) != [layer for layer in valid if layer in self.stations]:
            raise ValueError(f"stations: got {self.stations}, valid are increasing layers in 0 … {self.depth - 1}")
        for layer in self.needs.text_layers:
            if layer not in valid:
                raise ValueError(f"needs.text_layers: got {layer}, valid are 0 … {self.depth - 1}")
            if layer > self.stations[-1]:
                raise ValueError(f"needs.text_layers: layer {layer} runs after the last station {self.stations[-1]}")
        if "flex" in (self.text.config._attn_implementation or ""):
            raise ValueError(
                "attention: got flex, valid are sdpa, eager and flash: flex's block masks cannot be narrowed"
            )
        layer_class = type(self.text.layers[0])
        if getattr(self.text, "gradient_checkpointing", False) and layer_class.__call__ is not nn.Module.__call__:
            raise ValueError(
                "gradient checkpointing: this library runs hooks again in the backward pass; switch it off"
            )

    def _check_vision(self) -> None:
        needs, family = self.needs, self.family
        if not needs.vision_layers and not needs.vision:
            return
        kind, modules = self.model.config.model_type, family.tower(self.base)
        if needs.vision - {"cls", "mean"}:
            raise ValueError(f"needs.vision: got {sorted(needs.vision)}, built so far are cls, mean")
        if "cls" in needs.vision and family.cls_index is None:
            raise ValueError(f"needs.vision: got cls, but a {kind} tower has none; valid: mean")
        whole = family.whole_layers(self.model.config)
        valid = range(len(modules)) if whole is None else whole
        for layer in needs.vision_layers:
            if (layer + len(modules) if layer < 0 else layer) not in valid:
                raise ValueError(f"needs.vision_layers: got {layer}, valid for this {kind} are {list(valid)}")
        backend = getattr(modules[0].config, "_attn_implementation", None) or ""
        if family.packed and "flash" in backend:
            raise ValueError(
                f"needs.vision: a {kind} tower under flash mixes its pictures; load it with attention=sdpa"
            )

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
        self.clean_up()
        if pending is not None and pending["facts"]:
            facts = Brought(tuple(pending["facts"]))
            walk = EventWalk(self, pending["ids"], pending["mask"], facts, kwargs, logits)
            walk.open()
            return None
        if caches.pruned_from(caches.cache_in(kwargs)) is None:
            return None
        return args, narrow_later_forward(self, kwargs)

    def clean_up(self) -> None:
        """Takes away what an interrupted forward left: torch runs no hooks after a KeyboardInterrupt."""
        if self.in_flight is not None:
            self.in_flight.close()
            self.in_flight = None

    def generate(self, original: Callable, args: tuple, kwargs: dict) -> Any:
        config = kwargs.get("generation_config") or (args[1] if len(args) > 1 else None) or self.model.generation_config
        if kwargs.get("prefill_chunk_size") or getattr(config, "prefill_chunk_size", None):
            raise ValueError(
                "prefill_chunk_size: valid is None while a pruner is attached: it must see a prompt at once"
            )
        return original(*args, **kwargs)

    def encode(self, original: Callable, modality: str, args: tuple, kwargs: dict) -> Any:
        """The family's own feature call, observed; facts ride on its output and on the forward that is under way."""
        if self._encoding:  # a video call that hands its frames to the picture call
            return original(*args, **kwargs)
        if modality == "video" and self.needs.vision_layers:
            raise ValueError("needs.vision: got a video, built so far are pictures")
        records: dict[int, list[Record]] = {}
        self._encoding = True
        try:
            with _observing(self.family.tower(self.base), self.needs.vision_layers, records):
                output = original(*args, **kwargs)
        finally:
            self._encoding = False
        pixels = kwargs.get(_PIXELS[modality], args[0] if args else None)
        sizes = kwargs.get(f"{modality}_grid_thw", args[1] if len(args) > 1 and self.family.packed else None)
        facts = PictureFacts(pixels, sizes, self._tower_rows(records))
        if not isinstance(output, tuple):
            output.mmaccel_facts = facts
        if self._pending is not None:
            self._pending["facts"].append(facts)
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


def _facts_in(outputs: Any) -> list[PictureFacts]:
    """The facts that ride on pre-encoded features; features encoded outside the block carry only themselves."""
    if not isinstance(outputs, dict):
        return []
    present = [features for features in outputs.values() if features is not None]
    return [getattr(features, "mmaccel_facts", PictureFacts()) for features in present]


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
    A text-guided pruner's anchor is the column in front of the first logits asked for: with `logits_to_keep=n` the n-th
    from the end. With `use_cache=False` every step is a new prompt and is pruned anew, by its own last column.
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
    undo = [
        _wrap(attachment.base, name, functools.partial(attachment.encode, modality=name.split("_")[1]))
        for name in ("get_image_features", "get_video_features")
        if hasattr(attachment.base, name)
    ]
    undo.append(_wrap(model, "generate", attachment.generate))
    try:
        yield attachment
    finally:
        attachment.clean_up()
        for handle in handles:
            handle.remove()
        for restore in undo:
            restore()


def _wrap(owner: Any, name: str, around: Callable) -> Callable[[], None]:
    """Puts `around(original, args=…, kwargs=…)` in the instance's way; returns what takes it out again."""
    original, before = getattr(owner, name), vars(owner).get(name)

    @functools.wraps(original)  # generate reads the signature to know which inputs to hand over
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return around(original, args=args, kwargs=kwargs)

    def restore() -> None:
        delattr(owner, name)
        if before is not None:
            setattr(owner, name, before)

    wrapped.mmaccel = True  # type: ignore[attr-defined]
    setattr(owner, name, wrapped)
    return restore
