"""A reply's score in its record, and what stands for one where there is no answer: whether the reply is the unpruned
one's. Knows records and benchmarks.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from mmaccel.benchmarks.base import Benchmark, Sample


def scored(benchmark: Benchmark, sample: Sample, replies: Sequence[str]) -> dict[str, Any]:
    """The record's `parsed` and `score`; `unread` marks a reply that a benchmark which reads replies could not read."""
    score = dict(benchmark.score(sample, replies))
    unread = {"unread": True} if score.get("parsed", "") is None else {}
    return {"parsed": score.pop("parsed", None), "score": score | unread}


def waits(record: Mapping[str, Any]) -> bool:
    """Whether the score is left to the agreement with the unpruned reply."""
    return not record.get("error") and record["reference"] is None and record["score"].get("correct") is None


def agreement(record: Mapping[str, Any], base: Mapping[str, Any], mixed: bool) -> dict[str, Any]:
    """The score's part. mixed: other questions of the benchmark have answers, and agreement is not averaged with being
    right; the baseline would agree with itself."""
    agrees = float(record["parsed"] == base["parsed"])
    shared = {"prefix": same_beginning(record["prediction"] or "", base["prediction"] or "")}
    return shared | ({"same_as_baseline": agrees} if mixed else {"correct": agrees, "agreement": True})


def same_beginning(reply: str, other: str) -> float:
    """Share of the longer reply's words before the first that differs: of a long text, agreement alone says little."""
    mine, theirs = reply.split(), other.split()
    same = next((at for at, pair in enumerate(zip(mine, theirs)) if pair[0] != pair[1]), min(len(mine), len(theirs)))
    return same / max(len(mine), len(theirs), 1) if mine or theirs else 1.0
