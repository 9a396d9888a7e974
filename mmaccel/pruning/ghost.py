"""A pruner that is asked and not obeyed: what it would keep is told, and everything goes on.

For pruning that the draft head alone is to see: its target stays whole, and so do its words.
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from mmaccel.columns import Needs, Selection, Station
from mmaccel.pruning.base import Pruner


@dataclass(frozen=True)
class Ghost(Pruner):
    """told: is given the columns [B, q] of the station and which of them [B, q] the pruner keeps."""

    pruner: Pruner
    told: Callable[[Tensor, Tensor], None]

    def stations(self, depth: int) -> tuple[int, ...]:
        found = self.pruner.stations(depth)
        if len(found) > 1:
            raise ValueError(f"draft.pruner: got one with stations {list(found)}, valid are pruners with one station")
        return found

    def needs(self, depth: int) -> Needs:
        needs = self.pruner.needs(depth)
        if needs.vision_layers:
            raise ValueError("draft.pruner: got one that reads the picture's tower, which has run before it is asked")
        return needs

    def select(self, station: Station) -> Selection:
        selection = self.pruner.select(station)
        if selection.into is not None or selection.value is not None:
            raise ValueError("draft.pruner: got one that merges columns, valid are pruners that drop them")
        self.told(station.column, selection.keep & station.alive)
        return Selection(keep=station.alive)
