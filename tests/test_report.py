"""The page: text stays text whatever it holds, no server is asked, unmeasured is empty, words match numbers."""

import io
import json
import os
import re
import shutil
import subprocess
import threading
from html.parser import HTMLParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from mmaccel.measure.record import RunFolder, write_points
from mmaccel.measure.stats import points_table
from mmaccel.report.chart import chart, ranges
from mmaccel.report.drafting import drafting_html
from mmaccel.report.headline import drafts, headline
from mmaccel.report.kindrows import kinds_table
from mmaccel.report.markup import Markup, clean, tag
from mmaccel.report.officialrows import official_html
from mmaccel.report.overlay import GAP, survival_map
from mmaccel.report.page import SCRIPT, cold_start, write_report
from mmaccel.report.plots import write_figures
from mmaccel.report.series import Mark, Series, all_series, nice_ticks
from mmaccel.report.table import fitting, points_table_rich
from tests.runfolder import HOSTILE, make_run, points

TAGS = {
    *("html", "head", "meta", "title", "style", "body", "main", "section", "article", "div", "span", "p", "h1", "h2"),
    *("h3", "svg", "g", "line", "rect", "circle", "polygon", "polyline", "text", "figure", "table", "thead", "tbody"),
    *("tr", "th", "td", "small", "b", "i", "img", "pre", "dl", "dt", "dd", "details", "summary", "script"),
}
VOID = {"meta", "img"}
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next((path for name in BROWSERS if (path := shutil.which(name))), None)


class Page(HTMLParser):
    """Elements with attributes, text by element, and whether every element was closed in order."""

    def __init__(self, markup: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict]] = []
        self.text: list[tuple[str, str]] = []
        self.open: list[str] = []
        self.feed(markup)
        self.close()
        assert not self.open

    def handle_starttag(self, name, attributes):
        self.elements.append((name, dict(attributes)))
        if name not in VOID:
            self.open.append(name)

    def handle_endtag(self, name):
        assert self.open.pop() == name

    def handle_data(self, data):
        self.text.append((self.open[-1] if self.open else "", data))

    def of(self, name: str) -> str:
        return "".join(data for element, data in self.text if element == name)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    path = make_run(tmp_path_factory.mktemp("plain") / "run", n=60, with_pictures=2).path
    return path, write_report(path).read_text()


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    path = make_run(tmp_path_factory.mktemp("hostile") / "run", n=12, with_pictures=2, hostile=True).path
    return path, write_report(path).read_text()


def test_hostile_strings_stay_text_everywhere(hostile):
    page = Page(hostile[1])
    assert {name for name, _ in page.elements} <= TAGS
    assert page.of("script") == SCRIPT
    assert [name for name, _ in page.elements].count("script") == 1
    for name, attributes in page.elements:
        assert not [key for key in attributes if key.startswith("on")], name
        assert not {"href", "srcset", "action", "formaction", "data", "srcdoc"} & set(attributes), name
        assert attributes.get("src", "data:").startswith("data:"), name
    shown = clean(HOSTILE)
    for element in ("h1", "title", "th", "pre", "p", "b", "h3"):
        assert shown in page.of(element), element
    assert len([a for n, a in page.elements if n == "img" and shown in a["alt"]]) > 10
    assert "error" in page.of("div")


def test_a_hostile_reply_reaches_its_cell_unchanged(hostile):
    said = [data for element, data in Page(hostile[1]).text if element == "div"]
    assert f"red{clean(HOSTILE)}" in said


def test_nothing_is_requested(plain, hostile):
    for _, markup in (plain, hostile):
        policy = dict(next(a for n, a in Page(markup).elements if a.get("http-equiv")))["content"]
        assert policy.startswith("default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-")
        assert "url(" not in markup
        assert "@import" not in markup
        assert not re.search(r"<(link|iframe|object|embed|base|form)\b", markup)


def test_the_page_stays_small(plain):
    assert plain[0].joinpath("report.html").stat().st_size < 2_000_000


@pytest.fixture
def no_figures(monkeypatch):
    monkeypatch.setattr("mmaccel.report.page.write_figures", lambda *_: [])


