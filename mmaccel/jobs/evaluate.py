"""The paired sweep: every sample through every point, in rotating order, one loaded model, one record per turn.

Wiring only: what a point is stands in points.py, what is refused in gate.py, the order and the records in paired.py,
one request in sample.py, what is written at the end in finish.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mmaccel import registry
from mmaccel.jobs.finish import finish
from mmaccel.jobs.gate import checked_plan, picture_reaches
from mmaccel.jobs.paired import Paired
from mmaccel.jobs.points import Point, expand
from mmaccel.jobs.sample import Asker
from mmaccel.jobs.screen import Screen
from mmaccel.jobs.task import Task
from mmaccel.measure.provenance import provenance
from mmaccel.measure.record import RunFolder


@dataclass(frozen=True)
class Evaluate:
    """warmup: requests thrown away before a point meets a new number of visual tokens. maps: samples with pictures."""

    warmup: int = 1
    maps: int = 4

    def run(self, task: Task) -> None:
        config = task.config
        points = expand(config, task.typed, task.choices.get("pruner", "pruner"))
        plan = checked_plan(config, points, task.foreign)
        tracker = registry.instantiate(config["tracker"], foreign=task.foreign)
        if config["machine"]["threads"]:
            torch.set_num_threads(config["machine"]["threads"])
        vlm = registry.instantiate(plan.model, foreign=task.foreign)
        picture_reaches(vlm, plan.benchmark[0])
        with opened(task, points, provenance(vlm.model, vlm.path, config["seed"])) as folder:
            asker = Asker(vlm, plan.benchmark, config["sampler"], config["seed"])
            paired = Paired(asker, plan, folder, self.warmup, self.maps)
            with Screen(plan.size, points, folder) as screen:
                for index in range(plan.size):
                    for record in paired.sample(index, points):
                        screen.show(record)
                    screen.advance(index + 1)
        finish(folder.path, plan.benchmark, tracker)


def opened(task: Task, points: Sequence[Point], facts: dict[str, Any]) -> RunFolder:
    """A new run folder, or the one to resume; the points' labels are part of its configuration."""
    config = task.kept() | {"points": [point.labels() for point in points]}
    if task.resume:
        return RunFolder.resume(task.resume, config, facts)
    return RunFolder.create(task.output, config, facts)
