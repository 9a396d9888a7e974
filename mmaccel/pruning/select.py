"""Ragged choice: ranks within a picture, means over merged columns. Vectorised, deterministic, without a host sync.

Knows keys, scores and counts. Does not know budgets or methods.
A *group* is the set of visual columns that share one budget: a picture, a tile of it, or the whole row. Groups are
named by an integer key per column, so rows and pictures of different size need no padding and no loop.
"""

import torch
from torch import BoolTensor, LongTensor, Tensor

from mmaccel.columns import Station

SCOPES = ("per_image", "per_prompt", "per_tile")
NOBODY = torch.iinfo(torch.long).max  # the key of a column that belongs to no group


def group_key(grid: Tensor, visual: Tensor, scope: str) -> LongTensor:
    """[B, q] the group of each visual column under `scope`, NOBODY elsewhere. grid: [B, q, 5], visual: [B, q]."""
    if scope not in SCOPES:
        raise ValueError(f"scope: got {scope!r}, valid are {', '.join(SCOPES)}")
    image, tile = grid[..., 0], grid[..., 1]  # [B, q]
    key = {"per_image": image, "per_prompt": torch.zeros_like(image), "per_tile": (image << 32) + tile}[scope]
    return key.masked_fill(~visual, NOBODY)  # type: ignore[return-value]


def group_size(key: Tensor, among: Tensor | None = None) -> LongTensor:
    """[B, q] how many columns of `among` (keys [B, n], default: the same) share each column's key; 0 for NOBODY."""
    ordered = (key if among is None else among).sort(1).values  # [B, n]
    key = key.contiguous()
    size = torch.searchsorted(ordered, key, right=True) - torch.searchsorted(ordered, key)
    return size.masked_fill(key == NOBODY, 0)  # type: ignore[return-value]


def group_sum(key: Tensor, among: Tensor, value: Tensor) -> LongTensor:
    """[B, q] for each column the sum of `value` [B, n] over the keys `among` [B, n] equal to its own; 0 for NOBODY."""
    ordered, order = among.sort(1)  # [B, n]
    running = torch.nn.functional.pad(value.gather(1, order).cumsum(1), (1, 0))  # [B, n + 1]
    key = key.contiguous()
    last, first = torch.searchsorted(ordered, key, right=True), torch.searchsorted(ordered, key)  # [B, q]
    return (running.gather(1, last) - running.gather(1, first)).masked_fill(key == NOBODY, 0)  # type: ignore[return-value]


def rank_in_group(score: Tensor, key: Tensor) -> LongTensor:
    """[B, q] 0 for the best score of each group, 1 for the next …; equal scores rank the lower column first.

    A NaN score ranks last. Two stable sorts (by score, then by key) leave each group contiguous and best first.
    """
    if score.is_floating_point():
        score = score.masked_fill(score.isnan(), -torch.inf)
    by_score = score.sort(dim=1, descending=True, stable=True).indices  # [B, q]
    order = by_score.gather(1, key.gather(1, by_score).sort(dim=1, stable=True).indices)  # [B, q]
    place = torch.arange(key.shape[1], device=key.device).expand_as(key)
    position = torch.empty_like(order).scatter_(1, order, place)  # [B, q] place of each column in the order
    return position - torch.searchsorted(key.gather(1, order), key.contiguous())  # type: ignore[return-value]


def order_in_group(key: Tensor) -> LongTensor:
    """[B, q] 0, 1, 2 … for the columns of each group from left to right."""
    return rank_in_group(torch.zeros_like(key), key)


def keep_best(station: Station, score: Tensor, key: Tensor, kept: Tensor) -> BoolTensor:
    """[B, q] all alive text, and of each group the `kept` [B, q] best by `score` [B, q]; the order stays ascending."""
    return torch.where(station.visual, rank_in_group(score, key) < kept, station.alive)  # type: ignore[return-value]


def merge(hidden: Tensor, mass: Tensor, into: Tensor) -> tuple[Tensor, Tensor]:
    """hidden [B, q, D] and mass [B, q] after mass-averaging each column into `into` [B, q] (-1 = dropped, weight lost).

    A column that receives only itself is returned bit for bit.
    """
    goes = into >= 0  # [B, q]
    target = into.clamp(min=0)  # [B, q]
    weight = (mass * goes).float()  # [B, q]
    total = torch.zeros_like(weight).scatter_add_(1, target, weight)  # [B, q]
    members = torch.zeros_like(target).scatter_add_(1, target, goes.long())  # [B, q]
    index = target[..., None].expand_as(hidden)  # [B, q, D]
    added = torch.zeros_like(hidden, dtype=torch.float32).scatter_add_(1, index, hidden.float() * weight[..., None])
    mean = (added / total.clamp(min=torch.finfo(torch.float32).tiny)[..., None]).to(hidden.dtype)  # [B, q, D]
    several = members > 1  # [B, q]
    return torch.where(several[..., None], mean, hidden), torch.where(several, total.to(mass.dtype), mass)
