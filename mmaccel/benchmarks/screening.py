"""A benchmark through the input gate before a model is loaded: what is kept, and per rule how many and which are not.

Knows samples, the gate and plain data. Does not know models, run folders or how a rejected picture is shown.
"""

import operator
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from mmaccel.benchmarks.base import Benchmark
from mmaccel.benchmarks.quality import DECODING, FAILS, UNDECODABLE, Flag, Gate, Quality, Similarity, unreadable

WORST = 8  # examples of a rule that are named
UNREADABLE = "unreadable"  # the kind of a sample that cannot be had, as in the records of a run


@dataclass(frozen=True)
class Look:
    """One sample as the gate saw it; `index` is its place in the benchmark."""

    index: int
    id: str
    kind: str
    flags: tuple[Flag, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    group: str | None = None  # what it is scored together with

    def flag(self, rule: str) -> Flag | None:
        return next((flag for flag in self.flags if flag.rule == rule), None)


@dataclass(frozen=True)
class Screening:
    """The first `size` samples of a benchmark; where the gate is off none of them was looked at."""

    quality: Quality
    size: int
    looks: tuple[Look, ...] = ()

    @property
    def kept(self) -> tuple[int, ...]:
        """Indices of the samples that go on, in the benchmark's order. A group goes on whole or not at all."""
        if self.quality.action != "drop":
            return tuple(range(self.size))
        groups = {look.group for look in self.rejected if look.group is not None}
        dropped = {look.index for look in self.looks if look.flags or look.group in groups}
        return tuple(index for index in range(self.size) if index not in dropped)

    @property
    def rejected(self) -> tuple[Look, ...]:
        """Samples with at least one flag, whether they are dropped or not."""
        return tuple(look for look in self.looks if look.flags)

    @property
    def counts(self) -> dict[str, int]:
        """Rule → samples that fail it, of every rule that is on; a sample may fail several."""
        return {rule: sum(look.flag(rule) is not None for look in self.looks) for rule in self.quality.rules}

    def examples(self, rule: str, most: int = WORST) -> tuple[Look, ...]:
        """The worst first; as many as `most`."""
        failed = [(look, flag) for look in self.looks if (flag := look.flag(rule))]
        if rule != UNDECODABLE:
            failed.sort(key=lambda pair: pair[1].value or 0.0, reverse=FAILS[rule] is operator.gt)
        return tuple(look for look, _ in failed[:most])

    def to_json(self) -> dict[str, Any]:
        """Plain data: the action, each rule with its threshold, count, share and examples, and every sample."""
        return {
            "action": self.quality.action,
            "size": self.size,
            "kept": len(self.kept),
            "flagged": len(self.rejected),
            "rules": {rule: self._rule(rule, threshold) for rule, threshold in self.quality.rules.items()},
            "samples": [asdict(look) | {"facts": dict(look.facts)} for look in self.looks],
        }

    def _rule(self, rule: str, threshold: float | None) -> dict[str, Any]:
        count = self.counts[rule]
        named = [
            {"index": look.index, "id": look.id, "value": flag.value, "note": flag.note}
            for look in self.examples(rule)
            if (flag := look.flag(rule))
        ]
        return {"threshold": threshold, "count": count, "share": count / self.size, "examples": named}


def screened(
    benchmark: Benchmark,
    size: int,
    quality: Quality,
    progress: Callable[[int], object] | None = None,
    similarity: Similarity | None = None,
) -> Screening:
    """Looks at samples 0 … size − 1, one picture in memory at a time. progress: told how many were looked at."""
    gate = Gate(quality, similarity)
    if quality.action == "off":
        return Screening(quality, size)
    looks = []
    for index in range(size):
        looks.append(look_at(benchmark, index, gate))
        if progress:
            progress(index + 1)
    return Screening(quality, size, tuple(looks))


def look_at(benchmark: Benchmark, index: int, gate: Gate) -> Look:
    try:
        sample = benchmark[index]
        verdict = gate.look(sample)
    except DECODING as error:
        return Look(index, f"#{index}", UNREADABLE, unreadable(error).flags)
    group = sample.truth.get("group")
    return Look(index, sample.id, sample.kind, verdict.flags, verdict.facts, None if group is None else str(group))
