"""W&B: what is in the offline log, what `wandb sync` brings to a server, that a second push does not double, and that
nothing there can stop a run."""

import glob
import hashlib
import json
import os
import shlex
import shutil
import struct
import time
from pathlib import Path

import numpy as np
import pytest
import yaml
from wandb.proto import wandb_internal_pb2

from mmaccel import registry
from mmaccel.measure import artifacts, tracker
from mmaccel.measure.record import RunFolder
from mmaccel.measure.tracker import NoTracker, Wandb, arrived, push, written
from tests.runfolder import HOSTILE, make_run, points, record
from tests.wandb_server import ENTITY, KEY, wandb_server

BLOCK = 32768


def log_records(file: Path):
    """The protobuf records of a .wandb file: LevelDB's log format after a seven-byte header, as wandb writes it."""
    data, parts, at = file.read_bytes(), [], 7
    assert data[:4] == b":W&B"
    while at + 7 <= len(data):
        if BLOCK - at % BLOCK < 7:
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        parts.append(data[at + 7 : at + 7 + length])
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield wandb_internal_pb2.Record.FromString(b"".join(parts))
            parts = []


class Logged:
    """One offline run, decoded."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.history, self.summary, self.config, self.artifacts = folder, [], {}, {}, []
        (file,) = folder.glob("*.wandb")
        for one in log_records(file):
            kind = one.WhichOneof("record_type")
            if kind == "run":
                self.run = one.run
                self.config |= {item.key: json.loads(item.value_json) for item in one.run.config.update}
            elif kind == "history":
                self.history.append({name(item): json.loads(item.value_json) for item in one.history.item})
            elif kind == "artifact":
                self.artifacts.append(one.artifact)
            elif kind == "summary":
                self.summary |= {name(item): json.loads(item.value_json) for item in one.summary.update}

    def table(self, key: str) -> dict:
        (found,) = [line[f"{key}.path"] for line in self.history if f"{key}.path" in line]
        return json.loads((self.folder / "files" / found).read_text())


def name(item) -> str:
    """`nested_key` is a path, of length one for a plain key."""
    return item.key or ".".join(item.nested_key)


def of_type(run: Logged, kind: str):
    (found,) = [artifact for artifact in run.artifacts if artifact.type == kind]
    return found


@pytest.fixture(scope="module")
def pushed(tmp_path_factory):
    folder = make_run(tmp_path_factory.mktemp("runs") / "a run's folder", n=12, count=7, with_pictures=2).path
    started = time.perf_counter()
    line = push(folder, project="tests")
    assert time.perf_counter() - started < 120
    return folder, line, {(run := Logged(path)).run.display_name: run for path in folder.glob("wandb/offline-run-*")}


def test_every_point_has_config_summary_history_and_table(pushed):
    folder, _, runs = pushed
    rows = {row["point"]: row for row in json.loads((folder / "summary.json").read_text())["points"]}
    assert set(runs) == {*rows, "sweep"}
    for point, row in rows.items():
        run = runs[point]
        assert run.run.project == "tests"
        assert run.config["point"]["point"] == point
        assert run.config["point"]["ratio"] == row["ratio"]
        assert run.config["pruner"]["layer"] == 2
        assert run.config["provenance"]["seed"] == 0
        assert run.summary["accuracy"] == row["accuracy"]
        assert run.summary["e2e_ms_p50"] == pytest.approx(row["e2e_ms_p50"])
        assert [run.summary["accuracy_low"], run.summary["accuracy_high"]] == row["accuracy_ci"]
        assert "alpha" not in run.summary
        times = [line["e2e_ms"] for line in run.history if "e2e_ms" in line]
        assert times == [r["e2e_ms"] for r in RunFolder.open(folder).records() if r["point"] == point]
        table = run.table("samples")
        assert len(table["data"]) == 12
        assert table["columns"][5] == f"{point}: reply"
        assert table["data"][0][3].startswith("What is written")
    assert len({run.run.run_group for run in runs.values()}) == 1


def test_pictures_and_survivors_are_in_the_table_and_staged_in_the_run_folder(pushed):
    folder, _, runs = pushed
    artifact = of_type(runs["fastv ratio=0.5"], "run_table")
    staged = {entry.path: Path(entry.local_path) for entry in artifact.manifest.contents}
    assert all(file.is_file() and file.is_relative_to(folder.resolve()) for file in staged.values())
    table = json.loads(staged["samples.table.json"].read_text())
    for cell in (table["data"][0][2], table["data"][0][7]):
        assert cell["_type"] == "image-file"
        assert cell["path"] in staged
    assert table["data"][2][2] is None, "the third sample has no picture"


def test_the_aggregate_has_curves_table_and_pareto(pushed):
    _, _, runs = pushed
    sweep = runs["sweep"]
    assert sweep.run.job_type == "sweep"
    curve = [(line["mean_visual"], line["accuracy/fastv"]) for line in sweep.history if "accuracy/fastv" in line]
    assert len(curve) == 5
    assert curve == sorted(curve, key=lambda pair: pair[0])
    table = sweep.table("points")
    assert len(table["data"]) == 7
    assert any(key.startswith("pareto") for line in sweep.history for key in line)
    assert len(sweep.table("samples")["columns"]) == 5 + 3 * 7


def test_the_aggregate_carries_the_run_folder(pushed):
    folder, _, runs = pushed
    artifact = of_type(runs["sweep"], "run-folder")
    files = {entry.path: Path(entry.local_path) for entry in artifact.manifest.contents}
    assert set(files) == {"records.jsonl", "points.csv", "summary.json", "config.yaml", "provenance.json"}
    assert all(file.read_bytes() == (folder / name).read_bytes() for name, file in files.items())
    said = json.loads(artifact.metadata)
    assert said["run"] == json.loads((folder / "provenance.json").read_text())["run"]
    assert said["heads"] == {}
    assert artifact.name == f"fastv_sweep-{said['run'][:8]}"


def training(folder: Path) -> Path:
    """What job=train leaves, without a training."""
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "trainer.pt").write_bytes(b"optimiser")
    (folder / "config.json").write_text(json.dumps({"mmaccel": {"head": "eagle", "step": 4, "target": "pico"}}))
    (folder / "log.jsonl").write_text('{"step": 4, "loss_0": 1.5}\n')
    node = {"data": {"path": "chats.json"}, "pruner": {"layer": 2, "ratio": 0.5}, "job": {"plan": {"steps": 4}}}
    (folder / "run.yaml").write_text(yaml.safe_dump(node))
    facts = {"run": "0123456789ab", "model_path": "~/pico", "weights": {"sha256": "5e0f"}, "seed": 1}
    (folder / "provenance.json").write_text(json.dumps(facts))
    return folder


def test_a_training_carries_its_head_and_what_it_came_from(tmp_path):
    folder = training(tmp_path / "head")
    assert push(folder) is not None
    (run,) = map(Logged, folder.glob("wandb/offline-run-*"))
    artifact = of_type(run, "draft-head")
    assert {entry.path for entry in artifact.manifest.contents} == {"config.json", "model.safetensors"}
    said = json.loads(artifact.metadata)
    assert said["data"] == {"path": "chats.json"}
    assert said["target"] == {"path": "~/pico", "weights": {"sha256": "5e0f"}}
    assert said["pruner"] == {"layer": 2, "ratio": 0.5}
    assert said["head"]["step"] == 4
    assert artifact.name == "eagle-01234567"


def test_a_run_folder_names_the_heads_that_drafted_in_it(tmp_path):
    folder = training(tmp_path / "head")
    gate = {"head": {"folder": str(folder), "beam": None}, "first": 4}
    names = ("gate", "shipped", "lookup", None)
    config = {
        "points": [{"name": str(name), "draft": name} for name in names],
        "draft": {"ngram": 3}, "drafts": {"gate": gate},
        "heads": {"shipped": {"folder": "pico-eagle"}, "idle": {"folder": "pico-medusa"}},
    }  # fmt: skip
    heads = {name: artifacts.head(node) for name, node in artifacts.drafts(config).items()}
    assert set(heads) == {"gate", "shipped", "lookup"}
    assert heads["gate"]["artifact"] == "eagle-01234567"
    assert heads["gate"]["sha256"] == hashlib.sha256(b"weights").hexdigest()
    assert heads["shipped"]["head"]["target"] == "pico"
    assert "artifact" not in heads["shipped"]
    assert heads["lookup"] == {}


def test_the_line_names_the_folders(pushed):
    folder, line, runs = pushed
    command, word, pattern = shlex.split(line)
    assert (command, word) == ("wandb", "sync")
    assert sorted(glob.glob(glob.escape(str(folder)) + pattern.removeprefix(str(folder)))) == sorted(
        str(run.folder) for run in runs.values()
    )


def test_a_second_push_writes_nothing_and_more_records_replace_the_same_runs(pushed, tmp_path):
    folder, line, runs = pushed
    before = sorted(os.listdir(folder / "wandb"))
    assert push(folder, project="tests") == line
    assert sorted(os.listdir(folder / "wandb")) == before
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy, symlinks=True)
    with RunFolder.resume(copy, yaml.safe_load((copy / "config.yaml").read_text())) as again:
        again.append(record(points()[0], 99, np.random.default_rng(0), 0.1, ""))
    push(copy, project="tests")
    after = [Logged(path) for path in copy.glob("wandb/offline-run-*")]
    assert sorted(run.run.run_id for run in after) == sorted(run.run.run_id for run in runs.values())
    (base,) = [run for run in after if run.run.display_name == "baseline"]
    assert len([one for one in base.history if "e2e_ms" in one]) == 13


def small(path: Path) -> Path:
    """A pushed folder without W&B's part in it: what synced() sees."""
    run = path / "wandb" / "offline-run-1-abc"
    run.mkdir(parents=True)
    (run / "run-abc.wandb").write_bytes(b"")
    return run


