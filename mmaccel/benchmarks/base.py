"""The benchmark contract: a sliceable set of samples that scores its own replies.

Knows samples and scores. Does not know models, points or run folders.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from PIL import Image

MARK = re.compile(r"<image (\d+)>")  # where picture k stands in a text
Box = tuple[float, float, float, float]  # left, top, right, bottom as fractions of the picture's width and height


@dataclass(frozen=True)
class Sample:
    """One conversation. `turns` are the user's messages; the pictures belong to the first.

    reference: one accepted answer per turn (None where there is none).
    region: boxes of the evidence, per turn, in fractions of the picture; empty where unknown.
    facts: what is known of the picture (width, height, sharpness, entropy, bucket …).
    more: further pictures.  marked: "<image k>" in the first turn's text is where picture k stands, counted from 1;
    otherwise all of them stand in front of the text.
    truth: what the scorer needs beyond the reference: all accepted answers, the options, the group of a rotation.
    """

    id: str
    kind: str
    image: Image.Image
    turns: tuple[str, ...]
    reference: tuple[str | None, ...]
    region: tuple[tuple[Box, ...], ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    more: tuple[Image.Image, ...] = ()
    marked: bool = False
    truth: Mapping[str, Any] = field(default_factory=dict)

    @property
    def pictures(self) -> tuple[Image.Image, ...]:
        return (self.image, *self.more)


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
        """{"correct": 0.0 … 1.0 or None, "parsed": str | None, …} for the last reply; never changes the sample.

        "group" and "of": the record is one of `of` rotations of a question, which is right only if all of them are.
        "unit" (or "group" alone): what is resampled together, such as the picture that is asked of often.
        "apart": the score is on another scale and pooled with nothing.  What `summary` reads stands here too.
        """

    def summary(self, records: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
        """The benchmark's own scores beyond the mean of `correct`, by name, of one point's records without errors.

        Reads nothing else and keeps nothing, so that it can be asked of any resampling of them. A name that begins with
        "n " is a count, of which no interval is taken.
        """
        return {}

    def unit(self, record: Mapping[str, Any]) -> str:
        """What is resampled together; records that are scored as one share it."""
        score = record.get("score") or {}
        return str(score.get("unit") or score.get("group") or record["sample"])

    def whole(self, size: int) -> int:
        """How many of the first `size` samples to ask, so that none is asked whose group is cut off."""
        return size
