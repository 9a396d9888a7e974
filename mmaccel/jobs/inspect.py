"""`job=inspect`: the health of a data set without a model: kinds, sizes, buckets, and what the input gate finds.

Wiring only: what the rules are stands in benchmarks/quality.py, the counting in benchmarks/screening.py, the sheet in
report/contact_sheet.py. The folder holds run.yaml, inspect.json and, where anything was rejected, contact_sheet.png.
"""

import json
import statistics
from collections import Counter
from dataclasses import dataclass, replace

from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from mmaccel import registry
from mmaccel.benchmarks.quality import Quality
from mmaccel.benchmarks.screening import Look, Screening, screened
from mmaccel.jobs.console import wide_console
from mmaccel.jobs.folder import opened
from mmaccel.jobs.gate import limited
from mmaccel.jobs.sheet import tiles
from mmaccel.jobs.task import Task
from mmaccel.measure.record import plain, write_atomic
from mmaccel.report.contact_sheet import MOST, contact_sheet

GATE = {"_target_": "mmaccel.benchmarks.quality.Quality"}
NAMED = 6  # kinds and buckets that are named in the table


@dataclass(frozen=True)
class Inspect:
    """worst: examples of every rule in the table. sheet: pictures on the contact sheet."""

    worst: int = 3
    sheet: int = MOST

    def __post_init__(self) -> None:
        for name, low, high in (("worst", 0, 100), ("sheet", 1, MOST)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                raise ValueError(f"job.{name}: got {value!r}, valid are whole numbers {low} … {high}")

    def run(self, task: Task) -> None:
        quality = without_model(registry.instantiate(task.config.get("quality") or GATE, foreign=task.foreign))
        node = task.config["benchmark"]
        lenient = node | ({"broken": "keep"} if "broken" in node else {})  # a broken file is a finding, no mistake
        benchmark = registry.instantiate(lenient, foreign=task.foreign)
        size, console = limited(benchmark, task.config["limit"]), wide_console()
        folder = opened(task)
        with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
            looks = bar.add_task("pictures", total=size)
            found = screened(benchmark, size, quality, lambda done: bar.update(looks, completed=done))
        write_atomic(folder / "inspect.json", json.dumps(plain(found.to_json()), indent=1))
        console.print(facts_table(benchmark.name, found), rules_table(found, self.worst))
        if found.rejected:
            contact_sheet(tiles(benchmark, found, self.sheet)).save(folder / "contact_sheet.png")
        console.print(f"folder: {folder}", soft_wrap=True, markup=False)


def without_model(quality: Quality) -> Quality:
    """What is inspected is at least flagged; text is compared with pictures by a run, which has a model."""
    action = "flag" if quality.action == "off" else quality.action
    return replace(quality, action=action, mismatch=None, model=None)


def facts_table(name: str, found: Screening) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    seen = [look.facts for look in found.looks if look.facts]
    table.add_row("benchmark", Text(f"{name}, {found.size} samples, {len(found.rejected)} flagged"))
    table.add_row("kinds", Text(listed(Counter(look.kind for look in found.looks))))
    table.add_row("buckets", Text(listed(Counter(str(facts["bucket"]) for facts in seen if "bucket" in facts))))
    for side in ("width", "height", "sharpness"):
        values = sorted(facts[side] for facts in seen if side in facts)
        if values:
            middle = statistics.median(values)
            table.add_row(side, f"{values[0]:g} … {values[-1]:g}, median {middle:g}")
    return table


def listed(counts: Counter[str]) -> str:
    named = ", ".join(f"{name} {count}" for name, count in counts.most_common(NAMED))
    return named + (f", and {len(counts) - NAMED} others" if len(counts) > NAMED else "")


def rules_table(found: Screening, worst: int) -> Table:
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for title in ("rule", "threshold", "flagged", "share", "worst"):
        table.add_column(title, overflow="fold", justify="left" if title in ("rule", "worst") else "right")
    for rule, threshold in found.quality.rules.items():
        count, named = found.counts[rule], [example(look, rule) for look in found.examples(rule, worst)]
        limit = "–" if threshold is None else f"{threshold:g}"
        table.add_row(
            rule, limit, str(count), f"{100 * count / found.size:.1f} %", Text("\n".join(named))
        )
    return table


def example(look: Look, rule: str) -> str:
    flag = look.flag(rule)
    value = f" {flag.value:.4g}" if flag and flag.value is not None else ""
    return f"{look.id}{value}" + (f" ({flag.note})" if flag and flag.note else "")
