"""The controls beside a method: which of the method's dials they take, and what they are called when names meet.

Knows points and nodes. Does not know what was typed, nor models.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mmaccel.jobs.point import BUDGET, CONTROL, Point


def checked_matched(config: Mapping[str, Any]) -> Sequence[str]:
    matched, controls = config["matched"], config["controls"]
    unknown = [name for name in matched if name not in controls] if isinstance(matched, list) else matched
    if unknown or not isinstance(matched, list):
        raise ValueError(f"matched: got {unknown!r}, valid is a list of controls; there are {list(controls)}")
    return matched


def following(
    own: Mapping[str, Sequence[Any]], lead: Mapping[str, Sequence[Any]], config: Mapping[str, Any], name: str
) -> dict[str, Sequence[Any]]:
    """A control's dials. One that is matched to the method, or is like it, takes those dials of the method's sweep
    that it does not sweep itself, so that it stands wherever the method stands."""
    if name in config["matched"]:
        prefix = ""
        if other := [path for path in own if path not in BUDGET]:
            raise ValueError(
                f"sweep.controls.{name}.{other[0]}: {name} is matched, valid are {', '.join(BUDGET)}"
            )
    elif config["controls"][name].get("like") == config["pruner"]:
        prefix = "like."
    else:
        return dict(own)
    budgeted = any(path.removeprefix("like.") in BUDGET for path in own)
    return dict(own) | {
        f"{prefix}{path}": values
        for path, values in lead.items()
        if f"{prefix}{path}" not in own and not (budgeted and path in BUDGET)
    }


def distinct(leading: Sequence[Point], plain: Sequence[Point], others: Sequence[Point]) -> list[Point]:
    """Every name once. A control that is the method itself (keep_all under keep_all) is one point with it; another
    that would bear its name is called `control <name>`."""
    points = {point.name: point for point in leading}
    first = dict(points)
    controls: dict[str, Point] = {}
    for point in (*plain, *others):
        twin = first.get(point.name)
        if twin is not None and same(twin, point):
            continue
        named = point if twin is None else replace(point, name=CONTROL + point.name)
        other = controls.setdefault(named.name, named)
        if not same(other, named):
            raise ValueError(f"points: two controls are named {named.name!r}; rename one of them under controls")
    ahead = [controls.pop(name) for point in plain for name in (point.name, CONTROL + point.name) if name in controls]
    baseline, *method = points.values()
    return [baseline, *ahead, *method, *controls.values()]


def same(one: Point, other: Point) -> bool:
    """Whether two points remove the same tokens: equal nodes, or one matched to what differs from it in budget only."""

    def settled_node(point: Point) -> Mapping[str, Any] | None:
        if point.like is None or bare(point.node) != bare(point.like):
            return point.node
        return point.like

    like = one.like == other.like or None in (one.like, other.like)
    return like and settled_node(one) == settled_node(other)


def bare(node: Mapping[str, Any] | None) -> dict[str, Any]:
    return {key: value for key, value in (node or {}).items() if key not in BUDGET}
