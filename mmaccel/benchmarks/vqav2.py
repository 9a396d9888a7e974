"""VQAv2 (https://arxiv.org/abs/1612.00837): questions about COCO pictures, each answered by ten people.

Knows the published columns, the prompt and the scores by type of answer. The accuracy is vqa_accuracy's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from mmaccel.benchmarks.base import Sample
from mmaccel.benchmarks.rows import Row
from mmaccel.benchmarks.table import SHORT_ANSWER, Table, right
from mmaccel.benchmarks.vqa_accuracy import FORMS, by_name, commonest, people, vqa_score
from mmaccel.measure.scores import mean

TYPES = ("yes/no", "number", "other")


@dataclass
class Vqav2(Table):
    """Columns: image, question, answers (ten texts or {answer: text}); question_id and answer_type where there are any.

    compat: how answers are brought to one form (vqa_accuracy). Scores are shares. On test and testdev nobody's answers
    are known, so nothing is scored.
    """

    datasets: Sequence[str] = ("lmms-lab-encoder/VQAv2", "lmms-lab/VQAv2")
    split: str | None = "validation"
    name: str = "vqav2"
    compat: str = "lmms"

    NEEDS: ClassVar = ("image", "question", "answers")
    USUAL: ClassVar = {"question_id": ("questionId", "index"), "answers": ("answer",), "answer_type": ("category",)}
    CHOICES: ClassVar = {"compat": tuple(FORMS)}

    def kind(self, row: Row) -> str:
        return row.maybe("answer_type") or self.name

    def sample(self, row: Row) -> Sample:
        answers = people(row)
        return self.one_turn(
            row, id=row.maybe("question_id") or str(row.at), question=row.text("question") + SHORT_ANSWER,
            reference=commonest(answers), truth={"answers": answers},
        )  # fmt: skip

    def score(self, sample: Sample, replies: Sequence[str]) -> dict[str, Any]:
        return vqa_score(replies[-1], sample.truth["answers"], self.compat)

    def summary(self, records: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
        """overall, and by type of answer."""
        found = by_name(records, lambda record: (record["kind"],))
        return {"overall": mean(right(records)), **{name: found.get(name) for name in TYPES}}
