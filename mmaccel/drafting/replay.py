"""Synthetic acceptance: a head that knows the answer and is wrong as often as it is told to be.

What drafting costs without a head: its drafts are free, so that a run with it shows what verification alone allows.
Needs the answer beforehand; for studies, not for use.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mmaccel.drafting.base import Draft, DraftHead, DraftState, Seen, Target
from mmaccel.drafting.trees import Shape, parents


@dataclass
class Place(DraftState):
    """said: new tokens that are committed; −1 before the prompt was shown.  dice: of this conversation."""

    said: int
    dice: random.Random

    def fork(self) -> "Place":
        dice = random.Random()
        dice.setstate(self.dice.getstate())
        return replace(self, dice=dice)

    def select(self, rows: Tensor) -> "Place":
        return self.fork()


class Replay(DraftHead):
    """answer: the tokens of one answer, batch 1.  right: chance that a level's first choice is the answer's token where
    those above are.  widths: choices of each level, of which the first goes on."""

    def __init__(self, answer: Sequence[int], right: float, widths: Sequence[int] = (1, 1, 1, 1), seed: int = 0):
        super().__init__()
        if not 0 <= right <= 1:
            raise ValueError(f"right: got {right}, valid are 0 … 1")
        self.answer, self.right, self.tree, self.seed = list(answer), right, Shape.widths(widths), seed
        self.shape = "chain" if max(widths) == 1 else "tree"

    def start(self, target: Target, rows: int) -> Place:
        if rows != 1:
            raise ValueError(f"rows: got {rows}, valid is 1: it knows one answer")
        return Place(-1, random.Random(self.seed))

    def observe(self, state: DraftState, seen: Seen) -> None:
        assert isinstance(state, Place)
        state.said = 0 if state.said < 0 else state.said + seen.ids.shape[1]

    def propose(self, state: DraftState, token: Tensor, position: Tensor, limit: int, sampler: Any) -> Draft:
        assert isinstance(state, Place)
        shape = self.tree.cut(limit)
        if not shape.parent:
            return Draft.empty(1, token.device)
        true = self.answer[state.said + 1 :] + [0] * limit
        firsts = [one if state.dice.random() < self.right else one + 1 for one in true[: shape.levels]]
        tokens = [firsts[depth - 1] + 2 * rank for depth, rank in zip(shape.depth, shape.rank)]
        size = max(max(self.answer), 2) + 1
        drafted = torch.tensor([[one % size for one in tokens]], device=token.device)
        return Draft(drafted, parents(shape, token.device).expand(1, -1))
