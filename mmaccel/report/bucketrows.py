"""The page's table of accuracy by what the pictures are like: points down, buckets across.

Reads the rows' nested `buckets`. A bucket is a third of the samples, so most deltas in it are not resolved, and say so.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from mmaccel.measure.stats import times
from mmaccel.report.markup import Markup, tag
from mmaccel.report.pointrows import accuracy, delta
from mmaccel.report.series import Row


def buckets_html(rows: Sequence[Row]) -> Markup:
    """Nothing where no fact of the pictures tells two of them apart."""
    columns = columns_of(rows)
    if not columns:
        return Markup()
    spans = [(fact, sum(name == fact for name, _ in columns)) for fact in dict(columns)]
    facts = [tag("th", f"{fact}{UNITS.get(fact, '')}", colspan=count, class_="group") for fact, count in spans]
    head = [tag("tr", tag("th", ""), *facts), tag("tr", tag("th", "point"), *[tag("th", name) for _, name in columns])]
    counts = [tag("td", count_of(rows, *column), class_="muted") for column in columns]
    body = [tag("tr", tag("th", "samples", class_="muted"), *counts)]
    body += [tag("tr", tag("th", row["point"]), *[cell(row, *column) for column in columns]) for row in rows]
    table = tag("div", tag("table", tag("thead", *head), tag("tbody", *body)), class_="scroll")
    lead = "Accuracy [%], the paired difference to the baseline in points and the speed-up, on thirds of this run's "
    lead += "samples, and by the complexity that the benchmark says; "
    lead += "a\u00a0–\u00a0b is above a, up to b. Size: the longer side. Sharpness: variance of the Laplacian. "
    lead += "Edge density: share of neighbouring pixels with a step between them."
    return tag("section", tag("h2", "By picture"), tag("p", lead, class_="lead"), table)


UNITS = {"size": " [px]"}


def columns_of(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """(fact, label) in order; labels a point has no sample in are another point's."""
    found: dict[str, dict[str, None]] = {}
    for row in rows:
        for fact, parts in (row.get("buckets") or {}).items():
            found.setdefault(fact, {}).update(dict.fromkeys(parts))
    return [(fact, label) for fact, parts in found.items() for label in parts]


def part_of(row: Row, fact: str, label: str) -> Mapping[str, Any]:
    return ((row.get("buckets") or {}).get(fact) or {}).get(label) or {}


def count_of(rows: Sequence[Row], fact: str, label: str) -> str:
    return f"n = {max(part_of(row, fact, label).get('n', 0) for row in rows)}"


def cell(row: Row, fact: str, label: str) -> Markup:
    """Three lines: accuracy and difference, the difference's interval or verdict, the speed-up; of the baseline its own
    interval."""
    part = part_of(row, fact, label)
    if part.get("delta") is None:
        return tag("td", accuracy(part))
    faster = part.get("speedup")
    time = tag("small", f"{times(faster)}×{span_of(part.get('speedup_ci'))}") if faster is not None else None
    return tag("td", tag("span", f"{100 * part['accuracy']:.1f} ", class_="muted"), delta(part), time)


def span_of(pair: Any) -> str:
    return f" [{times(pair[0])}, {times(pair[1])}]" if pair else ""
