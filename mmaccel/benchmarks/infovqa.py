"""InfographicVQA (https://arxiv.org/abs/2104.12756): questions about infographics, scored as DocVQA's.

Knows what differs from DocVQA: the config, and that types are those of the answer (a span of the picture or of the
question, several spans, or none).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from mmaccel.benchmarks.docvqa import DocVqa


@dataclass
class InfoVqa(DocVqa):
    """Columns: image, question, answers; questionId and answer_type where there are any. The rest is DocVqa's."""

    config: str | None = "InfographicVQA"
    name: str = "infovqa"

    USUAL: ClassVar[Mapping[str, tuple[str, ...]]] = {**DocVqa.USUAL, "types": ("answer_type",)}
