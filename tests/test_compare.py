"""Finished runs compared: paired answers without times, refused where they saw something else."""

import json
import shutil

import pytest
from running import typed

from mmaccel.measure.record import RunFolder

ASK = ["benchmark.kinds=[colour]", "benchmark.n=3", "job.maps=1", "pruner=fastv", "job.warmup=0", "tracker=off"]
STRETCH = "model.image_processor={do_center_crop: false, size: {height: 336, width: 336}}"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The same questions: as the checkpoint says, again, and with other preprocessing."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        more = {"own": ["draft=lookup"], "again": ["pruner.ratio=0.9"], "stretched": [STRETCH]}
        more["shorter"] = ["sampler.max_new_tokens=1"]
        for name, words in more.items():
            assert typed(patch, *ASK, *words, f"output={folder / name}") == 0
    return folder


def compare(monkeypatch, runs, output, *words):
    return typed(monkeypatch, "job=compare", f"output={output}", *words)


def test_two_runs_are_one_folder_without_times(runs, tmp_path, monkeypatch):
    labelled = f"job.folders={{first: {runs / 'own'}, second: {runs / 'again'}}}"
    assert compare(monkeypatch, runs, tmp_path / "both", labelled) == 0
    records = RunFolder.open(tmp_path / "both").records()
    assert len(records) == 4 * 3
    names = {"baseline", "first: fastv", "second: baseline", "second: fastv"}
    assert {record["point"] for record in records} == names
    assert all(record["e2e_ms"] is None and record["stages_ms"] is None for record in records)
    rows = {row["point"]: row for row in json.loads((tmp_path / "both" / "summary.json").read_text())["points"]}
    assert rows["second: baseline"]["delta"] == 0.0, "the same model answered the same"
    assert rows["second: baseline"]["speedup_e2e"] is None
    assert (tmp_path / "both" / "report.html").is_file()
    assert [file.name for file in (tmp_path / "both" / "images").glob("test-0-colour-0-*.png")]


def test_other_preprocessing_is_refused_unless_it_is_what_is_compared(runs, tmp_path, monkeypatch, capsys):
    labelled = f"job.folders={{own: {runs / 'own'}, stretched: {runs / 'stretched'}}}"
    assert compare(monkeypatch, runs, tmp_path / "no", labelled) == 2
    said = capsys.readouterr().err
    wanted = "own and stretched differ in processor: the checkpoint's settings and size={'height': 336, 'width': 336}"
    assert wanted in said
    assert "job.across=[processor] compares across it" in said
    assert not (tmp_path / "no").exists()
    assert compare(monkeypatch, runs, tmp_path / "yes", labelled, "job.across=[processor]") == 0
    rows = {row["point"]: row for row in json.loads((tmp_path / "yes" / "summary.json").read_text())["points"]}
    assert rows["stretched: baseline"]["delta"] is not None
    assert rows["stretched: baseline"]["refused"] is None


def test_other_prompts_are_refused_by_the_records_themselves(runs, tmp_path, monkeypatch, capsys):
    shutil.copytree(runs / "again", tmp_path / "edited")
    file = tmp_path / "edited" / "records.jsonl"
    records = [json.loads(line) for line in file.read_text().splitlines()]
    records[0]["prompt_hash"] = "x"
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert compare(monkeypatch, runs, tmp_path / "no", f"job.folders=[{runs / 'own'},{tmp_path / 'edited'}]") == 2
    assert "edited saw other prompts than own on 1 of 3 samples" in capsys.readouterr().err


def test_other_questions_are_refused(runs, tmp_path, monkeypatch, capsys):
    shutil.copytree(runs / "again", tmp_path / "other")
    file = tmp_path / "other" / "provenance.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"benchmark": "another"}))
    assert compare(monkeypatch, runs, tmp_path / "no", f"job.folders=[{runs / 'own'},{tmp_path / 'other'}]") == 2
    assert "own and other differ in benchmark" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["job.folders=[a]"], ["job.folders=[a,b]", "job.across=[pictures]"]])
def test_what_is_typed_wrong_is_named(words, tmp_path, monkeypatch, capsys):
    assert typed(monkeypatch, "job=compare", *words) == 2
    assert words[-1].split("=")[0] in capsys.readouterr().err


def test_two_folders_of_one_name_need_labels(runs, tmp_path, monkeypatch, capsys):
    shutil.copytree(runs / "own", tmp_path / "elsewhere" / "own")
    folders = f"job.folders=[{runs / 'own'},{tmp_path / 'elsewhere' / 'own'}]"
    assert compare(monkeypatch, runs, tmp_path / "no", folders) == 2
    assert "have one name, valid is label: folder" in capsys.readouterr().err


def test_answers_of_other_lengths_are_no_pair(runs, tmp_path, monkeypatch, capsys):
    assert compare(monkeypatch, runs, tmp_path / "no", f"job.folders=[{runs / 'own'},{runs / 'shorter'}]") == 2
    assert "own and shorter differ in sampler: {'max_new_tokens': (None, 1)}" in capsys.readouterr().err


def test_runs_without_a_common_sample_are_refused(runs, tmp_path, monkeypatch, capsys):
    shutil.copytree(runs / "again", tmp_path / "other")
    file = tmp_path / "other" / "records.jsonl"
    file.write_text(file.read_text().replace("test-0-colour", "test-1-colour"))
    assert compare(monkeypatch, runs, tmp_path / "no", f"job.folders=[{runs / 'own'},{tmp_path / 'other'}]") == 2
    assert "own and other share no sample" in capsys.readouterr().err
