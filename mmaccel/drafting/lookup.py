"""Prompt lookup: the draft is what followed the last n-gram when it stood in the conversation before.

Training-free control, after https://github.com/apoorvumang/prompt-lookup-decoding. Picked, not sampled, so that it is
exact under any sampler.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mmaccel.drafting.base import Draft, DraftHead, DraftState, Seen, Target

NONE = -1  # an id that no token has: where a row is shorter than the others


@dataclass
class History(DraftState):
    """ids: [B, L] each row's own tokens, right-aligned."""

    ids: Tensor

    def fork(self) -> "History":
        return replace(self)

    def select(self, rows: Tensor) -> "History":
        return History(self.ids[rows])

    def append(self, ids: Tensor, valid: Tensor | None) -> None:
        ids = ids if valid is None else torch.where(valid, ids, NONE)
        ids = torch.cat([self.ids, ids], 1)
        order = (ids != NONE).to(torch.int8).argsort(dim=1, stable=True)  # [B, L] the holes go to the left
        self.ids = ids.gather(1, order)


class Lookup(DraftHead):
    """ngram: the longest run of last tokens that is looked for; shorter ones follow.  tokens: the draft's length."""

    shape = "chain"

    def __init__(self, ngram: int = 3, tokens: int = 8) -> None:
        super().__init__()
        for name, value in (("ngram", ngram), ("tokens", tokens)):
            if value < 1:
                raise ValueError(f"{name}: got {value}, valid are whole numbers from 1 on")
        self.ngram, self.tokens = ngram, tokens

    def start(self, target: Target, rows: int) -> History:
        return History(torch.empty(rows, 0, dtype=torch.long, device=target.device))

    def observe(self, state: DraftState, seen: Seen) -> None:
        assert isinstance(state, History)
        state.append(seen.ids, seen.valid)

    def propose(self, state: DraftState, token: Tensor, position: Tensor, limit: int, sampler: Any) -> Draft:
        assert isinstance(state, History)
        ids = torch.cat([state.ids, token[:, None]], 1)  # [B, L]
        size = min(self.tokens, limit)
        found = torch.full_like(token, NONE)  # [B] the last place of the run that matched
        for n in range(min(self.ngram, ids.shape[1] - 1), 0, -1):
            windows = ids[:, :-1].unfold(1, n, 1)  # [B, L − n, n]
            same = (windows == ids[:, None, -n:]).all(2) & (windows != NONE).all(2)
            end = torch.arange(n, ids.shape[1], device=ids.device)  # the place behind each window
            place = torch.where(same, end, NONE).amax(1)  # [B] the latest
            found = torch.where(found == NONE, place, found)
        at = found[:, None] + torch.arange(size, device=ids.device)  # [B, size]
        there = (found[:, None] != NONE) & (at < ids.shape[1])
        if not bool(there.any()):  # asks the device once, and spares it a verification of nothing
            return Draft.empty(len(token), token.device)
        tokens = ids.gather(1, at.clamp(0, ids.shape[1] - 1))
        chain = Draft.chain(torch.where(there, tokens, 0))
        return replace(chain, parent=torch.where(there, chain.parent, -2))
