"""For tests of the entry point: a tiny random LLaVA as a checkpoint folder, and the command line in this process."""

import shutil
from pathlib import Path

import torch

LAYOUT = Path(__file__).parent / "layouts" / "llava"


def write_tiny_llava(folder: Path) -> Path:
    """A folder `VLM.load` reads; the same weights every time, wide enough that a picture changes the answer."""
    from transformers import AutoConfig, AutoModelForImageTextToText

    folder.mkdir(parents=True, exist_ok=True)
    for file in LAYOUT.iterdir():
        if file.is_file():
            shutil.copy(file, folder / file.name)
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_config(AutoConfig.from_pretrained(folder))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.normal_(0, 0.12, generator=generator)
    names = {file.name for file in folder.iterdir()}
    model.save_pretrained(folder)
    for file in LAYOUT.iterdir():  # the layout's own config.json, not the one the library writes
        if file.is_file() and file.name in names:
            shutil.copy(file, folder / file.name)
    return folder


def typed(monkeypatch, *arguments: str) -> int:
    """`python -m mmaccel.run <arguments>` in this process; returns the exit code."""
    from mmaccel import run

    monkeypatch.setattr("sys.argv", ["mmaccel.run", *arguments])
    return run.main()
