"""The folder of a job that is no paired run: made once, and gone on with under the configuration that made it."""

import json
import uuid
from pathlib import Path
from typing import Any

import yaml

from mmaccel.jobs.task import Task
from mmaccel.measure.record import changed_keys, first_facts, plain, write_atomic


def opened(task: Task) -> Path:
    """The folder, with its run.yaml; raises for one that is in use, is none, or was made under other settings."""
    folder, kept = task.resume or task.output, plain(task.kept())
    file = folder / "run.yaml"
    if task.resume is None:
        if file.is_file():
            raise FileExistsError(
                f"{folder} already holds a run; continue it with resume={folder} or choose another one"
            )
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(file, yaml.safe_dump(kept, sort_keys=False, allow_unicode=True))
        return folder
    if not file.is_file():
        raise FileNotFoundError(f"resume: {folder} is no folder of such a job (it has no run.yaml)")
    changed = changed_keys(yaml.safe_load(file.read_text(encoding="utf-8")) or {}, kept)
    if changed:
        lines = "\n".join(f"  {key}: was {old!r}, now {new!r}" for key, (old, new) in changed.items())
        raise ValueError(f"resume: the config changed since {folder} was started:\n{lines}")
    return folder


def noted(folder: Path, facts: dict[str, Any]) -> dict[str, Any]:
    """provenance.json: what the folder was started with, under a name of its own, and what it was gone on with."""
    first = first_facts(folder)
    if first:
        first.setdefault("resumed", []).append(plain(facts))
    else:
        first = {"run": uuid.uuid4().hex[:12], **plain(facts)}
    write_atomic(folder / "provenance.json", json.dumps(first, indent=2))
    return first
