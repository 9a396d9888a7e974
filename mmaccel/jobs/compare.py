"""`job=compare job.folders={crop: DIR, stretch: DIR}`: finished runs on the same samples, paired, as one folder.

Answers are compared, times are not: those of two processes are not paired. Runs that asked something else, or whose
pictures were prepared otherwise, are refused unless `job.across` says that this is what is compared.
"""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmaccel import registry
from mmaccel.jobs.finish import finish
from mmaccel.jobs.points import BASELINE
from mmaccel.jobs.runs import Run, renamed, undrafted
from mmaccel.jobs.task import Task
from mmaccel.measure.record import RunFolder, changed_keys
from mmaccel.measure.scores import clean, other_prompts

MAY_DIFFER = {"processor": "processor", "model": "weights"}  # what across names → the provenance that then may differ


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
        if len(named) < len(self.folders):
            raise ValueError(f"job.folders: two folders of {list(self.folders)} have one name, valid is label: folder")
        first, *others = [Run.read(label, Path(path)) for label, path in named.items()]
        for other in others:
            self.check(first, other)
        runs = [first, *others]
        points = [point for run in runs for point in self.points(run, first)]
        config = {**first.config, "name": "compare", "points": points, "job": task.config["job"]}
        benchmark = registry.instantiate(config["benchmark"], foreign=task.foreign)
        with RunFolder.create(task.output, config, self.provenance(first, runs)) as folder:
            for record in (line for run in runs for line in renamed(run, first)):
                folder.append(record)
        for picture in (first.path / "images").glob("*.png"):
            if "--" not in picture.name and not picture.name.startswith("accuracy_"):
                shutil.copy(picture, task.output / "images")
        finish(task.output, benchmark, None)

    def check(self, first: Run, other: Run) -> None:
        """Raises for what makes the answers of two runs no pair."""
        fixed = {"benchmark": "benchmark", **{MAY_DIFFER[n]: n for n in MAY_DIFFER if n not in self.across}}
        for fact, name in fixed.items():
            one, two = first.facts.get(fact), other.facts.get(fact)
            if one is not None and two is not None and one != two:
                said = " and ".join(told(value) for value in (one, two))
                said = f"{asked(first)} and {asked(other)}" if fact == "benchmark" else said
                hint = f"; job.across=[{name}] compares across it" if name in MAY_DIFFER else ""
                raise ValueError(f"{first.label} and {other.label} differ in {fact}: {said}{hint}")
        changed = changed_keys(first.config.get("sampler") or {}, other.config.get("sampler") or {})
        if changed:
            raise ValueError(f"{first.label} and {other.label} differ in sampler: {changed}")
        mine, yardstick = (clean(r for r in run.records if r["point"] == BASELINE) for run in (other, first))
        if not {r["sample"] for r in mine} & {r["sample"] for r in yardstick}:
            raise ValueError(f"{first.label} and {other.label} share no sample whose baseline answered")
        refused = None if self.across else other_prompts(mine, yardstick)
        if refused:
            raise ValueError(f"{other.label} saw {refused.replace('the baseline', first.label)}")

    def points(self, run: Run, first: Run) -> Iterator[dict[str, Any]]:
        for point in undrafted(run):
            named = {**point, "name": run.name(point["name"], first), "across": list(self.across)}
            named["pruner"] = point.get("pruner") or (None if run is first else run.label)
            yield named

    def provenance(self, first: Run, runs: Sequence[Run]) -> dict[str, Any]:
        of_runs = {run.label: {"run": run.facts.get("run"), "processor": run.facts.get("processor")} for run in runs}
        kept = ("time", "git", "versions", "system", "device", "dtype", "attention", "weights", "benchmark")
        return {key: first.facts[key] for key in kept if key in first.facts} | {"of": of_runs}


def asked(run: Run) -> str:
    """Which samples a run asked, in words."""
    node, samples = run.config.get("benchmark") or {}, len({record["sample"] for record in run.records})
    name = next((record["benchmark"] for record in run.records if record.get("benchmark")), node.get("_target_"))
    return f"{samples} samples of {' '.join(str(part) for part in (name, node.get('path')) if part)}"


def told(fact: Any) -> str:
    """A processor in the settings that are not its checkpoint's."""
    if isinstance(fact, Mapping) and "sha256" in fact:
        return f"weights {fact['sha256'][:12]}"
    if not isinstance(fact, Mapping) or "differs" not in fact:
        return str(fact)
    return "; ".join(f"{name}={now}" for name, (_, now) in fact["differs"].items()) or "the checkpoint's settings"
