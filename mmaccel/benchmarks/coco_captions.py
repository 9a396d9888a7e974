"""COCO captions as a workload: a description of every picture, long or of one sentence.

Chen et al. 2015, https://arxiv.org/abs/1504.00325
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from mmaccel.benchmarks.base import Sample
from mmaccel.benchmarks.free_text import FreeText
from mmaccel.benchmarks.rows import Row

PROMPTS = {
    "detail": "Describe the image in detail.",
    "sentence": "Provide a one-sentence caption for the provided image.",
}


@dataclass
class CocoCaptions(FreeText):
    """Columns image, question_id and, where there are, answer: the captions people wrote, kept in `truth`.

    prompt: detail = a long description, for drafting; sentence = what the captions are of, 64 tokens are enough.
    No caption metric is computed; nothing but agreement with the unpruned reply is scored (see FreeText).
    """

    datasets: Sequence[str] = ("lmms-lab-encoder/COCO-Caption2017", "lmms-lab/COCO-Caption2017")
    split: str | None = "val"
    max_new_tokens: int = 256
    name: str = "coco_captions"
    prompt: str = "detail"

    NEEDS: ClassVar = ("image", "question_id")
    USUAL: ClassVar = {"question_id": ("index", "file_name"), "answer": ()}
    CHOICES: ClassVar = {"prompt": tuple(PROMPTS)}

    def sample(self, row: Row) -> Sample:
        truth = {"captions": tuple(row.several("answer"))}
        return self.one_turn(row, row.text("question_id"), PROMPTS[self.prompt], None, truth)