def test_many_large_pictures_do_not_swell_the_page(tmp_path, monkeypatch, no_figures):
    folder = make_run(tmp_path / "run", n=3, with_pictures=0)
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (500, 500, 3), dtype=np.uint8))
    for point in (None, *[p["name"] for p in points()]):
        noise.save(folder.picture("scene-0", point), compress_level=0)
    whole = write_report(folder.path).stat().st_size
    assert whole < 6_000_000
    monkeypatch.setattr("mmaccel.report.page.PICTURE_BYTES", 500_000)
    assert 500_000 < write_report(folder.path).stat().st_size < whole - 500_000


def test_the_page_says_what_was_found(plain):
    page = Page(plain[1])
    words = page.of("p")
    assert "not resolved at n = 60" in words
    assert "Time: 1." in words
    assert "First resolved loss of fastv: fastv ratio=" in words
    assert "resolved above random at" in words
    assert page.of("pre").startswith("python -m mmaccel.run +experiment=fastv_sweep")
    assert "5e0f" in page.of("dd")
    assert page.of("b").startswith("baselinekeep_all")
    assert "answer: red" in page.of("span")


def test_unmeasured_columns_are_named_and_left_out(plain):
    page = Page(plain[1])
    headers = [data for element, data in page.text if element == "th"]
    assert "peak MB" not in headers
    assert "alpha" not in headers
    assert "e2e p99" not in headers, "60 requests are too few for a 99th percentile"
    assert "Not measured in this run: e2e p99, ttft p99, alpha, peak MB." in page.of("p")


def test_the_table_by_picture_says_what_a_third_of_the_samples_cannot_resolve(plain):
    page = Page(plain[1])
    headers = [data for element, data in page.text if element == "th"]
    assert "By picture" in page.of("h2")
    assert "sharpness" in headers
    assert "edge density" in headers
    assert not {"size", "size [px]"} & set(headers), "all pictures are of one size"
    assert "≤ 120" in headers
    assert "n = 27" in page.of("td")
    assert "not resolved at n = 27" in page.of("small")
    spans = [int(a["colspan"]) for n, a in page.elements if n == "th" and "colspan" in a]
    assert sum(spans) == headers.index("samples", headers.index("≤ 120")) - headers.index("≤ 120")


def test_the_cold_start_is_one_line_apart_from_the_points(plain):
    page = Page(plain[1])
    assert "Cold start, in no number of any point: the model loaded in 1.83 s, the first" in page.of("p")
    said = r"first token after 912 ms \(the baseline's median: \d+ ms\) and was done after 1.00 s\."
    assert re.search(said, page.of("p"))
    assert "cold_start" not in page.of("dt")
    failed = {"load_ms": 12.0, "error": "ValueError: x"}
    assert cold_start([], {"cold_start": failed}).endswith("loaded in 12 ms.</p>")
    assert cold_start([], {}) is None


def test_figures_are_written_as_png_and_svg(plain):
    images = plain[0] / "images"
    names = {file.name for file in images.glob("accuracy_*")}
    assert {"accuracy_e2e_ms_p50.png", "accuracy_mean_visual.svg", "accuracy_kv_fraction.png"} <= names
    assert Image.open(images / "accuracy_mean_visual.png").size == (920, 620)
    assert "fastv" in (images / "accuracy_mean_visual.svg").read_text()


def test_names_with_dollars_are_drawn(tmp_path):
    named = [row("${x}_$", "${x}_$", 300, 0.8, -0.1), row("_hidden", "_hidden", 200, 0.7, -0.2)]
    write_figures([BASE, *named], tmp_path)
    drawn = (tmp_path / "accuracy_mean_visual.svg").read_text()
    assert "${x}_$" in drawn
    assert "_hidden" in drawn


def test_a_report_without_points_says_what_to_do(tmp_path):
    RunFolder.create(tmp_path / "run", {}, {}).close()
    with pytest.raises(FileNotFoundError, match="job=report"):
        write_report(tmp_path / "run")


