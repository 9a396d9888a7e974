"""Figures of the timing studies, PNG and SVG. Knows rows of numbers; does not know how they were measured."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any


def efficiency_figure(rows: Sequence[dict[str, Any]], folder: Path, *, target: float) -> None:
    """efficiency over decoder width, one line a drop ratio, with the target."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
    ratios = sorted({row["ratio"] for row in rows})
    shades = plt.get_cmap("viridis")
    for place, ratio in enumerate(ratios):
        line = sorted((row for row in rows if row["ratio"] == ratio), key=lambda row: row["width"])
        color = shades(place / max(1, len(ratios) - 1) * 0.85)
        widths = [row["width"] for row in line]
        axes.plot(widths, [row["efficiency"] for row in line], "o-", color=color, label=f"{ratio:.0%} dropped")
        if all(row["low"] is not None for row in line):  # too few rounds have no interval
            low, high = ([row[side] for row in line] for side in ("low", "high"))
            axes.fill_between(widths, low, high, color=color, alpha=0.15)
    axes.axhline(target, color="grey", linestyle="--", linewidth=1)
    axes.set_xscale("log", base=2)
    axes.set_xlabel("decoder width")
    axes.set_ylabel("share of saved MACs the clock shows")
    axes.legend(frameon=False)
    for suffix in ("png", "svg"):
        figure.savefig(folder / f"figure.{suffix}", dpi=160)
    plt.close(figure)