def test_a_dead_server_and_a_wrong_key_cost_a_warning_within_the_deadline(pushed, monkeypatch):
    folder, line, _ = pushed
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    started = time.perf_counter()
    with pytest.warns(UserWarning, match="stay offline"):
        assert push(folder, project="tests", mode="online", seconds=4) == line
    assert time.perf_counter() - started < 20


@pytest.fixture
def server(monkeypatch):
    with wandb_server() as found:
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        monkeypatch.setenv("WANDB_BASE_URL", found.url)
        yield found


def of_run(server, name: str):
    (sent,) = [run for run in server.runs.values() if run.fields["displayName"] == name]
    return sent


def test_a_finished_folder_arrives_whole(server, tmp_path, monkeypatch):
    """The real `wandb sync`, which sees a server that records what it is sent."""
    monkeypatch.chdir(tmp_path)
    folder = make_run(tmp_path / "run", n=4, count=3, with_pictures=1).path
    rows = json.loads((folder / "summary.json").read_text())["points"]
    assert push(folder, project="tests", entity=ENTITY, mode="online") is None
    assert arrived(folder)
    assert {run.fields["displayName"] for run in server.runs.values()} == {"sweep", *(row["point"] for row in rows)}
    assert {run.fields["groupName"] for run in server.runs.values()} == {tracker.pushed(folder)["group"]}
    assert {(run.fields["entity"], run.fields["project"]) for run in server.runs.values()} == {(ENTITY, "tests")}
    for row in rows:
        sent = of_run(server, row["point"])
        assert sent.complete
        assert sent.config["point"]["ratio"] == row["ratio"]
        assert sent.config["provenance"]["seed"] == 0
        assert sent.summary["accuracy"] == row["accuracy"]
        times = [line["e2e_ms"] for line in sent.history if "e2e_ms" in line]
        assert times == [r["e2e_ms"] for r in RunFolder.open(folder).records() if r["point"] == row["point"]]
    curves = [line for line in of_run(server, "sweep").history if "accuracy/fastv" in line]
    assert len(curves) == 1
    (whole,) = server.of_type("run-folder")
    assert whole["committed"]
    assert {name: server.uploads[path] for name, path in whole["files"].items()} == {
        name: (folder / name).read_bytes()
        for name in ("records.jsonl", "points.csv", "summary.json", "config.yaml", "provenance.json")
    }
    tables = server.of_type("run_table")
    assert len(tables) == 3 + 2, "the samples of every point; samples and points of the sweep"
    assert all(table["committed"] for table in tables)
    pictures = [name for table in tables for name in table["files"] if name.endswith(".png")]
    assert len(pictures) == 4 + 2, "one sample's picture in four tables, its survival map in two"
    assert sorted(os.listdir(tmp_path)) == ["run"], "nothing is left where it was started"
    # again: the same runs and versions, whatever had to be sent
    before = {name: len(run.history) for name, run in server.runs.items()}, set(server.artifacts)
    assert push(folder, project="tests", entity=ENTITY, mode="online") is None
    for mark in folder.glob("wandb/offline-run-*/*.sync*"):
        mark.unlink()
    assert push(folder, project="tests", entity=ENTITY, mode="online") is None
    assert before == ({name: len(run.history) for name, run in server.runs.items()}, set(server.artifacts))


