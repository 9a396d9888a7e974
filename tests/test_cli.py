"""What is typed: the list, the spellings of a sweep, and short errors that name what is valid."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from running import typed

from mmaccel import registry
from mmaccel.jobs.drafts import with_drafts
from mmaccel.jobs.points import expand
from mmaccel.jobs.spelling import respelled

ROOT = Path(__file__).parents[1]


def composed(*words: str) -> dict:
    """The resolved configuration of a command line."""
    with initialize_config_dir(str(registry.conf_dir()), version_base="1.3"):
        config = OmegaConf.to_container(compose("config", list(words)), resolve=False)
    config.pop("output")  # holds the time, which only the run resolves
    return OmegaConf.to_container(OmegaConf.create(config), resolve=True)


def points(*words: str, method: str = "fastv") -> dict[str, object]:
    """name → point of a command line, expanded as the run does it."""
    words = tuple(respelled(words))
    return {point.name: point for point in expand(composed(*words), words, method)}


def test_alone_it_lists_everything_a_line_each(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert typed(monkeypatch) == 0
    usage, *sections = capsys.readouterr().out.split("\n\n")
    assert "+experiment=" in usage
    by_group = {section.split("s  ")[0]: section.splitlines()[1:] for section in sections}
    assert list(by_group) == ["job", "experiment", "pruner", "draft", "benchmark", "model", "sampler"]
    for group, lines in by_group.items():
        for name in registry.names(group):
            said = [line for line in lines if line.split()[:1] == [name]]
            assert len(said) == 1
            assert len(said[0].split()) > 2, f"{group} {name} has no description"
    assert not list(tmp_path.iterdir())


def test_a_folder_of_ones_own_alone_lists_too(monkeypatch, capsys, tmp_path):
    for words in (["--config-dir", str(tmp_path)], [f"--config-dir={tmp_path}"]):
        assert typed(monkeypatch, *words) == 0
        assert "+experiment=" in capsys.readouterr().out


def test_the_list_and_mistakes_import_nothing_heavy(tmp_path):
    code = (
        "import sys\nfrom mmaccel import run\n"
        "for words in ([], ['pruner.ratoi=0.5'], ['pruner=nope']):\n"
        "    sys.argv = ['run', *words]\n    run.main()\n"
        "assert not {'torch', 'transformers', 'wandb', 'PIL'} & set(sys.modules), sorted(sys.modules)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["pruner=fastv", "pruner.ratoi=0.5"], "unknown key pruner.ratoi (did you mean pruner.ratio?); valid"),
        (["+pruner.foo=1"], "unknown key foo; valid keys are layer"),
        (["limits=3"], "unknown key limits (did you mean limit?); valid at the top"),
        (["+limits=3"], "unknown key limits (did you mean limit?); valid at the top"),
        (["+machine.cores=2"], "unknown key machine.cores; valid under machine: attention, device, dtype, threads"),
        (["+sampler.topk=2"], "unknown key sampler.topk (did you mean sampler.top_k?)"),
        (["pruner=fastvv"], "unknown pruner 'fastvv' (did you mean fastv?); valid are fastv"),
        (["+experiment=nope"], "unknown experiment 'nope'; valid are draft_overhead, fastv_sweep"),
        (["job=evalute"], "unknown job 'evalute' (did you mean evaluate?)"),
        (["pruner=fastv", "pruner.ratio=0.3,0.5"], "are spelled sweep.pruner.ratio=[0.3,0.5]"),
        (["pruner=fastv", "pruner.ratio=0.3,0.5", "-m"], "are spelled sweep.pruner.ratio=[0.3,0.5]"),
        (["pruner=fastv,random"], "name one pruner"),
        (["model=pico,llava"], "add -m"),
        (["benchmark=folder"], "benchmark.path: a value is needed"),
        (["benchmark=folder", "benchmark.path=/no/where"], "benchmark.path: '/no/where' is no folder"),
        (["pruner=fastv", "sweep.pruner.ratoi=[0.3]"], "sweep.pruner.ratoi: unknown key 'ratoi'; valid under"),
        (["pruner=fastv", "sweep.pruner.ratio=0.3"], "valid is a list, e.g. sweep.pruner.ratio=[0.3,0.5]"),
        (["pruner=fastv", "sweep.pruner.ratio=[0.3]", "pruner.ratio=0.5"], "were both typed"),
        (["sweep.seed=[1,2]"], "valid places begin with pruner or controls"),
        (["pruner=fastv", "pruner.ratio=9"], "ratio: got 9, valid is"),
        (["pruner=fastv", "pruner.ratio=-0.1"], "ratio: got -0.1, valid is"),
        (["pruner=fastv", "pruner.ratio=nan"], "ratio: got nan, valid is"),
        (["pruner=fastv", "pruner.ratio=0.5x"], "ratio: got '0.5x', valid is"),
        (["+experiment=fastv_sweep", "sweep.pruner.ratio=[0.3,9]"], "ratio: got 9, valid is"),
        (["limit=0"], "limit: got 0, valid are"),
        (["benchmark.kinds=[nothing]"], "kinds: got"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes_are_short_name_what_is_valid_and_exit_with_2(monkeypatch, capsys, tmp_path, words, said):
    monkeypatch.chdir(tmp_path)
    assert typed(monkeypatch, *words) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error
    assert len(error.splitlines()) <= 3
    assert not list(tmp_path.iterdir()), "a mistake leaves nothing behind"


def test_debug_shows_where(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="limit: got 0"):
        typed(monkeypatch, "limit=0", "debug=true")
    assert "HYDRA_FULL_ERROR" not in os.environ


def test_failures_that_are_nobodys_spelling_exit_with_1(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mmaccel.jobs.doctor.findings", lambda: 1 / 0)
    assert typed(monkeypatch, "job=doctor") == 1
    assert capsys.readouterr().err.splitlines()[0] == "ZeroDivisionError: division by zero"


BESIDE = ("fastv_scaled", "random", "pool")  # the controls of the main experiment


def test_the_main_experiment_is_one_run_of_these_points():
    names = list(points("+experiment=fastv_sweep"))
    assert names[:2] == ["baseline", "keep_all"]
    ratios = {"fastv": (0.3, 0.5, 0.7, 0.9), "fastv_scaled": (0.5, 0.9)}
    every = [(name, ratios.get(name, ratios["fastv"])) for name in ("fastv", *BESIDE)]
    assert names[2:] == [f"{name} ratio={ratio}" for name, own in every for ratio in own]


def test_a_typed_list_replaces_the_sweep_and_its_controls_follow():
    names = list(points("+experiment=fastv_sweep", "sweep.pruner.ratio=[0.25,0.75]"))
    assert names[2:] == [f"{name} ratio={ratio}" for name in ("fastv", *BESIDE) for ratio in (0.25, 0.75)]


def test_a_typed_value_collapses_the_sweep_to_that_point():
    found = points("+experiment=fastv_sweep", "pruner.ratio=0.9")
    assert list(found) == ["baseline", "keep_all", "fastv ratio=0.9", *(f"{name} ratio=0.9" for name in BESIDE)]
    assert found["fastv ratio=0.9"].node["ratio"] == 0.9
    assert found["random ratio=0.9"].node["like"]["ratio"] == 0.9
    assert found["random ratio=0.9"].labels()["ratio"] == 0.9


def test_a_controls_own_list_stays_its_own():
    names = list(points("+experiment=fastv_sweep", "pruner.ratio=0.9", "sweep.controls.pool.ratio=[0.1]"))
    assert names[2:] == ["fastv ratio=0.9", "fastv_scaled ratio=0.9", "random ratio=0.9", "pool ratio=0.1"]


def test_a_sweep_without_an_experiment():
    assert list(points("pruner=fastv", "sweep.pruner.ratio=[0.3,0.5]", "sweep.pruner.layer=[1,2]"))[1:] == [
        f"fastv ratio={ratio} layer={layer}" for ratio in (0.3, 0.5) for layer in (1, 2)
    ]
    assert list(points("pruner=fastv")) == ["baseline", "fastv"]
    assert list(points(method="keep_all")) == ["baseline", "keep_all"]


def test_another_pruner_in_the_main_experiment_takes_its_controls_along():
    found = points("+experiment=fastv_sweep", "pruner=pyramiddrop", "pruner.ratio=0.5", method="pyramiddrop")
    control = found["random ratio=0.5"].pruner(depth=8)
    assert control.stations(8) == found["pyramiddrop ratio=0.5"].pruner(depth=8).stations(8)


@pytest.mark.parametrize("method", ["fastv", "pyramiddrop"])
def test_a_matched_control_keeps_the_methods_mean_tokens_over_layers(method):
    found = points("+experiment=fastv_sweep", f"pruner={method}", "pruner.ratio=0.6", method=method)
    depth = 8
    pruner = found[f"{method} ratio=0.6"].pruner(depth)
    standing, share = [], 1.0
    for layer in range(depth):  # a slow loop over layers: what stands there
        share *= 0.4 if layer in pruner.stations(depth) else 1.0
        standing.append(share)
    pool = found["pool ratio=0.6"].pruner(depth)
    assert pool.ratio is None
    assert pool.stations(depth) == (0,)
    assert pool.keep == pytest.approx(sum(standing) / depth)


def test_matched_refuses_a_budget_that_has_no_share():
    found = points("+experiment=fastv_sweep", "pruner.ratio=null", "pruner.tokens=64")
    with pytest.raises(ValueError, match="matched: the method's budget is a number of tokens"):
        found["pool ratio=None"].pruner(depth=8)


def test_a_control_of_the_methods_name_is_a_point_of_its_own():
    found = points("+experiment=fastv_sweep", "pruner=pool", "pruner.layer=2", "pruner.ratio=0.5", method="pool")
    assert list(found)[2:4] == ["pool ratio=0.5", "fastv_scaled ratio=0.5"]
    assert list(found)[4:] == ["random ratio=0.5", "control pool ratio=0.5"]
    method, control = found["pool ratio=0.5"], found["control pool ratio=0.5"]
    assert (method.pruner(8).layer, control.pruner(8).layer) == (2, 0)
    assert (method.labels()["pruner"], control.labels()["pruner"]) == ("pool", "control pool")


def test_a_control_that_is_the_method_is_one_point():
    found = points("+experiment=fastv_sweep", "pruner=pool", "pruner.ratio=0.5", method="pool")
    assert list(found)[2:] == ["pool ratio=0.5", "fastv_scaled ratio=0.5", "random ratio=0.5"]
    assert found["pool ratio=0.5"].node["ratio"] == 0.5


def test_matched_names_are_checked():
    with pytest.raises(
        ValueError, match=r"matched: got \['pol'\], .* there are \['keep_all', 'fastv_scaled', 'random', 'pool'\]"
    ):
        points("+experiment=fastv_sweep", "matched=[pol]")
    with pytest.raises(ValueError, match="matched: got 'pool', valid is a list"):
        points("+experiment=fastv_sweep", "matched=pool")


def test_a_matched_control_sweeps_budgets_only():
    with pytest.raises(ValueError, match=r"sweep\.controls\.pool\.layer: pool is matched, valid are ratio, keep"):
        points("+experiment=fastv_sweep", "sweep.controls.pool.layer=[0,1]")


def test_a_matched_control_without_a_sweep_is_matched():
    found = points("pruner=fastv", "+pruner@controls.pool=pool", "matched=[pool]")
    assert list(found) == ["baseline", "fastv", "pool"]
    assert found["pool"].pruner(depth=8).keep == pytest.approx((2 + 6 * 0.5) / 8)
    swept = points("pruner=fastv", "+pruner@controls.pool=pool", "matched=[pool]", "sweep.pruner.ratio=[0.2,0.4]")
    assert list(swept)[3:] == ["pool ratio=0.2", "pool ratio=0.4"]


def test_controls_follow_a_swept_layer():
    found = points("+experiment=fastv_sweep", "sweep.pruner.ratio=[0.5]", "sweep.pruner.layer=[2,4]")
    lead = [f"fastv ratio=0.5 layer={layer}" for layer in (2, 4)]
    assert list(found)[2:4] == lead
    for layer, name in zip((2, 4), lead):
        assert found[name].pruner(8).stations(8) == (layer,)
        assert found[name.replace("fastv", "random")].pruner(8).stations(8) == (layer,)
        pool = found[name.replace("fastv", "pool")].pruner(8)
        assert (pool.layer, pool.keep) == (0, pytest.approx((layer + (8 - layer) * 0.5) / 8))
    assert len(found) == 9


def test_a_draft_stands_beside_the_baseline_and_the_methods_points():
    config = composed("+experiment=fastv_sweep", "draft=lookup", "pruner.ratio=0.5")
    found = with_drafts(expand(config, ["pruner.ratio=0.5"], "fastv"), config, "fastv", "lookup")
    names = [point.name for point in found]
    assert names[:2] == ["baseline", "baseline + lookup"]
    assert names[3:5] == ["fastv ratio=0.5", "fastv ratio=0.5 + lookup"]
    assert [name for name in names if "lookup" in name] == [names[1], names[4]]
    drafted = found[4]
    assert drafted.labels()["draft"] == "lookup"
    assert drafted.labels()["twin"] == names[3]
    assert drafted.labels()["ratio"] == 0.5
    assert drafted.pruner(8) == found[3].pruner(8)
    two = dict(config) | {"drafts": {"other": {"_target_": "mmaccel.drafting.lookup.Lookup", "tokens": 2}}}
    more = [point.name for point in with_drafts(expand(config, [], "fastv")[:1], two, "fastv", "lookup")]
    assert more == ["baseline", "baseline + lookup", "baseline + other"]


def test_started_from_anywhere_as_a_module(tmp_path):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "mmaccel.run", "pruner.ratoi=0.5"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("unknown key pruner.ratoi")
