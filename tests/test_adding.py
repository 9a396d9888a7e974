"""docs/adding.md and the README's Python, done literally in a temporary folder."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from running import typed

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "adding.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"^`(mine/[\w./]+)`\n\n```\w+\n(.*?)^```$", PAGE, re.M | re.S))
COMMANDS = re.findall(r"^```sh\n(.*?)\n```$", PAGE, re.M | re.S)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder after every file of the page was written as the page says."""
    folder = tmp_path_factory.mktemp("adding")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    for colour in ("red", "blue"):
        Image.new("RGB", (80, 60), colour).save(folder / "mine" / f"{colour}.png")
    return folder


def shell(command: str, folder: Path) -> subprocess.CompletedProcess:
    """The line as it stands; the page's `python` is this one, and it finds this checkout."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    command = command.replace("PYTHONPATH=mine", f"PYTHONPATH=mine{os.pathsep}{ROOT}")
    environment = os.environ | {"PATH": path, "OMP_NUM_THREADS": "1"}
    options = {"cwd": folder, "env": environment, "capture_output": True, "text": True}
    return subprocess.run(["bash", "-c", command], check=False, **options)


def test_the_page_has_two_files_for_each_and_a_test():
    pruner = {"mine/centre.py", "mine/conf/pruner/centre.yaml", "mine/test_centre.py"}
    benchmark = {"mine/hues.py", "mine/conf/benchmark/hues.yaml", "mine/hues.jsonl"}
    assert set(FILES) == pruner | benchmark | {"mine/again.py", "mine/conf/draft/again.yaml"}
    assert len(COMMANDS) == 4


@pytest.mark.parametrize("command", COMMANDS, ids=["sweep", "experiment", "draft", "benchmark"])
def test_the_pages_commands_run(folder, command):
    if not (ROOT / "mmaccel" / "assets" / "pico").is_dir():
        pytest.skip("the embedded model is not in this checkout")
    done = shell(command, folder)
    assert done.returncode == 0, done.stderr
    newest = max(folder.glob("outputs/*/*/points.csv"), key=lambda file: file.stat().st_mtime_ns)
    rows = [row.split(",")[0] for row in newest.read_text().splitlines()]
    assert ("centre ratio=0.5" in rows) == ("pruner=centre" in command)
    assert ("random ratio=0.5" in rows) == ("smoke" in command)
    records = max(folder.glob("outputs/*/*/records.jsonl"), key=lambda file: file.stat().st_mtime_ns).read_text()
    assert ('"benchmark": "hues", "kind": "blue"' in records) == ("benchmark=hues" in command)
    assert ("baseline + again" in rows) == ("fastv ratio=0.5 + again" in rows) == ("draft=again" in command)


def test_the_pages_own_test_passes(folder, monkeypatch):
    monkeypatch.syspath_prepend(str(folder / "mine"))
    names: dict = {}
    exec(compile(FILES["mine/test_centre.py"], "test_centre.py", "exec"), names)
    names["test_the_middle_stays"]()
    monkeypatch.delitem(sys.modules, "centre")


def test_a_wrong_key_in_ones_own_yaml_is_refused_with_the_valid_ones(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder / "mine"))
    assert typed(monkeypatch, "--config-dir", "mine/conf", "pruner=centre", "+pruner.leyer=2") == 2
    assert "centre.Centre: unknown key leyer (did you mean layer?)" in capsys.readouterr().err
    assert typed(monkeypatch, "hydra.searchpath=[file://mine/conf]", "pruner=centre", "pruner.ratio=7") == 2
    assert "ratio: got 7, valid is" in capsys.readouterr().err
    monkeypatch.delitem(sys.modules, "centre")


def test_the_readmes_python_runs(tmp_path, monkeypatch, capsys):
    if not (ROOT / "mmaccel" / "assets" / "pico").is_dir():
        pytest.skip("the embedded model is not in this checkout")
    block = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.S)[1]
    monkeypatch.chdir(tmp_path)
    pixels = np.random.default_rng(0).integers(0, 255, (90, 120, 3), dtype=np.uint8)
    Image.fromarray(pixels).save("photo.jpg")
    exec(compile(block, "README.md", "exec"), {})
    assert "Stop(layer=2" in capsys.readouterr().out
