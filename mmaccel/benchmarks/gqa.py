"""GQA (https://arxiv.org/abs/1902.09506): questions made from scene graphs, with pictures in a table of their own.

Knows the two tables and how they are joined (imageId → id), the prompt and the scores. Pictures may also be files named
by imageId, or stand in the questions' own table.
"""

import hashlib
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

from PIL import Image

from mmaccel.benchmarks.base import Sample
from mmaccel.benchmarks.folder import FORMATS, file_digest, read_picture
from mmaccel.benchmarks.rows import Row, Rows, Source
from mmaccel.benchmarks.table import SHORT_ANSWER, Table, right
from mmaccel.benchmarks.vqa_accuracy import by_name
from mmaccel.measure.scores import mean

Picture = tuple[Image.Image, tuple[int, int]]
WITHOUT_MARKS = str.maketrans("", "", string.punctuation)
OPEN = "query"  # the structural type whose questions are open; those of all others name their possible answers


class Pictures(Protocol):
    """imageId → picture; a missing one raises ValueError."""

    def has(self, id: str) -> bool: ...
    def picture(self, id: str, limits: tuple[int, int]) -> Picture: ...
    def stored(self, id: str) -> bytes: ...


@dataclass(frozen=True)
class TablePictures:
    rows: Rows
    at: Mapping[str, int]

    def has(self, id: str) -> bool:
        return id in self.at

    def place(self, id: str) -> int:
        if id not in self.at:
            raise ValueError(f"{self.rows.name} has no picture {id!r}")
        return self.at[id]

    def picture(self, id: str, limits: tuple[int, int]) -> Picture:
        return Row(self.rows, self.place(id), {}, limits).picture()

    def stored(self, id: str) -> bytes:
        return self.rows.stored(self.rows[self.place(id)]["image"])


@dataclass(frozen=True)
class FilePictures:
    folder: Path

    def named(self, id: str) -> Path | None:
        """Never a file outside of the folder."""
        files = ((self.folder / f"{id}{ending}").resolve() for ending in ("", *FORMATS))
        return next((file for file in files if file.is_relative_to(self.folder.resolve()) and file.is_file()), None)

    def has(self, id: str) -> bool:
        return self.named(id) is not None

    def file(self, id: str) -> Path:
        found = self.named(id)
        if found is None:
            raise ValueError(f"no picture {id!r} in {str(self.folder)!r}, read are {', '.join(FORMATS)}")
        return found

    def picture(self, id: str, limits: tuple[int, int]) -> Picture:
        file = self.file(id)
        try:
            return read_picture(file, *limits)
        except Exception as error:  # Pillow's decoders raise OSError, SyntaxError, ValueError and struct.error alike
            raise ValueError(f"{file.name!r}: {type(error).__name__}: {error}") from error

    def stored(self, id: str) -> bytes:
        return file_digest(self.file(id)).encode()


@dataclass(frozen=True)
class JoinedRow(Row):
    pictures: Pictures | None = None  # None: the row has its own

    def picture(self, name: str = "image") -> Picture:
        if self.pictures is None:
            return super().picture(name)
        try:
            return self.pictures.picture(self.text("imageId"), self.limits)
        except ValueError as error:
            raise ValueError(f"{self.where}, column {self.named.get('imageId')!r}: {error}") from error


