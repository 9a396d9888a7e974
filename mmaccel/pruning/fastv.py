"""FastV, Chen et al. 2024, https://arxiv.org/abs/2403.06764: from layer K on, the tokens the last row attended to most.

score = mean over heads of one attention row at layer K − 1, softmax over all keys. The paper's text says "from all
tokens"; its public code reads the last prompt row alone, and so do we. Positions stay the original ones.
"""

from dataclasses import dataclass

from torch import BoolTensor, Tensor

from mmaccel.columns import Needs, Station
from mmaccel.pruning.base import ScorePruner, checked_layer

ANCHORS = ("last", "instruction")
SCALED = "scaled"
PAPER_DEPTH = 32  # layers of the paper's 7B model, in which K = 2


@dataclass(frozen=True)
class FastV(ScorePruner):
    """layer: K, the first decoder layer that runs without the dropped tokens; "scaled" puts it at the share of the
    depth that the paper's K = 2 has in 32 layers, and not before 1.

    anchor: the row that scores: the `last` prompt column, or the last of the `instruction` (before a template's tail).
    """

    layer: int | str = 2
    anchor: str = "last"

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.layer, str) and self.layer != SCALED:
            raise ValueError(f"layer: got {self.layer!r}, valid are whole numbers from 1 on and {SCALED!r}")
        self.k(None)  # there is no attention before layer 0
        checked_anchor(self.anchor)

    def k(self, depth: int | None) -> int:
        if isinstance(self.layer, str):
            return max(1, int(2 * (depth or PAPER_DEPTH) / PAPER_DEPTH + 0.5))
        return checked_layer(self.layer, depth, least=1)

    def stations(self, depth: int) -> tuple[int, ...]:
        return (self.k(depth),)

    def needs(self, depth: int) -> Needs:
        return Needs(text_layers=(self.k(depth) - 1,))

    def score(self, station: Station) -> Tensor:  # [B, q]
        return anchor_row(station, station.layer - 1, self.anchor)


def checked_anchor(anchor: str) -> None:
    if anchor not in ANCHORS:
        raise ValueError(f"anchor: got {anchor!r}, valid are {', '.join(ANCHORS)}")


def anchor_row(station: Station, layer: int, anchor: str) -> Tensor:
    """[B, q] the attention row of the anchor at `layer`, mean over heads."""
    rows = None if anchor == "last" else last_instruction(station)
    return station.attention(layer, rows).float().mean((1, 2))  # [B, H, 1, q] → [B, q]


def last_instruction(station: Station) -> BoolTensor:
    """[B, q] exactly one column per row: the last of its instruction, or the anchor where it has none."""
    reached = station.instruction.long().cumsum(1)  # [B, q]
    last = station.instruction & (reached == reached[:, -1:])  # [B, q]
    anchor = last.new_zeros(last.shape).scatter_(1, station.anchor[:, None], True)  # [B, q]
    return last | (anchor & ~last.any(1, keepdim=True))  # type: ignore[return-value]
