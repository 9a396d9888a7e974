"""Pool: the control that lowers the picture's resolution inside the decoder; means over the near-equal cells of a grid.

Each tile or frame of a picture is laid under the largest gh × gw grid not above its part of the budget, among those
whose cells are at most twice as stretched as the squarest possible (so 23 tokens become 4 × 5 cells, no strip of 23).
A cell's mean lives on its lowest column, weighted by `mass`, so pooling twice is a true mean. Cells are cut from the
bounding box of what still stands; an empty cell gives nothing, so a picture with holes may keep less than its budget.
Protected row separators stay.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from mmaccel.columns import Selection, Station
from mmaccel.pruning.base import Budgeted, checked_layer
from mmaccel.pruning.select import group_key, group_size


@dataclass(frozen=True)
class Pool(Budgeted):
    """layer: the station; 0 pools the embeddings that enter the decoder.

    A budget below the number of tiles (or frames) of its group still leaves one token to each.
    """

    layer: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        checked_layer(self.layer)

    def stations(self, depth: int) -> tuple[int, ...]:
        return (checked_layer(self.layer, depth),)

    def select(self, station: Station) -> Selection:
        B, q = station.visual.shape
        index = torch.arange(q, device=station.visual.device).expand(B, q)  # [B, q]
        into = torch.where(station.alive, index, -1)  # [B, q]
        if not station.visual.any():
            return Selection(keep=station.alive, into=into)  # type: ignore[arg-type]
        cell = self.cells(station)  # [n] the cell of each visual token, rows one after the other
        local = index[station.visual]  # [n]
        lowest = local.new_full((len(cell),), q).scatter_reduce_(0, cell, local, "amin")  # [n], one per cell and spare
        into = into.masked_scatter(station.visual, lowest[cell])  # [B, q]
        if self.allow_zero:
            into = into.masked_fill(station.visual & (self.kept(station) == 0), -1)
        return Selection(keep=(into == index) & station.alive, into=into)  # type: ignore[arg-type]

    def cells(self, station: Station) -> Tensor:
        """[n] 0, 1, 2 … the cell of each visual token of the batch."""
        row = torch.arange(len(station.visual), device=station.visual.device)[:, None].expand_as(station.visual)
        grid = station.grid[station.visual]  # [n, 5]
        y, x = grid[:, 3], grid[:, 4]  # [n]
        place = torch.cat([row[station.visual][:, None], grid[:, :3]], 1)  # [n, 4] a block is one frame of one tile
        block, count = torch.unique(place, dim=0, return_inverse=True, return_counts=True)[1:]  # [n], [blocks]
        top, height = _extent(y, block, len(count))  # [blocks]
        left, width = _extent(x, block, len(count))
        part = torch.zeros_like(count).index_put_((block,), self.parts(station, count[block]))  # [blocks]
        table = torch.stack([height, width, part, count], 1).tolist()
        cut = torch.tensor([_cut(*line) for line in table], device=y.device).view(-1, 2)[block]  # [n, 2]
        down = torch.div((y - top[block]) * cut[:, 0], height[block], rounding_mode="floor")  # [n]
        across = torch.div((x - left[block]) * cut[:, 1], width[block], rounding_mode="floor")  # [n]
        return torch.unique(torch.stack([block, down, across], 1), dim=0, return_inverse=True)[1]

    def parts(self, station: Station, count: Tensor) -> Tensor:
        """[n] what the block of each visual token may keep: the group's budget shared out by size, at least one."""
        size = group_size(group_key(station.grid, station.visual, self.scope))[station.visual]  # [n]
        return (self.kept(station)[station.visual] * count // size).clamp(min=1)


def _extent(line: Tensor, block: Tensor, blocks: int) -> tuple[Tensor, Tensor]:
    """First coordinate and length of the bounding box of each block. line, block: [n]; answers: [blocks]."""
    low = line.new_zeros(blocks).scatter_reduce_(0, block, line, "amin", include_self=False)
    high = line.new_zeros(blocks).scatter_reduce_(0, block, line, "amax", include_self=False)
    return low, high - low + 1


def _cut(height: int, width: int, tokens: int, standing: int) -> tuple[int, int]:
    """The grid of cells for one block; a budget of all that stands leaves each token a cell of its own."""
    return (height, width) if tokens >= standing else largest_grid(height, width, tokens)


@lru_cache(maxsize=4096)
def largest_grid(height: int, width: int, tokens: int) -> tuple[int, int]:
    """(gh, gw) with the most cells not above `tokens`, at most twice as stretched as need be, then the squarest."""

    def stretch(gh: int, gw: int) -> float:
        return max(height * gw, width * gh) / min(height * gw, width * gh)

    grids = [(gh, gw) for gh in range(1, min(height, tokens) + 1) for gw in range(1, min(width, tokens // gh) + 1)]
    least = min(stretch(*grid) for grid in grids)
    fit = [grid for grid in grids if stretch(*grid) <= 2 * least]
    return max(fit, key=lambda grid: (grid[0] * grid[1], -stretch(*grid), grid[1]))
