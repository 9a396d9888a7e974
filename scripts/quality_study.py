"""What the input gate finds and what it takes for bad: recall and false alarms of every rule at its default.

    python scripts/quality_study.py --out experiments/input_gate        four minutes on one core

Twice 300 clean pictures and, per rule, 300 corruptions of them, two thirds photographs and one third drawn scenes (see
scripts/quality_cases.py). Thresholds are looked for on the first half, and everything is reported on the second.
`points.csv` holds every share with a Wilson interval: recall, false alarms, the candidates that were not taken, what is
beyond a rule. `windows.csv` says between which values a threshold may lie.
"""

import argparse
import csv
import math
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent)]

import numpy as np  # noqa: E402
from PIL import Image  # noqa: E402
from quality_cases import (  # noqa: E402
    BEYOND,
    CORRUPTIONS,
    DRAWN,
    EDITS,
    PHOTOGRAPHS,
    REPORT,
    TUNE,
    Case,
    Cases,
    Picture,
    apart,
    beyond,
    clean,
    corrupted,
    edited_scenes,
    sparse_pages,
)

from mmaccel.benchmarks.quality import FAILS, HASHED, Quality, bits, picture_facts, picture_hash, uniformity  # noqa: E402
from mmaccel.benchmarks.screening import screened  # noqa: E402

FOUND, ALARMS = 0.95, 0.025  # a window's thresholds find so many of the corruptions at so many false alarms at most


@dataclass(frozen=True)
class Share:
    """flagged of n, with a 95 % Wilson interval."""

    table: str
    rule: str
    source: str
    what: str
    flagged: int
    n: int

    @property
    def interval(self) -> tuple[float, float]:
        z, share = 1.96, self.flagged / self.n
        middle = (share + z * z / (2 * self.n)) / (1 + z * z / self.n)
        around = z * math.sqrt(share * (1 - share) / self.n + z * z / (4 * self.n * self.n)) / (1 + z * z / self.n)
        return max(0.0, middle - around), min(1.0, middle + around)

    def row(self) -> list[str]:
        low, high = self.interval
        shares = (f"{value:.4f}" for value in (self.flagged / self.n, low, high))
        return [self.table, self.rule, self.source, self.what, str(self.flagged), str(self.n), *shares]


def flagged(cases: Sequence[Case], before: Sequence[Case] = (), quality: Quality | None = None) -> list[set[str]]:
    """Per case the rules it fails; those `before` it pass the gate first."""
    found = screened(Cases([*before, *cases]), len(before) + len(cases), quality or Quality())
    return [{flag.rule for flag in look.flags} for look in found.looks[len(before) :]]


def shares(
    table: str, rule: str, cases: Sequence[Case], rules: Sequence[set[str]], by_kind: bool = False
) -> list[Share]:
    """Over photographs, over drawn scenes, over both, and per kind of corruption."""
    groups = [(source, "") for source in ("photograph", "drawn", "all")]
    groups += [("all", what) for what in sorted({case.what for case in cases})] if by_kind else []
    made = []
    for source, what in groups:
        mine = [
            rule in found
            for case, found in zip(cases, rules)
            if source in ("all", case.source) and what in ("", case.what)
        ]
        if mine:
            made.append(Share(table, rule, source, what, sum(mine), len(mine)))
    return made


def rates(half: int, photos: int = PHOTOGRAPHS, drawn: int = DRAWN, each: int | None = None) -> list[Share]:
    """Recall and false alarms of every rule at its default; each: corruptions of a rule, None = of every picture."""
    good, made = clean(half, photos, drawn), []
    passed = flagged(good)
    for rule in CORRUPTIONS:
        chosen = good if each is None else random.Random(rule).sample(good, each)
        bad = corrupted(rule, half, chosen)
        found = flagged(bad, chosen if rule == "duplicates" else ())
        made += shares("recall", rule, bad, found, by_kind=True) + shares("false alarms", rule, good, passed)
    return made


