"""Accuracy by how much of a question's evidence was left standing: what a method lost, and what that cost.

Pools a method's points: one row per share of evidence tokens alive after the last station. Knows records as numbers.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mmaccel.measure.estimates import RESAMPLES, bootstrap_interval, columns_of
from mmaccel.measure.scores import correct_sums, one_scale
from mmaccel.measure.stats import last

EDGES = (0.0, 0.25, 0.5, 0.75)  # a share above an edge belongs to the bucket behind it; none and all stand alone
LABELS = ("none", "≤ 25 %", "≤ 50 %", "≤ 75 %", "< 100 %", "all")


def share_left(record: Mapping[str, Any]) -> float | None:
    """Evidence tokens alive after the last station over all of them; None where that is not known."""
    evidence = record.get("evidence") or {}
    if not evidence.get("tokens") or not evidence.get("kept_fraction"):
        return None
    return last(evidence["kept_fraction"], empty=1.0)


def bucket(share: float) -> int:
    """Which of LABELS."""
    return len(EDGES) + 1 if share >= 1.0 else sum(share > edge for edge in EDGES) if share > 0 else 0


def by_survival(
    records: Iterable[Mapping[str, Any]], methods: Mapping[str, Sequence[str]], resamples: int = RESAMPLES
) -> dict[str, list[dict[str, Any]]]:
    """Method → rows {left: label, share: mean, n, samples, accuracy, accuracy_ci}, empty buckets left out.

    The interval resamples samples, as everywhere: the same sample at several points is one draw.
    """
    known = [(record, share_left(record)) for record in one_scale(records)]
    table: dict[str, list[dict[str, Any]]] = {}
    for method, points in methods.items():
        filled: dict[int, list[tuple[Mapping[str, Any], float]]] = {}
        for record, share in known:
            if share is not None and record["point"] in points:
                filled.setdefault(bucket(share), []).append((record, share))
        rows = [survival_row(LABELS[at], filled[at], resamples) for at in sorted(filled)]
        if rows:
            table[method] = rows
    return table


def survival_row(label: str, members: Sequence[tuple[Mapping[str, Any], float]], resamples: int) -> dict[str, Any]:
    scores = correct_sums(record for record, _ in members)
    found = bootstrap_interval(*columns_of(scores), resamples=resamples, bounds=(0.0, 1.0))
    share = sum(share for _, share in members) / len(members)
    answers = int(sum(count for _, count in scores.values()))
    row = {"left": label, "share": share, "n": answers, "samples": found.n}
    return row | {"accuracy": found.value, "accuracy_ci": found.interval}