@dataclass
class Gqa(Table):
    """Columns: question, answer, and image or imageId; id and types (its `structural` is the kind) where there are any.

    path: the questions. pictures: the pictures of a local path, a table with the columns id and image or a folder of
    files; pictures_config: the config of the pictures on the Hub.
    compat: lmms = equal without case and any punctuation (lmms-eval); vlmevalkit = equal without case (VLMEvalKit), so
    that "yes." is wrong. Scores are shares.
    """

    datasets: Sequence[str] = ("lmms-lab-encoder/GQA", "lmms-lab/GQA")
    config: str | None = "testdev_balanced_instructions"
    split: str | None = "testdev"
    name: str = "gqa"
    compat: str = "lmms"
    pictures: str | None = None
    pictures_config: str | None = "testdev_balanced_images"
    _store: Pictures | None = field(init=False, repr=False, default=None)

    NEEDS: ClassVar = ("question", "answer")
    USUAL: ClassVar = {"id": ("question_id", "index"), "image": (), "imageId": ("image_id",), "types": ()}
    CHOICES: ClassVar = {"compat": ("lmms", "vlmevalkit")}

    def __post_init__(self) -> None:
        super().__post_init__()
        if "image" not in self.named:
            self._store = self.joined()

    def joined(self) -> Pictures:
        """Raises ValueError where the two tables have nothing in common."""
        if "imageId" not in self.named:
            raise ValueError(
                f"benchmark {self.name}: {self.rows.name} has neither image nor imageId; it has "
                f"{', '.join(self.rows.columns)}"
            )
        store = self.opened()
        wanted = [str(one) for one in self.rows.values(self.named["imageId"])]
        if not any(store.has(one) for one in dict.fromkeys(wanted)):
            raise ValueError(
                f"benchmark.pictures: {self.pictures or self.pictures_config} has none of the pictures that "
                f"{self.rows.name} names, the first is {wanted[0]!r}"
            )
        return store

    def opened(self) -> Pictures:
        if self.path and not self.pictures:
            raise ValueError(
                f"benchmark.pictures: needed, for {self.rows.name} only names its pictures; valid are the parquet "
                "file of the pictures, its folder and a folder of picture files named by imageId"
            )
        place = Path(self.pictures).expanduser() if self.pictures else None
        if place and place.is_dir() and not any(place.rglob("*.parquet")):
            return FilePictures(place)
        rows = Source(
            path=self.pictures, datasets=self.datasets, config=self.pictures_config, split=self.split,
            revision=self.revision,
        ).open()  # fmt: skip
        missing = [column for column in ("id", "image") if column not in rows.columns]
        if missing:
            raise ValueError(f"benchmark.pictures: {rows.name} lacks {missing}, it has {', '.join(rows.columns)}")
        return TablePictures(rows, {str(id): at for at, id in enumerate(rows.values("id"))})

    def row(self, at: int) -> Row:
        return JoinedRow(self.rows, at, self.named, (self.longest_side, self.max_pixels), self._store)

    def kind(self, row: Row) -> str:
        types = row.get("types")
        return str(types.get("structural") or self.name) if isinstance(types, Mapping) else self.name

    def sample(self, row: Row) -> Sample:
        return self.one_turn(
            row, id=row.maybe("id") or str(row.at), question=row.text("question") + SHORT_ANSWER,
            reference=row.text("answer"),
        )  # fmt: skip

    def form(self, text: str) -> str:
        plain = text.strip().lower()
        return plain.translate(WITHOUT_MARKS) if self.compat == "lmms" else plain

    def score(self, sample: Sample, replies: Sequence[str]) -> dict[str, Any]:
        said = self.form(replies[-1])
        return {"correct": float(bool(said) and said == self.form(sample.reference[0] or "")), "parsed": said or None}

    def summary(self, records: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
        """overall, and the two halves that GQA's authors report: binary (yes or no, or one of two) and open."""
        typed = [record for record in records if record["kind"] != self.name]
        found = by_name(typed, lambda record: ("open" if record["kind"] == OPEN else "binary",))
        return {"overall": mean(right(records)), "binary": found.get("binary"), "open": found.get("open")}

    def settings(self) -> list[Any]:
        """Where the pictures come from changes no prompt; what they are is in the digest."""
        return [one for one in super().settings() if one[0] not in ("pictures", "pictures_config")]

    def digest(self, size: int) -> str:
        total = hashlib.sha256(super().digest(size).encode())
        if self._store is not None:
            rows = (self.row(at) for at in self.order[:size])
            for id in dict.fromkeys(row.maybe("imageId") or "" for row in rows):
                total.update(id.encode() + b"\0" + (self._store.stored(id) if self._store.has(id) else b"") + b"\n")
        return total.hexdigest()
