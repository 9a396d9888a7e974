"""RealWorldQA: questions about photographs from the street, most with options that stand in the question itself.

Knows the layout of the rows. Does not know models. https://huggingface.co/datasets/xai-org/RealworldQA
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from mmaccel.benchmarks.base import Sample
from mmaccel.benchmarks.choice import DIRECTLY, Options, answer_of, lines, options_of, shares, verdict
from mmaccel.benchmarks.rows import Row
from mmaccel.benchmarks.table import Table
from mmaccel.benchmarks.text import judge

OPTION = re.compile(r"^\s*([A-Z])[.)]\s+(\S.*?)\s*$", re.MULTILINE)
CHOICE, OPEN = "choice", "open"


@dataclass
class RealWorldQA(Table):
    """The share of right answers; the kinds are `choice` (a letter is asked for) and `open` (a word or a number).

    The question is asked as it stands, for it says how to answer. compat: `ours` and `vlmevalkit` as in `choice`; an
    open answer is compared in its normal form by `ours`, and else as lmms-eval does: lower case without a last full
    stop. Columns: image, question, answer; also options A, B, … as in a table of VLMEvalKit, which are then written
    below the question. Summary: shares by kind.
    """

    datasets: Sequence[str] = ("lmms-lab-encoder/RealWorldQA", "lmms-lab/RealWorldQA", "xai-org/RealworldQA")
    split: str | None = "test"
    name: str = "realworldqa"
    compat: str = "ours"

    NEEDS: ClassVar[tuple[str, ...]] = ("image", "question", "answer")
    USUAL: ClassVar[Mapping[str, tuple[str, ...]]] = {"id": ("index",), "options": ("A",)}
    CHOICES: ClassVar[Mapping[str, tuple[Any, ...]]] = {"compat": ("ours", "vlmevalkit")}

    def kind(self, row: Row) -> str:
        return CHOICE if self.options(row) else OPEN

    def options(self, row: Row) -> Options:
        """Of the columns or of the question's own lines; none where the answer is not one of their letters."""
        if "options" in self.named:
            return options_of(row, "options")
        found = dict(OPTION.findall(row.text("question")))
        return found if row.text("answer").strip().upper() in found else {}

    def sample(self, row: Row) -> Sample:
        options, question = self.options(row), row.text("question").strip()
        if "options" in self.named:
            question = f"{question}\n{lines(options)}\n{DIRECTLY}"
        answer = answer_of(row, options) if options else row.text("answer").strip()
        return self.one_turn(row, row.maybe("id") or f"row-{row.at}", question, answer, {"options": options})

    def score(self, sample: Sample, replies: Sequence[str]) -> dict[str, Any]:
        options, reference = sample.truth["options"], sample.reference[-1]
        if options:
            return verdict(replies[-1], options, reference, self.compat)
        if self.compat == "ours":
            parsed, correct = judge(replies[-1], reference or "")
            return {"correct": correct, "parsed": parsed}
        said = replies[-1].lower().strip().rstrip(".")
        return {"correct": float(said == (reference or "").lower()), "parsed": said or None}

    def summary(self, records: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
        scored = [record for record in records if record["score"]["correct"] is not None]
        return shares(((record["kind"], record["score"]["correct"]) for record in scored), "kind")
