"""A small causal language model from a folder or the Hub, as a draft head. It must have the target's tokenizer."""

from pathlib import Path

import torch

from mmaccel.drafting.assistant import Assistant


def load_assistant(
    path: str, tokens: int = 5, dtype: str = "float32", device: str = "cpu", revision: str | None = None
) -> Assistant:
    """Weights from safetensors alone. Raises OSError, with the library's reason, where there is no such model."""
    from transformers import AutoModelForCausalLM

    place = Path(path).expanduser()
    model = AutoModelForCausalLM.from_pretrained(
        place if place.is_dir() else path, dtype=getattr(torch, dtype), revision=revision, use_safetensors=True
    )
    return Assistant(model.eval().to(device), tokens)
