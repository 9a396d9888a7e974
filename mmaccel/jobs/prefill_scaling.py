"""Where pruning's saving shows on the clock: prefill of random-weight LLaVAs of growing width, drop ratios 0.3 … 0.9.

efficiency = (t₀ − t₁) / (t₀ · (1 − mac_fraction)): the share of the saved MACs that the clock shows, scoring included.
t is one forward from picture features to the first logits; the tower is left out, the embedding gather and one row of
the head are in both. t₀ is the bare library, paired with each t₁ in the same round.
"""

from dataclasses import dataclass
from typing import Any

import torch

from mmaccel.attach import attach
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
from mmaccel.measure.cost import Geometry, ledger
from mmaccel.models.random_weights import LlavaGeometry
from mmaccel.pruning.fastv import FastV
from mmaccel.report.studies import efficiency_figure

TARGET = 0.8


@dataclass(frozen=True)
class PrefillScaling:
    """geometries: name → LlavaGeometry fields; ratios: shares of the visual tokens removed at `layer`."""

    geometries: dict[str, dict[str, int]]
    ratios: tuple[float, ...] = (0.3, 0.5, 0.7, 0.9)
    rounds: int = 12
    warmup: int = 2
    layer: int = 2
    before: int = 8
    after: int = 24

    def run(self, task: Task) -> None:
        device, seed = task.config["machine"]["device"], task.config["seed"]
        rows: list[dict[str, Any]] = []
        rounds: dict[str, Any] = {}
        for name, geometry, model in each_model(task, self.geometries):
            works = self.works(model, geometry, device, seed)
            times = paired_rounds(works, self.rounds, warmup=self.warmup, device=device, what=name)
            rounds[name] = times
            rows += [self.row(name, geometry, Geometry.of(model.config), ratio, times) for ratio in self.ratios]
        write_study(task.output, rows, rounds, seed)
        efficiency_figure(rows, task.output, target=TARGET)
        show_rows(f"prefill: share of the saved MACs that the clock shows (target {TARGET})", rows)

    def works(self, model: Any, geometry: LlavaGeometry, device: str, seed: int) -> dict[str, Timed]:
        prompt = picture_prompt(model, geometry, self.before, self.after, device, seed)

        @torch.no_grad()
        def bare() -> None:
            model(**prompt, use_cache=True, logits_to_keep=1)

        def pruned(ratio: float) -> Timed:
            def work() -> None:
                with attach(model, FastV(layer=self.layer, ratio=ratio)) as attachment:
                    bare()
                assert attachment.events, "nothing was pruned, so nothing was measured"

            return work

        return {"bare": bare} | {f"{ratio:g}": pruned(ratio) for ratio in self.ratios}

    def row(
        self, name: str, geometry: LlavaGeometry, decoder: Geometry, ratio: float, times: dict[str, dict[str, float]]
    ) -> dict[str, Any]:
        kept = FastV(layer=self.layer, ratio=ratio).budget.whole(
            torch.tensor([geometry.visual * (1 - ratio)]), torch.tensor([geometry.visual])
        )
        book = ledger(decoder, self.before + self.after, geometry.visual, [(self.layer, int(kept))])
        base, point = times["bare"], times[f"{ratio:g}"]
        possible = 1 - book.mac_fraction
        left = relative_cost(point, base)  # t₁ / t₀, median over rounds
        shown = {
            name: None if share is None else rounded((1 - share) / possible, 3)
            for name, share in (("efficiency", left.value), ("low", left.high), ("high", left.low))
        }
        return {
            "geometry": name, "width": geometry.width, "layers": geometry.layers, "ratio": ratio, "kept": int(kept),
            "mac_fraction": rounded(book.mac_fraction), "bare_ms": rounded(median(base), 2),
            "pruned_ms": rounded(median(point), 2), "speedup": rounded(median(base) / median(point), 3),
            **shown, "rounds": len(base),
        }  # fmt: skip