def test_what_the_server_refuses_is_not_called_synced(server, tmp_path):
    """wandb itself marks such a run as synced and ends with 0."""
    folder = training(tmp_path / "head")
    for server.refused in ("upload", "CreateArtifact", "CreateRunFiles", "UpsertBucket"):
        with pytest.warns(UserWarning, match="1 of 1 runs stay offline .*(not allowed|no more room|have failed)"):
            assert push(folder, entity=ENTITY, mode="online").startswith("wandb sync")
        assert not arrived(folder)
    server.refused = ""
    assert push(folder, entity=ENTITY, mode="online") is None
    (head,) = server.of_type("draft-head")
    assert head["committed"]
    assert server.uploads[head["files"]["model.safetensors"]] == b"weights"


def test_what_was_synced_is_not_named_again(tmp_path, monkeypatch):
    run = small(tmp_path)

    def sync(command, environment, seconds):
        assert command[1:4] == ["-m", "wandb", "sync"]
        run.joinpath("run-abc.wandb.synced").touch()
        return 0, ""

    monkeypatch.setattr(tracker, "run_child", sync)
    monkeypatch.setattr(tracker, "written", lambda *_: [run])
    assert push(tmp_path, mode="online") is None
    monkeypatch.setattr(tracker, "written", written)
    digest = tracker.content_digest(tmp_path, str(tmp_path), "mmaccel", None, 32)
    (tmp_path / "wandb" / "pushed.json").write_text(json.dumps({"digest": digest, "runs": [run.name]}))
    assert push(tmp_path) is None


