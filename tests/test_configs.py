"""Every yaml composes, says in its first line what it is, and names a target that takes its keys."""

import pytest
import yaml
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from mmaccel import registry
from mmaccel.jobs.spelling import check_config
from mmaccel.jobs.tree import leaves

CONF = registry.conf_dir()
FILES = sorted(CONF.glob("*/*.yaml"))
NEEDED = {
    "benchmark/folder": ["benchmark.path=pictures"],
    "job/report": ["run=run"],
    "job/wandb_push": ["run=run"],
    "job/export": ["job.head=head"],
    "job/compare": ["job.folders=[one,two]"],
    "data/llava": ["data.path=chats.json"],
    "draft/assistant": ["draft.path=small"],
    "draft/block": ["draft.folder=head"],
    "data/rows": ["data.path=rows.parquet"],
}


def composed(*words: str) -> dict:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("config", list(words))
    config.output = "run"  # holds the time, which only the run resolves
    return OmegaConf.to_container(config, resolve=True, throw_on_missing=True)


def test_the_page_of_defaults_composes_and_knows_its_own_keys():
    check_config(composed())


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_every_yaml_composes_and_its_targets_take_its_keys(file):
    group, name = file.parent.name, file.stem
    config = composed(
        f"+{group}={name}" if group == "experiment" else f"{group}={name}", *NEEDED.get(f"{group}/{name}", [])
    )
    check_config(config)
    for node in config.values():
        if isinstance(node, dict) and "_target_" in node:
            target = registry.locate(node["_target_"])
            registry._check_keys(node["_target_"], target, {key: 0 for key in node if key != "_target_"})


@pytest.mark.parametrize("file", [CONF / "config.yaml", *FILES], ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_every_yaml_says_what_it_is(file):
    lines = [line for line in file.read_text(encoding="utf-8").splitlines() if not line.startswith("# @package")]
    assert lines[0].startswith("# ")
    assert len(lines[0]) > 12
    assert len(lines[0]) <= 130, "one line of the list"


@pytest.mark.parametrize("file", sorted((CONF / "experiment").glob("*.yaml")), ids=lambda file: file.stem)
def test_every_experiment_shows_its_command_and_carries_its_name(file):
    assert f"# python -m mmaccel.run +experiment={file.stem}" in file.read_text(encoding="utf-8").splitlines()
    assert yaml.safe_load(file.read_text(encoding="utf-8"))["name"] == file.stem


@pytest.mark.parametrize("name", registry.names("pruner"))
def test_every_pruner_is_built_from_its_yaml(name):
    assert registry.build("pruner", name).stations(depth=32)


def test_machines_and_samplers_know_the_same_keys():
    for group in ("machine", "sampler"):
        keys = {name: set(registry.load(group, name)) for name in registry.names(group)}
        assert len({frozenset(value) for value in keys.values()}) == 1, keys


def test_no_yaml_names_a_place_of_one_machine():
    for file in CONF.rglob("*.yaml"):
        values = (str(value) for _, value in leaves(yaml.safe_load(file.read_text(encoding="utf-8"))))
        assert not [value for value in values if value.startswith(("/", "~"))], file
