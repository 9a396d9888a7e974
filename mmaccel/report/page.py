"""report.html: the run folder as one page that asks nothing of any server.

Reads records.jsonl, summary.json, config.yaml, provenance.json and images/. Text is escaped by markup.tag; on top of it
a content policy in the page lets only the one script below run and no request leave.
"""

import base64
import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from PIL import Image

from mmaccel.measure.record import RunFolder, picture_name, write_atomic
from mmaccel.measure.stats import STAGES
from mmaccel.report.bucketrows import buckets_html
from mmaccel.report.chart import baseline_swatch, chart, swatch
from mmaccel.report.drafting import drafting_html
from mmaccel.report.gaterows import gate_html
from mmaccel.report.headline import Finding, headline
from mmaccel.report.kindrows import kinds_table
from mmaccel.report.markup import Markup, join, tag
from mmaccel.report.officialrows import official_html
from mmaccel.report.plots import write_figures
from mmaccel.report.pointrows import describe, points_html
from mmaccel.report.series import AXES, Row, all_series, baseline_of, marks_of, measure, of_kind
from mmaccel.report.survival import survival_html, survival_table

HERE = Path(__file__).parent
STYLE = Markup((HERE / "page.css").read_text(encoding="utf-8"))
SCRIPT = Markup((HERE / "page.js").read_text(encoding="utf-8"))
SAMPLES = 12
PICTURE_BYTES = 3_500_000  # all embedded pictures of samples together
SHEET_BYTES = 1_000_000
AGREEMENT = (
    "There are no answers to be right about: accuracy on this page is agreement with the unpruned reply, word for word."
)


def write_report(folder: str | Path) -> Path:
    """Writes images/accuracy_*.png and .svg, then report.html; returns its path."""
    path = Path(folder)
    if not (path / "summary.json").is_file():
        raise FileNotFoundError(f"{path} has no summary.json; write_points makes it from the records (job=report)")
    summary = json.loads((path / "summary.json").read_text(encoding="utf-8"))
    rows, records = summary["points"], RunFolder.open(path).records()
    write_figures(rows, path / "images")
    config = read_yaml(path / "config.yaml")
    provenance = read_json(path / "provenance.json")
    target = path / "report.html"
    write_atomic(target, page(path, rows, records, config, provenance))
    return target


