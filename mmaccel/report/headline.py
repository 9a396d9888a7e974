"""What a sweep says, in sentences: the point to use, where accuracy falls, whether it beats its controls, speed.

Every sentence rests on an interval; where an interval holds 0 the sentence says "not resolved", never "no loss".
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmaccel.measure.estimates import Estimate, paired_interval
from mmaccel.measure.scores import differences, one_scale
from mmaccel.measure.stats import TEMPLATED, points, resolved, speed_verdict
from mmaccel.report.series import Row, groups, is_control, name_of

MATCHED = 0.06  # a control stands at the method's budget when their mean visual tokens differ by less than this share


@dataclass(frozen=True)
class Finding:
    """title: two or three words; text: the sentences. tone: good, bad or plain."""

    title: str
    text: str
    tone: str = "plain"


def headline(rows: Sequence[Row], records: Sequence[Mapping[str, Any]]) -> list[Finding]:
    every, rows = rows, [row for row in rows if not row.get("draft")]  # a draft changes no accuracy: it has its own
    methods = {name: members for name, members in groups(rows).items() if not is_control(members[0])}
    found = [best(rows)] if methods else []
    found += [cliff(name, members) for name, members in methods.items()]
    found += [versus(name, members, rows, records) for name, members in methods.items()]
    return [*found, *drafts(every), *slower(rows), *failed(every)]


def best(rows: Sequence[Row]) -> Finding:
    """The cheapest point whose loss is not resolved: by measured time, where there is none by MACs, then tokens."""
    inside = [row for row in rows if not row.get("baseline") and not is_control(row) and resolved(row) is False]
    inside += [row for row in rows if not is_control(row) and resolved(row) and (row.get("delta") or 0) > 0]
    if not inside:
        own = [row for row in rows if not row.get("baseline") and not is_control(row)]
        if all(resolved(row) for row in own):
            return Finding("No free point", "Every point of the method is resolved below the baseline.", "bad")
        few = max((row.get("pairs") or 0 for row in own), default=0)
        if few and not any(row.get("refused") for row in own):
            return Finding("Too few samples", f"An interval needs more than the {few} that were scored on both sides.")
        if all(row.get("accuracy") is None for row in rows):
            return Finding("No scores", "Nothing in this run could be right or wrong: it measures time and tokens.")
        return Finding("Nothing to choose", "No point of the method could be compared with the baseline.", "bad")
    row = max(inside, key=saving)
    text = f"{row['point']}: accuracy {percent(row['accuracy'])}, {points(row['delta'])} points from the baseline"
    if resolved(row):
        text += f" {interval(row['delta_ci'])}, a resolved gain."
    else:
        text += f", not resolved at n = {row.get('pairs') or row['n']}; {excluded(row)}"
    text += f" Time: {speed_verdict(row)}." if row.get("speedup_e2e") is not None else " Time was not measured."
    return Finding("Best point not resolved from the baseline", text, "bad" if row.get("net_slower") else "good")


def saving(row: Row) -> tuple[float, float, float]:
    return (row.get("speedup_e2e") or 0.0, -(row.get("mac_fraction") or 1.0), -(row.get("mean_visual") or 0.0))


def excluded(row: Row) -> str:
    low = row["delta_ci"][0]
    return f"a loss of up to {100 * -low:.1f} points is not excluded." if low < 0 else "a loss is excluded."


def cliff(name: str, rows: Sequence[Row]) -> Finding:
    """The steepest fall between neighbours in budget, and the first resolved loss."""
    line = sorted((row for row in rows if row.get("accuracy") is not None), key=budget, reverse=True)
    lost = [row for row in line if resolved(row) and row["delta"] < 0]
    if not lost:
        text = f"No point of {name} is resolved below the baseline; the sweep ends before a cliff, or n is too small."
        return Finding("No cliff in this sweep", text)
    first = lost[0]
    text = f"First resolved loss of {name}: {first['point']}, "
    text += f"{points(first['delta'])} points {interval(first['delta_ci'])}."
    falls = [(before["accuracy"] - after["accuracy"], before, after) for before, after in itertools.pairwise(line)]
    if falls and (steepest := max(falls, key=lambda fall: fall[0]))[0] > 0:
        text += f" Steepest fall: {100 * steepest[0]:.1f} points from {steepest[1]['point']} to {steepest[2]['point']}."
    return Finding("Where the cliff is", text)


def budget(row: Row) -> float:
    return row["mean_visual"] if row.get("mean_visual") is not None else -(row.get("ratio") or 0.0)


def versus(name: str, rows: Sequence[Row], every: Sequence[Row], records: Sequence[Mapping[str, Any]]) -> Finding:
    """Each control against the method's point at the same measured budget, paired by sample."""
    good = one_scale(records)
    scores = {row["point"]: [r for r in good if r["point"] == row["point"]] for row in every}
    gaps: dict[str, list[Estimate]] = {}
    for control in every:
        rival = matched(control, rows)
        fair = rival is not None and not control.get("refused") and not rival.get("refused")
        if rival is not None and fair and control.get("pruner") != "keep_all":
            mine, other = scores[rival["point"]], scores[control["point"]]
            gap = paired_interval(differences(mine, other))  # above 0: the method is better
            gaps.setdefault(name_of(control), []).append(gap)
    if not gaps:
        text = f"No control stands at a budget of {name}; without random tokens beside it a curve says little."
        return Finding("No controls", text, "bad")
    text = f"At the same measured tokens {name} is " + "; ".join(against(c, found) for c, found in gaps.items()) + "."
    every_gap = [gap.interval or (0.0, 0.0) for found in gaps.values() for gap in found]
    if any(high < 0 for _, high in every_gap):
        return Finding("A control beats the method", text, "bad")
    return Finding("No control beats the method", text, "good" if any(low > 0 for low, _ in every_gap) else "plain")


