"""DocVQA (https://arxiv.org/abs/2007.00398): questions about scanned pages, answered by what stands on them.

Knows the published columns, the prompt and the scores by type of question. The measure is anls's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from mmaccel.benchmarks.anls import COMPAT, anls_score
from mmaccel.benchmarks.base import Sample
from mmaccel.benchmarks.rows import Row
from mmaccel.benchmarks.table import SHORT_ANSWER, Table, right
from mmaccel.benchmarks.vqa_accuracy import by_name
from mmaccel.measure.scores import mean


@dataclass
class DocVqa(Table):
    """Columns: image, question, answers (a list, any of which is right); questionId and the types where there are any.

    compat: what a reply is worth that is half right (anls). The kind is the first of a question's types; `summary`
    counts it under all of them. Scores are shares. On test no answers are known, so nothing is scored.
    """

    datasets: Sequence[str] = ("lmms-lab-encoder/DocVQA", "lmms-lab/DocVQA")
    config: str | None = "DocVQA"
    split: str | None = "validation"
    max_new_tokens: int = 32
    name: str = "docvqa"
    compat: str = "kits"

    NEEDS: ClassVar = ("image", "question", "answers")
    USUAL: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "question_id": ("questionId", "index"), "answers": ("answer",), "types": ("question_types",),
    }  # fmt: skip
    CHOICES: ClassVar = {"compat": COMPAT}

    def kind(self, row: Row) -> str:
        return next(iter(row.several("types")), self.name)

    def sample(self, row: Row) -> Sample:
        answers = row.several("answers")
        return self.one_turn(
            row, id=row.maybe("question_id") or str(row.at), question=row.text("question") + SHORT_ANSWER,
            reference=answers[0] if answers else None, truth={"answers": answers, "types": row.several("types")},
        )  # fmt: skip

    def score(self, sample: Sample, replies: Sequence[str]) -> dict[str, Any]:
        found = anls_score(replies[-1], sample.truth["answers"], self.compat)
        return {**found, "types": list(sample.truth["types"])}

    def summary(self, records: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
        """anls, and anls by type of question."""
        return {"anls": mean(right(records)), **by_name(records, lambda record: record["score"]["types"])}
