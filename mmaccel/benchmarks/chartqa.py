"""ChartQA (https://arxiv.org/abs/2203.10244): questions about charts, half of them written by people.

Knows the published columns, the prompt and relaxed accuracy. Published scorers (lmms-eval, VLMEvalKit) agree on it:
numbers may be off by 5 %, everything else is compared letter by letter without case.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from mmaccel.benchmarks.base import Sample
from mmaccel.benchmarks.rows import Row
from mmaccel.benchmarks.table import Table, right
from mmaccel.benchmarks.vqa_accuracy import by_name
from mmaccel.measure.scores import mean

ONE_WORD = "\nAnswer the question with a single word."
TOLERANCE = 0.05
HALVES = ("human", "augmented")


@dataclass
class ChartQa(Table):
    """Columns: image, question, answer (a text, or a list, any of which is right); type or split with "human" or
    "augmented" in it, where there is one. Scores are shares."""

    datasets: Sequence[str] = ("lmms-lab-encoder/ChartQA", "lmms-lab/ChartQA")
    split: str | None = "test"
    name: str = "chartqa"

    USUAL: ClassVar = {"id": ("index",), "type": ("split",)}

    def kind(self, row: Row) -> str:
        said = row.maybe("type") or ""
        return next((half for half in HALVES if half in said), self.name)

    def sample(self, row: Row) -> Sample:
        answers = row.several("answer") or [row.text("answer")]
        return self.one_turn(
            row, id=row.maybe("id") or str(row.at), question=row.text("question") + ONE_WORD, reference=answers[0],
            truth={"answers": answers},
        )  # fmt: skip

    def score(self, sample: Sample, replies: Sequence[str]) -> dict[str, Any]:
        said = replies[-1].strip()
        hit = bool(said) and any(relaxed(said, answer) for answer in sample.truth["answers"])
        return {"correct": float(hit), "parsed": said.lower() or None}

    def summary(self, records: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
        """overall, human, augmented."""
        found = by_name(records, lambda record: (record["kind"],))
        return {"overall": mean(right(records)), **{half: found.get(half) for half in HALVES}}


def relaxed(reply: str, answer: str) -> bool:
    """A number within TOLERANCE of the answer's, or the same text; an answer of 0 has no share to be off by."""
    said, true = value(reply), value(answer)
    if said is None or not true:
        return reply.lower() == answer.lower()
    return abs(said - true) / abs(true) <= TOLERANCE


def value(text: str) -> float | None:
    """A number; 5% is 0.05. Thousands separators and units make none."""
    try:
        return float(text.rstrip("%")) / 100 if text.endswith("%") else float(text)
    except ValueError:
        return None
