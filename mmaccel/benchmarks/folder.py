"""A folder of one's own pictures, with one's own questions or without any.

Knows files: JPEG, PNG and WebP, EXIF orientation, an optional CSV `image,question,answer,kind`. Does not know models:
where no answer is given `score` says correct=None, and whoever runs the points may fill in the agreement with the
unpruned reply (`evaluate` does). Every file is looked at when the benchmark is made, so that a bad one is named before
a model is loaded; pixels are decoded one picture at a time.
"""

import csv
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from mmaccel.benchmarks.base import Benchmark, Sample
from mmaccel.benchmarks.quality import picture_facts
from mmaccel.benchmarks.text import judge, normal

FORMATS = {".jpg": "JPEG", ".jpeg": "JPEG", ".png": "PNG", ".webp": "WEBP"}
COLUMNS, OPTIONAL = ("image", "question"), ("answer", "kind")
REFUSE, KEEP = "refuse", "keep"
STRETCH = 1 << 18  # bytes
QUESTIONS = ("What is in the picture?", "How many objects are there?", "What is the main colour?")


@dataclass(frozen=True)
class Entry:
    image: Path
    question: str
    answer: str | None
    kind: str


@dataclass
class Folder(Benchmark):
    """path: the folder. questions: a CSV (images relative to the folder); without one every picture is asked `ask`.

    contains: an answer also counts when it stands in a longer reply. broken: a file that is no picture is refused here,
    or kept, so that the input gate names it and a run makes error records of it. longest_side: larger pictures are
    reduced to it; max_pixels: larger ones are refused. kinds: only questions of these kinds.
    """

    path: str | Path
    questions: str | Path | None = None
    ask: Sequence[str] = QUESTIONS
    recursive: bool = False
    kinds: Sequence[str] | None = None
    contains: bool = False
    broken: str = REFUSE
    longest_side: int = 2048
    max_pixels: int = 60_000_000
    max_new_tokens: int = 32
    name: str = "folder"
    entries: list[Entry] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not str(self.path or "").strip():
            raise ValueError("benchmark.path: the folder benchmark needs a folder, e.g. benchmark.path=~/pictures")
        self.path = Path(self.path).expanduser()
        if not self.path.is_dir():
            raise ValueError(f"benchmark.path: {str(self.path)!r} is no folder")
        self._check_settings()
        found = list(self._from_csv() if self.questions else self._from_files())
        self.entries = [entry for entry in found if self.kinds is None or entry.kind in self.kinds]
        if not self.entries:
            kinds = sorted({entry.kind for entry in found})
            raise ValueError(f"benchmark.kinds: {list(self.kinds or ())} leaves nothing; kinds there are {kinds}")

    def _check_settings(self) -> None:
        """A lone string would be read letter by letter."""
        for name, values in (("ask", self.ask), ("kinds", self.kinds)):
            if values is None and name == "kinds":
                continue
            words = not isinstance(values, str | bytes) and isinstance(values, Sequence)
            if not words or not values or not all(isinstance(v, str) and v.strip() for v in values or ()):
                raise ValueError(f"benchmark.{name}: got {values!r}, valid is a list of texts: benchmark.{name}=[…]")
        if self.broken not in (REFUSE, KEEP):
            raise ValueError(f"benchmark.broken: got {self.broken!r}, valid are {REFUSE}, {KEEP}")
        for name in ("longest_side", "max_pixels", "max_new_tokens"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"benchmark.{name}: got {value!r}, valid are whole numbers from 1 on")

    @property
    def answered(self) -> bool:
        """Whether any question has an answer: then accuracy is over those alone, and agreement is kept beside it."""
        return any(entry.answer is not None for entry in self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, index: int) -> Sample:
        entry = self.entries[index]
        name = entry.image.relative_to(self.path).as_posix()
        try:
            image, shown = read_picture(entry.image, self.longest_side, self.max_pixels)
        except Exception as error:  # Pillow's decoders raise OSError, SyntaxError, ValueError and struct.error alike
            raise ValueError(f"{name!r}: cannot be decoded ({type(error).__name__}: {error})") from error
        facts = picture_facts(image) | {"width": shown[0], "height": shown[1]}
        return Sample(f"{name}#{index}", entry.kind, image, (entry.question,), (entry.answer,), facts=facts)

    def digest(self, size: int) -> str:
        """sha256 over the first `size` questions, their answers and a sample of their pictures' bytes."""
        total, seen = hashlib.sha256(), dict[Path, str]()
        for entry in self.entries[:size]:
            if entry.image not in seen:
                seen[entry.image] = file_digest(entry.image)
            name = entry.image.relative_to(self.path).as_posix()
            facts = [name, entry.question, entry.answer, entry.kind, seen[entry.image]]
            total.update(json.dumps(facts).encode() + b"\n")
        return total.hexdigest()

    def score(self, sample: Sample, replies: Sequence[str]) -> dict[str, Any]:
        reply, reference = replies[-1], sample.reference[len(replies) - 1]
        if reference is None:
            return {"correct": None, "parsed": normal(reply) or None}
        parsed, correct = judge(reply, reference, contains=self.contains)
        return {"correct": correct, "parsed": parsed}

    def _from_files(self) -> Iterator[Entry]:
        pictures = sorted(p for p in self._walk() if p.suffix.lower() in FORMATS)
        if not pictures:
            endings = sorted({p.suffix.lower() or p.name for p in self._walk()})[:8]
            deeper = "" if self.recursive else "; benchmark.recursive=true looks in subfolders"
            raise ValueError(
                f"benchmark.path: no picture in {str(self.path)!r} (files there end in {endings}); read are "
                f"{sorted(FORMATS)}, in any case{deeper}"
            )
        for picture in pictures:
            self.checked(picture)
            yield from (Entry(picture, question, None, "open") for question in self.ask)

    def checked(self, picture: Path) -> None:
        """Raises for a file that is missing or of no known kind, and unless they are kept for one that is broken."""
        try:
            check_picture(picture, self.max_pixels)
        except ValueError as error:
            there = picture.is_file() and picture.suffix.lower() in FORMATS
            if self.broken == REFUSE or not there:
                hint = "; benchmark.broken=keep goes on without it" if there else ""
                raise ValueError(f"{error}{hint}") from None

    def _walk(self) -> Iterator[Path]:
        root = Path(self.path)
        return (p for p in (root.rglob("*") if self.recursive else root.iterdir()) if p.is_file())

    def _from_csv(self) -> Iterator[Entry]:
        table = Path(str(self.questions)).expanduser()
        table = table if table.is_file() else Path(self.path) / table
        if not table.is_file():
            raise ValueError(f"benchmark.questions: no file {str(self.questions)!r}, neither here nor in the folder")
        checked: set[Path] = set()
        for at, row in read_table(table):
            picture = (Path(self.path) / row["image"]).resolve()
            if not picture.is_relative_to(Path(self.path).resolve()):
                raise ValueError(f"{at}, column 'image': {row['image']!r} lies outside {str(self.path)!r}")
            if picture not in checked:
                try:
                    self.checked(picture)
                except ValueError as error:
                    raise ValueError(f"{at}, column 'image': {error}") from None
                checked.add(picture)
            answer = row.get("answer") or None
            yield Entry(Path(self.path) / row["image"], row["question"], answer, row.get("kind") or "open")


