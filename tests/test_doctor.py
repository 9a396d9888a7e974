"""job=doctor: every part is looked at, nothing it finds stops it, and what is missing comes with a line to type."""

import json
import subprocess

from running import typed

from mmaccel.jobs import checks
from mmaccel.jobs.checks import BROKEN, MISSING, WORKS, findings, package

PARTS = {"python", "driver", "torch", "cuda", "transformers", "flash-attn", "torchao", "bitsandbytes", "wandb"}


def test_as_a_table_and_as_json(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert typed(monkeypatch, "job=doctor", "job.json=true") == 0
    found = {finding["part"]: finding for finding in json.loads(capsys.readouterr().out)}
    assert found.keys() >= PARTS
    assert found["torch"]["state"] == WORKS
    assert all(finding["mend"] for finding in found.values() if finding["state"] != WORKS)
    assert typed(monkeypatch, "job=doctor") == 0
    shown = capsys.readouterr().out
    assert all(part in shown for part in PARTS)
    assert not list(tmp_path.iterdir())


def test_what_is_missing_names_its_install_line(monkeypatch):
    def absent(name):
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(checks.importlib, "import_module", absent)
    found = {finding.part: finding for finding in findings()}
    assert found["flash-attn"].state == found["torchao"].state == MISSING
    assert 'pip install "mmaccel[gpu]"' in found["flash-attn"].mend
    assert found["bitsandbytes"].mend == 'pip install "mmaccel[quant]"'


def test_a_wheel_that_cannot_be_imported_is_broken_not_missing():
    def state():
        raise OSError("undefined symbol: _ZN2at4_ops\nand many lines more")

    assert package("flash-attn", state, "mend").state == BROKEN
    assert package("flash-attn", state, "mend").detail == "OSError: undefined symbol: _ZN2at4_ops"


def test_a_driver_is_read_and_a_sick_one_reported(monkeypatch):
    monkeypatch.setattr(checks.shutil, "which", lambda name: f"/bin/{name}")
    answer = subprocess.CompletedProcess([], 0, stdout="550.1, Some GPU, 80000 MiB\n")
    monkeypatch.setattr(checks.subprocess, "run", lambda *_, **__: answer)
    assert checks.driver().detail == "550.1, Some GPU, 80000 MiB"

    def hangs(*_, **__):
        raise subprocess.TimeoutExpired("nvidia-smi", 20)

    monkeypatch.setattr(checks.subprocess, "run", hangs)
    assert checks.driver().state == BROKEN


def test_the_key_is_said_to_be_there_and_never_shown(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "s" * 40)
    assert "WANDB_API_KEY is set" in checks.wandb_state()
    assert "ssss" not in checks.wandb_state()
    monkeypatch.delenv("WANDB_API_KEY")
    assert "wandb sync" in checks.wandb_state()
