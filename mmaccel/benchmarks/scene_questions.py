"""Questions about a scene with their one right answer and the boxes of their evidence.

Knows the scene graph. Does not know pixels or benchmarks. A question that the scene does not admit is None.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from mmaccel.benchmarks.choice import turned
from mmaccel.benchmarks.scene_caption import Piece, Template, article, tell
from mmaccel.benchmarks.scene_graph import (
    CELLS,
    CHARACTERS,
    COLOURS,
    HEADS,
    ROWS,
    SHAPES,
    SIZES,
    PixelBox,
    Scene,
    Thing,
)

UNANSWERABLE = "unknown"
DESCRIBE = "Describe everything you see."
TURNS = 3  # of a dialogue
OPTION = re.compile(r"([A-D]): (.*?)(?= [A-D]: |$)")


@dataclass(frozen=True)
class Question:
    kind: str
    text: str
    answer: str
    evidence: tuple[PixelBox, ...]  # pixels
    pieces: tuple[Piece, ...] = ()  # of a caption: its texts and what each tells of


def fits(thing: Thing, *, colour: str = "", shape: str = "", size: str = "") -> bool:
    return colour in ("", thing.colour) and shape in ("", thing.shape) and size in ("", thing.size)


def names(scene: Scene, thing: Thing, hide: str = "") -> list[str]:
    """Phrases that point at this object alone without telling its `hide` (colour, shape, mark)."""
    plain = {"colour": thing.colour, "shape": thing.shape, "size": thing.size}
    options: list[tuple[str, ...]] = [
        ("colour", "shape"),
        ("size", "colour", "shape"),
        ("shape",),
        ("colour",),
        ("size", "shape"),
        ("size", "colour"),
    ]
    found = []
    for parts in options:
        if hide in parts or sum(fits(other, **{k: plain[k] for k in parts}) for other in scene.things) != 1:
            continue
        words = [plain[k] for k in parts]
        found.append(" ".join(words if "shape" in parts else [*words, "object"]))
    return found


def point(rng: random.Random, scene: Scene, thing: Thing, hide: str = "", by_mark: float = 0.35) -> str | None:
    """One such phrase, or "object marked K"; None where the object cannot be told apart."""
    if thing.mark and hide != "mark" and rng.random() < by_mark:
        return f"object marked {thing.mark}"
    found = names(scene, thing, hide)
    return rng.choice(found[:2] if len(found) > 1 and rng.random() < 0.6 else found) if found else None


def pick(rng: random.Random, scene: Scene, hide: str = "", marked: bool = False) -> tuple[Thing, str] | None:
    """A random object with a phrase for it."""
    things = [thing for thing in scene.things if thing.mark or not marked]
    for thing in rng.sample(things, len(things)):
        phrase = point(rng, scene, thing, hide)
        if phrase:
            return thing, phrase
    return None


def boxes(things: Sequence[Thing]) -> tuple[PixelBox, ...]:
    return tuple(thing.box for thing in things)


def exist(rng: random.Random, scene: Scene) -> Question | None:
    if not scene.things:
        return None
    present = rng.random() < 0.5
    pairs = {(thing.colour, thing.shape) for thing in scene.things}
    if present:
        colour, shape = rng.choice(sorted(pairs))
    else:
        # most absent objects share one attribute with something that is there
        absent = [(c, s) for c in COLOURS for s in SHAPES if (c, s) not in pairs]
        near = [(c, s) for c, s in absent if any(c == o[0] for o in pairs) and any(s == o[1] for o in pairs)]
        colour, shape = rng.choice(near if near and rng.random() < 0.7 else absent)
    seen = [thing for thing in scene.things if fits(thing, colour=colour, shape=shape)]
    return Question(
        "exist", f"Is there {article(colour)} {shape}?", "yes" if seen else "no", boxes(seen or scene.things)
    )


def colour(rng: random.Random, scene: Scene) -> Question | None:
    found = pick(rng, scene, "colour")
    return found and Question("colour", f"What color is the {found[1]}?", found[0].colour, boxes(found[:1]))


def shape(rng: random.Random, scene: Scene) -> Question | None:
    found = pick(rng, scene, "shape")
    return found and Question("shape", f"What shape is the {found[1]}?", found[0].shape, boxes(found[:1]))


def count(rng: random.Random, scene: Scene) -> Question | None:
    if not scene.things:
        return None
    thing, draw = rng.choice(scene.things), rng.random()
    if draw < 0.2:
        what, seen = "objects", list(scene.things)
    elif draw < 0.55:
        name = thing.colour if rng.random() < 0.88 else rng.choice(list(COLOURS))
        what, seen = f"{name} objects", [t for t in scene.things if t.colour == name]
    elif draw < 0.9:
        name = thing.shape if rng.random() < 0.88 else rng.choice(SHAPES)
        what, seen = f"{name}s" if name != "cross" else "crosses", [t for t in scene.things if t.shape == name]
    else:
        name = rng.choice(SIZES)
        what, seen = f"{name} objects", [t for t in scene.things if t.size == name]
    return Question("count", f"How many {what} are there?", str(len(seen)), boxes(seen or scene.things))


def relation(rng: random.Random, scene: Scene) -> Question | None:
    for _ in range(6):
        if len(scene.things) < 2:
            return None
        one, two = rng.sample(scene.things, 2)
        across = rng.random() < 0.5
        gap = one.x - two.x if across else one.y - two.y
        first, second = point(rng, scene, one, by_mark=0.2), point(rng, scene, two, by_mark=0.2)
        if abs(gap) < 36 or first is None or second is None:
            continue
        words = ("left", "right") if across else ("above", "below")
        asked = "left or right of" if across else "above or below"
        return Question("relation", f"Is the {first} {asked} the {second}?", words[gap > 0], boxes((one, two)))
    return None


def where(rng: random.Random, scene: Scene) -> Question | None:
    found = pick(rng, scene)
    return found and Question("where", f"Where is the {found[1]}?", found[0].cell, boxes(found[:1]))


def character(rng: random.Random, scene: Scene) -> Question | None:
    found = pick(rng, scene, "mark", marked=True)
    return found and Question("character", f"What is written on the {found[1]}?", found[0].mark, boxes(found[:1]))


def sign(rng: random.Random, scene: Scene) -> Question | None:
    if not scene.signs:
        return None
    chosen = rng.choice(scene.signs)
    name = f"{chosen.size} sign" if len(scene.signs) > 1 or rng.random() < 0.4 else "sign"
    return Question("sign", f"What does the {name} say?", chosen.text, (chosen.box,))


def chart(rng: random.Random, scene: Scene) -> Question | None:
    if scene.chart is None:
        return None
    bars = scene.chart.bars
    index = rng.randrange(len(bars))
    values = [value for _, value in bars]
    extreme, word = (max(values), "tallest") if rng.random() < 0.5 else (min(values), "shortest")
    if rng.random() < 0.3 and values.count(extreme) == 1:
        index = values.index(extreme)
        everything = tuple(scene.chart.bar_box(k) for k in range(len(bars)))
        return Question("chart", f"Which bar is the {word}?", bars[index][0], everything)
    return Question(
        "chart", f"What is the value of the {bars[index][0]} bar?", str(bars[index][1]), (scene.chart.bar_box(index),)
    )


def table(rng: random.Random, scene: Scene) -> Question | None:
    if scene.table is None:
        return None
    row, column = rng.randrange(len(scene.table.values)), rng.randrange(len(scene.table.values[0]))
    seen = tuple(scene.table.cell_box(*at) for at in ((row, column), (row, -1), (-1, column)))
    return Question(
        "table", f"What is in row {ROWS[row]} column {HEADS[column]}?", str(scene.table.values[row][column]), seen
    )


def unanswerable(rng: random.Random, scene: Scene) -> Question | None:
    """Asks for an attribute of something that is not there; the evidence is everything that had to be looked at."""
    colours = [c for c in COLOURS if all(t.colour != c for t in scene.things)]
    shapes = [s for s in SHAPES if all(t.shape != s for t in scene.things)]
    marks = [m for m in CHARACTERS if all(t.mark != m for t in scene.things)]
    asked = [("What shape is the {} object?", colours), ("What color is the {}?", shapes), ("Where is the {}?", shapes)]
    asked += [("What color is the object marked {}?", marks), ("Where is the {} object?", colours)]
    text, options = rng.choice([(text, options) for text, options in asked if options])
    return Question("unanswerable", text.format(rng.choice(options)), UNANSWERABLE, boxes(scene.things))


def instruction(rng: random.Random, scene: Scene) -> Question | None:
    """An ordinary question about a picture whose printed note tells the reader to say something else."""
    if scene.note is None:
        return None
    for ask in rng.sample((colour, shape, where), 3):
        found = ask(rng, scene)
        if found:
            return Question("instruction", found.text, found.answer, found.evidence)
    return None


VALUES: dict[str, tuple[str, ...]] = {
    "colour": tuple(COLOURS), "shape": SHAPES, "where": CELLS, "character": tuple(CHARACTERS),
}  # fmt: skip


def lettered(rng: random.Random, right: str, values: Sequence[str], options: int) -> tuple[str, str]:
    """ "A: red B: blue" with the right value somewhere, and its letter."""
    wrong = rng.sample([value for value in values if value != right], options - 1)
    order = rng.sample([right, *wrong], options)
    return " ".join(f"{letter}: {value}" for letter, value in zip("ABCD", order)), "ABCD"[order.index(right)]


def choice(rng: random.Random, scene: Scene, options: int | None = None) -> Question | None:
    for ask in rng.sample((colour, shape, where, character), 4):
        found = ask(rng, scene)
        if found is None:
            continue
        number = options or (2 if rng.random() < 0.6 else 4)
        text, letter = lettered(rng, found.answer, VALUES[found.kind], number)
        return Question("choice", f"{found.text} {text}", letter, found.evidence)
    return None


def options(question: Question) -> dict[str, str]:
    """Letter → value of a multiple-choice question; empty for any other."""
    return dict(OPTION.findall(question.text.partition("? ")[2])) if question.kind == "choice" else {}


def rotation(question: Question, by: int) -> Question:
    """The same question with its options moved on by `by` places."""
    moved, letter = turned(options(question), question.answer, by)
    text = " ".join(f"{at}: {value}" for at, value in moved.items())
    return replace(question, text=f"{question.text.partition('? ')[0]}? {text}", answer=str(letter))


def caption(rng: random.Random, scene: Scene) -> Question:
    """Every object, then (or first) the signs and the chart, in one of the wordings of scene_caption.py."""
    request, pieces = tell(rng, scene)
    seen = tuple(box for _, box in pieces if box)
    return Question("caption", request, "".join(text for text, _ in pieces).strip(), seen, tuple(pieces))


def description(rng: random.Random, scene: Scene) -> Question:
    """The plain caption, behind a request that names neither a wording nor an order."""
    pieces = Template("Describe the picture", "").pieces(scene)
    seen = tuple(box for _, box in pieces if box)
    return Question("description", DESCRIBE, "".join(text for text, _ in pieces).strip(), seen, tuple(pieces))


BRIEF = (exist, colour, shape, count, relation, where, character, sign, chart)  # what a dialogue asks


def dialogue(rng: random.Random, scene: Scene) -> tuple[Question, ...] | None:
    """Short questions of different kinds about one scene; none is answered by what was said before it."""
    found: list[Question] = []
    for ask in rng.sample(BRIEF, len(BRIEF)):
        said, question = " ".join(f"{one.text} {one.answer}" for one in found), ask(rng, scene)
        if question and not re.search(rf"\b{re.escape(question.answer)}\b", said):
            found.append(question)
    return tuple(found[:TURNS]) if len(found) >= TURNS else None


ASK: dict[str, Callable[[random.Random, Scene], Question | None]] = {
    "exist": exist, "colour": colour, "shape": shape, "count": count, "relation": relation, "where": where,
    "character": character, "sign": sign, "chart": chart, "choice": choice, "caption": caption, "table": table,
    "unanswerable": unanswerable, "instruction": instruction,
}  # fmt: skip
NEED = {"sign": "sign", "chart": "chart", "table": "table", "instruction": "note"}  # the part that a kind is about
BY_NAME: dict[str, Callable[[random.Random, Scene], Question | tuple[Question, ...] | None]] = {
    "dialogue": dialogue,
    "description": description,
}  # kinds that are asked by name alone
