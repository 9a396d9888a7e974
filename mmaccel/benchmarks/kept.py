"""A benchmark behind the input gate: the samples that are asked, with what the gate said of them.

Knows a screening. Scores as the benchmark itself does.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mmaccel.benchmarks.base import Benchmark, Sample
from mmaccel.benchmarks.screening import Screening


class Kept(Benchmark):
    """`facts["flags"]` of a sample names the rules that it fails."""

    def __init__(self, inner: Benchmark, screening: Screening) -> None:
        self.inner, self.screening = inner, screening
        self.places = screening.kept
        self.looks = {look.index: look for look in screening.looks}
        if hasattr(inner, "digest"):  # one that has none is hashed sample by sample
            self.digest = self._digest

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.inner.name

    @property
    def max_new_tokens(self) -> int:  # type: ignore[override]
        return self.inner.max_new_tokens

    def __getattr__(self, name: str) -> Any:
        """Whatever else a benchmark says of itself."""
        return getattr(self.__dict__["inner"], name)

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int) -> Sample:
        sample, look = self.inner[self.places[index]], self.looks.get(self.places[index])
        if look is None:
            return sample
        flags = {"flags": [flag.rule for flag in look.flags]} if look.flags else {}
        return replace(sample, facts={**sample.facts, **look.facts, **flags})

    def score(self, sample: Sample, replies: Sequence[str]) -> dict[str, Any]:
        return self.inner.score(sample, replies)

    def summary(self, records: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
        return self.inner.summary(records)

    def unit(self, record: Mapping[str, Any]) -> str:
        return self.inner.unit(record)

    def _digest(self, size: int) -> str:
        """Of the benchmark's own samples and of which of them are asked."""
        if len(self.places) == self.screening.size:  # flags change nothing that is asked
            return self.inner.digest(size)  # type: ignore[attr-defined]
        whole = self.inner.digest(self.screening.size)  # type: ignore[attr-defined]
        return hashlib.sha256(f"{whole} {self.places[:size]}".encode()).hexdigest()
