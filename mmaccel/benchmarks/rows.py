"""Where a benchmark's rows come from: a file in the layout its authors publish, or a data set of the Hub.

Knows parquet, TSV, CSV, JSON and JSONL, the ways in which they hold pictures, and the order in which sources are tried.
Does not know what a column means. Pictures are decoded when a row is asked for them; everything else is checked when
the source is opened, before a model is loaded.
"""

import ast
import base64
import binascii
import csv
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image

from mmaccel.benchmarks.folder import file_digest, read_picture

FILES = (".parquet", ".tsv", ".csv", ".jsonl", ".json")
REFERENCE = 64  # a picture's cell up to so many characters names the row whose picture it is
LONGEST_NAME = 1024  # characters of a file's name; a longer cell is no name
NOTHING = ("", "nan", "None", "null")  # how missing text is spelled where a cell cannot be empty
Cells = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Source:
    """path: a file, or a folder of parquet files; without one the `datasets` are tried in their order.

    images: the folder that pictures' names are relative to, null = the file's own. config, split, revision: of a data
    set of the Hub; a split that is a prefix of a folder's parquet files picks those.
    """

    path: str | None = None
    images: str | None = None
    datasets: Sequence[str] = ()
    config: str | None = None
    split: str | None = None
    revision: str | None = None

    def open(self) -> "Rows":
        """Raises ValueError that says what was tried."""
        if self.path:
            return self.local(Path(self.path).expanduser())
        if isinstance(self.datasets, str) or not self.datasets:
            raise ValueError(f"benchmark.path: a file is needed, or benchmark.datasets: got {self.datasets!r}")
        said = []
        for name in self.datasets:
            try:
                return Rows(hub_rows(name, self.config, self.split, self.revision), name)
            except Exception as error:  # the library's own kinds are many; each source may fail in another way
                said.append(f"  {name}: {type(error).__name__}: {error}".splitlines()[0])
        where = f"config {self.config!r}, split {self.split!r}"
        raise ValueError("\n".join([f"benchmark.datasets: none could be opened ({where}); benchmark.path=FILE reads "
                                    f"a local {', '.join(FILES)}", *said]))  # fmt: skip

    def local(self, path: Path) -> "Rows":
        if not path.exists():
            raise ValueError(f"benchmark.path: no file or folder {str(path)!r}")
        folder = Path(self.images).expanduser() if self.images else path if path.is_dir() else path.parent
        if not folder.is_dir():
            raise ValueError(f"benchmark.images: {str(folder)!r} is no folder")
        if path.is_dir():
            files = sorted(path.rglob("*.parquet"))
            files = [file for file in files if file.name.startswith(f"{self.split}-")] or files
            if not files:
                raise ValueError(f"benchmark.path: no parquet file in {str(path)!r}")
            return Rows(parquet_rows(files), path.name, folder)
        if path.suffix not in FILES:
            raise ValueError(f"benchmark.path: {path.name!r}, read are {', '.join(FILES)}")
        return Rows(parquet_rows([path]) if path.suffix == ".parquet" else text_rows(path), path.name, folder)


