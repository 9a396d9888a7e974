"""A W&B Report of a finished sweep: findings as text, Pareto, curves, acceptance, parallel coordinates, samples.

Knows wandb-workspaces (the extra mmaccel[report], imported when a Report is made) and how measure/tracker.py names
runs, groups and keys. Does not upload a run: its panels show what a push has brought to the server. The Report's
address is kept in wandb/report.json, and the next call updates that one.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmaccel.measure.record import write_atomic
from mmaccel.measure.tracker import CURVES, series, text, whole
from mmaccel.report.markdown import Sweep, write_markdown
from mmaccel.report.series import Row

WIDE, HALF, HIGH = 24, 12, 10  # of W&B's panel grid
AXES = ("mean_visual", "kv_fraction", "mac_fraction", "e2e_ms_p50", "speedup_e2e", "tau", "accuracy")


def write_wandb_report(folder: Path, *, entity: str | None, project: str, group: str) -> str:
    """The Report's address. report.md, its twin on the disk, is written first and stays whatever goes wrong.

    group: of the sweep's runs, as the tracker made it.
    """
    sweep = Sweep.read(folder)
    twin = write_markdown(sweep)
    if not entity:
        raise ValueError(f"tracker.entity: a value is needed, the user or team that owns the Report; {twin} is written")
    wr = library()
    try:
        link = saved(wr, folder, report(wr, sweep, entity, project, group))
    except Exception as error:  # whatever the library or the network raises; the sweep is on the disk
        why = " ".join(str(error).split())[:300] or type(error).__name__
        raise ConnectionError(f"W&B: no Report was saved in {entity}/{project}: {why}; {twin} says the same") from error
    write_markdown(sweep, link)
    return link


def library() -> Any:
    try:
        import wandb_workspaces.reports.v2 as wr
    except ImportError as error:
        raise ImportError(f'wandb.report needs wandb-workspaces: pip install "mmaccel[report]" ({error})') from error
    return wr


def saved(wr: Any, folder: Path, new: Any) -> str:
    """Updates the Report of an earlier call, where the server still has it; its discussions stay."""
    file = folder / "wandb" / "report.json"
    known = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    here = (known.get("entity"), known.get("project")) == (new.entity, new.project)
    report = (loaded(wr, known["url"]) if here else None) or new
    report.title, report.description, report.blocks, report.width = new.title, new.description, new.blocks, new.width
    report.save()
    file.parent.mkdir(exist_ok=True)
    said = {"url": report.url, "id": report.id, "entity": report.entity, "project": report.project}
    write_atomic(file, json.dumps(said))
    return report.url


def loaded(wr: Any, url: str) -> Any | None:
    try:
        return wr.Report.from_url(url)
    except TypeError:  # what the library makes of "there is no such Report", e.g. one that was deleted
        return None


def report(wr: Any, sweep: Sweep, entity: str, project: str, group: str) -> Any:
    def runs(name: str, job: str) -> Any:
        """The filter is a string that the library parses; the tracker makes groups that need no quoting."""
        wanted = f"Metric('Group') = '{group}' and Metric('JobType') = '{job}'"
        return wr.Runset(entity=entity, project=project, name=name, filters=wanted)

    rows = whole(list(sweep.rows))
    blocks = [
        wr.TableOfContents(),
        wr.H1("Findings"), wr.MarkdownBlock(text(sweep.findings_markdown())),
        wr.H1("Accuracy against cost"), wr.PanelGrid(runsets=[runs("points", "point")], panels=pareto(wr, rows)),
        wr.H1("Curves"), wr.PanelGrid(runsets=[runs("sweep", "sweep")], panels=curves(wr, rows)),
        wr.H1("Acceptance"), wr.PanelGrid(runsets=[runs("points", "point")], panels=acceptance(wr, rows)),
        wr.H1("Points"), wr.PanelGrid(runsets=[runs("points", "point")], panels=compared(wr, rows)),
        wr.H1("Samples"), wr.PanelGrid(runsets=[runs("sweep", "sweep")], panels=tables(wr)),
        wr.H1("Where it comes from"), wr.MarkdownBlock(text(sweep.facts_markdown())),
    ]  # fmt: skip
    described = "Every number is measured; intervals are 95 % bootstrap over samples."
    return wr.Report(
        entity=entity, project=project, title=sweep.title, description=described, width="fluid", blocks=blocks
    )


def pareto(wr: Any, rows: Sequence[Row]) -> list[Any]:
    """Summary numbers of the points' runs; colour is the nominal ratio, the axes are measured."""
    costs = [key for key in ("e2e_ms_p50", "mean_visual") if any(row.get(key) is not None for row in rows)]
    accuracy, ratio = wr.SummaryMetric("accuracy"), wr.Config("point.ratio")
    return [
        wr.ScatterPlot(
            title=f"accuracy against {key}", x=wr.SummaryMetric(key), y=accuracy, z=ratio, layout=half(wr, at)
        )
        for at, key in enumerate(costs)
    ]


def curves(wr: Any, rows: Sequence[Row]) -> list[Any]:
    """Of the aggregate run: a line a method, against measured tokens."""
    lines: dict[str, list[str]] = {}
    for name in CURVES:
        keys = dict.fromkeys(f"{name}/{series(row)}" for row in rows if row.get(name) is not None)
        lines |= {name: list(keys)} if keys else {}
    return [
        wr.LinePlot(title=name, x="mean_visual", y=keys, title_x="mean visual tokens", layout=half(wr, at))
        for at, (name, keys) in enumerate(lines.items())
    ]


def acceptance(wr: Any, rows: Sequence[Row]) -> list[Any]:
    """Tokens a step (1 without a draft) and, where points draft, what that was worth against the same point without."""
    panels = [wr.BarPlot(title="tau: tokens per step of the target", metrics=["tau"], layout=half(wr, 0))]
    if any(row.get("drafting") for row in rows):
        x, y = (wr.SummaryMetric(f"drafting/all/{key}") for key in ("tau", "speedup"))
        panels.append(wr.ScatterPlot(title="speed-up by drafting against tau", x=x, y=y, layout=half(wr, 1)))
    return panels


def compared(wr: Any, rows: Sequence[Row]) -> list[Any]:
    labels = [key for key in ("pruner", "ratio", "draft") if any(row.get(key) is not None for row in rows)]
    axes = [wr.Config(f"point.{key}") for key in labels]
    axes += [wr.SummaryMetric(key) for key in AXES if any(row.get(key) is not None for row in rows)]
    columns = [wr.ParallelCoordinatesPlotColumn(axis) for axis in axes]
    parallel = wr.ParallelCoordinatesPlot(title="points", columns=columns, layout=wr.Layout(w=WIDE, h=HIGH))
    return [parallel, wr.RunComparer(diff_only="split", layout=wr.Layout(y=HIGH, w=WIDE, h=HIGH))]


def tables(wr: Any) -> list[Any]:
    """Question, picture, and every point's reply and survival map; and the points as they stand in points.csv."""
    return [
        wr.WeavePanelSummaryTable(table_name=name, layout=wr.Layout(y=HIGH * at, w=WIDE, h=HIGH))
        for at, name in enumerate(("samples", "points"))
    ]


def half(wr: Any, at: int) -> Any:
    """Two panels a row."""
    return wr.Layout(x=HALF * (at % 2), y=HIGH * (at // 2), w=HALF, h=HIGH)
