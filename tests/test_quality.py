"""The input gate: every rule at and around its threshold, what is a duplicate, screening, the inspect job, the bar."""

import io
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFilter
from running import typed

from mmaccel import registry
from mmaccel.benchmarks.base import Benchmark, Sample
from mmaccel.benchmarks.quality import BITS, Gate, Quality, bits, picture_facts, picture_hash, uniformity
from mmaccel.benchmarks.screening import screened
from mmaccel.report.contact_sheet import CELL, MOST, SIDE, Tile, contact_sheet

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))
ORIENTATION = 0x0112


def texture(width=200, height=160, seed=0):
    """A sharp picture with structure of every size, another one for every seed."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (6, 6, 3), dtype=np.uint8)).resize((width, height))
    fine = rng.integers(-40, 41, (height, width, 1))
    return Image.fromarray((np.asarray(coarse, dtype=int) + fine).clip(0, 255).astype(np.uint8))


def sample(image, *, name="s", question="What is it?", kind="open", facts=None, more=()):
    known = picture_facts(image) if facts is None else facts
    return Sample(name, kind, image, (question,), (None,), facts=known, more=more)


def failed(quality, *samples, similarity=None):
    """The rules that the last of the samples fails."""
    gate = Gate(quality, similarity)
    return [[flag.rule for flag in gate.look(one).flags] for one in samples][-1]


class Listed(Benchmark):
    """Samples in a row; an exception stands for a picture that cannot be decoded."""

    name, max_new_tokens = "listed", 1

    def __init__(self, *entries):
        self.entries = entries

    def __len__(self):
        return len(self.entries)

    def __getitem__(self, index):
        if isinstance(self.entries[index], Exception):
            raise self.entries[index]
        return self.entries[index]

    def score(self, sample, replies):
        return {"correct": None}


def test_the_yamls_are_the_defaults_and_differ_in_what_is_done():
    for action in ("off", "flag", "drop"):
        assert registry.build("quality", action) == Quality(action=action)


@pytest.mark.parametrize(
    ("rule", "good", "bad"),
    [
        ("min_side", {"width": 56, "height": 300}, {"width": 300, "height": 55}),
        ("sharpness", {"sharpness": 20.0}, {"sharpness": 19.99}),
        ("aspect", {"width": 600, "height": 100}, {"width": 100, "height": 601}),
    ],
)
def test_a_fact_is_judged_at_its_threshold(rule, good, bad):
    image = texture()
    usual = picture_facts(image)
    assert failed(Quality(), sample(image, facts=usual | good)) == []
    assert failed(Quality(), sample(image, facts=usual | bad)) == [rule]
    assert failed(replace(Quality(), **{rule: None}), sample(image, facts=usual | bad)) == []


def test_without_facts_the_gate_looks_itself():
    gate = Gate(Quality())
    verdict = gate.look(sample(texture().filter(ImageFilter.GaussianBlur(6)), facts={"page": 3}))
    assert [flag.rule for flag in verdict.flags] == ["sharpness"]
    assert verdict.facts["page"] == 3
    assert verdict.facts["sharpness"] == verdict.flags[0].value


def test_near_uniform_counts_cells_off_the_median():
    page = np.full((64, 64, 3), 200, dtype=np.uint8)
    page[:2, :2] += 8  # as far as the median reaches
    assert uniformity(Image.fromarray(page)) == 1.0
    page[:2, :2] += 1
    assert uniformity(Image.fromarray(page)) == 1 - 4 / 4096
    page[:] = 200
    page[:2, :3, 1] += 9  # one channel is enough
    assert uniformity(Image.fromarray(page)) == 1 - 6 / 4096
    sharp = picture_facts(texture())
    assert failed(Quality(), sample(Image.fromarray(page), facts=sharp)) == []
    page[:, 1:] = 200
    assert failed(Quality(), sample(Image.fromarray(page), facts=sharp)) == ["uniform"]


def test_noise_on_one_colour_is_near_uniform_and_a_thin_line_is_not():
    noise = np.random.default_rng(0).normal(128, 6, (400, 400, 3)).clip(0, 255).astype(np.uint8)
    assert "uniform" in failed(Quality(), sample(Image.fromarray(noise)))
    page = np.full((400, 400, 3), 255, dtype=np.uint8)
    page[200, 50:350] = 0
    assert "uniform" not in failed(Quality(), sample(Image.fromarray(page)))


def encoded(image, quality=60):
    data = io.BytesIO()
    image.save(data, "JPEG", quality=quality)
    return Image.open(data).convert("RGB")


@pytest.mark.parametrize(
    ("change", "duplicate"),
    [
        (lambda one: one, True),
        (lambda one: replace(one, image=encoded(one.image)), True),
        (lambda one: replace(one, image=one.image.resize((333, 266), Image.Resampling.BICUBIC)), True),
        (lambda one: replace(one, turns=("  What is  it?",)), True),
        (lambda one: replace(one, turns=("What colour is it?",)), False),
        (lambda one: replace(one, turns=("What is it?", "Why?")), False),
        (lambda one: replace(one, kind="other"), False),
        (lambda one: replace(one, image=texture(seed=1)), False),
        (lambda one: replace(one, image=Image.fromarray(np.asarray(one.image)[..., ::-1])), False),  # other colours
        (lambda one: replace(one, more=(one.image,)), False),
    ],
)
def test_the_same_picture_with_the_same_question_twice_is_a_duplicate(change, duplicate):
    first = sample(texture(), name="first")
    gate = Gate(Quality())
    assert gate.look(first).flags == ()
    flags = gate.look(replace(change(first), id="second")).flags
    assert [(flag.rule, flag.note) for flag in flags] == ([("duplicates", "first")] if duplicate else [])
    assert failed(Quality(duplicates=None), first, change(first)) == []


def test_a_duplicate_is_judged_at_its_threshold():
    one, other = texture(), texture().filter(ImageFilter.GaussianBlur(1))
    apart = bits(picture_hash(one), picture_hash(other))
    assert 0 < apart < BITS / 4
    assert failed(Quality(duplicates=apart), sample(one), sample(other)) == ["duplicates"]
    assert failed(Quality(duplicates=apart - 1), sample(one), sample(other)) == []


def test_of_several_pictures_all_must_be_alike_and_the_first_bad_one_counts():
    one, other, blurred = texture(), texture(seed=1), texture(seed=2).filter(ImageFilter.GaussianBlur(6))
    pair = sample(one, more=(other,))
    assert failed(Quality(), pair, sample(encoded(one), more=(encoded(other),))) == ["duplicates"]
    assert failed(Quality(), pair, sample(one, more=(texture(seed=3),))) == []
    assert failed(Quality(), sample(one, more=(blurred,))) == ["sharpness"]


def test_what_is_rejected_has_no_duplicates():
    """Otherwise the sharp copy of a blurred picture would go with it."""
    sharp = texture()
    gate = Gate(Quality(action="drop", sharpness=200))
    assert [flag.rule for flag in gate.look(sample(encoded(sharp).filter(ImageFilter.GaussianBlur(1)))).flags] == [
        "sharpness"
    ]
    assert gate.look(sample(sharp)).flags == ()


@pytest.mark.parametrize(("tag", "rules"), [(None, []), (1, []), (3, ["orientation"]), (6, ["orientation"])])
def test_an_orientation_that_nobody_has_followed(tag, rules):
    exif, data = Image.Exif(), io.BytesIO()
    if tag:
        exif[ORIENTATION] = tag
    texture().save(data, "PNG", exif=exif)
    assert failed(Quality(), sample(Image.open(data).convert("RGB"))) == rules


def test_text_and_picture_are_compared_by_whoever_can():
    asked = []

    def similarity(image, text):
        asked.append((image.size, text))
        return 0.2

    one = sample(texture(), question="A cat?")
    assert failed(Quality(mismatch=0.2), one, similarity=similarity) == []
    assert failed(Quality(mismatch=0.21), one, similarity=similarity) == ["mismatch"]
    assert asked == [((200, 160), "A cat?")] * 2
    with pytest.raises(ValueError, match=r"quality\.mismatch: got 0\.2 without a model"):
        Gate(Quality(mismatch=0.2))


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"action": False}, r"quality\.action: got False, valid are off, flag, drop"),
        ({"min_side": 0}, r"quality\.min_side: got 0, valid are null and whole numbers 1"),
        ({"min_side": 5.5}, r"quality\.min_side: got 5\.5"),
        ({"uniform": 1.5}, r"quality\.uniform: got 1\.5, valid are null and numbers 0 … 1"),
        ({"sharpness": True}, r"quality\.sharpness: got True"),
        ({"duplicates": 800}, r"quality\.duplicates: got 800, .* 0 … 765"),
        ({"orientation": 9}, r"quality\.orientation: got 9"),
        ({"mismatch": "low"}, r"quality\.mismatch: got 'low'"),
    ],
)
def test_settings_that_cannot_work_are_named(setting, message):
    with pytest.raises(ValueError, match=message):
        Quality(**setting)


def mixed():
    """Good, undecodable, blurred, a duplicate of the first, too small, good."""
    first = texture()
    return Listed(
        sample(first, name="a"), OSError("image file is truncated"),
        sample(texture(seed=1).filter(ImageFilter.GaussianBlur(6)), name="soft"), sample(encoded(first), name="again"),
        sample(texture(40, 30, seed=2), name="tiny"), sample(texture(seed=3), name="b"),
    )  # fmt: skip


def test_screening_counts_keeps_the_order_and_is_plain():
    seen = []
    found = screened(mixed(), 6, Quality(action="drop"), seen.append)
    assert seen == [1, 2, 3, 4, 5, 6]
    assert found.kept == (0, 5)
    assert {rule: count for rule, count in found.counts.items() if count} == {
        "undecodable": 1, "sharpness": 1, "duplicates": 1, "min_side": 1,
    }  # fmt: skip
    assert [look.id for look in found.rejected] == ["#1", "soft", "again", "tiny"]
    told = json.loads(json.dumps(found.to_json()))
    assert told["rules"]["undecodable"]["examples"] == [
        {"index": 1, "id": "#1", "value": None, "note": "OSError: image file is truncated"}
    ]
    assert told["rules"]["min_side"] | {"examples": []} == {
        "threshold": 56, "count": 1, "share": 1 / 6, "examples": []
    }  # fmt: skip
    assert told["samples"][3]["flags"][0]["note"] == "a"
    assert told["samples"][0]["facts"]["bucket"] == picture_facts(texture())["bucket"]


def test_flagged_samples_are_asked_and_an_open_gate_looks_at_nothing():
    assert screened(mixed(), 6, Quality(action="flag")).kept == tuple(range(6))
    assert screened(mixed(), 4, Quality(action="drop")).kept == (0,)
    off = screened(Listed(*[RuntimeError("nobody looks")] * 3), 3, Quality(action="off"))
    assert (off.kept, off.counts, off.looks) == ((0, 1, 2), {}, ())
    assert Gate(Quality(action="off")).look(sample(texture(8, 8))).flags == ()


def test_the_worst_stand_first():
    soft = [texture(seed=seed).filter(ImageFilter.GaussianBlur(radius)) for seed, radius in enumerate((3, 9, 5))]
    long = [texture(60 * by, 60, seed=by) for by in (7, 12, 9)]
    found = screened(Listed(*(sample(image, name=str(at)) for at, image in enumerate(soft + long))), 6, Quality())
    assert [look.id for look in found.examples("sharpness")] == ["1", "2", "0"]
    assert [look.id for look in found.examples("aspect", 2)] == ["4", "5"]


def test_the_contact_sheet_is_bounded():
    tiles = [Tile(None if at % 5 == 0 else texture(3000, 40, at), ("näme" * 40, "x < 2")) for at in range(MOST + 30)]
    sheet = contact_sheet(tiles)
    assert max(sheet.size) <= SIDE
    assert sheet.size == contact_sheet(tiles[:MOST]).size
    assert contact_sheet(tiles[1:2]).width < 2 * CELL
    assert contact_sheet([]).width < 2 * CELL
    alone = np.asarray(contact_sheet([Tile(texture(10, 10), ())]))
    captioned = np.asarray(contact_sheet([Tile(texture(10, 10), ("sharpness 3 < 20",))]))
    assert (alone != captioned).any(axis=(1, 2)).nonzero()[0].min() >= CELL  # below the picture


@pytest.fixture
def pictures(tmp_path):
    folder = tmp_path / "pictures"
    folder.mkdir()
    texture().save(folder / "a.png")
    encoded(texture(), 80).save(folder / "b copy.png")
    texture(seed=1).filter(ImageFilter.GaussianBlur(8)).save(folder / "c.png")
    texture(30, 20, seed=2).save(folder / "d.png")
    data = io.BytesIO()
    texture(seed=3).save(data, "JPEG", quality=95)
    (folder / "e.jpg").write_bytes(data.getvalue()[: len(data.getvalue()) // 2])
    texture(seed=4).save(folder / "f[1].webp", lossless=True)
    return folder


def test_a_folder_is_inspected_without_a_model(monkeypatch, capsys, tmp_path, pictures):
    monkeypatch.chdir(tmp_path)
    words = ["job=inspect", "benchmark=folder", f"benchmark.path={pictures}", "benchmark.ask=[What?]"]
    assert typed(monkeypatch, *words, "output=seen") == 0, capsys.readouterr().err
    told = json.loads((tmp_path / "seen" / "inspect.json").read_text(encoding="utf-8"))
    assert (told["action"], told["size"], told["flagged"], told["kept"]) == ("flag", 6, 4, 6)
    counts = {rule: row["count"] for rule, row in told["rules"].items()}
    assert counts == {"undecodable": 1, "min_side": 1, "sharpness": 1, "duplicates": 1} | dict.fromkeys(
        ("aspect", "uniform", "orientation"), 0
    )
    with Image.open(tmp_path / "seen" / "contact_sheet.png") as sheet:
        assert sheet.width > 4 * CELL
    said = capsys.readouterr().out
    assert "6 samples, 4 flagged" in said
    assert "b copy.png#1" in said
    assert "a.png#0" in said
    assert typed(monkeypatch, *words, "output=seen") == 2
    assert typed(monkeypatch, *words, "output=two", "limit=1") == 0
    assert not (tmp_path / "two" / "contact_sheet.png").exists()


@pytest.mark.parametrize(("setting", "said"), [("job.sheet=0", "job.sheet: got 0"), ("limit=0", "limit: got 0")])
def test_the_inspection_refuses_what_cannot_work(monkeypatch, capsys, tmp_path, pictures, setting, said):
    monkeypatch.chdir(tmp_path)
    assert typed(monkeypatch, "job=inspect", "benchmark=folder", f"benchmark.path={pictures}", setting) == 2
    assert said in capsys.readouterr().err
    assert [child.name for child in tmp_path.iterdir()] == ["pictures"]


def test_each_rule_finds_nine_in_ten_and_takes_one_in_twenty_for_bad():
    """experiments/input_gate in small: 60 clean pictures and 10 corruptions a rule, photographs and scenes."""
    pytest.importorskip("skimage")
    pytest.importorskip("sklearn")
    import quality_study as study

    found = study.rates(study.REPORT, photos=40, drawn=20, each=10)
    for rule in study.CORRUPTIONS:
        (recall,) = (s for s in found if (s.table, s.rule, s.source, s.what) == ("recall", rule, "all", ""))
        (alarms,) = (s for s in found if (s.table, s.rule, s.source) == ("false alarms", rule, "all"))
        assert (recall.n, alarms.n) == (10, 60)
        assert recall.flagged >= 9, rule
        assert alarms.flagged <= 3, rule