class Rows(Sequence):
    """The rows of one source; `name` stands in front of every complaint."""

    def __init__(self, cells: Cells, name: str, folder: Path | None = None) -> None:
        self.cells, self.name, self.folder = cells, name, folder
        named = getattr(cells, "column_names", None)  # of a text file, whose rows may differ, all that occur
        self.columns: tuple[str, ...] = tuple(named or dict.fromkeys(name for row in cells for name in row))
        self.by_index: dict[str, int] | None = None

    def __len__(self) -> int:
        return len(self.cells)

    def __getitem__(self, at: int) -> Mapping[str, Any]:  # type: ignore[override]
        return self.cells[at]

    def of_index(self, wanted: str) -> int | None:
        """The row whose `index` is `wanted`."""
        if self.by_index is None:
            self.by_index = {str(index): at for at, index in enumerate(self.values("index"))}
        return self.by_index.get(wanted)

    def file(self, name: str) -> Path | None:
        """The file of the pictures' folder that a cell names, if it names one inside of it."""
        if self.folder is None or not 0 < len(name) <= LONGEST_NAME:
            return None
        file = (self.folder / name).resolve()
        return file if file.is_relative_to(self.folder.resolve()) and file.is_file() else None

    def stored(self, value: Any) -> bytes:
        """What a cell holds, for a hash; of a picture its file's bytes or their digest."""
        if isinstance(value, bytes):
            return value
        if isinstance(value, Mapping) and isinstance(value.get("bytes"), bytes):
            return value["bytes"]
        held = self.file(value) if isinstance(value, str) else None
        return json.dumps(value, default=str, sort_keys=True).encode() if held is None else file_digest(held).encode()

    def values(self, column: str) -> Iterator[Any]:
        """One column, without touching pictures."""
        if column not in self.columns:
            return iter(())
        narrow = getattr(self.cells, "select_columns", None)
        return (cells.get(column) for cells in (narrow([column]) if narrow else self.cells))


@dataclass(frozen=True)
class Row:
    """One row with the benchmark's own names for its columns. A name that the source lacks reads as missing."""

    rows: Rows
    at: int
    named: Mapping[str, str]
    limits: tuple[int, int]  # longest side shown, most pixels read
    cells: Mapping[str, Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "cells", self.rows[self.at])

    @property
    def where(self) -> str:
        return f"{self.rows.name} row {self.at}"

    def get(self, name: str) -> Any:
        return self.cells.get(self.named.get(name, name))

    def maybe(self, name: str) -> str | None:
        """Text, or None where there is none in any of the spellings of none."""
        value = self.get(name)
        text = "" if value is None or value != value else str(value)
        return None if text.strip() in NOTHING else text

    def text(self, name: str) -> str:
        """Text that must be there; a word that elsewhere spells none, such as the answer "None", is itself."""
        value = self.get(name)
        if value is None or value != value or not str(value).strip():
            raise ValueError(f"{self.where}, column {self.named.get(name, name)!r}: empty")
        return str(value)

    def several(self, name: str) -> list[str]:
        """A list of texts; one that is written as Python or JSON writes it is read, a single text is a list of one."""
        value = self.get(name)
        if isinstance(value, str):
            value = listed(value)
        return [] if value is None else [str(one) for one in value]

    def has(self, name: str) -> bool:
        value = self.get(name)
        return value is not None and value == value and value != ""

    def picture(self, name: str = "image") -> tuple[Image.Image, tuple[int, int]]:
        """(the picture upright in RGB, reduced to the longest side; its size before that)."""
        column = self.named.get(name, name)
        try:
            return read_picture(self.opened(self.get(name)), *self.limits)
        except Exception as error:  # Pillow's decoders raise OSError, SyntaxError, ValueError and struct.error alike
            kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
            raise ValueError(f"{self.where}, column {column!r}: {kind}{error}") from error

    def opened(self, cell: Any, followed: bool = False) -> Path | BytesIO:
        """A cell as a stream: a file's bytes, base64, the name of a file, or another row's index."""
        if isinstance(cell, Mapping):
            if cell.get("bytes") is not None:
                return BytesIO(cell["bytes"])
            cell = cell.get("path")
        if isinstance(cell, bytes):
            return BytesIO(cell)
        if isinstance(cell, int) and not isinstance(cell, bool):
            cell = str(cell)
        if not isinstance(cell, str) or not cell.strip():
            raise ValueError(f"got {type(cell).__name__} for a picture, valid are bytes, base64 and a file's name")
        if len(cell) <= REFERENCE:
            other = None if followed else self.rows.of_index(cell)
            if other is not None and other != self.at:
                return self.opened(self.rows[other].get(self.named.get("image", "image")), followed=True)
            return self.inside(cell)
        try:
            return BytesIO(base64.b64decode(cell, validate=True))
        except (binascii.Error, ValueError):
            return self.inside(cell)

    def inside(self, name: str) -> Path:
        """A file of the pictures' folder, never one outside of it."""
        if self.rows.folder is None:
            raise ValueError(f"{name!r}: no folder of pictures is known; benchmark.images=DIR names it")
        file = (self.rows.folder / name).resolve()
        if not file.is_relative_to(self.rows.folder.resolve()):
            raise ValueError(f"{name!r} lies outside {str(self.rows.folder)!r}")
        if not file.is_file():
            raise ValueError(
                f"no picture {name!r} in {str(self.rows.folder)!r}; benchmark.images=DIR says where they are"
            )
        return file


