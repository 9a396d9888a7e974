"""Who was right: records to accuracies, per kind of question and per bucket of pictures, paired with the baseline.

The unit is the sample with all its turns, or the group of rotations that is right only if all of them are.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from mmaccel.measure.estimates import Estimate, Sums, bootstrap_interval, columns_of, paired_interval

Record = Mapping[str, Any]

SAID = {"processor_hash": "processor settings", "prompt_hash": "prompts"}


def clean(records: Iterable[Record]) -> list[Record]:
    return [record for record in records if not record.get("error")]


def quality(good: Sequence[Record], base: Sequence[Record] | None, parses: bool, r: int) -> dict[str, Any]:
    """base: None where there is nothing to compare with. parses: the benchmark reads answers out of replies."""
    accuracy = bootstrap_interval(*columns_of(correct_sums(good)), resamples=r, bounds=(0.0, 1.0))
    delta = Estimate(None, None, None, 0) if base is None else paired_interval(differences(good, base), resamples=r)
    return {
        "accuracy": accuracy.value,
        "accuracy_ci": accuracy.interval,
        "delta": delta.value,
        "delta_ci": delta.interval,
        "pairs": delta.n,
        "parsed_rate": parsed_rate(good) if parses else None,
        **({} if base is None else changed(good, base)),
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
    for name, what in SAID.items():
        both = [(mine.get(name), other.get(name)) for mine, other in pairs]
        differ = sum(mine != other for mine, other in both if mine and other)
        if differ:
            return f"other {what} than the baseline on {differ} of {len(pairs)} samples"
    return None


def changed(good: Sequence[Record], base: Sequence[Record]) -> dict[str, Any]:
    """Answers that are wholly right or wrong: how many pruning lost and gained, and McNemar's exact p (two-sided,
    McNemar 1947): the chance of a split at least so uneven where both are as likely.

    p is empty where answers share a unit, which the test takes for independent, and where being right is agreement with
    the baseline itself."""
    mine, other = answers(good), answers(base)
    pairs = [(mine[key], other[key]) for key in other if key in mine]
    if not pairs or any(value not in (0.0, 1.0) for (_, one), (_, two) in pairs for value in (one, two)):
        return {"lost": None, "gained": None, "mcnemar_p": None}
    lost = sum(one < two for (_, one), (_, two) in pairs)
    gained = sum(one > two for (_, one), (_, two) in pairs)
    alone = len({unit for (unit, _), _ in pairs}) == len(pairs)
    agrees = any((record.get("score") or {}).get("agreement") for record in good)
    return {"lost": lost, "gained": gained, "mcnemar_p": mcnemar(lost, gained) if alone and not agrees else None}


def mcnemar(lost: int, gained: int) -> float:
    """Two-sided exact binomial, Σ_{k ≤ few} C(n, k) / 2ⁿ twice; in logarithms, for n may be thousands."""
    n, few = lost + gained, min(lost, gained)
    logs = [math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) - n * math.log(2) for k in range(few + 1)]
    return min(1.0, 2 * math.fsum(map(math.exp, logs)))


def rotations(records: Sequence[Record]) -> dict[str, Any]:
    """Where questions are asked in all rotations of their options: the plain mean beside, and groups left out."""
    whole, cut = rotated(records)
    return {"vanilla": mean(inner(records, "score", "correct")), "incomplete": cut} if whole or cut else {}


def rotated(records: Iterable[Record]) -> tuple[Sums, int]:
    """(group → (1 if all of its rotations are right, 1); groups that lack a rotation, which count nowhere)."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        score = record.get("score") or {}
        if score.get("of") and score.get("correct") is not None:
            groups.setdefault(str(score["group"]), []).append(record)
    whole = {key: found for key, found in groups.items() if is_whole(found)}
    sums = {key: (min(float(record["score"]["correct"]) for record in found), 1.0) for key, found in whole.items()}
    return sums, len(groups) - len(whole)


def is_whole(group: Sequence[Record]) -> bool:
    return len({record["sample"] for record in group}) >= int(group[0]["score"]["of"])


def mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def pooled(records: Iterable[Record]) -> list[Record]:
    """Those whose scores share one scale; may be none of them."""
    return [record for record in records if not (record.get("score") or {}).get("apart")]


def one_scale(records: Iterable[Record]) -> list[Record]:
    """The good records of a whole run whose scores share one scale; all of them where only those apart are left."""
    good = clean(records)
    return pooled(good) or good


def answers(records: Iterable[Record]) -> dict[tuple[str, int], tuple[str, float]]:
    """(sample or group of rotations, turn) → (what is drawn together with it, its score)."""
    records = list(records)
    found = {}
    for record in records:
        score = record.get("score") or {}
        if not score.get("of") and score.get("correct") is not None:
            found[record["sample"], record.get("turn") or 0] = (unit_of(record), float(score["correct"]))
    return found | {(group, -1): (group, right) for group, (right, _) in rotated(records)[0].items()}


def unit_of(record: Record) -> str:
    """What is drawn together: a picture that is asked of often, a group that is scored as one, or the sample."""
    score = record.get("score") or {}
    return str(score.get("unit") or score.get("group") or record["sample"])


def correct_sums(records: Iterable[Record]) -> Sums:
    """unit → (Σ correct, scored answers)."""
    return summed(answers(records).values())


def differences(good: Iterable[Record], base: Iterable[Record]) -> Sums:
    """unit → (Σ (ours − theirs), answers), of those that both sides scored."""
    mine, other = answers(good), answers(base)
    return summed((unit, right - other[key][1]) for key, (unit, right) in mine.items() if key in other)


def summed(values: Iterable[tuple[str, float]]) -> Sums:
    sums: Sums = {}
    for key, value in values:
        total, count = sums.get(key, (0.0, 0.0))
        sums[key] = (total + value, count + 1)
    return dict(sorted(sums.items()))  # the seeded draws must not depend on the order of the records


def inner(records: Iterable[Record], outer: str, name: str) -> list[float]:
    """The measured values of record[outer][name]."""
    values = ((record.get(outer) or {}).get(name) for record in records)
    return [value for value in values if value is not None]


def kinds(
    good: Sequence[Record], base: Sequence[Record] | None, parses: bool, r: int
) -> dict[str, dict[str, Any]]:
    """Accuracy and paired delta per kind of question, in order of first appearance."""
    return compared(grouped(good, kind_of), None if base is None else grouped(base, kind_of), parses, r)


def compared(
    ours: Mapping[str, Sequence[Record]], theirs: Mapping[str, Sequence[Record]] | None, parses: bool, r: int
) -> dict[str, dict[str, Any]]:
    """Per group n, accuracy and (where there are others) the delta paired with the others' same answers."""
    table: dict[str, dict[str, Any]] = {}
    for name, records in ours.items():
        accuracy = bootstrap_interval(*columns_of(correct_sums(records)), resamples=r, bounds=(0.0, 1.0))
        if accuracy.n == 0:
            continue
        table[name] = {"n": accuracy.n, "accuracy": accuracy.value, "accuracy_ci": accuracy.interval}
        table[name] |= {"parsed_rate": parsed_rate(records) if parses else None}
        if theirs is not None:
            delta = paired_interval(differences(records, theirs.get(name, [])), resamples=r)
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
