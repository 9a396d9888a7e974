"""KeepAll: the null object, a station that drops nothing, so that its row in a table is the price of the mechanism.

Not the baseline: the baseline is the model with nothing attached.
"""

from dataclasses import dataclass

from mmaccel.columns import Selection, Station
from mmaccel.pruning.base import Pruner, checked_layer


@dataclass(frozen=True)
class KeepAll(Pruner):
    """One station, before decoder layer `layer`, at which every column goes on."""

    layer: int = 0

    def __post_init__(self) -> None:
        checked_layer(self.layer)

    def stations(self, depth: int) -> tuple[int, ...]:
        return (checked_layer(self.layer, depth),)

    def select(self, station: Station) -> Selection:
        return Selection(keep=station.alive)
