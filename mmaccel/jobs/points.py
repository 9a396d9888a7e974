"""From a configuration to the points of one paired run: nothing attached, the controls, and the sweep of the pruner.

Knows configuration trees and pruners. Does not know models, samples or records. What was typed wins: `pruner.ratio=0.9`
collapses a sweep over it to that value, `sweep.pruner.ratio=[0.3, 0.5]` replaces its list; the controls follow, so that
they stand at the method's own values.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mmaccel.jobs.controls import checked_matched, distinct, following
from mmaccel.jobs.point import BASELINE, Point
from mmaccel.jobs.tree import at_path, leaves, placed

__all__ = ["BASELINE", "Point", "expand"]


def expand(config: Mapping[str, Any], typed: Sequence[str], method: str) -> list[Point]:
    """All points in the order of the tables: baseline, plain controls, the pruner's sweep, swept controls."""
    dials = settled(config, typed)
    controls, pruner, matched = config["controls"], config["pruner"], checked_matched(config)
    lead = under(dials, "pruner.")
    swept = {name: following(under(dials, f"controls.{name}."), lead, config, name) for name in controls}
    plain = [Point(name, node) for name, node in controls.items() if not swept[name] and name not in matched]
    leading = list(named_points(method, pruner, lead))
    others = [
        point
        for name, own in swept.items()
        if own or name in matched
        for point in named_points(name, controls[name], own, pruner if name in matched else None)
    ]
    return distinct([Point(BASELINE), *leading], plain, others)


def named_points(
    name: str, node: Mapping[str, Any], dials: Mapping[str, Sequence[Any]], like: Mapping[str, Any] | None = None
) -> Iterator[Point]:
    """One point per combination of the dials' values."""
    for values in itertools.product(*dials.values()):
        at = tuple(zip(dials, values))
        title = " ".join([name, *(f"{path.split('.')[-1]}={value}" for path, value in at)])
        yield Point(title, placed(node, at), at) if like is None else Point(title, node, at, placed(like, at))


def settled(config: Mapping[str, Any], typed: Sequence[str]) -> dict[str, Sequence[Any]]:
    """Place → values of the sweep, each held against the configuration, after what was typed has decided."""
    given = {override.lstrip("+~").split("=", 1)[0] for override in typed}
    dials: dict[str, Sequence[Any]] = {}
    for path, values in leaves(config["sweep"]):
        value = at_path(config, path, "sweep")
        if path.split(".")[0] not in ("pruner", "controls"):
            raise ValueError(f"sweep.{path}: valid places begin with pruner or controls")
        if isinstance(value, Mapping):
            raise ValueError(f"sweep.{path}: valid are places of a single value under it: {', '.join(value)}")
        if not isinstance(values, list) or not values:
            raise ValueError(f"sweep.{path}: got {values!r}, valid is a list, e.g. sweep.{path}=[0.3,0.5]")
        if {path, f"sweep.{path}"} <= given:
            raise ValueError(f"{path} and sweep.{path} were both typed; keep one of them")
        lead = f"pruner.{path.split('.')[-1]}"
        if path in given:
            values = [value]
        elif f"sweep.{path}" not in given and path.startswith("controls."):
            if f"sweep.{lead}" in given:
                values = at_path(config["sweep"], lead, "sweep")
            elif lead in given:
                values = [at_path(config, lead, "config")]
        dials[path] = values
    return dials


def under(dials: Mapping[str, Sequence[Any]], prefix: str) -> dict[str, Sequence[Any]]:
    return {path.removeprefix(prefix): values for path, values in dials.items() if path.startswith(prefix)}
