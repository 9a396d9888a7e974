"""MM-Vet's prompts as a workload: open questions that need several skills at once.

Yu et al. 2023, https://arxiv.org/abs/2308.02490
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from mmaccel.benchmarks.base import Sample
from mmaccel.benchmarks.free_text import FreeText
from mmaccel.benchmarks.rows import Row

REASON = "First please perform reasoning, and think step by step to provide best answer to the following question: \n\n"


@dataclass
class Mmvet(FreeText):
    """Columns image, question, question_id and, where there are, answer and capability (the kind, as `math,ocr`).

    prompt: plain = the question as it is; reason = lmms-eval's, which asks for steps first.
    The published score needs a judge, so none is given (see FreeText).
    """

    datasets: Sequence[str] = ("lmms-lab-encoder/MMVet", "lmms-lab/MMVet")
    split: str | None = "test"
    max_new_tokens: int = 1024
    name: str = "mmvet"
    prompt: str = "plain"

    NEEDS: ClassVar = ("image", "question", "question_id")
    USUAL: ClassVar = {"question_id": ("index",), "answer": (), "capability": ("category",)}
    CHOICES: ClassVar = {"prompt": ("plain", "reason")}

    def kind(self, row: Row) -> str:
        skills = [skill.strip() for one in row.several("capability") for skill in one.split(",")]
        return ",".join(sorted(skills)) or self.name

    def sample(self, row: Row) -> Sample:
        question = (REASON if self.prompt == "reason" else "") + row.text("question")
        return self.one_turn(row, row.text("question_id"), question, None, {"answer": row.maybe("answer")})