def nearest(values: Sequence[int], one: int, but: int = -1) -> int:
    return min(bits(one, other) for at, other in enumerate(values) if at != but)


def distances(half: int, make: Callable[[Picture], int]) -> tuple[list[float], list[float]]:
    """(of clean pictures to the nearest other one, of copies to the nearest clean one), in bits."""
    good = clean(half)
    known = [make(case.picture) for case in good]
    copies = [make(case.picture) for case in corrupted("duplicates", half, good)]
    return [nearest(known, one, at) for at, one in enumerate(known)], [nearest(known, one) for one in copies]


def values(half: int, rule: str, value: Callable[[Picture], float]) -> tuple[list[float], list[float]]:
    """(of clean pictures, of the rule's corruptions)."""
    good = clean(half)
    return [value(case.picture) for case in good], [value(case.picture) for case in corrupted(rule, half, good)]


def difference_hash(side: int) -> Callable[[Picture], int]:
    """Whether it grows lighter to the right."""

    def make(picture: Picture) -> int:
        small = np.asarray(picture.convert("L").resize((side + 1, side), Image.Resampling.BOX), dtype=np.int16)
        return int.from_bytes(np.packbits(np.diff(small, axis=1) > 0).tobytes())

    return make


def grey_hash(waves: int) -> Callable[[Picture], int]:
    """The gate's own without colour, of so many frequencies."""
    rows = np.cos(np.pi * np.arange(waves)[:, None] * (2 * np.arange(HASHED) + 1) / (2 * HASHED))

    def make(picture: Picture) -> int:
        small = np.asarray(picture.convert("L").resize((HASHED, HASHED), Image.Resampling.BOX), dtype=np.float64)
        strengths = (rows @ small @ rows.T).ravel()[1:]
        return int.from_bytes(np.packbits(strengths > np.median(strengths)).tobytes())

    return make


def small_grey(picture: Picture) -> np.ndarray:
    small = picture.convert("L")
    small.thumbnail((64, 64), Image.Resampling.BOX)
    return np.asarray(small, dtype=np.float64)  # [h, w]


