"""From a configuration to the points of one paired run: nothing attached, the controls, and the sweep of the pruner.

Knows configuration trees and pruners. Does not know models, samples or records. What was typed wins: `pruner.ratio=0.9`
collapses a sweep over it to that value, `sweep.pruner.ratio=[0.3, 0.5]` replaces its list; the controls follow, so that
they stand at the method's own values.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mmaccel import registry
from mmaccel.jobs.tree import at_path, leaves, placed

BASELINE = "baseline"
BUDGET = ("ratio", "keep", "tokens", "mean_tokens")  # the dials of which one says how much stays
CONTROL = "control "  # in front of a control that would bear the method's own name


@dataclass(frozen=True)
class Point:
    """name: as in the records. node: its pruner's yaml, None = nothing attached. at: the swept values. like: the
    method's node it is matched to on mean visual tokens."""

    name: str
    node: Mapping[str, Any] | None = None
    at: tuple[tuple[str, Any], ...] = ()
    like: Mapping[str, Any] | None = None

    def labels(self) -> dict[str, Any]:
        """What the tables print beside the measured numbers."""
        node = self.like or (self.node or {}).get("like") or self.node or {}
        plain = self.name.removeprefix(CONTROL)
        pruner = self.name[: len(self.name) - len(plain)] + plain.split(" ")[0] if self.node else None
        return {"name": self.name, "pruner": pruner, "ratio": node.get("ratio"), "draft": None, "quantization": None}

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
