"""A benchmark over rows: what the published ones share. A benchmark derives from Table and says what a row asks.

Knows the source of the rows, the mapping of columns and the settings of all of them. Does not know scores.
"""

import hashlib
import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from mmaccel.benchmarks.base import Benchmark, Sample
from mmaccel.benchmarks.quality import picture_facts
from mmaccel.benchmarks.rows import NOTHING, Row, Rows, Source

SHORT_ANSWER = "\nAnswer the question using a single word or phrase."


@dataclass
class Table(Benchmark):
    """path, images, datasets, config, split, revision: the source (`rows.Source`).

    columns: our name of a column → its name in the source, where it is not one of the usual. kinds: only these.
    longest_side: larger pictures are reduced to it; max_pixels: larger ones are refused.
    """

    path: str | None = None
    images: str | None = None
    datasets: Sequence[str] = ()
    config: str | None = None
    split: str | None = None
    revision: str | None = None
    columns: Mapping[str, str] | None = None
    kinds: Sequence[str] | None = None
    longest_side: int = 4096
    max_pixels: int = 60_000_000
    max_new_tokens: int = 16
    name: str = ""
    rows: Rows = field(init=False, repr=False)
    named: dict[str, str] = field(init=False, repr=False)
    order: list[int] = field(init=False, repr=False)

    NEEDS: ClassVar[tuple[str, ...]] = ("image", "question", "answer")
    USUAL: ClassVar[Mapping[str, tuple[str, ...]]] = {}  # other names that published files give a column
    ALSO: ClassVar[tuple[str, ...]] = ()  # columns that are read where they are, under no other name
    CHOICES: ClassVar[Mapping[str, tuple[Any, ...]]] = {}  # field → its valid values

    def __post_init__(self) -> None:
        self.check_settings()
        source = {one.name: getattr(self, one.name) for one in fields(Source)}
        self.rows = Source(**source).open()
        if not len(self.rows):
            raise ValueError(f"benchmark.path: {self.rows.name} has no rows")
        self.named = self.mapped()
        self.order = self.ordered()

    def check_settings(self) -> None:
        for name in ("longest_side", "max_pixels", "max_new_tokens"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"benchmark.{name}: got {value!r}, valid are whole numbers from 1 on")
        if isinstance(self.kinds, str):
            raise ValueError(f"benchmark.kinds: got {self.kinds!r}, valid is a list: benchmark.kinds=[{self.kinds}]")
        for name, valid in self.CHOICES.items():
            if getattr(self, name) not in valid:
                said = ", ".join(map(str, valid))
                raise ValueError(f"benchmark.{name}: got {getattr(self, name)!r}, valid are {said}")

    def mapped(self) -> dict[str, str]:
        """Our names → the source's columns; every needed one that is missing is named."""
        there = self.rows.columns
        known = {name: (name, *self.USUAL.get(name, ())) for name in dict.fromkeys([*self.NEEDS, *self.USUAL])}
        given = dict(self.columns or {})
        valid = dict.fromkeys([*self.NEEDS, *self.USUAL, *self.ALSO])
        unknown = [name for name in given if name not in valid and not (len(name) == 1 and name.isupper())]
        if unknown:
            raise ValueError(f"benchmark.columns: got the names {unknown}, valid are {', '.join(valid)}")
        wrong = [column for column in given.values() if column not in there]
        if wrong:
            raise ValueError(f"benchmark.columns: got {wrong}, {self.rows.name} has {', '.join(there)}")
        found = {name: next((one for one in usual if one in there), None) for name, usual in known.items()}
        found |= given
        missing = [name for name in self.NEEDS if found.get(name) is None]
        if missing:
            named = ", ".join(f"{name}: NAME" for name in missing)
            raise ValueError(
                f"benchmark {self.name}: {self.rows.name} lacks the columns {', '.join(missing)}; it has "
                f"{', '.join(there)}. 'benchmark.columns={{{named}}}' says where they stand"
            )
        return {name: column for name, column in found.items() if column is not None}

    def ordered(self) -> list[int]:
        """The rows to ask, in order."""
        if self.kinds is None:
            return list(range(len(self.rows)))
        of_rows = [self.kind(self.row(at)) for at in range(len(self.rows))]
        chosen = [at for at, kind in enumerate(of_rows) if kind in self.kinds]
        if not chosen:
            valid = ", ".join(sorted(set(of_rows)))
            raise ValueError(f"benchmark.kinds: {list(self.kinds)} leaves nothing; there are {valid}")
        return chosen

    def row(self, at: int) -> Row:
        return Row(self.rows, at, self.named, (self.longest_side, self.max_pixels))

    @property
    def answered(self) -> bool:
        """Whether any row has its answer: then agreement is kept beside the accuracy and not averaged with it."""
        columns = [self.named[name] for name in ("answer", "answers") if name in self.named]
        return any(str(cell).strip() not in NOTHING for column in columns for cell in self.rows.values(column))

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> Sample:
        return self.sample(self.row(self.order[index]))

    @abstractmethod
    def sample(self, row: Row) -> Sample:
        """What one row asks; raises ValueError for one that cannot be asked."""

    def kind(self, row: Row) -> str:
        """The category of a row; it needs no picture."""
        return self.name

    def one_turn(
        self, row: Row, id: str, question: str, reference: str | None, truth: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> Sample:  # fmt: skip
        """A sample of one picture and one turn."""
        image, (width, height) = row.picture()
        facts = picture_facts(image) | {"width": width, "height": height}
        return Sample(id, self.kind(row), image, (question,), (reference,), facts=facts, truth=truth or {}, **more)

    def digest(self, size: int) -> str:
        """sha256 over the first `size` rows' cells, pictures as the bytes they are stored in, and the settings that
        change a prompt."""
        total = hashlib.sha256(json.dumps([type(self).__name__, self.settings()], default=str).encode())
        for at in self.order[:size]:
            cells = self.rows[at]
            for column in self.rows.columns:
                total.update(column.encode() + b"\0" + self.rows.stored(cells.get(column)) + b"\n")
        return total.hexdigest()

    def settings(self) -> list[Any]:
        """Fields that a benchmark adds to these, and what of these changes what is asked."""
        own = {one.name for one in fields(self)} - {one.name for one in fields(Table)} | {"longest_side", "named"}
        return [[name, getattr(self, name)] for name in sorted(own) if not name.startswith("_")]


def right(records: Sequence[Mapping[str, Any]]) -> list[float]:
    """The scores of the records that have one."""
    return [record["score"]["correct"] for record in records if record["score"].get("correct") is not None]
