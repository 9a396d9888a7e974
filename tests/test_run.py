"""The main job end to end on a tiny random LLaVA: records, order, pairing, agreement, errors, resume."""

import functools
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from rich.console import Console
from running import typed, write_tiny_llava
from safetensors.torch import load_file, save_file

from mmaccel import registry
from mmaccel.benchmarks.base import Benchmark, Sample
from mmaccel.jobs.agreement import same_beginning
from mmaccel.jobs.cold import cold_start
from mmaccel.jobs.conversation import conversation, dice
from mmaccel.jobs.digest import digest
from mmaccel.jobs.evaluate import Evaluate, opened
from mmaccel.jobs.facts import account, cells, evidence, survivors
from mmaccel.jobs.features import Shared, timed_features
from mmaccel.jobs.finish import finish
from mmaccel.jobs.gate import Plan
from mmaccel.jobs.paired import Paired
from mmaccel.jobs.pictures import seen_box, within
from mmaccel.jobs.points import BASELINE, Point
from mmaccel.jobs.sample import Asker
from mmaccel.jobs.screen import Screen
from mmaccel.jobs.task import Task
from mmaccel.measure.cost import Geometry, macs
from mmaccel.measure.record import RECORD_KEYS, RunFolder
from mmaccel.measure.stats import points_table
from mmaccel.models.load import VLM
from mmaccel.pruning.fastv import FastV
from mmaccel.pruning.pool import Pool

ROOT = Path(__file__).parents[1]
VISUAL, DEPTH = 576, 3
SMALL = ("tracker=off", "sampler.max_new_tokens=3", "job.maps=1", "machine.threads=1")


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    return write_tiny_llava(tmp_path_factory.mktemp("tiny") / "llava")


@pytest.fixture(scope="module")
def vlm(checkpoint):
    return VLM.load(checkpoint)


