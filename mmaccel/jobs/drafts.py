"""The points that draft: nothing attached and every point of the method, again with each draft head beside them.

Knows points and nodes. Does not know heads or models. A drafted point's twin is the same point without the draft: it
must say the same, and its time is what drafting is measured against.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mmaccel.jobs.point import BASELINE, JOINED, Point

NONE = "none"


def with_drafts(points: Sequence[Point], config: Mapping[str, Any], method: str, choice: str) -> list[Point]:
    """choice: what draft=… named. Each drafted point stands right behind its twin."""
    named: dict[str, Any] = dict(config.get("drafts") or {})
    if choice != NONE:
        named = {choice: config["draft"], **named}
    found: list[Point] = []
    for point in points:
        found.append(point)
        if point.name == BASELINE or point.labels()["pruner"] == method:
            found += [
                replace(point, name=f"{point.name}{JOINED}{name}", draft=(name, node)) for name, node in named.items()
            ]
    return found


def check_kinds(drafted: Sequence[str] | None, benchmark: Any) -> None:
    """Raises for kinds that the benchmark, where it says which it has, does not ask."""
    if drafted is None:
        return
    asked = getattr(benchmark, "asked", None)
    unknown = [kind for kind in drafted if asked is not None and kind not in asked]
    if isinstance(drafted, str) or unknown:
        valid = f"kinds of {benchmark.name}: {', '.join(asked)}" if asked else "a list of kinds, e.g. [caption]"
        raise ValueError(f"job.drafted: got {drafted if isinstance(drafted, str) else unknown!r}, valid are {valid}")
