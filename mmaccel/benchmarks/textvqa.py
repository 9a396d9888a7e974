"""TextVQA (https://arxiv.org/abs/1904.08920): questions about text in pictures, each answered by ten people.

Knows the published columns and the prompt. The accuracy is vqa_accuracy's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from mmaccel.benchmarks.base import Sample
from mmaccel.benchmarks.rows import Row
from mmaccel.benchmarks.table import SHORT_ANSWER, Table, right
from mmaccel.benchmarks.vqa_accuracy import commonest, parted, people, vqa_score
from mmaccel.measure.scores import mean


@dataclass
class TextVqa(Table):
    """Columns: image, question, answers (ten texts); question_id where there is one; ocr_tokens where `ocr` is set.

    ocr: the tokens of an OCR system are told in the prompt, as in LLaVA-1.5's published number; without them a model
    scores much lower, so the two are not to be compared.
    compat: lmms = the challenge's own rules, which lmms-eval uses (the question's first letter alone is a capital;
    answers lose commas and question marks, possessives are parted); vlmevalkit = question and answers as they stand.
    The score is a share.
    """

    datasets: Sequence[str] = ("lmms-lab-encoder/textvqa", "lmms-lab/textvqa")
    split: str | None = "validation"
    max_new_tokens: int = 32
    name: str = "textvqa"
    compat: str = "lmms"
    ocr: bool = False

    NEEDS: ClassVar = ("image", "question", "answers")
    USUAL: ClassVar = {"question_id": ("questionId", "index"), "answers": ("answer",), "ocr_tokens": ()}
    CHOICES: ClassVar = {"compat": ("lmms", "vlmevalkit"), "ocr": (False, True)}

    def mapped(self) -> dict[str, str]:
        found = super().mapped()
        if self.ocr and "ocr_tokens" not in found:
            raise ValueError(f"benchmark.ocr: {self.rows.name} has no column ocr_tokens, it has {self.rows.columns}")
        return found

    def sample(self, row: Row) -> Sample:
        question, answers = row.text("question"), people(row)
        asked = question.capitalize() if self.compat == "lmms" else question
        told = f"\nReference OCR token: {', '.join(row.several('ocr_tokens'))}" if self.ocr else ""
        return self.one_turn(
            row, id=row.maybe("question_id") or str(row.at), question=asked + told + SHORT_ANSWER,
            reference=commonest(answers), truth={"answers": answers},
        )  # fmt: skip

    def score(self, sample: Sample, replies: Sequence[str]) -> dict[str, Any]:
        first = parted if self.compat == "lmms" else str
        return vqa_score(replies[-1], sample.truth["answers"], self.compat, first)

    def summary(self, records: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
        return {"overall": mean(right(records))}
