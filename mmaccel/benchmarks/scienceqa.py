"""ScienceQA-IMG: school questions with a picture, answered by the letter of an option.

Knows the layout of the rows. Does not know models. https://arxiv.org/abs/2209.09513
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any, ClassVar

from mmaccel.benchmarks.base import Sample
from mmaccel.benchmarks.choice import DIRECTLY, Options, answer_of, lines, options_of, shares, verdict
from mmaccel.benchmarks.rows import Row
from mmaccel.benchmarks.table import Table

SUBJECTS = {"natural science": "NAT", "social science": "SOC", "language science": "LAN"}
YOUNGER = 6  # the grades 1 … 6 are one class of the paper's table, 7 … 12 the other


@dataclass
class ScienceQA(Table):
    """The share of questions whose letter is right.

    compat: `ours` and `vlmevalkit` as in `choice`; `lmms_eval` takes a letter that is the whole reply, or one that
    begins it before a full stop. Columns: image, question, choices, answer (counted from 0), hint, subject, grade; also
    options A, B, … and a letter, as in a table of VLMEvalKit. A row without a picture cannot be asked.
    Summary: shares by subject ("subject NAT", SOC, LAN) and grade ("grades G1-6", G7-12).
    """

    datasets: Sequence[str] = ("lmms-lab-encoder/ScienceQA", "lmms-lab/ScienceQA")
    config: str | None = "ScienceQA-IMG"
    split: str | None = "test"
    name: str = "scienceqa"
    compat: str = "ours"

    NEEDS: ClassVar[tuple[str, ...]] = ("image", "question", "choices", "answer")
    USUAL: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "choices": ("A",), "id": ("pid", "index"), "subject": ("category",),
    }  # fmt: skip
    ALSO: ClassVar[tuple[str, ...]] = ("hint", "grade")
    CHOICES: ClassVar[Mapping[str, tuple[Any, ...]]] = {"compat": ("ours", "vlmevalkit", "lmms_eval")}

    def kind(self, row: Row) -> str:
        return row.maybe("subject") or self.name

    def sample(self, row: Row) -> Sample:
        options = options_of(row, "choices")
        hint = row.maybe("hint")
        context = f"Context: {hint}\n" if hint else ""
        question = f"{context}{row.text('question')}\n{lines(options)}\n{DIRECTLY}"
        truth = {"options": options, "grade": row.maybe("grade")}
        return self.one_turn(row, row.maybe("id") or f"row-{row.at}", question, letter_of(row, options), truth)

    def score(self, sample: Sample, replies: Sequence[str]) -> dict[str, Any]:
        options, reference = sample.truth["options"], sample.reference[-1]
        if self.compat == "lmms_eval":
            read = plain_letter(replies[-1], options)
            found = {"correct": None if reference is None else float(read == reference), "parsed": read}
        else:
            found = verdict(replies[-1], options, reference, self.compat)
        return found | {"grade": sample.truth["grade"]}

    def summary(self, records: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
        scored = [record for record in records if record["score"]["correct"] is not None]
        by_subject = ((SUBJECTS.get(record["kind"]), record["score"]["correct"]) for record in scored)
        by_grade = ((grades(record["score"].get("grade")), record["score"]["correct"]) for record in scored)
        return shares(by_subject, "subject") | shares(by_grade, "grades")


def letter_of(row: Row, options: Options) -> str | None:
    """The right letter, which the published files count from 0."""
    answer = row.get("answer")
    if isinstance(answer, str) and not answer.strip().isdecimal():
        return answer_of(row, options)
    if answer is None or answer == "" or not 0 <= int(answer) < len(options):
        column = row.named["answer"]
        raise ValueError(f"{row.where}, column {column!r}: got {answer!r}, valid are 0 … {len(options) - 1}")
    return ascii_uppercase[int(answer)]


def plain_letter(reply: str, options: Options) -> str | None:
    said = reply.strip()
    letter = said.upper() if len(said) == 1 else said[0] if re.match(r"[A-Z]\.", said) else None
    return letter if letter in options else None


def grades(grade: str | None) -> str | None:
    number = re.fullmatch(r"grade(\d+)", grade or "")
    return number and ("G1-6" if int(number[1]) <= YOUNGER else "G7-12")
