"""Captions of a scene in twenty wordings and orders, and the facts that a caption states.

The request names the wording and the order, so that there is one right text and yet many; a caption is scored by its
facts alone, in whatever order and wording they come. Knows the scene graph. Does not know pixels or benchmarks.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from mmaccel.benchmarks.scene_graph import CELLS, COLOURS, SHAPES, SIZES, PixelBox, Scene, Thing

Piece = tuple[str, PixelBox | None]  # a part of the text and what it tells of, in pixels


def article(word: str) -> str:
    return f"an {word}" if word[0] in "aeiou" else f"a {word}"


def named(thing: Thing) -> str:
    mark = f" marked {thing.mark}" if thing.mark else ""
    return f"{article(thing.size)} {thing.colour} {thing.shape}{mark}"


def listed(things: Sequence[Thing]) -> Iterator[Piece]:
    yield " The picture shows", None
    for thing in things:
        yield f" {named(thing)} at the {thing.cell}{'.' if thing is things[-1] else ','}", thing.box


def there(things: Sequence[Thing]) -> Iterator[Piece]:
    for thing in things:
        yield f" There is {named(thing)} at the {thing.cell}.", thing.box


def placed(things: Sequence[Thing]) -> Iterator[Piece]:
    for thing in things:
        yield f" At the {thing.cell} is {named(thing)}.", thing.box


def short(things: Sequence[Thing]) -> Iterator[Piece]:
    for thing in things:
        mark = f" {thing.mark}" if thing.mark else ""
        yield f" {thing.cell}: {thing.size} {thing.colour} {thing.shape}{mark}.", thing.box


WORDINGS: dict[str, Callable[[Sequence[Thing]], Iterator[Piece]]] = {
    "Describe the picture": listed, "Tell me what is in the picture": there, "Tell me what is where": placed,
    "List the objects": short,
}  # fmt: skip
ORDERS: dict[str, Callable[[Thing], float]] = {  # the scene holds its things row by row of cells, each left to right
    "": lambda thing: 0, " from left to right": lambda thing: thing.x, " from bottom to top": lambda thing: -thing.y,
    " large objects first": lambda thing: -SIZES.index(thing.size), " text first": lambda thing: 0,
}  # fmt: skip
TEXT_FIRST = " text first"


@dataclass(frozen=True)
class Template:
    wording: str
    order: str

    @property
    def request(self) -> str:
        return f"{self.wording}{self.order}."

    def pieces(self, scene: Scene) -> list[Piece]:
        """The caption, piece by piece; their texts joined and stripped are the answer."""
        things = sorted(scene.things, key=ORDERS[self.order])
        objects = list(WORDINGS[self.wording](things)) if things else [(" The picture shows no objects.", None)]
        extras = list(printed(scene))
        return [*extras, *objects] if self.order == TEXT_FIRST else [*objects, *extras]


TEMPLATES = tuple(Template(wording, order) for order in ORDERS for wording in WORDINGS)


def printed(scene: Scene) -> Iterator[Piece]:
    """The signs and the chart."""
    for sign in scene.signs:
        yield f" The {sign.size} sign says {sign.text}.", sign.box
    if scene.chart:
        last = len(scene.chart.bars) - 1
        yield " The chart has", None
        for index, (colour, value) in enumerate(scene.chart.bars):
            yield f" {colour} {value}{'.' if index == last else ','}", scene.chart.bar_box(index)


def tell(rng: random.Random, scene: Scene) -> tuple[str, list[Piece]]:
    """(request, the pieces of the caption that it asks for)."""
    template = rng.choice(TEMPLATES)
    return template.request, template.pieces(scene)


KIND = rf"({'|'.join(SIZES)}) ({'|'.join(COLOURS)}) ({'|'.join(SHAPES)})\b"
CELL = rf"({'|'.join(sorted(CELLS, key=len, reverse=True))})\b"
OBJECT = re.compile(  # each wording once, scanned from left to right: no statement is read twice
    rf"{KIND}(?: marked (\w+))? at the {CELL}|[Aa]t the {CELL} is an? {KIND}(?: marked (\w+))?"
    rf"|{CELL}: {KIND}(?: ([A-Z0-9]+)\b)?"
)


def caption_facts(text: str) -> Counter[tuple[str, ...]]:
    """What a caption says: size, colour, shape, cell and mark of each object, text of each sign, value of each bar."""
    facts: Counter[tuple[str, ...]] = Counter()
    for found in OBJECT.finditer(text):
        groups = found.groups()
        size, colour, shape, mark, cell = next(
            (part[0], part[1], part[2], part[3], part[4])
            for part in (groups[:5], (*groups[6:10], groups[5]), (*groups[11:15], groups[10]))
            if part[0]
        )
        facts[("object", size, colour, shape, cell)] += 1
        if mark:
            facts[("mark", colour, shape, mark)] += 1
    facts.update(("sign", size, said) for size, said in re.findall(r"The (small|large) sign says (\w+)", text))
    for chart in re.findall(r"The chart has ([^.]*)", text):
        facts.update(("bar", *pair) for pair in re.findall(r"(\w+) (\d)", chart))
    return facts
