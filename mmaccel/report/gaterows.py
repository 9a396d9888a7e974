"""The page's section on the input gate: what was flagged by which rule, and what that saved.

Reads quality.json and contact_sheet.png of a run folder; a run without a gate has neither.
"""

from collections.abc import Mapping
from typing import Any

from mmaccel.report.markup import Markup, tag

NAMED = 3


def gate_html(quality: Mapping[str, Any], sheet: Markup | None) -> Markup:
    if not quality:
        return Markup()
    head = tag("tr", *[tag("th", name) for name in ("rule", "threshold", "flagged", "share", "worst")])
    body = [rule_row(name, rule) for name, rule in quality["rules"].items()]
    table = tag("div", tag("table", tag("thead", head), tag("tbody", *body)), class_="scroll")
    lead = f"Looked at before the model was loaded: {quality['size']} samples, {quality['flagged']} flagged, "
    lead += "which were not asked. " if quality["action"] == "drop" else "and asked all the same. "
    lead += saved(quality.get("saved") or {})
    return tag("section", tag("h2", "Input gate"), tag("p", lead, class_="lead"), table, sheet)


def rule_row(name: str, rule: Mapping[str, Any]) -> Markup:
    worst = ", ".join(example(one) for one in rule["examples"][:NAMED])
    threshold = "" if rule["threshold"] is None else f"{rule['threshold']:g}"
    cells = (threshold, rule["count"], f"{100 * rule['share']:.1f} %", worst)
    return tag("tr", tag("th", name), *[tag("td", cell) for cell in cells])


def example(one: Mapping[str, Any]) -> str:
    value = "" if one.get("value") is None else f" ({one['value']:.4g})"
    return f"{one['id']}{value}"


def saved(costs: Mapping[str, Any]) -> str:
    """What the dropped would have cost, estimated from those that were asked."""
    if not costs.get("samples") or costs.get("visual_tokens") is None:
        return ""
    words = f"At the mean of the samples that were asked, the baseline was spared {costs['visual_tokens']:,.0f} visual "
    words += f"tokens, {costs['prefill_macs'] / 1e9:,.1f} GMACs of prefill"
    if costs.get("e2e_ms") is not None:
        words += f" and {costs['e2e_ms'] / 1e3:,.1f} s"
    return f"{words}; the other points were spared what a sample costs them."
