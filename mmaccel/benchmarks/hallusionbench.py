"""HallusionBench: yes/no questions on charts, maps and illusions, of a figure and of a changed one.

Guan et al. 2024, https://arxiv.org/abs/2310.14566
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from mmaccel.benchmarks.base import Sample
from mmaccel.benchmarks.ordering import pictured, together, whole_groups
from mmaccel.benchmarks.rows import Row
from mmaccel.benchmarks.table import Table
from mmaccel.benchmarks.yes_no import judged, wanted
from mmaccel.measure.scores import mean

PARTS = ("category", "subcategory", "visual_input", "set_id", "figure_id", "question_id")


class Place(NamedTuple):
    """Where a question stands: asked of a figure, of which a set has several, with and without changes."""

    category: str
    subcategory: str
    visual_input: str
    set: str
    figure: str
    question: str

    @property
    def group(self) -> str:
        """The set, inside of which all that is scored together lies."""
        return f"{self.category}_{self.subcategory}_{self.set}"

    @property
    def blind(self) -> bool:
        """A question of the "visual supplement" part without its figure: what cannot be told is right to leave open."""
        return self.category == "VS" and self.figure == "0"


@dataclass
class Hallusionbench(Table):
    """Columns image (or filename), question, answer (or gt_answer, 1 = yes) and the six parts of a question's place, or
    an `index` that spells them, as `VS_map_1_3_1_0`.

    The image split: rows without a picture are left out, counted in `left_out`. The questions of a set stand together,
    and a limit is rounded down to whole sets.
    compat: vlmevalkit = whichever of yes and no stands alone; ours = the first word, else whichever stands alone.
    summary, as shares: score, the mean of the next three; aAcc over questions; fAcc over figures all of whose questions
    are right (none of a blind question); qAcc over questions that are right of every figure they are asked of. A
    figure or question of which a record is missing is in neither, and counted. The run's accuracy is aAcc.
    """

    datasets: Sequence[str] = ("lmms-lab-encoder/HallusionBench", "lmms-lab/HallusionBench")
    split: str | None = "image"
    max_new_tokens: int = 128
    name: str = "hallusionbench"
    compat: str = "vlmevalkit"
    left_out: int = field(init=False, repr=False)
    _groups: dict[int, str] = field(init=False, repr=False)
    _sizes: Counter[tuple[str, ...]] = field(init=False, repr=False)

    USUAL: ClassVar = {"image": ("filename",), "answer": ("gt_answer",), "index": ()}
    CHOICES: ClassVar = {"compat": ("vlmevalkit", "ours")}

    def mapped(self) -> dict[str, str]:
        named = super().mapped()
        missing = [name for name in PARTS if named.get(name, name) not in self.rows.columns]
        if missing and "index" not in named:
            raise ValueError(
                f"benchmark {self.name}: {self.rows.name} lacks the columns {', '.join(missing)}, or index"
            )
        return named

    def ordered(self) -> list[int]:
        order = super().ordered()
        shown = [at for at in order if pictured(self.row(at).get("image"))]
        self.left_out = len(order) - len(shown)
        if not shown:
            raise ValueError(f"benchmark {self.name}: {self.rows.name}: no row has a picture")
        places = {at: place(self.row(at)) for at in shown}
        self._groups = {at: one.group for at, one in places.items()}
        self._sizes = Counter(key for one in places.values() for key in keys(one))
        return together(shown, self._groups)

    def whole(self, size: int) -> int:
        return whole_groups([self._groups[at] for at in self.order], size)

    def kind(self, row: Row) -> str:
        return "_".join(place(row)[:2])

    def sample(self, row: Row) -> Sample:
        at, answer = place(row), wanted(row)
        truth = {"answer": answer, "place": at, "sizes": [self._sizes[key] for key in keys(at)]}
        return self.one_turn(row, id="_".join(at), question=row.text("question"), reference=answer, truth=truth)

    def score(self, sample: Sample, replies: Sequence[str]) -> dict[str, Any]:
        at: Place = sample.truth["place"]
        found = judged(self.compat, replies[-1], sample.truth["answer"])
        if at.blind and found["parsed"] is None:
            found["correct"] = 1.0
        facts = {"figure": None if at.blind else at.figure, "question": at.question, "sizes": sample.truth["sizes"]}
        return found | {"group": at.group} | facts

    def summary(self, records: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
        figures, short = right_together(records, "figure", 0)
        questions, cut = right_together(records, "question", 1)
        of_all = mean([record["score"]["correct"] for record in records])
        three = [value for value in (of_all, mean(figures), mean(questions)) if value is not None]
        return {
            "score": mean(three) if len(three) == 3 else None, "aAcc": of_all, "fAcc": mean(figures),
            "qAcc": mean(questions), "n incomplete groups": float(short + cut),
        }  # fmt: skip


def keys(at: Place) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What a question is scored with: all questions of its figure, and itself of all figures."""
    return ("figure", at.group, at.figure), ("question", at.group, at.question)


def right_together(records: Iterable[Mapping[str, Any]], name: str, which: int) -> tuple[list[float], int]:
    """(1.0 or 0.0 of every group, groups of which a record is missing). name: what a group shares beside its set."""
    groups: dict[tuple[str, str], list[float]] = {}
    sizes: dict[tuple[str, str], int] = {}
    for score in (record["score"] for record in records):
        if score[name] is not None:
            key = (score["group"], score[name])
            groups.setdefault(key, []).append(score["correct"])
            sizes[key] = score["sizes"][which]
    whole = [min(found) for key, found in groups.items() if len(found) == sizes[key]]
    return whole, len(groups) - len(whole)


def place(row: Row) -> Place:
    """From the six columns, else from the index; what stands in front of its last four parts may hold a "_"."""
    parts = [row.maybe(name) for name in PARTS]
    if None not in parts:
        return Place(*(part.strip() for part in parts if part is not None))
    category, *rest = row.text("index").rsplit("_", 4)
    category, _, subcategory = category.partition("_")
    if len(rest) != 4 or not subcategory:
        raise ValueError(
            f"{row.where}, column 'index': got {row.text('index')!r}, valid is VS_map_1_3_1_0 and the like"
        )
    return Place(category, subcategory, *rest)
