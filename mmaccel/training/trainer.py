"""The loop that trains a draft head against a frozen target: features on the fly, accelerate, kill and go on.

Metrics are (sum, count) pairs. A checkpoint holds head, optimiser, step and data cursor; rate, order and noise follow
from those, so that a run that was killed and goes on is the run that was not. Does not know Hydra.
"""

import math
import os
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from mmaccel.attach import attach
from mmaccel.decoding.speculate import Speculate
from mmaccel.drafting.base import DraftHead, Loss, Target
from mmaccel.training.cache import Cache, rows, size_of
from mmaccel.training.data import Message, Source
from mmaccel.training.estimate import Trial
from mmaccel.training.features import Felt, felt, stacked
from mmaccel.training.formats import save_head

CHECKPOINT = "trainer.pt"


@dataclass(frozen=True)
class Plan:
    """steps: optimiser steps.  batch: conversations of one forward of one process.  accumulate: forwards of one step.
    rate: of AdamW, after `warmup` steps, falling to 0 by a cosine.  loss: arguments of the head's own loss.  longest:
    columns of a conversation, null = all.  mixed: precision of the head's own arithmetic, its weights stay fp32.
    seed: of the order of the data and the noise."""

    steps: int = 1000
    batch: int = 8
    accumulate: int = 1
    rate: float = 1e-3
    warmup: int = 50
    decay: float = 0.0
    clip: float = 1.0
    loss: Mapping[str, Any] = field(default_factory=dict)
    longest: int | None = None
    mixed: str = "no"
    seed: int = 0
    save_every: int = 200
    say_every: int = 20

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "accumulate", "save_every", "say_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: got {getattr(self, name)}, valid are whole numbers from 1 on")
        if self.mixed not in ("no", "bf16"):
            raise ValueError(f"mixed: got {self.mixed!r}, valid are no and bf16")

    def share(self, step: int) -> float:
        """Of the rate, at optimiser step `step`."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - self.warmup) / max(1, self.steps - self.warmup))))


class Sums:
    """name → (sum, count), divided when they are read."""

    def __init__(self) -> None:
        self.held: dict[str, tuple[float, float]] = {}

    def add(self, found: Mapping[str, tuple[Tensor, Tensor]]) -> None:
        for name, (total, count) in found.items():
            before = self.held.get(name, (0.0, 0.0))
            self.held[name] = (before[0] + float(total), before[1] + float(count))

    def means(self, over: Accelerator | None = None) -> dict[str, float]:
        """`over`: with the sums of the other processes."""
        held = self.held
        if over is not None and over.num_processes > 1:
            names = sorted(held)
            table = over.reduce(torch.tensor([held[name] for name in names], device=over.device))
            held = {name: (total, count) for name, (total, count) in zip(names, table.tolist())}
        return {name: total / count for name, (total, count) in held.items() if count}


class Order:
    """Conversations in a shuffled order, anew each time round; sample number k of a seed is always the same one."""

    def __init__(self, size: int, seed: int) -> None:
        self.size, self.seed, self.turn, self.order = size, seed, -1, [0]

    def __getitem__(self, number: int) -> int:
        turn, at = divmod(number, self.size)
        if turn != self.turn:
            self.turn, self.order = turn, list(range(self.size))
            random.Random(f"{self.seed}/{turn}").shuffle(self.order)
        return self.order[at]


class Trainer:
    """`for line in trainer.run(): …`: what was measured every `say_every` steps, and at the end.

    A checkpoint of a step is written before the step's line is given.
    """

    def __init__(
        self, vlm: Any, head: DraftHead, source: Source, plan: Plan, folder: Path, pruner: Any | None = None,
        cache: Cache | None = None,
    ) -> None:  # fmt: skip
        cpu = vlm.device.type == "cpu"
        self.accelerator = Accelerator(
            gradient_accumulation_steps=plan.accumulate, cpu=cpu, mixed_precision=plan.mixed
        )
        self.vlm, self.source, self.plan, self.folder, self.pruner = vlm, source, plan, Path(folder), pruner
        self.cache = cache
        self.target = Target.of(vlm.model)
        optimiser = torch.optim.AdamW(head.parameters(), plan.rate, betas=(0.9, 0.95), weight_decay=plan.decay)
        head = head.to(vlm.device).train()
        self.head, self.optimiser = self.accelerator.prepare(head, optimiser, device_placement=[False, False])
        self.order = Order(len(source), plan.seed)
        self.step = self.cursor = self.cut = self.skipped = self.failing = 0
        self.wrong: list[str] = []

    @property
    def bare(self) -> DraftHead:
        return self.accelerator.unwrap_model(self.head)

    def batch(self) -> tuple[list[int], list[Felt | list[Message]]]:
        """The next conversations of this process: their places, and their features where they are kept, else their
        messages. What cannot be read is skipped and counted."""
        places: list[int] = []
        found: list[Felt | list[Message]] = []
        processes, mine = self.accelerator.num_processes, self.accelerator.process_index
        while len(found) < self.plan.batch:
            number, self.cursor = self.cursor, self.cursor + 1
            if number % processes != mine:
                continue
            place = self.order[number]
            try:
                kept = self.cache.load(place) if self.cache else None
                found.append(kept or self.source[place].messages)
                places.append(place)
                self.failing = 0
            except (ValueError, OSError) as error:
                self.skip(error)
        return places, found

    def skip(self, error: Exception) -> None:
        """Counts one conversation out; raises when the whole of the data has failed in a row."""
        self.skipped, self.failing = self.skipped + 1, self.failing + 1
        self.wrong = [*self.wrong[-4:], f"{type(error).__name__}: {error}"]
        if self.failing > len(self.source):
            raise ValueError(f"data: no conversation can be used; the last said: {self.wrong[-1]}") from None

    def felt(self) -> Felt:
        """The next batch as the target feels it; conversations that it or the pruner refuses are skipped."""
        while True:
            places, found = self.batch()
            fresh = [(place, one) for place, one in zip(places, found) if not isinstance(one, Felt)]
            kept = [row for row in found if isinstance(row, Felt)]
            try:
                good = [self.feel([one for _, one in fresh], [place for place, _ in fresh])] if fresh else []
            except ValueError:  # one of them: each alone then
                good = []
                for place, one in fresh:
                    try:
                        good.append(self.feel([one], [place]))
                    except ValueError as error:
                        self.skip(error)
            good += [row.to(self.vlm.device) for row in kept]
            if good:
                self.failing = 0
                return good[0] if len(good) == 1 else stacked(good)

    def feel(self, messages: list[list[Message]], places: Sequence[int] = ()) -> Felt:
        found = felt(self.vlm, messages, self.bare.taps, self.pruner, self.plan.longest)
        if self.cache:
            for place, row in zip(places, rows(found)):
                self.cache.save(place, row)
        return found

    def trial(self) -> Trial:
        """The first batch, felt and learnt from once, and forgotten: what it takes is measured, nothing is changed."""
        at, began = (self.cursor, self.skipped, self.failing), time.perf_counter()
        found = self.felt()
        felt_at = time.perf_counter()
        with frozen(self.vlm.model):
            loss = self.bare.loss(found.seen, found.answer, self.target, **self.plan.loss)
            loss.total.backward()
        float(loss.total.detach())  # waits for the device
        ended = time.perf_counter()
        self.bare.zero_grad()
        self.cursor, self.skipped, self.failing = at
        columns, answer = found.seen.ids.shape[1], int(found.answer.sum(1).max())
        return Trial(felt_at - began, ended - felt_at, columns, answer, size_of(found), tuple(loss.sums))

    def run(self) -> Iterator[dict[str, Any]]:
        with frozen(self.vlm.model):
            yield from self.steps()

    def steps(self) -> Iterator[dict[str, Any]]:
        sums = Sums()
        while self.step < self.plan.steps:
            self.one_step(sums)
            self.step += 1
            last = self.step == self.plan.steps
            if self.step % self.plan.save_every == 0 or last:
                self.save()
            if self.step % self.plan.say_every == 0 or last:
                yield {"step": self.step, "rate": self.optimiser.param_groups[0]["lr"], **sums.means(self.accelerator),
                       "cut": self.cut, "skipped": self.skipped}  # fmt: skip
                sums = Sums()

    def one_step(self, sums: Sums) -> None:
        for group in self.optimiser.param_groups:
            group["lr"] = self.plan.rate * self.plan.share(self.step)
        for _ in range(self.plan.accumulate):
            with self.accelerator.accumulate(self.head):
                found = self.felt()
                self.cut += found.cut
                torch.manual_seed(self.plan.seed * 1_000_003 + self.cursor)  # the noise of a step is the step's own
                loss: Loss = self.head(found.seen, found.answer, self.target, **self.plan.loss)
                self.accelerator.backward(loss.total)
                sums.add(loss.sums)
                if self.accelerator.sync_gradients:
                    self.accelerator.clip_grad_norm_(self.head.parameters(), self.plan.clip)
                self.optimiser.step()
                self.optimiser.zero_grad()

    def state(self) -> dict[str, Any]:
        return {
            "head": self.bare.state_dict(), "optimiser": self.optimiser.state_dict(), "step": self.step,
            "cursor": self.cursor, "cut": self.cut, "skipped": self.skipped, "seed": self.plan.seed,
        }  # fmt: skip

    def save(self) -> None:
        """The head in its published layout, and beside it what going on needs."""
        if not self.accelerator.is_main_process:
            return
        under = None if self.pruner is None else repr(self.pruner)
        facts = {"target": self.vlm.source, "step": self.step, "trained_under": under}
        save_head(self.bare, self.folder, facts)
        torch.save(self.state(), self.folder / "trainer.tmp")
        os.replace(self.folder / "trainer.tmp", self.folder / CHECKPOINT)

    def resume(self) -> bool:
        """Goes on from the folder's checkpoint; False where there is none."""
        file = self.folder / CHECKPOINT
        if not file.is_file():
            return False
        state = torch.load(file, map_location="cpu", weights_only=True)
        if state["seed"] != self.plan.seed:
            raise ValueError(f"{file}: was trained with seed {state['seed']}, now {self.plan.seed}")
        self.bare.load_state_dict(state["head"])
        self.optimiser.load_state_dict(state["optimiser"])
        for name in ("step", "cursor", "cut", "skipped"):
            setattr(self, name, state[name])
        return True


