"""A small language model as drafter, after Leviathan et al. 2023, https://arxiv.org/abs/2211.17192, drafting greedily.

It reads the conversation's text; a picture's columns it does not see. Every row has a cache of its own, cut back to
what was really said before it drafts again. Knows a callable model and the cache's functions; loads nothing.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from mmaccel.cache import adopt, cache_argument, cache_in, fork, logical_length, rollback
from mmaccel.drafting.base import Draft, DraftHead, DraftState, Seen, Target


@dataclass
class Reader:
    """One conversation as the small model holds it. said: its text so far.  fed: the ids whose keys it has cached."""

    said: list[int] = field(default_factory=list)
    fed: list[int] = field(default_factory=list)
    cache: Any = None

    def fork(self) -> "Reader":
        return Reader(list(self.said), list(self.fed), None if self.cache is None else fork(self.cache))


@dataclass
class Readers(DraftState):
    rows: list[Reader]
    image: int | None

    def fork(self) -> "Readers":
        return replace(self, rows=[row.fork() for row in self.rows])

    def select(self, rows: Tensor) -> "Readers":
        return replace(self, rows=[self.rows[at].fork() for at in rows.tolist()])


class Assistant(DraftHead):
    """model: a causal language model with the target's tokens.  tokens: how many it drafts."""

    shape = "chain"

    def __init__(self, model: Any, tokens: int = 5) -> None:
        super().__init__()
        if tokens < 1:
            raise ValueError(f"tokens: got {tokens}, valid are whole numbers from 1 on")
        self.model, self.tokens = model, tokens

    def fits(self, width: int, vocabulary: int) -> None:
        own = self.model.config.get_text_config().vocab_size
        if own != vocabulary:
            raise ValueError(f"assistant: got a model of {own} tokens, the target has {vocabulary}")

    def start(self, target: Target, rows: int) -> Readers:
        return Readers([Reader() for _ in range(rows)], target.image)

    def observe(self, state: DraftState, seen: Seen) -> None:
        assert isinstance(state, Readers)
        for row, ids, valid in zip(state.rows, seen.ids.tolist(), seen.whole.tolist()):
            row.said += [token for token, real in zip(ids, valid) if real and token != state.image]

    def propose(self, state: DraftState, token: Tensor, position: Tensor, limit: int, sampler: Any) -> Draft:
        assert isinstance(state, Readers)
        size = min(self.tokens, limit)
        if size < 1:
            return Draft.empty(len(token), token.device)
        said = [self.continued(row, last, size, token.device) for row, last in zip(state.rows, token.tolist())]
        return Draft.chain(torch.tensor(said, device=token.device))

    def continued(self, row: Reader, last: int, size: int, device: torch.device) -> list[int]:
        """The `size` likeliest next tokens, one after the other."""
        wanted = [*row.said, last]
        same = 0
        while same < min(len(row.fed), len(wanted) - 1) and row.fed[same] == wanted[same]:
            same += 1  # the last token is always run anew: its logits are what is asked for
        if row.cache is not None and same < len(row.fed):
            rollback(row.cache, same)
        row.fed, fresh, drafted = row.fed[:same], wanted[same:], []
        for _ in range(size):
            position = torch.arange(len(row.fed), len(row.fed) + len(fresh), device=device)[None]
            given = {} if row.cache is None else {cache_argument(self.model): row.cache}
            ids = torch.tensor([fresh], device=device)
            outputs = self.model(input_ids=ids, position_ids=position, use_cache=True, **given)
            if row.cache is None:
                row.cache = cache_in(outputs)
                adopt(row.cache)
            row.fed += fresh
            assert logical_length(row.cache) == len(row.fed)
            fresh = [int(outputs.logits[0, -1].argmax())]
            drafted += fresh
        return drafted
