"""POPE: is an object in the picture? Asked of objects that are not, chosen at random, by frequency or by company.

Li et al. 2023, https://arxiv.org/abs/2305.10355
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from mmaccel.benchmarks.base import Sample
from mmaccel.benchmarks.rows import REFERENCE, Row
from mmaccel.benchmarks.table import SHORT_ANSWER, Table
from mmaccel.benchmarks.yes_no import judged, wanted
from mmaccel.measure.scores import mean


@dataclass
class Pope(Table):
    """Columns image, question, answer and, where there are, category and question_id, which repeats over categories.

    prompt: short = one word is asked for; plain = the question as it is.
    compat: ours = the first word, else whichever of yes and no stands alone; lmms = the reply is the word and nothing
    else, and a recall that does not count what was not read; vlmevalkit = whichever stands alone.
    summary, as shares, "yes" the positive answer: macro F1 (the mean over categories), pooled F1 (over all rows), and
    by category accuracy, precision, recall, F1 and the share of replies that say yes. A row of several categories,
    as `random,popular`, counts in each. A rate without a denominator is 0. Questions about one picture, the positive
    ones of which are the same in all categories, are resampled together where the row names it (image_source).
    """

    datasets: Sequence[str] = ("lmms-lab-encoder/POPE", "lmms-lab/POPE")
    split: str | None = "test"
    max_new_tokens: int = 128
    name: str = "pope"
    prompt: str = "short"
    compat: str = "ours"

    USUAL: ClassVar = {"question": ("text",), "answer": ("label",), "question_id": ("index",), "category": ()}
    ALSO: ClassVar[tuple[str, ...]] = ("image_source",)
    CHOICES: ClassVar = {"prompt": ("short", "plain"), "compat": ("ours", "lmms", "vlmevalkit")}

    def kind(self, row: Row) -> str:
        return row.maybe("category") or self.name

    def sample(self, row: Row) -> Sample:
        id, answer = f"{self.kind(row)}/{row.maybe('question_id') or row.at}", wanted(row)
        question = row.text("question").strip() + (SHORT_ANSWER if self.prompt == "short" else "")
        truth = {"answer": answer, "unit": source(row)}
        return self.one_turn(row, id=id, question=question, reference=answer, truth=truth)

    def score(self, sample: Sample, replies: Sequence[str]) -> dict[str, Any]:
        return judged(self.compat, replies[-1], sample.truth["answer"]) | {"unit": sample.truth["unit"]}

    def summary(self, records: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
        counts = Counter((record["kind"], record["score"]["answer"], record["parsed"]) for record in records)
        tables: dict[str, Counter[tuple[str, str | None]]] = {}
        pooled: Counter[tuple[str, str | None]] = Counter()
        for (kind, answer, said), n in counts.items():
            for category in kind.split(","):
                tables.setdefault(category.strip(), Counter())[answer, said] += n
                pooled[answer, said] += n
        strict = self.compat == "lmms"
        each = {name: rates(tables[name], strict) for name in sorted(tables)}
        named = {f"{category} {name}": value for category, found in each.items() for name, value in found.items()}
        macro = mean([found["F1"] for found in each.values()])
        return {"macro F1": macro, "pooled F1": rates(pooled, strict)["F1"] if pooled else None, **named}


def source(row: Row) -> str | None:
    """The name of the picture, where the row has one."""
    named = row.maybe("image_source") or row.get("image")
    return named if isinstance(named, str) and len(named) <= REFERENCE else None


def rates(counts: Counter[tuple[str, str | None]], strict: bool) -> dict[str, float]:
    """counts: of (right answer, what was read). strict: what was not read is no miss."""
    hits, alarms = counts["yes", "yes"], counts["no", "yes"]
    missed = counts["yes", "no"] + (0 if strict else counts["yes", None])
    precision, recall = share(hits, hits + alarms), share(hits, hits + missed)
    return {
        "accuracy": share(hits + counts["no", "no"], counts.total()), "precision": precision, "recall": recall,
        "F1": share(2 * precision * recall, precision + recall), "yes ratio": share(hits + alarms, counts.total()),
    }  # fmt: skip


def share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
