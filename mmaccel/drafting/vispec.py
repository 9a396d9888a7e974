"""ViSpec, Kang et al. 2025, https://arxiv.org/abs/2509.15235: an EAGLE head that takes a picture in a few slots.

A few learnt queries read all embeddings of a picture. What they find stands, but for the last, in place of the whole
picture at its last columns; the last one is what the head knows of the picture from then on: every later hidden state h
becomes img_fc([h; g]). Of several pictures each has its own slots, and what follows it knows it alone. A picture of
fewer columns than slots has as many slots as columns.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mmaccel.drafting.base import Loss, Seen, Target
from mmaccel.drafting.eagle import Eagle
from mmaccel.drafting.layer import Sizes
from mmaccel.drafting.recurrent import Entered


class Compressor(nn.Module):
    """queries: of learnt vectors that read a picture."""

    def __init__(self, sizes: Sizes, queries: int) -> None:
        super().__init__()
        wide = sizes.heads * sizes.head_dim
        self.q = nn.Parameter(torch.randn(queries, sizes.heads, sizes.head_dim) * sizes.head_dim**-0.5)
        self.k_proj = nn.Linear(sizes.width, wide, bias=sizes.qkv_bias)
        self.v_proj = nn.Linear(sizes.width, wide, bias=sizes.qkv_bias)
        self.o_proj = nn.Linear(wide, sizes.width, bias=False)

    def forward(self, embeds: Tensor, run: Tensor, runs: int) -> Tensor:
        """embeds [B, m, D] whose columns belong to picture run [B, m] (−1: to none) → [B, runs, queries, D]."""
        queries, heads, size = self.q.shape
        k, v = (proj(embeds).unflatten(-1, (heads, size)).transpose(1, 2) for proj in (self.k_proj, self.v_proj))
        own = run[:, None] == torch.arange(runs, device=run.device)[:, None]  # [B, runs, m]
        asked = self.q.repeat(runs, 1, 1).transpose(0, 1).expand(len(embeds), -1, -1, -1)  # [B, H, runs · queries, d]
        sees = own.repeat_interleave(queries, 1)[:, None]  # [B, 1, runs · queries, m]
        none = ~sees.any(-1, keepdim=True)  # a row with fewer pictures than others
        mixed = F.scaled_dot_product_attention(asked.to(k.dtype), k, v, sees | none)
        found = self.o_proj(mixed.transpose(1, 2).flatten(2))  # [B, runs · queries, D]
        return found.unflatten(1, (runs, queries))


class ViSpec(Eagle):
    """queries: slots of a picture, and one. The other fields are Eagle's; what stands for pictures is `compressed`."""

    image_inputs = ("compressed",)

    def __init__(
        self, sizes: Sizes, *, queries: int = 2, fc_bias: bool = False, levels: int = 5, beam: int = 8,
        nodes: int = 24, image_input: str = "compressed", rope: str = "sequential",
    ) -> None:  # fmt: skip
        if queries < 1:
            raise ValueError(f"queries: got {queries}, valid are whole numbers from 1 on")
        dials = {"levels": levels, "beam": beam, "nodes": nodes, "image_input": image_input, "rope": rope}
        super().__init__(sizes, fc_bias=fc_bias, **dials)  # type: ignore[arg-type]
        self.queries, width = queries, sizes.width
        self.imadpt = Compressor(sizes, queries)
        self.img_fc = nn.Linear(2 * width, width, bias=fc_bias)
        with torch.no_grad():  # at first a picture says nothing beside the hidden state
            self.img_fc.weight.copy_(torch.cat([torch.eye(width), torch.zeros(width, width)], 1))
            if self.img_fc.bias is not None:
                self.img_fc.bias.zero_()

    def enter(
        self, embeds: Tensor, hidden: Tensor, visual: Tensor | None = None, sight: Tensor | None = None
    ) -> Entered:
        hidden = hidden.to(self.fc.weight.dtype)
        if sight is None:
            sight = hidden.new_zeros(len(hidden), 1, hidden.shape[2])
        if visual is None or not bool(visual.any()):
            known = sight.expand_as(hidden)
            residual, read = self.pair(embeds, self.img_fc(torch.cat([hidden, known], -1)))
            return Entered(residual, read, None, known)
        last = visual & ~F.pad(visual[:, 1:], (0, 1))  # [B, m] the last column of each picture
        before = F.pad(last.long().cumsum(1)[:, :-1], (1, 0))  # [B, m] pictures that ended before
        runs = int(last.sum(1).max())
        run = before.masked_fill(~visual, -1)
        found = self.imadpt(embeds.to(hidden.dtype), run, runs)  # [B, runs, queries, D]
        sights = torch.cat([sight, found[:, :, -1]], 1)  # [B, 1 + runs, D]
        known = sights.gather(1, before[..., None].expand(-1, -1, hidden.shape[2]))
        residual, _ = self.pair(embeds, self.img_fc(torch.cat([hidden, known], -1)))
        slot = self.slots(visual, last)  # [B, m] from 0, −1: none
        place = (run.clamp(min=0) * self.queries + slot.clamp(min=0))[..., None].expand_as(residual)
        residual = torch.where((slot >= 0)[..., None], found.flatten(1, 2).gather(1, place), residual)
        return Entered(residual, residual, ~visual | (slot >= 0), known)

    def loss(self, seen: Seen, answer: Tensor, target: Target, **dials: Any) -> Loss:  # type: ignore[override]
        """Eagle's. A batch of text alone leaves the compressor at rest, which processes that train together may not."""
        found = super().loss(seen, answer, target, **dials)
        resting = sum((p.sum() for p in self.imadpt.parameters()), start=found.total.new_zeros(()))
        return Loss(found.total + 0.0 * resting, found.sums)

    def slots(self, visual: Tensor, last: Tensor) -> Tensor:
        """[B, m] which slot stands at a column: the last queries − 1 columns of each picture, in order."""
        m = visual.shape[1]
        at = torch.arange(m, device=visual.device)
        end = torch.where(last, at, m).flip(1).cummin(1).values.flip(1)  # [B, m] where the picture of a column ends
        back = end - at  # columns that follow in the same picture
        return torch.where(visual & (back < self.queries - 1), self.queries - 2 - back, -1)
