"""Image conversations to train on from a data set of rows: a parquet file, or a data set of the Hub by its id.

The conversations of all rows are checked when it is opened; pictures are decoded when they are asked for.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import datasets
from PIL import Image

from mmaccel.training.data import (
    MARK,
    Conversation,
    Message,
    Problem,
    answers_in,
    check_problems,
    check_some,
    filled,
    opened,
    told,
    worded,
)


@dataclass
class Rows:
    """Rows of a data set with LLaVA's conversations in a column and the picture, or a list of them, in another.

    path: a .parquet file, or the Hub id of a data set, of which `name` is a configuration, `split` a part and
    `revision` a commit.  image, conversations: the columns.  The others are Llava's."""

    path: str
    name: str | None = None
    split: str = "train"
    revision: str | None = None
    image: str = "image"
    conversations: str = "conversations"
    most_bad: int = 100
    limit: int | None = None
    text_only: bool = False
    problems: list[Problem] = field(default_factory=list, init=False)
    records: list[tuple[str, list[Message], int]] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        if Path(self.path).suffix == ".parquet":
            if not Path(self.path).is_file():
                raise FileNotFoundError(f"data.path: {self.path} is no file")
            self.table = datasets.load_dataset("parquet", data_files=self.path, split="train")
        else:
            self.table = datasets.load_dataset(self.path, self.name, split=self.split, revision=self.revision)
        columns = self.table.column_names
        wrong = [name for name in (self.image, self.conversations) if name not in columns]
        if wrong:
            raise ValueError(f"data.image, data.conversations: got {wrong}, the columns are {', '.join(columns)}")
        cast = self.table.features[self.image]
        if isinstance(cast, datasets.Image):
            self.table = self.table.cast_column(self.image, datasets.Image(decode=False))
        elif isinstance(getattr(cast, "feature", None), datasets.Image):
            self.table = self.table.cast_column(self.image, datasets.List(datasets.Image(decode=False)))
        named = "id" in columns
        words = self.table.select_columns([self.conversations, *(["id"] if named else [])])
        for row, record in enumerate(words):
            where = f"{self.path}:row {row}"
            try:
                messages, _ = told(record[self.conversations])
                self.records.append((str(record["id"]) if named else where, messages, row))
            except (ValueError, TypeError) as error:
                self.problems.append(Problem(where, str(error)))
            check_problems(self.path, self.problems, self.most_bad)
            if self.limit is not None and len(self.records) >= self.limit:
                break
        check_some(self.path, self.records, self.problems)

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> Conversation:
        name, messages, row = self.records[index]
        if self.text_only:
            return Conversation(name, [worded(message) for message in messages])
        cell, where = self.table[row][self.image], f"{self.path}:row {row}"
        pictures = [] if cell is None else cell if isinstance(cell, list) else [cell]
        parts = [part for message in messages if isinstance(message["content"], list) for part in message["content"]]
        marks = sum(part["type"] == "image" for part in parts)
        if marks != len(pictures):
            raise ValueError(f"{where}: has {len(pictures)} pictures and {marks} {MARK} marks")
        return Conversation(name, [filled(message, lambda at: decoded(pictures[at], where)) for message in messages])

    def answers(self, index: int) -> list[str]:
        return answers_in(self.records[index][1])


def decoded(cell: Any, where: str) -> Image.Image:
    """A picture as the library keeps it: its file's bytes, or the path of one."""
    data = cell.get("bytes") if isinstance(cell, Mapping) else cell
    if data is None and isinstance(cell, Mapping) and cell.get("path"):
        return opened(Path(cell["path"]))
    if not isinstance(data, bytes):
        raise ValueError(f"{where}: got a {type(cell).__name__} for a picture, valid are a file's bytes")
    return opened(BytesIO(data), where)
