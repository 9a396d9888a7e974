"""`job=push job.folder=DIR`: a finished run to Weights & Biases, by the same code as the run itself."""

from dataclasses import dataclass
from pathlib import Path

from mmaccel import registry
from mmaccel.jobs.finish import show_sync
from mmaccel.jobs.task import Task
from mmaccel.measure.record import RunFolder


@dataclass(frozen=True)
class Push:
    """folder: a run folder that has its summary.json (job=report writes it), or that of a training."""

    folder: str

    def run(self, task: Task) -> None:
        path = Path(self.folder)
        trained = (path / "log.jsonl").is_file()
        if not trained and not (RunFolder.open(path).path / "summary.json").is_file():
            raise ValueError(f"{path}: no summary.json yet; job=report job.folder={path} writes it")
        line = registry.instantiate(task.config["tracker"], foreign=task.foreign).push(path)
        show_sync(line)
        if line is None:
            print("W&B: all of it is on the server, or the tracker is off")
