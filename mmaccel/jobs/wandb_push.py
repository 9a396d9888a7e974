"""`job=wandb_push run=DIR`: a finished run to Weights & Biases, by the same code as the run itself, and online."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from mmaccel import registry
from mmaccel.jobs.finish import show_sync
from mmaccel.jobs.task import Task
from mmaccel.measure.record import RunFolder
from mmaccel.measure.tracker import Wandb, arrived

AS_BEFORE = ("project", "entity", "sample_limit")  # where the run itself went to, unless it is typed


@dataclass(frozen=True)
class Push:
    """folder: a run folder that has its summary.json (job=report writes it), or that of a training."""

    folder: str | None

    def run(self, task: Task) -> None:
        path = named(self.folder)
        trained = (path / "log.jsonl").is_file()
        if not trained and not (RunFolder.open(path).path / "summary.json").is_file():
            raise ValueError(f"{path}: no summary.json yet; job=report run={path} writes it")
        tracker = tracker_of(task, path)
        if tracker.mode == "offline" and not typed(task, "mode"):
            tracker = replace(tracker, mode="online")
        line = tracker.push(path)
        show_sync(line)
        if arrived(path):
            print(f"W&B: all of it is on the server, {tracker.entity or 'your default entity'}/{tracker.project}")
        elif tracker.mode == "online":
            raise ConnectionError(f"W&B: {path} is not on the server, or not all of it; what was said above tells why")


def named(folder: str | None) -> Path:
    """The folder of a finished run."""
    if not folder:
        raise ValueError("run: a value is needed, the folder of a finished run, e.g. run=outputs/fastv_sweep/<time>")
    if not Path(folder).is_dir():
        raise FileNotFoundError(f"run: {folder} is no folder; valid is that of a finished run, outputs/<name>/<time>")
    return Path(folder)


def tracker_of(task: Task, path: Path) -> Wandb:
    """The tracker that is asked for; it writes to the project and entity that the run was started with."""
    found = registry.instantiate(task.config["tracker"], foreign=task.foreign)
    if not isinstance(found, Wandb):
        raise ValueError("tracker: it is off, valid here is tracker=wandb")
    for name in ("config.yaml", "run.yaml"):
        file = path / name
        config: dict[str, Any] = (yaml.safe_load(file.read_text(encoding="utf-8")) if file.is_file() else None) or {}
        before = {key: value for key, value in (config.get("tracker") or {}).items() if value is not None}
        found = replace(found, **{key: before[key] for key in AS_BEFORE if key in before and not typed(task, key)})
    return found


def typed(task: Task, key: str) -> bool:
    return any(word.lstrip("+").startswith(f"tracker.{key}=") for word in task.typed)
