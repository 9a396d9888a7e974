"""`job=report run=DIR`: points.csv, summary.json and report.html again, from the records alone.

With `wandb.report=true` a W&B Report too: created once, updated from then on.
"""

from dataclasses import dataclass
from pathlib import Path

import yaml

from mmaccel import registry
from mmaccel.benchmarks.base import Benchmark
from mmaccel.jobs.finish import finish, kept_scores, kept_summary, show_sync
from mmaccel.jobs.task import Task
from mmaccel.jobs.wandb_push import named, tracker_of
from mmaccel.measure.record import RunFolder
from mmaccel.measure.tracker import Wandb, pushed
from mmaccel.report.wandb_report import write_wandb_report


@dataclass(frozen=True)
class Report:
    """folder: a run folder."""

    folder: str | None

    def run(self, task: Task) -> None:
        path, asked = named(self.folder), task.config["wandb"]["report"]
        if not isinstance(asked, bool):
            raise ValueError(f"wandb.report: got {asked!r}, valid are true and false")
        RunFolder.open(path)  # says so where it is none
        tracker = tracker_of(task, path) if asked else None
        finish(path, benchmark_of(path, task.foreign), None)
        if tracker is not None:
            share(path, tracker)


def benchmark_of(path: Path, foreign: bool) -> Benchmark | None:
    """The run's benchmark where its own scores are not in the summary yet, as of a run that was killed."""
    if any(kept_scores(kept_summary(path)).values()):
        return None
    config = yaml.safe_load((path / "config.yaml").read_text(encoding="utf-8")) or {}
    try:
        return registry.instantiate(config["benchmark"], foreign=foreign)
    except Exception as error:  # its files may be elsewhere; everything else is in the records
        print(f"the benchmark's own scores are left out, it cannot be opened here: {error}")
        return None


def share(path: Path, tracker: Wandb) -> None:
    """The runs first, as tracker.mode says, for a Report shows what is on the server."""
    line = tracker.push(path)
    if line is not None:
        print(f"W&B: a Report shows what is on the server; job=wandb_push run={path} sends the runs that are not yet")
        show_sync(line)
    group = pushed(path).get("group", path.name)
    link = write_wandb_report(path, entity=tracker.entity, project=tracker.project, group=group)
    print(f"W&B Report: {link}")
