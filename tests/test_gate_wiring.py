"""The input gate in a run: what it drops is not asked, what it flags says so in its record, the page shows both."""

import json
import shutil
from dataclasses import replace

import pytest
from PIL import Image, ImageFilter
from running import typed

from mmaccel.benchmarks.folder import Folder
from mmaccel.benchmarks.kept import Kept
from mmaccel.benchmarks.quality import Quality
from mmaccel.benchmarks.scenes import Scenes
from mmaccel.benchmarks.screening import screened
from mmaccel.jobs.digest import digest


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Four scenes, the second of them blurred."""
    folder, scenes = tmp_path_factory.mktemp("pictures"), Scenes(n=4, kinds=["colour"])
    for index in range(4):
        picture = scenes[index].image
        blurred = picture.filter(ImageFilter.GaussianBlur(8)) if index == 1 else picture
        blurred.save(folder / f"{index}.png")
    return folder


def asked(folder, action):
    benchmark = Folder(folder, ask=("What is it?",))
    return Kept(benchmark, screened(benchmark, len(benchmark), Quality(action=action)))


def test_dropped_samples_are_gone_and_flagged_ones_say_so(pictures):
    dropped, flagged = asked(pictures, "drop"), asked(pictures, "flag")
    assert [dropped[i].id for i in range(len(dropped))] == ["0.png#0", "2.png#2", "3.png#3"]
    assert [flagged[i].facts.get("flags") for i in range(4)] == [None, ["sharpness"], None, None]
    assert {"width", "height", "sharpness", "entropy", "edges", "bucket"} <= set(dropped[0].facts)
    assert dropped.score(dropped[0], ["a"]) == {"correct": None, "parsed": "a"}
    assert (dropped.answered, dropped.name) == (False, "folder")


def test_what_is_dropped_changes_the_digest(pictures):
    plain = Folder(pictures, ask=("What is it?",))
    assert digest(asked(pictures, "drop"), 3) == digest(asked(pictures, "drop"), 3) != digest(plain, 3)
    assert digest(asked(pictures, "flag"), 4) == digest(plain, 4), "what is only flagged is asked all the same"


def test_a_run_behind_the_gate(pictures, tmp_path, monkeypatch, capsys):
    words = ["pruner=fastv", "benchmark=folder", f"benchmark.path={pictures}", "benchmark.ask=[What is it?]"]
    code = typed(monkeypatch, *words, "quality=drop", "tracker=off", f"output={tmp_path / 'run'}")
    assert code == 0
    assert "input gate (drop): 3 of 4 samples are asked; flagged: sharpness 1" in capsys.readouterr().err
    records = [json.loads(line) for line in (tmp_path / "run" / "records.jsonl").read_text().splitlines()]
    assert {record["sample"] for record in records} == {"0.png#0", "2.png#2", "3.png#3"}
    found = json.loads((tmp_path / "run" / "quality.json").read_text())
    assert (found["kept"], found["rules"]["sharpness"]["count"]) == (3, 1)
    assert found["saved"]["visual_tokens"] == 576
    assert found["saved"]["e2e_ms"] > 0
    with Image.open(tmp_path / "run" / "contact_sheet.png") as sheet:
        assert min(sheet.size) > 100
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Input gate" in page
    assert "spared 576 visual tokens" in page


def test_what_could_not_be_read_would_have_cost_nothing(pictures, tmp_path, monkeypatch):
    shutil.copytree(pictures, tmp_path / "pictures")
    (tmp_path / "pictures" / "9.png").write_bytes((pictures / "0.png").read_bytes()[:2000])
    words = ["pruner=fastv", "benchmark=folder", f"benchmark.path={tmp_path / 'pictures'}", "benchmark.broken=keep"]
    words += ["benchmark.ask=[What is it?]", "quality=drop", "quality.sharpness=null", "tracker=off", "job.timed=0"]
    assert typed(monkeypatch, *words, f"output={tmp_path / 'run'}") == 0
    found = json.loads((tmp_path / "run" / "quality.json").read_text())
    assert (found["kept"], found["rules"]["undecodable"]["count"], found["saved"]) == (4, 1, {"samples": 0})


class Grouped(Scenes):
    """A question and its edited copy, scored together; the second of the first pair is blurred."""

    def __getitem__(self, index):
        sample = super().__getitem__(index // 2)
        picture = sample.image.filter(ImageFilter.GaussianBlur(8)) if index == 1 else sample.image
        return replace(sample, id=str(index), image=picture, facts={}, truth={"group": str(index // 2)})


def test_groups_have_no_duplicates_and_go_whole():
    found = screened(Grouped(n=4, kinds=["colour"]), 4, Quality(action="drop"))
    assert found.counts["duplicates"] == 0
    assert (found.counts["sharpness"], found.kept) == (1, (2, 3))


def test_a_gate_that_leaves_nothing_stops_before_the_model(pictures, tmp_path, monkeypatch, capsys):
    words = ["benchmark=folder", f"benchmark.path={pictures}", "quality=drop", "quality.min_side=1000"]
    assert typed(monkeypatch, *words, "tracker=off", f"output={tmp_path / 'run'}") == 2
    assert "leaves none of 12 samples (min_side 12" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_threshold_for_text_needs_a_model(pictures, tmp_path, monkeypatch, capsys):
    words = ["benchmark=folder", f"benchmark.path={pictures}", "quality=flag", "quality.mismatch=0.2"]
    assert typed(monkeypatch, *words, "tracker=off", f"output={tmp_path / 'run'}") == 2
    assert "quality.model: a CLIP-style model is needed" in capsys.readouterr().err
