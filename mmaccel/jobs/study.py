"""What the timing studies share: paired rounds in turn, and the files a study leaves.

Knows rounds, ratios and files. Does not know what is timed.
"""

import csv
import gc
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from rich.table import Table

from mmaccel.jobs.console import wide_console
from mmaccel.jobs.task import Task
from mmaccel.measure.estimates import Estimate, median_ratio_interval
from mmaccel.measure.provenance import provenance
from mmaccel.measure.record import write_atomic
from mmaccel.models.random_weights import LlavaGeometry, random_features, random_llava, random_prompt

Timed = Callable[[], object]


def each_model(task: Task, geometries: dict[str, dict[str, int]]) -> Iterator[tuple[str, LlavaGeometry, Any]]:
    """(name, geometry, random-weight model) in turn, fp32 under sdpa on the machine of the task."""
    machine = task.config["machine"]
    if machine["threads"]:
        torch.set_num_threads(machine["threads"])
    for name, fields in geometries.items():
        geometry = LlavaGeometry(**fields)
        model = random_llava(
            geometry, dtype=torch.float32, device=machine["device"], attention="sdpa", seed=task.config["seed"]
        )
        yield name, geometry, model


def picture_prompt(
    model: Any, geometry: LlavaGeometry, before: int, after: int, device: str, seed: int
) -> dict[str, Any]:
    """Text, a picture whose features are encoded, text."""
    prompt: dict[str, Any] = random_prompt(geometry, before=before, after=after, device=device, seed=seed)
    return prompt | {"mm_encoder_outputs": random_features(model, geometry, seed)}


def milliseconds(work: Timed, device: str) -> float:
    """Wall time of one call, the device's queue drained on both sides."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return (time.perf_counter() - began) * 1e3


def paired_rounds(
    works: dict[str, Timed], rounds: int, *, warmup: int, device: str, what: str
) -> dict[str, dict[str, float]]:
    """name → round → milliseconds. Every round runs each work once, starting with another one each time."""
    names = list(works)
    times: dict[str, dict[str, float]] = {name: {} for name in names}
    gc.collect()
    gc.disable()
    try:
        for round_ in track(range(-warmup, rounds), description=what):
            first = round_ % len(names)
            for name in names[first:] + names[:first]:
                spent = milliseconds(works[name], device)
                if round_ >= 0:
                    times[name][str(round_)] = spent
    finally:
        gc.enable()
    return times


def median(times: dict[str, float]) -> float:
    ordered = sorted(times.values())
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def relative_cost(work: dict[str, float], reference: dict[str, float]) -> Estimate:
    """Median over rounds of work / reference, with a bootstrap interval: 1.02 = 2 % slower."""
    return median_ratio_interval(reference, work)


def write_study(folder: Path, rows: Sequence[dict[str, Any]], rounds: dict[str, Any], seed: int) -> None:
    """points.csv (one row a comparison), rounds.json (every single time) and provenance.json."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "points.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    write_atomic(folder / "rounds.json", json.dumps(rounds))
    write_atomic(folder / "provenance.json", json.dumps(provenance(seed=seed), indent=1))


def rounded(value: float | None, digits: int = 4) -> float | None:
    return None if value is None else round(value, digits)


def show_rows(title: str, rows: Sequence[dict[str, Any]]) -> None:
    table = Table(title=title)
    for column in rows[0]:
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*("" if value is None else str(value) for value in row.values()))
    wide_console().print(table)
