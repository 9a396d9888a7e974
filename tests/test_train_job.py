"""job=train as it is typed: a folder that a draft reads, resume, and what is refused before the model is read."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from running import typed, write_tiny_llava
from test_tracker import Logged

from mmaccel.drafting.medusa import Medusa
from mmaccel.training.cache import Cache
from mmaccel.training.export import cautions
from mmaccel.training.formats import load_head, new_head

SMALL = ("job=train", "data.n=14", "data.kinds=[colour]", "job.held_out=2", "job.most=4", "machine.threads=1")
PLAN = ("job.plan.steps=4", "job.plan.batch=2", "job.plan.save_every=2", "job.plan.say_every=1", "job.plan.warmup=1")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write_tiny_llava(tmp_path_factory.mktemp("tiny") / "llava")


@pytest.fixture
def train(monkeypatch, tmp_path, checkpoint):
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> int:
        target = ("model=llava", f"model.path={checkpoint}")
        return typed(monkeypatch, *SMALL, *PLAN, *target, "tracker=off", "output=run", *words)

    return run


def lines(folder) -> list[dict]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("head", ["eagle", "eagle3", "medusa"])
def test_a_head_is_trained_and_drafts_in_a_sweep(train, tmp_path, monkeypatch, checkpoint, capsys, head):
    assert train(f"job.head={head}") == 0
    folder = tmp_path / "run"
    assert [line["step"] for line in lines(folder)] == [1, 2, 3, 4]
    held = json.loads((folder / "held_out.json").read_text())
    assert held["tau"] >= 1.0
    assert held["failed"] == 0
    drafts = f"+drafts.mine={{_target_: mmaccel.training.formats.load_head, folder: {folder}}}"
    words = ("+experiment=smoke", "model=llava", f"model.path={checkpoint}", "limit=2", "benchmark.kinds=[exist]")
    small = ("tracker=off", "sampler.max_new_tokens=4", "machine.threads=1", "output=sweep")
    assert typed(monkeypatch, *words, *small, drafts) == 0
    rows = json.loads((tmp_path / "sweep" / "summary.json").read_text())["points"]
    drafted = [row for row in rows if row["draft"] == "mine"]
    assert [row["point"] for row in drafted] == ["baseline + mine", "fastv ratio=0.5 + mine"]
    assert all(row["drafting"]["identical"] == 1.0 for row in drafted)


def test_a_training_goes_on_and_a_changed_one_is_refused(train, tmp_path, capsys):
    assert train() == 0
    whole = load_head(tmp_path / "run").state_dict()
    assert train() == 2
    assert "already holds a run; continue it with resume=run" in capsys.readouterr().err
    assert train("resume=run", "job.plan.rate=1") == 2
    assert "job.plan.rate: was 0.001, now 1" in capsys.readouterr().err
    before = (tmp_path / "run" / "log.jsonl").read_text()
    assert train("resume=run") == 0, "a finished one has nothing to do"
    assert (tmp_path / "run" / "log.jsonl").read_text() == before
    again = load_head(tmp_path / "run").state_dict()
    assert all((whole[name] == again[name]).all() for name in whole)
    assert train("resume=nowhere") != 0
    assert "nowhere is no folder of such a job" in capsys.readouterr().err


def test_a_trainings_curves_reach_wandb(train, tmp_path, monkeypatch, capsys):
    assert train("tracker=wandb") == 0
    line = capsys.readouterr().out
    (folder,) = (tmp_path / "run" / "wandb").glob("offline-run-*")
    assert "wandb sync" in line
    logged = Logged(folder)
    steps = [row["_step"] for row in logged.history if "train/loss_0" in row]
    assert steps == [1, 2, 3, 4]
    assert logged.config["job"]["value" if "value" in logged.config["job"] else "head"]
    held = json.loads((tmp_path / "run" / "held_out.json").read_text())
    assert logged.summary["held_out/tau"] == held["tau"]
    assert logged.summary["held_out/accepted_at_1"] == held["accepted_by_depth"][0]
    (head,) = logged.artifacts
    assert (head.type, json.loads(head.metadata)["head"]["step"]) == ("draft-head", 4)
    assert typed(monkeypatch, "job=wandb_push", "run=run", "tracker.mode=offline") == 0
    assert [path.name for path in (tmp_path / "run" / "wandb").glob("offline-run-*")] == [folder.name], "not twice"
    assert train("resume=run", "tracker=wandb") == 0
    assert len(json.loads((tmp_path / "run" / "provenance.json").read_text())["resumed"]) == 1
    assert [path.name for path in (tmp_path / "run" / "wandb").glob("offline-run-*")] == [folder.name]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("job.head=hydra",), "job.head: got 'hydra', valid are eagle, eagle3, vispec, medusa"),
        (("job.held_out=14",), "job.held_out: got 14, valid are 1 … 13: there are 14"),
        (("job.plan.batch=0",), "batch: got 0"),
    ],
)
def test_what_cannot_be_trained_is_said(train, capsys, words, said):
    assert train(*words) == 2
    assert said in capsys.readouterr().err


@pytest.mark.slow
def test_two_processes_train_the_head_that_one_trains_with_a_larger_batch(train, tmp_path, checkpoint):
    """As accelerate launch and torchrun start them: one folder, one log, every conversation once."""
    assert train("job.plan.batch=4") == 0
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "-m", "mmaccel.run"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    words = [*SMALL, *PLAN, "tracker=off", "model=llava", f"model.path={checkpoint}", "output=two"]
    told = subprocess.run([*launch, *words], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr[-2000:]
    assert told.stderr.count("held out:") == 1
    for one, two in zip(lines(tmp_path / "run"), lines(tmp_path / "two"), strict=True):
        assert one["loss_0"] == pytest.approx(two["loss_0"], abs=1e-3)  # means of answers of other lengths
    state = torch.load(tmp_path / "two" / "trainer.pt", weights_only=True)
    assert state["cursor"] == 2 * 2 * 4 - 1  # each process passes over what is the other's
    assert load_head(tmp_path / "two")


def test_a_disk_too_small_keeps_no_features(train, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Cache, "room", lambda self, size: False)
    assert train("job.cache=kept") == 0
    said = capsys.readouterr().err
    assert "do not fit kept; features are made anew each time" in said
    assert "features on the disk: none kept" in said
    assert len(list((tmp_path / "kept").glob("*.safetensors"))) == 2  # the trial's


def test_a_head_is_exported_with_its_line_and_its_cautions(train, tmp_path, monkeypatch, checkpoint, capsys):
    assert train("job.head=eagle3", "+job.fields={image_input: merged, taps: [1, 2], vocabulary: 60}") == 0
    export = ("job=export", "job.head=run", "model=llava", f"model.path={checkpoint}", "output=served")
    capsys.readouterr()
    assert typed(monkeypatch, *export) == 0
    assert "this one was trained with merged, so acceptance will fall" in " ".join(capsys.readouterr().err.split())
    text = (tmp_path / "served" / "README.md").read_text()
    assert f"vllm serve {checkpoint} --speculative-config" in text
    chosen = json.loads(text.split("--speculative-config '")[1].split("'")[0])
    assert chosen == {"method": "eagle3", "model": "served", "num_speculative_tokens": 5}
    assert "--speculative-algorithm EAGLE3" in text
    before, after = load_head(tmp_path / "run").state_dict(), load_head(tmp_path / "served").state_dict()
    assert all((before[name] == after[name]).all() for name in before)
    assert typed(monkeypatch, *export) == 2
    assert "served already holds a head" in capsys.readouterr().err


def test_what_engines_will_not_do_is_said(train, tmp_path):
    assert train() == 0
    head = load_head(tmp_path / "run")
    assert any("takes no pictures" in one for one in cautions(head, {"model_type": "llava"}))
    assert any("expects an fc bias" in one for one in cautions(head, {"model_type": "llava"}))
    assert any("serve no such head" in one for one in cautions(Medusa(8, 9), {}))
    taps = new_head("eagle3", Tiny(), {"taps": (0, 1), "vocabulary": 5})
    said = " ".join(cautions(taps, {"model_type": "smolvlm"}))
    assert "no EAGLE-3 head on a smolvlm" in said
    assert "has neither" in said
    assert "no name for the embeddings" in said


class Tiny:
    """The text config of a target."""

    hidden_size, num_attention_heads, num_key_value_heads, head_dim, intermediate_size = 8, 2, 1, 4, 12
    vocab_size, max_position_embeddings, rms_norm_eps, num_hidden_layers = 9, 32, 1e-5, 4

    def get_text_config(self) -> "Tiny":
        return self
