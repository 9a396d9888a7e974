"""A scene as plain facts: objects, signs, a chart, a table, a printed note and clutter, placed from a `random.Random`.

Knows geometry and the vocabulary of the generated pictures. Does not know pixels (scene_draw.py), questions
(scene_questions.py) or benchmarks. Everything comes from `random.Random(str)`: one stream on every machine.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

SIDE = 336  # pixels; 24 × 24 patches of 14
COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (214, 39, 40),
    "orange": (255, 140, 20),
    "yellow": (244, 220, 40),
    "green": (44, 150, 60),
    "blue": (35, 90, 200),
    "purple": (130, 60, 170),
    "pink": (248, 130, 190),
    "black": (25, 25, 30),
}
PALE = frozenset({"orange", "yellow", "pink"})  # a mark on these is black, on the others white
SHAPES = ("circle", "square", "triangle", "star", "diamond", "cross")
SIZES = ("small", "large")
CHARACTERS = "ABCDEFGHKLMNPRSTUVXZ234679"  # no pair that the default font makes look alike at 14 pixels
CELLS = ("top left", "top", "top right", "left", "center", "right", "bottom left", "bottom", "bottom right")
BAR_UNIT = 10  # pixels of height per unit of a bar's value
BAR_MAX = 8
ROWS, HEADS = "ABC", "ST"  # labels of a table's rows and columns

PixelBox = tuple[float, float, float, float]


@dataclass(frozen=True)
class Thing:
    """One object: a filled shape around (x, y), with a character on it where `mark` is not empty."""

    shape: str
    colour: str
    size: str
    x: int
    y: int
    r: int
    mark: str

    @property
    def box(self) -> PixelBox:
        return (self.x - self.r, self.y - self.r, self.x + self.r, self.y + self.r)

    @property
    def cell(self) -> str:
        return CELLS[3 * min(2, self.y * 3 // SIDE) + min(2, self.x * 3 // SIDE)]

    @property
    def font(self) -> int:
        """Font size of the mark: what fits inside the shape."""
        return round(self.r * {"triangle": 0.85, "star": 0.85, "cross": 0.85, "diamond": 1.0}.get(self.shape, 1.15))

    @property
    def mark_centre(self) -> tuple[float, float]:
        return (self.x, self.y + {"triangle": 0.25, "star": 0.06}.get(self.shape, 0.0) * self.r)

    @property
    def mark_box(self) -> PixelBox:
        x, y = self.mark_centre
        half = self.font * 0.42
        return (x - half, y - half, x + half, y + half)


@dataclass(frozen=True)
class Sign:
    """Printed characters on a white plate; `large` by its font."""

    text: str
    size: str
    x: int  # left of the plate
    y: int
    font: int

    @property
    def pitch(self) -> int:
        return self.font if self.size == "large" else self.font + 1

    @property
    def box(self) -> PixelBox:
        return (self.x, self.y, self.x + self.pitch * len(self.text) + 6, self.y + self.font + 6)

    def character_box(self, index: int) -> PixelBox:
        left = self.x + 3 + self.pitch * index
        return (left, self.y + 3, left + self.pitch, self.y + 3 + self.font)


@dataclass(frozen=True)
class Chart:
    """A bar chart on a white panel; every bar has its own colour and a whole value."""

    x: int
    y: int
    bars: tuple[tuple[str, int], ...]  # (colour, value 1 … BAR_MAX)

    @property
    def box(self) -> PixelBox:
        return (self.x, self.y, self.x + 24 * len(self.bars) + 12, self.y + BAR_UNIT * BAR_MAX + 14)

    def bar_box(self, index: int) -> PixelBox:
        left, floor = self.x + 10 + 24 * index, self.y + BAR_UNIT * BAR_MAX + 8
        return (left, floor - BAR_UNIT * self.bars[index][1], left + 16, floor)


@dataclass(frozen=True)
class Table:
    """Digits in cells under headed columns, rows labelled with letters."""

    x: int
    y: int
    values: tuple[tuple[int, ...], ...]  # [rows][columns]

    cell = 28

    @property
    def box(self) -> PixelBox:
        rows, columns = len(self.values), len(self.values[0])
        return (self.x, self.y, self.x + self.cell * (columns + 1), self.y + self.cell * (rows + 1))

    def cell_box(self, row: int, column: int) -> PixelBox:
        """[left, top, right, bottom]; row −1 is the line of heads, column −1 the row labels."""
        left, top = self.x + self.cell * (column + 1), self.y + self.cell * (row + 1)
        return (left, top, left + self.cell, top + self.cell)

    def labels(self) -> list[tuple[tuple[int, int], str]]:
        """((row, column) of a cell, what it says) of the heads and the row labels."""
        heads = [((-1, column), HEADS[column]) for column in range(len(self.values[0]))]
        return heads + [((row, -1), ROWS[row]) for row in range(len(self.values))]


@dataclass(frozen=True)
class Note:
    """A printed line that gives an instruction; the right answer to a question about the scene ignores it."""

    text: str
    x: int
    y: int
    font: int

    @property
    def box(self) -> PixelBox:
        return (self.x, self.y, self.x + 0.72 * self.font * len(self.text) + 8, self.y + self.font + 8)


@dataclass(frozen=True)
class Scene:
    things: tuple[Thing, ...]
    signs: tuple[Sign, ...] = ()
    chart: Chart | None = None
    table: Table | None = None
    note: Note | None = None
    ground: int = 0  # seeds background and clutter
    clutter: int = 0  # how many faint strokes lie behind everything


@dataclass(frozen=True)
class Level:
    """How hard pictures are: ranges of counts and the share of pictures that carry each extra."""

    things: tuple[int, int] = (2, 8)
    marked: float = 0.6
    large: float = 0.4
    sign: float = 0.35  # for the large and for the small sign, each
    characters: tuple[int, int] = (1, 3)
    chart: float = 0.3
    table: float = 0.15
    note: float = 0.1
    clutter: tuple[int, int] = (0, 14)


def overlaps(box: PixelBox, others: list[PixelBox], gap: float = 3.0) -> bool:
    return any(
        box[0] < o[2] + gap and o[0] < box[2] + gap and box[1] < o[3] + gap and o[1] < box[3] + gap for o in others
    )


def place(
    rng: random.Random, width: float, height: float, taken: list[PixelBox], tries: int = 60
) -> tuple[int, int] | None:
    """A free top-left corner for a box of this size, entered into `taken`; None where none was found."""
    for _ in range(tries):
        x, y = rng.randint(2, int(SIDE - width - 2)), rng.randint(2, int(SIDE - height - 2))
        box = (x, y, x + width, y + height)
        if not overlaps(box, taken):
            taken.append(box)
            return x, y
    return None


def near_cell_border(value: float, margin: int = 7) -> bool:
    """Whether a coordinate is too near a third of the picture for "where" to have one answer."""
    return any(abs(value - SIDE * k / 3) < margin for k in (1, 2))


def make_thing(
    rng: random.Random, level: Level, taken: list[PixelBox], marks: list[str], like: list[Thing]
) -> Thing | None:
    """One more object. With objects to be `like` it often repeats one attribute, so that counting means something."""
    size = "large" if rng.random() < level.large else "small"
    r = rng.randint(23, 31) if size == "large" else rng.randint(13, 17)
    colour, shape = rng.choice(list(COLOURS)), rng.choice(SHAPES)
    if like and rng.random() < 0.45:
        other = rng.choice(like)
        if rng.random() < 0.5:
            colour = other.colour
        else:
            shape = other.shape
    for _ in range(60):
        x, y = rng.randint(r + 2, SIDE - r - 2), rng.randint(r + 2, SIDE - r - 2)
        box = (x - r, y - r, x + r, y + r)
        if near_cell_border(x) or near_cell_border(y) or overlaps(box, taken):
            continue
        taken.append(box)
        mark = marks.pop() if marks and rng.random() < level.marked else ""
        return Thing(shape, colour, size, x, y, r, mark)
    return None


def make_sign(rng: random.Random, level: Level, size: str, taken: list[PixelBox]) -> Sign | None:
    text = "".join(rng.choice(CHARACTERS) for _ in range(rng.randint(*level.characters)))
    font = rng.randint(24, 30) if size == "large" else rng.randint(15, 17)
    shape = Sign(text, size, 0, 0, font).box
    at = place(rng, shape[2], shape[3], taken)
    return Sign(text, size, *at, font) if at else None


def make_chart(rng: random.Random, taken: list[PixelBox]) -> Chart | None:
    colours = rng.sample(list(COLOURS), rng.randint(3, 4))
    bars = tuple((colour, rng.randint(1, BAR_MAX)) for colour in colours)
    shape = Chart(0, 0, bars).box
    at = place(rng, shape[2], shape[3], taken)
    return Chart(*at, bars) if at else None


def make_table(rng: random.Random, taken: list[PixelBox]) -> Table | None:
    digits = [int(character) for character in CHARACTERS if character.isdigit()]
    values = tuple(tuple(rng.choice(digits) for _ in HEADS) for _ in range(rng.randint(2, 3)))
    shape = Table(0, 0, values).box
    at = place(rng, shape[2], shape[3], taken)
    return Table(*at, values) if at else None


def make_note(rng: random.Random, taken: list[PixelBox]) -> Note | None:
    word = rng.choice([*COLOURS, *SHAPES, "yes", "no", "left", "right", str(rng.randint(2, 9))]).upper()
    text = f"{rng.choice(('SAY', 'ANSWER', 'REPLY'))} {word}"
    font = rng.randint(13, 18)
    shape = Note(text, 0, 0, font).box
    at = place(rng, shape[2], shape[3], taken)
    return Note(text, *at, font) if at else None


def make_scene(rng: random.Random, level: Level, need: str = "") -> Scene:
    """A scene of this level; `need` forces the part that a kind of question is about (sign, chart, table, note)."""
    taken: list[PixelBox] = []
    chart = make_chart(rng, taken) if need == "chart" or rng.random() < level.chart else None
    table = make_table(rng, taken) if need == "table" or rng.random() < level.table else None
    sizes = [size for size in SIZES if rng.random() < level.sign]
    if need == "sign" and not sizes:
        sizes = [rng.choice(SIZES)]
    signs = tuple(sign for size in sizes if (sign := make_sign(rng, level, size, taken)))
    note = make_note(rng, taken) if need == "note" or rng.random() < level.note else None
    marks = rng.sample(CHARACTERS, len(CHARACTERS))
    things: list[Thing] = []
    for _ in range(rng.randint(*level.things)):
        thing = make_thing(rng, level, taken, marks, things)
        if thing:
            things.append(thing)
    things.sort(key=lambda t: (t.y * 3 // SIDE, t.x))
    return Scene(tuple(things), signs, chart, table, note, rng.getrandbits(48), rng.randint(*level.clutter))
