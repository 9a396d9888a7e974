"""Generated pictures with their questions: seeded, balanced over kinds, held out from the embedded model's training.

Knows scenes, their questions and how an answer is scored. Does not know models. Sample number j of a kind is the same
whatever kinds are asked for; with the pinned Pillow its pixels are the same on every machine. Training pictures are
drawn from `random.Random("train/…")`, these from `random.Random("test/…")`: no picture is in both.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from PIL import Image

from mmaccel.benchmarks.base import Benchmark, Box, Sample
from mmaccel.benchmarks.choice import together
from mmaccel.benchmarks.ordering import whole_groups
from mmaccel.benchmarks.quality import picture_facts
from mmaccel.benchmarks.scene_caption import caption_facts
from mmaccel.benchmarks.scene_draw import draw
from mmaccel.benchmarks.scene_graph import SIDE, Level, PixelBox, Scene, make_scene
from mmaccel.benchmarks.scene_questions import ASK, BY_NAME, NEED, Question, options, rotation
from mmaccel.benchmarks.table import right
from mmaccel.benchmarks.text import normal, yes_no
from mmaccel.measure.scores import mean

CAPTION, CHOICE, DIALOGUE, DESCRIPTION = "caption", "choice", "dialogue", "description"
KINDS = (
    "exist", "colour", "shape", "count", "relation", "where", "character", "sign", "chart", CHOICE, "table",
    "unanswerable", "instruction", CAPTION,
)  # fmt: skip
LEVEL = Level(table=0.0, note=0.0)
FRAMES = ("square", "padded", "stretched")
WIDE = SIDE * 3 // 2  # pixels of a framed picture's longer side
SHORT, LONG = 12, 160  # tokens that an answer and a caption need


@dataclass(frozen=True)
class Scenes(Benchmark):
    """`n` questions; `kinds` cycle, so every prefix is balanced. `split` names the seed space ("test", "val", …).

    captions: beside other kinds at most so many captions, which take long to write; the cycle then goes on without.
    circular: the kind choice is asked in all rotations of its options, so there are more samples than questions.
    frame: square as it is drawn, "padded" to 3:2 by plain strips at both sides, or "stretched" to 3:2.
    The kinds dialogue (three short questions, one after the other) and description are asked by name alone.
    """

    n: int = 539
    captions: int | None = None
    seed: int = 0
    kinds: Sequence[str] | None = None
    split: str = "test"
    circular: bool = False
    frame: str = "square"

    name = "scenes"

    def __post_init__(self) -> None:
        if isinstance(self.kinds, str):
            raise ValueError(f"kinds: got {self.kinds!r}, valid is a list of kinds: benchmark.kinds=[{self.kinds}]")
        valid = (*KINDS, *BY_NAME)
        unknown = sorted(set(self.asked) - set(valid))
        if unknown or not self.asked:
            raise ValueError(f"kinds: got {unknown or 'an empty list'}, valid are {', '.join(valid)}")
        if len(set(self.asked)) < len(self.asked):
            raise ValueError(f"kinds: got {list(self.asked)}, valid is each kind once (they are asked equally often)")
        if self.n < 1:
            raise ValueError(f"n: got {self.n}, expected at least 1")
        if self.captions is not None and self.captions < 0:
            raise ValueError(f"captions: got {self.captions}, valid are null and whole numbers from 0 on")
        if self.circular not in ((True, False) if CHOICE in self.asked else (False,)):
            raise ValueError(f"circular: got {self.circular!r}, valid are false and, where choice is asked, true")
        if self.frame not in FRAMES:
            raise ValueError(f"frame: got {self.frame!r}, valid are {', '.join(FRAMES)}")
        if self.split == "train":
            raise ValueError("split: got 'train', which is the seed space of the training; expected another name")

    @property
    def asked(self) -> tuple[str, ...]:
        return KINDS if self.kinds is None else tuple(self.kinds)

    @property
    def max_new_tokens(self) -> int:  # type: ignore[override]
        return LONG if DESCRIPTION in self.asked or (CAPTION in self.asked and self.captions != 0) else SHORT

    def __len__(self) -> int:
        return len(self.rotations) if self.circular else self.n

    @cached_property
    def rotations(self) -> list[tuple[int, int]]:
        """(question, rotation) of each sample where the choices are asked in all of them."""
        made = ((at, self.place(at)) for at in range(self.n))
        counts = (max(len(options(self.made(place)[1][0])), 1) if place[0] == CHOICE else 1 for _, place in made)
        return [(at, turn) for at, count in enumerate(counts) for turn in range(count)]

    def whole(self, size: int) -> int:
        return whole_groups([at for at, _ in self.rotations], size) if self.circular else size

    def source(self, index: int) -> tuple[Scene, Question]:
        """The facts behind a sample: what a test or a study of the benchmark itself looks at.

        Of a dialogue its first question."""
        scene, questions = self.sources(index)
        return scene, questions[0]

    def sources(self, index: int) -> tuple[Scene, tuple[Question, ...]]:
        """(scene, the question of each turn)."""
        if not 0 <= index < len(self):
            raise IndexError(f"sample: got {index}, valid are 0 … {len(self) - 1}")
        at, turn = self.rotations[index] if self.circular else (index, 0)
        scene, questions = self.made(self.place(at))
        return scene, tuple(rotation(question, turn) for question in questions) if turn else questions

    def made(self, place: tuple[str, int]) -> tuple[Scene, tuple[Question, ...]]:
        return make_questions(self.split, self.seed, *place)

    def place(self, index: int) -> tuple[str, int]:
        """(kind, number among its kind) of a question."""
        kinds = self.asked
        others = tuple(kind for kind in kinds if kind != CAPTION)
        if others and others != kinds and self.captions is not None and index >= self.captions * len(kinds):
            kinds, index = others, index - self.captions
        return kinds[index % len(kinds)], index // len(kinds)

    def __getitem__(self, index: int) -> Sample:
        scene, questions = self.sources(index)
        picture = framed(draw(scene), self.frame)
        at, turn = self.rotations[index] if self.circular else (index, 0)
        kind, number = self.place(at)
        name = f"{self.split}-{self.seed}-{kind}-{number}"
        rotated = {"group": name, "of": len(options(questions[0]))} if self.circular and kind == CHOICE else {}
        return Sample(
            id=f"{name}-r{turn}" if turn else name,
            kind=kind,
            image=picture,
            turns=tuple(question.text for question in questions),
            reference=tuple(question.answer for question in questions),
            region=tuple(tuple(fraction(box, self.frame) for box in question.evidence) for question in questions),
            facts={**picture_facts(picture), "objects": len(scene.things)},
            truth={"kinds": tuple(question.kind for question in questions), **rotated},
        )

    def digest(self, size: int) -> str:
        """sha256 over what is in the first `size` pictures, their questions and answers; nothing is drawn."""
        total = hashlib.sha256(b"" if self.frame == "square" else self.frame.encode())
        for index in range(size):
            scene, questions = self.sources(index)
            total.update(repr((scene, *questions)).encode())
        return total.hexdigest()

    def score(self, sample: Sample, replies: Sequence[str]) -> dict[str, Any]:
        """Exact match after `normalise`; a caption scores the F1 of its facts (see `caption_facts`), which is another
        scale and stands apart from the pooled accuracy. In a dialogue the turn that was answered last."""
        turn, reply = len(replies) - 1, replies[-1]
        reference, kind = sample.reference[turn] or "", sample.truth["kinds"][turn]
        if kind in (CAPTION, DESCRIPTION):
            return told(reply, reference)
        parsed = normalise(reply, kind)
        found = {"correct": float(parsed == normalise(reference, kind)), "parsed": parsed}
        rest = {"turn": turn + 1, "asked": kind} if sample.kind == DIALOGUE else {}
        return found | rest | {key: sample.truth[key] for key in ("group", "of") if key in sample.truth}

    def summary(self, records: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
        """Choices right in all rotations and in each ("circular", "vanilla"); of dialogues each turn's share."""
        found: dict[str, float | None] = {}
        if self.circular:
            choices = [record for record in records if record["kind"] == CHOICE]
            found |= {"circular": mean([hit for _, hit in together(choices)]), "vanilla": mean(right(choices))}
        turns = [record["score"] for record in records if record["kind"] == DIALOGUE]
        for turn in sorted({score["turn"] for score in turns}):
            found[f"turn {turn}"] = mean([score["correct"] for score in turns if score["turn"] == turn])
        return found