def read_table(table: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """("file row n", {column: value}) per line of questions; every complaint names the row and the column."""
    with table.open(newline="", encoding="utf-8-sig") as lines:
        reader = csv.DictReader(lines, strict=True)
        try:
            header = [name.strip() for name in reader.fieldnames or ()]
            wrong = [name for name in header if name not in COLUMNS + OPTIONAL]
            missing = [name for name in COLUMNS if name not in header]
            if wrong or missing:
                raise ValueError(
                    f"{table.name} row 1: unknown columns {wrong}, missing columns {missing}; "
                    f"needed are {list(COLUMNS)}, optional {list(OPTIONAL)}, separated by commas"
                )
            reader.fieldnames = header
            for row in reader:
                at = f"{table.name} row {reader.line_num}"
                yield at, _checked_row(at, row)
        except (csv.Error, UnicodeDecodeError) as error:
            raise ValueError(f"{table.name} row {reader.line_num + 1}: not readable as UTF-8 CSV ({error})") from None


def _checked_row(at: str, row: dict[Any, Any]) -> dict[str, str]:
    if None in row:
        raise ValueError(f"{at}: {len(row[None])} values more than columns; quote a value that holds a comma")
    short = [name for name, value in row.items() if value is None]
    if short:
        raise ValueError(f"{at}, column {short[0]!r}: no value, the row ends before it")
    values = {name: value.strip() for name, value in row.items()}
    for name in COLUMNS:
        if not values[name]:
            raise ValueError(f"{at}, column {name!r}: empty")
    return values


def check_picture(path: Path, max_pixels: int) -> None:
    """Reads the header only; raises for what is missing, no picture, too large or a decompression bomb."""
    if not path.is_file():
        raise ValueError(f"no picture {path.name!r}")
    if path.suffix.lower() not in FORMATS:
        raise ValueError(f"{path.name!r}: read are {sorted(FORMATS)}")
    try:
        with Image.open(path, formats=tuple(set(FORMATS.values()))) as image:
            width, height = image.size
            image.verify()
    except Image.DecompressionBombError as error:
        raise ValueError(f"{path.name!r}: refused as a decompression bomb ({error})") from None
    except Exception as error:  # Pillow's decoders raise OSError, SyntaxError, ValueError and struct.error alike
        raise ValueError(f"{path.name!r}: not readable as JPEG, PNG or WebP ({type(error).__name__})") from None
    if width * height > max_pixels:
        raise ValueError(
            f"{path.name!r}: {width} × {height} = {width * height:,} pixels, at most "
            f"benchmark.max_pixels={max_pixels:,}"
        )


def file_digest(path: Path) -> str:
    """sha256 over a file's size, its beginning, middle and end: an edited picture differs there, and a folder of many
    large ones is still hashed in moments."""
    size, total = path.stat().st_size, hashlib.sha256()
    total.update(f"{size}\n".encode())
    with path.open("rb") as stream:
        for start in sorted({0, max(size // 2 - STRETCH // 2, 0), max(size - STRETCH, 0)}):
            stream.seek(start)
            total.update(stream.read(STRETCH))
    return total.hexdigest()


def read_picture(
    source: Path | BytesIO, longest_side: int, max_pixels: int | None = None
) -> tuple[Image.Image, tuple[int, int]]:
    """(the picture upright, in RGB, its longer side at most `longest_side`; its upright size before that).

    max_pixels: refused above it, before a pixel is decoded; None where the header was checked before."""
    with Image.open(source, formats=tuple(set(FORMATS.values()))) as opened:
        if max_pixels is not None and opened.width * opened.height > max_pixels:
            raise ValueError(f"{opened.width} × {opened.height} pixels, at most benchmark.max_pixels={max_pixels:,}")
        image = ImageOps.exif_transpose(opened)
        shown = image.size
        image = _rgb(image)
    if max(shown) > longest_side:
        image.thumbnail((longest_side, longest_side), Image.Resampling.LANCZOS)
    return image, shown


def _rgb(image: Image.Image) -> Image.Image:
    """Eight-bit RGB; 16-bit grey is scaled, not clipped, and transparency is shown on white."""
    if image.mode.startswith("I"):
        image = Image.fromarray((np.asarray(image).astype(np.uint32) >> 8).clip(0, 255).astype(np.uint8))
    if "A" in image.getbands() or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, image).convert("RGB")
    return image.convert("RGB")
