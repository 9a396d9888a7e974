"""Ragged, left-padded synthetic stations, and the walk of a pruner over all its stations as a model would do it.

A row is a list of segments: an int n = n text columns, "sep" = a protected visual column, a tuple (h, w) = a picture,
a list of such tuples = the tiles of one picture.
"""

import torch
from torch import Tensor

from mmaccel.columns import Selection, SyntheticStation
from mmaccel.pruning.budget import History
from mmaccel.pruning.select import merge

TEXT = (-1,) * 5
ROWS: list[list] = [
    [3, (4, 4), 5],
    [1, (2, 3), 2, (5, 4), 4],
    [7],
    [2, (1, 1), 1, (3, 3), 2],
    [(1, 2), 3],
]


def columns_of(row: list) -> list[tuple]:
    """The grid cell of each column of one row, TEXT for text, None for a protected one."""
    cells: list = []
    image = 0
    for segment in row:
        if isinstance(segment, int):
            cells += [TEXT] * segment
        elif segment == "sep":
            cells.append(None)
        else:
            tiles = segment if isinstance(segment, list) else [segment]
            cells += [(image, i, 0, y, x) for i, (h, w) in enumerate(tiles) for y in range(h) for x in range(w)]
            image += 1
    return cells


def station_of(
    rows: list[list] = ROWS, *, layer: int = 2, depth: int = 8, heads: int = 4, keys=None, ties: bool = False
) -> SyntheticStation:
    """A station at which everything still stands. Each row's numbers depend on its own key alone, not on the batch."""
    keys = tuple(range(len(rows))) if keys is None else keys
    cells = [columns_of(row) for row in rows]
    q = max(map(len, cells))
    B = len(rows)
    grid = torch.full((B, q, 5), -1)
    visual, alive = torch.zeros(B, q, dtype=torch.bool), torch.zeros(B, q, dtype=torch.bool)
    hidden = torch.zeros(B, q, 6)
    attention = {at: torch.zeros(B, heads, q, q) for at in range(depth)}
    for b, row in enumerate(cells):
        n = len(row)
        generator = torch.Generator().manual_seed(keys[b])
        alive[b, q - n :] = True
        hidden[b, q - n :] = torch.randn(n, 6, generator=generator)
        for j, cell in enumerate(row, q - n):
            if cell is not None:
                grid[b, j] = torch.tensor(cell)
                visual[b, j] = cell != TEXT
        for at in range(depth):
            scores = torch.randint(0, 2 if ties else 10_000, (heads, n, n), generator=generator).float()
            attention[at][b, :, q - n :, q - n :] = (scores / (1 if ties else 3000)).softmax(-1)
    column = torch.arange(q).expand(B, q).masked_fill(~alive, -1)
    station = SyntheticStation(
        layer, hidden, visual, alive=alive, grid=grid, column=column, key=keys, attention_rows=attention
    )
    station.history = History.start(depth, column, grid, visual)  # type: ignore[attr-defined]
    return station


def leave(station: SyntheticStation, selection: Selection, layer: int) -> SyntheticStation:
    """The station at `layer` after `selection`: survivors gathered, fillers on the left, means and masses applied."""
    keep = selection.keep & station.alive  # [B, q]
    hidden, mass = station.hidden, station.mass
    if selection.into is not None:
        hidden, mass = merge(hidden, mass, selection.into)
    if selection.value is not None:
        hidden = selection.value
    M = int(keep.sum(1).max())
    order = keep.long().argsort(dim=1, stable=True)[:, keep.shape[1] - M :]  # [B, M]
    ok = keep.gather(1, order)

    def take(whole: Tensor, filler) -> Tensor:
        shape = (*order.shape, *[1] * (whole.ndim - 2))
        taken = whole.gather(1, order.view(shape).expand(*order.shape, *whole.shape[2:]))
        return taken.masked_fill(~ok.view(shape), filler)

    def square(rows: Tensor) -> Tensor:
        heads, q = rows.shape[1], rows.shape[3]
        rows = rows.gather(2, order[:, None, :, None].expand(-1, heads, -1, q))
        return rows.gather(3, order[:, None, None].expand(-1, heads, M, -1))

    after = SyntheticStation(
        layer,
        take(hidden, 0.0),
        take(station.visual, False),
        alive=ok,
        grid=take(station.grid, -1),
        column=take(station.column, -1),
        instruction=take(station.instruction, False),
        mass=take(mass, 1.0),
        key=station.key,
        attention_rows={at: square(rows) for at, rows in station.attention_rows.items()},
    )
    after.history = station.history.after(station.layer, after.column)  # type: ignore[attr-defined]
    return after


def walk(pruner, station: SyntheticStation) -> tuple[list[list[list[int]]], SyntheticStation]:
    """(per station, per row: surviving visual columns, counted from the row's first; what stands at the end)."""
    depth = station.history.depth  # type: ignore[attr-defined]
    stops = pruner.stations(depth)
    start = [int(row[row >= 0].min()) for row in station.history.column]  # type: ignore[attr-defined]
    found = []
    for here, after in zip(stops, [*stops[1:], depth]):
        station.layer = here
        station = leave(station, pruner.select(station), after)
        found.append([(c[v] - s).tolist() for c, v, s in zip(station.column, station.visual, start)])
    return found, station


def groups(row: list, scope: str = "per_image") -> list[list[int]]:
    """The places (counted from the row's start) of the visual columns of each group, in order."""
    cells = columns_of(row)
    name = {"per_image": lambda c: c[0], "per_tile": lambda c: c[:2], "per_prompt": lambda c: 0}[scope]
    members: dict = {}
    for j, cell in enumerate(cells):
        if cell is not None and cell != TEXT:
            members.setdefault(name(cell), []).append(j)
    return list(members.values())
