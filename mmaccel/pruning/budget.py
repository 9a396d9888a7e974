"""How many visual tokens stay: a typed budget, its validation, its one rounding rule, its average-over-layers solver.

Knows counts and layers. Does not know scores, methods or models.

Rounding, everywhere: the wanted number of *kept* tokens goes to the nearest whole number, halves up (in favour of the
picture), and each group of the scope keeps at least one token. Only an exactly empty budget (ratio 1, keep 0, tokens 0)
together with `allow_zero` removes a whole picture.
"""

import math
from dataclasses import dataclass
from numbers import Integral, Real

import torch
from torch import LongTensor, Tensor

from mmaccel.columns import Station
from mmaccel.pruning.select import NOBODY, SCOPES, group_key, group_size, group_sum

DIALS = ("ratio", "keep", "tokens", "mean_tokens")
_VALID = {
    "ratio": "a number from 0 to 1 (the share removed)",
    "keep": "a number from 0 to 1 (the share kept)",
    "tokens": "a whole number from 0 on (tokens kept)",
    "mean_tokens": "a finite number above 0 (tokens kept, averaged over the decoder layers)",
}


def rounded(wanted: Tensor) -> LongTensor:
    """Nearest whole number, halves up; the 1e-9 lets 1 − 0.9 and 0.1 round alike."""
    return (wanted.double() + 0.5 + 1e-9).floor().long()  # type: ignore[return-value]


@dataclass(frozen=True)
class History:
    """What this prompt brought and where each token of it was dropped: how a stateless pruner knows the counts before.

    depth: decoder layers of the model. column: [B, q0] logical columns of the prompt, -1 where not alive.
    grid: [B, q0, 5] of its prunable visual tokens, -1 elsewhere.
    dropped_at: [B, q0] the layer of the station that dropped it, `depth` while it stands.
    """

    depth: int
    column: LongTensor
    grid: LongTensor
    dropped_at: LongTensor

    @classmethod
    def start(cls, depth: int, column: Tensor, grid: Tensor, visual: Tensor) -> "History":
        """Before the first station of an event: column [B, q0], grid [B, q0, 5], visual [B, q0] (the prunable ones)."""
        return cls(depth, column, grid.masked_fill(~visual[..., None], -1), torch.full_like(column, depth))  # type: ignore[arg-type]

    def after(self, layer: int, column: Tensor) -> "History":
        """After the station at `layer` left `column` [B, M] standing (-1 = filler or padding, on whichever side)."""
        standing = column.sort(1).values  # [B, M]
        mine = self.column.contiguous()  # [B, q0]
        found = torch.searchsorted(standing, mine, right=True) > torch.searchsorted(standing, mine)  # [B, q0]
        gone = ~found & (self.grid[..., 0] >= 0) & (self.dropped_at == self.depth)
        return History(self.depth, self.column, self.grid, self.dropped_at.masked_fill(gone, layer))  # type: ignore[arg-type]

    def keys(self, scope: str, layer: int = 0) -> LongTensor:
        """[B, q0] the group of each visual token that stood before the station at `layer`, NOBODY elsewhere."""
        visual = self.grid[..., 0] >= 0  # [B, q0]
        return group_key(self.grid, visual & (self.dropped_at >= layer), scope)


def history_of(station: Station) -> History:
    history = getattr(station, "history", None)
    if history is None:
        raise ValueError(
            "station.history is missing: this pruner needs the model's depth and the counts before its station; "
            "attach gives them, on a hand-made station set station.history = History.start(depth, column, grid, visual)"
        )
    return history


def _checked(name: str, value: object) -> None:
    kind = Integral if name == "tokens" else Real
    ok = isinstance(value, kind) and not isinstance(value, bool) and math.isfinite(value)  # type: ignore[arg-type]
    if ok and name in ("ratio", "keep"):
        ok = 0 <= value <= 1  # type: ignore[operator]
    elif ok:
        ok = value > 0 if name == "mean_tokens" else value >= 0  # type: ignore[operator]
    if not ok:
        raise ValueError(f"{name}: got {value!r}, valid is {_VALID[name]}")


@dataclass(frozen=True)
class Budget:
    """Exactly one of the four dials, counted per group of the scope (a picture, by default).

    ratio: share of the standing visual tokens that is removed. keep: share kept. tokens: number kept.
    mean_tokens: average over all decoder layers of the visual tokens that enter each, earlier stations included.
    """

    ratio: float | None = None
    keep: float | None = None
    tokens: int | None = None
    mean_tokens: float | None = None
    scope: str = "per_image"
    allow_zero: bool = False

    def __post_init__(self) -> None:
        given = {name: getattr(self, name) for name in DIALS if getattr(self, name) is not None}
        for name, value in given.items():
            _checked(name, value)
        if len(given) != 1:
            got = ", ".join(f"{name}={value!r}" for name, value in given.items()) or "ratio=None and no other"
            hint = " (set the others to null)" if given else ""
            raise ValueError(f"budget: got {got}; valid is exactly one of {', '.join(DIALS)}{hint}")
        if self.scope not in SCOPES:
            raise ValueError(f"scope: got {self.scope!r}, valid are {', '.join(SCOPES)}")
        if not isinstance(self.allow_zero, bool):
            raise ValueError(f"allow_zero: got {self.allow_zero!r}, valid are true, false")

    @property
    def share(self) -> float | None:
        """The share kept, where the budget is a share."""
        return self.keep if self.ratio is None else 1 - self.ratio

    @property
    def least(self) -> int:
        """The fewest tokens a group may be left with."""
        empty = self.share == 0 or self.tokens == 0
        return 0 if empty and self.allow_zero else 1

    def whole(self, wanted: Tensor, size: Tensor) -> LongTensor:
        """The rounding rule: `wanted` kept of `size` standing, both [B, q]."""
        return rounded(wanted).clamp(min=self.least).minimum(size)  # type: ignore[return-value]

    def kept(self, station: Station) -> LongTensor:
        """[B, q] how many tokens the group of each visual column keeps at this one station; 0 for text."""
        key = group_key(station.grid, station.visual, self.scope)  # [B, q]
        size = group_size(key)  # [B, q]
        if self.share is not None:
            wanted = size.double() * self.share
        elif self.tokens is not None:
            wanted = torch.full_like(size, self.tokens)
        else:
            wanted = self._solved(station, key, size)
        return self.whole(wanted, size)

    def _solved(self, station: Station, key: Tensor, size: Tensor) -> Tensor:
        """[B, q] tokens to keep from here on so that the average over layers is `mean_tokens`."""
        assert self.mean_tokens is not None
        history, layer = history_of(station), station.layer
        spent = group_sum(key, history.keys(self.scope), history.dropped_at.clamp(max=layer))  # [B, q] so far
        left = history.depth - layer
        wanted = (history.depth * self.mean_tokens - spent.double()) / left  # [B, q]
        refuse_infeasible(self.mean_tokens, wanted, (spent + left) / history.depth, key, f"pruning at layer {layer}")
        return wanted.minimum(size.double())


def refuse_infeasible(mean_tokens: float, wanted: Tensor, least: Tensor, key: Tensor, where: str) -> None:
    """Raise where a group would have to keep less than the one token that `least` [B, q] is the average of."""
    short = (wanted < 0.5 - 1e-9) & (key != NOBODY)  # [B, q]
    if short.any():
        minimum = least[short].max().item()
        raise ValueError(
            f"mean_tokens: got {mean_tokens}, infeasible {where}: the layers before it already carry more; "
            f"valid is {minimum:.2f} or above for this picture (one token kept), or an earlier layer"
        )
