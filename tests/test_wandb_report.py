"""The W&B Report: the real library, its network calls answered by the stand-in, read back from the JSON it sends."""

import json
import re
import shutil
import sys
from types import SimpleNamespace

import pytest
import yaml
from running import typed
from test_tracker import Logged

from mmaccel.measure.tracker import push, pushed
from mmaccel.report.markdown import SIGNS, Sweep, escaped
from mmaccel.report.wandb_report import write_wandb_report
from tests.runfolder import make_run, points
from tests.wandb_server import ENTITY, Sent, WandbServer

interface = pytest.importorskip("wandb_workspaces.reports.v2.interface")
PANELS = {
    "Scatter Plot", "Run History Line Plot", "Bar Chart", "Parallel Coordinates Plot", "Run Comparer", "Weave",
}  # fmt: skip


@pytest.fixture
def server(monkeypatch):
    found = WandbServer()
    found.runs["one"] = Sent({"project": "mmaccel"})
    api = SimpleNamespace(
        projects=lambda entity: [SimpleNamespace(name="mmaccel")],
        client=SimpleNamespace(app_url="https://wandb.invalid"),
    )
    monkeypatch.setattr(interface, "_get_api", lambda: api)
    monkeypatch.setattr(interface, "execute_graphql", lambda api, query, given=None: found.answer(query, given or {}))
    return found


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run folder that job=report takes, pushed offline."""
    path = tmp_path_factory.mktemp("runs") / 'a "run" = <its> folder\'s'
    folder = make_run(path, n=6, count=7, with_pictures=1).path
    config = yaml.safe_load((folder / "config.yaml").read_text()) | {"points": points("", 7)}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    push(folder, entity=ENTITY)
    return folder


@pytest.fixture
def folder(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run", symlinks=True)


def sent(server) -> dict:
    """The spec of the one Report there is."""
    (view,) = server.views.values()
    return json.loads(view["spec"])


def grids(spec: dict) -> list[tuple[dict, list[dict]]]:
    """(field → value of the filter, panels) of every panel grid."""
    found = []
    for block in spec["blocks"]:
        if block["type"] == "panel-grid":
            (runs,) = block["metadata"]["runSets"]
            wanted = {one["key"]["name"]: one["value"] for one in runs["filters"]["filters"]}
            found.append((wanted, block["metadata"]["panelBankSectionConfig"]["panels"]))
    return found


def test_a_report_shows_this_sweep_by_the_keys_that_the_tracker_wrote(server, folder):
    group = pushed(folder)["group"]
    link = write_wandb_report(folder, entity=ENTITY, project="mmaccel", group=group)
    runs = [Logged(path) for path in folder.glob("wandb/offline-run-*")]
    assert {run.run.run_group for run in runs} == {group}
    spec = sent(server)
    assert link.startswith(f"https://wandb.invalid/{ENTITY}/mmaccel/reports/")
    assert {"table-of-contents", "markdown-block", "panel-grid"} <= {block["type"] for block in spec["blocks"]}
    assert {panel["viewType"] for _, panels in grids(spec) for panel in panels} == PANELS
    for wanted, panels in grids(spec):
        assert set(wanted) == {"group", "jobType"}
        assert wanted["group"] == group
        mine = [run for run in runs if run.run.job_type == wanted["jobType"]]
        summaries = {key for run in mine for key in run.summary}
        logged = {key for run in mine for line in run.history for key in line}
        for panel in panels:
            text = json.dumps(panel["config"])
            assert set(re.findall(r'"summary:([^"]+)"', text)) <= summaries
            for key in re.findall(r'"config:point\.value\.([^"]+)"', text):
                assert key in mine[0].config["point"]
            assert set(panel["config"].get("metrics") or []) <= (
                logged if panel["viewType"] == "Run History Line Plot" else summaries
            )
    pareto = grids(spec)[0][1][0]["config"]
    assert [pareto[axis] for axis in ("xAxis", "yAxis", "zAxis")] == [
        "summary:e2e_ms_p50", "summary:accuracy", "config:point.value.ratio",
    ]  # fmt: skip
    tables = json.dumps([panel for _, panels in grids(spec) for panel in panels if panel["viewType"] == "Weave"])
    assert '"samples"' in tables
    assert '"points"' in tables


def test_the_findings_are_text_that_nothing_renders(server, tmp_path):
    folder = make_run(tmp_path / "run", n=6, count=7, with_pictures=0, hostile=True).path
    write_wandb_report(folder, entity=ENTITY, project="mmaccel", group="g")
    (findings, facts) = (block["content"] for block in sent(server)["blocks"] if block["type"] == "markdown-block")
    assert findings.count("- **") == len(Sweep.read(folder).findings) > 2
    for text in (findings, facts, (folder / "report.md").read_text().split("## Points")[0]):
        ours = r"^#+ |^<https.*>$|(?<=^- )\*\*|\*\*(?=: )"  # headings, the link, titles in bold
        plain = re.sub(rf"\\.|{ours}", "", text, flags=re.MULTILINE)
        assert not SIGNS.search(plain), plain
    assert "onerror" in findings + facts, "the odd names are there"


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("keep_all", r"keep\_all"),
        ("two\nlines # x", r"two lines \# x"),
        ("[a](http://b.c)", r"\[a\](http:\/\/b.c)"),
        ("![x](y) www.z.org <b> $1$ @me", r"\!\[x\](y) www\.z.org \<b\> \$1\$ \@me"),
        ("a | b\\", r"a \| b\\"),
    ],
)
def test_markdown_is_escaped(given, shown):
    assert escaped(given) == shown


def test_a_second_call_updates_and_a_deleted_report_is_made_anew(server, folder):
    group = pushed(folder)["group"]
    first = write_wandb_report(folder, entity=ENTITY, project="mmaccel", group=group)
    (view,) = server.views.values()
    spec = json.loads(view["spec"])
    talk = [{"id": "t1", "text": "why so low?"}]
    view["spec"] = json.dumps(spec | {"discussionThreads": talk})
    assert write_wandb_report(folder, entity=ENTITY, project="mmaccel", group=group) == first
    assert sent(server)["discussionThreads"] == talk
    assert [block["type"] for block in sent(server)["blocks"]] == [block["type"] for block in spec["blocks"]]
    assert first in (folder / "report.md").read_text()
    server.views.clear()
    write_wandb_report(folder, entity=ENTITY, project="mmaccel", group=group)
    assert len(server.views) == 1


def test_what_is_missing_is_said_and_the_twin_is_written(server, folder, monkeypatch):
    twin = folder / "report.md"

    def refused(error: type[Exception], said: str, entity: str | None = ENTITY) -> None:
        twin.unlink(missing_ok=True)
        with pytest.raises(error, match=said):
            write_wandb_report(folder, entity=entity, project="mmaccel", group="g")
        assert "## Findings" in twin.read_text()
        assert "| fastv ratio=0.3 |" in twin.read_text()

    refused(ValueError, "tracker.entity: a value is needed", None)
    server.refused = "upsertView"
    refused(
        ConnectionError, f"no Report was saved in {ENTITY}/mmaccel: upsertView is not allowed; .*report.md says the"
    )
    server.refused = "ProjectInternalId"
    refused(ConnectionError, "ProjectInternalId is not allowed")
    monkeypatch.setitem(sys.modules, "wandb_workspaces.reports.v2", None)
    refused(ImportError, re.escape('pip install "mmaccel[report]"'))
    assert not server.views
    assert not (folder / "wandb" / "report.json").exists()


def test_the_job_prints_the_link(server, folder, monkeypatch, capsys):
    monkeypatch.setattr("mmaccel.measure.tracker.push", lambda folder, **_: "wandb sync X")
    monkeypatch.setattr("mmaccel.jobs.report.finish", lambda *_: None)  # tested with the runs
    words = ("job=report", f"run={folder}", "wandb.report=true", f"tracker.entity={ENTITY}")
    assert typed(monkeypatch, *words) == 0
    shown = capsys.readouterr().out
    assert re.search(
        rf"W&B Report: https://wandb.invalid/{ENTITY}/mmaccel/reports/fastv_sweep-\S+$", shown, re.MULTILINE
    )
    assert f"job=wandb_push run={folder} sends the runs" in shown, "nothing was sent to a server"
    assert grids(sent(server))[0][0]["group"] == pushed(folder)["group"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("job=report",), "run: a value is needed, the folder of a finished run"),
        (("job=wandb_push",), "run: a value is needed, the folder of a finished run"),
        (("job=wandb_push", "run=nowhere"), "run: nowhere is no folder"),
        (("job=report", "run={}", "wandb.report=maybe"), "wandb.report: got 'maybe', valid are true and false"),
        (("job=report", "run={}", "wandb=true"), "wandb: got True, valid are wandb.report=…"),
        (("job=report", "run={}", "+wandb.reprot=true"), "unknown key wandb.reprot (did you mean wandb.report?)"),
        (("job=report", "run={}", "wandb.report=true", "tracker=off"), "valid here is tracker=wandb"),
    ],
)
def test_mistakes_name_the_key(tmp_path, monkeypatch, capsys, words, said):
    (tmp_path / "records.jsonl").touch()
    assert typed(monkeypatch, *[word.format(tmp_path) for word in words]) == 2
    assert said in capsys.readouterr().err


def test_a_push_goes_online_and_where_the_run_went(folder, monkeypatch, capsys):
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["tracker"] = {"mode": "offline", "project": "theirs", "entity": "team"}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    calls = []
    monkeypatch.setattr("mmaccel.measure.tracker.push", lambda folder, **given: calls.append(given))
    monkeypatch.setattr("mmaccel.jobs.wandb_push.arrived", lambda folder: calls[-1]["mode"] == "online")
    for words, wanted in (
        ((), ("online", "theirs", "team")),
        (("tracker.project=mine", "tracker.mode=offline"), ("offline", "mine", "team")),
    ):
        assert typed(monkeypatch, "job=wandb_push", f"run={folder}", *words) == 0
        assert tuple(calls[-1][key] for key in ("mode", "project", "entity")) == wanted
    assert capsys.readouterr().out.count("all of it is on the server, team/theirs") == 1
    monkeypatch.setattr("mmaccel.jobs.wandb_push.arrived", lambda folder: False)
    assert typed(monkeypatch, "job=wandb_push", f"run={folder}") == 1