@contextmanager
def frozen(model: Any) -> Iterator[None]:
    """No gradient reaches the model's weights; it is left as it was."""
    learning = [p for p in model.parameters() if p.requires_grad]
    for p in learning:
        p.requires_grad_(False)
    try:
        yield
    finally:
        for p in learning:
            p.requires_grad_(True)


def live_acceptance(
    vlm: Any, head: DraftHead, prompts: Sequence[list[dict[str, Any]]], most: int, pruner: Any = None
) -> dict[str, Any]:
    """What speculation with this head does on held-out prompts: tau, and the share accepted at each depth."""
    steps = emitted = 0
    depths: list[int] = []
    for prompt in prompts:
        speculate = Speculate(head)
        with nullcontext() if pruner is None else attach(vlm.model, pruner):
            vlm.model.generate(**vlm.inputs([prompt]), max_new_tokens=most, do_sample=False, custom_generate=speculate)
        stats = speculate.stats
        steps, emitted = steps + stats.steps, emitted + stats.emitted
        depths += [0] * (len(stats.accepted_by_depth) - len(depths))
        for at, count in enumerate(stats.accepted_by_depth):
            depths[at] += count
    tau = emitted / steps if steps else None
    return {"tau": tau, "accepted_by_depth": [count / steps for count in depths] if steps else []}


def held_out(trainer: Trainer, held: Any, most: int) -> dict[str, Any]:
    """Loss (without noise) and live acceptance on conversations that were not trained on; a bad one is counted out."""
    head, sums, prompts, failed = trainer.bare.eval(), Sums(), [], 0
    dials = {name: value for name, value in trainer.plan.loss.items() if name != "noise"}
    with torch.no_grad():
        for at in range(len(held)):
            try:
                messages = held[at].messages
                found = trainer.feel([messages])
            except (ValueError, OSError):
                failed += 1
                continue
            sums.add(head.loss(found.seen, found.answer, trainer.target, **dials).sums)
            prompts.append(messages[:-1])
    return sums.means() | live_acceptance(trainer.vlm, head, prompts, most, trainer.pruner) | {"failed": failed}
