"""LLaVA-Bench (in the wild): 60 questions on 24 pictures that ask for conversation, description and reasoning.

Liu et al. 2023, https://arxiv.org/abs/2304.08485
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from mmaccel.benchmarks.base import Sample
from mmaccel.benchmarks.free_text import FreeText
from mmaccel.benchmarks.rows import Row


@dataclass
class LlavaBench(FreeText):
    """Columns image, question, question_id and, where there are, category and gpt_answer; the published score needs a
    judge, so none is given (see FreeText). Reads the authors' questions.jsonl with images=THEIR/images too.
    """

    datasets: Sequence[str] = ("lmms-lab-encoder/llava-bench-in-the-wild", "lmms-lab/llava-bench-in-the-wild")
    split: str | None = "train"
    max_new_tokens: int = 1024
    name: str = "llava_bench"

    NEEDS: ClassVar = ("image", "question", "question_id")
    USUAL: ClassVar = {
        "question": ("text",), "question_id": ("index",), "category": (), "gpt_answer": ("gpt4_ans",),
    }  # fmt: skip

    def kind(self, row: Row) -> str:
        return row.maybe("category") or self.name

    def sample(self, row: Row) -> Sample:
        truth = {"answer": row.maybe("gpt_answer")}
        return self.one_turn(row, row.text("question_id"), row.text("question").strip(), None, truth)
