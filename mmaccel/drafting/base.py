"""The drafting contract: a Draft of tokens that hang on one another, and the head that proposes it.

Knows tokens, parents and what a head is shown. Does not know caches, masks, or how a draft is verified.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn

PADDING = -2  # parent of a node that is not there
ROOT = -1  # parent of a child of the last committed token


@dataclass(frozen=True)
class Draft:
    """Per row a tree of proposed tokens, parents before children; a chain is parent = -1, 0, 1, …

    tokens: [B, t] long (t may be 0).  parent: [B, t] long, -1 = child of the last committed token, -2 = padding.
    q: [B, t, V] the distribution each token was *sampled* from, given its earlier siblings; None = picked, not sampled.
    """

    tokens: Tensor
    parent: Tensor
    q: Tensor | None = None

    def __post_init__(self) -> None:
        if self.tokens.ndim != 2 or self.parent.shape != self.tokens.shape:
            got = f"tokens {tuple(self.tokens.shape)}, parent {tuple(self.parent.shape)}"
            raise ValueError(f"Draft: got {got}, valid is [B, t] for both")
        if self.q is not None and self.q.shape[:2] != self.tokens.shape:
            raise ValueError(f"Draft: got q {tuple(self.q.shape)}, valid is [{self.tokens.shape[0]}, {self.size}, V]")

    @classmethod
    def empty(cls, rows: int, device: Any = None) -> "Draft":
        none = torch.empty(rows, 0, dtype=torch.long, device=device)
        return cls(none, none)

    @classmethod
    def chain(cls, tokens: Tensor, q: Tensor | None = None) -> "Draft":
        """tokens [B, t], each the child of the one before."""
        order = torch.arange(-1, tokens.shape[1] - 1, device=tokens.device)
        return cls(tokens, order.expand_as(tokens), q)

    @property
    def size(self) -> int:
        return self.tokens.shape[1]

    @cached_property
    def sees(self) -> Tensor:
        """[B, 1+t, 1+t] row i sees column j: j is i or one of its ancestors; index 0 is the last committed token."""
        B, t = self.tokens.shape
        reach = torch.eye(1 + t, device=self.tokens.device).repeat(B, 1, 1)
        reach[:, 1:].scatter_(2, (self.parent + 1).clamp(min=0)[..., None], (self.parent >= ROOT).float()[..., None])
        reach.diagonal(dim1=1, dim2=2).fill_(1.0)
        for _ in range(t.bit_length()):  # each square doubles the reach: log₂ t products instead of t gathers
            reach = (reach @ reach).clamp_(max=1.0)
        return reach > 0

    @cached_property
    def real(self) -> Tensor:
        """[B, t] nodes that hang on the last committed token; the rest is padding."""
        return self.sees[:, 1:, 0]

    @cached_property
    def depth(self) -> Tensor:
        """[B, 1+t] levels below the last committed token (0 for itself and for padding)."""
        return (self.sees.sum(2) - 1).clamp(min=0)


@dataclass(frozen=True)
class Seen:
    """Columns that reached the end, in order, right-aligned by `valid`; "next token" means the next of them.

    ids: [B, m].  position: [B, m], or [axes, B, m] as the model takes them.  valid: [B, m] bool, or None where all are.
    hidden: [B, m, D] after the final norm.  taps: what enters the head's layers, [B, m, D] each.  embeds: [B, m, D]
    what entered the first layer.  visual: [B, m] bool.  These four are None where no head reads them.  looked: [B] the
    share of the last column's attention that was on pictures, in steps of a head that `looks`.
    """

    ids: Tensor
    position: Tensor
    valid: Tensor | None = None
    hidden: Tensor | None = None
    taps: tuple[Tensor, ...] = ()
    embeds: Tensor | None = None
    visual: Tensor | None = None
    looked: Tensor | None = None

    def select(self, rows: Tensor) -> "Seen":
        def of(x: Tensor | None) -> Tensor | None:
            return None if x is None else x[rows]

        taps = tuple(tap[rows] for tap in self.taps)
        position = self.position[..., rows, :]
        return Seen(
            self.ids[rows], position, of(self.valid), of(self.hidden), taps, of(self.embeds), of(self.visual),
            of(self.looked),
        )  # fmt: skip

    def where(self, kept: Tensor) -> "Seen":
        """The columns [B, m] that are kept, to the right in order; the others stand here no more."""
        order, valid = packed(kept & self.whole)

        def of(x: Tensor | None) -> Tensor | None:
            if x is None:
                return None
            return x.gather(1, order) if x.ndim == 2 else x.gather(1, order[..., None].expand(-1, -1, x.shape[2]))

        position = self.position.expand(*self.position.shape[:-2], len(order), -1)
        position = position.gather(-1, order.expand(*position.shape[:-1], -1))
        taps = tuple(tap for tap in map(of, self.taps) if tap is not None)
        return Seen(
            self.ids.gather(1, order), position, valid, of(self.hidden), taps, of(self.embeds), of(self.visual),
            self.looked,
        )  # fmt: skip

    def to(self, device: Any) -> "Seen":
        def at(x: Tensor | None) -> Tensor | None:
            return None if x is None else x.to(device)

        taps = tuple(tap.to(device) for tap in self.taps)
        return Seen(
            self.ids.to(device), self.position.to(device), at(self.valid), at(self.hidden), taps, at(self.embeds),
            at(self.visual), at(self.looked),
        )  # fmt: skip

    def then(self, other: "Seen") -> "Seen":
        """These columns and the others behind them."""

        def both(one: Tensor | None, two: Tensor | None) -> Tensor | None:
            return None if one is None or two is None else torch.cat([one, two], 1)

        valid = None
        if self.valid is not None or other.valid is not None:
            valid = torch.cat([part.whole for part in (self, other)], 1)
        return Seen(
            torch.cat([self.ids, other.ids], 1), torch.cat([self.position, other.position], -1), valid,
            both(self.hidden, other.hidden), tuple(torch.cat(pair, 1) for pair in zip(self.taps, other.taps)),
            both(self.embeds, other.embeds), both(self.visual, other.visual), other.looked,
        )  # fmt: skip

    @property
    def whole(self) -> Tensor:
        """[B, m] `valid`, written out."""
        return torch.ones_like(self.ids, dtype=torch.bool) if self.valid is None else self.valid


def packed(kept: Tensor) -> tuple[Tensor, Tensor]:
    """(places [B, k] of the kept columns of [B, m], to the right in order; [B, k] which of them are)."""
    most = int(kept.sum(1).max())
    order = kept.to(torch.int8).argsort(dim=1, stable=True)[:, kept.shape[1] - most :]
    return order, kept.gather(1, order)


@dataclass(frozen=True)
class Loss:
    """total: the scalar to go down.  sums: name → (sum, count), divided once at the end of whatever is averaged."""

    total: Tensor
    sums: dict[str, tuple[Tensor, Tensor]]


def image_token(config: Any) -> int | None:
    """The id that stands at a picture's columns."""
    return getattr(config, "image_token_id", getattr(config, "image_token_index", None))


