"""The points in the terminal: what was measured, in words where it was not resolved."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mmaccel.measure.stats import points, times, verdict
from mmaccel.report.series import Row, measure


def fitting(rows: Sequence[Row], console: Console) -> Table:
    """The table without its last columns where the terminal is too narrow for all."""
    for most in range(len(COLUMNS), 4, -1):
        table = points_table_rich(rows, most)
        free = console.options.update(max_width=10 * console.width)  # else the measure ends at the terminal
        if console.measure(table, options=free).maximum <= console.width:
            return table
    return points_table_rich(rows, 5)


def points_table_rich(rows: Sequence[Row], most: int | None = None) -> Table:
    """Columns nobody measured are left out; a cell that was not measured is empty. most: the first so many columns."""
    table = Table(title=None, header_style="bold", row_styles=["", "dim"] if len(rows) > 12 else None)
    columns = [column for column in COLUMNS[:most] if any(column[1](row) for row in rows)]
    for name, _ in columns:
        table.add_column(measure(rows, name), justify="left" if name == "point" else "right", no_wrap=name == "point")
    for row in rows:
        style = "bold" if row.get("baseline") else "red" if row.get("net_slower") else ""
        table.add_row(*[Text(value(row)) for _, value in columns], style=style)  # Text: a point's name is no markup
    return table


def number(key: str, form: str = ".0f", scale: float = 1.0):  # type: ignore[no-untyped-def]
    return lambda row: "" if row.get(key) is None else format(scale * row[key], form)


def accuracy(row: Row) -> str:
    if row.get("accuracy") is None:
        return ""
    text = f"{100 * row['accuracy']:.1f}"
    if row.get("accuracy_ci"):
        text += f" [{100 * row['accuracy_ci'][0]:.1f}, {100 * row['accuracy_ci'][1]:.1f}]"
    return text


def delta(row: Row) -> str:
    if row.get("refused"):
        return verdict(row)
    if row.get("baseline") or row.get("delta") is None:
        return "baseline" if row.get("baseline") else ""
    said = verdict(row)
    return f"{points(row['delta'])}, {said}" if said.startswith("not resolved") else said.replace(" points", "")


def speed(row: Row) -> str:
    if row.get("speedup_e2e") is None:
        return ""
    pair = row.get("speedup_e2e_ci")
    text = f"{times(row['speedup_e2e'])}×" + (f" [{times(pair[0])}, {times(pair[1])}]" if pair else "")
    return text + (" net slower" if row.get("net_slower") else "")


COLUMNS = (
    ("point", lambda row: str(row["point"])),
    ("n", number("n")),
    ("errors", lambda row: str(row["errors"]) if row.get("errors") else ""),
    ("accuracy %", accuracy),
    ("Δ points", delta),
    ("read %", lambda row: "" if row.get("parsed_rate") in (None, 1.0) else f"{100 * row['parsed_rate']:.0f}"),
    ("speed-up", speed),
    ("e2e ms", number("e2e_ms_p50")),
    ("ttft ms", number("ttft_ms_p50")),
    ("tpot ms", number("tpot_ms_p50", ".1f")),
    ("visual", number("mean_visual")),
    ("KV", number("kv_fraction", ".2f")),
    ("MACs", number("mac_fraction", ".2f")),
    ("tau", number("tau", ".2f")),
    ("McNemar p", number("mcnemar_p", ".2g")),
)
