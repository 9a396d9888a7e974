"""What a picture is like before a model sees it, and the rules that name a bad one before compute is spent on it.

`picture_facts`: size, sharpness, entropy, edges and a bucket to group results by. The numbers are taken on a grey copy
whose longer side is at most 512, so that they compare across sizes; the bucket's limits are conventions for grouping,
not judgements about a model. `Quality`: one threshold per rule, chosen in experiments/input_gate. `Gate`: the rules
over one run, which remembers what it has seen. Knows samples and pixels; does not know files, models or run folders.
"""

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from PIL import Image

from mmaccel.benchmarks.base import Sample

LONGER_SIDE = 512
EDGE = 24.0  # grey levels per pixel: a step a person would call an edge
BLURRED, FLAT, BUSY = 30.0, 0.02, 0.20  # Laplacian variance; share of edge pixels below and above which …

CELLS, LEVELS = 64, 8.0  # near-uniform: cells of the longer side, over which noise averages out; levels off the median
HASHED, WAVES = 64, 16  # the copy's side and the lowest frequencies that are hashed, per direction
BITS = 3 * (WAVES * WAVES - 1)  # of a hash: lightness and the two differences of colour
FAINT = 0.4  # levels: weaker waves of colour are what encoding leaves of a grey picture
ORIENTATION = 0x0112  # the EXIF tag that says how pixels are to be turned; 1 is upright
ACTIONS = ("off", "flag", "drop")
UNDECODABLE = "undecodable"
DECODING = (ValueError, OSError, SyntaxError)  # what Pillow and the benchmarks raise for a picture that is none
FAILS: dict[str, Callable[[Any, Any], bool]] = {  # rule → when a value is flagged at its threshold
    "min_side": operator.lt,
    "sharpness": operator.lt,
    "aspect": operator.gt,
    "uniform": operator.gt,
    "duplicates": operator.le,
    "orientation": operator.gt,
    "mismatch": operator.lt,
}
VALID: dict[str, tuple[type, float, float]] = {  # whole or real, from, to
    "min_side": (int, 1, 1 << 20),
    "sharpness": (float, 0, 1e6),
    "aspect": (float, 1, 1e6),
    "uniform": (float, 0, 1),
    "duplicates": (int, 0, BITS),
    "orientation": (int, 1, 8),
    "mismatch": (float, -1, 1),
}
Similarity = Callable[[Image.Image, str], float]
Hash = tuple[int, ...]  # one number per picture of a sample


def picture_facts(image: Image.Image) -> dict[str, Any]:
    """width, height (of the picture as shown), sharpness, entropy, edges, bucket."""
    small = image.convert("L")
    small.thumbnail((LONGER_SIDE, LONGER_SIDE))
    grey = np.asarray(small, dtype=np.float32)  # [h, w]
    sharpness, edges = _sharpness(grey), _edges(grey)
    return {
        "width": image.width,
        "height": image.height,
        "sharpness": round(sharpness, 2),
        "entropy": round(_entropy(grey), 3),
        "edges": round(edges, 4),
        "bucket": bucket(sharpness, edges),
    }


def bucket(sharpness: float, edges: float) -> str:
    if edges < FLAT:
        return "blurred" if sharpness < BLURRED else "flat"
    return "busy" if edges > BUSY else "ordinary"


def _sharpness(grey: np.ndarray) -> float:
    """Variance of the four-neighbour Laplacian; 0.0 for pictures too small to have one."""
    if min(grey.shape) < 3:
        return 0.0
    centre = grey[1:-1, 1:-1]
    laplacian = grey[:-2, 1:-1] + grey[2:, 1:-1] + grey[1:-1, :-2] + grey[1:-1, 2:] - 4 * centre
    return float(laplacian.var())


def _entropy(grey: np.ndarray) -> float:
    """Bits per pixel of the grey histogram, 0 … 8."""
    counts = np.bincount(grey.astype(np.uint8).ravel(), minlength=256)
    share = counts[counts > 0] / counts.sum()
    return float(max(0.0, -(share * np.log2(share)).sum()))


