"""The benchmark contract: a sliceable set of samples that scores its own replies.

Knows samples and scores. Does not know models, points or run folders.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from PIL import Image

Box = tuple[float, float, float, float]  # left, top, right, bottom as fractions of the picture's width and height


@dataclass(frozen=True)
class Sample:
    """One conversation. `turns` are the user's messages; the picture belongs to the first.

    reference: one accepted answer per turn (None where there is none).
    region: boxes of the evidence, per turn, in fractions of the picture; empty where unknown.
    facts: what is known of the picture (width, height, sharpness, entropy, bucket …).
    """

    id: str
    kind: str
    image: Image.Image
    turns: tuple[str, ...]
    reference: tuple[str | None, ...]
    region: tuple[tuple[Box, ...], ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)


class Benchmark(ABC):
    """A set of samples; `name` is its yaml's name, `max_new_tokens` what an answer needs."""

    name: str
    max_new_tokens: int

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, index: int) -> Sample: ...

    @abstractmethod
    def score(self, sample: Sample, replies: Sequence[str]) -> dict[str, Any]:
        """{"correct": 0.0 … 1.0 or None, "parsed": str | None, …} for the last reply; never changes the sample."""

    def summary(self, records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Anything beyond the mean of `correct`, overall and per kind."""
        return {}
