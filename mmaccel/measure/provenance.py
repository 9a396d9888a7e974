"""Where a number comes from: code, versions, device, seed, weights, command.

Knows what can be read without touching the model. Writes no user name: paths below the home folder begin with `~`.
"""

import hashlib
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("torch", "transformers", "numpy", "pillow", "hydra-core", "wandb")
WHOLE_BYTES = 2 << 30  # weight files up to this size are hashed whole, larger ones by samples
SAMPLE_BYTES = 1 << 20


def provenance(
    model: torch.nn.Module | None = None, path: str | Path | None = None, seed: int | None = None
) -> dict[str, Any]:
    """`path`: the checkpoint's folder, for the weight hash; without it a sample of `model`'s parameters is hashed."""
    import mmaccel

    facts: dict[str, Any] = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": without_home(shlex.join(command_line())),
        "git": git_state(Path(__file__).resolve().parents[2]),
        "versions": {"mmaccel": mmaccel.__version__, "python": platform.python_version(), **versions()},
        "system": f"{platform.system()} {platform.machine()}",
        "device": device_facts(model),
        "threads": torch.get_num_threads(),
        "seed": seed,
    }
    if path is not None:
        facts["model_path"] = without_home(str(path))
    if model is not None:
        facts["dtype"] = str(next(iter(model.parameters())).dtype).removeprefix("torch.")
        facts["attention"] = getattr(getattr(model, "config", None), "_attn_implementation", None)
        facts["parameters"] = sum(p.numel() for p in model.parameters())
    facts["weights"] = weight_hash(model, path)
    return facts


def command_line() -> list[str]:
    """What reproduces this process, `-m` spelling included."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None and spec.name:
        return ["python", "-m", spec.name.removesuffix(".__main__"), *sys.argv[1:]]
    return ["python", *sys.argv]


def without_home(text: str) -> str:
    home = os.path.expanduser("~")
    return text.replace(home + os.sep, "~" + os.sep) if len(home) > 1 else text


def versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def git_state(root: Path) -> dict[str, Any] | None:
    """Commit of the checkout this package runs from, None when it was installed from a wheel."""
    if not (root / ".git").exists():
        return None

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(root), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()

    try:
        return {"sha": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain", "--untracked-files=no"))}
    except (OSError, subprocess.SubprocessError):
        return None


def device_facts(model: torch.nn.Module | None) -> dict[str, Any]:
    """The device the model is on, else the first accelerator, else the processor."""
    on = next(iter(model.parameters())).device if model is not None else None
    if (on is not None and on.type == "cuda") or (on is None and torch.cuda.is_available()):
        properties = torch.cuda.get_device_properties(on or 0)
        return {"type": "cuda", "name": properties.name, "memory_mb": properties.total_memory >> 20,
                "cuda": torch.version.cuda}  # fmt: skip
    return {"type": on.type if on is not None else "cpu", "name": processor_name(), "cores": os.cpu_count()}


def processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


def weight_hash(model: torch.nn.Module | None, path: str | Path | None) -> dict[str, Any] | None:
    files = sorted(Path(path).glob("*.safetensors")) if path is not None else []
    if files:
        return file_hash(files)
    return None if model is None else parameter_hash(model)


def file_hash(files: Iterable[Path]) -> dict[str, Any]:
    """sha256 over names and bytes; of files beyond WHOLE_BYTES in all, over their sizes and evenly spaced samples."""
    files = list(files)
    whole = sum(file.stat().st_size for file in files) <= WHOLE_BYTES
    digest = hashlib.sha256()
    for file in files:
        size = file.stat().st_size
        digest.update(f"{file.name} {size}\n".encode())
        with open(file, "rb") as stream:
            starts = range(0, size, SAMPLE_BYTES if whole else max(size // 16, SAMPLE_BYTES))
            for start in starts:
                stream.seek(start)
                digest.update(stream.read(SAMPLE_BYTES))
    return {"sha256": digest.hexdigest(), "of": "safetensors files" if whole else "samples of the safetensors files"}


def parameter_hash(model: torch.nn.Module) -> dict[str, Any]:
    """sha256 over names, shapes and up to 64 evenly spaced values of every parameter."""
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        values = parameter.detach().reshape(-1)
        values = values[:: max(len(values) // 64, 1)][:64].float().cpu()  # [≤ 64]
        digest.update(f"{name} {tuple(parameter.shape)}\n".encode() + values.numpy().tobytes())
    return {"sha256": digest.hexdigest(), "of": "samples of the parameters"}
