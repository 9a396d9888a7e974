"""Medusa, Cai et al. 2024, https://arxiv.org/abs/2401.10774: one small head per token ahead, all from one hidden state.

Head i reads the last hidden state h_t (the one that already said x_{t+1}) and guesses x_{t+2+i}: levels do not know one
another, so that the draft is a product of their choices. Every block of every head has its own weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mmaccel.drafting.base import Draft, DraftHead, DraftState, Loss, Seen, Target
from mmaccel.drafting.trees import Shape, product


class Block(nn.Module):
    """x + SiLU(W x + b), W beginning at 0."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        nn.init.zeros_(self.linear.weight)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.silu(self.linear(x))


@dataclass
class Last(DraftState):
    """hidden: [B, D] of each row's last committed column."""

    hidden: Tensor

    def fork(self) -> "Last":
        return replace(self)

    def select(self, rows: Tensor) -> "Last":
        return Last(self.hidden[rows])


class Medusa(DraftHead):
    """heads: how many tokens ahead.  layers: residual blocks of each.  tree: paths of ranked choices, or null for
    `widths`: how many choices of each level hang on the first choices above (null = 4, 3, 2, 1, …).
    own_head: an output matrix of its own for each head, else the target's.
    """

    shape = "tree"
    watches = True

    def __init__(
        self, width: int, vocabulary: int, heads: int = 4, layers: int = 1, own_head: bool = True,
        widths: Sequence[int] | None = None, tree: Sequence[Sequence[int]] | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.tree = Shape.of(tree) if tree else Shape.widths(widths or [max(4 - level, 1) for level in range(heads)])
        if self.tree.levels > heads:
            raise ValueError(f"tree: got {self.tree.levels} levels, valid are at most heads = {heads}")
        self.width, self.vocabulary = width, vocabulary
        self.blocks = nn.ModuleList(nn.Sequential(*[Block(width) for _ in range(layers)]) for _ in range(heads))
        outputs = [nn.Linear(width, vocabulary, bias=False) for _ in range(heads)] if own_head else []
        self.outputs = nn.ModuleList(outputs)
        self.target: Target | None = None

    def start(self, target: Target, rows: int) -> Last:
        self.fits(target.width, target.vocabulary)
        self.target = target
        return Last(torch.zeros(rows, target.width, device=target.device, dtype=target.dtype))

    def fits(self, width: int, vocabulary: int) -> None:
        if self.width != width:
            raise ValueError(f"medusa: got a head of width {self.width}, the target's is {width}")
        if len(self.outputs) and self.vocabulary != vocabulary:
            raise ValueError(f"medusa: got a head of {self.vocabulary} tokens, the target has {vocabulary}")

    def observe(self, state: DraftState, seen: Seen) -> None:
        assert isinstance(state, Last)
        assert seen.hidden is not None
        last = seen.hidden[:, -1]  # right-aligned: a row with any new column has it there
        state.hidden = last if seen.valid is None else torch.where(seen.valid[:, -1:], last, state.hidden)

    def guess(self, hidden: Tensor, head: int) -> Tensor:
        """[…, V] logits of the token head + 2 places on."""
        x = self.blocks[head](hidden.to(next(self.blocks.parameters()).dtype))
        if len(self.outputs):
            return self.outputs[head](x)
        assert self.target is not None
        return self.target.says(x)

    def propose(self, state: DraftState, token: Tensor, position: Tensor, limit: int, sampler: Any) -> Draft:
        assert isinstance(state, Last)
        shape = self.tree.cut(limit)
        levels = range(shape.levels)
        return product(
            shape, [self.guess(state.hidden, d).topk(shape.choices(d + 1)).indices for d in levels] or [token[:, None]]
        )

    def loss(self, seen: Seen, answer: Tensor, target: Target, decay: float = 0.8) -> Loss:  # type: ignore[override]
        """Cross entropy of every head with the answer's own tokens, head i weighted decay^i."""
        self.target = target
        assert seen.hidden is not None
        sums: dict[str, tuple[Tensor, Tensor]] = {}
        total = seen.hidden.new_zeros((), dtype=torch.float32)
        for head in range(len(self.blocks)):
            ahead = head + 2
            wanted, known = seen.ids[:, ahead:], answer[:, ahead:]
            logits = self.guess(seen.hidden[:, :-ahead][known], head).float()  # [k, V]
            each = F.cross_entropy(logits, wanted[known], reduction="none")
            count = known.sum()
            sums[f"loss_{head}"] = (each.sum().detach(), count)
            sums[f"right_{head}"] = ((logits.argmax(-1) == wanted[known]).sum(), count)
            total = total + decay**head * each.sum() / count.clamp(min=1)
        return Loss(total, sums)
