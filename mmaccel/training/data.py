"""Image conversations to train on: LLaVA JSON or JSONL with a folder of pictures, or the generated scenes.

Every record is checked when the file is read: what is wrong is reported with its file and line, left out and counted,
and past a limit the file is refused. Pictures are opened when they are asked for. Does not know models or heads.
"""

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, Protocol

from PIL import Image

from mmaccel.benchmarks.scene_draw import draw
from mmaccel.benchmarks.scene_graph import Level, Scene, make_scene
from mmaccel.benchmarks.scene_questions import ASK, NEED, Question
from mmaccel.benchmarks.scenes import KINDS

MARK = "<image>"
ROLES = {"human": "user", "gpt": "assistant", "system": "system", "user": "user", "assistant": "assistant"}
SHOWN = 5  # problems printed in full

Message = dict[str, Any]


@dataclass(frozen=True)
class Conversation:
    """id: names it in errors and checkpoints.  messages: as VLM.inputs takes them, the last one the assistant's."""

    id: str
    messages: list[Message]


class Source(Protocol):
    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> Conversation:
        """Raises ValueError or OSError for a picture that cannot be read."""
        ...


@dataclass(frozen=True)
class Problem:
    where: str  # file:line
    said: str

    def __str__(self) -> str:
        return f"{self.where}: {self.said}"


@dataclass
class Llava:
    """path: a .json list or .jsonl of {"id", "image": name or names, "conversations": [{"from", "value"}]}.
    images: the folder the names are under.  most_bad: how many bad records are left out before the file is refused.
    limit: the first so many good records; null = all.  text_only: without their pictures, for comparison."""

    path: str
    images: str | None = None
    most_bad: int = 100
    limit: int | None = None
    text_only: bool = False
    problems: list[Problem] = field(default_factory=list, init=False)
    records: list[tuple[str, list[Message], list[Path]]] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        file = Path(self.path)
        if not file.is_file():
            raise FileNotFoundError(f"data.path: {file} is no file")
        folder = Path(self.images) if self.images else file.parent
        for where, record in read(file, self.problems):
            try:
                self.records.append(parsed(where, record, folder))
            except (ValueError, TypeError, OSError) as error:
                self.problems.append(Problem(where, str(error)))
            check_problems(file, self.problems, self.most_bad)
            if self.limit is not None and len(self.records) >= self.limit:
                break
        check_some(file, self.records, self.problems)

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> Conversation:
        name, messages, pictures = self.records[index]
        if self.text_only:
            return Conversation(name, [worded(message) for message in messages])
        return Conversation(name, [filled(message, lambda at: opened(pictures[at])) for message in messages])

    def answers(self, index: int) -> list[str]:
        """What the assistant says there; no picture is opened."""
        return answers_in(self.records[index][1])


def answers_in(messages: Sequence[Message]) -> list[str]:
    return [message["content"] for message in messages if message["role"] == "assistant"]


def check_problems(where: Any, problems: Sequence[Problem], most: int) -> None:
    if len(problems) > most:
        shown = "\n  ".join(map(str, problems[:SHOWN]))
        raise ValueError(f"{where}: more than data.most_bad = {most} bad records, the first are:\n  {shown}")


def check_some(where: Any, records: Sequence[Any], problems: Sequence[Problem]) -> None:
    if not records:
        shown = "\n  ".join(map(str, problems[:SHOWN]))
        raise ValueError(f"{where}: holds no good conversation{': ' + shown if shown else ''}")


def read(file: Path, problems: list[Problem]) -> Iterator[tuple[str, Any]]:
    """(file:line, record); a line of a .jsonl that is no JSON is a problem, a broken .json an error."""
    if file.suffix != ".jsonl":
        try:
            records = json.loads(file.read_text(encoding="utf-8"))
        except json.JSONDecodeError as error:
            raise ValueError(f"{file}:{error.lineno}: is no JSON ({error.msg})") from None
        if not isinstance(records, list):
            raise ValueError(f"{file}: got a {type(records).__name__}, valid is a list of records")
        yield from ((f"{file}:record {at}", record) for at, record in enumerate(records, 1))
        return
    with file.open(encoding="utf-8") as lines:
        for at, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                yield f"{file}:{at}", json.loads(line)
            except json.JSONDecodeError as error:
                problems.append(Problem(f"{file}:{at}", f"is no JSON ({error.msg})"))


def parsed(where: str, record: Any, folder: Path) -> tuple[str, list[Message], list[Path]]:
    """(id, messages with the pictures' indices in them, the pictures' files); raises ValueError with the reason."""
    if not isinstance(record, Mapping) or not isinstance(record.get("conversations"), list):
        raise ValueError("has no list `conversations`")
    names = record.get("image") or []
    names = [names] if isinstance(names, str) else list(names)
    pictures = [inside(folder, name) for name in names]
    messages, used = told(record["conversations"])
    if used != len(pictures):
        raise ValueError(f"has {len(pictures)} pictures and {used} {MARK} marks in the user's turns")
    return str(record.get("id", where)), messages, pictures


