"""What pruning must equal, without any of its code: nothing removed, no cache, dropped columns masked as keys."""

from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from tiny import IMAGE, VIDEO
from torch import Tensor

from mmaccel.columns import Needs, Selection, Station
from mmaccel.pruning.base import Pruner

SUPPRESS = [IMAGE, VIDEO, 92, 93]  # a generated placeholder would break the cache-free path's own count check


@dataclass(frozen=True)
class DropCodes(Pruner):
    """Test pruner: at layer l drops the visual columns whose place in the row, modulo 3, is in `plan[l]`."""

    plan: tuple[tuple[int, tuple[int, ...]], ...]

    def stations(self, depth: int) -> tuple[int, ...]:
        return tuple(layer for layer, _ in self.plan)

    def needs(self, depth: int) -> Needs:
        return Needs()

    def select(self, station: Station) -> Selection:
        far = station.column.masked_fill(~station.alive, 1 << 30)
        code = (station.column - far.amin(1, keepdim=True)) % 3
        gone = torch.zeros_like(station.visual)
        for value in dict(self.plan)[station.layer]:
            gone |= code == value
        return Selection(station.alive & ~(station.visual & gone))


PLANS = {
    "at 0": DropCodes(((0, (1, 2)),)),
    "at 2": DropCodes(((2, (1, 2)),)),
    "at 0 and 2": DropCodes(((0, (2,)), (2, (1,)))),
}


def dropped(plan: DropCodes, ids: Tensor, mask: Tensor, prompt: int) -> dict[int, Tensor]:
    """layer → [B, n] columns that are gone from that layer on, by the plan, read off the ids alone."""
    place = mask.cumsum(1) - 1
    visual = (ids == IMAGE) & mask.bool()
    visual[:, prompt:] = False
    gone, so_far = {}, torch.zeros_like(visual)
    for layer, codes in plan.plan:
        for code in codes:
            so_far = so_far | (visual & (place % 3 == code))
        gone[layer] = so_far
    return gone


@contextmanager
def masked(model: Any, plan: DropCodes, ids: Tensor, mask: Tensor, prompt: int):
    """Layers from each station on see an explicit mask: causal, no padding, no dropped key."""
    n = ids.shape[1]
    own = torch.eye(n, dtype=torch.bool, device=ids.device)
    causal = torch.ones_like(own).tril()[None] & mask.bool()[:, None]  # [B, n, n]
    causal |= own  # padding rows see themselves: no NaN
    gone = dropped(plan, ids, mask, prompt)
    handles = []
    for layer, block in enumerate(model.get_decoder().layers):
        seen = causal.clone()
        reached = [drop for station, drop in gone.items() if station <= layer]
        if reached:
            seen &= ~reached[-1][:, None] | own
        explicit = seen[:, None]
        if model.config._attn_implementation == "eager":
            dtype = next(block.parameters()).dtype
            explicit = torch.zeros_like(explicit, dtype=dtype).masked_fill(~explicit, torch.finfo(dtype).min)

        def hook(module: Any, args: tuple, kwargs: dict, explicit: Tensor = explicit):
            return args, {**kwargs, "attention_mask": explicit}

        handles.append(block.register_forward_pre_hook(hook, with_kwargs=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def grown(inputs: dict[str, Tensor], tokens: Tensor) -> dict[str, Tensor]:
    """The inputs with [B, t] tokens appended to ids, mask and token types."""
    made = dict(inputs)
    made["input_ids"] = torch.cat([inputs["input_ids"], tokens], 1)
    made["attention_mask"] = torch.cat([inputs["attention_mask"], torch.ones_like(tokens)], 1)
    if "mm_token_type_ids" in inputs:
        made["mm_token_type_ids"] = torch.cat([inputs["mm_token_type_ids"], torch.zeros_like(tokens).int()], 1)
    return made


@torch.no_grad()
def oracle_logits(model: Any, inputs: dict[str, Tensor], tokens: Tensor, plan: DropCodes) -> Tensor:
    """[B, t+1, V] logits after the prompt and after each of [B, t] forced tokens, one cache-free forward each."""
    steps = []
    for t in range(tokens.shape[1] + 1):
        whole = grown(inputs, tokens[:, :t])
        with masked(model, plan, whole["input_ids"], whole["attention_mask"], inputs["input_ids"].shape[1]):
            steps.append(model(**whole, use_cache=False).logits[:, -1])
    return torch.stack(steps, 1)


def close(a: Tensor, b: Tensor, tolerance: float = 1e-4) -> None:
    worst = (a - b).abs().max().item()
    assert worst <= tolerance, f"largest difference {worst:.2e} > {tolerance:.0e}"