@dataclass(frozen=True)
class Target:
    """What a head may use of the model it drafts for."""

    embed: nn.Module
    logits: nn.Module
    width: int
    depth: int
    vocabulary: int
    image: int | None = None  # the id that stands at a picture's columns

    def says(self, hidden: Tensor) -> Tensor:
        """[…, V] fp32 logits of hidden states of whatever precision."""
        return self.logits(hidden.to(self.dtype)).float()

    @property
    def device(self) -> torch.device:
        return self.embed.weight.device  # type: ignore[union-attr, return-value]

    @property
    def dtype(self) -> torch.dtype:
        return self.embed.weight.dtype  # type: ignore[union-attr, return-value]

    @classmethod
    def of(cls, model: Any) -> "Target":
        text = model.config.get_text_config(decoder=True)
        return cls(
            model.get_input_embeddings(),
            model.get_output_embeddings(),
            text.hidden_size,
            text.num_hidden_layers,
            text.vocab_size,
            image_token(model.config),
        )


class DraftState(ABC):
    """One head's memory of one batch of conversations."""

    @abstractmethod
    def fork(self) -> "DraftState": ...

    @abstractmethod
    def select(self, rows: Tensor) -> "DraftState": ...


class DraftHead(nn.Module, ABC):
    """Proposes what the model may say next. Holds weights, never a conversation: that lives in the DraftState.

    shape: what `propose` may return. A "chain" is verified with the ordinary causal mask and runs on every backend;
    a "tree" needs a 4-D mask; "none" is never verified.
    watches: whether it is shown hidden states; then only the columns that reached the end are shown at all.
    taps: the library's hidden_states indices that it reads; 0 is what enters the first layer.
    looks: the layer whose attention on pictures it wants to know after every step.
    pruner: asked at the prompt which columns this head is shown; the target keeps them all.
    """

    shape: Literal["none", "chain", "tree"] = "tree"
    watches: bool = False
    taps: tuple[int, ...] = ()
    looks: int | None = None
    pruner: Any = None

    def fits(self, width: int, vocabulary: int) -> None:
        """Raises ValueError where it was not made for such a target; asked before the target's weights are read."""

    @abstractmethod
    def start(self, target: Target, rows: int) -> DraftState:
        """A fresh state for `rows` conversations."""

    def observe(self, state: DraftState, seen: Seen) -> None:
        """Columns the model has verified, in order: first the prompt, then every step's accepted ones."""

    @abstractmethod
    def propose(self, state: DraftState, token: Tensor, position: Tensor, limit: int, sampler: Any) -> Draft:
        """A draft below `token` [B], whose column is not in the cache yet, of at most `limit` levels (may be 0).

        position: [B, 1] or [axes, B, 1] of that token.
        """

    def loss(self, seen: Seen, answer: Tensor, target: Target, **dials: Any) -> Loss:
        """What training lowers. answer: [B, m] bool, columns whose tokens the target says."""
        raise ValueError(f"{type(self).__name__} has no weights to train")

    def forward(self, *args: Any, **kwargs: Any) -> Loss:
        """The loss, so that what wraps a module for several processes sees the call."""
        return self.loss(*args, **kwargs)


class Stateless(DraftState):
    """Of a head that remembers nothing."""

    def fork(self) -> "Stateless":
        return self

    def select(self, rows: Tensor) -> "Stateless":
        return self


class EmptyState(DraftState):
    def __init__(self, nothing: Draft) -> None:
        self.nothing = nothing

    def fork(self) -> "EmptyState":
        return self

    def select(self, rows: Tensor) -> "EmptyState":
        return EmptyState(Draft.empty(len(rows), self.nothing.tokens.device))


class NoDraft(DraftHead):
    """The null head: speculation with an empty draft is plain decoding."""

    shape = "none"

    def start(self, target: Target, rows: int) -> EmptyState:
        return EmptyState(Draft.empty(rows, target.embed.weight.device))  # type: ignore[union-attr]

    def propose(self, state: DraftState, token: Tensor, position: Tensor, limit: int, sampler: Any) -> Draft:
        assert isinstance(state, EmptyState)
        return state.nothing
