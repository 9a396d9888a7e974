"""A benchmark's own scores with intervals: whatever function of records it is, resampled by unit, paired with the
baseline.

Knows records and a function of them. Does not know what the function means. A unit drawn twice stands twice: its
records bear other names the second time, so that what is grouped by `sample` or by `score.group` is no larger group.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mmaccel.measure.estimates import PAIRS
from mmaccel.measure.scores import Record, grouped

Summary = Callable[[Sequence[Record]], Mapping[str, float | None]]
RESAMPLES = 200
MOST, FEWEST = 4_000_000, 100  # records read in all the resamplings of a point, unless these are then too few
COUNT = "n "  # how the name of a count begins


Draws = dict[tuple[str, ...], list[Mapping[str, float | None]]]  # units that were drawn of → the summaries of the draws


def official(
    summary: Summary, unit: Callable[[Record], str], mine: Sequence[Record], base: Sequence[Record] | None,
    *, level: float = 0.95, resamples: int = RESAMPLES, seed: int = 0, known: Draws | None = None,
) -> dict[str, dict[str, Any]]:  # fmt: skip
    """name → value, ci and (base: not None) delta, delta_ci against the baseline on the units that both have.

    Intervals are percentile bootstrap over units; None where a resampling has no value, where all draws agree, which is
    no certainty, and below PAIRS units. known: the baseline's summaries, kept from point to point."""
    values = dict(summary(mine))
    found: dict[str, dict[str, Any]] = {name: {"value": value, "ci": None} for name, value in values.items()}
    if base is not None:
        found = {name: one | {"delta": None, "delta_ci": None} for name, one in found.items()}
    scored = [name for name, value in values.items() if value is not None and not name.startswith(COUNT)]
    ours = grouped(map(light, mine), unit)
    theirs = ours if base is None else grouped(map(light, base), unit)
    shared = sorted(ours.keys() & theirs.keys())
    if not scored or len(ours) < PAIRS:
        return found
    tails = [(1 - level) / 2, (1 + level) / 2]
    every = sorted(ours)
    drawn = list(draws(summary, ours, every, resamples, seed))
    for name in scored:
        found[name]["ci"] = spread([one.get(name) for one in drawn], tails)
    if base is None or len(shared) < PAIRS:
        return found
    here = drawn if shared == every else list(draws(summary, ours, shared, resamples, seed))
    known, key = {} if known is None else known, tuple(shared)
    if key not in known:
        known[key] = list(draws(summary, theirs, shared, resamples, seed))
    one, other = (summary([record for name in shared for record in side[name]]) for side in (ours, theirs))
    for name in scored:
        if one.get(name) is not None and other.get(name) is not None:
            pairs = [(a.get(name), b.get(name)) for a, b in zip(here, known[key])]
            found[name]["delta"] = one[name] - other[name]  # type: ignore[operator]
            found[name]["delta_ci"] = spread([None if None in pair else pair[0] - pair[1] for pair in pairs], tails)  # type: ignore[operator]
    return found


def light(record: Record) -> Record:
    """What a summary reads: not the times and ids, of which there would be thousands of copies."""
    return {key: record.get(key) for key in ("sample", "turn", "kind", "question", "prediction", "parsed", "score")}


def spread(values: Sequence[float | None], tails: Sequence[float]) -> list[float] | None:
    there = [value for value in values if value is not None]
    if len(there) < len(values) / 2 or len(set(there)) < 2:
        return None
    return [float(edge) for edge in np.quantile(there, tails)]


def draws(
    summary: Summary, units: Mapping[str, Sequence[Record]], names: Sequence[str], resamples: int, seed: int
) -> Iterator[Mapping[str, float | None]]:
    """The summaries of as many resamplings; of many records fewer, for each reads all of them."""
    rng, copies = np.random.default_rng(seed), Copies(units, names)
    total = sum(len(units[name]) for name in names)
    for _ in range(max(min(resamples, MOST // max(total, 1)), min(resamples, FEWEST))):
        yield summary(copies.of(rng.integers(0, len(names), len(names)).tolist()))


class Copies:
    """The records of units by how often the unit was drawn before: each copy is made once."""

    def __init__(self, units: Mapping[str, Sequence[Record]], names: Sequence[str]) -> None:
        self.units, self.names = units, names
        self.made: dict[tuple[int, int], list[Record]] = {}

    def of(self, picks: Sequence[int]) -> list[Record]:
        """The records of the picked units; of one that was picked before, under other names."""
        times: dict[int, int] = {}
        drawn: list[Record] = []
        for pick in picks:
            times[pick] = times.get(pick, 0) + 1
            drawn += self.copy(pick, times[pick])
        return drawn

    def copy(self, pick: int, time: int) -> Sequence[Record]:
        records = self.units[self.names[pick]]
        if time == 1:
            return records
        if (pick, time) not in self.made:
            self.made[pick, time] = [renamed(record, f"#{time}") for record in records]
        return self.made[pick, time]


def renamed(record: Record, suffix: str) -> Record:
    score = dict(record.get("score") or {})
    if score.get("group") is not None:
        score["group"] = f"{score['group']}{suffix}"
    return {**record, "sample": f"{record['sample']}{suffix}", "score": score}
