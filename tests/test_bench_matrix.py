"""Every benchmark's miniature through a whole run on a tiny random model: no error record, its scores on the page."""

import inspect
import json
import re
from pathlib import Path

import pytest
from running import typed, write_tiny_llava

from mmaccel import registry
from mmaccel.measure.record import RunFolder

DATA = Path(__file__).parent / "data"
PLACES = {  # benchmark → its miniature, and what else it needs
    "chartqa": ["test-00000-of-00001.parquet"], "coco_captions": ["val.parquet"], "docvqa": ["DocVQA_VAL.tsv"],
    "dialogues": ["chats.json", "benchmark.images={}/images"],
    "gqa": ["testdev_balanced_instructions", "benchmark.pictures={}/testdev_balanced_images"],
    "hallusionbench": ["image.parquet"], "infovqa": ["validation-00000-of-00001.parquet"],
    "llava_bench": ["train.parquet"], "mmbench": ["MMBench_DEV_EN.tsv", "benchmark.incomplete=complete"],
    "mme": ["test.parquet"], "mmmu": ["validation-00000-of-00001.parquet"], "mmvet": ["test.parquet"],
    "ocrbench": ["test-00000-of-00001.parquet"], "pope": ["test.parquet"], "realworldqa": ["RealWorldQA.tsv"],
    "scienceqa": ["ScienceQA_TEST.tsv"], "textvqa": ["validation-00000-of-00001.parquet"],
    "vqav2": ["validation-00000-of-00001.parquet"],
    "scenes": [], "scenes_circular": [], "scenes_dialogue": [],
}  # fmt: skip
ELSEWHERE = {"folder"}  # tests/test_folder.py, tests/test_run.py


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write_tiny_llava(tmp_path_factory.mktemp("tiny"))


def test_no_benchmark_is_forgotten():
    assert set(registry.names("benchmark")) == PLACES.keys() | ELSEWHERE


@pytest.mark.parametrize("name", PLACES)
def test_a_miniature_runs(name, checkpoint, tmp_path, monkeypatch):
    file, more = (PLACES[name] or [None])[0], PLACES[name][1:]
    words = [f"benchmark.path={DATA / name / file}"] if file else []
    words += [word.format(DATA / name) for word in more] + (["limit=5"] if not file else [])
    sampler = ["sampler.max_new_tokens=3", "job.timed=0", "job.maps=1", "tracker=off", "machine.threads=1"]
    code = typed(monkeypatch, "pruner=fastv", "pruner.layer=1", f"model.path={checkpoint}", f"benchmark={name}", *words,
                 *sampler, f"output={tmp_path / 'run'}")  # fmt: skip
    assert code == 0
    records = RunFolder.open(tmp_path / "run").records()
    assert {record["point"] for record in records} == {"baseline", "fastv"}
    assert {record["benchmark"] for record in records} == {name.split("_")[0] if name.startswith("scenes") else name}
    assert not [record["error"] for record in records if record["error"] and "empty" not in record["error"]]
    assert all({"width", "height", "sharpness", "bucket"} <= set(record["image"]) for record in records)
    rows = json.loads((tmp_path / "run" / "summary.json").read_text())["points"]
    assert all(score["value"] is None or score["value"] >= 0 for row in rows for score in row["official"].values())
    page = (tmp_path / "run" / "report.html").read_text()
    assert ("The benchmark's own scores".replace("'", "&#x27;") in page) == any(row["official"] for row in rows)


def test_a_reports_own_scores_are_made_where_they_are_missing(checkpoint, tmp_path, monkeypatch, capsys):
    words = [f"model.path={checkpoint}", "benchmark=mme", f"benchmark.path={DATA / 'mme' / 'test.parquet'}"]
    words += ["job.timed=0", "sampler.max_new_tokens=2", "tracker=off", f"output={tmp_path / 'run'}"]
    assert typed(monkeypatch, *words) == 0
    summary = tmp_path / "run" / "summary.json"
    before = json.loads(summary.read_text())["points"]
    assert before[0]["official"]
    summary.unlink()
    assert typed(monkeypatch, "job=report", f"run={tmp_path / 'run'}") == 0
    assert json.loads(summary.read_text())["points"] == before
    monkeypatch.setattr("mmaccel.benchmarks.mme.Mme.__post_init__", lambda self: pytest.fail("opened again"))
    assert typed(monkeypatch, "job=report", f"run={tmp_path / 'run'}") == 0
    assert json.loads(summary.read_text())["points"] == before


def test_the_main_experiment_runs_on_a_published_benchmark(checkpoint, tmp_path, monkeypatch):
    """With draft heads on kinds that a benchmark over rows does not name."""
    words = ["model=llava", f"model.path={checkpoint}", "benchmark=pope", "limit=1"]
    words += [f"benchmark.path={DATA / 'pope' / 'test.parquet'}", "sweep.pruner.ratio=[0.5]"]
    words += ["sampler.max_new_tokens=2", "+heads.lookup={_target_: mmaccel.drafting.lookup.Lookup}"]
    words += ["job.timed=0", "tracker=off"]
    words += ["pruner.layer=1", "controls.fastv_scaled.layer=1", f"output={tmp_path / 'run'}"]
    assert typed(monkeypatch, "+experiment=fastv_sweep", *words) == 0


def test_a_workload_of_free_text_has_the_length_that_is_asked(checkpoint, tmp_path, monkeypatch, capsys):
    path = DATA / "llava_bench" / "train.parquet"
    words = [f"model.path={checkpoint}", "benchmark=llava_bench", f"benchmark.path={path}"]
    words += ["pruner=fastv", "pruner.layer=1", "draft=lookup", "job.warmup=1", "tracker=off"]
    fixed = ["sampler.max_new_tokens=7", "sampler.min_new_tokens=7", f"output={tmp_path / 'run'}"]
    assert typed(monkeypatch, *words, *fixed) == 0
    records = RunFolder.open(tmp_path / "run").records()
    assert {(record["tokens"]["generated"], record["finish"]) for record in records} == {(7, "length")}
    assert typed(monkeypatch, *words, "sampler.max_new_tokens=5", "sampler.min_new_tokens=7") == 2
    assert "sampler.min_new_tokens: got 7, valid are null and at most max_new_tokens = 5" in capsys.readouterr().err


@pytest.mark.parametrize("name", sorted(PLACES.keys() - {"scenes", "scenes_circular", "scenes_dialogue"}))
def test_every_column_that_is_read_can_be_named(name):
    made = registry.locate(registry.load("benchmark", name)["_target_"])
    source = Path(inspect.getsourcefile(made)).read_text()
    read = set(re.findall(r"row\.(?:get|maybe|text|several|has|picture)\(['\"](\w+)['\"]", source))
    assert read <= {*made.NEEDS, *made.USUAL, *made.ALSO}
