"""The attention mask of a layer that holds only some columns, made from the mask the library built over all of them.

Knows the three forms a library mask takes: None, a 2-D padding mask (flash), a 4-D mask (bool for sdpa, additive float
for eager). Does not know models, caches or pruners.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class View:
    """Which columns a layer's queries and keys are.

    query: [B, q'] columns of the queries, -1 = filler.   key: [B, P] columns of the keys (past and new), -1 = filler.
    first: logical column of the library's first query.   fillers: whether either holds a -1.
    """

    query: Tensor
    key: Tensor
    first: int
    fillers: bool


def layer_mask(mask: Tensor | None, view: View, *, additive: torch.dtype | None, flash: bool) -> Tensor | None:
    """The library's mask narrowed to this view; None stays None wherever that is exact.

    mask: None, [B, L], or [B|1, H|1, Q, L].  additive: the float dtype of an eager mask, None for bool.
    """
    if flash:
        return _padding(mask, view)
    if mask is None:
        if not view.fillers and (view.query.shape[1] == 1 or view.query.shape[1] == view.key.shape[1]):
            return None  # one query sees all; or nothing is cached and is_causal over increasing columns is exact
        visible = view.key[:, None, :] <= view.query[:, :, None]  # [B, q', P]
        visible &= view.key[:, None, :] >= 0
        return _finish(visible[:, None], view, additive)
    return _narrow(mask, view)


def _padding(mask: Tensor | None, view: View) -> Tensor | None:
    """[B, P] 2-D padding mask, or None: flash knows no other, and is causal from the bottom right."""
    if mask is None and not view.fillers:
        return None
    seen = view.key >= 0
    if mask is not None:
        if mask.ndim != 2:
            raise ValueError(f"attention=flash: got a {mask.ndim}-D mask, valid is 2-D padding (no trees under flash)")
        seen = seen & mask.gather(1, view.key.clamp(min=0)).bool()
    return seen.to(mask.dtype) if mask is not None else seen.long()


def _narrow(mask: Tensor, view: View) -> Tensor:
    """[B, H|1, q', P] rows and columns of a 4-D mask."""
    if mask.ndim != 4:
        raise ValueError(f"attention mask: got {mask.ndim} dimensions, valid are None, 2-D under flash and 4-D")
    B, offset = len(view.key), mask.shape[-1]
    rows = (view.query - view.first).clamp(min=0)  # [B, q']
    mask = mask.expand(B, -1, -1, -1)
    picked = mask.gather(2, rows[:, None, :, None].expand(-1, mask.shape[1], -1, offset))  # [B, H|1, q', L]
    keys = view.key.clamp(min=0)[:, None, None, :].expand(-1, mask.shape[1], rows.shape[1], -1)
    picked = picked.gather(3, keys)  # [B, H|1, q', P]
    if not view.fillers:
        return picked
    hidden = (view.key < 0)[:, None, None, :]
    if picked.dtype == torch.bool:
        return _open_fillers(picked & ~hidden, view, True)
    return _open_fillers(picked.masked_fill(hidden, torch.finfo(picked.dtype).min), view, 0.0)


def _open_fillers(mask: Tensor, view: View, value: float | bool) -> Tensor:
    """Lets a filler query see its own slot: a row without any key is NaN on some backends, and nobody reads it."""
    q, P = view.query.shape[1], view.key.shape[1]
    own = torch.arange(P - q, P, device=mask.device)[:, None] == torch.arange(P, device=mask.device)  # [q', P]
    return mask.masked_fill((view.query < 0)[:, None, :, None] & own, value)


def _finish(visible: Tensor, view: View, additive: torch.dtype | None) -> Tensor:
    visible = _open_fillers(visible, view, True) if view.fillers else visible
    if additive is None:
        return visible
    open_mask = torch.zeros(visible.shape, dtype=additive, device=visible.device)
    return open_mask.masked_fill(~visible, torch.finfo(additive).min)
