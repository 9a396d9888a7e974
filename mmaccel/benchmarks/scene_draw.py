"""Pixels of a scene. Knows PIL and the scene graph; does not know questions. The same scene gives the same pixels."""

from __future__ import annotations

import functools
import math
import random

from PIL import Image, ImageDraw, ImageFont

from mmaccel.benchmarks.scene_graph import (
    BAR_MAX,
    BAR_UNIT,
    COLOURS,
    PALE,
    SIDE,
    Chart,
    Note,
    Scene,
    Sign,
    Table,
    Thing,
)

INK = (30, 30, 34)


@functools.cache
def font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """The font inside Pillow: no system font is needed and the pinned Pillow draws it alike everywhere."""
    return ImageFont.load_default(size)


def outline(thing: Thing) -> list[tuple[float, float]]:
    """The corners of a polygonal shape."""
    x, y, r = thing.x, thing.y, thing.r
    if thing.shape == "square":
        return [
            (x - 0.88 * r, y - 0.88 * r),
            (x + 0.88 * r, y - 0.88 * r),
            (x + 0.88 * r, y + 0.88 * r),
            (x - 0.88 * r, y + 0.88 * r),
        ]
    if thing.shape == "triangle":
        return [(x, y - r), (x + r, y + 0.85 * r), (x - r, y + 0.85 * r)]
    if thing.shape == "diamond":
        return [(x, y - r), (x + r, y), (x, y + r), (x - r, y)]
    if thing.shape == "star":
        ring = [(r if k % 2 == 0 else 0.46 * r, math.pi * k / 5) for k in range(10)]
        return [(x + length * math.sin(angle), y - length * math.cos(angle)) for length, angle in ring]
    a = 0.4 * r  # cross: half the width of an arm
    return [
        (x - a, y - r), (x + a, y - r), (x + a, y - a), (x + r, y - a), (x + r, y + a), (x + a, y + a),
        (x + a, y + r), (x - a, y + r), (x - a, y + a), (x - r, y + a), (x - r, y - a), (x - a, y - a),
    ]  # fmt: skip


def draw_thing(pen: ImageDraw.ImageDraw, thing: Thing) -> None:
    colour = COLOURS[thing.colour]
    if thing.shape == "circle":
        pen.ellipse(thing.box, fill=colour)
    else:
        pen.polygon(outline(thing), fill=colour)
    if thing.mark:
        ink = INK if thing.colour in PALE else (255, 255, 255)
        pen.text(thing.mark_centre, thing.mark, fill=ink, font=font(thing.font), anchor="mm")


def draw_sign(pen: ImageDraw.ImageDraw, sign: Sign) -> None:
    pen.rectangle(sign.box, fill=(255, 255, 255), outline=(150, 150, 150))
    for index, character in enumerate(sign.text):
        left, top, right, bottom = sign.character_box(index)
        pen.text(((left + right) / 2, (top + bottom) / 2), character, fill=INK, font=font(sign.font), anchor="mm")


def draw_chart(pen: ImageDraw.ImageDraw, chart: Chart) -> None:
    left, top, right, bottom = chart.box
    pen.rectangle(chart.box, fill=(255, 255, 255), outline=(150, 150, 150))
    floor = bottom - 6
    for value in range(1, BAR_MAX + 1):
        pen.line((left + 5, floor - BAR_UNIT * value, right - 5, floor - BAR_UNIT * value), fill=(226, 226, 226))
    pen.line((left + 5, top + 4, left + 5, floor, right - 5, floor), fill=INK)
    for index, (colour, _) in enumerate(chart.bars):
        pen.rectangle(chart.bar_box(index), fill=COLOURS[colour])


def draw_table(pen: ImageDraw.ImageDraw, table: Table) -> None:
    pen.rectangle(table.box, fill=(255, 255, 255), outline=(150, 150, 150))
    cells = {(r, c): str(value) for r, line in enumerate(table.values) for c, value in enumerate(line)}
    for (row, column), text in (*table.labels(), *cells.items()):
        box = table.cell_box(row, column)
        pen.rectangle(box, outline=(190, 190, 190), fill=(232, 236, 242) if -1 in (row, column) else None)
        pen.text(((box[0] + box[2]) / 2, (box[1] + box[3]) / 2), text, fill=INK, font=font(18), anchor="mm")


def draw_note(pen: ImageDraw.ImageDraw, note: Note) -> None:
    pen.rectangle(note.box, fill=(255, 250, 205), outline=(190, 180, 120))
    left, top, _, bottom = note.box
    pen.text((left + 4, (top + bottom) / 2), note.text, fill=INK, font=font(note.font), anchor="lm")


def draw_ground(seed: int, clutter: int) -> Image.Image:
    """A pale, slowly varying background with faint strokes."""
    rng = random.Random(seed)
    base = [rng.randint(205, 250) for _ in range(3)]
    dots = bytes(max(0, min(255, base[k % 3] + (byte >> 4) - 8)) for k, byte in enumerate(rng.randbytes(7 * 7 * 3)))
    ground = Image.frombytes("RGB", (7, 7), dots).resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    pen = ImageDraw.Draw(ground)
    for _ in range(clutter):
        x, y = rng.randint(0, SIDE), rng.randint(0, SIDE)
        tint = tuple(max(0, value - rng.randint(15, 60)) for value in base)
        if rng.random() < 0.6:
            pen.line((x, y, x + rng.randint(-60, 60), y + rng.randint(-60, 60)), fill=tint, width=rng.randint(1, 3))
        else:
            r = rng.randint(3, 10)
            pen.arc((x - r, y - r, x + r, y + r), rng.randint(0, 360), rng.randint(0, 360), fill=tint, width=2)
    return ground


def draw(scene: Scene) -> Image.Image:
    """[SIDE × SIDE] RGB picture of the scene."""
    picture = draw_ground(scene.ground, scene.clutter)
    pen = ImageDraw.Draw(picture)
    if scene.chart:
        draw_chart(pen, scene.chart)
    if scene.table:
        draw_table(pen, scene.table)
    if scene.note:
        draw_note(pen, scene.note)
    for sign in scene.signs:
        draw_sign(pen, sign)
    for thing in scene.things:
        draw_thing(pen, thing)
    return picture