def test_auto_needs_a_key(tmp_path, monkeypatch):
    run, calls = small(tmp_path), []
    monkeypatch.setattr(tracker, "written", lambda *_: [run])
    monkeypatch.setattr(tracker, "run_child", lambda *given: calls.append(given) or (0, ""))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    assert push(tmp_path, mode="auto").startswith("wandb sync")
    assert not calls
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    with pytest.warns(UserWarning, match="1 of 1 runs stay offline"):
        push(tmp_path, mode="auto")
    assert calls


def test_a_broken_folder_is_a_warning(tmp_path):
    with pytest.warns(UserWarning, match="nothing was written"):
        assert push(tmp_path / "nowhere") is None


def test_a_child_past_its_deadline_is_ended_with_its_children():
    started = time.perf_counter()
    code, output = tracker.run_child(["sh", "-c", "echo hello; sleep 60 & sleep 60"], dict(os.environ), 0.5)
    assert (code, output.strip()) == (None, "hello")
    assert time.perf_counter() - started < 10


def test_hostile_text_passes(tmp_path):
    folder = make_run(tmp_path / "run", n=2, count=4, with_pictures=1, hostile=True).path
    assert push(folder) is not None
    names = {Logged(path).run.display_name for path in folder.glob("wandb/offline-run-*")}
    assert f"fastv ratio=0.3{HOSTILE}".encode("utf-8", "replace").decode() in names


def test_the_yamls_build_trackers(tmp_path):
    assert registry.build("tracker", "wandb") == Wandb()
    assert registry.build("tracker", "off") == NoTracker()
    assert NoTracker().push(tmp_path) is None
    with pytest.raises(ValueError, match=r"got 'live', valid are \['offline', 'online', 'auto'\]"):
        Wandb(mode="live")
    with pytest.raises(ValueError, match=r"tracker.seconds: got 0, valid are numbers above 0"):
        Wandb(seconds=0)
