"""scripts/gpu_check.py runs its whole road on a CPU; what it finds on a GPU is recorded under experiments/."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "gpu_check.py"


@pytest.mark.slow
def test_the_check_runs_and_the_oracle_holds(tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    chosen = ["--device", "cpu", "--geometry", "tiny", "--samples", "4", "--rounds", "3", "--out", str(out)]
    told = subprocess.run([sys.executable, str(SCRIPT), *chosen], capture_output=True, text=True, timeout=300)
    assert told.returncode == 0, told.stdout + told.stderr
    found = json.loads(out.read_text())
    assert found["oracle"]["float32 sdpa"]["largest"] < 1e-4 < 0.1 < found["oracle"]["float32 sdpa"]["effect"]
    assert set(found["prefill"]["pruned"]) == {"0.3", "0.5", "0.7", "0.9"}
    drafted = found["prefill"]["speculation"]
    assert {"plain", "verify 1", "verify 64", "draft chain of 5", "break-even tau, tree of 32"} <= set(drafted)
    assert drafted["draft tree of 32"] > 0
    assert told.stdout.splitlines()[-1].startswith("decode")
