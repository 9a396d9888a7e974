"""FastV, Chen et al. 2024, https://arxiv.org/abs/2403.06764: from layer K on, the tokens the last row attended to most.

score = mean over heads of one attention row at layer K − 1, softmax over all keys. The paper's text says "from all
tokens"; its public code reads the last prompt row alone, and so do we. Positions stay the original ones.
"""

from dataclasses import dataclass

from torch import BoolTensor, Tensor

from mmaccel.columns import Needs, Station
from mmaccel.pruning.base import ScorePruner, checked_layer

ANCHORS = ("last", "instruction")


@dataclass(frozen=True)
class FastV(ScorePruner):
    """layer: K, the first decoder layer that runs without the dropped tokens.

    anchor: the row that scores: the `last` prompt column, or the last of the `instruction` (before a template's tail).
    """

    layer: int = 2
    anchor: str = "last"

    def __post_init__(self) -> None:
        super().__post_init__()
        checked_layer(self.layer, least=1)  # there is no attention before layer 0
        checked_anchor(self.anchor)

    def stations(self, depth: int) -> tuple[int, ...]:
        return (checked_layer(self.layer, depth, least=1),)

    def needs(self, depth: int) -> Needs:
        return Needs(text_layers=(self.layer - 1,))

    def score(self, station: Station) -> Tensor:  # [B, q]
        return anchor_row(station, self.layer - 1, self.anchor)


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
