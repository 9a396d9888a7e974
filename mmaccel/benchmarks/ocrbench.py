"""OCRBench (https://arxiv.org/abs/2305.07895): 1000 questions of ten types about what is written in pictures.

Knows the published columns and that a reply is right if it holds an answer. Knows no state: a score is a function of
its records, however often it is asked.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from mmaccel.benchmarks.base import Sample
from mmaccel.benchmarks.rows import Row
from mmaccel.benchmarks.table import Table, right
from mmaccel.benchmarks.vqa_accuracy import by_name
from mmaccel.measure.scores import mean

FORMULA = "Handwritten Mathematical Expression Recognition"
TEXT = (
    "Regular Text Recognition", "Irregular Text Recognition", "Artistic Text Recognition", "Handwriting Recognition",
    "Digit String Recognition", "Non-Semantic Text Recognition",
)  # fmt: skip
TYPES = (*TEXT, "Scene Text-centric VQA", "Doc-oriented VQA", "Key Information Extraction", FORMULA)
HALF_WIDTH = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)} | {0x3000: 0x20}


@dataclass
class OcrBench(Table):
    """Columns: image, question (asked as it stands), answer (a list, any of which is right), question_type.

    Formulas are compared with case and without spaces, everything else without case. compat: lmms = full-width letters
    and digits are read as plain ones (lmms-eval since July 2026); vlmevalkit = as written. The benchmark's own scale
    is `final score`, the number of right replies: out of 1000 when all are asked, else out of `n asked`; all else are
    shares.
    """

    datasets: Sequence[str] = ("echo840/OCRBench",)
    split: str | None = "test"
    max_new_tokens: int = 128
    name: str = "ocrbench"
    compat: str = "lmms"

    NEEDS: ClassVar = ("image", "question", "answer", "question_type")
    USUAL: ClassVar = {"id": ("index",), "question_type": ("category",)}
    CHOICES: ClassVar = {"compat": ("lmms", "vlmevalkit")}

    def kind(self, row: Row) -> str:
        return row.text("question_type")

    def sample(self, row: Row) -> Sample:
        answers = [answer for answer in row.several("answer") if answer.strip()]
        if not answers:
            raise ValueError(f"{row.where}, column {row.named['answer']!r}: empty, and nothing is in every reply")
        return self.one_turn(
            row, id=row.maybe("id") or str(row.at), question=row.text("question").strip(), reference=answers[0],
            truth={"answers": answers},
        )  # fmt: skip

    def form(self, text: str, kind: str) -> str:
        line = text.strip().replace("\n", " ")
        if kind == FORMULA:
            return line.replace(" ", "")
        return (line.translate(HALF_WIDTH) if self.compat == "lmms" else line).lower().strip()

    def score(self, sample: Sample, replies: Sequence[str]) -> dict[str, Any]:
        said = self.form(replies[-1], sample.kind)
        hit = any(self.form(answer, sample.kind) in said for answer in sample.truth["answers"])
        return {"correct": float(hit), "parsed": said or None}

    def summary(self, records: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
        """final score, n asked, share; shares by type, and of the six types of text recognition together."""
        scores, found = right(records), by_name(records, lambda record: (record["kind"],))
        read = right([record for record in records if record["kind"] in TEXT])
        return {
            "final score": sum(scores) if scores else None, "n asked": float(len(scores)), "share": mean(scores),
            "Text Recognition": mean(read), **{name: found.get(name) for name in TYPES},
        }  # fmt: skip
