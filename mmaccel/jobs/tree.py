"""Places in a configuration tree: "pruner.ratio" and what stands there.

Knows nested mappings only.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """("pruner.ratio", [0.3, 0.5]) …: the places of a sweep."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def at_path(tree: Mapping[str, Any], path: str, what: str) -> Any:
    here: Any = tree
    keys = path.split(".")
    for done, key in enumerate(keys):
        if not isinstance(here, Mapping) or key not in here:
            known = ", ".join(here) if isinstance(here, Mapping) else "none"
            under = ".".join(keys[:done]) or "the top"
            raise ValueError(f"{what}.{path}: unknown key {key!r}; valid under {under} are {known}")
        here = here[key]
    return here


def put(tree: dict[str, Any], path: str, value: Any) -> None:
    *above, last = path.split(".")
    for key in above:
        tree = tree[key]
    tree[last] = value


def placed(node: Mapping[str, Any], at: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """A copy of the node with the swept values in their places."""
    changed = copy.deepcopy(dict(node))
    for path, value in at:
        put(changed, path, value)
    return changed
