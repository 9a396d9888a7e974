"""Workloads of free text: prompts that ask for long replies, where nothing but a judge could say what is right.

They measure decoding: acceptance, tokens per second, what pruning changes in the words. Does not know judges.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmaccel.benchmarks.base import Sample
from mmaccel.benchmarks.table import Table
from mmaccel.benchmarks.text import normal
from mmaccel.measure.scores import mean


@dataclass
class FreeText(Table):
    """Published answers stand in a sample's `truth` and are compared with nothing.

    `correct` is None and no turn has a reference, so `evaluate` fills in agreement with the unpruned reply: the same
    words in the same order. Of a draft that is the check that nothing was lost; of a pruner it says little about long
    replies, which part at the first other word and never meet again. summary: mean words per reply.
    """

    max_new_tokens: int = 512

    @property
    def answered(self) -> bool:
        return False

    def score(self, sample: Sample, replies: Sequence[str]) -> dict[str, Any]:
        return {"correct": None, "parsed": normal(replies[-1]) or None}

    def summary(self, records: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
        return {"words": mean([len((record["prediction"] or "").split()) for record in records])}