def test_a_run_with_almost_nothing_measured_still_has_a_page(tmp_path):
    with RunFolder.create(tmp_path / "run", {"model": "x"}, {}) as folder:
        folder.append({"point": "base", "sample": "1", "turn": 0, "error": "out of memory"})
        folder.append({"point": "a", "sample": "1", "turn": 0, "prediction": "yes"})
        named = [{"name": "base", "pruner": None}, {"name": "a", "pruner": "fastv", "ratio": 0.5}]
        write_points(folder, points_table(folder.records(), named, "base"))
    page = Page(write_report(folder.path).read_text())
    assert "base (1)" in page.of("p")


def test_a_broken_picture_is_left_out(tmp_path, no_figures):
    folder = make_run(tmp_path / "run", n=2, count=3, with_pictures=2)
    folder.picture("scene-0").write_bytes(b"no picture")
    elements = Page(write_report(folder.path).read_text()).elements
    pictures = [attributes["alt"] for name, attributes in elements if name == "img"]
    assert "picture of sample scene-1" in pictures
    assert "picture of sample scene-0" not in pictures


def row(name, pruner, mean, accuracy, delta, width=0.01, **more):
    return {
        "point": name, "pruner": pruner, "mean_visual": mean, "accuracy": accuracy, "accuracy_ci": [accuracy, accuracy],
        "delta": delta, "delta_ci": [delta - width, delta + width], "n": 100, "pairs": 100, "baseline": False, **more,
    }  # fmt: skip


BASE = {"point": "base", "baseline": True, "accuracy": 0.9, "accuracy_ci": [0.85, 0.95], "mean_visual": 576.0, "n": 9}


def scores(point, right):
    return [{"point": point, "sample": str(i), "turn": 0, "score": {"correct": float(i < right)}} for i in range(100)]


def test_the_headline_names_the_cliff_the_best_point_and_the_winning_control():
    rows = [BASE, row("f3", "fastv", 400, 0.9, 0.0, speedup_e2e=1.2, speedup_e2e_ci=[1.1, 1.3]),
            row("f7", "fastv", 250, 0.88, -0.02), row("f9", "fastv", 150, 0.6, -0.3),
            row("r9", "random", 151, 0.8, -0.1), row("r3", "random", 399, 0.9, 0.0),
            row("far", "pool", 50, 0.9, 0.0)]  # fmt: skip
    records = [*scores("f3", 90), *scores("f9", 60), *scores("r9", 80), *scores("r3", 90), *scores("f7", 88)]
    best, cliff, versus = headline(rows, records)
    assert best.text.startswith("f3: accuracy 90.0 %, +0.0 points from the baseline, not resolved at n = 100; a loss")
    assert "of up to 1.0 points is not excluded" in best.text
    assert "1.20× [1.10, 1.30], faster" in best.text
    assert cliff.text.startswith("First resolved loss of fastv: f7, −2.0 points [−3.0, −1.0].")
    assert cliff.text.endswith("Steepest fall: 28.0 points from f7 to f9.")
    assert versus.title == "A control beats the method"
    assert "resolved below random at 1 of 2 budgets (by 20.0 points), not resolved at 1" in versus.text
    assert "pool" not in versus.text


def test_the_headline_knows_losing_methods_missing_controls_and_slow_points():
    rows = [BASE, row("f9", "fastv", 150, 0.6, -0.3, net_slower=True, errors=2)]
    titles = [finding.title for finding in headline(rows, [])]
    assert titles == ["No free point", "Where the cliff is", "No controls", "Net slower", "Errors"]
    gain = headline([BASE, row("f3", "fastv", 400, 0.95, 0.05)], [])[0]
    assert "a resolved gain" in gain.text


