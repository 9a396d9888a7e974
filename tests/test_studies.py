"""The timing studies run end to end on tiny geometries and leave what a study leaves."""

import csv
import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlavaForConditionalGeneration

from mmaccel.drafting.base import Seen, Target
from mmaccel.drafting.replay import Replay
from mmaccel.jobs.draft_overhead import DraftOverhead
from mmaccel.jobs.mechanism_overhead import MechanismOverhead
from mmaccel.jobs.prefill_scaling import PrefillScaling
from mmaccel.jobs.study import paired_rounds, relative_cost
from mmaccel.jobs.task import Task
from mmaccel.registry import conf_dir

newer = pytest.mark.skipif(
    "mm_encoder_outputs" not in inspect.signature(LlavaForConditionalGeneration.forward).parameters,
    reason="the studies hand encoded pictures over, which this transformers does not take",
)
TINY = {"a": {"width": 32, "layers": 4, "heads": 2, "kv_heads": 1, "ffn": 64, "visual": 64}}


def task(folder: Path) -> Task:
    return Task({"machine": {"threads": 1, "device": "cpu"}, "seed": 0}, output=folder)


def rows_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "points.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


@newer
def test_mechanism_overhead(tmp_path: Path) -> None:
    MechanismOverhead(TINY, rounds=3, warmup=1, steps=3).run(task(tmp_path))
    rows = rows_of(tmp_path)
    assert [row["what"] for row in rows] == ["loop", "decode step after pruning", "prefill, everything kept"]
    assert all(float(row["ratio"]) > 0 for row in rows)
    assert len(json.loads((tmp_path / "rounds.json").read_text())["a: loop"]["ours"]) == 3
    assert "versions" in json.loads((tmp_path / "provenance.json").read_text())


@newer
def test_prefill_scaling(tmp_path: Path) -> None:
    PrefillScaling(TINY, ratios=(0.5, 0.9), rounds=3, warmup=1).run(task(tmp_path))
    rows = rows_of(tmp_path)
    assert [row["kept"] for row in rows] == ["32", "6"]
    assert rows[0]["low"] == ""  # three rounds exclude nothing
    assert (tmp_path / "figure.png").stat().st_size > 5000
    PrefillScaling(TINY, ratios=(0.5,), rounds=7, warmup=1).run(task(tmp_path))
    row = rows_of(tmp_path)[0]
    assert float(row["low"]) <= float(row["efficiency"]) <= float(row["high"])
    assert float(rows[1]["mac_fraction"]) < float(rows[0]["mac_fraction"]) < 1


@newer
def test_draft_overhead(tmp_path: Path) -> None:
    shapes = {"chain": [1, 1, 1], "tree": [3, 2]}
    DraftOverhead(TINY, shapes, right=(0.0, 1.0), rounds=2, warmup=1, tokens=12).run(task(tmp_path))
    rows = rows_of(tmp_path)
    assert [(row["shape"], row["nodes"], row["right"]) for row in rows] == [
        ("chain", "3", "0.0"), ("chain", "3", "1.0"), ("tree", "5", "0.0"), ("tree", "5", "1.0"),
    ]  # fmt: skip
    taus = [float(row["tau"]) for row in rows]
    assert taus[0] == 1.0
    assert taus[1] > 2.5  # the last step of eleven is cut at the limit
    assert taus[3] > 2.0
    assert all(float(row["break_even_tau"]) > 0 for row in rows)


def test_synthetic_acceptance_is_what_was_asked_for() -> None:
    """Over many proposals, a chain's first k levels are all right with chance right^k."""
    answer = [7, 3, 9, 4, 2, 8, 5] * 400
    head = Replay(answer, 0.7, (1, 1, 1), seed=3)
    target = Target(torch.nn.Embedding(12, 4), torch.nn.Linear(4, 12), 4, 2, 12)
    state, one = head.start(target, 1), torch.zeros(1, 1, dtype=torch.long)
    head.observe(state, Seen(one, one))
    hits = [0, 0, 0]
    for at in range(2000):
        draft = head.propose(state, torch.tensor([answer[at]]), one, 9, None)
        right = [a == b for a, b in zip(draft.tokens[0].tolist(), answer[at + 1 :])]
        for depth in range(3):
            hits[depth] += all(right[: depth + 1])
        head.observe(state, Seen(one, one))
    for depth, count in enumerate(hits):
        assert abs(count / 2000 - 0.7 ** (depth + 1)) < 0.04
    assert head.propose(state, torch.tensor([1]), one, 0, None).size == 0
    with pytest.raises(ValueError, match="right: got 2"):
        Replay(answer, 2)
    with pytest.raises(ValueError, match="rows: got 2, valid is 1"):
        head.start(target, 2)


def test_a_slower_work_costs_more_and_rounds_rotate() -> None:
    order: list[str] = []

    def work(name: str, loops: int) -> Any:
        def run() -> None:
            order.append(name)
            sum(range(loops))

        return run

    times = paired_rounds(
        {"slow": work("slow", 400_000), "fast": work("fast", 100_000)}, 8, warmup=2, device="cpu", what=""
    )
    cost = relative_cost(times["slow"], times["fast"])
    assert cost.value is not None
    assert cost.value > 2
    assert set(times["slow"]) == set(map(str, range(8)))
    assert order[:4] in (["slow", "fast", "fast", "slow"], ["fast", "slow", "slow", "fast"])


@pytest.mark.parametrize(
    "folder", sorted((conf_dir().parent / "experiments").glob("*/")), ids=lambda folder: folder.name
)
def test_every_study_has_its_command_its_points_and_its_finding(folder: Path) -> None:
    """One experiment, or the commands and scripts that were run one after the other."""
    text = (folder / "README.md").read_text(encoding="utf-8")
    for heading in ("## Question", "## Command", "## Points", "## Finding"):
        assert heading in text
    assert list(folder.glob("points.*"))
    scripts = re.findall(r"python (scripts/\w+\.py)", text)
    assert all((folder.parents[1] / script).is_file() for script in scripts)
    named = set(re.findall(r"\+experiment=(\w+)", text))
    assert named <= {file.stem for file in (conf_dir() / "experiment").glob("*.yaml")}
    assert folder.name in named or scripts or "job=" in text
