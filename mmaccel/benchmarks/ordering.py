"""Which rows are asked, and in what order: rows with a picture, and groups that are scored together side by side.

Knows rows' places and keys. Does not know what a group means.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from mmaccel.benchmarks.rows import NOTHING


def together(order: Iterable[int], keys: Mapping[int, Hashable]) -> list[int]:
    """The order with the rows of one key beside each other, keys in order of first appearance."""
    groups: dict[Hashable, list[int]] = {}
    for at in order:
        groups.setdefault(keys[at], []).append(at)
    return [at for members in groups.values() for at in members]


def whole_groups(units: Sequence[Hashable], size: int) -> int:
    """How many of the first `size` to ask so that no group is cut; one group's places stand side by side in `units`."""
    fits = min(size, len(units))
    while 0 < fits < len(units) and units[fits - 1] == units[fits]:
        fits -= 1
    if not fits:
        first = sum(unit == units[0] for unit in units)
        raise ValueError(f"limit: got {size}, the first {first} are scored together; valid is {first} or more")
    return fits


def pictured(cell: Any) -> bool:
    """Whether a picture's cell holds one, without reading it."""
    if isinstance(cell, Mapping):
        return cell.get("bytes") is not None or pictured(cell.get("path"))
    if isinstance(cell, list):
        return bool(cell) and all(map(pictured, cell))
    return cell is not None and cell == cell and str(cell).strip() not in NOTHING
