"""What is opened and said before the first step of a training: the target, kept features, memory, disk, time."""

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from rich.console import Console

from mmaccel import registry
from mmaccel.jobs.gate import model_node
from mmaccel.jobs.task import Task
from mmaccel.training.cache import Cache
from mmaccel.training.estimate import giga, memory, said
from mmaccel.training.trainer import Plan, Trainer


def target_of(task: Task) -> tuple[Any, Any | None]:
    """(the loaded target, the pruner that it works under or None)."""
    config = task.config
    if config["machine"]["threads"]:
        torch.set_num_threads(config["machine"]["threads"])
    vlm = registry.instantiate(model_node(config), foreign=task.foreign)
    whole = task.choices.get("pruner", "keep_all") == "keep_all"
    return vlm, None if whole else registry.instantiate(config["pruner"], foreign=task.foreign)


def opened_cache(
    folder: str | None, facts: Mapping[str, Any], vlm: Any, head: Any, plan: Plan, pruner: Any, source: Any,
    config: Mapping[str, Any],
) -> Cache | None:  # fmt: skip
    """Features of another target, source, pruner or taps are not taken for these. Pictures are known by their names."""
    if folder is None:
        return None
    said = hashlib.sha256()
    for at in range(len(source)):
        said.update(repr(source.answers(at)).encode("utf-8", "replace"))
    mine = {name: facts[name] for name in ("weights", "dtype")} | {"processor": vlm.processor.hash}
    mine |= {"data": config["data"], "answers": said.hexdigest(), "taps": head.taps, "longest": plan.longest}
    return Cache(folder, mine | {"quantization": config["model"].get("quantization"), "pruner": repr(pruner)})


def announce(trainer: Trainer, size: int, console: Console) -> None:
    """What it will take, for `size` conversations; where the features do not fit the disk, they are not kept."""
    trial, plan = trainer.trial(), trainer.plan
    steps = sum(name.startswith("loss_") for name in trial.sums)
    need = memory(
        trainer.vlm.model, trainer.bare, columns=trial.columns, answer=trial.answer, batch=plan.batch,
        taps=len(trainer.bare.taps), steps=steps,
    )  # fmt: skip
    if trainer.cache and not trainer.cache.room(trial.kept * size):
        lost = f"cache: {giga(trial.kept * size)} do not fit {trainer.cache.folder}; features are made anew each time"
        console.print(lost, markup=False, soft_wrap=True)
        trainer.cache = None
    console.print(said(trial, need, plan, size, trainer.cache is not None), markup=False, soft_wrap=True)