def test_drafting_is_told_by_its_longest_answers_and_called_templated():
    """Short answers do not dilute what long ones gained."""

    def part(tokens, speedup, tau, **more):
        ends = [speedup - 0.1, speedup + 0.1]
        return {"tokens": tokens, "speedup": speedup, "speedup_ci": ends, "tau": tau, "break_even": 1.5, "alpha": 0.4,
                "identical": 1.0, "entropy": 0.2, "pairs": 9, "accepted": [0.8, 0.5], **more}  # fmt: skip

    whole = part(20, 0.97, 1.4) | {"kinds": {"colour": part(2, 0.9, 1.1), "caption": part(60, 1.8, 3.1)}}
    rows = [
        row("baseline", None, 576, 0.9, 0.0, baseline=True),
        row("baseline + e", None, 576, 0.9, 0.0, draft="e", drafting=whole),
    ]
    (found,) = drafts(rows)
    assert found.tone == "good"
    assert found.text.startswith("caption answers: baseline + e: 1.80× [1.70, 1.90] at tau 3.10 (pays above 1.50).")
    assert "Other kinds: 0.90× to 0.90×." in found.text
    assert "templated (0.20 nats a token)" in found.text
    page = drafting_html(rows)
    assert [line.split("<")[0] for line in page.split("baseline + e</th><td>")[1:]] == ["caption", "colour", "all"]
    assert "steps accepted so far" in page
    assert "caption, depth 2: 50.0 %" in page
    assert page.count("templated</small>") == 3
    rows[1]["drafting"] = part(60, 0.8, 1.1, identical=0.5, entropy=0.7)  # one kind
    (found,) = drafts(rows)
    assert found.tone == "bad"
    assert "not always those without the draft" in found.text
    assert "templated" not in found.text
    assert drafting_html(rows[:1]) == ""
    rows[1]["drafting"] = part(60, 0.8, 1.1, identical=0.0)  # no answer is the twin's
    assert "not always those without the draft" in drafts(rows)[0].text
    rows[1]["drafting"] = whole
    rows.append(row("fastv + e", "fastv", 300, 0.9, 0.0, draft="e", drafting=part(2, 0.9, 1.1)))  # its captions failed
    assert "fastv + e" in drafts(rows)[0].text
    assert "depth of the draft (caption)" in drafting_html(rows)


def test_drafted_curves_take_no_methods_colour():
    rows = [BASE, row("f", "fastv", 300, 0.8, -0.1), row("f + e", "fastv", 300, 0.8, -0.1, draft="e"),
            row("p", "pyramid", 300, 0.8, -0.1)]  # fmt: skip
    slots = {one.name: one.slot for one in all_series(rows, "mean_visual")}
    plain = {one.name: one.slot for one in all_series([r for r in rows if not r.get("draft")], "mean_visual")}
    assert plain == {"fastv": 0, "pyramid": 1}
    assert slots == plain | {"fastv + e": 2}


def test_controls_are_no_methods_and_slots_do_not_move():
    rows = [BASE, row("r", "random", 1, 0.5, -0.1), row("f", "fastv", 2, 0.5, -0.1), row("p", "pool", None, 0.5, -0.1)]
    found = {one.name: one for one in all_series(rows, "mean_visual")}
    assert list(found) == ["fastv", "random", "pool"]
    assert (found["fastv"].control, found["random"].control) == (False, True)
    assert (found["fastv"].slot, found["random"].slot, found["pool"].slot) == (0, 0, 1)
    assert found["pool"].marks == ()


def test_ticks_are_round_and_cover():
    for low, high in [(0, 1), (0.31, 0.97), (118.2, 203.9), (0, 0), (5, 5), (-3, 12_345), (1e-6, 3e-6)]:
        ticks = nice_ticks(low, high)
        assert ticks[0] <= low <= high <= ticks[-1] + 1e-9
        assert 2 <= len(ticks) <= 8


def test_a_chart_of_one_point_and_of_none():
    mark = Mark(5.0, 1.0, None, None, {"point": "<a>"})
    drawn = chart([Series("s", False, 0, (mark,))], None, "x", describe=lambda row: row["point"])
    assert "&lt;a&gt;" in drawn
    assert "nan" not in drawn
    assert ranges([mark])[1] == (0.9, 1.0)
    assert ranges([Mark(5.0, 0.0, None, None, {})])[1] == (0.0, 0.1)
    assert "not measured" in chart([], None, "x", describe=str)


