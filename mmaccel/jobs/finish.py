"""From records to what people look at: points.csv, summary.json, report.html, the W&B runs and the last table.

One path for the run itself, a resumed run and `job=report`. Knows the run folder alone.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from mmaccel.benchmarks.base import Benchmark
from mmaccel.jobs.console import wide_console
from mmaccel.jobs.points import BASELINE
from mmaccel.measure.official import Draws, official
from mmaccel.measure.record import RunFolder, first_facts, write_points
from mmaccel.measure.scores import Record, clean
from mmaccel.measure.stats import points_table
from mmaccel.report.officialrows import official_rich
from mmaccel.report.page import write_report
from mmaccel.report.table import fitting


def finish(path: Path, benchmark: Benchmark | None, tracker: Any | None) -> None:
    """benchmark: adds its own scores; None keeps what the folder has. tracker: pushed to, None = not now."""
    records = RunFolder.open(path).records()
    points = (yaml.safe_load((path / "config.yaml").read_text(encoding="utf-8")) or {}).get("points")
    if not points or not records:
        raise ValueError(f"{path}: no points to report on; it holds {len(records)} records")
    rows = points_table(records, points, BASELINE)
    kept = kept_summary(path)
    extra = {key: value for key, value in kept.items() if key not in ("points", "baseline")}
    cold = first_facts(path).get("cold_start")
    extra |= {"cold_start": cold} if cold else {}
    own = kept_scores(kept)
    if benchmark is not None:
        write_points(path, rows, extra)  # thousands of samples take minutes to resample, and what is measured is safe
        own = tried_scores(path, benchmark, records, rows)
    rows = [row | {"official": own.get(row["point"]) or {}} for row in rows]
    write_points(path, rows, extra)
    page = write_report(path)
    console = wide_console()
    console.print(fitting(rows, console))
    scores = official_rich(rows)
    if scores is not None:
        console.print(scores)
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
    """What summary.json holds already."""
    file = path / "summary.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def kept_scores(summary: dict[str, Any]) -> dict[str, Any]:
    return {row["point"]: row.get("official") for row in summary.get("points") or ()}


def tried_scores(path: Path, benchmark: Benchmark, records: list[dict[str, Any]], rows: list[dict[str, Any]]) -> Any:
    """A fault in a benchmark's summary costs its own scores and nothing else."""
    try:
        return own_scores(benchmark, records, rows)
    except Exception as error:
        said = f"warning: the summary of {benchmark.name} failed ({type(error).__name__}: {error}); its own scores are "
        said += f"missing, job=report run={path} makes them once it works"
        Console(stderr=True, highlight=False).print(said, markup=False, soft_wrap=True)
        return {}


def own_scores(benchmark: Benchmark, records: list[dict[str, Any]], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Point → the benchmark's own scores with intervals, paired with the baseline where the two can be compared."""
    mine = {row["point"]: clean(one for one in records if one["point"] == row["point"]) for row in rows}
    known: Draws = {}
    found = {}
    for row in rows:
        good, base = unanswered(mine[row["point"]]), unanswered(mine[BASELINE])
        fair = row["point"] != BASELINE and not row.get("refused")
        found[row["point"]] = official(benchmark.summary, benchmark.unit, good, base if fair else None, known=known)
    return found


def unanswered(records: Sequence[Record]) -> list[Record]:
    """Agreement with the baseline is no score of the benchmark's."""
    agrees = [bool(one["score"].get("agreement")) for one in records]
    return [{**one, "score": {**one["score"], "correct": None}} if no else one for one, no in zip(records, agrees)]
