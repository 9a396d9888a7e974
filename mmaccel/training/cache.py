"""What the target felt about conversations, kept on the disk: one file each, for later rounds and other heads.

A folder holds the features of one target, under one pruner, of one source; what they were made with stands in
facts.json, and other facts are refused. Knows Felt and files. Does not know models or heads.
"""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from mmaccel.drafting.base import Seen
from mmaccel.measure.record import write_atomic
from mmaccel.training.features import Felt

FACTS = "facts.json"
SPARE = 0.1  # of the disk's free space that is left alone


class Cache:
    def __init__(self, folder: str | Path, facts: Mapping[str, Any]) -> None:
        """facts: all that decides what is felt. Raises ValueError where the folder was filled under others."""
        self.folder, facts = Path(folder), json.loads(json.dumps(facts))
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / FACTS
        if not file.is_file():
            write_atomic(file, json.dumps(facts, indent=2))  # several processes may come here at once
        held = json.loads(file.read_text(encoding="utf-8"))
        wrong = sorted(name for name in {*held, *facts} if held.get(name) != facts.get(name))
        if wrong:
            lines = "\n  ".join(f"{name}: was {held.get(name)!r}, now {facts.get(name)!r}" for name in wrong)
            raise ValueError(f"cache: {self.folder} was filled under other facts; choose another folder:\n  {lines}")

    def load(self, place: int) -> Felt | None:
        """The features of conversation `place`, one row; None where they are not there."""
        file = self.folder / f"{place:08d}.safetensors"
        if not file.is_file():
            return None
        held = load_file(file)
        taps = tuple(held[f"tap_{at}"] for at in range(sum(name.startswith("tap_") for name in held)))
        ids, answer = held["ids"], held["answer"]
        parts = {name: held.get(name) for name in ("hidden", "embeds", "visual")}
        seen = Seen(ids, held["position"], torch.ones_like(answer), taps=taps, **parts)
        return Felt(seen, answer, int(not answer.any()))

    def save(self, place: int, row: Felt) -> None:
        """Whole or not at all."""
        seen, file = row.seen, self.folder / f"{place:08d}.safetensors"
        tensors = {"ids": seen.ids, "position": seen.position, "answer": row.answer}
        tensors |= {name: x for name in ("hidden", "embeds", "visual") if (x := getattr(seen, name)) is not None}
        tensors |= {f"tap_{at}": tap for at, tap in enumerate(seen.taps)}
        save_file({name: x.contiguous().cpu() for name, x in tensors.items()}, file.with_suffix(".part"))
        os.replace(file.with_suffix(".part"), file)

    def room(self, size: float) -> bool:
        """Whether `size` bytes fit beside what is there already."""
        held = sum(file.stat().st_size for file in self.folder.glob("*.safetensors"))
        return size - held <= (1 - SPARE) * shutil.disk_usage(self.folder).free


def rows(found: Felt) -> list[Felt]:
    """Each row alone, without the columns that are not its own."""

    def of(row: int) -> Felt:
        own = found.seen.whole[row]
        seen = found.seen.select(torch.tensor([row], device=own.device))

        def cut(x: Tensor | None) -> Tensor | None:
            return None if x is None else x[:, own]

        seen = replace(
            seen, ids=seen.ids[:, own], position=seen.position[..., own], valid=seen.whole[:, own],
            hidden=cut(seen.hidden), taps=tuple(tap[:, own] for tap in seen.taps), embeds=cut(seen.embeds),
            visual=cut(seen.visual),
        )  # fmt: skip
        answer = found.answer[row : row + 1, own]
        return Felt(seen, answer, int(not answer.any()))

    return [of(row) for row in range(len(found.answer))]


def size_of(found: Felt) -> int:
    """Bytes of a row, without padding."""
    seen = found.seen
    tensors = [seen.hidden, seen.embeds, *seen.taps]
    width = sum(x.shape[-1] * x.element_size() for x in tensors if x is not None)
    return int(seen.whole.sum()) * (width + 24) // max(len(found.answer), 1)
