"""Muon for matrices and Adam for the rest, over flat shared buffers, split between worker processes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

MUON_MOMENTUM, ADAM_SHARE, CLIP = 0.95, 0.08, 2.0


@dataclass(frozen=True)
class Slot:
    """Where a parameter lies in the flat buffers."""

    name: str
    start: int
    shape: tuple[int, ...]

    @property
    def stop(self) -> int:
        return self.start + math.prod(self.shape)

    @property
    def muon(self) -> bool:
        return len(self.shape) == 2 and not any(part in self.name for part in ("embed", "aux.", "position"))

    @property
    def reads(self) -> bool:
        """Whether it belongs to the part after the tower."""
        return self.name.startswith(("language_model", "multi_modal"))

    def of(self, flat: Tensor) -> Tensor:
        return flat[self.start : self.stop].view(self.shape)


def lay_out(shapes: dict[str, tuple[int, ...]]) -> list[Slot]:
    slots, at = [], 0
    for name, shape in shapes.items():
        slots.append(Slot(name, at, shape))
        at = slots[-1].stop
    return slots


def orthogonal(x: Tensor) -> Tensor:
    """[k, m, n] matrices → the nearest semi-orthogonal ones, by a quintic Newton–Schulz iteration in bf16."""
    a, b, c = 3.4445, -4.7750, 2.0315
    flip = x.shape[1] > x.shape[2]
    x = (x.transpose(1, 2) if flip else x).bfloat16()
    x = x / (x.flatten(1).norm(dim=1)[:, None, None] + 1e-7)
    for _ in range(5):
        gram = x @ x.transpose(1, 2)
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.transpose(1, 2) if flip else x).float()


def share_out(slots: list[Slot], workers: int) -> list[list[Slot]]:
    """Each worker's slots, so that the cost of the iteration is even."""
    cost = lambda s: max(s.shape) * min(s.shape) ** 2 if s.muon else 20 * math.prod(s.shape)  # noqa: E731
    parts: list[list[Slot]] = [[] for _ in range(workers)]
    load = [0.0] * workers
    for slot in sorted(slots, key=cost, reverse=True):
        k = load.index(min(load))
        parts[k].append(slot)
        load[k] += cost(slot)
    return parts


def step(slots: list[Slot], master: Tensor, grad: Tensor, m: Tensor, v: Tensor, rate: float, count: int) -> None:
    """One update of these slots, in place; `grad` is already clipped. `count` starts at 1."""
    stacks: dict[tuple[int, ...], list[Slot]] = {}
    for slot in slots:
        at = slice(slot.start, slot.stop)
        if slot.muon:
            m[at].lerp_(grad[at], 1 - MUON_MOMENTUM)
            stacks.setdefault(slot.shape, []).append(slot)
        else:
            m[at].lerp_(grad[at], 0.1)
            v[at].lerp_(grad[at].square(), 0.01)
            down = (v[at] / (1 - 0.99**count)).sqrt_().add_(1e-8)
            master[at].addcdiv_(m[at] / (1 - 0.9**count), down, value=-rate * ADAM_SHARE)
    for shape, members in stacks.items():
        nesterov = torch.stack([torch.lerp(s.of(grad), s.of(m), MUON_MOMENTUM) for s in members])  # [k, rows, columns]
        update = orthogonal(nesterov) * max(1.0, shape[0] / shape[1]) ** 0.5
        for slot, u in zip(members, update):
            slot.of(master).mul_(1 - 0.02 * rate).sub_(u, alpha=rate)