def told(reply: str, reference: str) -> dict[str, Any]:
    """The F1 of a caption's facts."""
    said, true = caption_facts(reply), caption_facts(reference)
    hits = sum((said & true).values())
    total = sum(said.values()) + sum(true.values())
    return {
        "correct": 2 * hits / total if total else 1.0,
        "parsed": reply.strip(),
        "exact": reply.strip() == reference,
        "apart": True,
    }


def make_question(split: str, seed: int, kind: str, number: int) -> tuple[Scene, Question]:
    """Question `number` of a kind; the first one of a dialogue."""
    scene, questions = make_questions(split, seed, kind, number)
    return scene, questions[0]


def make_questions(split: str, seed: int, kind: str, number: int) -> tuple[Scene, tuple[Question, ...]]:
    """Pictures are drawn until one admits the question, or each of a dialogue's."""
    rng = random.Random(f"{split}/{seed}/{kind}/{number}")
    while True:
        scene = make_scene(rng, LEVEL, NEED.get(kind, ""))
        found = BY_NAME[kind](rng, scene) if kind in BY_NAME else ASK[kind](rng, scene)
        if found is not None:
            return scene, found if isinstance(found, tuple) else (found,)


def framed(picture: Image.Image, frame: str) -> Image.Image:
    """3:2, so that a processor's way with the longer side shows: what it cuts off, or what it squeezes."""
    if frame == "square":
        return picture
    if frame == "stretched":
        return picture.resize((WIDE, SIDE), Image.Resampling.BICUBIC)
    wide = Image.new("RGB", (WIDE, SIDE), picture.getpixel((0, 0)))  # type: ignore[arg-type]
    wide.paste(picture, ((WIDE - SIDE) // 2, 0))
    return wide


def fraction(box: PixelBox, frame: str = "square") -> Box:
    left, top, right, bottom = (min(max(edge / SIDE, 0.0), 1.0) for edge in box)
    if frame == "padded":
        left, right = (((WIDE - SIDE) / 2 + edge * SIDE) / WIDE for edge in (left, right))
    return (left, top, right, bottom)


def normalise(reply: str, kind: str) -> str:
    """The form in which answers are compared: yes/no and a letter may be followed by a reason, printed text is its
    characters, everything else is lower-case words without articles and punctuation."""
    if kind == "exist":
        return yes_no(reply) or normal(reply)
    if kind == "choice":
        letter = re.match(r"\W*([A-D])(?![A-Za-z])", reply)
        return letter.group(1).lower() if letter else normal(reply)
    if kind in ("sign", "character"):
        return re.sub(r"[\W_]", "", reply).lower()
    return normal(reply)
