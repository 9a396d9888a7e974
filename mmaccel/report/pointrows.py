"""The points table of the page, and a point in a few lines for a chart's hover text.

A column nobody measured is left out and named below; a cell that was not measured is empty.
"""

from collections.abc import Callable, Sequence
from typing import Any

from mmaccel.measure.stats import points, resolved, speed_verdict, times, verdict
from mmaccel.report.headline import percent
from mmaccel.report.markup import Markup, tag
from mmaccel.report.series import Row, measure

Cell = Callable[[Row], "Markup | str"]


def describe(row: Row) -> str:
    """Hover text: name, accuracy, verdict, speed, tokens."""
    lines = [str(row["point"]), f"accuracy {percent(row.get('accuracy'))}{interval_text(row.get('accuracy_ci'))}"]
    if not row.get("baseline"):
        lines += [f"Δ {verdict(row)}", f"time {speed_verdict(row)}"]
    if row.get("mean_visual") is not None:
        lines.append(f"{row['mean_visual']:.0f} visual tokens per layer")
    return "\n".join(lines)


def interval_text(pair: Any) -> str:
    return f" [{100 * pair[0]:.1f}, {100 * pair[1]:.1f}]" if pair else ""


def points_html(rows: Sequence[Row]) -> Markup:
    filled = [(name, cell) for name, cell in COLUMNS if any(cell(row) for row in rows)]
    silent = {"errors", *ROTATED} | (set() if any(row.get("drafting") for row in rows) else set(DRAFTING))
    missing = [name for name, cell in COLUMNS if name not in silent and not any(cell(row) for row in rows)]
    head = tag("tr", tag("th", "point"), *[tag("th", measure(rows, name)) for name, _ in filled])
    body = [tag("tr", tag("th", row["point"]), *[tag("td", cell(row)) for _, cell in filled]) for row in rows]
    table = tag("table", tag("thead", head), tag("tbody", *body))
    lead = "Speed-up: median over samples of the paired end-to-end ratio. Kept: visual tokens after the last station. "
    lead += "Lost: answers that the baseline has right and this point wrong; gained: the other way. "
    lead += "An empty cell was not measured: p95 needs 20 requests, p99 100. Of a point that drafts, speed-up by "
    lead += "drafting and same words are against the same point without the draft; below its break-even tau drafting "
    lead += "costs time."
    note = tag("p", f"Not measured in this run: {', '.join(missing)}.", class_="lead muted") if missing else Markup()
    return tag(
        "section", tag("h2", "Points"), tag("p", lead, class_="lead"), tag("div", table, class_="scroll"), note
    )  # fmt: skip


def number(key: str, form: str = ".0f", scale: float = 1.0) -> Cell:
    return lambda row: "" if row.get(key) is None else format(scale * row[key], form)


def accuracy(row: Row) -> Markup | str:
    if row.get("accuracy") is None:
        return ""
    return tag("span", f"{100 * row['accuracy']:.1f}", tag("small", interval_text(row.get("accuracy_ci")).strip()))


def delta(row: Row) -> Markup | str:
    if row.get("refused"):
        return tag("span", tag("small", verdict(row)))
    if row.get("delta") is None:
        return ""
    shown, said = points(row["delta"]), verdict(row)
    if not resolved(row):
        return tag("span", shown, tag("small", said))
    low, high = row["delta_ci"]
    small = tag("small", f"[{points(low)}, {points(high)}]")
    return tag("span", shown, small, class_="loss" if row["delta"] < 0 else "gain")


def speed(row: Row) -> Markup | str:
    if row.get("speedup_e2e") is None:
        return ""
    pair = row.get("speedup_e2e_ci")
    small = f"[{times(pair[0])}, {times(pair[1])}]" if pair else ""
    tone = "loss" if row.get("net_slower") else "gain" if pair and pair[0] > 1 else None
    words = tag("small", "net slower") if row.get("net_slower") else None
    return tag("span", f"{times(row['speedup_e2e'])}×", tag("small", small), words, class_=tone)


def drafted_speed(part: Row) -> Markup | str:
    """Against the same point without a draft."""
    pair = part.get("speedup_ci")
    return speed({"speedup_e2e": part.get("speedup"), "speedup_e2e_ci": pair, "net_slower": pair and pair[1] < 1})


def errors(row: Row) -> str:
    return str(row["errors"]) if row.get("errors") else ""


ROTATED = ("vanilla %", "groups cut off")  # of benchmarks that ask a question in all rotations of its options
DRAFTING = ("break-even tau", "speed-up by drafting", "same words %")
COLUMNS: tuple[tuple[str, Cell], ...] = (
    ("n", number("n")),
    ("errors", errors),
    ("accuracy %", accuracy),
    ("Δ points", delta),
    ("speed-up", speed),
    ("e2e ms", number("e2e_ms_p50")),
    ("lost", number("lost")),
    ("gained", number("gained")),
    ("McNemar p", number("mcnemar_p", ".2g")),
    ("vanilla %", number("vanilla", ".1f", 100)),
    ("groups cut off", lambda row: str(row["incomplete"]) if row.get("incomplete") else ""),
    ("visual / layer", number("mean_visual", ".1f")),
    ("KV %", number("kv_fraction", ".1f", 100)),
    ("MACs %", number("mac_fraction", ".1f", 100)),
    ("kept %", number("kept_fraction", ".1f", 100)),
    ("evidence %", number("evidence_kept", ".0f", 100)),
    ("parsed %", number("parsed_rate", ".0f", 100)),
    ("prefill speed-up", number("speedup_prefill", ".2f")),
    ("e2e p99", number("e2e_ms_p99")),
    ("ttft ms", number("ttft_ms_p50")),
    ("ttft p95", number("ttft_ms_p95")),
    ("ttft p99", number("ttft_ms_p99")),
    ("ttft jitter", number("ttft_jitter", ".2f")),
    ("itl ms", number("itl_ms_p50", ".1f")),
    ("itl p99", number("itl_ms_p99", ".1f")),
    ("tpot ms", number("tpot_ms_p50", ".1f")),
    ("tokens/s", number("tokens_per_s", ".1f")),
    ("tau", number("tau", ".2f")),
    ("break-even tau", lambda row: number("break_even", ".2f")(row.get("drafting") or {})),
    ("alpha", number("alpha", ".2f")),
    ("speed-up by drafting", lambda row: drafted_speed(row.get("drafting") or {})),
    ("same words %", lambda row: number("identical", ".1f", 100)(row.get("drafting") or {})),
    ("peak MB", number("peak_mb")),
)
