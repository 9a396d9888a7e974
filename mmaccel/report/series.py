"""Points as curves: which rows belong together, which of them are controls, and the numbers a chart needs.

Shared by the page's charts, the figures on disk and the headline, so that all of them show the same thing.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]

CONTROLS = ("random", "uniform", "pool", "resize", "keep_all")  # what a method has to beat, or must not cost
AXES = {
    "e2e_ms_p50": "end-to-end time, median [ms]",
    "mean_visual": "visual tokens per decoder layer, mean",
    "kv_fraction": "KV cache at decode, share of unpruned",
    "mac_fraction": "prefill MACs, share of unpruned",
    "evidence_kept": "evidence tokens alive after the last station, share",
}


@dataclass(frozen=True)
class Mark:
    """One point of a curve; low and high are the interval of y where there is one."""

    x: float
    y: float
    low: float | None
    high: float | None
    row: Row


@dataclass(frozen=True)
class Series:
    """Marks of one method in order of x. `slot` numbers methods and controls apart: colour and marker follow it."""

    name: str
    control: bool
    slot: int
    marks: tuple[Mark, ...]


def name_of(row: Row) -> str:
    """What the points of one curve share."""
    parts = [row.get("pruner"), row.get("draft"), row.get("quantization")]
    return " + ".join(str(part) for part in parts if part) or str(row["point"])


def groups(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Curve name → rows, the baseline left out, methods before those that draft, and controls last: what a chart leaves
    out behind them changes no colour."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        if not row.get("baseline"):
            found.setdefault(name_of(row), []).append(row)
    return dict(sorted(found.items(), key=lambda item: (is_control(item[1][0]), bool(item[1][0].get("draft")))))


def is_control(row: Row) -> bool:
    return row.get("pruner") in CONTROLS


def all_series(rows: Sequence[Row], x: str, y: str = "accuracy") -> list[Series]:
    """Every curve with the marks whose x and y were measured; slots do not depend on what was measured."""
    made, slots = [], {True: 0, False: 0}
    for name, members in groups(rows).items():
        control = is_control(members[0])
        made.append(Series(name, control, slots[control], tuple(marks_of(members, x, y))))
        slots[control] += 1
    return made


def marks_of(rows: Sequence[Row], x: str, y: str) -> list[Mark]:
    marks = []
    for row in rows:
        if row.get(x) is not None and row.get(y) is not None:
            low, high = row.get(f"{y}_ci") or (None, None)
            marks.append(Mark(float(row[x]), float(row[y]), low, high, row))
    return sorted(marks, key=lambda mark: mark.x)


def of_kind(rows: Sequence[Row], kind: str) -> list[dict[str, Any]]:
    """The rows as if only questions of this kind had been asked."""
    empty = dict.fromkeys(("accuracy", "accuracy_ci", "delta", "delta_ci"))
    return [{**row, **empty, **(row.get("kinds") or {}).get(kind, {})} for row in rows]


def measure(rows: Sequence[Row], name: str) -> str:
    """Accuracy by its own name: where there are no answers it is agreement."""
    agrees = any(row.get("agreement") for row in rows)
    return name.replace("accuracy", "agreement").replace("Accuracy", "Agreement") if agrees else name


def baseline_of(rows: Sequence[Row]) -> Row | None:
    return next((row for row in rows if row.get("baseline")), None)


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers that cover low … high; about `count` of them."""
    span = (high - low) or abs(high) or 1.0
    high = low + span
    raw = span / max(count - 1, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999)
    first, last = int(low // step), int(-(-high // step))
    return [round(k * step, 10) for k in range(first, last + 1)]
