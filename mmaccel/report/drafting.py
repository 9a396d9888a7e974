"""The page's section on drafting: by kind of question what a head's drafts were worth, and how deep they were accepted.

Reads the rows' nested `drafting`. Every number stands beside the same point without the draft.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from mmaccel.measure.stats import TEMPLATED
from mmaccel.report.chart import chart, swatch
from mmaccel.report.headline import percent
from mmaccel.report.markup import Markup, tag
from mmaccel.report.pointrows import drafted_speed
from mmaccel.report.series import Mark, Row, Series

LEAD = (
    "tau: tokens a verification of the target, the one that follows the draft included; plain decoding has 1. Below "
    "the break-even tau drafting costs time. Speed-up: median of the paired end-to-end ratios to the same point "
    "without the draft. Entropy: of the target's law, nats a token; a workload below {limit} is templated, its words "
    "are nearly given, and its tau carries over to nothing."
)


def drafting_html(rows: Sequence[Row]) -> Markup:
    """Nothing where no point drafts."""
    drafted = [row for row in rows if row.get("drafting")]
    if not drafted:
        return Markup()
    head = tag("tr", *[tag("th", name) for name in ("point", "kind", *COLUMNS)])
    lines = [(row["point"], kind, part) for row in drafted for kind, part in parts(row)]
    body = [tag("tr", tag("th", point), tag("td", kind), *cells(part)) for point, kind, part in lines]
    table = tag("div", tag("table", tag("thead", head), tag("tbody", *body)), class_="scroll")
    lead = tag("p", LEAD.format(limit=TEMPLATED), class_="lead")
    return tag("section", tag("h2", "Drafting"), lead, *depths(drafted), table)


def parts(row: Row) -> list[tuple[str, Mapping[str, Any]]]:
    """(kind, numbers), longest answers first, all of them last."""
    kinds = row["drafting"].get("kinds") or {}
    ordered = sorted(kinds.items(), key=lambda item: -(item[1].get("tokens") or 0))
    return [*ordered, ("all", row["drafting"])]


def number(part: Mapping[str, Any], key: str, form: str, scale: float = 1.0) -> str:
    return "" if part.get(key) is None else format(scale * part[key], form)


COLUMNS = ("n", "tokens", "entropy", "tau", "break-even", "alpha", "speed-up by drafting", "same words %")


def cells(part: Mapping[str, Any]) -> list[Markup]:
    entropy = part.get("entropy")
    small = tag("small", "templated") if entropy is not None and entropy < TEMPLATED else None
    return [
        tag("td", number(part, "pairs", ".0f")),
        tag("td", number(part, "tokens", ".0f")),
        tag("td", number(part, "entropy", ".2f"), " ", small),
        tag("td", number(part, "tau", ".2f")),
        tag("td", number(part, "break_even", ".2f")),
        tag("td", number(part, "alpha", ".2f")),
        tag("td", drafted_speed(part)),
        tag("td", number(part, "identical", ".1f", 100)),
    ]


def depths(rows: Sequence[Row]) -> list[Markup]:
    """Share of the steps whose draft was accepted down to each depth, of the longest kind."""
    drawn, kind = [], parts(rows[0])[0][0]
    for slot, row in enumerate(rows):
        part = dict(parts(row)).get(kind) or {}
        marks = tuple(
            Mark(at + 1, share, None, None, {"point": row["point"], "kind": kind, "depth": at + 1, "share": share})
            for at, share in enumerate(part.get("accepted") or [])
        )
        if marks:
            drawn.append(Series(row["point"], False, slot, marks))
    if not drawn:
        return []
    keys = tag("div", *[tag("span", swatch(one), one.name) for one in drawn], class_="legend")
    label = f"depth of the draft ({kind})"
    picture = chart(drawn, None, label, describe=describe, y_label="steps accepted so far")
    return [keys, tag("div", tag("figure", picture), class_="charts one")]


def describe(row: Row) -> str:
    return f"{row['point']}\n{row['kind']}, depth {row['depth']}: {percent(row['share'])}"
