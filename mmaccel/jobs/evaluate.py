"""The paired sweep: every sample through every point, in rotating order, one loaded model, one record per turn.

Wiring only: what a point is stands in points.py, what is refused in gate.py, the order and the records in paired.py,
one request in sample.py, what is written at the end in finish.py.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from mmaccel import registry
from mmaccel.jobs.cold import cold_start, timed
from mmaccel.jobs.digest import digest
from mmaccel.jobs.drafts import NONE, check_heads, with_drafts
from mmaccel.jobs.finish import finish
from mmaccel.jobs.gate import checked_plan
from mmaccel.jobs.paired import Paired
from mmaccel.jobs.points import Point, expand
from mmaccel.jobs.prepared import prepared
from mmaccel.jobs.quality import note_screening
from mmaccel.jobs.reaches import picture_reaches
from mmaccel.jobs.sample import Asker
from mmaccel.jobs.screen import Screen
from mmaccel.jobs.task import Task
from mmaccel.measure.provenance import provenance
from mmaccel.measure.record import RunFolder, changed_facts, first_facts


@dataclass(frozen=True)
class Evaluate:
    """warmup: requests thrown away before a point meets a new number of visual tokens. maps: samples with pictures.
    timed: the first so many samples are timed, the others only answered; null = all. heads: the draft heads made for
    the model stand beside the method's points, on all kinds of question or those listed; null = they do not."""

    warmup: int = 1
    maps: int = 4
    timed: int | None = None
    heads: str | Sequence[str] | None = None

    def __post_init__(self) -> None:
        if self.timed is not None and (isinstance(self.timed, bool) or self.timed < 0):
            raise ValueError(f"job.timed: got {self.timed!r}, valid are null and whole numbers from 0 on")
        check_heads(self.heads)

    def run(self, task: Task) -> None:
        config = task.config
        method = task.choices.get("pruner", "pruner")
        draft, points = task.choices.get("draft", NONE), expand(config, task.typed, method)
        points = with_drafts(points, config, method, draft, self.heads)
        plan = checked_plan(config, points, task.foreign)
        points = list(plan.points)
        if task.resume:
            RunFolder.check_config(task.resume, kept(task, points))  # before the weights, which may take minutes
        tracker = registry.instantiate(config["tracker"], foreign=task.foreign)
        if config["machine"]["threads"]:
            torch.set_num_threads(config["machine"]["threads"])
        vlm, load_ms = timed(lambda: registry.instantiate(plan.model, foreign=task.foreign))
        for head in set(plan.heads.values()):
            head.to(vlm.device, vlm.model.dtype).eval()
        first = plan.first or plan.benchmark[0]
        asker = Asker(vlm, plan.benchmark, config["sampler"], config["seed"])
        cold = {"cold_start": cold_start(asker, first, load_ms)}  # before anything else runs the model
        picture_reaches(vlm, first)
        same = {"benchmark": digest(plan.benchmark, plan.size)} | prepared(vlm.processor)
        facts = provenance(vlm.model, vlm.path, config["seed"]) | same | cold
        with opened(task, points, facts) as folder, where_it_stopped(folder.path):
            paired = Paired(asker, plan, folder, self.warmup, self.maps, self.timed)
            with Screen(plan.size, points, folder) as screen:
                for index in range(plan.size):
                    for record in paired.sample(index, points):
                        screen.show(record)
                    screen.advance(index + 1)
            note_screening(folder, plan.benchmark, asker.geometry)
        finish(folder.path, plan.benchmark, tracker)


@contextmanager
def where_it_stopped(folder: Path) -> Iterator[None]:
    """An interruption says which folder goes on."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(str(folder)) from None


def opened(task: Task, points: Sequence[Point], facts: dict[str, Any]) -> RunFolder:
    """A new run folder, or the one to resume."""
    config = kept(task, points)
    if task.resume:
        folder = RunFolder.resume(task.resume, config, facts)
        for key, (old, new) in changed_facts(first_facts(task.resume), facts, ("git",)).items():
            said = f"warning: resumed with other code, {key}: was {old}, now {new} (noted in provenance.json)"
            Console(stderr=True, highlight=False).print(said, markup=False, soft_wrap=True)
        return folder
    return RunFolder.create(task.output, config, facts)


def kept(task: Task, points: Sequence[Point]) -> dict[str, Any]:
    """The run folder's configuration; the points' labels are part of it."""
    config, listed = task.kept(), [point.labels() for point in points]
    for labels in listed:
        labels["quantization"] = config["model"].get("quantization")
        if "twin" in labels:  # replies that are sampled need not be the twin's
            labels["sampled"] = bool(config["sampler"].get("do_sample"))
    return config | {"points": listed}
