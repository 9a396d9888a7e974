"""Conversations with the target's own answers, as a folder that job=train reads. Wiring: see training/regenerate.py.

conversations.jsonl grows batch by batch; resume=DIR goes on behind its last line.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress

from mmaccel import registry
from mmaccel.decoding.sampling import generate_options
from mmaccel.jobs.before_training import target_of
from mmaccel.jobs.folder import noted, opened
from mmaccel.jobs.task import Task
from mmaccel.measure.provenance import provenance
from mmaccel.training.data import Conversation, Source
from mmaccel.training.regenerate import record, regenerated, written

FILE = "conversations.jsonl"


@dataclass(frozen=True)
class Regenerate:
    batch: int = 8
    most: int = 256

    def __post_init__(self) -> None:
        for name in ("batch", "most"):
            if getattr(self, name) < 1:
                raise ValueError(f"job.{name}: got {getattr(self, name)}, valid are whole numbers from 1 on")

    def run(self, task: Task) -> None:
        config = task.config
        source = registry.instantiate(config["data"], foreign=task.foreign)
        folder = opened(task)
        (folder / "images").mkdir(exist_ok=True)
        vlm, pruner = target_of(task)
        noted(folder, provenance(vlm.model, vlm.path, config["seed"]))
        done = [line["index"] for line in written(folder / FILE)]
        first = done[-1] // self.batch * self.batch if done else 0  # batches stay what they were in an unstopped run
        console = Console(stderr=True, highlight=False)
        known, kept, left = set(done), len(done), 0
        options = generate_options(config["sampler"]) | {"max_new_tokens": self.most}
        with Progress(console=console, transient=True) as bar:
            shown = bar.add_task("conversations", total=len(source), completed=first)
            for begin in range(first, len(source), self.batch):
                places = tuple(range(begin, min(begin + self.batch, len(source))))
                torch.manual_seed(config["seed"] * 1_000_003 + places[0])
                lines = self.lines(vlm, source, places, options, pruner, folder, console)
                lines = [line for line in lines if json.loads(line)["index"] not in known]
                append(folder / FILE, lines)
                kept, left = kept + len(lines), left + len(places) - len(lines)
                bar.update(shown, completed=places[-1] + 1)
        said = f"conversations: {folder / FILE}\n{kept} kept, {left} left out of this run's (unreadable, or not ended)"
        console.print(said, markup=False, soft_wrap=True)

    def lines(
        self, vlm: Any, source: Source, places: tuple[int, ...], options: Mapping[str, Any], pruner: Any | None,
        folder: Path, console: Console,
    ) -> list[str]:  # fmt: skip
        """What is kept of a batch; where the model refuses it, each conversation is asked alone."""
        asked: dict[int, Conversation] = {}
        for place in places:
            try:
                asked[place] = source[place]
            except (ValueError, OSError) as error:
                console.print(f"left out: {error}", markup=False, soft_wrap=True)
        told: dict[int, Any] = {}
        try:
            if asked:
                told = dict(zip(asked, regenerated(vlm, [c.messages for c in asked.values()], options, pruner)))
        except ValueError:
            for place, conversation in asked.items():
                try:
                    told[place] = regenerated(vlm, [conversation.messages], options, pruner)[0]
                except ValueError as error:
                    console.print(f"left out: {conversation.id}: {error}", markup=False, soft_wrap=True)
        return [
            json.dumps(record(asked[place], messages, place, folder, vlm.processor.max_pixels), ensure_ascii=False)
            for place, messages in told.items()
            if messages is not None
        ]


def append(file: Path, lines: list[str]) -> None:
    """On the disk when this returns."""
    with file.open("a", encoding="utf-8") as stream:
        stream.writelines(f"{line}\n" for line in lines)
        stream.flush()
        os.fsync(stream.fileno())
