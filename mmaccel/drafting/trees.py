"""Trees of drafted tokens: fixed shapes, products of independent choices, and trees grown by cumulative probability.

Knows tokens, parents and log-probabilities. Does not know heads or models. All rows of a batch at once, parents before
children everywhere.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmaccel.drafting.base import PADDING, ROOT, Draft

Path = tuple[int, ...]  # the rank of the choice at every level, from the first below the root


@dataclass(frozen=True)
class Shape:
    """A fixed tree. parent: [t] node index or −1.  depth: [t] from 1.  rank: [t] which choice of its level."""

    parent: tuple[int, ...]
    depth: tuple[int, ...]
    rank: tuple[int, ...]

    @classmethod
    def of(cls, paths: Sequence[Sequence[int]]) -> "Shape":
        """Paths as in the published configurations; every prefix of a path must be a path too."""
        ordered: list[Path] = sorted({tuple(path) for path in paths}, key=lambda path: (len(path), path))
        index: dict[Path, int] = {path: at for at, path in enumerate(ordered)}
        missing = [path for path in ordered if len(path) > 1 and path[:-1] not in index]
        if missing or not all(ordered):
            got = list(map(list, missing)) or [[]]
            raise ValueError(f"tree: got {got} without the node above, valid are paths whose beginnings are paths too")
        parent = tuple(index[path[:-1]] if len(path) > 1 else ROOT for path in ordered)
        return cls(parent, tuple(map(len, ordered)), tuple(path[-1] for path in ordered))

    @classmethod
    def widths(cls, widths: Sequence[int]) -> "Shape":
        """A chain of first choices with `widths[d] − 1` siblings beside it at depth d + 1."""
        wrong = [width for width in widths if width < 1]
        if wrong:
            raise ValueError(f"widths: got {list(widths)}, valid are whole numbers from 1 on")
        return cls.of([(0,) * depth + (rank,) for depth, width in enumerate(widths) for rank in range(width)])

    def cut(self, limit: int) -> "Shape":
        """Its first `limit` levels."""
        size = sum(depth <= limit for depth in self.depth)
        return Shape(self.parent[:size], self.depth[:size], self.rank[:size])

    def paths(self) -> list[Path]:
        found: list[Path] = []
        for parent, rank in zip(self.parent, self.rank):
            found.append((*(found[parent] if parent >= 0 else ()), rank))
        return found

    @property
    def levels(self) -> int:
        return max(self.depth, default=0)

    def choices(self, level: int) -> int:
        """How many choices of a level (from 1) some node takes."""
        return 1 + max((rank for rank, depth in zip(self.rank, self.depth) if depth == level), default=-1)


def product(shape: Shape, choices: Sequence[Tensor]) -> Draft:
    """Levels that do not depend on one another (Medusa): choices[d] [B, k] are the ranked tokens of depth d + 1."""
    rows = choices[0].shape[0] if choices else 1
    if not shape.parent:
        return Draft.empty(rows, choices[0].device if choices else None)
    tokens = [choices[depth - 1][:, rank] for depth, rank in zip(shape.depth, shape.rank)]
    return Draft(torch.stack(tokens, 1), parents(shape, tokens[0].device).expand(rows, -1))


@functools.cache
def parents(shape: Shape, device: torch.device) -> Tensor:
    """[t] on that device: made once, for a copy to it would make every step wait."""
    return torch.tensor(shape.parent, device=device)


@dataclass(frozen=True)
class Frontier:
    """The nodes that go on growing. pool: [B, k] their place in the pool.  score: [B, k] cumulative log-probability."""

    pool: Tensor
    tokens: Tensor  # [B, k]
    score: Tensor


class Pool:
    """A tree grown level by level: every frontier node offers its best children, the best of all go on.

    https://arxiv.org/abs/2406.16858: cumulative log-probability is the guess of a node's acceptance. A node's ancestors
    score at least as high, so that the best nodes of the pool are a tree.
    """

    def __init__(self, width: int, names: Tensor | None = None) -> None:
        """names: [V] the token of each place of logp, None = the place itself."""
        self.width, self.names = width, names
        self.tokens: list[Tensor] = []  # levels of [B, c]
        self.scores: list[Tensor] = []
        self.parents: list[Tensor] = []  # [B, c] place in the pool, −1 = root
        self.size = 0

    def offer(self, logp: Tensor, frontier: Frontier | None = None) -> Frontier:
        """Children from logp [B, k, V] of the frontier's k nodes ([B, 1, V] of the root); returns the next frontier."""
        best = logp.topk(min(self.width, logp.shape[-1]), -1)  # [B, k, w]
        above = logp.new_zeros(*logp.shape[:2]) if frontier is None else frontier.score
        score = (best.values + above[..., None]).flatten(1)  # [B, k·w]
        tokens = (best.indices if self.names is None else self.names[best.indices]).flatten(1)
        root = torch.full_like(tokens[:, :1], ROOT)
        held = root if frontier is None else frontier.pool
        parents = held[..., None].expand_as(best.indices).flatten(1)
        self.tokens.append(tokens)
        self.scores.append(score)
        self.parents.append(parents)
        chosen = score.topk(min(self.width, score.shape[1]), 1)
        found = Frontier(self.size + chosen.indices, tokens.gather(1, chosen.indices), chosen.values)
        self.size += tokens.shape[1]
        return found

    def best(self, nodes: int) -> Draft:
        """The `nodes` best of the pool as a draft; a pool that holds fewer gives all."""
        tokens, scores, parents = (torch.cat(parts, 1) for parts in (self.tokens, self.scores, self.parents))
        # ties go to the earlier node, which is never a descendant of the later: a parent is not left out for its child
        order = scores.argsort(dim=1, descending=True, stable=True)[:, : min(nodes, self.size)]
        order = order.sort(1).values  # [B, t] in the pool's order: parents first
        above = parents.gather(1, order)  # [B, t]
        place = torch.full_like(parents, PADDING).scatter_(1, order, torch.arange(order.shape[1], device=order.device)
                                                           .expand_as(order))  # fmt: skip
        parent = torch.where(above == ROOT, above, place.gather(1, above.clamp(min=0)))
        return Draft(tokens.gather(1, order), parent)
