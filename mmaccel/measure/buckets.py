"""Samples grouped by what their pictures are like: size, sharpness and edge density cut in thirds, and complexity.

Reads a record's `image` facts as numbers; what they mean is the benchmark's. The cuts are this run's own terciles over
samples (one set of cuts for all points, so that buckets are paired like everything else): fixed limits would put every
picture of one benchmark into one bucket. A fact on which all pictures agree makes no buckets.
"""

import bisect
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Record = Mapping[str, Any]
Labels = dict[str, dict[str, str]]  # fact → sample → the bucket's label, in order of rising values

COMPLEXITY = "complexity"
RISING = {name: at for at, name in enumerate(("flat", "blurred", "ordinary", "busy"))}
FORMS = {"size": ".0f", "sharpness": ".0f", "edge density": ".3f"}


def facts_of(record: Record) -> dict[str, float]:
    """The facts that are known of the record's picture; size is its longer side in pixels."""
    image = record.get("image") or {}
    sides = [image[side] for side in ("width", "height") if image.get(side) is not None]
    found = {"size": max(sides, default=None), "sharpness": image.get("sharpness"), "edge density": image.get("edges")}
    return {name: float(value) for name, value in found.items() if value is not None}


def bucket_labels(records: Iterable[Record]) -> Labels:
    """Which bucket each sample belongs to, by fact; facts that tell no two pictures apart are left out."""
    records = list(records)
    values: dict[str, dict[str, float]] = {name: {} for name in FORMS}
    for record in records:
        for name, value in facts_of(record).items():
            values[name].setdefault(record["sample"], value)
    made = {name: found for name, known in values.items() if (found := thirds(known, FORMS[name]))}
    return made | ({COMPLEXITY: named} if len(set((named := complexity(records)).values())) > 1 else {})


def complexity(records: Iterable[Record]) -> dict[str, str]:
    """sample → the bucket that the benchmark itself puts the picture in, in the order of rising complexity."""
    said = {record["sample"]: (record.get("image") or {}).get("bucket") for record in records}
    known = {sample: str(name) for sample, name in said.items() if name is not None}
    return dict(sorted(known.items(), key=lambda item: (RISING.get(item[1], len(RISING)), item[1], item[0])))


def thirds(known: Mapping[str, float], form: str) -> dict[str, str]:
    """sample → label. Equal values share a bucket, so fewer than three may come out; {} where only one would."""
    if len(set(known.values())) < 2:
        return {}
    ranked = sorted(known.values())
    cuts = {ranked[-(-len(ranked) * third // 3) - 1] for third in (1, 2)}  # the last value of each of the lower thirds
    inner = sorted(cut for cut in cuts if cut < ranked[-1]) or ranked[:1]
    named = labels(inner, form)
    placed = {sample: bisect.bisect_left(inner, value) for sample, value in known.items()}  # value ≤ cut: below it
    return {sample: named[at] for sample, at in sorted(placed.items(), key=lambda item: (item[1], item[0]))}


def labels(cuts: Sequence[float], form: str) -> list[str]:
    """ "≤ a", "a – b", "> b"; more digits where two cuts would read alike."""
    shown = [format(cut, form) for cut in cuts]
    if len(set(shown)) < len(shown):
        shown = [repr(cut) for cut in cuts]
    middle = [f"{low} – {high}" for low, high in itertools.pairwise(shown)]
    return [f"≤ {shown[0]}", *middle, f"> {shown[-1]}"]
