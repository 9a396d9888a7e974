"""The terminal while a run goes on: progress, time left, and per point the running accuracy and speed-up.

Knows records. The running numbers are for the eye; the table at the end is computed from the records anew.
"""

import statistics
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from mmaccel.jobs.points import BASELINE, Point
from mmaccel.measure.record import RunFolder

SILENCE = 30.0  # seconds after which a log hears of a sample that is done


class Screen:
    """`with Screen(…) as screen: screen.show(record) … screen.advance(samples)`, on stderr; a log gets ten lines and
    one in 30 s."""

    def __init__(self, samples: int, points: Sequence[Point], folder: RunFolder) -> None:
        self.samples, self.names = samples, [point.name for point in points]
        self.console = Console(stderr=True, highlight=False)
        columns = (TextColumn("samples"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("left"))
        self.progress = Progress(*columns, TimeRemainingColumn(), console=self.console)
        self.task = self.progress.add_task("samples", total=samples)
        self.correct: dict[str, list[float]] = defaultdict(list)
        self.times: dict[str, dict[tuple[str, int], float]] = defaultdict(dict)
        self.errors, self.first = 0, samples
        self.began = self.told = time.monotonic()
        # auto_refresh would draw from a thread of its own, inside timed requests
        self.live = Live(console=self.console, auto_refresh=False, transient=True)
        self.console.print(f"{samples} samples × {len(points)} points → {folder.path}", soft_wrap=True)
        for record in folder.records():
            self.note(record)

    def __enter__(self) -> "Screen":
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.console.is_terminal:
            self.live.stop()

    def show(self, record: Mapping[str, Any]) -> None:
        self.note(record)
        if record["error"]:
            where = f"{record['sample']} through {record['point']}"
            self.console.print(f"error: {where}: {record['error']}", markup=False, soft_wrap=True)
        if self.console.is_terminal:
            self.live.update(Group(self.table(), self.progress), refresh=True)

    def note(self, record: Mapping[str, Any]) -> None:
        if record["error"]:
            self.errors += 1
            return
        score = record["score"]
        if score.get("correct") is not None and not score.get("apart"):
            self.correct[record["point"]].append(score["correct"])
        if record["e2e_ms"] is not None:
            self.times[record["point"]][record["sample"], record["turn"]] = record["e2e_ms"]

    def advance(self, done: int) -> None:
        self.progress.update(self.task, completed=done)
        self.first = min(self.first, done - 1)
        if self.console.is_terminal:
            self.live.refresh()
        elif done % max(self.samples // 10, 1) == 0 or done == self.samples or self.silent() > SILENCE:
            self.told = time.monotonic()
            said = f"{done}/{self.samples} samples, {self.errors} errors, baseline accuracy {self.running(BASELINE)[0]}"
            self.console.print(f"{said}, {self.clock(done)}")

    def silent(self) -> float:
        """Seconds since the log was told something."""
        return time.monotonic() - self.told

    def clock(self, done: int) -> str:
        """Time so far and, at the pace so far, to come; both of this process alone."""
        spent = time.monotonic() - self.began
        left = spent / (done - self.first) * (self.samples - done)
        return f"{timedelta(seconds=round(spent))} so far, {timedelta(seconds=round(left))} to go"

    def running(self, name: str) -> tuple[str, str]:
        """(accuracy, speed-up) so far, "–" where there is none yet."""
        right, mine, base = self.correct[name], self.times[name], self.times[BASELINE]
        ratios = [base[key] / mine[key] for key in mine.keys() & base.keys()]
        accuracy = f"{100 * sum(right) / len(right):.1f}" if right else "–"
        return accuracy, f"{statistics.median(ratios):.2f}×" if ratios else "–"

    def table(self) -> Table:
        table = Table(box=None, header_style="bold")
        for title in ("point", "accuracy so far", "speed-up so far"):
            table.add_column(title, justify="left" if title == "point" else "right")
        for name in self.names:
            table.add_row(name, *self.running(name))
        return table
