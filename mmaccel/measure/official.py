"""A benchmark's own scores with intervals: whatever function of records it is, resampled by unit, paired with the
baseline.

Knows records and a function of them. Does not know what the function means. A unit drawn twice stands twice: its
records bear other names the second time, so that what is grouped by `sample` or by `score.group` is no larger group.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mmaccel.measure.estimates import PAIRS
from mmaccel.measure.scores import Record, grouped

Summary = Callable[[Sequence[Record]], Mapping[str, float | None]]
RESAMPLES = 200
COUNT = "n "  # how the name of a count begins


def official(
    summary: Summary, unit: Callable[[Record], str], mine: Sequence[Record], base: Sequence[Record] | None,
    *, level: float = 0.95, resamples: int = RESAMPLES, seed: int = 0,
) -> dict[str, dict[str, Any]]:  # fmt: skip
    """name → value, ci and (base: not None) delta, delta_ci against the baseline on the units that both have.

    Intervals are percentile bootstrap over units; None where a resampling has no value, and below PAIRS units."""
    values = dict(summary(mine))
    found: dict[str, dict[str, Any]] = {name: {"value": value, "ci": None} for name, value in values.items()}
    if base is not None:
        found = {name: one | {"delta": None, "delta_ci": None} for name, one in found.items()}
    scored = [name for name, value in values.items() if value is not None and not name.startswith(COUNT)]
    ours, theirs = grouped(mine, unit), grouped(mine if base is None else base, unit)
    shared = sorted(ours.keys() & theirs.keys())
    if not scored or len(shared) < PAIRS:
        return found
    here, there = (summary([one for key in shared for one in side[key]]) for side in (ours, theirs))
    drawn: dict[str, list[tuple[float, float]]] = {name: [] for name in scored}
    rng = np.random.default_rng(seed)
    for _ in range(resamples):
        picks = rng.integers(0, len(shared), len(shared))
        one = summary(redrawn(ours, shared, picks))
        other = one if base is None else summary(redrawn(theirs, shared, picks))
        for name in scored:
            pair = (one.get(name), other.get(name))
            drawn[name] += [pair] if None not in pair else []  # type: ignore[list-item]
    tails = [(1 - level) / 2, (1 + level) / 2]
    for name in scored:
        if len(drawn[name]) < resamples / 2:
            continue
        pairs = np.asarray(drawn[name])  # [≤ resamples, 2]
        found[name]["ci"] = [float(edge) for edge in np.quantile(pairs[:, 0], tails)]
        if base is not None and here.get(name) is not None and there.get(name) is not None:
            found[name]["delta"] = here[name] - there[name]  # type: ignore[operator]
            found[name]["delta_ci"] = [float(edge) for edge in np.quantile(pairs[:, 0] - pairs[:, 1], tails)]
    return found


def redrawn(units: Mapping[str, Sequence[Record]], names: Sequence[str], picks: np.ndarray) -> list[Record]:
    """The records of the picked units; of one that was picked before, under other names."""
    times: dict[int, int] = {}
    drawn: list[Record] = []
    for pick in picks.tolist():
        times[pick] = times.get(pick, 0) + 1
        records = units[names[pick]]
        drawn += records if times[pick] == 1 else [renamed(record, f"#{times[pick]}") for record in records]
    return drawn


def renamed(record: Record, suffix: str) -> Record:
    score = dict(record.get("score") or {})
    if score.get("group") is not None:
        score["group"] = f"{score['group']}{suffix}"
    return {**record, "sample": f"{record['sample']}{suffix}", "score": score}