def page(
    path: Path, rows: Sequence[Row], records: Sequence[Mapping[str, Any]], config: Mapping[str, Any],
    provenance: Mapping[str, Any],
) -> str:  # fmt: skip
    title = str(config.get("name") or config.get("experiment") or path.resolve().name)
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    head = join(
        void("meta", charset="utf-8"),
        void("meta", name="viewport", content="width=device-width, initial-scale=1"),
        void("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("title", title),
        tag("style", STYLE),
    )
    plain = [row for row in rows if not row.get("draft")]  # a draft changes times, not answers
    body = tag(
        "main",
        tag("h1", title),
        facts(rows, records, config, provenance),
        tag("p", AGREEMENT, class_="lead") if any(row.get("agreement") for row in rows) else None,
        tag("div", *[finding(one) for one in [*headline(rows, records), *prepared(provenance)]], class_="findings"),
        curves(rows),
        official_html(plain),
        kinds(plain),
        survival_html(plain, survival_table(plain, records)),
        drafting_html(rows),
        buckets_html(plain),
        stages(rows),
        cold_start(rows, provenance),
        gate_html(read_json(path / "quality.json"), sheet_of(path)),
        points_html(rows),
        samples(path, rows, records),
        origin(config, provenance),
    )
    return f"<!doctype html>\n{tag('html', tag('head', head), tag('body', body, tag('script', SCRIPT)), lang='en')}\n"


def void(name: str, /, **attributes: object) -> Markup:
    return Markup(tag(name, **attributes).removesuffix(f"</{name}>"))


def facts(
    rows: Sequence[Row], records: Sequence[Mapping[str, Any]], config: Mapping[str, Any], provenance: Mapping[str, Any]
) -> Markup:
    device = provenance.get("device") or {}
    benchmark = next((record["benchmark"] for record in records if record.get("benchmark")), None)
    parts = [short(config.get("model")), benchmark or short(config.get("benchmark"))]
    parts += [f"{max((row['n'] for row in rows), default=0)} samples × {len(rows)} points, paired"]
    timed = max((row.get("timed") or 0 for row in rows), default=0)
    parts += [f"times of {timed} samples"] if 0 < timed < max(row["n"] for row in rows) else []
    parts += [device.get("name"), provenance.get("dtype"), provenance.get("attention")]
    parts += [str(provenance.get("time", ""))[:10]]
    return tag("p", *[tag("span", part) for part in parts if part], class_="facts")


def short(node: Any) -> str | None:
    """A config node in a word: its name, its path's last part, or itself."""
    if isinstance(node, Mapping):
        node = node.get("name") or node.get("path") or str(node.get("_target_") or "").rpartition(".")[2]
    return str(node).rstrip("/").rpartition("/")[2] or None if node else None


def finding(one: Any) -> Markup:
    return tag("section", tag("h3", one.title), tag("p", one.text), class_=f"finding {one.tone}")


def prepared(provenance: Mapping[str, Any]) -> list[Finding]:
    differs = (provenance.get("processor") or {}).get("differs") or {}
    said = "; ".join(f"{name}: {own} became {now}" for name, (own, now) in differs.items())
    text = f"Not as the checkpoint says, for every point alike: {said}."
    return [Finding("Pictures are prepared otherwise", text, "bad")] if differs else []


def prunes(rows: Sequence[Row]) -> bool:
    return any(row.get("pruner") not in (None, "keep_all") for row in rows)


def curves(rows: Sequence[Row]) -> Markup:
    """Accuracy against every cost that was measured."""
    axes = AXES if prunes(rows) else ("e2e_ms_p50",)  # else every point stands at the baseline's tokens
    measured = [axis for axis in axes if any(row.get(axis) is not None for row in rows)]
    rows = [row for row in rows if not row.get("draft") or row.get("accuracy") is not None]
    plain = [row for row in rows if not row.get("draft")]
    drawn = [figure(rows if axis.startswith("e2e") else plain, axis, AXES[axis]) for axis in measured]
    lead = "Bars are 95 % bootstrap intervals over samples; the dotted line and its band are the unpruned model. "
    lead += "The x axes are measured, never the nominal ratio. Controls are grey."
    apart = max((row.get("apart") or 0 for row in rows), default=0)
    if apart:
        lead += f" {apart} samples are scored on another scale (F1 of a caption's facts) and stand in their kind only."
    return section(measure(rows, "Accuracy against cost"), lead, legend(rows), tag("div", *drawn, class_="charts"))


def figure(rows: Sequence[Row], axis: str, label: str) -> Markup:
    base = baseline_of(rows)
    mark = next(iter(marks_of([base], axis, "accuracy")), None) if base else None
    named = measure(rows, "accuracy")
    return tag("figure", chart(all_series(rows, axis), mark, label, describe=describe, y_label=named))


def legend(rows: Sequence[Row]) -> Markup:
    entries = [tag("span", swatch(one), one.name) for one in all_series(rows, "accuracy")]
    base = baseline_of(rows)
    return tag("div", tag("span", baseline_swatch(), base["point"]) if base else None, *entries, class_="legend")


def kinds(rows: Sequence[Row]) -> Markup:
    """A small chart per kind of question, against mean visual tokens, or MACs where those are missing."""
    names = list(dict.fromkeys(kind for row in rows for kind in row.get("kinds") or {}))
    choice = ("mean_visual", "mac_fraction", "e2e_ms_p50")
    axis = next((axis for axis in choice if any(row.get(axis) for row in rows)), None)
    if len(names) < 2:
        return Markup()
    if axis is None or not prunes(rows):
        return section("By kind of question", "Accuracy of each kind.", kinds_table(rows))
    drawn = []
    for name in names:
        part = of_kind(rows, name)
        base = baseline_of(part)
        mark = next(iter(marks_of([base], axis, "accuracy")), None) if base else None
        n = max((row.get("kinds") or {}).get(name, {}).get("n", 0) for row in rows)
        picture = chart(all_series(part, axis), mark, AXES[axis], describe=describe, small=True)
        drawn.append(tag("figure", tag("h3", name or "no kind", " ", tag("span", f"n = {n}", class_="muted")), picture))
    lead = f"Accuracy [%] against {AXES[axis]}; the same marks as above. Axes differ from chart to chart."
    return section("By kind of question", lead, tag("div", *drawn, class_="charts small"), kinds_table(rows))


def stages(rows: Sequence[Row]) -> Markup:
    """Median times as stacked bars on one scale."""
    times = {row["point"]: [(row.get("stages_ms") or {}).get(stage) or 0.0 for stage in STAGES] for row in rows}
    longest = max((sum(values) for values in times.values()), default=0.0)
    if not longest:
        return Markup()
    used = [index for index in range(len(STAGES)) if any(values[index] for values in times.values())]
    keys = [tag("span", tag("span", class_=f"key s{index}"), STAGES[index]) for index in used]
    bars = []
    for point, values in times.items():
        parts = [stage_bar(index, values[index], longest) for index in used if values[index]]
        total = tag("i", f"{sum(values):.0f} ms" if sum(values) else "")
        bars.append(tag("div", tag("b", point), tag("div", *parts, class_="bars"), total, class_="stage"))
    lead = "Median milliseconds per request and stage; the sum of medians is not the median of the sum."
    return section("Where the time goes", lead, tag("div", *keys, class_="legend"), tag("div", *bars, class_="stages"))


def stage_bar(index: int, ms: float, longest: float) -> Markup:
    width = f"width:{100 * ms / longest:.3f}%"
    return tag("span", class_=f"s{index}", style=width, title=f"{STAGES[index]} {ms:.1f} ms")


def cold_start(rows: Sequence[Row], provenance: Mapping[str, Any]) -> Markup | None:
    """One line: what loading and the first request took, which is in no number of any point."""
    cold = provenance.get("cold_start") or {}
    first, later = cold.get("first_request"), (baseline_of(rows) or {}).get("ttft_ms_p50")
    if cold.get("load_ms") is None:
        return None
    words = f"Cold start, in no number of any point: the model loaded in {seconds(cold['load_ms'])}"
    if first:
        words += f", the first request had its first token after {seconds(first['ttft_ms'])}"
        words += f" (the baseline's median: {seconds(later)})" if later is not None else ""
        words += f" and was done after {seconds(first['e2e_ms'])}"
    return tag("p", f"{words}.", class_="lead cold")


def sheet_of(path: Path) -> Markup | None:
    return Room(SHEET_BYTES).picture(path / "contact_sheet.png", 1200, "pictures that the input gate flagged")


def seconds(ms: float) -> str:
    return f"{ms / 1e3:.2f} s" if ms >= 1e3 else f"{ms:.0f} ms"


def section(title: str, lead: str, *parts: Markup) -> Markup:
    return tag("section", tag("h2", title), tag("p", lead, class_="lead"), *parts)


def samples(path: Path, rows: Sequence[Row], records: Sequence[Mapping[str, Any]]) -> Markup:
    """Samples with pictures; those on which the points disagree first."""
    replies: dict[str, dict[str, Mapping[str, Any]]] = {}
    for record in records:
        replies.setdefault(record["sample"], {})[record["point"]] = record  # the last turn stands
    shown = [sample for sample in replies if (path / "images" / picture_name(sample)).is_file()]
    shown = sorted(shown, key=lambda sample: -disagreement(replies[sample].values()))[:SAMPLES]
    if not shown:
        return Markup()
    room = Room(PICTURE_BYTES)
    cards = [sample_card(path, rows, replies[sample], room) for sample in shown]
    lead = "The picture, the question, and what each point answered; above a point's name, the patches that were left "
    lead += "standing after each of its stations. Samples on which the points disagree come first."
    return section("Samples", lead, tag("div", *cards, class_="samples"))


def disagreement(records: Any) -> int:
    said = {str((record.get("score") or {}).get("correct")) for record in records}
    return len(said)


def sample_card(path: Path, rows: Sequence[Row], replies: Mapping[str, Mapping[str, Any]], room: "Room") -> Markup:
    first = next(iter(replies.values()))
    answer, kind = first.get("reference"), first.get("kind")
    left = tag(
        "div",
        room.picture(path / "images" / picture_name(first["sample"]), 336, f"picture of sample {first['sample']}"),
        tag("p", first.get("question") or first["sample"], class_="asked"),
        tag("span", "answer: ", shown_text(answer), class_="chip") if answer is not None else None,
        " ",
        tag("span", kind, class_="chip") if kind else None,
    )
    said = [reply(path, replies[row["point"]], room) for row in rows if row["point"] in replies]
    plain = [markup for markup, pictured in said if not pictured]
    seen = [markup for markup, pictured in said if pictured]
    right = tag("div", *[tag("div", *part, class_="replies") for part in (plain, seen) if part], class_="said-by")
    return tag("article", left, right, class_="sample-card")


def reply(path: Path, record: Mapping[str, Any], room: "Room") -> tuple[Markup, bool]:
    """(the reply, whether it shows a survival map)."""
    score = record.get("score") or {}
    correct = None if score.get("agreement") else score.get("correct")
    mark = "" if correct is None else " right" if correct >= 0.5 else " wrong"
    said = f"error: {record['error']}" if record.get("error") else record.get("prediction")
    file = path / "images" / picture_name(record["sample"], record["point"])
    survivors = room.picture(file, 480, f"patches left by {record['point']}")
    tokens = record.get("tokens") or {}
    kept = tokens.get("kept")
    left = " → ".join(map(str, kept)) if isinstance(kept, list) else ""
    count = f" · {left} of {tokens.get('visual')}" if left else ""
    wide = " wide" if isinstance(kept, list) and len(kept) > 1 and survivors else ""
    who = tag("div", record["point"], count, class_="who")
    words = tag("div", shown_text(said), class_=f"said{mark}")
    return tag("div", survivors, who, words, class_=f"reply{wide}"), survivors is not None


def shown_text(value: Any, limit: int = 400) -> str:
    said = value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)
    return said if len(said) <= limit else said[:limit] + " …"