def listed(text: str) -> Any:
    """What a Python or JSON list in a cell holds; any other text is a list of itself."""
    if text.strip().startswith("["):
        for read in (json.loads, ast.literal_eval):
            try:
                found = read(text.strip())
            except (ValueError, SyntaxError, MemoryError, RecursionError):
                continue
            if isinstance(found, list):
                return [one for one in found if one is not None]
    return [text] if text.strip() not in NOTHING else None


def text_rows(path: Path) -> list[dict[str, Any]]:
    """Rows of a table or of JSON; every complaint names the line."""
    if path.suffix in (".tsv", ".csv"):
        return table_rows(path, "\t" if path.suffix == ".tsv" else ",")
    if path.suffix == ".json":
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except json.JSONDecodeError as error:
            if error.msg == "Extra data":  # lines of JSON under the name of one
                return json_rows(path)
            raise ValueError(f"{path.name}: no JSON ({error})") from None
        if not isinstance(found, list) or not all(isinstance(row, dict) for row in found):
            raise ValueError(f"{path.name}: valid is a list of objects, one a row")
        return found
    return json_rows(path)


def json_rows(path: Path) -> list[dict[str, Any]]:
    lines = path.read_text(encoding="utf-8").split("\n")
    return [json_row(path, at, line) for at, line in enumerate(lines, 1) if line.strip()]


def json_row(path: Path, at: int, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{path.name} line {at}: no JSON ({error})") from None
    if not isinstance(row, dict):
        raise ValueError(f"{path.name} line {at}: got a {type(row).__name__}, valid is an object")
    return row


def table_rows(path: Path, delimiter: str) -> list[dict[str, Any]]:
    csv.field_size_limit(sys.maxsize)  # a picture in base64 is one field
    with path.open(newline="", encoding="utf-8-sig") as lines:
        reader = csv.DictReader(lines, delimiter=delimiter, strict=True)
        try:
            rows = list(reader)
        except (csv.Error, UnicodeDecodeError) as error:
            raise ValueError(f"{path.name} line {reader.line_num + 1}: {error}") from None
    long = next((at for at, row in enumerate(rows) if None in row), None)
    if long is not None:
        raise ValueError(f"{path.name} row {long}: more values than columns {list(reader.fieldnames or ())}")
    return rows


def parquet_rows(files: Sequence[Path]) -> Any:
    import datasets

    return undecoded(datasets.load_dataset("parquet", data_files=[str(file) for file in files], split="train"))


def hub_rows(name: str, config: str | None, split: str | None, revision: str | None) -> Any:
    import datasets

    return undecoded(datasets.load_dataset(name, config, split=split, revision=revision))


def undecoded(table: Any) -> Any:
    """Pictures, alone or in lists, stay their file's bytes until they are asked for; nothing else is decoded at all."""
    for column, kind in table.features.items():
        stored = as_stored(kind)
        if stored != kind:
            table = table.cast_column(column, stored)
    return table


def as_stored(kind: Any) -> Any:
    """A feature in which nothing is decoded, nor fetched, when a row is read."""
    import datasets

    if isinstance(kind, (datasets.Image, datasets.Audio, datasets.Video)):
        return type(kind)(decode=False)
    if isinstance(kind, dict):
        return {name: as_stored(inner) for name, inner in kind.items()}
    if isinstance(kind, list):
        return [as_stored(inner) for inner in kind]
    if hasattr(kind, "feature"):
        return replace(kind, feature=as_stored(kind.feature))
    return kind
