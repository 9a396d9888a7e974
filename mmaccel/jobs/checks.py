"""What works on this machine, one finding a part, with the line that mends what does not.

Looks and imports; loads no model, writes nothing, asks no server, reads no credentials.
"""

import importlib
import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata

WORKS, MISSING, BROKEN = "works", "not here", "broken"


@dataclass(frozen=True)
class Finding:
    """part: what was looked at. state: works, not here, broken. detail: a version or a reason. mend: a line to type."""

    part: str
    state: str
    detail: str
    mend: str = ""


def findings() -> Iterator[Finding]:
    yield Finding("python", WORKS, platform.python_version())
    yield driver()
    yield package("torch", torch_state, "pip install -c constraints.txt torch")
    yield package("cuda", cuda_state, "machine=cpu works; for a GPU, torch's CUDA build")
    yield package("transformers", version_of("transformers"), "pip install -c constraints.txt transformers")
    yield package("attention=sdpa", sdpa_state, "model.attention=eager works everywhere")
    yield package("flash-attn", flash_state, 'pip install "mmaccel[gpu]"   (needs a CUDA device)')
    yield package("torchao", version_of("torchao"), 'pip install "mmaccel[quant]"')
    yield package("bitsandbytes", version_of("bitsandbytes"), 'pip install "mmaccel[quant]"')
    yield package("wandb", wandb_state, "pip install -c constraints.txt wandb")


def package(part: str, state: Callable[[], str], mend: str) -> Finding:
    """`state` returns a detail, raises ImportError for what is not here and anything else for what does not work."""
    try:
        return Finding(part, WORKS, state())
    except (ImportError, metadata.PackageNotFoundError) as error:
        return Finding(part, MISSING, str(error), mend)
    except Exception as error:  # a wheel built for another torch or driver fails in ways of its own
        return Finding(part, BROKEN, f"{type(error).__name__}: {error}".splitlines()[0], mend)


def version_of(name: str) -> Callable[[], str]:
    """Imported, not only found: a wheel that cannot be imported is no help."""

    def state() -> str:
        importlib.import_module(name)
        return metadata.version(name)

    return state


def driver() -> Finding:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return Finding("driver", MISSING, "no nvidia-smi", "an NVIDIA driver, if this machine has such a device")
    command = [tool, "--query-gpu=driver_version,name,memory.total", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        return Finding("driver", BROKEN, str(error), "nvidia-smi")
    return Finding("driver", WORKS, "; ".join(line.strip() for line in answer.splitlines()))


def torch_state() -> str:
    import torch

    return f"{torch.__version__}, {torch.get_num_threads()} threads"


def cuda_state() -> str:
    import torch

    if not torch.cuda.is_available():
        raise ImportError(f"torch was built for {torch.version.cuda or 'the CPU only'}, and finds no device")
    device = torch.device("cuda")
    float((torch.ones(8, 8, device=device) @ torch.ones(8, 8, device=device)).sum())  # an unsupported device fails here
    low = "bf16" if torch.cuda.is_bf16_supported() else "no bf16: machine.dtype=float16"
    return f"{torch.version.cuda}, {torch.cuda.get_device_name(device)}, {low}"


def sdpa_state() -> str:
    import torch

    ones = torch.ones(1, 1, 4, 8)
    torch.nn.functional.scaled_dot_product_attention(ones, ones, ones)
    return "torch's own"


def flash_state() -> str:
    detail = version_of("flash_attn")()
    cuda_state()
    return detail


def wandb_state() -> str:
    detail = metadata.version("wandb")
    if os.environ.get("WANDB_API_KEY"):
        return f"{detail}, WANDB_API_KEY is set: tracker.mode=online works"
    return f"{detail}, WANDB_API_KEY is not set: runs are written offline, `wandb login` and `wandb sync` push them"