def test_markup_escapes_all_but_markup():
    made = tag("p", "<b>", Markup("<b></b>"), None, 3, class_="a\"<'", data_x="y", hidden=False, title=None)
    assert made == '<p class="a&quot;&lt;&#x27;" data-x="y">&lt;b&gt;<b></b>3</p>'
    assert clean("a\x00\x1b[1m\ud83d\u0085\tb\n") == "a\ufffd\ufffd[1m?\ufffd\tb\n"


def test_a_survival_map_lights_what_was_kept():
    image = Image.new("RGB", (96, 48), (200, 100, 50))
    strip = survival_map(image, (2, 4), [[(0, 0), (1, 3)], []], width=96)
    assert strip.size == (2 * 96 + GAP, 48)
    pixels = np.asarray(strip)
    assert tuple(pixels[5, 5]) == (200, 100, 50, 255)
    assert tuple(pixels[40, 90]) == (200, 100, 50, 255)
    dimmed = pixels[5, 40]
    assert dimmed[:3].max() < 60
    assert len(set(dimmed[:3])) == 1
    assert pixels[5, 98, 3] == 0, "the gap is transparent"
    assert survival_map(image, (2, 4), [], width=96).size == (96, 48)
    with pytest.raises(ValueError, match=r"patch \(2, 0\), the grid is 2 × 4"):
        survival_map(image, (2, 4), [[(2, 0)]])
    with pytest.raises(ValueError, match="0 × 4"):
        survival_map(image, (0, 4), [])


def test_the_terminal_table(plain):
    rows = json.loads((plain[0] / "summary.json").read_text())["points"]
    console = Console(width=200, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(points_table_rich(rows))
    text = console.export_text()
    assert "not resolved at n = 60" in text
    assert "fastv ratio=0.5" in text
    assert "errors" not in text
    slow = {"speedup_e2e": 0.9, "speedup_e2e_ci": [0.8, 0.999], "net_slower": True}
    console.print(points_table_rich([{"point": "[red]x[/red]", "n": 0, **slow}]))
    text = console.export_text()
    assert "[red]x[/red]" in text
    assert "0.90× [0.80, 0.999] net slower" in text


class Listener(BaseHTTPRequestHandler):
    """The proxy the browser is told to use: whatever leaves the page is asked of it, and noted."""

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        self.send_error(404)

    do_POST = do_HEAD = do_CONNECT = do_GET

    def log_message(self, *_) -> None:
        pass


@pytest.fixture
def proxy():
    with ThreadingHTTPServer(("127.0.0.1", 0), Listener) as server:
        server.asked = []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def opened_by_chromium(proxy, profile, page, *more) -> subprocess.CompletedProcess:
    """Everything it would ask of a server goes to the proxy, the loopback not excepted."""
    command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
               "--disable-dev-shm-usage", "--disable-component-update", "--disable-sync", "--no-first-run",
               f"--proxy-server=127.0.0.1:{proxy.server_port}", "--proxy-bypass-list=<-loopback>",
               f"--user-data-dir={profile}", "--enable-logging=stderr", *more, f"file://{page}"]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def left_the_page(proxy) -> list[str]:
    """Requests other than the browser's own errands to its maker."""
    own = re.compile(r"(https?://)?[\w.-]+\.(google|googleapis|gstatic)\.com\b")
    return [asked for asked in proxy.asked if not own.match(asked)]


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium here")
@pytest.mark.parametrize("which", ["plain", "hostile"])
def test_chromium_draws_it_without_a_word(which, tmp_path, request, proxy):
    path, _ = request.getfixturevalue(which)
    done = opened_by_chromium(proxy, tmp_path, path / "report.html", "--dump-dom")
    assert "CONSOLE" not in done.stderr
    assert left_the_page(proxy) == []
    assert 'id="tip"' in done.stdout, "the page's own script ran"
    assert done.stdout.count("<svg") > 8
    assert done.stdout.count("tabindex") > 50
    page = Page(done.stdout)  # the document as the browser understood it
    assert {name for name, _ in page.elements} <= TAGS
    assert [name for name, _ in page.elements].count("script") == 1
    assert not [a for _, a in page.elements if any(key.startswith("on") for key in a)]
    if which == "hostile":
        assert f"red{clean(HOSTILE)}" in [data for element, data in page.text if element == "div"]


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium here")
@pytest.mark.parametrize("size", [(1200, 1600), (390, 844)], ids=["desk", "phone"])
def test_chromium_paints_curves(plain, tmp_path, proxy, size):
    """Not only elements: the method's colour stands on the screen, in the first charts."""
    shot = tmp_path / "page.png"
    width, height = size
    more = (f"--window-size={width},{height * 2}", f"--screenshot={shot}", "--hide-scrollbars")
    opened_by_chromium(proxy, tmp_path, plain[0] / "report.html", *more)
    pixels = np.asarray(Image.open(shot).convert("RGB")).astype(int)  # [h, w, 3]
    blue = (np.abs(pixels - (0x2A, 0x6F, 0xC9)).max(-1) < 12).sum()  # --m0 of page.css
    assert blue > 300


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium here")
def test_the_listener_hears_a_page_that_asks(tmp_path, proxy):
    """The tests above can fail: a script that speaks and a picture from elsewhere are both noticed."""
    page = tmp_path / "page.html"
    page.write_text("<img src=http://elsewhere.invalid/p.png><script>console.error('loud')</script>")
    done = opened_by_chromium(proxy, tmp_path / "profile", page, "--dump-dom")
    assert "CONSOLE" in done.stderr
    assert left_the_page(proxy) == ["http://elsewhere.invalid/p.png"]


