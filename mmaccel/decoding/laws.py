"""How sure the target is of what it says: the entropy of the law that each plainly decoded token was taken from.

The logits are kept by reference and read after the clock has stopped. Knows tensors only.
"""

import torch
from torch import Tensor

MOST = 32_000_000  # bytes of logits that are kept; the tokens beyond are not counted


class Laws:
    def __init__(self) -> None:
        self.kept: list[tuple[Tensor, list[bool]]] = []
        self.room = MOST

    def keep(self, logits: Tensor, running: list[bool]) -> None:
        """logits: [B, V] before processors.  running: the rows that say a token of it."""
        self.room -= logits.numel() * logits.element_size()
        if self.room >= 0:
            self.kept.append((logits, list(running)))

    def entropy(self) -> tuple[float, int]:
        """(Σ nats, tokens)."""
        total, count = 0.0, 0
        for logits, running in self.kept:
            rows = torch.tensor(running, device=logits.device)
            law = torch.distributions.Categorical(logits=logits[rows].double(), validate_args=False)
            total, count = total + float(law.entropy().sum()), count + sum(running)
        return total, count