def _edges(grey: np.ndarray) -> float:
    """Share of pixels whose grey value steps by more than EDGE to the right or downwards."""
    if min(grey.shape) < 2:
        return 0.0
    right, down = np.abs(np.diff(grey, axis=1))[:-1], np.abs(np.diff(grey, axis=0))[:, :-1]
    return float((np.maximum(right, down) > EDGE).mean())


def uniformity(image: Image.Image) -> float:
    """Share of the picture's cells whose every channel lies within LEVELS of that channel's median, 0 … 1."""
    small = image.convert("RGB")
    small.thumbnail((CELLS, CELLS), Image.Resampling.BOX)
    cells = np.asarray(small, dtype=np.float32).reshape(-1, 3)  # [cells, 3]
    return float((np.abs(cells - np.median(cells, axis=0)).max(1) <= LEVELS).mean())


def picture_hash(image: Image.Image) -> int:
    """One bit for each of the lowest cosine waves of a channel but its mean: whether it is above their median.

    Colour counts, for a benchmark may ask the same of two pictures that differ in the colour of one thing.
    """
    small = np.asarray(image.convert("YCbCr").resize((HASHED, HASHED), Image.Resampling.BOX), dtype=np.float64)
    at = np.arange(HASHED)
    waves = np.cos(np.pi * np.arange(WAVES)[:, None] * (2 * at + 1) / (2 * HASHED))  # [WAVES, HASHED]
    strengths = (waves @ small.transpose(2, 0, 1) @ waves.T).reshape(3, -1)[:, 1:]  # [3, WAVES² − 1]
    least = np.median(strengths, axis=1) + np.array([0, 1, 1]) * FAINT * HASHED**2 / 4
    return int.from_bytes(np.packbits(strengths > least[:, None]).tobytes())


@dataclass(frozen=True)
class Flag:
    """One rule that a sample fails. note: of which sample it is a duplicate, or what the decoder said."""

    rule: str
    value: float | None
    threshold: float | None
    note: str = ""

    def __str__(self) -> str:
        if self.value is None:
            return self.rule
        sign = {operator.lt: "<", operator.gt: ">", operator.le: "<="}[FAILS[self.rule]]
        return f"{self.rule} {self.value:.4g} {sign} {self.threshold:g}"


@dataclass(frozen=True)
class Quality:
    """The input gate: what is done with a bad sample, and from where on it is bad; a rule that is null is off.

    action: off, flag or drop.
    min_side: pixels of the shorter side, at least.
    sharpness: variance of the Laplacian, at least.
    aspect: longer over shorter side, at most.
    uniform: share of the picture within 8 levels of its median colour, at most.
    duplicates: bits of 765 in which the hashes of two files of one picture may differ. The same picture with the same
    turns and answers, of the same kind, is a duplicate; with another question or answer, of another kind, or in a
    group that is scored together it is none.
    orientation: the EXIF orientation tag, at most, that is left on the pixels a benchmark hands out (1 is upright).
    mismatch: cosine of text and picture, at least; asks `model`, which tells both.
    """

    action: str = "flag"
    min_side: int | None = 56
    sharpness: float | None = 20.0
    aspect: float | None = 6.0
    uniform: float | None = 0.999
    duplicates: int | None = 36
    orientation: int | None = 1
    mismatch: float | None = None
    model: str | None = None

    def __post_init__(self) -> None:
        if self.action not in ACTIONS:
            raise ValueError(f"quality.action: got {self.action!r}, valid are {', '.join(ACTIONS)} (off in quotes)")
        for rule, (kind, low, high) in VALID.items():
            value, wanted = getattr(self, rule), "whole numbers" if kind is int else "numbers"
            number = isinstance(value, int if kind is int else int | float) and not isinstance(value, bool)
            if value is not None and not (number and low <= value <= high):
                raise ValueError(f"quality.{rule}: got {value!r}, valid are null and {wanted} {low:g} … {high:g}")

    @property
    def rules(self) -> dict[str, float | None]:
        """Rule → threshold, of those that are on; none where nothing is looked at."""
        if self.action == "off":
            return {}
        thresholds = {rule: getattr(self, rule) for rule in FAILS}
        return {UNDECODABLE: None} | {rule: value for rule, value in thresholds.items() if value is not None}

    def check(
        self,
        image: Image.Image,
        facts: Mapping[str, Any],
        text: str = "",
        *,
        nearest: tuple[int, str] | None = None,
        similarity: Similarity | None = None,
    ) -> tuple[Flag, ...]:
        """What is wrong with one picture. nearest: bits to the most similar picture so asked before, and its sample."""
        measures: dict[str, Callable[[], float | None]] = {
            "min_side": lambda: min(facts["width"], facts["height"]),
            "sharpness": lambda: facts["sharpness"],
            "aspect": lambda: max(facts["width"], facts["height"]) / max(min(facts["width"], facts["height"]), 1),
            "uniform": lambda: uniformity(image),
            "duplicates": lambda: nearest[0] if nearest else None,
            "orientation": lambda: image.getexif().get(ORIENTATION),
            "mismatch": lambda: similarity(image, text) if similarity else None,
        }
        found = []
        for rule, threshold in self.rules.items():
            value = measures[rule]() if rule in measures else None
            if value is not None and FAILS[rule](value, threshold):
                found.append(Flag(rule, value, threshold, nearest[1] if rule == "duplicates" and nearest else ""))
        return tuple(found)


