"""The trainer: single-thread worker processes that draw micro-batches from a shared counter and sum their gradients.

Stages are counted in samples. Everything that a run needs to go on is in one file, written every few minutes and on
SIGTERM; sample number k of a seed is always the same picture. A file `anneal` in the run's folder that holds a number
N lets the rate fall to 0 over the next N samples and then ends the run; a file `skip` ends the current stage.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import signal
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
import torch.multiprocessing as mp
from safetensors.torch import load_file
from torch import Tensor

from mmaccel.benchmarks.scene_graph import Level
from pico import optim
from pico.data import KINDS, Recipe, Turns, make
from pico.model import Pico, Shape, initial, parameter_shapes, text_loss, tower_losses, word_losses

AUX = {"colour": 1.0, "shape": 1.0, "character": 1.5, "value": 0.7, "size": 0.5, "cell": 0.7, "centre": 0.7,
       "row": 0.3, "column": 0.3, "colours": 0.3, "shapes": 0.3, "count": 0.3}  # fmt: skip


@dataclass(frozen=True)
class Stage:
    """`mix`: (share, patches for the tower, patches for the decoder) of the micro-batches."""

    name: str
    samples: int
    rate: tuple[float, float]
    mix: tuple[tuple[float, int, int], ...]
    recipe: Recipe
    batch: int = 48
    aux: float = 1.0
    guide: float = 0.5


EASY = Level(things=(1, 4), chart=0.25, sign=0.3, clutter=(0, 8), table=0.0, note=0.0)
MIDDLE = replace(EASY, things=(1, 6), clutter=(0, 14), note=0.05)
FULL = Level(things=(2, 8), chart=0.3, sign=0.35, table=0.3, note=0.15)
READ_KINDS = {
    "exist": 0.8, "colour": 1.4, "shape": 1.4, "count": 0.7, "relation": 0.6, "where": 1.1, "character": 1.3,
    "sign": 0.7, "chart": 0.7, "choice": 0.4, "option": 0.4,
}  # fmt: skip
BIND_KINDS = {
    "exist": 1.2, "colour": 1.2, "shape": 1.2, "count": 1.0, "relation": 1.0, "where": 1.0, "character": 1.2,
    "sign": 1.0, "chart": 1.0, "choice": 0.8, "option": 1.0, "table": 0.7, "unanswerable": 0.3,
}  # fmt: skip
LATE_KINDS = {
    "exist": 1.0, "colour": 1.0, "shape": 1.0, "count": 2.6, "relation": 1.1, "where": 0.8, "character": 1.3,
    "sign": 1.5, "chart": 0.9, "choice": 1.6, "option": 0.3, "table": 2.2, "unanswerable": 0.7, "instruction": 0.5,
}  # fmt: skip

LATE_MIX = ((0.54, 110, 46), (0.37, 140, 140), (0.09, 576, 576))
LATE = Recipe(FULL, LATE_KINDS, two_options=0.65, text=128, captions=0.25)
STAGES = (
    Stage("tower", 20_000, (0.02, 0.01), ((1, 100, 0),), Recipe(replace(MIDDLE, table=0.1), text=0), 64),
    Stage(
        "read", 16_000, (0.015, 0.007), ((1, 100, 40),),
        Recipe(EASY, READ_KINDS, text=112, captions=0.1, blind=0.05), 32, 0.6,
    ),
    Stage(
        "bind", 14_000, (0.007, 0.005), ((0.8, 110, 42), (0.2, 130, 130)),
        Recipe(replace(MIDDLE, table=0.15), BIND_KINDS, two_options=0.95, captions=0.12, blind=0.3), 32, 0.5,
    ),
    Stage("full", 30_000, (0.005, 0.0035), LATE_MIX, LATE, 32, 0.5),
    Stage("settle", 16_000, (0.0035, 0.0), LATE_MIX, LATE, 32, 0.5),
)  # fmt: skip


@dataclass
class Shared:
    """What the workers hold in common memory."""

    master: Tensor  # [P] fp32
    weights: Tensor  # [P] bf16
    m: Tensor
    v: Tensor
    grads: Tensor  # [workers, P]
    norms: Tensor  # [workers]
    tally: Tensor  # [workers, 4 + aux losses]: micro-batches, text loss, word loss, guide loss, then tower losses
    kinds: Tensor  # [workers, kinds, 2]
    plan: Tensor  # [stage, first sample, micro-batches, micro-batch size, stop]
    rate: Tensor
    next: mp.Value = field(default=None)
    barrier: mp.Barrier = field(default=None)


@dataclass
class Progress:
    stage: int = 0
    in_stage: int = 0  # samples of this stage so far
    samples: int = 0
    steps: int = 0
    seconds: float = 0.0
    anneal: tuple[int, int, float] | None = None  # (from sample, over samples, rate at that time)
    history: list = field(default_factory=list)  # (stage name, samples, seconds) of finished stages


def share(workers: int, size: int) -> Shared:
    zeros = lambda *s, dtype=torch.float32: torch.zeros(*s, dtype=dtype).share_memory_()  # noqa: E731
    return Shared(
        zeros(size), zeros(size, dtype=torch.bfloat16), zeros(size), zeros(size), zeros(workers, size), zeros(workers),
        zeros(workers, 4 + len(AUX)), zeros(workers, len(KINDS), 2), zeros(5, dtype=torch.long), zeros(1),
    )  # fmt: skip


class Worker:
    """One process: the same model over shared weights, its own gradients."""

    def __init__(self, rank: int, workers: int, shared: Shared, seed: int, shape: Shape) -> None:
        torch.set_num_threads(1)
        self.rank, self.workers, self.shared, self.seed = rank, workers, shared, seed
        self.slots = optim.lay_out(parameter_shapes(shape))
        self.mine = optim.share_out(self.slots, workers)[rank]
        self.leaves = {s.name: s.of(shared.weights).detach().requires_grad_() for s in self.slots}
        self.turns = Turns()
        self.words = self.turns.words()
        self.model = Pico(self.leaves, shape, self.turns.prefix)

    def micro(self, stage: Stage, first: int, size: int, share_of_step: float) -> None:
        """Forward and backward of one micro-batch; its gradient is added to this worker's buffer."""
        draw, total = random.Random(f"mix/{self.seed}/{first}").random(), 0.0
        for portion, n, m in stage.mix:  # noqa: B007
            total += portion
            if draw < total:
                break
        batch = make(self.seed, range(first, first + size), stage.recipe, n, m, self.turns, torch.bfloat16)
        features, cls = self.model.tower(batch.patches, batch.where)
        aux = tower_losses(self.model, batch, features, cls)
        loss = stage.aux * sum(AUX[name] * value for name, value in aux.items())
        tally = self.shared.tally[self.rank]
        if stage.recipe.text:
            seen = self.model.look(batch, features)
            logits, guide = self.model.read(batch, seen)
            text, kinds = text_loss(logits, batch, len(KINDS))
            words = word_losses(self.model, batch, seen, self.words)
            loss = loss + 2.0 * text + 0.3 * words + stage.guide * guide
            tally[2] += words.detach()
            tally[3] += guide.detach()
            self.shared.kinds[self.rank] += kinds
            tally[1] += text.detach()
        (loss * share_of_step).backward()
        tally[0] += 1
        tally[4:] += torch.stack([value.detach() for value in aux.values()])
        flat = self.shared.grads[self.rank]
        for slot in self.slots:
            leaf = self.leaves[slot.name]
            if leaf.grad is not None:
                slot.of(flat).add_(leaf.grad)
                leaf.grad = None

    def step(self, stages: tuple[Stage, ...], steps: int) -> bool:
        """One optimiser step, all workers in step; False when the plan says stop."""
        s = self.shared
        s.barrier.wait()
        stage, first, micros, size, stop = s.plan.tolist()
        if stop:
            return False
        s.grads[self.rank].zero_()
        while True:
            with s.next.get_lock():
                k = s.next.value
                s.next.value += 1
            if k >= micros:
                break
            self.micro(stages[stage], first + k * size, size, 1 / micros)
        s.barrier.wait()
        square, mine = 0.0, [slot for slot in self.mine if stages[stage].recipe.text or not slot.reads]
        for slot in mine:  # sum the workers' gradients of this worker's slots into its own row
            at = slice(slot.start, slot.stop)
            for other in range(self.workers):
                if other != self.rank:
                    s.grads[self.rank, at] += s.grads[other, at]
            square += float(s.grads[self.rank, at].square().sum())
        s.norms[self.rank] = square
        s.barrier.wait()
        norm = float(s.norms.sum()) ** 0.5
        for slot in mine:
            s.grads[self.rank, slot.start : slot.stop].mul_(min(1.0, optim.CLIP / (norm + 1e-6)))
        optim.step(mine, s.master, s.grads[self.rank], s.m, s.v, float(s.rate), steps + 1)
        for slot in mine:
            s.weights[slot.start : slot.stop].copy_(s.master[slot.start : slot.stop])
        s.barrier.wait()
        return True


