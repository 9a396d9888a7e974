"""The page's table of accuracy by kind of question: points down, kinds across, the share of readable replies beside.

Reads the rows' nested `kinds`. One kind makes no table: its numbers are the points' own.
"""

from collections.abc import Sequence
from typing import Any

from mmaccel.report.markup import Markup, tag
from mmaccel.report.pointrows import accuracy, delta
from mmaccel.report.series import Row


def kinds_table(rows: Sequence[Row]) -> Markup:
    names = list(dict.fromkeys(kind for row in rows for kind in row.get("kinds") or {}))
    if len(names) < 2:
        return Markup()
    head = tag("tr", tag("th", "point"), *[tag("th", name or "no kind") for name in names])
    counts = [tag("td", f"n = {max(part_of(row, name).get('n', 0) for row in rows)}", class_="muted") for name in names]
    body = [tag("tr", tag("th", "samples", class_="muted"), *counts)]
    body += [tag("tr", tag("th", row["point"]), *[tag("td", cell(row, name)) for name in names]) for row in rows]
    lead = "Accuracy [%] with the paired difference to the baseline; read: the share of replies in which an answer was "
    lead += "found, where it is not all of them. A reply that cannot be read is wrong."
    table = tag("div", tag("table", tag("thead", head), tag("tbody", *body)), class_="scroll")
    return tag("details", tag("summary", "Table by kind"), tag("p", lead, class_="lead"), table)


def part_of(row: Row, name: str) -> dict[str, Any]:
    return (row.get("kinds") or {}).get(name) or {}


def cell(row: Row, name: str) -> Markup:
    part = part_of(row, name)
    if part.get("accuracy") is None:
        return Markup()
    read = part.get("parsed_rate")
    unread = tag("small", f"read {100 * read:.0f} %") if read is not None and read < 1 else None
    if part.get("delta") is None:
        return tag("span", accuracy(part), unread)
    return tag("span", tag("span", f"{100 * part['accuracy']:.1f} ", class_="muted"), delta(part), unread)