@dataclass(frozen=True)
class Verdict:
    """What is wrong with a sample, and what is known of its picture."""

    flags: tuple[Flag, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)


class Gate:
    """The rules over one run. A duplicate is one of a sample without flags: what is dropped has no duplicates."""

    def __init__(self, quality: Quality, similarity: Similarity | None = None) -> None:
        if quality.mismatch is not None and similarity is None and quality.action != "off":
            raise ValueError(f"quality.mismatch: got {quality.mismatch} without a model that compares; valid is null")
        self.quality, self.similarity = quality, similarity
        self.seen: dict[tuple[str, ...], list[tuple[Hash, str]]] = {}

    def look(self, sample: Sample) -> Verdict:
        """Raises what the decoder raises where a picture is decoded only here."""
        facts = dict(sample.facts) if {"width", "height", "sharpness"} <= set(sample.facts) else {}
        facts = facts or dict(sample.facts) | picture_facts(sample.image)
        if self.quality.action == "off":
            return Verdict((), facts)
        asked = (sample.kind, *(" ".join(turn.split()) for turn in sample.turns), repr(sample.reference))
        # of a group, such as a figure and its edited copy, none is a duplicate: the group is what the benchmark asks
        remembers = self.quality.duplicates is not None and sample.truth.get("group") is None
        hashed = tuple(picture_hash(picture) for picture in sample.pictures) if remembers else ()
        nearest = self._nearest(asked, hashed)
        found: dict[str, Flag] = {}
        for picture in sample.pictures:
            known = facts if picture is sample.image else picture_facts(picture)
            text = "\n".join(sample.turns)
            for flag in self.quality.check(picture, known, text, nearest=nearest, similarity=self.similarity):
                found.setdefault(flag.rule, flag)
        if remembers and not found:
            self.seen.setdefault(asked, []).append((hashed, sample.id))
        return Verdict(tuple(found[rule] for rule in FAILS if rule in found), facts)

    def _nearest(self, asked: tuple[str, ...], hashed: Hash) -> tuple[int, str] | None:
        """Of several pictures the least alike counts; samples with other numbers of pictures are other samples."""
        before = [(one, name) for one, name in self.seen.get(asked, ()) if len(one) == len(hashed)]
        return min(((max(map(bits, one, hashed)), name) for one, name in before), default=None)


def bits(one: int, other: int) -> int:
    return (one ^ other).bit_count()


def unreadable(error: Exception) -> Verdict:
    """Of a sample that raised one of DECODING when it was asked for."""
    return Verdict((Flag(UNDECODABLE, None, None, f"{type(error).__name__}: {error}"),))
