"""What drafting costs without a head: steps that verify so many nodes, and the speed-up that an acceptance would give.

Synthetic acceptance over random weights: the answer is decoded once, then drafted from itself, wrong as often as asked.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from mmaccel.decoding.speculate import Speculate
from mmaccel.drafting.replay import Replay
from mmaccel.jobs.study import (
    Timed,
    each_model,
    median,
    paired_rounds,
    picture_prompt,
    relative_cost,
    rounded,
    show_rows,
    write_study,
)
from mmaccel.jobs.task import Task


@dataclass(frozen=True)
class DraftOverhead:
    """geometries: name → LlavaGeometry fields.  shapes: name → choices of each level.  right: chances that a level is
    right.  tokens: of the answer."""

    geometries: dict[str, dict[str, int]]
    shapes: dict[str, list[int]]
    right: tuple[float, ...] = (0.0, 0.6, 0.8, 0.95)
    rounds: int = 8
    warmup: int = 1
    tokens: int = 64
    before: int = 8
    after: int = 24

    def run(self, task: Task) -> None:
        device, seed = task.config["machine"]["device"], task.config["seed"]
        rows: list[dict[str, Any]] = []
        rounds: dict[str, Any] = {}
        for name, geometry, model in each_model(task, self.geometries):
            prompt = picture_prompt(model, geometry, self.before, self.after, device, seed)
            asked = Asked(model, prompt, self.tokens)
            plain = asked(None)
            answer = plain[0, prompt["input_ids"].shape[1] :].tolist()
            heads = {(shape, right): Replay(answer, right, widths) for shape, widths in self.shapes.items()
                     for right in self.right}  # fmt: skip
            for head in heads.values():
                if not torch.equal(asked(head), plain):
                    raise RuntimeError("a draft changed the answer: timing it means nothing")
            works: dict[str, Timed] = {"plain": partial(asked, None)}
            works |= {f"{shape} {right:g}": partial(asked, head) for (shape, right), head in heads.items()}
            times = paired_rounds(works, self.rounds, warmup=self.warmup, device=device, what=name)
            rounds[name] = times
            asked(None)
            step = median_step(asked)
            for (shape, right), head in heads.items():
                asked(head)
                tau, mine = asked.stats.tau, median_step(asked)
                cost = relative_cost(times["plain"], times[f"{shape} {right:g}"])
                rows.append({
                    "geometry": name, "shape": shape, "nodes": len(head.tree.parent), "right": right,
                    "tau": rounded(tau, 3), "step_ms": rounded(mine, 3), "plain_ms": rounded(step, 3),
                    "break_even_tau": rounded(mine / step, 3), "speedup": rounded(cost.value, 3),
                    "low": rounded(cost.low, 3), "high": rounded(cost.high, 3),
                })  # fmt: skip
        write_study(task.output, rows, rounds, seed)
        show_rows(f"synthetic acceptance, {self.tokens} tokens: plain / drafted, prefill included", rows)


class Asked:
    """Decodes `tokens` tokens, with a head or without; `stats` are the last call's."""

    def __init__(self, model: Any, prompt: dict[str, Any], tokens: int) -> None:
        self.model, self.prompt = model, prompt
        self.fixed = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False, "pad_token_id": 0}

    def __call__(self, head: Any) -> Any:
        speculate = Speculate(head)
        features = {"mm_encoder_outputs": dict(self.prompt["mm_encoder_outputs"])}  # generate empties what it is given
        said = self.model.generate(**(self.prompt | features), **self.fixed, custom_generate=speculate)
        self.stats = speculate.stats
        return said


def median_step(asked: Asked) -> float:
    return median(dict(enumerate(asked.stats.step_ms)))  # type: ignore[arg-type]