def test_a_benchmarks_own_scores_stand_in_a_table_of_their_own(plain):
    rows = json.loads((plain[0] / "summary.json").read_text())["points"]
    assert official_html(rows) == ""
    scored = [
        row | {"official": {"total": {"value": 1234.0, "ci": [1200, 1300], "delta": -50.5, "delta_ci": [-80.0, -20.0]}}}
        for row in rows
    ]
    page = Page(official_html(scored))
    assert "total" in page.of("th")
    assert "1234" in page.of("span")
    assert "−50.5 [−80, −20]" in page.of("small")


def test_the_table_by_kind_says_what_could_be_read():
    kinds = {"a": {"n": 8, "accuracy": 0.5, "parsed_rate": 0.25}, "b": {"n": 8, "accuracy": 1.0, "parsed_rate": 1.0}}
    page = Page(kinds_table([{"point": "baseline", "kinds": kinds}]))
    assert page.of("small") == "read 25 %"
    assert kinds_table([{"point": "baseline", "kinds": {"a": kinds["a"]}}]) == ""


def test_where_there_are_no_answers_the_page_says_agreement(tmp_path):
    folder = make_run(tmp_path / "run", n=12, count=4, with_pictures=1)
    lines = [json.loads(line) for line in (folder.path / "records.jsonl").read_text().splitlines()]
    agreed = [line | {"score": {"correct": 1.0, "agreement": True}} for line in lines]
    (folder.path / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in agreed))
    write_points(folder, points_table(agreed, points("", 4), "baseline"))
    page = write_report(folder.path).read_text()
    found = Page(page)
    assert "agreement %" in found.of("th")
    assert "agreement with the unpruned reply" in found.of("p")
    marks = {attributes.get("class", "") for name, attributes in found.elements if name == "div"}
    assert not marks & {"said right", "said wrong"}, "agreeing is not being right"
    rows = json.loads((folder.path / "summary.json").read_text())["points"]
    assert rows[0]["accuracy_ci"] is None


def test_a_narrow_terminal_gets_fewer_columns_and_whole_numbers(plain):
    rows = json.loads((plain[0] / "summary.json").read_text())["points"]
    wide, narrow = (Console(width=width, file=io.StringIO()) for width in (240, 90))
    everything, part = fitting(rows, wide), fitting(rows, narrow)
    assert [column.header for column in part.columns][:3] == ["point", "n", "accuracy %"]
    assert len(part.columns) < len(everything.columns)
    narrow.print(part)
    assert "…" not in narrow.file.getvalue(), "no number is cut"
