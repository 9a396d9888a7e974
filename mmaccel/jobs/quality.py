"""The input gate of a run: which samples go on, and what the others would have cost.

Wiring only: the rules stand in benchmarks/quality.py. The run folder gets quality.json and, where a picture was
flagged, contact_sheet.png.
"""

import json
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import Progress

from mmaccel import registry
from mmaccel.benchmarks.base import Benchmark
from mmaccel.benchmarks.kept import Kept
from mmaccel.benchmarks.quality import UNDECODABLE, Quality
from mmaccel.benchmarks.screening import screened
from mmaccel.jobs.points import BASELINE
from mmaccel.jobs.sheet import tiles
from mmaccel.measure.cost import Geometry, ledger
from mmaccel.measure.record import RunFolder, plain, write_atomic
from mmaccel.measure.scores import clean
from mmaccel.models.similarity import similarity
from mmaccel.report.contact_sheet import MOST, contact_sheet


def behind_gate(benchmark: Benchmark, size: int, node: Mapping[str, Any], foreign: bool) -> tuple[Benchmark, int]:
    """(what is asked, how many); raises where the gate leaves nothing."""
    quality: Quality = registry.instantiate(node, foreign=foreign)
    if quality.action == "off":
        return benchmark, size
    if quality.mismatch is not None and quality.model is None:
        raise ValueError("quality.model: a CLIP-style model is needed where quality.mismatch is not null")
    compares = similarity(quality.model) if quality.mismatch is not None and quality.model else None
    console = Console(stderr=True, highlight=False)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        looks = bar.add_task("input gate", total=size)
        found = screened(benchmark, size, quality, lambda done: bar.update(looks, completed=done), compares)
    said = ", ".join(f"{rule} {count}" for rule, count in found.counts.items() if count) or "nothing"
    console.print(f"input gate ({quality.action}): {len(found.kept)} of {size} samples are asked; flagged: {said}")
    if not found.kept:
        raise ValueError(f"quality.action=drop leaves none of {size} samples ({said}); job=inspect shows them")
    return Kept(benchmark, found), len(found.kept)


def note_screening(folder: RunFolder, benchmark: Benchmark, geometry: Geometry) -> None:
    """quality.json and the contact sheet, of a run whose gate was not off."""
    if not isinstance(benchmark, Kept):
        return
    found = benchmark.screening
    kept = set(found.kept)
    dropped = [look for look in found.looks if look.index not in kept and not look.flag(UNDECODABLE)]
    saved = savings(folder, len(dropped), geometry)
    write_atomic(folder.path / "quality.json", json.dumps(plain(found.to_json() | {"saved": saved}), indent=1))
    if found.rejected:
        contact_sheet(tiles(benchmark.inner, found, MOST)).save(folder.path / "contact_sheet.png")


def savings(folder: RunFolder, dropped: int, geometry: Geometry) -> dict[str, Any]:
    """What so many dropped samples would have cost the baseline, all turns, at the mean of those it answered; times
    where timed."""
    asked = clean(record for record in folder.records() if record["point"] == BASELINE)
    counts = [record["tokens"] for record in asked if record.get("tokens")]
    if not dropped or not counts:
        return {"samples": dropped}
    samples = len({record["sample"] for record in asked})
    macs = [ledger(geometry, c["prompt"] - c["visual"], c["visual"]).prefill_macs_full for c in counts]
    timed = [record for record in asked if record.get("e2e_ms") is not None]
    clocks = len({record["sample"] for record in timed})
    return {
        "samples": dropped,
        "visual_tokens": dropped * sum(c["visual"] for c in counts) / samples,
        "prefill_macs": dropped * sum(macs) / samples,
        "e2e_ms": dropped * sum(record["e2e_ms"] for record in timed) / clocks if clocks else None,
    }
