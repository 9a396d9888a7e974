"""What the target feels about whole conversations: the columns that reach its end, and which of them are its answers.

Knows a loaded VLM, attach and what a head is shown. Does not know losses or optimisers.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmaccel.attach import attach
from mmaccel.cache import cache_in
from mmaccel.decoding.watch import Watch
from mmaccel.drafting.base import Seen, image_token
from mmaccel.training.data import Message


@dataclass(frozen=True)
class Felt:
    """seen: as a head is shown it.  answer: [B, m] bool, tokens the target says.  cut: rows whose whole answer lay
    beyond the longest length."""

    seen: Seen
    answer: Tensor
    cut: int = 0

    def to(self, device: torch.device) -> "Felt":
        return Felt(self.seen.to(device), self.answer.to(device), self.cut)


@torch.no_grad()
def felt(
    vlm: Any, conversations: Sequence[list[Message]], taps: Sequence[int] = (), pruner: Any | None = None,
    longest: int | None = None,
) -> Felt:  # fmt: skip
    """One forward of the target over `conversations`, which end with their answers.

    With a pruner each conversation runs alone: its anchor is the last token before the answer, which is elsewhere in
    every row.  longest: columns beyond it are left out.
    """
    if pruner is not None and len(conversations) > 1:
        return stacked([felt(vlm, [one], taps, pruner, longest) for one in conversations])
    inputs = vlm.inputs(conversations, answers=True)
    watch, keep = Watch(vlm.model, taps), {}
    if pruner is not None:
        first = int(inputs.answer[0].int().argmax())
        keep = {"logits_to_keep": inputs.answer.shape[1] - first + 1}
    with nullcontext() if pruner is None else attach(vlm.model, pruner), watch:
        outputs = vlm.model(**inputs, use_cache=True, **(keep or {"logits_to_keep": 1}))
    mask = inputs["attention_mask"]
    position = watch.position if watch.position is not None else (mask.long().cumsum(1) - 1).clamp(min=0)
    seen, at = watch.prompt(cache_in(outputs), inputs["input_ids"], position, mask, image_token(vlm.model.config))
    answer = inputs.answer.gather(1, at) & seen.whole
    return shortened(seen, answer, longest)


def shortened(seen: Seen, answer: Tensor, longest: int | None) -> Felt:
    """Columns whose place in their own row is below `longest`."""
    if longest is None:
        return Felt(seen, answer)
    place = seen.whole.long().cumsum(1)  # [B, m] from 1
    kept = seen.whole & (place <= longest)
    left = answer & kept
    cut = int((answer.any(1) & ~left.any(1)).sum())
    return Felt(Seen(seen.ids, seen.position, kept, seen.hidden, seen.taps, seen.embeds, seen.visual), left, cut)


def stacked(parts: Sequence[Felt]) -> Felt:
    """Rows of different lengths as one batch, padded on the left."""
    longest = max(part.seen.ids.shape[1] for part in parts)

    def wide(x: Tensor, dim: int = 1) -> Tensor:
        short = longest - x.shape[dim]
        shape = list(x.shape)
        shape[dim] = short
        return torch.cat([x.new_zeros(shape), x], dim) if short else x

    def all_of(name: str) -> Tensor | None:
        values = [getattr(part.seen, name) for part in parts]
        return None if any(value is None for value in values) else torch.cat([wide(value) for value in values])

    ids = torch.cat([wide(part.seen.ids) for part in parts])
    position = torch.cat([wide(part.seen.position, -1) for part in parts], -2)
    valid = torch.cat([wide(part.seen.whole) for part in parts])
    taps = tuple(torch.cat([wide(tap) for tap in taps]) for taps in zip(*[part.seen.taps for part in parts]))
    seen = Seen(ids, position, valid, all_of("hidden"), taps, all_of("embeds"), all_of("visual"))
    return Felt(seen, torch.cat([wide(part.answer) for part in parts]), sum(part.cut for part in parts))
