"""The points that draft: nothing attached and every point of the method, again with each draft head beside them.

Knows points and nodes. Does not know heads or models. A drafted point's twin is the same point without the draft: it
must say the same, and its time is what drafting is measured against.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mmaccel.jobs.point import BASELINE, JOINED, Point

NONE, WHOLE, ALL = "none", "keep_all", "all"


def check_heads(heads: Any) -> None:
    listed = isinstance(heads, Sequence) and not isinstance(heads, str) and all(isinstance(x, str) for x in heads)
    if heads is not None and heads != ALL and not (listed and heads):
        raise ValueError(f"job.heads: got {heads!r}, valid are null, all, and a list of kinds, e.g. [caption]")


def with_drafts(
    points: Sequence[Point], config: Mapping[str, Any], method: str, choice: str, heads: Any = None
) -> list[Point]:
    """choice: what draft=… named.  heads: those made for the model draft too, on all kinds of question or these.

    Each drafted point stands right behind its twin; a pruner that keeps all has none.
    """
    own = dict(config.get("heads") or {}) if heads is not None else {}
    typed: dict[str, Any] = dict(config.get("drafts") or {})
    if choice != NONE:
        typed = {choice: config["draft"], **typed}
    kinds = None if heads in (None, ALL) else tuple(heads)
    named = {name: (node, kinds) for name, node in own.items()} | {name: (node, None) for name, node in typed.items()}
    found: list[Point] = []
    for point in points:
        found.append(point)
        if point.name == BASELINE or (method != WHOLE and point.labels()["pruner"] == method):
            found += [
                replace(point, name=f"{point.name}{JOINED}{name}", draft=(name, node), kinds=asked)
                for name, (node, asked) in named.items()
            ]
    return found


def that_are_asked(points: Sequence[Point], benchmark: Any) -> list[Point]:
    """Without those that wait for kinds of question which the benchmark, where it says what it asks, does not ask."""
    asked = getattr(benchmark, "asked", None)
    return [point for point in points if point.kinds is None or asked is None or set(point.kinds) & set(asked)]
