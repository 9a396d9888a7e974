"""The wheel carries conf/ and runs from anywhere; constraints, ranges and the commands of the README hold together."""

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


def constraints() -> dict[str, Version]:
    lines = [line.split("#")[0].strip() for line in (ROOT / "constraints.txt").read_text().splitlines()]
    return {normal(name): Version(version) for name, version in (line.split("==") for line in lines if line)}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return next(folder.glob("*.whl"))


def test_the_wheel_holds_all_of_conf_and_the_licence(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    for file in (ROOT / "conf").rglob("*.yaml"):
        assert f"mmaccel/{file.relative_to(ROOT).as_posix()}" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if name.startswith(("tests/", "conf/", "scripts/"))]


def test_the_wheel_lists_and_composes_from_an_unrelated_folder(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    (tmp_path / "elsewhere").mkdir()
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment["PYTHONPATH"] = str(tmp_path / "site")
    for words, said in (([], "fastv_sweep"), (["+experiment=fastv_sweep", "--cfg", "job"], "name: fastv_sweep")):
        command = [sys.executable, "-P", "-m", "mmaccel.run", *words]
        options = {"cwd": tmp_path / "elsewhere", "env": environment, "capture_output": True, "text": True}
        done = subprocess.run(command, check=False, **options)
        assert done.returncode == 0, done.stderr
        assert said in done.stdout


def test_constraints_pin_every_direct_dependency_inside_its_range():
    pinned = constraints()
    for text in PROJECT["dependencies"]:
        requirement = Requirement(text)
        assert normal(requirement.name) in pinned, f"{requirement.name} has no tested version"
        assert pinned[normal(requirement.name)] in requirement.specifier
    for text in EXTRAS["dev"]:
        requirement = Requirement(text)
        if normal(requirement.name) in pinned:
            assert pinned[normal(requirement.name)] in requirement.specifier
    assert pinned["torch"] == Version("2.13.0")
    assert pinned["transformers"] == Version("5.24.0")


def test_what_must_never_be_a_dependency_is_none():
    every = [*PROJECT["dependencies"], *(text for extra in EXTRAS.values() for text in extra)]
    names = {normal(Requirement(text).name) for text in every}
    assert not names & {"omegaconf", "torchvision", "lmms-eval", "vllm", "llmcompressor", "autoawq"}


def test_the_doctors_and_the_loaders_install_lines_name_real_extras():
    sources = [path.read_text() for path in (ROOT / "mmaccel").rglob("*.py")] + [(ROOT / "README.md").read_text()]
    named = {extra for source in sources for extra in re.findall(r"mmaccel\[(\w+)\]", source)}
    assert named
    assert named <= set(EXTRAS)


def test_the_check_that_ci_runs_is_the_make_target():
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    assert "make --no-print-directory test" in (ROOT / ".ci" / "run").read_text()
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.M))
    assert targets >= {"help", "demo", "test", "test-oldest", "slow", "clean"}


def test_the_oldest_transformers_that_is_tested_is_the_oldest_that_is_allowed():
    tested = Version(re.search(r"OLDEST_TRANSFORMERS \?= (\S+)", (ROOT / "Makefile").read_text())[1])
    allowed = next(Requirement(text) for text in PROJECT["dependencies"] if text.startswith("transformers"))
    assert [Version(one.version) for one in allowed.specifier if one.operator == ">="] == [tested]


def test_the_readme_is_short_and_its_commands_are_spelled_right():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 150
    folders = [path for path in (ROOT / "conf").iterdir() if path.is_dir()]
    groups = {path.name: {file.stem for file in path.glob("*.yaml")} for path in folders}
    for line in re.findall(r"^(?:\$ )?python -m mmaccel\.run (.+)$", text, re.M):
        for group, name in re.findall(r"(?<!\S)\+?(\w+)=(\w+)(?!\S)", line.split("#")[0]):
            assert group not in groups or name in groups[group], f"README: {group}={name}"
