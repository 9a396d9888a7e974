"""Generated pictures with one question each: seeded, balanced over kinds, held out from the embedded model's training.

Knows scenes, their questions and how an answer is scored. Does not know models. Sample number j of a kind is the same
whatever kinds are asked for; with the pinned Pillow its pixels are the same on every machine. Training pictures are
drawn from `random.Random("train/…")`, these from `random.Random("test/…")`: no picture is in both.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mmaccel.benchmarks.base import Benchmark, Box, Sample
from mmaccel.benchmarks.quality import picture_facts
from mmaccel.benchmarks.scene_caption import caption_facts
from mmaccel.benchmarks.scene_draw import draw
from mmaccel.benchmarks.scene_graph import SIDE, Level, PixelBox, Scene, make_scene
from mmaccel.benchmarks.scene_questions import ASK, NEED, Question
from mmaccel.benchmarks.text import normal, yes_no

CAPTION = "caption"
KINDS = (
    "exist", "colour", "shape", "count", "relation", "where", "character", "sign", "chart", "choice", "table",
    "unanswerable", "instruction", CAPTION,
)  # fmt: skip
LEVEL = Level(table=0.0, note=0.0)
SHORT, LONG = 12, 160  # tokens that an answer and a caption need


@dataclass(frozen=True)
class Scenes(Benchmark):
    """`n` questions; `kinds` cycle, so every prefix is balanced. `split` names the seed space ("test", "val", …).

    captions: beside other kinds at most so many captions, which take long to write; the cycle then goes on without.
    """

    n: int = 539
    captions: int | None = None
    seed: int = 0
    kinds: Sequence[str] | None = None
    split: str = "test"

    name = "scenes"

    def __post_init__(self) -> None:
        if isinstance(self.kinds, str):
            raise ValueError(f"kinds: got {self.kinds!r}, valid is a list of kinds: benchmark.kinds=[{self.kinds}]")
        unknown = sorted(set(self.asked) - set(ASK))
        if unknown or not self.asked:
            raise ValueError(f"kinds: got {unknown or 'an empty list'}, valid are {', '.join(KINDS)}")
        if len(set(self.asked)) < len(self.asked):
            raise ValueError(f"kinds: got {list(self.asked)}, valid is each kind once (they are asked equally often)")
        if self.n < 1:
            raise ValueError(f"n: got {self.n}, expected at least 1")
        if self.captions is not None and self.captions < 0:
            raise ValueError(f"captions: got {self.captions}, valid are null and whole numbers from 0 on")
        if self.split == "train":
            raise ValueError("split: got 'train', which is the seed space of the training; expected another name")

    @property
    def asked(self) -> tuple[str, ...]:
        return KINDS if self.kinds is None else tuple(self.kinds)

    @property
    def max_new_tokens(self) -> int:  # type: ignore[override]
        return LONG if CAPTION in self.asked and self.captions != 0 else SHORT

    def __len__(self) -> int:
        return self.n

    def source(self, index: int) -> tuple[Scene, Question]:
        """The facts behind a sample: what a test or a study of the benchmark itself looks at."""
        if not 0 <= index < self.n:
            raise IndexError(f"sample: got {index}, valid are 0 … {self.n - 1}")
        return make_question(self.split, self.seed, *self.place(index))

    def place(self, index: int) -> tuple[str, int]:
        """(kind, number among its kind) of a sample."""
        kinds = self.asked
        others = tuple(kind for kind in kinds if kind != CAPTION)
        if others and others != kinds and self.captions is not None and index >= self.captions * len(kinds):
            kinds, index = others, index - self.captions
        return kinds[index % len(kinds)], index // len(kinds)

    def __getitem__(self, index: int) -> Sample:
        scene, question = self.source(index)
        picture = draw(scene)
        kind = question.kind
        return Sample(
            id=f"{self.split}-{self.seed}-{kind}-{self.place(index)[1]}",
            kind=kind,
            image=picture,
            turns=(question.text,),
            reference=(question.answer,),
            region=(tuple(fraction(box) for box in question.evidence),),
            facts={**picture_facts(picture), "objects": len(scene.things)},
        )

    def digest(self, size: int) -> str:
        """sha256 over what is in the first `size` pictures, their questions and answers; nothing is drawn."""
        total = hashlib.sha256()
        for index in range(size):
            scene, question = self.source(index)
            total.update(repr((scene, question)).encode())
        return total.hexdigest()

    def score(self, sample: Sample, replies: Sequence[str]) -> dict[str, Any]:
        """Exact match after `normalise`; a caption scores the F1 of its facts (see `caption_facts`), which is another
        scale and stands apart from the pooled accuracy."""
        reference = sample.reference[-1] or ""
        reply = replies[-1]
        if sample.kind == CAPTION:
            said, true = caption_facts(reply), caption_facts(reference)
            hits = sum((said & true).values())
            total = sum(said.values()) + sum(true.values())
            return {
                "correct": 2 * hits / total if total else 1.0,
                "parsed": reply.strip(),
                "exact": reply.strip() == reference,
                "apart": True,
            }
        parsed = normalise(reply, sample.kind)
        return {"correct": float(parsed == normalise(reference, sample.kind)), "parsed": parsed}


def make_question(split: str, seed: int, kind: str, number: int) -> tuple[Scene, Question]:
    """Question `number` of a kind: pictures are drawn until one admits the question."""
    rng = random.Random(f"{split}/{seed}/{kind}/{number}")
    while True:
        scene = make_scene(rng, LEVEL, NEED.get(kind, ""))
        question = ASK[kind](rng, scene)
        if question is not None:
            return scene, question


def fraction(box: PixelBox) -> Box:
    left, top, right, bottom = (min(max(edge / SIDE, 0.0), 1.0) for edge in box)
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
