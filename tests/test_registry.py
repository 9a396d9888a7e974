"""Every yaml builds without Hydra; every mistake in one is named with what is valid."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from mmaccel import registry
from mmaccel.pruning.base import Chain
from mmaccel.pruning.fastv import FastV
from mmaccel.pruning.pyramiddrop import PyramidDrop
from mmaccel.pruning.random import Random

NODE = {"_target_": "mmaccel.pruning.fastv.FastV", "ratio": 0.5}


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A user's own folder: a module and a yaml that names it."""
    (tmp_path / "my_pruners.py").write_text(
        "from dataclasses import dataclass\nfrom mmaccel.pruning.uniform import Uniform\n\n\n"
        '@dataclass(frozen=True)\nclass Mine(Uniform):\n    """Mine, of a kind."""\n\n    strength: float = 1.0\n'
    )
    (tmp_path / "pruner").mkdir()
    (tmp_path / "pruner" / "mine.yaml").write_text("_target_: my_pruners.Mine\nratio: 0.25\nstrength: 1e-3\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("my_pruners", None)


def test_conf_is_found_from_any_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert (registry.conf_dir() / "pruner" / "fastv.yaml").is_file()
    assert {"fastv", "keep_all", "pool", "pyramiddrop", "random", "uniform"} <= set(registry.names("pruner"))


def install(root: Path) -> Path:
    """A copy of the registry alone, as a package at `root`."""
    package = root / "mmaccel"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "registry.py").write_text(Path(registry.__file__).read_text())
    return package


def conf_found(root: Path) -> str:
    code = "from mmaccel import registry; print(registry.conf_dir())"
    command = [sys.executable, "-P", "-c", code]
    run = subprocess.run(command, env={"PYTHONPATH": str(root)}, capture_output=True, text=True)
    return run.stdout.strip() or run.stderr.strip().splitlines()[-1]


def test_conf_in_a_wheel_in_a_checkout_and_missing(tmp_path):
    package = install(tmp_path / "wheel")
    (tmp_path / "wheel" / "conf").mkdir()  # somebody else's
    assert "no conf folder" in conf_found(tmp_path / "wheel")
    (package / "conf").mkdir()
    assert conf_found(tmp_path / "wheel") == str(package / "conf")
    install(tmp_path / "checkout")
    (tmp_path / "checkout" / "conf").mkdir()
    (tmp_path / "checkout" / "pyproject.toml").touch()
    assert conf_found(tmp_path / "checkout") == str(tmp_path / "checkout" / "conf")


def test_the_registry_needs_neither_hydra_nor_the_things_it_builds():
    code = "import sys; from mmaccel import registry; registry.names('pruner'); print(sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not [name for name in ("hydra", "omegaconf", "torch", "transformers", "wandb") if f"'{name}'" in loaded]


@pytest.mark.parametrize("name", registry.names("pruner"))
def test_every_pruner_yaml_names_every_field(name):
    """So that each is on the command line and in config.yaml."""
    node = registry.load("pruner", name)
    built = registry.build("pruner", name)
    assert set(node) - {"_target_"} == {field.name for field in dataclasses.fields(built)}


def test_overrides():
    assert registry.build("pruner", "fastv", {"ratio": 0.9, "layer": 3}) == FastV(layer=3, ratio=0.9)
    assert registry.build("pruner", "fastv", {"ratio": None, "tokens": 64}) == FastV(tokens=64)
    assert registry.build("pruner", "pyramiddrop", {"layers": [2, 8]}) == PyramidDrop(layers=(2, 8), ratio=0.5)
    nested = {"ratio": None, "like": dict(NODE), "like.ratio": 0.7}
    assert registry.build("pruner", "random", nested) == Random(like=FastV(ratio=0.7))
    assert registry.build("pruner", "fastv") == FastV(ratio=0.5)  # the yaml itself was not changed


def test_override_mistakes():
    with pytest.raises(ValueError, match=r"got ratio=0\.5, tokens=64"):
        registry.build("pruner", "fastv", {"tokens": 64})
    with pytest.raises(ValueError, match=r"unknown key ration \(did you mean ratio\?\); valid keys are .*mean_tokens"):
        registry.build("pruner", "fastv", {"ration": 0.5})
    with pytest.raises(ValueError, match="'like' is no nested node"):
        registry.build("pruner", "random", {"like.ratio": 0.5})
    with pytest.raises(ValueError, match="a target is not overridden"):
        registry.build("pruner", "fastv", {"_target_": "mmaccel.pruning.pool.Pool"})
    with pytest.raises(ValueError, match=r"ratio: got '0\.5x'"):
        registry.build("pruner", "fastv", {"ratio": "0.5x"})


