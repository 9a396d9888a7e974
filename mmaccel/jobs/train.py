"""Training a draft head: from a configuration to a folder that draft.path reads.

Wiring only: what a conversation is stands in training/data.py, the loop in training/trainer.py, the head in drafting/.
The run folder holds the head, trainer.pt to go on from, log.jsonl and what made it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from rich.console import Console
from rich.progress import Progress
from torch.utils.data import Subset

from mmaccel import registry
from mmaccel.drafting.base import DraftHead
from mmaccel.jobs.before_training import announce, opened_cache, target_of
from mmaccel.jobs.finish import show_sync
from mmaccel.jobs.folder import noted, opened
from mmaccel.jobs.task import Task
from mmaccel.measure.provenance import provenance
from mmaccel.measure.record import write_atomic
from mmaccel.training.formats import NEW, check_name, new_head
from mmaccel.training.trainer import Plan, Trainer, held_out
from mmaccel.training.vocabulary import give_vocabulary

SHOWN = 5  # problems of the data that are printed


@dataclass(frozen=True)
class Train:
    head: str | DraftHead = "eagle"
    fields: Mapping[str, Any] = field(default_factory=dict)
    held_out: int = 16
    most: int = 128
    cache: str | None = None
    plan: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.head, str):
            check_name(self.head)
        elif not isinstance(self.head, DraftHead):
            raise ValueError(f"job.head: got a {type(self.head).__name__}, valid are names, folders and draft heads")

    def run(self, task: Task) -> None:
        config, plan = task.config, Plan(**self.plan)
        tracker = registry.instantiate(config["tracker"], foreign=task.foreign)
        source = registry.instantiate(config["data"], foreign=task.foreign)
        split = len(source) - self.held_out
        if not 0 < self.held_out < len(source):
            raise ValueError(
                f"job.held_out: got {self.held_out}, valid are 1 … {len(source) - 1}: there are {len(source)}"
            )
        processes = PartialState(cpu=config["machine"]["device"] == "cpu")  # one, but under accelerate launch
        main = processes.is_main_process
        folder = opened(task) if main else task.resume or task.output
        vlm, pruner = target_of(task)
        facts = provenance(vlm.model, vlm.path, config["seed"])
        if main:
            noted(folder, facts)
        torch.manual_seed(plan.seed)
        text = vlm.model.config.get_text_config()
        name = self.head if isinstance(self.head, str) else ""
        head = new_head(name, vlm.model.config, self.fields) if isinstance(self.head, str) else self.head
        head.fits(text.hidden_size, text.vocab_size)
        if name in NEW:
            give_vocabulary(head, vlm, source, split)
        console = Console(stderr=True, highlight=False, quiet=not main)
        for problem in getattr(source, "problems", [])[:SHOWN]:
            console.print(f"left out: {problem}", markup=False, soft_wrap=True)
        cache = opened_cache(self.cache, facts, vlm, head, plan, pruner, source, config)
        trainer = Trainer(vlm, head, Subset(source, range(split)), plan, folder, pruner, cache)
        if task.resume and not trainer.resume():
            raise FileNotFoundError(f"resume: {folder} has no checkpoint; it is written every plan.save_every steps")
        if trainer.step < plan.steps:
            announce(trainer, split, console)
        self.follow(trainer, folder, console)
        if not main:
            return
        held = held_out(trainer, Subset(source, range(split, len(source))), self.most)
        write_atomic(folder / "held_out.json", json.dumps(held, indent=2))
        console.print(f"head: {folder}\nheld out: {held}", markup=False, soft_wrap=True)
        show_sync(tracker.push(folder))

    def follow(self, trainer: Trainer, folder: Path, console: Console) -> None:
        log, main = folder / "log.jsonl", trainer.accelerator.is_main_process
        before = log.read_text(encoding="utf-8").splitlines() if log.is_file() else []
        kept = [line for line in before if json.loads(line)["step"] <= trainer.step]
        if main:
            write_atomic(log, "".join(f"{line}\n" for line in kept))  # measured after the checkpoint: it comes again
        with Progress(console=console, transient=True) as bar:
            steps = bar.add_task("steps", total=trainer.plan.steps, completed=trainer.step)
            for line in trainer.run():
                if not main:
                    continue
                bar.update(steps, completed=line["step"])
                with log.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
                console.print(" ".join(f"{k} {v:.4g}" for k, v in line.items()), soft_wrap=True)
