"""The input gate of a run: which samples go on, and what the others would have cost.

Wiring only: the rules stand in benchmarks/quality.py. The run folder gets quality.json and, where a picture was
flagged, contact_sheet.png.
"""

import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from mmaccel import registry
from mmaccel.benchmarks.base import Benchmark
from mmaccel.benchmarks.kept import Kept
from mmaccel.benchmarks.quality import Quality
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
    saved = savings(folder, found.size - len(found.kept), geometry)
    write_atomic(folder.path / "quality.json", json.dumps(plain(found.to_json() | {"saved": saved}), indent=1))
    if found.rejected:
        contact_sheet(tiles(benchmark.inner, found, MOST)).save(Path(folder.path) / "contact_sheet.png")


def savings(folder: RunFolder, dropped: int, geometry: Geometry) -> dict[str, Any]:
    """What the dropped samples would have cost the baseline, at the mean of those it answered; times where timed."""
    asked = clean(record for record in folder.records() if record["point"] == BASELINE and not record["turn"])
    counts = [record["tokens"] for record in asked if record.get("tokens")]
    times = [record["e2e_ms"] for record in asked if record.get("e2e_ms") is not None]
    if not dropped or not counts:
        return {"samples": dropped}
    macs = [ledger(geometry, c["prompt"] - c["visual"], c["visual"]).prefill_macs_full for c in counts]
    return {
        "samples": dropped,
        "visual_tokens": dropped * statistics.mean(c["visual"] for c in counts),
        "prefill_macs": dropped * statistics.mean(macs),
        "e2e_ms": dropped * statistics.mean(times) if times else None,
    }
