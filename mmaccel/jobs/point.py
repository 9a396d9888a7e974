"""One point of a paired run: what it is called, what is attached at it, and what the tables print of it.

Knows pruners' nodes. Does not know the configuration it came from, nor the other points.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mmaccel import registry

BASELINE = "baseline"
BUDGET = ("ratio", "keep", "tokens", "mean_tokens")  # the dials of which one says how much stays
JOINED = " + "  # between a point's name and its draft's
CONTROL = "control "  # in front of a control that would bear the method's own name


@dataclass(frozen=True)
class Point:
    """name: as in the records. node: its pruner's yaml, None = nothing attached. at: the swept values. like: the
    method's node it is matched to on mean visual tokens. draft: a head's name and yaml, None = plain decoding. kinds:
    of the questions that it answers, None = all."""

    name: str
    node: Mapping[str, Any] | None = None
    at: tuple[tuple[str, Any], ...] = ()
    like: Mapping[str, Any] | None = None
    draft: tuple[str, Mapping[str, Any]] | None = None
    kinds: tuple[str, ...] | None = None

    def labels(self) -> dict[str, Any]:
        """What the tables print beside the measured numbers."""
        node = self.like or (self.node or {}).get("like") or self.node or {}
        plain = self.name.removeprefix(CONTROL)
        pruner = self.name[: len(self.name) - len(plain)] + plain.split(" ")[0] if self.node else None
        said = {"name": self.name, "pruner": pruner, "ratio": node.get("ratio"), "draft": None, "quantization": None}
        if self.draft is None:
            return said
        name = self.draft[0]
        return said | {"draft": name, "twin": self.name.removesuffix(JOINED + name)}

    def pruner(self, depth: int | None = None, foreign: bool = False) -> Any | None:
        """Built and, where the model's depth is known, held against it; raises ValueError for what does not fit."""
        if self.node is None:
            return None
        node = dict(self.node)
        if self.like is not None and depth is not None:
            node |= matched_budget(node, registry.instantiate(dict(self.like), foreign=foreign), depth)
        pruner = registry.instantiate(node, foreign=foreign)
        if depth is not None:
            pruner.stations(depth)
        return pruner


def matched_budget(node: Mapping[str, Any], method: Any, depth: int) -> dict[str, Any]:
    """The control's budget with which its visual tokens, averaged over the layers, equal the method's."""
    dials: dict[str, Any] = dict.fromkeys(BUDGET)
    if method.budget.mean_tokens is not None:
        return dials | {"mean_tokens": method.budget.mean_tokens}
    if method.budget.share is None:
        raise ValueError("matched: the method's budget is a number of tokens, valid are ratio, keep and mean_tokens")
    standing, total, before = 1.0, 0.0, 0
    for layer in (*method.stations(depth), depth):
        total, before = total + standing * (layer - before), layer
        standing *= method.budget.share
    first = registry.instantiate(dict(node)).stations(depth)[0]
    return dials | {"keep": (total - first) / (depth - first)}
