"""MMBench: a question is right only if it is answered in every rotation of its options (CircularEval).

Knows the layout of the rows. Does not know models. https://arxiv.org/abs/2307.06281
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from string import ascii_uppercase
from typing import Any, ClassVar

from mmaccel.benchmarks.base import Sample
from mmaccel.benchmarks.choice import (
    DIRECTLY,
    answer_of,
    cell,
    lines,
    options_of,
    shares,
    together,
    turned,
    verdict,
)
from mmaccel.benchmarks.ordering import whole_groups
from mmaccel.benchmarks.rows import Row
from mmaccel.benchmarks.table import Table, right
from mmaccel.measure.scores import mean

COPY = 1_000_000  # rotation r of row i is row i + r · COPY
SHOWN = 5  # questions named in a complaint
WORDING = {  # what stands above the options and at the end
    "en": ("There are several options:", DIRECTLY),
    "cn": ("有如下几个选项：", "请直接使用所提供的选项字母作为答案回答。"),
}


@dataclass
class MMBench(Table):
    """circular: all rotations are asked; false = the base rows alone (vanilla).

    A group is the rows of one `g_index`, or of one index modulo 10⁶; its base row is that of this very index. Rotations
    in the file are used. incomplete: what becomes of a group that lacks some: `refuse`, or `complete`, which makes them
    from the base row. language: of the words around the question. compat: who reads the letter (`choice`).
    Columns: index, question, hint, A … D (or more), answer, category, l2-category, image. Summary: shares of questions
    right in all rotations ("circular", "category …", "l2 …") and of rows ("vanilla").
    """

    datasets: Sequence[str] = ("lmms-lab-encoder/MMBench", "lmms-lab/MMBench")
    config: str | None = "en"
    split: str | None = "dev"
    max_new_tokens: int = 128
    name: str = "mmbench"
    circular: bool = True
    incomplete: str = "refuse"
    language: str = "en"
    compat: str = "ours"
    _made: list[int] = field(init=False, repr=False)  # beside `order`: the rotation to make of the row, 0 = as it is
    _group: list[int] = field(init=False, repr=False)

    NEEDS: ClassVar[tuple[str, ...]] = ("index", "image", "question", "options", "answer")
    USUAL: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "options": ("A",), "group": ("g_index",), "l2": ("l2-category", "L2-category"),
    }  # fmt: skip
    ALSO: ClassVar[tuple[str, ...]] = ("hint", "category")
    CHOICES: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "circular": (True, False), "incomplete": ("refuse", "complete"), "language": tuple(WORDING),
        "compat": ("ours", "vlmevalkit"),
    }  # fmt: skip

    def ordered(self) -> list[int]:
        """Group after group, in each the base row and its rotations."""
        groups, counts = self.groups(super().ordered()), self.option_counts()
        lost = [group for group, rows in groups.items() if group not in rows]
        if lost:
            raise ValueError(f"benchmark {self.name}: {self.rows.name} has no base row of the questions {few(lost)}")
        plan = {group: self.rotations(group, rows, counts[rows[group]]) for group, rows in groups.items()}
        cut = [group for group, asked in plan.items() if len(asked) != counts[groups[group][group]]]
        if cut and self.circular:
            raise ValueError(
                f"benchmark.incomplete: got {self.incomplete}, but in {self.rows.name} the questions {few(cut)} have "
                "not one row per option; complete makes missing ones, benchmark.circular=false asks base rows alone"
            )
        flat = [(group, at, made) for group, asked in plan.items() for at, made in asked]
        self._group, self._made = [group for group, _, _ in flat], [made for _, _, made in flat]
        return [at for _, at, _ in flat]

    def groups(self, chosen: Sequence[int]) -> dict[int, dict[int, int]]:
        """Group → {index: row}."""
        index, column = list(self.rows.values(self.named["index"])), self.named.get("group")
        given = list(self.rows.values(column)) if column else [None] * len(index)
        found: dict[int, dict[int, int]] = {}
        for at in chosen:
            number, group = self.place(at, index[at], given[at])
            rows = found.setdefault(group, {})
            if number in rows:
                raise ValueError(f"{self.rows.name} row {at}: index {number} is that of row {rows[number]} too")
            rows[number] = at
        return found

    def place(self, at: int, index: Any, group: Any) -> tuple[int, int]:
        """(index, group) of a row."""
        try:
            return int(index), int(index) % COPY if group is None else int(group)
        except (TypeError, ValueError):
            raise ValueError(
                f"{self.rows.name} row {at}: got index {index!r} and group {group!r}, valid are whole numbers"
            ) from None

    def option_counts(self) -> list[int]:
        """Row → its number of options."""
        columns = [self.named.get(letter, letter) for letter in ascii_uppercase]
        options = zip(*(self.rows.values(column) for column in columns if column in self.rows.columns))
        return [sum(cell(value) is not None for value in row) for row in options]

    def rotations(self, group: int, rows: Mapping[int, int], options: int) -> list[tuple[int, int]]:
        """(row, rotation to make of it) of all that is asked of a group."""
        if not self.circular:
            return [(rows[group], 0)]
        there = {(index - group) // COPY: (at, 0) for index, at in rows.items() if (index - group) % COPY == 0}
        if len(there) < len(rows) or self.incomplete == "refuse":  # or the copies are numbered in another way
            return [(rows[index], 0) for index in sorted(rows, key=lambda index: (index != group, index))]
        made = {turn: (rows[group], turn) for turn in range(options) if turn not in there}
        return [one for _, one in sorted((there | made).items())]

    def __getitem__(self, index: int) -> Sample:
        return self.rotation(self.row(self.order[index]), self._made[index])

    def sample(self, row: Row) -> Sample:
        return self.rotation(row, 0)

    def rotation(self, row: Row, made: int) -> Sample:
        options = options_of(row, "options")
        options, answer = turned(options, answer_of(row, options), made)
        index, group = self.place(row.at, row.get("index"), row.get("group"))
        above, directly = WORDING[self.language]
        said = " ".join(part for part in (row.maybe("hint"), row.text("question"), above) if part)
        rest = {"group": str(group), "of": len(options)} if self.circular else {}
        truth = {"options": options, "l2": row.maybe("l2"), **rest}
        return self.one_turn(row, str(index + made * COPY), f"{said}\n{lines(options)}\n\n{directly}", answer, truth)

    def kind(self, row: Row) -> str:
        return row.maybe("category") or self.name

    def whole(self, size: int) -> int:
        return whole_groups(self._group, size)

    def score(self, sample: Sample, replies: Sequence[str]) -> dict[str, Any]:
        found = verdict(replies[-1], sample.truth["options"], sample.reference[-1], self.compat)
        return found | {key: sample.truth[key] for key in ("l2", "group", "of") if key in sample.truth}

    def summary(self, records: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
        scored = [record for record in records if record["score"]["correct"] is not None]
        units = together(scored) if self.circular else [(record, record["score"]["correct"]) for record in scored]
        headline = {"circular": mean([hit for _, hit in units])} if self.circular else {}
        return {
            **headline, "vanilla": mean(right(records)),
            **shares(((record["kind"], hit) for record, hit in units), "category"),
            **shares(((record["score"].get("l2"), hit) for record, hit in units), "l2"),
        }  # fmt: skip


def few(groups: Sequence[int]) -> str:
    more = f" and {len(groups) - SHOWN} more" if len(groups) > SHOWN else ""
    return ", ".join(map(str, groups[:SHOWN])) + more