class Room:
    """Embeds pictures until the page's share for them is used up."""

    def __init__(self, size: int) -> None:
        self.left = size

    def picture(self, file: Path, width: int, words: str) -> Markup | None:
        if not file.is_file() or self.left <= 0:
            return None
        try:
            with Image.open(file) as image:
                data = small_picture(image, width)
        except (OSError, ValueError, Image.DecompressionBombError):
            return None
        self.left -= len(data)
        return void("img", src=f"data:image/webp;base64,{data}", alt=words, loading="lazy")


def small_picture(image: Image.Image, width: int) -> str:
    image = image.convert("RGBA" if "A" in image.getbands() else "RGB")
    if image.width > width:
        image = image.resize((width, max(1, round(width * image.height / image.width))), Image.Resampling.LANCZOS)
    stream = io.BytesIO()
    image.save(stream, "WEBP", quality=82)
    return base64.b64encode(stream.getvalue()).decode()


def origin(config: Mapping[str, Any], provenance: Mapping[str, Any]) -> Markup:
    """Provenance, the command that makes the run again, and the whole configuration."""
    apart = ("command", "resumed", "cold_start")  # shown elsewhere
    pairs = list(flat_facts({key: value for key, value in provenance.items() if key not in apart}))
    resumed = provenance.get("resumed") or []
    pairs += [("resumed", f"{len(resumed)} times")] if resumed else []
    listed = [join(tag("dt", key), tag("dd", value)) for key, value in pairs]
    dumped = yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True) if config else ""
    return section(
        "Where this comes from",
        "The command makes the run again; records.jsonl beside this page holds every number behind it.",
        tag("pre", provenance.get("command") or "command not recorded"),
        tag("dl", *listed),
        tag("details", tag("summary", "Full configuration"), tag("pre", dumped)),
    )


def flat_facts(tree: Mapping[str, Any], prefix: str = "") -> Any:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from flat_facts(value, f"{prefix}{key} ")
        elif value is not None:
            yield f"{prefix}{key}", value


def read_yaml(file: Path) -> dict[str, Any]:
    return (yaml.safe_load(file.read_text(encoding="utf-8")) or {}) if file.is_file() else {}


def read_json(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
