"""`job=compare job.folders={crop: DIR, stretch: DIR}`: finished runs on the same samples, paired, as one folder.

Answers are compared, times are not: those of two processes are not paired. Runs that asked something else, or whose
pictures were prepared otherwise, are refused unless `job.across` says that this is what is compared.
"""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from mmaccel import registry
from mmaccel.jobs.finish import finish
from mmaccel.jobs.points import BASELINE
from mmaccel.jobs.task import Task
from mmaccel.jobs.timing import UNTIMED
from mmaccel.measure.record import RunFolder, first_facts
from mmaccel.measure.scores import clean, other_prompts

MAY_DIFFER = {"processor": "processor", "model": "weights"}  # what across names → the provenance that then may differ


@dataclass(frozen=True)
class Run:
    label: str
    path: Path
    config: Mapping[str, Any]
    facts: Mapping[str, Any]
    records: list[dict[str, Any]] = field(repr=False)

    @classmethod
    def read(cls, label: str, path: Path) -> "Run":
        records = RunFolder.open(path).records()
        config = yaml.safe_load((path / "config.yaml").read_text(encoding="utf-8")) or {}
        if not config.get("points") or not records:
            raise ValueError(f"job.folders.{label}: {path} is no finished sweep")
        return cls(label, path, config, first_facts(path), records)

    def name(self, point: str, first: "Run") -> str:
        """The first run's baseline is everybody's."""
        return point if self is first and point == BASELINE else f"{self.label}: {point}"


@dataclass(frozen=True)
class Compare:
    """folders: label → run folder, or a list of them; the first one's baseline is the yardstick. across: what may
    differ between them, of processor and model."""

    folders: Mapping[str, str] | Sequence[str]
    across: Sequence[str] = ()

    def __post_init__(self) -> None:
        wrong = [name for name in self.across if name not in MAY_DIFFER]
        if isinstance(self.across, str) or wrong:
            raise ValueError(f"job.across: got {self.across!r}, valid is a list of {', '.join(MAY_DIFFER)}")
        if isinstance(self.folders, str) or len(self.folders) < 2:
            raise ValueError(
                f"job.folders: got {self.folders!r}, valid are two run folders or more, with labels or not"
            )

    def run(self, task: Task) -> None:
        named = self.folders if isinstance(self.folders, Mapping) else {Path(one).name: one for one in self.folders}
        first, *others = [Run.read(label, Path(path)) for label, path in named.items()]
        for other in others:
            self.check(first, other)
        runs = [first, *others]
        points = [point for run in runs for point in self.points(run, first)]
        config = task.kept() | {"benchmark": first.config.get("benchmark"), "points": points}
        with RunFolder.create(task.output, config, self.provenance(first, runs)) as folder:
            for record in (line for run in runs for line in renamed(run, first)):
                folder.append(record)
        for picture in (first.path / "images").glob("*.png"):
            if "--" not in picture.name and not picture.name.startswith("accuracy_"):
                shutil.copy(picture, task.output / "images")
        finish(task.output, registry.instantiate(config["benchmark"], foreign=task.foreign), None)

    def check(self, first: Run, other: Run) -> None:
        """Raises for what makes the answers of two runs no pair."""
        fixed = {"benchmark": "benchmark", **{MAY_DIFFER[n]: n for n in MAY_DIFFER if n not in self.across}}
        for fact, name in fixed.items():
            one, two = first.facts.get(fact), other.facts.get(fact)
            if one is not None and two is not None and one != two:
                hint = f"; job.across=[{name}] compares across it" if name in MAY_DIFFER else ""
                said = " and ".join(told(value) for value in (one, two))
                raise ValueError(f"{first.label} and {other.label} differ in {fact}: {said}{hint}")
        mine, yardstick = (clean(r for r in run.records if r["point"] == BASELINE) for run in (other, first))
        refused = None if self.across else other_prompts(mine, yardstick)
        if refused:
            raise ValueError(f"{other.label} saw {refused.replace('the baseline', first.label)}")

    def points(self, run: Run, first: Run) -> Iterator[dict[str, Any]]:
        for point in run.config["points"]:
            named = {**point, "name": run.name(point["name"], first), "across": list(self.across)}
            named["pruner"] = point.get("pruner") or (None if run is first else run.label)
            yield {key: value for key, value in named.items() if key != "twin"}  # drafts are timed, here nothing is

    def provenance(self, first: Run, runs: Sequence[Run]) -> dict[str, Any]:
        of_runs = {run.label: {"run": run.facts.get("run"), "processor": run.facts.get("processor")} for run in runs}
        kept = ("time", "git", "versions", "system", "device", "dtype", "attention", "weights", "benchmark")
        return {key: first.facts[key] for key in kept if key in first.facts} | {"of": of_runs}


def told(fact: Any) -> str:
    """A processor in the settings that are not its checkpoint's."""
    if not isinstance(fact, Mapping) or "differs" not in fact:
        return str(fact)
    return "; ".join(f"{name}={now}" for name, (_, now) in fact["differs"].items()) or "the checkpoint's settings"


def renamed(run: Run, first: Run) -> Iterator[dict[str, Any]]:
    for record in run.records:
        yield {**record, **UNTIMED, "point": run.name(record["point"], first)}
