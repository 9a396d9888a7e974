"""Who was right: records to accuracies, per kind of question and per bucket of pictures, paired with the baseline.

The unit is the sample with all its turns, or the group of rotations that is right only if all of them are.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from mmaccel.measure.estimates import Estimate, Sums, bootstrap_interval, columns_of, paired_interval

Record = Mapping[str, Any]


def clean(records: Iterable[Record]) -> list[Record]:
    return [record for record in records if not record.get("error")]


def quality(
    good: Sequence[Record], base: Sequence[Record], is_base: bool, parses: bool, r: int, across: bool = False
) -> dict[str, Any]:
    """across: points that saw other prompts are compared, because that is what is compared."""
    scores, others = correct_sums(good), correct_sums(base)
    refused = None if is_base or across else other_prompts(good, base)
    accuracy = bootstrap_interval(*columns_of(scores), resamples=r, bounds=(0.0, 1.0))
    delta = Estimate(None, None, None, 0) if is_base or refused else paired_interval(scores, others, resamples=r)
    return {
        "accuracy": accuracy.value,
        "accuracy_ci": accuracy.interval,
        "delta": delta.value,
        "delta_ci": delta.interval,
        "pairs": delta.n,
        "parsed_rate": parsed_rate(good) if parses else None,
        "refused": refused,
        **({} if is_base or refused else changed(scores, others)),
        **rotations(good),
    }


def parsed_rate(records: Sequence[Record]) -> float | None:
    scored = [record for record in records if inner([record], "score", "correct")]
    return sum(record.get("parsed") is not None for record in scored) / len(scored) if scored else None


def other_prompts(good: Iterable[Record], base: Iterable[Record]) -> str | None:
    """Why two points cannot be compared: a sample became another prompt, or another processor made its picture.

    Only first turns: what a model said before is part of a later turn's prompt."""
    ours, there = ({one["sample"]: one for one in side if not one.get("turn")} for side in (good, base))
    pairs = [(ours[sample], there[sample]) for sample in ours.keys() & there.keys()]
    for name, what in (("processor_hash", "processor settings"), ("prompt_hash", "prompts")):
        both = [(mine.get(name), other.get(name)) for mine, other in pairs]
        differ = sum(mine != other for mine, other in both if mine and other)
        if differ:
            return f"other {what} than the baseline on {differ} of {len(pairs)} samples"
    return None


def changed(scores: Sums, others: Sums) -> dict[str, Any]:
    """Of units that are wholly right or wrong: how many pruning lost and gained, and McNemar's exact p (two-sided,
    McNemar 1947): the chance of a split at least so uneven where both are as likely."""
    shared = [(scores[key], others[key]) for key in others if key in scores]
    pairs = [(mine[0] / mine[1], other[0] / other[1]) for mine, other in shared]
    if not pairs or any(value not in (0.0, 1.0) for pair in pairs for value in pair):
        return {"lost": None, "gained": None, "mcnemar_p": None}
    lost, gained = sum(mine < other for mine, other in pairs), sum(mine > other for mine, other in pairs)
    n, few = lost + gained, min(lost, gained)
    p = min(1.0, 2 * sum(math.comb(n, k) for k in range(few + 1)) / 2**n)
    return {"lost": lost, "gained": gained, "mcnemar_p": p}


def rotations(records: Sequence[Record]) -> dict[str, Any]:
    """Where questions are asked in all rotations of their options: the plain mean beside, and groups left out."""
    whole, cut = rotated(records)
    return {"vanilla": mean(inner(records, "score", "correct")), "incomplete": cut} if whole or cut else {}


def rotated(records: Iterable[Record]) -> tuple[Sums, int]:
    """(group → (1 if all of its rotations are right, 1); groups that lack a rotation, which count nowhere)."""
    groups: dict[str, list[tuple[float, int]]] = {}
    for record in records:
        score = record.get("score") or {}
        if score.get("of") and score.get("correct") is not None:
            groups.setdefault(str(score["group"]), []).append((float(score["correct"]), int(score["of"])))
    whole = {key: found for key, found in groups.items() if len(found) >= found[0][1]}
    return {key: (min(right for right, _ in found), 1.0) for key, found in whole.items()}, len(groups) - len(whole)


def mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def pooled(records: Iterable[Record]) -> list[Record]:
    """Those whose scores share one scale; may be none of them."""
    return [record for record in records if not (record.get("score") or {}).get("apart")]


def one_scale(records: Iterable[Record]) -> list[Record]:
    """The good records of a whole run whose scores share one scale; all of them where only those apart are left."""
    good = clean(records)
    return pooled(good) or good


def correct_sums(records: Iterable[Record]) -> Sums:
    """unit → (Σ correct, scored turns)."""
    records = list(records)
    plain = [record for record in records if not (record.get("score") or {}).get("of")]
    sums = summed((record["sample"], (record.get("score") or {}).get("correct")) for record in plain)
    return dict(sorted((sums | rotated(records)[0]).items()))  # seeded draws must not depend on the records' order


def summed(values: Iterable[tuple[str, float | None]]) -> Sums:
    sums: Sums = {}
    for key, value in values:
        if value is not None:
            total, count = sums.get(key, (0.0, 0.0))
            sums[key] = (total + float(value), count + 1)
    return sums


def inner(records: Iterable[Record], outer: str, name: str) -> list[float]:
    """The measured values of record[outer][name]."""
    values = ((record.get(outer) or {}).get(name) for record in records)
    return [value for value in values if value is not None]


def kinds(good: Sequence[Record], base: Sequence[Record], is_base: bool, r: int) -> dict[str, dict[str, Any]]:
    """Accuracy and paired delta per kind of question, in order of first appearance."""
    return compared(grouped(good, kind_of), grouped(base, kind_of), is_base, r)


def compared(
    ours: Mapping[str, Sequence[Record]], theirs: Mapping[str, Sequence[Record]], is_base: bool, r: int
) -> dict[str, dict[str, Any]]:
    """Per group n, accuracy and (but for the baseline) the delta paired with the baseline's same samples."""
    table: dict[str, dict[str, Any]] = {}
    for name, records in ours.items():
        scores = correct_sums(records)
        accuracy = bootstrap_interval(*columns_of(scores), resamples=r, bounds=(0.0, 1.0))
        if accuracy.n == 0:
            continue
        table[name] = {"n": accuracy.n, "accuracy": accuracy.value, "accuracy_ci": accuracy.interval}
        table[name] |= {"parsed_rate": parsed_rate(records)}
        if not is_base:
            delta = paired_interval(scores, correct_sums(theirs.get(name, [])), resamples=r)
            table[name] |= {"delta": delta.value, "delta_ci": delta.interval, "pairs": delta.n}
    return table


def grouped(records: Iterable[Record], by: Callable[[Record], str | None]) -> dict[str, list[Record]]:
    """Records by group; those of no group (None) are left out."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        name = by(record)
        if name is not None:
            groups.setdefault(name, []).append(record)
    return groups


def kind_of(record: Record) -> str:
    return record.get("kind") or ""