def test_unknown_names_and_groups():
    with pytest.raises(ValueError, match=r"pruner: got 'fast_v' \(did you mean fastv\?\), valid are fastv, keep_all"):
        registry.build("pruner", "fast_v")
    with pytest.raises(ValueError, match=r"group: got 'pruners' \(did you mean pruner\?\), valid are "):
        registry.names("pruners")
    with pytest.raises(ValueError, match=r"pruner: got '\.\./pruner/fastv'"):
        registry.build("pruner", "../pruner/fastv")


def test_nested_nodes_and_lists():
    node = {"_target_": "mmaccel.pruning.base.Chain", "pruners": [dict(NODE), {**NODE, "layer": 4}]}
    assert registry.instantiate(node) == Chain([FastV(ratio=0.5), FastV(layer=4, ratio=0.5)])


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ({"ratio": 1}, "got keys ratio; valid is a mapping with a _target_"),
        ("fastv", "got 'fastv'; valid is a mapping"),
        ({**NODE, "ratio": "${other}"}, "interpolations are Hydra's"),
        ({"_target_": "FastV"}, "valid is a dotted path"),
        ({"_target_": 3}, "valid is a dotted path"),
        ({"_target_": "mmaccel.pruning.nope.FastV"}, "pruning has no nope.FastV"),
        ({"_target_": "mmaccel.pruning.fastv.Fast"}, "mmaccel.pruning.fastv has no Fast; it has FastV"),
        ({"_target_": "mmaccel.pruning.fastv.ANCHORS"}, "no class or function"),
        ({"_target_": "mmaccel.pruning.base.FunctionPruner"}, "missing key function, layer"),
    ],
)
def test_node_mistakes(node, message):
    with pytest.raises(ValueError, match=message):
        registry.instantiate(node)


@pytest.mark.parametrize(
    "target",
    ["os.system", "subprocess.run", "mmaccel.registry.importlib.import_module", "mmaccel.registry.Path",
     "mmaccel.registry.__builtins__.eval", "mmaccelx.y.Z"],
)  # fmt: skip
def test_targets_outside_the_package_are_refused(target):
    with pytest.raises(ValueError, match="_target_: got"):
        registry.instantiate({"_target_": target})
    with pytest.raises(ValueError, match="_target_: got"):
        registry.instantiate({**NODE, "anchor": {"_target_": target}})


def test_ones_own_yaml_may_name_ones_own_class(own):
    built = registry.build("pruner", "mine", {"ratio": 0.75}, search=[own])
    assert type(built).__name__ == "Mine"
    assert built.ratio == 0.75
    assert built.strength == 0.001  # yaml's own float rule would make it a string
    assert "mine" in registry.names("pruner", [own])
    assert registry.describe("pruner", [own])["mine"] == "Mine, of a kind."
    assert "mine" not in registry.names("pruner")
    with pytest.raises(ValueError, match="yours come from your own yaml"):
        registry.instantiate(registry.load("pruner", "mine", [own]))
    assert type(registry.instantiate(registry.load("pruner", "mine", [own]), foreign=True)).__name__ == "Mine"


def test_a_name_given_twice_a_key_given_twice_and_a_missing_module(own):
    (own / "pruner" / "fastv.yaml").write_text(yaml.safe_dump(NODE))
    with pytest.raises(ValueError, match="pruner fastv: given twice"):
        registry.names("pruner", [own])
    (own / "pruner" / "fastv.yaml").unlink()
    (own / "pruner" / "twice.yaml").write_text("_target_: my_pruners.Mine\nratio: 0.5\nratio: 0.6\n")
    with pytest.raises(ValueError, match=r"twice.yaml: key ratio is given twice"):
        registry.build("pruner", "twice", search=[own])
    (own / "pruner" / "gone.yaml").write_text("_target_: no_such_module.Mine\n")
    with pytest.raises(ValueError, match="there is no module 'no_such_module'"):
        registry.build("pruner", "gone", search=[own])
    (own / "broken.py").write_text("import no_such_dependency\n")
    (own / "pruner" / "broken.yaml").write_text("_target_: broken.Mine\n")
    with pytest.raises(ModuleNotFoundError, match="no_such_dependency"):
        registry.build("pruner", "broken", search=[own])
    (own / "pruner" / "composed.yaml").write_text("defaults: [fastv]\n")
    with pytest.raises(ValueError, match="compose it with Hydra"):
        registry.build("pruner", "composed", search=[own])


def test_every_description_is_one_line():
    lines = registry.describe("pruner")
    assert all(line and "\n" not in line and len(line) < 120 for line in lines.values())
    assert "2403.06764" in lines["fastv"]
