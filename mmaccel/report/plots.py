"""The figures on disk: accuracy with intervals against time, tokens, KV and MACs, as PNG and SVG for papers.

Drawn without a display and without pyplot's global state, so it can run beside anything.
"""

from collections.abc import Sequence
from pathlib import Path

from mmaccel.report.markup import clean
from mmaccel.report.series import AXES, Row, Series, all_series, baseline_of, marks_of

METHODS = ("#2a6fc9", "#d9622b", "#178a5e", "#8a52c4", "#b7860b", "#c8487f")
MARKERS = ("o", "s", "^", "D", "P")
STYLE = {
    "font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.color": "#e6e6e3",
    "axes.axisbelow": True, "axes.edgecolor": "#8a8a85", "svg.fonttype": "none", "svg.hashsalt": "mmaccel",
    "legend.frameon": False,
}  # fmt: skip


def write_figures(rows: Sequence[Row], folder: Path) -> list[Path]:
    """accuracy_<axis>.png and .svg for every axis that was measured."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for axis, label in AXES.items():
        series = [one for one in all_series(rows, axis) if one.marks]
        if not series:
            continue
        with mpl.rc_context(STYLE):  # type: ignore[arg-type]
            figure = Figure(figsize=(4.6, 3.1), dpi=200, layout="constrained")
            FigureCanvasAgg(figure)
            draw(figure.add_subplot(), series, baseline_of(rows), axis, label)
            for ending, extra in (("png", {"Software": None}), ("svg", {"Date": None})):
                written.append(folder / f"accuracy_{axis}.{ending}")
                figure.savefig(written[-1], metadata=extra)
    return written


def draw(axes, series: Sequence[Series], baseline: Row | None, axis: str, label: str) -> None:  # type: ignore[no-untyped-def]
    for one in series:
        colour = "#85857f" if one.control else METHODS[one.slot % len(METHODS)]
        x, y = [mark.x for mark in one.marks], [100 * mark.y for mark in one.marks]
        spread = [[100 * (mark.y - mark.low) if mark.low is not None else 0 for mark in one.marks],
                  [100 * (mark.high - mark.y) if mark.high is not None else 0 for mark in one.marks]]  # fmt: skip
        axes.errorbar(
            x, y, yerr=spread, color=colour, linewidth=1.1 if one.control else 1.8, elinewidth=0.8,
            linestyle=(0, (4, 2.5)) if one.control else "-", markersize=4, label=literal(one.name),
            marker=MARKERS[(one.slot + one.control) % len(MARKERS)], zorder=2 if one.control else 3,
        )  # fmt: skip
    for mark in marks_of([baseline], axis, "accuracy") if baseline else []:
        axes.axhline(100 * mark.y, color="#3a3a37", linewidth=0.9, linestyle=":", zorder=1)
        name = literal(mark.row["point"])
        axes.plot([mark.x], [100 * mark.y], "*", color="#1d1d1b", markersize=9, label=name, zorder=4)
    axes.set_xlabel(label)
    axes.set_ylabel("accuracy [%]")
    axes.legend(fontsize=8)


def literal(text: str) -> str:
    """No math mode, no hidden legend entry: a name is a name."""
    whole = clean(text)
    safe = (whole if len(whole) <= 48 else whole[:47] + "…").replace("$", r"\$")  # a legend must leave room to draw
    return f"\u200b{safe}" if safe.startswith("_") else safe