def against(control: str, gaps: Sequence[Estimate]) -> str:
    """ "above random at 3 of 4 budgets (by 6.2 to 15.8 points), not resolved at 1"."""
    parts = []
    for word, sign in (("above", 1.0), ("below", -1.0)):
        sure = [gap for gap in gaps if gap.interval and min(sign * end for end in gap.interval) > 0]
        by = [100 * sign * (gap.value or 0.0) for gap in sure]
        if by:
            size = f"{min(by):.1f}" if len(by) == 1 else f"{min(by):.1f} to {max(by):.1f}"
            parts.append(f"resolved {word} {control} at {len(by)} of {len(gaps)} budgets (by {size} points)")
    open_ones = len([gap for gap in gaps if not gap.interval or gap.interval[0] <= 0 <= gap.interval[1]])
    if open_ones:
        parts.append(f"not resolved at {open_ones}" if parts else f"not resolved from {control} at any budget")
    return ", ".join(parts)


def matched(control: Row, rows: Sequence[Row]) -> Row | None:
    """The method's point nearest to the control in mean visual tokens, when that is near."""
    mean = control.get("mean_visual")
    near = [row for row in rows if row.get("mean_visual") is not None]
    if not is_control(control) or mean is None or not near:
        return None
    row = min(near, key=lambda row: abs(row["mean_visual"] - mean))
    return row if abs(row["mean_visual"] - mean) <= MATCHED * max(mean, row["mean_visual"]) else None


def drafts(rows: Sequence[Row]) -> list[Finding]:
    """Per head what drafting gained over the same points without it, on the longest answers and on the others, and
    whether the words stayed the same."""
    found = []
    for name in dict.fromkeys(row["draft"] for row in rows if row.get("draft")):
        mine = [row for row in rows if row.get("draft") == name]
        kind = longest(mine)
        parts = [(row, part_of(row, kind)) for row in mine]
        text = "; ".join(f"{row['point']}: {drafted(part)}" for row, part in parts) + "."
        text = f"{kind} answers: {text}{rest(mine, kind)}" if kind else text
        entropy = parts[0][1].get("entropy")
        if entropy is not None and entropy < TEMPLATED:
            text += f" The words are templated ({entropy:.2f} nats a token): no headline for other texts."
        same = [(row["point"], row["drafting"].get("identical")) for row in mine]
        differ = [point for point, share in same if share is not None and share < 1.0]
        if differ:
            text += f" The words are not always those without the draft at {listed(differ)}."
        ends = [part.get("speedup_ci") or (1.0, 1.0) for _, part in parts]
        lost, gains = [high < 1.0 for _, high in ends], [low > 1.0 for low, _ in ends]
        tone = "bad" if differ or all(lost) else "good" if any(gains) else "plain"
        found.append(Finding(f"Drafting with {name}", text, tone))
    return found


def part_of(row: Row, kind: str | None) -> Mapping[str, Any]:
    whole = row["drafting"]
    return (whole.get("kinds") or {}).get(kind) or whole


def longest(rows: Sequence[Row]) -> str | None:
    """The kind of question whose answers are longest; None where there is one kind."""
    kinds = {kind: part for row in rows for kind, part in (row["drafting"].get("kinds") or {}).items()}
    return max(kinds, key=lambda kind: kinds[kind].get("tokens") or 0.0) if kinds else None


def rest(rows: Sequence[Row], kind: str) -> str:
    """The slowest and the fastest of the other kinds, over all points."""
    others = [
        part["speedup"]
        for row in rows
        for name, part in (row["drafting"].get("kinds") or {}).items()
        if name != kind and part.get("speedup") is not None
    ]
    return f" Other kinds: {min(others):.2f}× to {max(others):.2f}×." if others else ""


def drafted(part: Mapping[str, Any]) -> str:
    if part.get("speedup") is None:
        return "not timed" if part.get("tau") is None else f"tau {part['tau']:.2f}, not timed"
    said = f"{part['speedup']:.2f}×"
    if part.get("speedup_ci"):
        said += f" [{part['speedup_ci'][0]:.2f}, {part['speedup_ci'][1]:.2f}]"
    if part.get("tau") is not None and part.get("break_even") is not None:
        said += f" at tau {part['tau']:.2f} (pays above {part['break_even']:.2f})"
    return said


def slower(rows: Sequence[Row]) -> list[Finding]:
    names = [row["point"] for row in rows if row.get("net_slower")]
    if not names:
        return []
    return [Finding("Net slower", f"The interval of the end-to-end speed-up lies below 1 for {listed(names)}.", "bad")]


def failed(rows: Sequence[Row]) -> list[Finding]:
    counts = [f"{row['point']} ({row['errors']})" for row in rows if row.get("errors")]
    if not counts:
        return []
    return [Finding("Errors", f"Some requests failed and are left out of every number: {listed(counts)}.", "bad")]


def interval(pair: Sequence[float]) -> str:
    return f"[{points(pair[0])}, {points(pair[1])}]"


def percent(share: float | None) -> str:
    return "not measured" if share is None else f"{100 * share:.1f} %"


def listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
