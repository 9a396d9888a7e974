"""The pruner contract: stations, needs, select. A pruner is frozen: no state, no model, no cache.

Knows columns and budgets. Does not know models, hooks or caches: it meets the model through the Station alone.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from torch import BoolTensor, Tensor

from mmaccel.columns import Needs, Selection, Station


class Pruner(ABC):
    """Says, at each of its stations, which columns go on."""

    @abstractmethod
    def stations(self, depth: int) -> tuple[int, ...]:
        """Increasing decoder layers (0 … depth-1) before which `select` is asked; raises for a layer beyond the depth."""

    def needs(self, depth: int) -> Needs:
        return Needs()

    @abstractmethod
    def select(self, station: Station) -> Selection: ...


@dataclass(frozen=True)
class FunctionPruner(Pruner):
    """A bare function Station → Selection (or → keep [B, q]) at one layer: `attach(model, fn, layer=2)`.

    It may read the attention of the layer before and of its own layer.
    """

    function: Callable[[Station], Selection | BoolTensor | Tensor]
    layer: int

    def stations(self, depth: int) -> tuple[int, ...]:
        return (checked_layer(self.layer, depth),)

    def needs(self, depth: int) -> Needs:
        return Needs(text_layers=tuple(layer for layer in (self.layer - 1, self.layer) if layer >= 0))

    def select(self, station: Station) -> Selection:
        answer = self.function(station)
        return answer if isinstance(answer, Selection) else Selection(keep=answer)


def checked_layer(layer: int, depth: int) -> int:
    """`layer` if it is a decoder layer of a model of this depth."""
    if isinstance(layer, bool) or not isinstance(layer, int) or not 0 <= layer < depth:
        raise ValueError(f"layer: got {layer!r}, valid are 0 … {depth - 1} (the model has {depth} decoder layers)")
    return layer