def lighter_below(picture: Picture) -> float:
    """Light of the lower third less that of the upper: positive where a picture may stand on its head."""
    grey = small_grey(picture)
    third = max(len(grey) // 3, 1)
    return float(grey[-third:].mean() - grey[:third].mean())


def steps_across(picture: Picture) -> float:
    """Logarithm of steps down over steps to the right, which a quarter turn swaps."""
    grey = small_grey(picture)
    return float(np.log((np.abs(np.diff(grey, axis=0)).mean() + 0.1) / (np.abs(np.diff(grey, axis=1)).mean() + 0.1)))


GUESSES: dict[str, tuple[Callable[[Picture], float], Image.Transpose]] = {
    "turned by 180°, by light": (lighter_below, Image.Transpose.ROTATE_180),
    "turned by 90°, by steps": (steps_across, Image.Transpose.ROTATE_90),
}
VALUES: dict[str, Callable[[Picture], float]] = {
    "min_side": lambda picture: min(picture.size),
    "sharpness": lambda picture: picture_facts(picture)["sharpness"],
    "aspect": lambda picture: max(picture.size) / min(picture.size),
    "uniform": uniformity,
}
UNIFORM: dict[str, Callable[[Picture], float]] = {
    "share near the median": uniformity,
    "standard deviation": lambda picture: -float(small_grey(picture).std()),
    "entropy": lambda picture: -picture_facts(picture)["entropy"],
}
HASHES: dict[str, Callable[[Picture], int]] = {
    "differences, 64 bits": difference_hash(8), "differences, 256 bits": difference_hash(16),
    "grey waves, 63 bits": grey_hash(8), "grey waves, 255 bits": grey_hash(16),
    "waves and colour, 765 bits": picture_hash,
}  # fmt: skip


def windows() -> list[list[str]]:
    """Per rule its default, where FOUND of the corruptions are found and where ALARMS of the clean ones are flagged."""
    rows = []
    for rule in FAILS:
        if rule in VALUES or rule == "duplicates":
            good, bad = distances(TUNE, picture_hash) if rule == "duplicates" else values(TUNE, rule, VALUES[rule])
            above = np.median(bad) > np.median(good)
            edges = np.quantile(bad, 1 - FOUND if above else FOUND), np.quantile(good, 1 - ALARMS if above else ALARMS)
            rows.append([rule, f"{getattr(Quality(), rule):g}", *(f"{edge:.4g}" for edge in edges)])
    return rows


def candidates() -> list[Share]:
    """Other statistics at the limit that finds FOUND of the corruptions of one half: what each does on the other."""
    made = []
    for name, value in UNIFORM.items():
        limit = float(np.quantile(values(TUNE, "uniform", value)[1], 1 - FOUND))
        good, bad = values(REPORT, "uniform", value)
        pages = [value(case.picture) for case in sparse_pages(100, REPORT)]
        for what, them in (("corruptions", bad), ("clean", good), ("sparse pages", pages)):
            made.append(Share("candidate", "uniform", name, what, sum(one >= limit for one in them), len(them)))
    pairs = {what: edited_scenes(REPORT, 100, what) for what in EDITS}
    for name, make in HASHES.items():
        limit = float(np.quantile(distances(TUNE, make)[1], FOUND))
        good, bad = distances(REPORT, make)
        groups = {"corruptions": bad, "clean": good} | {
            what: [bits(make(one.picture), make(other.picture)) for one, other in zip(before, after)]
            for what, (before, after) in pairs.items()
        }
        for what, them in groups.items():
            made.append(Share("candidate", "duplicates", name, what, sum(one <= limit for one in them), len(them)))
    return made


def guesses() -> list[Share]:
    """Turned pixels without a tag: the threshold is the one with 5 % false alarms on the other half."""
    made = []
    for what, (value, turn) in GUESSES.items():
        limit = float(np.quantile([value(case.picture) for case in clean(TUNE)], 0.95))
        for source in ("photograph", "drawn"):
            good = [case.picture for case in clean(REPORT) if case.source == source]
            found = sum(value(picture.transpose(turn)) > limit for picture in good)
            alarms = sum(value(picture) > limit for picture in good)
            made.append(Share("beyond", "orientation", source, what, found, len(good)))
            made.append(Share("beyond, false alarms", "orientation", source, what, alarms, len(good)))
    return made


def outside() -> list[Share]:
    """What a rule is not made for, at its default, on the half that is reported."""
    good, made = clean(REPORT), guesses()
    for rule, kinds in BEYOND.items():
        for what in kinds:
            bad = beyond(rule, what, REPORT, good)
            found = flagged(bad, good if rule == "duplicates" else ())
            made += [share for share in shares("beyond", rule, bad, found, by_kind=True) if share.what]
    for what in EDITS:
        before, after = edited_scenes(REPORT, 100, what)
        hits = sum("duplicates" in flagged([one], [other])[0] for one, other in zip(after, before))
        made.append(Share("beyond, false alarms", "duplicates", "drawn", what, hits, len(after)))
    pages = sparse_pages(100, REPORT)
    made += [s for s in shares("beyond, false alarms", "uniform", pages, flagged(pages), by_kind=True) if s.what]
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for points.csv")
    given = parser.parse_args()
    rows = [share.row() for share in (*rates(REPORT), *outside(), *candidates())]
    given.out.mkdir(parents=True, exist_ok=True)
    write(given.out / "points.csv", ["table", "rule", "source", "what", "flagged", "n", "share", "low", "high"], rows)
    write(given.out / "windows.csv", ["rule", "default", "found", "alarms"], windows())
    for case, rules in zip(apart(), flagged(apart())):
        print(f"{case.id}: {', '.join(sorted(rules)) or 'nothing'}")


def write(file: Path, header: list[str], rows: Sequence[Sequence[str]]) -> None:
    with file.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
    print("\n".join("  ".join(row) for row in (header, *rows)))


if __name__ == "__main__":
    main()
