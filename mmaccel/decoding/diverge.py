"""Where two answers to one prompt part, and whether the target itself had a choice there.

In half precision a forward over many columns rounds otherwise than many forwards over one: two tokens whose logits are
a rounding apart may change places and nothing is wrong. What is wrong parts where one of them is clearly ahead.
Knows a model's call. Does not know drafts.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Divergence:
    """place: of the first new token that differs.  gap: between the logits of the two tokens there, from one forward
    over everything before.  step: one step of the target's precision at the larger of the two."""

    place: int
    gap: float
    step: float

    def tie(self, steps: float = 4.0) -> bool:
        """Whether a few roundings explain it."""
        return self.gap <= steps * self.step


@torch.no_grad()
def divergence(model: Any, inputs: Mapping[str, Any], one: Sequence[int], two: Sequence[int]) -> Divergence | None:
    """inputs: of one prompt.  one, two: new tokens; None where they agree as far as both go."""
    place = next((at for at, (a, b) in enumerate(zip(one, two)) if a != b), None)
    if place is None:
        return None
    ids = torch.cat([inputs["input_ids"], inputs["input_ids"].new_tensor([list(one[:place])])], 1)
    types = {name: grown(x, place) for name, x in inputs.items() if name.endswith("token_type_ids")}
    given = {**inputs, **types, "input_ids": ids, "attention_mask": torch.ones_like(ids)}
    logits = model(**given, logits_to_keep=1).logits[0, -1].float()
    a, b = float(logits[one[place]]), float(logits[two[place]])
    size = max(abs(a), abs(b), torch.finfo(model.dtype).tiny)
    return Divergence(place, abs(a - b), torch.finfo(model.dtype).eps * 2 ** math.floor(math.log2(size)))


def grown(types: torch.Tensor, more: int) -> torch.Tensor:
    """Token types [1, n] with those of `more` tokens of text behind them."""
    return torch.cat([types, types.new_zeros(1, more)], 1)
