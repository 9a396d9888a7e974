"""Training batches, each a function of (seed, number of the sample): of the stream only a count is saved."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from mmaccel.benchmarks.scene_draw import draw
from mmaccel.benchmarks.scene_graph import (
    BAR_MAX,
    CELLS,
    CHARACTERS,
    COLOURS,
    SHAPES,
    SIZES,
    Level,
    PixelBox,
    Scene,
    make_scene,
)
from mmaccel.benchmarks.scene_questions import ASK, Question, choice, lettered
from pico.labels import best, label, picture_label, subset
from pico.model import Batch
from pico.words import build

MEAN, SPREAD = 127.5, 64.0  # pixels reach the tower as (x − 127.5) / 64
KINDS = {
    "exist": 1.0, "colour": 1.0, "shape": 1.0, "count": 1.3, "relation": 1.3, "where": 0.8, "character": 0.9,
    "sign": 1.3, "chart": 0.8, "choice": 1.6, "caption": 0.0, "option": 0.4, "table": 0.0, "unanswerable": 0.0,
    "instruction": 0.0,
}  # fmt: skip


@dataclass(frozen=True)
class Recipe:
    """What the pictures and turns of one stage look like."""

    level: Level = field(default_factory=Level)
    kinds: dict[str, float] = field(default_factory=lambda: dict(KINDS))
    two_options: float = 1.0  # share of multiple-choice turns with two options, the others have four
    text: int = 120  # text tokens packed behind each picture; 0 = tower only
    captions: float = 0.0  # share of micro-batches whose text begins with a caption
    caption_text: int = 168  # text tokens of those
    blind: float = 0.4  # share of pictures whose text does not see the picture in the first layers


def patchify(pixels: np.ndarray) -> np.ndarray:
    """[336, 336, 3] uint8 → [576, 588] uint8, values of a patch in the order of a convolution weight (colour, y, x)."""
    return pixels.reshape(24, 14, 24, 14, 3).transpose(0, 2, 4, 1, 3).reshape(576, 588)


class Turns:
    """Packs question turns into a fixed number of tokens."""

    def __init__(self) -> None:
        self.tokenizer = build()
        self.prefix = self.encode("<s>USER: ")
        self.space = self.tokenizer.token_to_id("Ġ")
        self.mark = self.tokenizer.token_to_id("?")
        self.either = self.tokenizer.token_to_id("Ġor")
        self.colon, self.assistant = self.tokenizer.token_to_id(":"), self.tokenizer.token_to_id("ĠASSISTANT")
        self.end = self.tokenizer.token_to_id("</s>")

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text).ids

    def words(self) -> dict[str, Tensor]:
        """Token ids of the words for patch labels, in the order of the labels."""
        groups: dict[str, list[str]] = {"colour": [f" {c}" for c in COLOURS], "shape": [f" {s}" for s in SHAPES]}
        groups |= {"size": [f" {s}" for s in SIZES], "cell": [" top", " bottom", " left", " right", " center"]}
        groups |= {"character": list(CHARACTERS), "value": [str(k) for k in range(1, BAR_MAX + 1)]}
        return {name: torch.tensor([self.encode(word) for word in words])[:, 0] for name, words in groups.items()}

    def option(self, rng: random.Random, recipe: Recipe) -> Question:
        """A turn that needs no picture: which letter stands before a given value."""
        values = rng.choice((tuple(COLOURS), SHAPES, CELLS))
        right = rng.choice(values)
        text, letter = lettered(rng, right, values, 2 if rng.random() < recipe.two_options else 4)
        return Question("option", f"Which is {right}? {text}", letter, ())

    def ask(self, rng: random.Random, scene: Scene, kind: str, recipe: Recipe) -> Question | None:
        if kind == "option":
            return self.option(rng, recipe)
        if kind == "choice":
            return choice(rng, scene, 2 if rng.random() < recipe.two_options else 4)
        return ASK[kind](rng, scene)

    def guides(self, asked: Question, question: list[int], answer: list[int]) -> Iterator[tuple[int, PixelBox]]:
        """(place of a token in question + answer, box that it should look at).

        The question mark, the last token of the question and a leading space of the answer look at the evidence. Of a
        relation the word behind the first object looks at that one and the question mark at the second; a row and a
        column of a table at their labels; in a sign and a caption every place at what its next token tells of.
        """
        last, names = len(question) - 1, [] if self.mark not in question else [question.index(self.mark)]
        answering = [last, last + 1] if answer[0] == self.space else [last]
        if asked.kind == "caption":
            yield from self.told(asked, last)
        elif asked.kind == "relation":
            yield question.index(self.either) - 1, asked.evidence[0]
            yield names[0], asked.evidence[1]
        elif asked.kind == "table":
            cell, row, head = asked.evidence
            yield names[0] - 4, row  # "… row B column X?": a space stands before each of the letters
            yield names[0] - 1, head
            for place in (*names, *answering):
                yield place, cell
        elif asked.kind == "sign":
            yield names[0], asked.evidence[0]
            left, top, right, bottom = asked.evidence[0]
            pitch = (right - left - 6) / len(asked.answer)
            for k in range(len(asked.answer)):
                yield last + 1 + k, (left + 3 + pitch * k, top + 3, left + 3 + pitch * (k + 1), bottom - 3)
        else:
            for box in asked.evidence:
                for place in (*names, *answering):
                    yield place, box

    def told(self, asked: Question, last: int) -> Iterator[tuple[int, PixelBox]]:
        place = last
        for text, box in asked.pieces:
            size = len(self.encode(text))
            if box:
                yield from ((place + k, box) for k in range(size))
            place += size

    def letters(self, asked: Question, question: list[int]) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """Of lettered options: (a token of a value, its letter) and (where the letter is answered, the right value)."""
        if asked.kind not in ("choice", "option"):
            return [], []
        own, right, end = [], [], question.index(self.assistant)
        colons = [k for k, token in enumerate(question) if token == self.colon and k < end]
        for colon, stop in zip(colons, [*(k - 2 for k in colons[1:]), end]):
            values = range(colon + 1, stop)
            own += [(value, colon - 1) for value in values]
            if question[colon - 1] == self.encode(asked.answer)[0]:
                right += [(place, value) for value in values for place in (len(question) - 1, len(question))]
        return own, right

    def asking(self, rng: random.Random, scene: Scene, recipe: Recipe, caption: bool) -> Iterator[Question]:
        """Questions that differ, the caption first where there is one."""
        seen: set[str] = set()
        for turn in range(40):
            kinds = recipe.kinds
            kind = "caption" if caption and not turn else rng.choices(list(kinds), list(kinds.values()))[0]
            asked = self.ask(rng, scene, kind, recipe)
            if asked and asked.text not in seen:
                seen.add(asked.text)
                yield asked

    def pack(self, rng: random.Random, scene: Scene, recipe: Recipe, caption: bool) -> dict[str, np.ndarray]:
        """{ids, turn, position, target, weight, kind: [text], evidence: [text, 576], own, right: [text, text]} of as
        many turns as fit."""
        size, used, turn = recipe.caption_text if caption else recipe.text, 0, 0
        out = {name: np.zeros(size, np.int64) for name in ("ids", "position")}
        out |= {"turn": np.full(size, -1), "kind": np.full(size, -1), "target": np.full(size, -100)}
        out |= {"weight": np.zeros(size, np.float32), "evidence": np.zeros((size, 576), bool)}
        out |= {name: np.zeros((size, size), bool) for name in ("own", "right")}
        start = len(self.prefix) + 576  # every turn begins at the position right after the picture
        for asked in self.asking(rng, scene, recipe, caption):
            question, answer = self.encode(f"\n{asked.text} ASSISTANT:"), [*self.encode(f" {asked.answer}"), self.end]
            tokens = question + answer
            if used + len(tokens) > size:
                if size - used < 14:
                    break
                continue
            at = slice(used, used + len(tokens))
            out["ids"][at], out["turn"][at], out["position"][at] = tokens, turn, start + np.arange(len(tokens))
            goal = slice(used + len(question) - 1, used + len(tokens) - 1)
            out["target"][goal] = answer
            telling = np.array([token not in (self.end, self.space) for token in answer])
            out["kind"][goal] = np.where(telling, list(KINDS).index(asked.kind), -1)
            out["weight"][goal] = 0.35 if asked.kind == "caption" else 1.0
            if asked.kind != "caption":
                out["weight"][goal.stop - 1] = 0.3  # the end of a short answer is learned at once
            for place, box in self.guides(asked, question, answer):
                out["evidence"][used + place, best(box, 0.4)] = True
            for name, pairs in zip(("own", "right"), self.letters(asked, question)):
                for place, other in pairs:
                    out[name][used + place, used + other] = True
            used, turn = used + len(tokens), turn + 1
        return out


def make(seed: int, numbers: range, recipe: Recipe, n: int, m: int, turns: Turns, dtype: torch.dtype) -> Batch:
    """The micro-batch of these samples; n patches reach the tower, m the decoder."""
    caption = random.Random(f"caption/{seed}/{numbers.start}").random() < recipe.captions
    rows: dict[str, list[np.ndarray]] = {}
    labels: dict[str, list[np.ndarray]] = {}
    facts: dict[str, list[np.ndarray]] = {}
    for number in numbers:
        rng = random.Random(f"train/{seed}/{number}")
        scene = make_scene(rng, recipe.level)
        names, groups = label(scene)
        tower, shown = subset(np.random.default_rng(rng.getrandbits(48)), groups, n, m)
        row = {"patches": patchify(np.asarray(draw(scene)))[tower], "where": tower, "shown": shown}
        if recipe.text:
            row |= turns.pack(rng, scene, recipe, caption)
            row["evidence"] = row["evidence"][:, tower[shown]]
        row["blind"] = np.bool_(rng.random() < recipe.blind)
        for into, parts in (
            (rows, row),
            (labels, {k: v[tower] for k, v in names.items()}),
            (facts, picture_label(scene)),
        ):
            for name, value in parts.items():
                into.setdefault(name, []).append(value)

    def stacked(parts: dict[str, list[np.ndarray]]) -> dict[str, Tensor]:
        return {name: torch.from_numpy(np.stack(values)) for name, values in parts.items()}

    t = stacked(rows)
    patches = ((t["patches"].float() - MEAN) / SPREAD).to(dtype)
    text = [t.get(name) for name in ("ids", "turn", "position", "target", "weight", "kind", "evidence", "own", "right")]
    return Batch(patches, t["where"], t["shown"] if m < n else None, *text, t["blind"], stacked(labels), stacked(facts))