def follow(
    rank: int, workers: int, shared: Shared, seed: int, shape: Shape, stages: tuple[Stage, ...], steps: int
) -> None:
    """A worker that does what the first one plans; `steps` have been done before."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # ends with its parent
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    worker = Worker(rank, workers, shared, seed, shape)
    while worker.step(stages, steps):
        steps += 1


class Trainer:
    """The first worker: plans steps, logs, saves."""

    aux_order = (*Shape().patch_targets(), *Shape().picture_targets())  # as `tower_losses` returns them

    def __init__(
        self, out: Path, seed: int, workers: int, stages: tuple[Stage, ...], shape: Shape, save_every: float
    ) -> None:
        self.out, self.seed, self.workers, self.stages, self.shape = out, seed, workers, stages, shape
        self.save_every, self.progress, self.stop = save_every, Progress(), False
        self.slots = optim.lay_out(parameter_shapes(shape))
        self.shared = share(workers, self.slots[-1].stop)
        out.mkdir(parents=True, exist_ok=True)

    def start(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        for slot in self.slots:
            slot.of(self.shared.master).copy_(initial(slot.name, slot.shape, self.shape, generator))
        self.shared.weights.copy_(self.shared.master)

    def begin_from(self, folder: Path, stage: str) -> None:
        """Take the weights of an exported folder; the auxiliary heads and the optimiser's moments start anew."""
        stored = load_file(folder / "model.safetensors")
        for slot in self.slots:
            if slot.name in stored:
                slot.of(self.shared.master).copy_(stored[slot.name].reshape(slot.shape))
        self.shared.weights.copy_(self.shared.master)
        self.progress.stage = [one.name for one in self.stages].index(stage)

    def resume(self, path: Path) -> None:
        state = torch.load(path, weights_only=True)
        if state["shape"] != self.shape.dict() or state["seed"] != self.seed:
            raise ValueError(
                f"{path}: got shape {state['shape']}, seed {state['seed']}; expected {self.shape.dict()}, {self.seed}"
            )
        for name in ("master", "m", "v"):
            getattr(self.shared, name).copy_(state[name])
        self.shared.weights.copy_(self.shared.master)
        self.progress = Progress(**state["progress"])

    def save(self) -> None:
        state = {"shape": self.shape.dict(), "seed": self.seed, "progress": vars(self.progress)}
        state |= {name: getattr(self.shared, name).clone() for name in ("master", "m", "v")}
        torch.save(state, self.out / "checkpoint.tmp")
        os.replace(self.out / "checkpoint.tmp", self.out / "checkpoint.pt")

    def rate(self) -> float:
        """The Muon rate of the next step."""
        p, stage = self.progress, self.stages[self.progress.stage]
        if p.anneal:
            begun, over, top = p.anneal
            return top * max(0.0, 1 - (p.samples - begun) / over)
        done = min(1.0, p.in_stage / stage.samples)
        rate = stage.rate[0] + (stage.rate[1] - stage.rate[0]) * done
        return rate * min(1.0, (p.steps + 1) / 20)

    def turn_page(self) -> bool:
        """Go to the next stage where this one is done; False when the run is over. Reads the control files."""
        p = self.progress
        anneal, skip = self.out / "anneal", self.out / "skip"
        if anneal.exists():  # also while annealing: a new length from the rate of now
            p.anneal = (p.samples, int(anneal.read_text()), self.rate())
            anneal.unlink()
        if p.anneal:
            return p.samples < p.anneal[0] + p.anneal[1]
        if skip.exists() or p.in_stage >= self.stages[p.stage].samples:
            skip.unlink(missing_ok=True)
            p.history.append((self.stages[p.stage].name, p.in_stage, round(p.seconds)))
            if p.stage + 1 == len(self.stages):
                return False
            p.stage, p.in_stage = p.stage + 1, 0
        return True

    def plan(self) -> None:
        """Write the next step's work into shared memory."""
        stage, p = self.stages[self.progress.stage], self.progress
        size = 8 if stage.recipe.text else 16
        self.shared.rate.fill_(self.rate())
        self.shared.plan.copy_(torch.tensor([p.stage, p.samples, stage.batch // size, size, int(self.stop)]))
        self.shared.next.value = 0

    def log(self, since: float, samples: int) -> None:
        s, p = self.shared, self.progress
        tally, kinds = s.tally.sum(0), s.kinds.sum(0)
        s.tally.zero_()
        s.kinds.zero_()
        n = max(1.0, float(tally[0]))
        norm, rate = float(s.norms.sum()) ** 0.5, float(s.rate)
        line = {"t": round(p.seconds), "stage": self.stages[p.stage].name, "samples": p.samples, "rate": round(rate, 5)}
        line |= {"per_s": round(samples / since, 1), "norm": round(norm, 2), "text": round(float(tally[1]) / n, 3)}
        line |= {"words": round(float(tally[2]) / n, 3), "guide": round(float(tally[3]) / n, 3)}
        line |= {name: round(float(value) / n, 3) for name, value in zip(self.aux_order, tally[4:])}
        line["kinds"] = {k: round(100 * float(r / a)) for k, (r, a) in zip(KINDS, kinds) if a > 0}
        with (self.out / "log.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")

    def run(self) -> None:
        context = mp.get_context("fork")
        self.shared.next, self.shared.barrier = context.Value("l", 0), context.Barrier(self.workers)
        same = (self.workers, self.shared, self.seed, self.shape, self.stages, self.progress.steps)
        others = [context.Process(target=follow, args=(k, *same)) for k in range(1, self.workers)]
        for process in others:
            process.start()
        for name in (signal.SIGTERM, signal.SIGINT):
            signal.signal(name, lambda *_: setattr(self, "stop", True))
        (self.out / "pids").write_text(" ".join(str(i) for i in (os.getpid(), *(o.pid for o in others))))
        self.loop(Worker(0, self.workers, self.shared, self.seed, self.shape))
        for process in others:
            process.join()
        self.save()

    def loop(self, worker: Worker) -> None:
        p, saved, logged, counted = self.progress, time.monotonic(), time.monotonic(), self.progress.samples
        while True:
            self.stop = self.stop or not self.turn_page()
            self.plan()
            begun = time.monotonic()
            if not worker.step(self.stages, p.steps):
                return
            batch = self.stages[p.stage].batch
            p.steps, p.samples, p.in_stage = p.steps + 1, p.samples + batch, p.in_stage + batch
            p.seconds += time.monotonic() - begun
            if time.monotonic() - logged > 30:
                self.log(time.monotonic() - logged, p.samples - counted)
                logged, counted = time.monotonic(), p.samples
            if time.monotonic() - saved > self.save_every:
                self.save()
                saved = time.monotonic()
