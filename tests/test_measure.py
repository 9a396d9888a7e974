"""The run folder survives kills, refuses what would spoil it and names why; the clock's stages never overlap."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
import yaml

from mmaccel.measure.clock import Clock
from mmaccel.measure.provenance import command_line, file_hash, parameter_hash, provenance, without_home
from mmaccel.measure.record import (
    POINT_COLUMNS,
    RECORD_KEYS,
    RunFolder,
    changed_keys,
    picture_name,
    read_records,
    repair,
    write_points,
)

CONFIG = {"model": "pico", "pruner": {"ratio": 0.5, "layer": 2}, "tracker": {"mode": "offline"}, "resume": None}


def line(sample, point="a", turn=0, **more):
    return {"point": point, "sample": str(sample), "turn": turn, **more}


@pytest.fixture
def folder(tmp_path):
    with RunFolder.create(tmp_path / "run", CONFIG, {"seed": 0}) as made:
        yield made


def test_a_record_holds_exactly_the_contract(folder):
    folder.append(line(1, score={"correct": 1.0}, tokens={"prompt": 9, "kept": [4]}))
    (record,) = folder.records()
    assert list(record) == list(RECORD_KEYS)
    assert record["score"] == {"correct": 1.0}
    assert record["e2e_ms"] is None
    with pytest.raises(ValueError, match=r"unknown keys \['speed'\].*e2e_ms"):
        folder.append(line(2, speed=3))
    with pytest.raises(ValueError, match=r"tokens\.keep"):
        folder.append(line(2, tokens={"keep": 3}))
    with pytest.raises(ValueError, match=r"'turn': got '0', expected int"):
        folder.append({"point": "a", "sample": "2", "turn": "0"})
    with pytest.raises(ValueError, match=r"'tokens': got 3"):
        folder.append(line(2, tokens=3))
    assert len(folder.records()) == 1


def test_a_doubled_record_is_refused(folder):
    folder.append(line(1))
    with pytest.raises(ValueError, match="already in"):
        folder.append(line(1))
    folder.append(line(1, turn=1))
    assert folder.done() == {("a", "1", 0), ("a", "1", 1)}


def test_odd_values_survive(folder):
    text = "line\u2028separator \ud83d lone surrogate\n</script>"
    folder.append(line(1, prediction=text, e2e_ms=float("nan"), ids=torch.tensor([3, 4]), ttft_ms=torch.tensor(2.5)))
    (record,) = folder.records()
    assert record["prediction"] == text
    assert (record["e2e_ms"], record["ids"], record["ttft_ms"]) == (None, [3, 4], 2.5)


@pytest.mark.parametrize("cut", [1, 2, 10, 40])
def test_a_torn_last_line_is_repaired_and_its_record_done_again(folder, cut):
    for sample in range(3):
        folder.append(line(sample))
    folder.close()
    file = folder.path / "records.jsonl"
    whole = file.read_bytes()
    os.truncate(file, len(whole) - cut)
    assert len(RunFolder.open(folder.path).records()) == (3 if cut == 1 else 2)
    assert len(file.read_bytes()) == len(whole) - cut, "a reader must not touch the file: its writer may be alive"
    with RunFolder.resume(folder.path, CONFIG) as again:
        missing = {("a", str(s), 0) for s in range(3)} - again.done()
        for _, sample, _ in missing:
            again.append(line(sample))
    assert file.read_bytes() == whole


def test_a_line_of_zeros_after_a_power_cut_is_cut_off(tmp_path):
    file = tmp_path / "records.jsonl"
    good = json.dumps(line(1)).encode() + b"\n"
    file.write_bytes(good + b"\0" * 30 + b"\n")
    repair(file)
    assert file.read_bytes() == good
    file.write_bytes(b"\0" * 30)
    repair(file)
    assert file.read_bytes() == b""


def test_damage_in_the_middle_is_an_error_with_its_line(tmp_path):
    file = tmp_path / "records.jsonl"
    file.write_text(json.dumps(line(1)) + "\n{broken\n" + json.dumps(line(2)) + "\n")
    with pytest.raises(ValueError, match="line 2"):
        read_records(file)


def test_resume_refuses_a_changed_config_and_names_the_keys(folder):
    folder.close()
    harmless = CONFIG | {"tracker": {"mode": "online"}, "resume": "here", "output": "x"}
    RunFolder.resume(folder.path, harmless).close()
    changed = CONFIG | {"pruner": {"ratio": 0.7, "layer": 2}, "seed": 1}
    with pytest.raises(ValueError, match=r"pruner\.ratio: was 0\.5, now 0\.7\n  seed: was None, now 1"):
        RunFolder.resume(folder.path, changed)
    assert yaml.safe_load((folder.path / "config.yaml").read_text()) == CONFIG
    with pytest.raises(FileNotFoundError, match="no run folder"):
        RunFolder.resume(folder.path / "elsewhere", CONFIG)


def test_tuples_and_lists_are_the_same_config():
    assert changed_keys({"a": {"b": [1, 2]}}, {"a": {"b": (1, 2)}}) == {}
    assert changed_keys({"a": {}}, {"a": {"b": None}}) == {"a": ({}, None)}
    assert changed_keys({}, {"new": {"key": None}, "quality": {"action": "off", "min_side": 56}}) == {}
    assert changed_keys({}, {"quality": {"action": "drop"}}) == {"quality.action": (None, "drop")}
    assert changed_keys({"a": 1}, {"a": 1.5}) == {"a": (1, 1.5)}


def test_resumed_provenance_is_noted(folder):
    folder.close()
    RunFolder.resume(folder.path, CONFIG, {"seed": 0, "device": "other"}).close()
    assert json.loads((folder.path / "provenance.json").read_text())["resumed"] == [{"seed": 0, "device": "other"}]


def test_create_never_overwrites_and_a_reader_never_appends(folder):
    with pytest.raises(FileExistsError, match="resume="):
        RunFolder.create(folder.path, CONFIG, {})
    with pytest.raises(ValueError, match="opened for reading"):
        RunFolder.open(folder.path).append(line(1))


def test_a_second_writer_is_refused(folder):
    code = f"from mmaccel.measure.record import RunFolder; RunFolder.resume({str(folder.path)!r}, {CONFIG!r})"
    second = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ)
    assert "another process is writing" in second.stderr


def append_until_killed(path, config):
    with RunFolder.resume(path, config) as folder:
        for sample in range(100_000):
            if ("a", str(sample), 0) not in folder.done():
                folder.append(line(sample, prediction="x" * 200))


def test_kill_9_and_resume_loses_nothing_and_doubles_nothing(folder):
    folder.close()
    file = folder.path / "records.jsonl"
    context = multiprocessing.get_context("fork")
    before = 0
    for _ in range(3):
        writer = context.Process(target=append_until_killed, args=(folder.path, CONFIG))
        writer.start()
        deadline = time.monotonic() + 20
        while file.stat().st_size < before + 3000 and time.monotonic() < deadline:
            time.sleep(0.005)
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
        assert file.stat().st_size > before
        before = file.stat().st_size
    with RunFolder.resume(folder.path, CONFIG) as again:
        samples = [int(record["sample"]) for record in again.records()]
    assert samples == list(range(len(samples)))


def test_points_and_summary(folder):
    rows = [
        {"point": 'a "b", c', "n": 3, "accuracy": 1 / 3, "accuracy_ci": (0.0, 0.5), "net_slower": False}
        | {"kinds": {"x": 1}},
        {"point": "base", "baseline": True},
    ]
    write_points(folder, rows, {"benchmark": {"f1": 0.5}})
    header, first, second = (folder.path / "points.csv").read_text().splitlines()
    assert header == ",".join(POINT_COLUMNS)
    assert first.startswith('"a ""b"", c",,,,,3,0.333333,"[0, 0.5]",,')
    assert first.endswith(",false,,,,")
    assert second == "base" + "," * (len(POINT_COLUMNS) - 1)
    summary = json.loads((folder.path / "summary.json").read_text())
    assert summary["baseline"] == "base"
    assert summary["benchmark"] == {"f1": 0.5}
    assert summary["points"][0]["kinds"] == {"x": 1}


def test_picture_names_are_safe_and_distinct():
    hostile = picture_name("../../etc/passwd<script>", "fastv 0.5")
    assert "/" not in hostile
    assert "<" not in hostile
    assert picture_name("a b") != picture_name("a-b") != picture_name("a-b", "p")


def test_nested_stages_do_not_overlap():
    clock = Clock("cpu")
    for _ in range(2):
        with clock.stage("prefill"):
            time.sleep(0.004)
            with clock.stage("prune"):
                time.sleep(0.010)
    with pytest.raises(RuntimeError, match="boom"), clock.stage("decode"):
        raise RuntimeError("boom")
    with clock.stage("open"), pytest.raises(RuntimeError, match="'open' is still open"):
        clock.ms()
    times = clock.ms()
    assert list(times) == ["prefill", "prune", "decode", "open"]
    assert 19.9 < times["prune"] < 100
    assert 7.9 < times["prefill"] < 100
    clock.reset()
    assert clock.ms() == {}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_cuda_stages_time_the_device():
    clock, x = Clock("cuda"), torch.randn(4096, 4096, device="cuda")
    with clock.stage("decode"):
        for _ in range(20):
            x = x @ x / 64
    assert clock.ms()["decode"] > 1


def test_provenance_says_where_numbers_come_from(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "run.py"), "pruner.ratio=0.5", "a b"])
    model = torch.nn.Linear(3, 2)
    facts = provenance(model, seed=7)
    assert facts["versions"]["torch"] == torch.__version__
    assert facts["seed"] == 7
    assert facts["dtype"] == "float32"
    assert facts["parameters"] == 8
    assert str(tmp_path) not in json.dumps(facts)
    assert facts["git"] is None or len(facts["git"]["sha"]) == 40
    assert command_line()[0] == "python"
    assert without_home(f"{tmp_path}/x {tmp_path}2") == f"~/x {tmp_path}2"


def test_weight_hash_changes_with_any_weight(tmp_path, monkeypatch):
    model = torch.nn.Linear(4, 4)
    before = parameter_hash(model)
    with torch.no_grad():
        model.bias[2] += 1
    assert parameter_hash(model) != before
    file = tmp_path / "a.safetensors"
    file.write_bytes(bytes(3 << 20))
    whole = file_hash([file])
    assert whole == provenance(path=tmp_path)["weights"]
    with open(file, "r+b") as stream:
        stream.seek(2_500_000)
        stream.write(b"x")
    assert file_hash([file])["sha256"] != whole["sha256"]
    monkeypatch.setattr("mmaccel.measure.provenance.WHOLE_BYTES", 0)
    assert file_hash([file])["of"].startswith("samples")


def test_resume_refuses_another_model_device_or_library_and_names_them(tmp_path):
    facts = {
        "weights": {"sha256": "aa", "of": "files"}, "dtype": "float32", "attention": "sdpa", "threads": 1, "seed": 0,
        "device": {"type": "cpu", "name": "x", "cores": 2}, "benchmark": "bb", "git": {"sha": "1", "dirty": False},
        "versions": {"mmaccel": "0", "torch": "2", "transformers": "5", "wandb": "1"},
    }  # fmt: skip
    RunFolder.create(tmp_path / "run", CONFIG, facts).close()
    free = facts | {"git": {"sha": "2", "dirty": True}, "device": {"type": "cpu", "name": "x", "cores": 4}}
    RunFolder.resume(tmp_path / "run", CONFIG, free).close()
    for key, value, said in (
        ("weights", {"sha256": "cc", "of": "files"}, r"weights\.sha256: was 'aa', now 'cc'"),
        ("dtype", "bfloat16", "dtype: was 'float32', now 'bfloat16'"),
        ("attention", "eager", "attention: was"),
        ("threads", 2, "threads: was 1, now 2"),
        ("benchmark", "dd", "benchmark: was 'bb', now 'dd'"),
        ("device", {"type": "cuda", "name": "y"}, r"device\.type: was 'cpu', now 'cuda'"),
        ("versions", facts["versions"] | {"transformers": "6"}, r"versions\.transformers: was '5', now '6'"),
    ):
        with pytest.raises(ValueError, match=said):
            RunFolder.resume(tmp_path / "run", CONFIG, facts | {key: value})
