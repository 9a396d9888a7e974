"""MME: two yes/no questions of every picture, one of each answer, on perception and cognition.

Fu et al. 2023, https://arxiv.org/abs/2306.13394
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from mmaccel.benchmarks.base import Sample
from mmaccel.benchmarks.ordering import together, whole_groups
from mmaccel.benchmarks.rows import Row
from mmaccel.benchmarks.table import SHORT_ANSWER, Table
from mmaccel.benchmarks.yes_no import judged, wanted

PERCEPTION = (
    "existence", "count", "position", "color", "posters", "celebrity", "scene", "landmark", "artwork", "OCR",
)  # fmt: skip
COGNITION = ("commonsense_reasoning", "numerical_calculation", "text_translation", "code_reasoning")
ASKED = " Please answer yes or no."  # how a published question ends


@dataclass
class Mme(Table):
    """Columns image, question, answer, category and `picture`, the name that the two questions of a picture share.

    The two are asked one after the other; a source in which a picture has not exactly two questions is refused, and a
    limit is rounded down to whole pictures.
    prompt: short = the published ending gives way to the request for one word; plain = the question as it is.
    compat: ours = the first word, else whichever of yes and no stands alone; official = the first four characters as
    lmms-eval cleans them; vlmevalkit = whichever stands alone.
    summary, on the benchmark's own scale: a category's score is acc + acc+ (0 … 200), the percentages of questions and
    of pictures with both questions right; perception sums 10 categories (2000), cognition 4 (800), None where one of
    them was not asked. A picture of which a record is missing is in no score. The run's accuracy is per question.
    """

    datasets: Sequence[str] = ("lmms-lab-encoder/MME", "lmms-lab/MME")
    split: str | None = "test"
    max_new_tokens: int = 16
    name: str = "mme"
    prompt: str = "short"
    compat: str = "ours"
    _pictures: dict[int, tuple[str, str]] = field(init=False, repr=False)
    _second: frozenset[int] = field(init=False, repr=False)

    NEEDS: ClassVar = ("image", "question", "answer", "category", "picture")
    USUAL: ClassVar = {"picture": ("question_id", "image_path")}
    CHOICES: ClassVar = {"prompt": ("short", "plain"), "compat": ("ours", "official", "vlmevalkit")}

    def ordered(self) -> list[int]:
        columns = (self.rows.values(self.named[name]) for name in ("category", "picture"))
        self._pictures = {at: (str(category), str(name)) for at, (category, name) in enumerate(zip(*columns))}
        order = together(super().ordered(), self._pictures)
        counts = Counter(self._pictures[at] for at in order)
        odd = [key for key, n in counts.items() if n != 2]
        if odd:
            category, name = odd[0]
            raise ValueError(
                f"benchmark {self.name}: {self.rows.name}: the picture {name!r} of {category} has {counts[odd[0]]} "
                f"questions, valid are 2; so it is with {len(odd)} of {len(counts)} pictures"
            )
        self._second = frozenset(order[1::2])
        return order

    def whole(self, size: int) -> int:
        return whole_groups([self._pictures[at] for at in self.order], size)

    def kind(self, row: Row) -> str:
        return row.text("category")

    def sample(self, row: Row) -> Sample:
        category, name = self._pictures[row.at]
        picture = name if name.startswith(f"{category}/") else f"{category}/{name}"
        question, answer = row.text("question").strip(), wanted(row)
        if self.prompt == "short":
            question = question.replace(ASKED, "") + SHORT_ANSWER
        id = f"{picture}#{2 if row.at in self._second else 1}"
        return self.one_turn(
            row, id=id, question=question, reference=answer, truth={"answer": answer, "picture": picture}
        )  # fmt: skip

    def score(self, sample: Sample, replies: Sequence[str]) -> dict[str, Any]:
        return judged(self.compat, replies[-1], sample.truth["answer"]) | {"group": sample.truth["picture"]}

    def summary(self, records: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
        pairs: dict[tuple[str, str], list[float]] = {}
        for record in records:
            pairs.setdefault((record["kind"], record["score"]["group"]), []).append(record["score"]["correct"])
        whole: dict[str, list[list[float]]] = {}
        for (category, _), both in pairs.items():
            if len(both) == 2:
                whole.setdefault(category, []).append(both)
        scores: dict[str, float] = {name: category_score(found) for name, found in sorted(whole.items())}
        sums = {"perception": total(scores, PERCEPTION), "cognition": total(scores, COGNITION)}
        return sums | scores | {"n incomplete pictures": float(sum(len(both) != 2 for both in pairs.values()))}


def category_score(pairs: Sequence[Sequence[float]]) -> float:
    """acc + acc+, in per cent."""
    return sum(50 * sum(both) + 100 * min(both) for both in pairs) / len(pairs)


def total(scores: Mapping[str, float], names: Sequence[str]) -> float | None:
    return sum(scores[name] for name in names) if all(name in scores for name in names) else None
