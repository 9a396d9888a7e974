"""The page's table of a benchmark's own scores, and the same in the terminal: points down, scores across.

Reads the rows' nested `official`. A benchmark without any has no such table.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from mmaccel.report.markup import Markup, tag
from mmaccel.report.series import Row

NAMED = 6  # scores that the terminal has room for
Score = Mapping[str, Any]


def official_html(rows: Sequence[Row]) -> Markup:
    names = names_of(rows)
    if not names:
        return Markup()
    head = tag("tr", tag("th", "point"), *[tag("th", name) for name in names])
    body = [tag("tr", tag("th", row["point"]), *[tag("td", cell(row, name)) for name in names]) for row in rows]
    table = tag("div", tag("table", tag("thead", head), tag("tbody", *body)), class_="scroll")
    lead = "As the benchmark itself counts, on its own scale: the score, and below it the difference to the baseline "
    lead += "with a 95 % bootstrap interval over what is scored together. A difference whose interval holds 0 is not "
    lead += "resolved."
    return tag("section", tag("h2", "The benchmark's own scores"), tag("p", lead, class_="lead"), table)


def official_rich(rows: Sequence[Row]) -> Table | None:
    names = names_of(rows)
    if not names:
        return None
    more = f", {len(names) - NAMED} more on the page" if len(names) > NAMED else ""
    names = names[:NAMED]
    table = Table(title=f"the benchmark's own scores{more}", header_style="bold")
    table.add_column("point", no_wrap=True)
    for name in names:
        table.add_column(Text(name), justify="right")
    for row in rows:
        words = [" ".join(part for part in words_of(score_of(row, name)) if part) for name in names]
        table.add_row(Text(str(row["point"])), *map(Text, words))
    return table


def names_of(rows: Sequence[Row]) -> list[str]:
    """Of the scores that some point has."""
    scores = (score for row in rows for score in (row.get("official") or {}).items())
    return list(dict.fromkeys(name for name, score in scores if score.get("value") is not None))


def score_of(row: Row, name: str) -> Score:
    return (row.get("official") or {}).get(name) or {}


def words_of(score: Score) -> tuple[str, str]:
    """(the value, its difference to the baseline)."""
    if score.get("value") is None:
        return "", ""
    value = shown(score["value"])
    if score.get("delta") is None or not score.get("delta_ci"):
        return value, ""
    low, high = score["delta_ci"]
    return value, f"{signed(score['delta'])} [{signed(low)}, {signed(high)}]"


def cell(row: Row, name: str) -> Markup | str:
    score = score_of(row, name)
    value, difference = words_of(score)
    if not difference:
        return value
    return tag("span", value, tag("small", difference))  # no colour: of some scores less is better, of some nothing


def shown(value: float) -> str:
    """Four digits where there are so many; counts and scores on a large scale without decimals they do not have."""
    return f"{value:.0f}" if float(value).is_integer() and abs(value) >= 2 else f"{value:.4g}"


def signed(value: float) -> str:
    return f"{value:+.3g}".replace("-", "−")
