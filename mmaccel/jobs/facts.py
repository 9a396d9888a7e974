"""What one request cost and kept, read off its pruning event: token counts, fractions, evidence, survivors.

Pure functions of an Event, a Sample and a Geometry. Does not run anything.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mmaccel.benchmarks.base import Box
from mmaccel.measure.cost import Geometry, Ledger, ledger
from mmaccel.pruning.pool import Pool


def account(
    geometry: Geometry, prompt: int, visual: int, event: Any | None, generated: int
) -> tuple[Ledger, dict[str, Any]]:
    """(the ledger, the record's `tokens`); without an event nothing was removed."""
    stops: list[tuple[int, int]] = []
    if event is not None:
        prompt, visual = int(event.prompt[0]), int(event.visual[0])
        stops = [(stop.layer, int(stop.visual[0])) for stop in event.stops]
    book = ledger(geometry, prompt - visual, visual, stops, generated)
    tokens = {"prompt": prompt, "visual": visual, "kept": list(book.kept)}
    return book, tokens | {"mean_visual": book.mean_visual, "generated": generated}


def cells(event: Any) -> tuple[Tensor, tuple[int, int]] | None:
    """([v, 2] cell (y, x) of each visual token in column order, (rows, columns)); None unless it is one plain grid."""
    grid = event.grid[0][event.visual_mask[0]]  # [v, 5] (image, tile, t, y, x)
    if not len(grid) or len(grid[:, :3].unique(dim=0)) != 1:
        return None
    yx = grid[:, 3:].cpu()  # [v, 2]
    rows, columns = (yx.amax(0) + 1).tolist()
    return yx, (rows, columns)


def survivors(event: Any) -> list[Tensor]:
    """Per stop [v] bool: which of the visual tokens, in column order, still stand."""
    columns = event.past + event.visual_mask[0].nonzero()[:, 0]  # [v]
    return [torch.isin(columns, stop.column[0]).cpu() for stop in event.stops]


def in_boxes(yx: Tensor, shape: tuple[int, int], boxes: Sequence[Box]) -> Tensor:
    """[v] bool: cells that share area with a box (boxes in fractions of the picture)."""
    size = torch.tensor(shape, dtype=torch.float64)
    low, high = yx / size, (yx + 1) / size  # [v, 2]
    inside = torch.zeros(len(yx), dtype=torch.bool)
    for left, top, right, bottom in boxes:
        near, far = torch.tensor([top, left]), torch.tensor([bottom, right])
        inside |= ((low < far - 1e-9) & (high > near + 1e-9)).all(1)
    return inside


def evidence(event: Any | None, boxes: Sequence[Box]) -> dict[str, Any] | None:
    """How much of the evidence each stop left; None where there is none, or no plain grid to find it on."""
    placed = cells(event) if event is not None and boxes else None
    if placed is None:
        return None
    inside = in_boxes(*placed, boxes)
    total = int(inside.sum())
    if not total:
        return None
    return {"tokens": total, "kept_fraction": [int((inside & kept).sum()) / total for kept in survivors(event)]}


def merges(pruner: Any | None) -> bool:
    """Whether a column that stands may carry others' content: what is left of the evidence is then no count."""
    return isinstance(pruner, Pool) or any(merges(member) for member in getattr(pruner, "pruners", ()))


def megabytes(module: Any) -> float:
    """Of its weights."""
    return sum(p.numel() * p.element_size() for p in module.parameters()) / 1e6
