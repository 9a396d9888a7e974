"""Your own dialogues in LLaVA's JSON or JSONL with a folder of pictures: the human's turns are asked one after another.

Every later turn carries what the model itself said before; the file's answers stand in `truth` and are never shown.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from PIL import Image

from mmaccel.benchmarks.base import Sample
from mmaccel.benchmarks.folder import read_picture
from mmaccel.benchmarks.free_text import FreeText
from mmaccel.benchmarks.ordering import pictured
from mmaccel.benchmarks.quality import picture_facts
from mmaccel.benchmarks.rows import Row

MARK = "<image>"
ROLES = {"human": "human", "user": "human", "gpt": "gpt", "assistant": "gpt"}
_LEADING, _MARKED = re.compile(rf"(?:{MARK}\s*)+"), re.compile(rf"\n*{MARK}\n*")


@dataclass
class Dialogues(FreeText):
    """path: records {"id", "image": a name or names, "conversations": [{"from": "human" | "gpt", "value"}]}.
    images: the folder the names are relative to. turns: at most so many of the human's are asked; null = all.

    "<image>" in the first turn is where a picture stands; without one they stand in front. Records without a picture
    are left out, counted in `left_out`; one whose turns are out of order or whose marks are not its pictures becomes an
    error record.
    """

    max_new_tokens: int = 256
    name: str = "dialogues"
    turns: int | None = None
    left_out: int = field(init=False, repr=False)

    NEEDS: ClassVar = ("image", "conversations")
    USUAL: ClassVar = {"id": ()}

    def check_settings(self) -> None:
        super().check_settings()
        most = self.turns
        if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
            raise ValueError(f"benchmark.turns: got {most!r}, valid are null and whole numbers from 1 on")

    def ordered(self) -> list[int]:
        order = super().ordered()
        kept = [at for at in order if pictured(self.row(at).get("image"))]
        self.left_out = len(order) - len(kept)
        if not kept:
            raise ValueError(f"benchmark {self.name}: {self.rows.name}: no record has a picture")
        return kept

    def sample(self, row: Row) -> Sample:
        asked, answers = told(row)
        asked, answers = asked[: self.turns], answers[: self.turns]
        pictures = shown(row)
        first, marked = placed(row, asked[0], len(pictures))
        (image, (width, height)), more = pictures[0], tuple(picture for picture, _ in pictures[1:])
        return Sample(
            f"{row.maybe('id') or 'record'}#{row.at}", self.kind(row), image, (first, *asked[1:]), (None,) * len(asked),
            facts=picture_facts(image) | {"width": width, "height": height}, more=more, marked=marked,
            truth={"answers": answers},
        )  # fmt: skip


def told(row: Row) -> tuple[list[str], list[str]]:
    """(what the human asks, what was answered); the human begins, and the two take turns."""
    turns = row.get("conversations")
    if not isinstance(turns, Sequence) or isinstance(turns, str) or not turns:
        raise ValueError(f"{row.where}, column 'conversations': got {turns!r}, valid is a list of turns")
    said: tuple[list[str], list[str]] = ([], [])
    for at, turn in enumerate(turns):
        role, value = spoken(row, at, turn)
        if role != ("human", "gpt")[at % 2]:
            raise ValueError(f"{row.where}, turn {at}: from {role}, valid is human, gpt, human, … in turn")
        said[at % 2].append(value)
    return said


def spoken(row: Row, at: int, turn: Any) -> tuple[str, str]:
    if not isinstance(turn, Mapping):
        raise ValueError(f"{row.where}, turn {at}: got a {type(turn).__name__}, valid is an object")
    role, value = turn.get("from", turn.get("role")), turn.get("value", turn.get("content"))
    if role not in ROLES:
        raise ValueError(f"{row.where}, turn {at}: from {role!r}, valid are human and gpt")
    if not isinstance(value, str) or not value.replace(MARK, "").strip():
        raise ValueError(f"{row.where}, turn {at}: is empty")
    if at and MARK in value:
        raise ValueError(f"{row.where}, turn {at}: holds {MARK}; valid are pictures of the first turn")
    return ROLES[role], value.strip()


def placed(row: Row, text: str, pictures: int) -> tuple[str, bool]:
    """(the first turn, whether its pictures stand where "<image k>" does and not in front)."""
    marks = text.count(MARK)
    if marks not in (0, pictures):
        raise ValueError(f"{row.where}: has {pictures} pictures and {marks} {MARK} marks in the first turn")
    inner = _LEADING.sub("", text, count=1) if text.startswith(MARK) else text
    if MARK not in inner:
        return inner, False
    numbers = iter(range(1, marks + 1))
    return _MARKED.sub(lambda _: f"<image {next(numbers)}>", text), True


def shown(row: Row) -> list[tuple[Image.Image, tuple[int, int]]]:
    """The record's pictures in their order, each with its size before it was reduced."""
    cell = row.get("image")
    return [opened(row, one) for one in cell] if isinstance(cell, list) else [row.picture()]


def opened(row: Row, name: Any) -> tuple[Image.Image, tuple[int, int]]:
    try:
        return read_picture(row.opened(name), *row.limits)
    except Exception as error:  # Pillow's decoders raise OSError, SyntaxError, ValueError and struct.error alike
        raise ValueError(f"{row.where}, column 'image': {type(error).__name__}: {error}") from error