@pytest.fixture
def here(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def smoke(monkeypatch, checkpoint, *more):
    model = ("model=llava", f"model.path={checkpoint}")
    return typed(monkeypatch, "+experiment=smoke", *model, *SMALL, "output=run", *more)


def records(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def finished(checkpoint, tmp_path_factory):
    """One run of the smoke experiment: three samples, five points."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert smoke(patch, checkpoint, "limit=3", "benchmark.kinds=[exist,count]") == 0
    return folder / "run"


def test_the_run_folder_is_whole(finished):
    names = {path.name for path in finished.iterdir()}
    assert names >= {"config.yaml", "provenance.json", "records.jsonl", "points.csv", "summary.json", "report.html"}
    rows = (finished / "points.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in rows[1:]] == [
        BASELINE, "keep_all", "fastv ratio=0.5", "fastv_scaled ratio=0.5", "random ratio=0.5", "pool ratio=0.5",
    ]  # fmt: skip
    assert not [path for path in finished.parent.iterdir() if path != finished], "nothing is left beside the run folder"


def test_the_cold_start_stands_apart(finished):
    cold = json.loads((finished / "provenance.json").read_text())["cold_start"]
    assert json.loads((finished / "summary.json").read_text())["cold_start"] == cold
    first = cold["first_request"]
    assert cold["load_ms"] > 0
    assert 0 < first["ttft_ms"] <= first["e2e_ms"]
    assert first["tokens"] <= 3, "the run's own sampler"
    assert first["sample"] == records(finished)[0]["sample"]
    assert first["e2e_ms"] not in [record["e2e_ms"] for record in records(finished)]
    assert "Cold start, in no number of any point" in (finished / "report.html").read_text()


def test_a_first_request_that_fails_stops_no_run(vlm, monkeypatch):
    def breaks(*_, **__):
        raise RuntimeError("no memory")

    asker = Asker(vlm, Dialogue(), {"do_sample": False})
    monkeypatch.setattr(asker, "ask", breaks)
    assert cold_start(asker, Dialogue()[0], 12.0) == {"load_ms": 12.0, "error": "RuntimeError: no memory"}


def test_every_sample_goes_through_every_point_in_rotating_order(finished):
    found = records(finished)
    assert len(found) == 18
    by_sample = [found[at : at + 6] for at in (0, 6, 12)]
    orders = [[record["point"] for record in group] for group in by_sample]
    assert all(len({record["sample"] for record in group}) == 1 for group in by_sample)
    assert orders[1] == orders[0][1:] + orders[0][:1]
    assert orders[2] == orders[0][2:] + orders[0][:2]


def test_a_record_holds_the_whole_contract(finished):
    for record in records(finished):
        assert set(record) == set(RECORD_KEYS)
        assert record["error"] is None
        stages, tokens = record["stages_ms"], record["tokens"]
        assert set(stages) == {"preprocess", "vision", "prune", "prefill", "decode"}
        assert 0 < record["ttft_ms"] < record["e2e_ms"]
        assert stages["preprocess"] + stages["vision"] + stages["prune"] + stages["prefill"] <= record["ttft_ms"] + 0.5
        assert sum(stages.values()) <= record["e2e_ms"] + 0.5
        assert min(stages[name] for name in ("preprocess", "vision", "prefill")) > 0
        assert tokens["generated"] == len(record["ids"]) <= 3
        assert record["spec"]["emitted"] == tokens["generated"] - 1 == len(record["step_ms"])
        assert tokens["visual"] == VISUAL
        assert record["memory_mb"]["peak"] is None, "the processor's peak cannot be reset, so it is not measured"
    assert len({(r["sample"], r["prompt_hash"]) for r in records(finished)}) == 3


def test_costs_are_those_of_a_slow_count(finished):
    found = {record["point"]: record for record in records(finished)[:6]}
    text = found[BASELINE]["tokens"]["prompt"] - VISUAL
    geometry = Geometry(layers=DEPTH, width=32, heads=4, kv_heads=4, head_dim=8, ffn=64)
    standing = {BASELINE: [VISUAL] * 3, "keep_all": [VISUAL] * 3, "fastv ratio=0.5": [VISUAL, VISUAL, VISUAL // 2]}
    standing["random ratio=0.5"] = standing["fastv ratio=0.5"]
    for name, visual in standing.items():
        record = found[name]
        assert record["tokens"]["mean_visual"] == pytest.approx(sum(visual) / DEPTH)
        assert record["kv_fraction"] == pytest.approx((sum(visual) + 3 * text) / (3 * (VISUAL + text)))
        full = macs(geometry, [VISUAL + text] * DEPTH)
        assert record["mac_fraction"] == pytest.approx(macs(geometry, [v + text for v in visual]) / full)
    assert found[BASELINE]["tokens"]["kept"] == []
    assert found["keep_all"]["tokens"]["kept"] == [VISUAL]
    pooled, pruned = (found[name]["tokens"]["mean_visual"] for name in ("pool ratio=0.5", "fastv ratio=0.5"))
    assert pruned - VISUAL / 24 <= pooled <= pruned, "matched, up to one row of the grid"


def test_keep_all_says_what_the_baseline_says(finished):
    by = {(record["point"], record["sample"]): record for record in records(finished)}
    for (point, sample), record in by.items():
        if point == "keep_all":
            assert record["ids"] == by[BASELINE, sample]["ids"]


def test_pictures_are_kept_for_the_first_samples_only(finished):
    shown = records(finished)[0]["sample"]
    folder = RunFolder.open(finished)
    assert folder.picture(shown).is_file()
    assert folder.picture(shown, "fastv ratio=0.5").is_file()
    assert not folder.picture(shown, BASELINE).exists()
    assert not folder.picture(records(finished)[-1]["sample"]).exists()


def test_the_model_is_as_it_was_after_a_request(vlm):
    asker = Asker(vlm, SimpleNamespace(max_new_tokens=2), {"do_sample": False})
    sample = Sample("a", "k", Image.new("RGB", (40, 40), "red"), ("what?",), (None,))

    def state():
        own = {name: value for name, value in vars(vlm.model.model).items() if not name.startswith("_")}
        return own, [len(m._forward_pre_hooks) + len(m._forward_hooks) for m in vlm.model.modules()]

    asker.ask(None, sample, [])  # the library installs hooks of its own in its first call
    before = state()
    asker.ask(FastV(layer=2, ratio=0.5), sample, [])
    assert state() == before


def test_the_tower_is_waited_for_before_the_loop_begins_its_clock(monkeypatch):
    order = []
    base = SimpleNamespace(get_image_features=lambda: order.append("tower"))
    clock = SimpleNamespace(cuda=True, device="cuda:0", stage=lambda name: nullcontext())
    monkeypatch.setattr("torch.cuda.synchronize", lambda device: order.append(device))
    own = base.get_image_features
    with timed_features(SimpleNamespace(model=base), clock):
        base.get_image_features()
    assert order == ["tower", "cuda:0"]
    assert base.get_image_features is own, "what the object had of its own is put back"


def test_nothing_draws_while_a_request_is_timed(tmp_path, monkeypatch):
    with RunFolder.create(tmp_path / "run", {}, {}) as folder:
        screen = Screen(2, [Point(BASELINE)], folder)
    screen.console = screen.live.console = Console(file=io.StringIO(), force_terminal=True)
    drawn = []
    refresh = screen.live.refresh
    monkeypatch.setattr(screen.live, "refresh", lambda: drawn.append(threading.current_thread()) or refresh())
    before = threading.active_count()
    with screen:
        assert threading.active_count() == before
        good = {"point": BASELINE, "sample": "a", "turn": 0, "error": None, "score": {"correct": 1.0}, "e2e_ms": 1.0}
        screen.show(good)
        screen.advance(1)
        assert len(drawn) >= 2


def test_sampled_answers_are_the_same_dice_for_every_point(vlm):
    asker = Asker(vlm, SimpleNamespace(max_new_tokens=6), {"do_sample": True, "temperature": 1.0}, seed=3)
    sample = Sample("a", "k", Image.new("RGB", (40, 40), "red"), ("what?",), (None,))
    first, again = (asker.ask(None, sample, [])[0]["ids"] for _ in range(2))
    assert first == again
    other = Asker(vlm, SimpleNamespace(max_new_tokens=6), {"do_sample": True, "temperature": 1.0}, seed=4)
    assert other.ask(None, sample, [])[0]["ids"] != first


def test_an_interrupted_run_resumes_without_loss_or_repetition(monkeypatch, checkpoint, here, capsys, finished):
    ask, asked = Asker.ask, []

    def stops(self, pruner, sample, said, limit=None, **more):
        asked.append(sample.id)
        if len([None for _ in asked]) == 13:
            raise KeyboardInterrupt
        return ask(self, pruner, sample, said, limit, **more)

    words = ("limit=3", "benchmark.kinds=[exist,count]")
    monkeypatch.setattr(Asker, "ask", stops)
    assert smoke(monkeypatch, checkpoint, *words) == 130
    monkeypatch.setattr(Asker, "ask", ask)
    kept = (here / "run" / "records.jsonl").read_bytes()
    assert 0 < len(records(here / "run")) < 18
    with (here / "run" / "records.jsonl").open("ab") as file:
        file.write(b'{"point": "torn')
    capsys.readouterr()
    assert smoke(monkeypatch, checkpoint, *words, "seed=5", "resume=run") == 2
    assert "seed: was 0, now 5" in capsys.readouterr().err
    noted = json.loads((here / "run" / "provenance.json").read_text())
    moved = (({"benchmark": "other"}, "benchmark: was 'other', now"), ({"threads": 9}, "threads: was 9, now"))
    for changed, said in moved:
        (here / "run" / "provenance.json").write_text(json.dumps(noted | changed))
        assert smoke(monkeypatch, checkpoint, *words, "resume=run") == 2
        assert said in capsys.readouterr().err
    (here / "run" / "provenance.json").write_text(json.dumps(noted | {"git": {"sha": "older", "dirty": False}}))
    assert smoke(monkeypatch, checkpoint, *words, "resume=run") == 0
    if noted["git"]:
        assert "warning: resumed with other code, git.sha: was older" in capsys.readouterr().err
    found = records(here / "run")
    assert (here / "run" / "records.jsonl").read_bytes().startswith(kept)
    assert len({(r["point"], r["sample"], r["turn"]) for r in found}) == len(found) == 18
    whole = {(r["point"], r["sample"]): r["ids"] for r in records(finished)}
    assert {(r["point"], r["sample"]): r["ids"] for r in found} == whole, "the answers of an unstopped run"
    assert smoke(monkeypatch, checkpoint, *words) == 2
    assert "already holds a run; continue it with resume=" in capsys.readouterr().err


@pytest.fixture
def photographs(here):
    """Two good pictures and one that is cut off after its header."""
    generator = np.random.default_rng(0)
    folder = here / "pictures"
    folder.mkdir()
    for name in ("a.jpg", "b.png", "cut.jpg"):
        Image.fromarray(generator.integers(0, 255, (80, 60, 3), dtype=np.uint8)).save(folder / name)
    whole = (folder / "cut.jpg").read_bytes()
    (folder / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    return folder


def test_ones_own_pictures_agreement_and_a_broken_one(monkeypatch, checkpoint, here, photographs, capsys):
    words = ("benchmark=folder", f"benchmark.path={photographs}", "benchmark.ask=[what is it?]", "limit=null")
    assert smoke(monkeypatch, checkpoint, *words) == 0
    found = records(here / "run")
    broken = [record for record in found if record["error"]]
    assert len(found) == 18
    assert [record["kind"] for record in broken] == ["unreadable"] * 6
    shown = capsys.readouterr()
    assert "error: " in shown.err
    assert "accuracy is agreement with the unpruned reply" in shown.out
    assert "6 of 18 records are errors" in shown.out
    for record in found:
        if record["error"]:
            continue
        base = next(r for r in found if (r["point"], r["sample"]) == (BASELINE, record["sample"]))
        assert record["score"]["correct"] == float(record["parsed"] == base["parsed"])
        assert record["score"]["agreement"] is True
    rows = json.loads((here / "run" / "summary.json").read_text())["points"]
    assert [row["errors"] for row in rows] == [1] * 6
    assert rows[0]["accuracy"] == 1.0


def test_the_table_and_page_are_built_again_from_the_records(monkeypatch, finished, here, capsys):
    before = (finished / "points.csv").read_text()
    for name in ("points.csv", "report.html"):
        (finished / name).unlink()
    assert typed(monkeypatch, "job=report", f"run={finished}") == 0
    assert (finished / "points.csv").read_text() == before
    assert (finished / "report.html").is_file()
    assert "fastv ratio=0.5" in capsys.readouterr().out
    assert typed(monkeypatch, "job=report", f"job.folder={here}") == 2


def test_a_finished_run_is_pushed_by_the_tracker_and_the_sync_line_is_printed(monkeypatch, finished, capsys):
    pushed = []
    monkeypatch.setattr("mmaccel.measure.tracker.push", lambda folder, **_: pushed.append(folder) or "wandb sync X")
    assert typed(monkeypatch, "job=wandb_push", f"run={finished}", "tracker.mode=offline") == 0
    assert pushed == [finished]
    assert "wandb sync X" in capsys.readouterr().out


def test_a_model_that_does_not_see_stops_before_the_first_point(monkeypatch, checkpoint, here, capsys):
    shutil.copytree(checkpoint, here / "blind")
    weights = load_file(here / "blind" / "model.safetensors")
    cut = {name: torch.zeros_like(t) for name, t in weights.items() if "multi_modal_projector.linear_2" in name}
    assert cut
    save_file(weights | cut, here / "blind" / "model.safetensors", {"format": "pt"})
    assert smoke(monkeypatch, here / "blind", "limit=1") == 2
    assert "the picture does not reach the model" in capsys.readouterr().err
    assert not (here / "run").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("pruner.layer=3",), "layer: got 3, valid are"),
        (("machine.dtype=float8",), "float32, bfloat16, float16"),
        (("machine=cuda",), "torch finds no CUDA device here; machine=cpu runs anywhere"),
        (("sampler.max_new_tokens=100000",), "the model's context is 4096"),
        (("model.max_pixels=0",), "model.max_pixels: got 0, valid are"),
        (("model.max_pixels=100",), "the limit is 0.0 (raise it with model.max_pixels="),
        (("sampler.max_new_tokens=0",), "sampler.max_new_tokens: got 0, valid are"),
        (("sampler.max_new_tokens=2.5",), "sampler.max_new_tokens: got 2.5, valid are"),
        (("benchmark.kinds=exist",), "valid is a list of kinds: benchmark.kinds=[exist]"),
        (("model.path=/no/where",), "model path: got '/no/where'"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_what_cannot_work_is_refused_before_the_model_is_loaded(monkeypatch, checkpoint, here, capsys, words, said):
    if "machine=cuda" in words and torch.cuda.is_available():
        pytest.skip("this machine has one")
    monkeypatch.setattr("mmaccel.models.load.load_weights", lambda *a, **k: pytest.fail("the weights were read"))
    assert smoke(monkeypatch, checkpoint, *words) == 2
    assert said in capsys.readouterr().err
    assert not (here / "run").exists()


def test_a_checkpoint_without_its_processor_is_named(monkeypatch, checkpoint, here, capsys):
    shutil.copytree(checkpoint, here / "half")
    for name in ("preprocessor_config.json", "tokenizer.json"):
        (here / "half" / name).unlink()
    assert smoke(monkeypatch, here / "half") == 2
    assert "the model's processor is missing: preprocessor_config.json" in capsys.readouterr().err


def test_a_run_in_which_nothing_succeeds_fails_early(monkeypatch, checkpoint, here, capsys):
    asked = []

    def breaks(self, pruner, sample, said, **_):
        asked.append(sample.id)
        raise RuntimeError("kernel is sad")

    monkeypatch.setattr(Asker, "ask", breaks)
    assert smoke(monkeypatch, checkpoint, "limit=9") == 1
    said = "no request of the first 3 samples succeeded; the last said: RuntimeError: kernel is sad"
    assert said in capsys.readouterr().err
    assert len(set(asked)) == 3


class Dialogue(Benchmark):
    """One picture, two turns, the second without an answer."""

    name, max_new_tokens = "dialogue", 2

    def __len__(self):
        return 1

    def __getitem__(self, index):
        image = Image.fromarray(np.random.default_rng(1).integers(0, 255, (50, 50, 3), dtype=np.uint8))
        return Sample("talk", "k", image, ("what?", "and then?"), ("cat", None))

    def score(self, sample, replies):
        if sample.reference[len(replies) - 1] is None:
            return {"correct": None, "parsed": replies[-1]}
        return {"correct": float(replies[-1] == "cat"), "parsed": replies[-1]}


def test_turns_carry_the_conversation_and_resume_in_the_middle(vlm, tmp_path):
    points = [Point(BASELINE), Point("fastv", {})]
    plan = Plan(Dialogue(), 1, {}, {BASELINE: None, "fastv": FastV(layer=2, ratio=0.9)})
    asker = Asker(vlm, plan.benchmark, {"do_sample": False})
    with RunFolder.create(tmp_path / "run", {}, {}) as folder:
        paired = Paired(asker, plan, folder, warmup=0, maps=0)
        first = next(iter(paired.sample(0, points)))  # stopped after one record
        assert (first["point"], first["turn"]) == (BASELINE, 0)
    with RunFolder.resume(tmp_path / "run", {}) as folder:
        rest = list(Paired(asker, plan, folder, warmup=0, maps=0).sample(0, points))
        assert [(r["point"], r["turn"]) for r in rest] == [(BASELINE, 1), ("fastv", 0), ("fastv", 1)]
    assert rest[0]["tokens"]["prompt"] > first["tokens"]["prompt"] + 4
    assert rest[0]["score"] == {"correct": 1.0, "agreement": True, "prefix": 1.0}
    assert rest[2]["score"]["correct"] == float(rest[2]["parsed"] == rest[0]["parsed"])
    assert "agreement" not in first["score"]


@pytest.mark.parametrize(
    ("reply", "other", "share"), [("a b c", "a b d", 2 / 3), ("a b", "a b c d", 0.5), ("", "", 1.0), ("a", "", 0.0)]
)
def test_of_long_replies_the_same_beginning_is_kept(reply, other, share):
    assert same_beginning(reply, other) == same_beginning(other, reply) == pytest.approx(share)


def test_a_benchmark_without_a_digest_is_hashed_sample_by_sample(monkeypatch):
    first = digest(Dialogue(), 1)
    assert digest(Dialogue(), 1) == first
    other = replace(Dialogue()[0], image=Image.new("RGB", (50, 50)))
    monkeypatch.setattr(Dialogue, "__getitem__", lambda self, index: other)
    assert digest(Dialogue(), 1) != first


def test_a_conversation_alternates_and_shows_the_picture_once():
    asked = Sample("a", "k", "picture", ("one?", "two?", "three?"), (None,) * 3)
    said = conversation(asked, ["uno", "due"])
    assert [message["role"] for message in said] == ["user", "assistant", "user", "assistant", "user"]
    assert [len(message["content"]) for message in said] == [2, 1, 1, 1, 1]
    assert said[-1]["content"][0]["text"] == "three?"


def shown(turn: str, *pictures: str, marked: bool = True) -> list[str]:
    """A first turn's parts, pictures by their names."""
    asked = Sample("a", "k", pictures[0], (turn,), (None,), more=pictures[1:], marked=marked)
    return [part.get("text") or f"[{part['image']}]" for part in conversation(asked, [])[0]["content"]]


def test_pictures_stand_where_their_marks_are():
    assert shown("Is <image 2> like <image 1>?", "p", "q") == ["Is ", "[q]", " like ", "[p]", "?"]
    assert shown("Is <image 2>?", "p", "q") == ["[p]", "Is ", "[q]", "?"]
    assert shown("<image 1> A. <image 1>", "p") == ["[p]", " A. "]
    assert shown("Is <image 2>?", "p", "q", marked=False) == ["[p]", "[q]", "Is <image 2>?"]
    with pytest.raises(ValueError, match="names <image 3>, there are 2 pictures"):
        shown("<image 3>", "p", "q")


def event_of(kept: list[list[int]]) -> SimpleNamespace:
    """A 2 × 2 grid behind one text column, past = 10; `kept`: per stop the surviving cells."""
    grid = torch.full((1, 6, 5), -1)
    grid[0, 1:5] = torch.tensor([[0, 0, 0, y, x] for y in (0, 1) for x in (0, 1)])
    mask = torch.tensor([[False, True, True, True, True, False]])
    stops = []
    for layer, alive in enumerate(kept, 1):
        column = torch.tensor([[-1, 10, *(11 + cell for cell in alive), 15]])
        stops.append(SimpleNamespace(layer=layer, column=column, visual=torch.tensor([len(alive)])))
    prompt, visual = torch.tensor([6]), torch.tensor([4])
    return SimpleNamespace(past=10, grid=grid, visual_mask=mask, stops=stops, prompt=prompt, visual=visual)


def test_evidence_is_counted_on_the_grid():
    event = event_of([[0, 1, 3], [3]])
    assert [kept.tolist() for kept in survivors(event)] == [[True, True, False, True], [False, False, False, True]]
    right_half = ((0.5, 0.0, 1.0, 1.0),)
    assert evidence(event, right_half) == {"tokens": 2, "kept_fraction": [1.0, 0.5]}
    assert evidence(event, ((0.0, 0.6, 0.4, 0.9),)) == {"tokens": 1, "kept_fraction": [0.0, 0.0]}
    assert evidence(event, ()) is None
    assert evidence(None, right_half) is None
    tiled = event_of([[0]])
    tiled.grid[0, 1, 1] = 1
    assert cells(tiled) is None


def test_the_account_of_an_event():
    geometry = Geometry(layers=4, width=8, heads=2, kv_heads=1, head_dim=4, ffn=16)
    book, tokens = account(geometry, 0, 0, event_of([[0, 1, 3], [3]]), generated=5)
    assert tokens == {"prompt": 6, "visual": 4, "kept": [3, 1], "mean_visual": (4 + 3 + 1 + 1) / 4, "generated": 5}
    assert book.kv_fraction == pytest.approx((6 + 5 + 3 + 3) / 24)


def test_a_centre_crop_moves_the_boxes():
    square = {"height": 336, "width": 336}
    cropping = SimpleNamespace(do_center_crop=True, size={"shortest_edge": 336}, crop_size=square)
    wide = Image.new("RGB", (800, 400))
    seen = seen_box(wide, cropping)
    assert seen == (0.25, 0.0, 0.75, 1.0)
    assert within([(0.0, 0.0, 0.5, 0.5), (0.8, 0.0, 0.9, 1.0)], seen) == [(0.0, 0.0, 0.5, 0.5)]
    assert seen_box(wide, SimpleNamespace(do_center_crop=False)) == (0.0, 0.0, 1.0, 1.0)


def test_padding_to_a_square_moves_the_boxes_too():
    class LlavaImageProcessorPil:
        do_pad, do_center_crop = True, True
        size, crop_size = {"shortest_edge": 336}, {"height": 336, "width": 336}

    wide = Image.new("RGB", (800, 400))
    seen = seen_box(wide, LlavaImageProcessorPil())
    assert seen == (0.0, -0.5, 1.0, 1.5)
    assert within([(0.0, 0.0, 0.5, 1.0)], seen) == [(0.0, 0.25, 0.5, 0.75)], "the picture is the middle half"
    batch = SimpleNamespace(do_pad=True)  # fills up a batch of tiles: the picture stays as it is
    assert seen_box(wide, batch) == (0.0, 0.0, 1.0, 1.0)


def test_a_first_picture_that_is_cut_off_stops_nothing(monkeypatch, checkpoint, here, photographs, capsys):
    (photographs / "cut.jpg").rename(photographs / "Cut.jpg")  # first in the order of names
    words = ("benchmark=folder", f"benchmark.path={photographs}", "benchmark.ask=[what is it?]", "limit=2")
    assert smoke(monkeypatch, checkpoint, *words) == 0
    broken = [record for record in records(here / "run") if record["error"]]
    assert len(broken) == 6
    assert all("'Cut.jpg': cannot be decoded (OSError" in record["error"] for record in broken)
    capsys.readouterr()
    assert smoke(monkeypatch, checkpoint, *words, "limit=1", "output=other") == 2
    assert "none of 1 samples can be read; the first said: ValueError: 'Cut.jpg'" in capsys.readouterr().err


def red(name: str = "a") -> Sample:
    return Sample(name, "k", Image.new("RGB", (40, 40), "red"), ("what?",), (None,), ((),))


def test_a_request_beyond_the_context_says_its_numbers(vlm):
    prompt = vlm.inputs([conversation(red(), [])]).prompt_tokens[0]
    room = vlm.processor.context - prompt
    asker = Asker(vlm, SimpleNamespace(max_new_tokens=room + 1), {"do_sample": False})
    with pytest.raises(ValueError, match=rf"has {prompt} tokens, with max_new_tokens={room + 1} they make 4097"):
        asker.ask(None, red(), [])
    asker.ask(None, red(), [], limit=2)


def test_a_name_that_is_no_text_can_be_asked():
    assert dice(0, "a\udcff", 0) != dice(0, "a", 0)


def test_sampling_without_a_cut_is_not_the_librarys_fifty():
    asker = object.__new__(Asker)
    asker.benchmark = SimpleNamespace(max_new_tokens=3)
    asker.sampler = {"do_sample": True, "temperature": None, "top_k": None, "top_p": None}
    assert asker.options(None) == {
        "do_sample": True, "top_k": 0, "top_p": 1.0, "temperature": 1.0, "max_new_tokens": 3,
    }  # fmt: skip
    asker.sampler = {"do_sample": True, "top_k": 7}
    assert asker.options(None)["top_k"] == 7
    asker.sampler = {"do_sample": False, "top_k": None}
    assert asker.options(None) == {"do_sample": False, "max_new_tokens": 3}


def test_greedy_is_greedy_whatever_the_checkpoint_asks_for(vlm, monkeypatch):
    sampler = registry.load("sampler", "greedy")
    asker = Asker(vlm, SimpleNamespace(max_new_tokens=8), sampler)
    plain = asker.ask(None, red(), [])[0]["ids"]
    monkeypatch.setattr(vlm.model.generation_config, "repetition_penalty", 50.0)
    assert asker.ask(None, red(), [])[0]["ids"] == plain


def test_pooled_evidence_is_no_count(vlm):
    sample = replace(red(), region=(((0.0, 0.0, 0.5, 0.5),),))
    asker = Asker(vlm, SimpleNamespace(max_new_tokens=1), {"do_sample": False})
    assert asker.ask(Pool(ratio=0.5), sample, [])[0]["evidence"] is None
    assert asker.ask(FastV(layer=2, ratio=0.5), sample, [])[0]["evidence"]["tokens"] > 0


def test_a_picture_that_cannot_be_drawn_spoils_no_record(vlm, tmp_path, monkeypatch):
    def breaks(*_):
        raise OSError("no space")

    monkeypatch.setattr("mmaccel.jobs.pictures.save_pictures", breaks)
    plan = Plan(Dialogue(), 1, {}, {BASELINE: None})
    asker = Asker(vlm, plan.benchmark, {"do_sample": False})
    with RunFolder.create(tmp_path / "run", {}, {}) as folder, pytest.warns(RuntimeWarning, match="no space"):
        found = list(Paired(asker, plan, folder, warmup=0, maps=1).sample(0, [Point(BASELINE)]))
    assert [record["error"] for record in found] == [None, None]


def test_a_mixed_table_keeps_agreement_beside_accuracy(monkeypatch, checkpoint, here, photographs):
    (here / "table.csv").write_text("image,question,answer\na.jpg,what?,cat\nb.png,what?,\n")
    words = ("benchmark=folder", f"benchmark.path={photographs}", f"benchmark.questions={here / 'table.csv'}")
    assert smoke(monkeypatch, checkpoint, *words) == 0
    for record in records(here / "run"):
        if record["reference"] is None:
            assert record["score"]["correct"] is None
            assert record["score"]["same_as_baseline"] in (0.0, 1.0)
    rows = json.loads((here / "run" / "summary.json").read_text())["points"]
    assert rows[0]["accuracy"] == 0.0, "the one answered question, and not the baseline's agreement with itself"


def test_the_quantization_of_the_model_is_every_points_label(tmp_path):
    config = {"model": {"quantization": "int8"}, "resume": None}
    with opened(Task(config, output=tmp_path / "run"), [Point(BASELINE)], {}):
        kept = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert kept["points"][0]["quantization"] == "int8"


KILLS, SAMPLES, POINTS = 20, 36, 6
SAMPLED = ("sampler.do_sample=true", "sampler.max_new_tokens=12", "sweep.pruner.ratio=[0.9]", "limit=null")


@pytest.fixture
def sweep_command(checkpoint, tmp_path):
    """Twelve pictures × three questions, sampled replies: accuracies differ, and records wait for the baseline's."""
    (tmp_path / "pictures").mkdir()
    for index in range(SAMPLES // 3):
        noise = np.random.default_rng(index).integers(0, 255, (80 + 10 * index, 120, 3), dtype=np.uint8)
        Image.fromarray(noise).save(tmp_path / "pictures" / f"{index:02d}.png")
    words = ("+experiment=smoke", "model=llava", f"model.path={checkpoint}", *SMALL, *SAMPLED)
    return [sys.executable, "-m", "mmaccel.run", *words, "benchmark=folder", "benchmark.path=pictures"]


def started(command: list[str], where: Path, name: str) -> subprocess.Popen:
    """The command as a person types it again after a kill: with resume= once there is something to resume."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    more = [f"output={name}", *([f"resume={name}"] if (where / name / "config.yaml").is_file() else [])]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen([*command, *more], cwd=where, env=environment, **quiet)


def killed(process: subprocess.Popen, moment: Callable[[], bool], after: float) -> bool:
    """Waits for the moment and `after` seconds more, then kill -9; whether the process was still alive to be killed."""
    while process.poll() is None and not moment():
        time.sleep(0.005)
    try:
        process.wait(after)
    except subprocess.TimeoutExpired:
        process.kill()
    return process.wait() == -signal.SIGKILL


def whole_lines(file: Path) -> list[bytes]:
    return file.read_bytes().split(b"\n")[:-1] if file.is_file() else []


@pytest.mark.slow
def test_a_run_killed_twenty_times_ends_as_an_unbroken_one(sweep_command, tmp_path):
    """kill -9 while the library loads, between records, inside them and while the page is written; then resume=."""
    assert started(sweep_command, tmp_path, "unbroken").wait() == 0
    dice, lines, seen, kills = random.Random(0), tmp_path / "broken" / "records.jsonl", [], 0
    while kills < KILLS:
        before = len(seen)
        wanted = SAMPLES * POINTS if kills == KILLS - 1 else before + dice.randint(1, 8)
        process = started(sweep_command, tmp_path, "broken")
        if kills % 2 == 0:  # any moment from the first import on
            kills += killed(process, lambda: True, dice.uniform(0.3, 8.0))
        else:  # while records come; the last kill falls into the writing of what follows them
            kills += killed(process, lambda wanted=wanted: len(whole_lines(lines)) >= wanted, dice.uniform(0, 0.1))
        now = whole_lines(lines)
        assert now[:before] == seen, "what was on the disk stays as it was"
        seen = now
    assert started(sweep_command, tmp_path, "broken").wait() == 0
    assert whole_lines(lines) == seen, "all records were there before the last kill"
    same_results(tmp_path / "unbroken", tmp_path / "broken")


def same_results(unbroken: Path, broken: Path) -> None:
    """The same records but for their times, each once, and the same accuracies."""
    replies = [
        [(r["point"], r["sample"], r["turn"], r["ids"], r["score"], r["error"]) for r in records(folder)]
        for folder in (unbroken, broken)
    ]
    keys = {reply[:3] for reply in replies[1]}
    assert len(keys) == len(replies[1]) == SAMPLES * POINTS
    assert sorted(replies[0], key=str) == sorted(replies[1], key=str)
    rows = [json.loads((folder / "summary.json").read_text())["points"] for folder in (unbroken, broken)]
    columns = ("point", "n", "accuracy", "accuracy_ci", "delta", "delta_ci", "kept_fraction", "mac_fraction", "kinds")
    shown = [[{column: row[column] for column in columns} for row in part] for part in rows]
    assert shown[0] == shown[1]
    assert len({row["accuracy"] for row in rows[0]}) > 1, "accuracies that are all alike would prove little"
    assert json.loads((broken / "provenance.json").read_text())["run"], "the first start's facts outlive the kills"


def test_samples_without_times_are_answered_alike_and_the_tower_runs_once(monkeypatch, checkpoint, here, finished):
    towers: list[int] = []
    features = Shared.features

    @contextmanager
    def counted(self, model):
        before = model.model.get_image_features

        @functools.wraps(before)
        def tower(*args, **kwargs):
            towers.append(1)
            return before(*args, **kwargs)

        model.model.get_image_features = tower
        with features(self, model):
            yield
        vars(model.model).pop("get_image_features")

    monkeypatch.setattr(Shared, "features", counted)
    words = ("limit=3", "benchmark.kinds=[exist,count]", "job.timed=1")
    assert smoke(monkeypatch, checkpoint, *words) == 0
    found = records(here / "run")
    assert len(towers) == 2, "two samples without times, six points each"
    assert [(r["point"], r["sample"], r["ids"]) for r in found] == [
        (r["point"], r["sample"], r["ids"]) for r in records(finished)
    ]
    times = ("stages_ms", "step_ms", "ttft_ms", "tpot_ms", "e2e_ms")
    for record, other in zip(found, records(finished)):
        timed = record["sample"] == found[0]["sample"]
        assert all((record[name] is not None) == timed or other[name] is None for name in times)
        assert (record["tokens"], record["evidence"], record["score"]) == (
            other["tokens"], other["evidence"], other["score"],
        )  # fmt: skip
    rows = json.loads((here / "run" / "summary.json").read_text())["points"]
    assert all((row["n"], row["timed"]) == (3, 1) for row in rows)
    assert "times of 1 samples" in (here / "run" / "report.html").read_text()


def test_a_draft_says_the_same_and_stands_beside_its_twin(monkeypatch, checkpoint, here):
    assert smoke(monkeypatch, checkpoint, "limit=7", "benchmark.kinds=[exist]", "draft=lookup") == 0
    found = {(r["point"], r["sample"]): r for r in records(here / "run")}
    rows = {row["point"]: row for row in json.loads((here / "run" / "summary.json").read_text())["points"]}
    drafted = [name for name in rows if name.endswith(" + lookup")]
    assert drafted == ["baseline + lookup", "fastv ratio=0.5 + lookup"]
    for name in drafted:
        row, twin = rows[name], name.removesuffix(" + lookup")
        assert (row["draft"], row["drafting"]["identical"], row["drafting"]["pairs"]) == ("lookup", 1.0, 7)
        assert row["drafting"]["break_even"] > 0
        assert "drafting" not in rows[twin]
        for (point, sample), record in found.items():
            if point == name:
                assert record["ids"] == found[twin, sample]["ids"]
                assert {"draft", "verify"} <= set(record["stages_ms"])
                assert sum(record["stages_ms"].values()) <= record["e2e_ms"] + 0.5
    assert "same words %" in (here / "run" / "report.html").read_text()


def test_a_models_heads_answer_the_kinds_they_are_for_and_stand_by_kind(monkeypatch, checkpoint, here, capsys):
    head = "+heads.lookup={_target_: mmaccel.drafting.lookup.Lookup}"
    words = ("limit=6", "benchmark.kinds=[exist,colour,count]", head)
    assert smoke(monkeypatch, checkpoint, *words, "job.heads=[colour,count]") == 0
    asked: dict[str, set[str]] = {}
    for record in records(here / "run"):
        asked.setdefault(record["point"], set()).add(record["kind"])
        plain = " + lookup" not in record["point"]
        assert (record["spec"].get("laws") == len(record["ids"])) == plain  # every word of plain decoding has its law
    assert asked["baseline"] == {"exist", "colour", "count"}
    assert asked["baseline + lookup"] == asked["fastv ratio=0.5 + lookup"] == {"colour", "count"}
    rows = {row["point"]: row for row in json.loads((here / "run" / "summary.json").read_text())["points"]}
    part, twin = rows["baseline + lookup"]["drafting"], rows["baseline"]
    assert rows["baseline + lookup"]["entropy"] is None
    assert twin["entropy"] > 0
    colour = [r["spec"] for r in records(here / "run") if (r["point"], r["kind"]) == ("baseline", "colour")]
    mean = sum(spec["entropy"] for spec in colour) / sum(spec["laws"] for spec in colour)
    assert part["kinds"]["colour"]["entropy"] == pytest.approx(mean)
    assert part["kinds"]["count"]["pairs"] == 2
    assert "<h2>Drafting</h2>" in (here / "run" / "report.html").read_text()
    assert smoke(monkeypatch, checkpoint, *words, "job.heads=[sign]", "output=other") == 0
    assert not any(" + lookup" in record["point"] for record in records(here / "other"))
    assert smoke(monkeypatch, checkpoint, *words, "job.heads=sign", "output=third") == 2
    assert "job.heads: got 'sign', valid are null, all, and a list of kinds" in capsys.readouterr().err


def test_a_drafts_own_pruner_wants_a_whole_target(monkeypatch, checkpoint, here, capsys):
    drafts = ("+drafts.x={_target_: mmaccel.training.formats.load_head, folder: pico-eagle, "
              "pruner: {_target_: mmaccel.pruning.random.Random, layer: 2, ratio: 0.5}}")  # fmt: skip
    monkeypatch.setattr("mmaccel.drafting.eagle.Eagle.fits", lambda *_: None)
    monkeypatch.setattr(VLM, "load", lambda *_, **__: pytest.fail("weights were read"))
    assert smoke(monkeypatch, checkpoint, "limit=1", drafts) == 2
    assert "draft.pruner of x: got one where the target is pruned too" in capsys.readouterr().err


def test_a_draft_for_another_target_is_refused_before_its_weights_are_read(monkeypatch, checkpoint, here, capsys):
    drafts = "+drafts.x={_target_: mmaccel.drafting.medusa.Medusa, width: 7, vocabulary: 9}"
    monkeypatch.setattr(VLM, "load", lambda *_, **__: pytest.fail("weights were read"))
    assert smoke(monkeypatch, checkpoint, "limit=1", drafts) == 2
    assert "medusa: got a head of width 7, the target's is 32" in capsys.readouterr().err


def test_shared_features_are_for_equal_pixels_alone():
    calls = []
    base = SimpleNamespace(get_image_features=lambda pixels, scale=1: calls.append(1) or Output(pixels * scale))
    model, store = SimpleNamespace(model=base), Shared()
    one, two = torch.ones(2), torch.zeros(2)
    with store.features(model):
        first, again = base.get_image_features(one), base.get_image_features(one.clone())
        first.fact = "mine"
        assert not hasattr(again, "fact")
        assert torch.equal(first.value, again.value)
        base.get_image_features(two)
        base.get_image_features(two, scale=3)
        base.get_image_features(two, scale=torch.tensor(3))
    assert len(calls) == 4
    assert base.get_image_features(one).value is not None
    assert len(calls) == 5


class Output:
    def __init__(self, value):
        self.value = value


@pytest.mark.parametrize("timed", [-1, True])
def test_how_many_are_timed_is_checked(timed):
    with pytest.raises(ValueError, match=r"job\.timed: got .*, valid are null and whole numbers from 0 on"):
        Evaluate(timed=timed)


def test_a_gate_beyond_the_models_depth_is_refused_before_the_weights(monkeypatch, checkpoint, here, capsys):
    drafts = ("+drafts.x={_target_: mmaccel.drafting.gate.Gate, head: {_target_: mmaccel.drafting.lookup.Lookup}, "
              "speculate: text_segments, layer: 9, below: 0.5}")  # fmt: skip
    monkeypatch.setattr(VLM, "load", lambda *_, **__: pytest.fail("weights were read"))
    assert smoke(monkeypatch, checkpoint, "limit=1", drafts) == 2
    assert "draft.layer of x: got 9, the model's layers are 0 … " in capsys.readouterr().err


def test_heads_of_kinds_that_are_not_asked_are_not_read(monkeypatch, checkpoint, here):
    heads = ["+heads.eagle={_target_: mmaccel.training.formats.load_head, folder: nowhere}", "job.heads=[caption]"]
    assert smoke(monkeypatch, checkpoint, "limit=1", "benchmark.kinds=[colour]", *heads) == 0


class Twice(Dialogue):
    """The same sample at two places."""

    def __len__(self):
        return 2


def test_a_name_that_occurs_twice_loses_no_sample(vlm, tmp_path):
    plan = Plan(Twice(), 2, {}, {BASELINE: None})
    with RunFolder.create(tmp_path / "run", {}, {}) as folder:
        paired = Paired(Asker(vlm, plan.benchmark, {"do_sample": False}), plan, folder, warmup=0, maps=0)
        made = [record["sample"] for index in range(2) for record in paired.sample(index, [Point(BASELINE)])]
    assert made == ["talk", "talk", "talk#1", "talk#1"]


def test_an_interruption_names_the_folder_and_a_wrong_resume_the_command(monkeypatch, checkpoint, here, capsys):
    calls = []

    def stop(self, *_, **__):
        calls.append(1)
        if len(calls) > 2:
            raise KeyboardInterrupt
        return ask(self, *_, **__)

    ask = Asker.ask
    monkeypatch.setattr(Asker, "ask", stop)
    assert smoke(monkeypatch, checkpoint, "limit=2") == 130
    assert "the same command with resume=run goes on" in capsys.readouterr().err
    monkeypatch.setattr(VLM, "load", lambda *_, **__: pytest.fail("weights were read"))
    assert smoke(monkeypatch, checkpoint, "limit=1", "resume=run") == 2
    said = capsys.readouterr().err
    assert "limit: was 2, now 1" in said
    assert "it was started with" in said
    assert "the same with resume=run goes on" in said


class Unread(Dialogue):
    def score(self, sample, replies):
        return {"correct": 0.0, "parsed": None}


def test_a_parse_rate_of_nothing_is_said(vlm, tmp_path):
    plan = Plan(Unread(), 1, {}, {BASELINE: None})
    with RunFolder.create(tmp_path / "run", {}, {}) as folder:
        paired = Paired(Asker(vlm, plan.benchmark, {"do_sample": False}), plan, folder, warmup=0, maps=0)
        made = list(paired.sample(0, [Point(BASELINE)]))
    (row,) = points_table(made, [{"name": BASELINE}], BASELINE)
    assert (row["parsed_rate"], row["accuracy"]) == (0.0, 0.0)


class Faulty(Dialogue):
    def summary(self, records):
        raise RuntimeError("no such number")


def test_a_summary_that_fails_costs_its_own_scores_alone(vlm, tmp_path, capsys):
    plan = Plan(Faulty(), 1, {}, {BASELINE: None})
    with RunFolder.create(tmp_path / "run", {"points": [{"name": BASELINE}]}, {}) as folder:
        paired = Paired(Asker(vlm, plan.benchmark, {"do_sample": False}), plan, folder, warmup=0, maps=0)
        list(paired.sample(0, [Point(BASELINE)]))
    finish(tmp_path / "run", plan.benchmark, None)
    assert "the summary of dialogue failed (RuntimeError: no such number)" in capsys.readouterr().err
    assert (tmp_path / "run" / "report.html").is_file()


def test_a_log_hears_at_least_every_half_minute_and_what_is_to_come(tmp_path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("mmaccel.jobs.screen.time.monotonic", lambda: now[0])
    with RunFolder.create(tmp_path / "run", {}, {}) as folder:
        screen = Screen(100, [Point(BASELINE)], folder)
    screen.console = Console(file=io.StringIO(), width=200)
    for done in range(1, 5):
        now[0] += 20.0
        screen.advance(done)
    said = screen.console.file.getvalue().splitlines()
    assert [line.split("/")[0] for line in said] == ["2", "4"]
    assert said[1].endswith("0:01:20 so far, 0:32:00 to go")
