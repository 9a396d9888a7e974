"""A trained head as a folder that serving engines load. Wiring only: the rules stand in training/export.py."""

import json
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from mmaccel.jobs.task import Task
from mmaccel.models.checkpoint import checkpoint
from mmaccel.training.export import export_head
from mmaccel.training.formats import load_head


@dataclass(frozen=True)
class Export:
    """head: the folder of a trained head.  layout: native or speculators.  The target is the run's model, the folder is
    the run's output."""

    head: str
    layout: str = "native"

    def run(self, task: Task) -> None:
        node = task.config["model"]
        found = checkpoint(node["path"], node.get("revision"))
        config = json.loads((Path(found.folder) / "config.json").read_text(encoding="utf-8"))
        head = load_head(self.head)
        text = config.get("text_config", config)
        head.fits(text["hidden_size"], text["vocab_size"])
        if (task.output / "config.json").exists():
            raise FileExistsError(f"{task.output} already holds a head; choose another output=")
        console = Console(stderr=True, highlight=False)
        for warning in export_head(head, task.output, str(node["path"]), config, self.layout):
            console.print(f"note: {warning}", markup=False, soft_wrap=True)
        console.print(f"head: {task.output}", markup=False, soft_wrap=True)
