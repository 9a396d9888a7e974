"""From records to what people look at: points.csv, summary.json, report.html, the W&B runs and the last table.

One path for the run itself, a resumed run and `job=report`. Knows the run folder alone.
"""

import json
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from mmaccel.benchmarks.base import Benchmark
from mmaccel.jobs.console import wide_console
from mmaccel.jobs.points import BASELINE
from mmaccel.measure.record import RunFolder, first_facts, write_points
from mmaccel.measure.stats import points_table
from mmaccel.report.page import write_report
from mmaccel.report.table import points_table_rich


def finish(path: Path, benchmark: Benchmark | None, tracker: Any | None) -> None:
    """benchmark: adds its own summary; None keeps what the folder has. tracker: pushed to, None = not now."""
    records = RunFolder.open(path).records()
    points = (yaml.safe_load((path / "config.yaml").read_text(encoding="utf-8")) or {}).get("points")
    if not points or not records:
        raise ValueError(f"{path}: no points to report on; it holds {len(records)} records")
    rows = points_table(records, points, BASELINE)
    extra = kept_summary(path) if benchmark is None else {"benchmark": benchmark.summary(records)}
    cold = first_facts(path).get("cold_start")
    write_points(path, rows, extra | ({"cold_start": cold} if cold else {}))
    page = write_report(path)
    console = wide_console()
    console.print(points_table_rich(rows))
    if any((record["score"] or {}).get("agreement") for record in records):
        console.print("where there is no answer, accuracy is agreement with the unpruned reply, not being right")
    failed = sum(bool(record["error"]) for record in records)
    if failed:
        console.print(f"{failed} of {len(records)} records are errors and count in no number; records.jsonl says why")
    console.print(f"page: {page}", soft_wrap=True)
    if tracker is not None:
        show_sync(tracker.push(path), console)


def show_sync(line: str | None, console: Console | None = None) -> None:
    """The exact line that brings the offline runs to the server."""
    if line:
        (console or Console(highlight=False)).print(f"W&B:  {line}", soft_wrap=True, markup=False)


def kept_summary(path: Path) -> dict[str, Any]:
    """What summary.json holds beside the points."""
    file = path / "summary.json"
    old = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return {key: value for key, value in old.items() if key not in ("points", "baseline")}
