"""The page's chart of accuracy against the share of evidence tokens that a method left.

Reads the rows of measure/survival.py as marks of the same curves as everywhere. A merging control has no such share.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from mmaccel.measure.survival import by_survival
from mmaccel.report.chart import chart, swatch
from mmaccel.report.headline import percent
from mmaccel.report.markup import Markup, tag
from mmaccel.report.pointrows import accuracy
from mmaccel.report.series import Row, Series, all_series, groups, marks_of


def survival_table(rows: Sequence[Row], records: Sequence[Mapping[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Curve name → rows by share of the evidence left."""
    methods = {name: [row["point"] for row in members] for name, members in groups(rows).items()}
    return by_survival(records, methods)


def survival_html(rows: Sequence[Row], table: Mapping[str, Sequence[Mapping[str, Any]]]) -> Markup:
    """Nothing where no curve lost part of any evidence."""
    drawn = [
        Series(one.name, one.control, one.slot, tuple(marks_of(table[one.name], "share", "accuracy")))
        for one in all_series(rows, "accuracy")
        if len(table.get(one.name, ())) > 1
    ]
    if not drawn:
        return Markup()
    keys = tag("div", *[tag("span", swatch(one), one.name) for one in drawn], class_="legend")
    picture = chart(drawn, None, "evidence tokens left after the last station, share", describe=describe)
    lead = "Answers by how many of the question's evidence tokens were left, each curve's points taken together: none, "
    lead += (
        "up to a quarter, a half, three quarters, nearly all, all. Where much is left the ratio was mostly small, so "
    )
    lead += "a curve shows what goes with what, not what causes what."
    head = tag("tr", *[tag("th", name) for name in ("", "evidence left", "answers", "accuracy %")])
    body = [line(one.name, row) for one in drawn for row in table[one.name]]
    numbers = tag("div", tag("table", tag("thead", head), tag("tbody", *body)), class_="scroll")
    shown = tag("details", tag("summary", "The numbers"), numbers)
    figure = tag("div", tag("figure", picture), class_="charts one")
    return tag("section", tag("h2", "By surviving evidence"), tag("p", lead, class_="lead"), keys, figure, shown)


def line(name: str, row: Mapping[str, Any]) -> Markup:
    return tag("tr", tag("th", name), tag("td", row["left"]), tag("td", row["n"]), tag("td", accuracy(row)))


def describe(row: Row) -> str:
    return f"evidence left: {row['left']}\naccuracy {percent(row['accuracy'])}\n{row['n']} answers"
