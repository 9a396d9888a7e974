"""The pictures of a run folder: each shown sample, and where its tokens survived at a point.

Knows events, which part of a picture an image processor hands on, and the run folder's names. How a map looks is
report/overlay.py's.
"""

import warnings
from collections.abc import Sequence
from typing import Any

from mmaccel.benchmarks.base import Box, Sample
from mmaccel.jobs.facts import cells, survivors
from mmaccel.measure.record import RunFolder
from mmaccel.report.overlay import survival_map

LONGEST = 512  # a page of pictures stays a page
WHOLE: Box = (0.0, 0.0, 1.0, 1.0)


def save_pictures(folder: RunFolder, sample: Sample, point: str, event: Any | None, seen: Box) -> None:
    """The sample's picture once, and this point's survival map where the picture is one plain grid of tokens."""
    if not folder.picture(sample.id).exists():
        shown = sample.image.convert("RGB")
        shown.thumbnail((LONGEST, LONGEST))
        shown.save(folder.picture(sample.id))
    placed = cells(event) if event is not None and event.stops else None
    if placed is not None:
        yx, grid = placed
        sides = (*sample.image.size, *sample.image.size)
        under = sample.image.crop(tuple(round(part * side) for part, side in zip(seen, sides)))  # type: ignore[arg-type]
        kept = [[tuple(cell) for cell in yx[stands].tolist()] for stands in survivors(event)]
        survival_map(under, grid, kept).save(folder.picture(sample.id, point))


def try_pictures(folder: RunFolder, sample: Sample, point: str, event: Any | None, seen: Box) -> None:
    """A picture that cannot be drawn or written spoils no measurement."""
    try:
        save_pictures(folder, sample, point, event, seen)
    except Exception as error:
        warnings.warn(f"no picture of {sample.id} through {point}: {error}", RuntimeWarning, stacklevel=2)


def seen_box(image: Any, processor: Any) -> Box:
    """What reaches the tower, in fractions of the picture: less of it where the processor cuts out the centre, more
    than it where LLaVA's first pads it to a square (other processors' do_pad fills up a batch, not a picture)."""
    size, crop = getattr(processor, "size", None) or {}, getattr(processor, "crop_size", None) or {}
    shortest = size.get("shortest_edge")
    width, height = image.size
    wide, high = float(width), float(height)  # of what is resized
    if getattr(processor, "do_pad", False) and type(processor).__name__.startswith("LlavaImageProcessor"):
        wide = high = float(max(width, height))
    across, down = wide / width, high / height
    if getattr(processor, "do_center_crop", False) and shortest and crop:
        scale = shortest / min(wide, high)
        across *= min(1.0, crop["width"] / (wide * scale))
        down *= min(1.0, crop["height"] / (high * scale))
    if across == down == 1.0:
        return WHOLE
    return ((1 - across) / 2, (1 - down) / 2, (1 + across) / 2, (1 + down) / 2)


def within(boxes: Sequence[Box], seen: Box) -> list[Box]:
    """The boxes in fractions of the seen part; what lies outside of it is cut away."""
    left, top, right, bottom = seen

    def across(x: float) -> float:
        return min(1.0, max(0.0, (x - left) / (right - left)))

    def down(y: float) -> float:
        return min(1.0, max(0.0, (y - top) / (bottom - top)))

    moved = [(across(a), down(b), across(c), down(d)) for a, b, c, d in boxes]
    return [(a, b, c, d) for a, b, c, d in moved if a < c and b < d]
