"""What the mechanism itself costs, paired with the bare library in the same minute on the same backend.

Three questions: our loop against the library's greedy `generate` (nothing attached); a plain decode step after a
pruning event against the bare library on a cache with the very same slots; a prefill under a pruner that keeps all.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmaccel.attach import attach
from mmaccel.cache import cache_argument, cache_in, fork, layers_of, logical_length
from mmaccel.decoding.speculate import Speculate
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
from mmaccel.pruning.fastv import FastV
from mmaccel.pruning.keep_all import KeepAll


@dataclass(frozen=True)
class MechanismOverhead:
    """geometries: name → LlavaGeometry fields. rounds: paired repetitions; steps: decode steps in one of them."""

    geometries: dict[str, dict[str, int]]
    rounds: int = 40
    warmup: int = 4
    steps: int = 24
    ratio: float = 0.5
    layer: int = 2
    before: int = 8
    after: int = 24

    def run(self, task: Task) -> None:
        device, seed = task.config["machine"]["device"], task.config["seed"]
        rows: list[dict[str, Any]] = []
        rounds: dict[str, Any] = {}
        for name, geometry, model in each_model(task, self.geometries):
            prompt = picture_prompt(model, geometry, self.before, self.after, device, seed)
            for what, works in (
                ("loop", self.loops(model, prompt)),
                ("decode step after pruning", self.decode_steps(model, prompt)),
                ("prefill, everything kept", self.prefills(model, prompt)),
            ):
                times = paired_rounds(works, self.rounds, warmup=self.warmup, device=device, what=f"{name}: {what}")
                rounds[f"{name}: {what}"] = times
                ours, theirs = (times[key] for key in works)
                cost = relative_cost(ours, theirs)
                rows.append(
                    {
                        "geometry": name, "what": what, "rounds": self.rounds,
                        "ours_ms": rounded(median(ours), 3), "library_ms": rounded(median(theirs), 3),
                        "ratio": rounded(cost.value), "low": rounded(cost.low), "high": rounded(cost.high),
                    }
                )  # fmt: skip
        write_study(task.output, rows, rounds, seed)
        show_rows("mechanism overhead: ours / library, median of paired rounds with 95 % interval", rows)

    def loops(self, model: Any, prompt: dict[str, Any]) -> dict[str, Timed]:
        """Greedy, exactly `steps` tokens, features handed over afresh: generate empties the dictionary it is given."""
        fixed = {"max_new_tokens": self.steps, "min_new_tokens": self.steps, "do_sample": False, "pad_token_id": 0}

        def generate(**more: Any) -> Tensor:
            return model.generate(
                **(prompt | {"mm_encoder_outputs": dict(prompt["mm_encoder_outputs"])}), **fixed, **more
            )

        ours, theirs = generate(custom_generate=Speculate()), generate()
        if not torch.equal(ours, theirs):
            raise RuntimeError("our loop and the library's generate emit different tokens: timing them means nothing")
        return {"ours": lambda: generate(custom_generate=Speculate()), "library": generate}

    def decode_steps(self, model: Any, prompt: dict[str, Any]) -> dict[str, Timed]:
        """The same slots twice: in a cache that knows its columns, inside the block; in a plain one, outside."""
        name = cache_argument(model)
        with torch.no_grad(), attach(model, FastV(layer=self.layer, ratio=self.ratio)):
            pruned: Any = cache_in(model(**prompt, use_cache=True, logits_to_keep=1))
        length = logical_length(pruned)
        plain = type(pruned)(config=model.get_decoder().config)  # the library's own DynamicCache
        for mine, bare in zip(layers_of(pruned), layers_of(plain), strict=True):
            bare.update(mine.keys, mine.values)

        @torch.no_grad()
        def walk(cache: Any) -> Tensor:
            token = torch.full((1, 1), 17, device=prompt["input_ids"].device)
            for step in range(self.steps):
                mask = torch.ones(1, length + step + 1, dtype=torch.long, device=token.device)
                position = torch.full_like(token, length + step)
                out = model(input_ids=token, attention_mask=mask, position_ids=position, **{name: cache})
                token = out.logits[:, -1:].argmax(-1)
            return token

        def ours() -> None:
            with attach(model, FastV(layer=self.layer, ratio=self.ratio)):
                walk(fork(pruned))

        return {"ours": ours, "library": lambda: walk(fork(plain))}

    def prefills(self, model: Any, prompt: dict[str, Any]) -> dict[str, Timed]:
        @torch.no_grad()
        def forward() -> None:
            model(**prompt, use_cache=True, logits_to_keep=1)

        def ours() -> None:
            with attach(model, KeepAll()):
                forward()

        return {"ours": ours, "library": forward}
