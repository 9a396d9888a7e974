"""What stands on every patch of a scene (for the auxiliary losses) and which patches matter (for token subsets)."""

from __future__ import annotations

import numpy as np

from mmaccel.benchmarks.scene_graph import CELLS, CHARACTERS, COLOURS, SHAPES, SIZES, PixelBox, Scene

GRID, PATCH = 24, 14
COLOUR = {name: k + 1 for k, name in enumerate(COLOURS)}
SHAPE = {name: k + 1 for k, name in enumerate(SHAPES)}
CHARACTER = {name: k + 1 for k, name in enumerate(CHARACTERS)}


def cover(box: PixelBox) -> tuple[np.ndarray, np.ndarray]:
    """(raster index, overlap in pixels²) of the patches that a box touches."""
    left, top, right, bottom = (min(max(edge, 0), GRID * PATCH - 0.01) for edge in box)
    xs = np.arange(int(left // PATCH), int(right // PATCH) + 1)
    ys = np.arange(int(top // PATCH), int(bottom // PATCH) + 1)
    w = np.minimum(right, (xs + 1) * PATCH) - np.maximum(left, xs * PATCH)
    h = np.minimum(bottom, (ys + 1) * PATCH) - np.maximum(top, ys * PATCH)
    return (ys[:, None] * GRID + xs).ravel(), (h[:, None] * w).ravel()


def best(box: PixelBox, share: float, at_most: float = 1.0) -> np.ndarray:
    """Patches of which (or of the box) at least this share is covered, and in any case the most covered one."""
    index, area = cover(box)
    size = (box[2] - box[0]) * (box[3] - box[1])
    return index[area >= min(area.max(), share * min(size, PATCH * PATCH))]


def owned(x: float, y: float, r: float) -> np.ndarray:
    """Patches whose centre lies on a round object."""
    index, _ = cover((x - r, y - r, x + r, y + r))
    dx = (index % GRID + 0.5) * PATCH - x
    dy = (index // GRID + 0.5) * PATCH - y
    near = dx * dx + dy * dy <= max((0.9 * r) ** 2, (dx * dx + dy * dy).min())
    return index[near]


def label(scene: Scene) -> tuple[dict[str, np.ndarray], list[np.ndarray]]:
    """({name: [576] labels}, groups of patches, one per object, character or bar, that a question may be about)."""
    none = np.zeros(GRID * GRID, np.int64)
    out = {name: none.copy() for name in ("colour", "shape", "character", "value", "row", "column")}
    out |= {"size": none - 1, "cell": none - 1, "centre": np.zeros((GRID * GRID, 2), np.float32)}
    groups: list[np.ndarray] = []
    for thing in scene.things:
        at = owned(thing.x, thing.y, thing.r)
        groups.append(at)
        out["colour"][at], out["shape"][at] = COLOUR[thing.colour], SHAPE[thing.shape]
        out["size"][at], out["cell"][at] = SIZES.index(thing.size), CELLS.index(thing.cell)
        out["centre"][at, 0] = (thing.x - (at % GRID + 0.5) * PATCH) / 16
        out["centre"][at, 1] = (thing.y - (at // GRID + 0.5) * PATCH) / 16
        if thing.mark:  # on the patches of the glyph only, so that the character has to be looked for
            at = best(thing.mark_box, 0.45)
            out["character"][at] = CHARACTER[thing.mark]
            groups.append(at)
    for sign in scene.signs:
        for k, character in enumerate(sign.text):
            at = best(sign.character_box(k), 0.45)
            out["character"][at] = CHARACTER[character]
            groups.append(at)
    if scene.chart:
        for k, (colour, value) in enumerate(scene.chart.bars):
            at = best(scene.chart.bar_box(k), 0.4)
            out["colour"][at], out["value"][at] = COLOUR[colour], value
            groups.append(at)
    if scene.table:
        for row, line in enumerate(scene.table.values):
            for column, value in enumerate(line):
                at = best(scene.table.cell_box(row, column), 0.5)
                out["character"][at], out["row"][at], out["column"][at] = CHARACTER[str(value)], row + 1, column + 1
                groups.append(at)
        for at, text in scene.table.labels():
            at = best(scene.table.cell_box(*at), 0.5)
            out["character"][at] = CHARACTER[text]
            groups.append(at)
    return out, groups


def picture_label(scene: Scene) -> dict[str, np.ndarray]:
    colours, shapes = np.zeros(len(COLOURS), np.float32), np.zeros(len(SHAPES), np.float32)
    for thing in scene.things:
        colours[COLOUR[thing.colour] - 1] = shapes[SHAPE[thing.shape] - 1] = 1
    return {"colours": colours, "shapes": shapes, "count": np.int64(len(scene.things))}


def subset(rng: np.random.Generator, groups: list[np.ndarray], n: int, m: int) -> tuple[np.ndarray, np.ndarray]:
    """([n] raster indices for the tower, [m] places among them for the decoder), both in raster order.

    The tower sees the patches of the groups first, the decoder two of each group; both then random ones.
    """
    total = GRID * GRID
    if n >= total:
        tower = np.arange(total)
    else:
        urgent = np.zeros(total, bool)
        for group in groups:
            urgent[group] = True
        tower = np.sort(np.argsort(rng.random(total) - urgent)[:n])
    if m >= n:
        return tower, np.arange(n)
    first = np.zeros(total, bool)
    for group in groups:
        first[group if len(group) <= 2 else rng.choice(group, 2, replace=False)] = True
    return tower, np.sort(np.argsort(rng.random(n) - first[tower])[:m])
