"""`job=report run=DIR`: points.csv, summary.json and report.html again, from the records alone.

With `wandb.report=true` a W&B Report too: created once, updated from then on.
"""

from dataclasses import dataclass
from pathlib import Path

from mmaccel.jobs.finish import finish, show_sync
from mmaccel.jobs.task import Task
from mmaccel.jobs.wandb_push import named, tracker_of
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
        tracker = tracker_of(task, path) if asked else None
        finish(path, None, None)
        if tracker is not None:
            share(path, tracker)


def share(path: Path, tracker: Wandb) -> None:
    """The runs first, as tracker.mode says, for a Report shows what is on the server."""
    line = tracker.push(path)
    if line is not None:
        print(f"W&B: a Report shows what is on the server; job=wandb_push run={path} sends the runs that are not yet")
        show_sync(line)
    group = pushed(path).get("group", path.name)
    link = write_wandb_report(path, entity=tracker.entity, project=tracker.project, group=group)
    print(f"W&B Report: {link}")
