"""How much the target looks at the pictures while it answers: one layer's attention on visual columns, step by step.

Knows one attention module and the slots its cache layer holds of the prompt. Does not know drafts or pruners: what a
pruner took away from that layer is not there to be looked at.
"""

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from mmaccel.cache import columns
from mmaccel.observe import Record, attention_rows, recording


class Look:
    """`with look.step(): model(…)`, then `share(place)`."""

    def __init__(self, model: Any, layer: int) -> None:
        layers = model.get_decoder().layers
        if not 0 <= layer < len(layers):
            raise ValueError(f"layer: got {layer}, valid are 0 … {len(layers) - 1}")
        self.layer, self.module = layer, layers[layer].self_attn
        self.record: Record | None = None
        self.visual = torch.empty(0, 0, dtype=torch.bool)

    def prompt(self, cache: Any, visual: Tensor) -> None:
        """visual: [B, N] by logical column, after the prefill."""
        held = columns(cache, self.layer)  # [B, P] logical columns of the slots, −1 = filler
        self.visual = visual.gather(1, held.clamp(min=0)) & (held >= 0)  # [B, P]

    def step(self) -> AbstractContextManager[None]:
        self.record = None
        return recording(self.module, self._keep)

    def _keep(self, record: Record) -> None:
        self.record = record

    def share(self, place: Tensor) -> Tensor:
        """[B] of the attention of the step's columns at place [B], the part on pictures, mean over heads."""
        assert self.record is not None
        queries, keys = self.record.query.shape[2], self.record.key.shape[2]
        order = torch.arange(keys, device=place.device)
        visible = (order <= keys - queries + place[:, None])[:, None]  # [B, 1, m] where the backend got no 4-D mask
        rows = attention_rows(self.record, place[:, None], visible)  # [B, H, 1, m]
        on_pictures = rows[:, :, 0, : self.visual.shape[1]].masked_fill(~self.visual[:, None], 0.0)
        return on_pictures.sum(-1).mean(1)