def told(turns: Sequence[Any]) -> tuple[list[Message], int]:
    """(messages with the numbers of pictures in them, how many pictures); raises ValueError with the reason."""
    messages: list[Message] = []
    used = 0
    for at, turn in enumerate(turns):
        role, value = turned(at, turn)
        if role == "assistant" and MARK in value:
            raise ValueError(f"turn {at}: an answer holds {MARK}")
        if MARK not in value:
            messages.append({"role": role, "content": value})
            continue
        parts, used = split(value, used)
        messages.append({"role": role, "content": parts})
    check_order([message["role"] for message in messages])
    return messages, used


def inside(folder: Path, name: Any) -> Path:
    if not isinstance(name, str):
        raise ValueError(f"image: got {name!r}, valid is a file name")
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"image: {name} is outside {folder}")
    if not path.is_file():
        raise ValueError(f"image: {name} is not in {folder}")
    return path


def turned(at: int, turn: Any) -> tuple[str, str]:
    if not isinstance(turn, Mapping):
        raise ValueError(f"turn {at} is no object")
    role, value = turn.get("from", turn.get("role")), turn.get("value", turn.get("content"))
    if not isinstance(role, str) or role not in ROLES:
        raise ValueError(f"turn {at}: from {role!r}, valid are human and gpt")
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"turn {at}: is empty")
    return ROLES[role], value


def split(value: str, used: int) -> tuple[list[dict[str, Any]], int]:
    """The parts of a user's turn, with the number of the picture at every mark, and how many are used by then."""
    parts: list[dict[str, Any]] = []
    for at, text in enumerate(value.split(MARK)):
        if at:
            parts.append({"type": "image", "image": used})
            used += 1
        if text.strip():
            parts.append({"type": "text", "text": text.strip("\n")})
    return parts, used


def check_order(roles: Sequence[str]) -> None:
    rest = roles[1:] if roles[:1] == ["system"] else roles
    wanted = ["user", "assistant"] * (len(rest) // 2)
    if not rest or list(rest) != wanted:
        raise ValueError(f"roles are out of order: {', '.join(roles) or 'none'}; valid is user, assistant, user, …")


def filled(message: Message, picture: Callable[[int], Image.Image]) -> Message:
    """The message with its pictures opened."""
    if isinstance(message["content"], str):
        return message
    parts = [
        {"type": "image", "image": picture(part["image"])} if part["type"] == "image" else part
        for part in message["content"]
    ]
    return {"role": message["role"], "content": parts}


def worded(message: Message) -> Message:
    """The message without its pictures."""
    if isinstance(message["content"], str):
        return message
    return {"role": message["role"], "content": [part for part in message["content"] if part["type"] != "image"]}


def opened(file: Path | BytesIO, name: str | None = None) -> Image.Image:
    """Decoded, in its own mode; raises ValueError for whatever Pillow cannot make of it."""
    try:
        with Image.open(file) as picture:
            return picture.copy()
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"{name or file}: cannot be decoded ({type(error).__name__}: {error})") from None


@dataclass(frozen=True)
class SceneChats:
    """Generated pictures with one question and its right answer each, from the seed space "train"; `kinds` cycle.
    text_only: without the pictures, for comparison.

    They are other pictures than the benchmark's; what the target would say of them is another matter (regenerate)."""

    n: int = 2000
    seed: int = 0
    kinds: Sequence[str] = ("caption",)
    text_only: bool = False

    def __post_init__(self) -> None:
        unknown = [kind for kind in self.kinds if kind not in KINDS]
        if unknown or not self.kinds:
            raise ValueError(f"data.kinds: got {unknown or 'an empty list'}, valid are {', '.join(KINDS)}")

    def __len__(self) -> int:
        return self.n

    def answers(self, index: int) -> list[str]:
        return [self.asked(index)[1].answer]

    def asked(self, index: int) -> tuple[Scene, Question]:
        kind = self.kinds[index % len(self.kinds)]
        rng = random.Random(f"train/chats/{self.seed}/{index}")
        while True:
            scene = make_scene(rng, Level(table=0.0, note=0.0), NEED.get(kind, ""))
            question = ASK[kind](rng, scene)
            if question is not None:
                return scene, question

    def __getitem__(self, index: int) -> Conversation:
        scene, question = self.asked(index)
        parts = [{"type": "image", "image": draw(scene)}, {"type": "text", "text": question.text}]
        messages: list[Message] = [
            {"role": "user", "content": parts},
            {"role": "assistant", "content": question.answer},
        ]
        said = [worded(message) for message in messages] if self.text_only else messages
        return Conversation(f"scene-{self.seed}-{index}", said)
