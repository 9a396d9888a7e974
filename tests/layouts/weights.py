"""Random weights for the folders beside this file, written under the names published checkpoints use."""

import json
import re
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

HERE = Path(__file__).parent
FAMILIES = ("llava", "qwen2_5_vl", "qwen3_vl", "smolvlm")
# In-memory name → the checkpoint's, first match wins. The library's own names differ between its versions in whether a
# CLIP tower's have `vision_model.`; the files on the Hub all do.
NAMES: dict[tuple[str, str], list[tuple[str, str]]] = {
    ("llava", "old"): [
        (r"^model\.language_model\.", "language_model.model."),
        (r"^lm_head\.", "language_model.lm_head."),
        (r"^model\.vision_tower\.(vision_model\.)?", "vision_tower.vision_model."),
        (r"^model\.multi_modal_projector\.", "multi_modal_projector."),
    ],
    ("llava", "new"): [(r"^model\.vision_tower\.(vision_model\.)?", "model.vision_tower.vision_model.")],
    ("qwen2_5_vl", "old"): [(r"^model\.language_model\.", "model."), (r"^model\.visual\.", "visual.")],
    ("qwen2_5_vl", "new"): [],
    ("qwen3_vl", "new"): [],  # these two were only ever published so
    ("smolvlm", "new"): [],
}


def stored_name(family: str, layout: str, name: str) -> str:
    for pattern, replacement in NAMES[family, layout]:
        renamed, count = re.subn(pattern, replacement, name)
        if count:
            return renamed
    return name


def random_model(family: str, seed: int = 0) -> torch.nn.Module:
    """fp32, weights large enough that a wrong or missing one changes the logits."""
    from transformers import AutoConfig, AutoModelForImageTextToText

    torch.manual_seed(seed)
    model = AutoModelForImageTextToText.from_config(AutoConfig.from_pretrained(HERE / family), dtype=torch.float32)
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(1.0, 0.1) if weight.ndim == 1 else weight.normal_(0.0, weight.shape[-1] ** -0.5)
    return model.eval()


def write_checkpoint(
    folder: Path,
    family: str,
    layout: str = "new",
    *,
    sharded: bool = False,
    pickle: bool = False,
    dtype: torch.dtype = torch.float32,
) -> dict[str, Tensor]:
    """A whole checkpoint in `folder`; returns the weights under the library's own names."""
    shutil.copytree(HERE / family, folder, dirs_exist_ok=True)
    weights = {name: tensor.to(dtype) for name, tensor in random_model(family).state_dict().items()}
    if json.loads((folder / "config.json").read_text())["tie_word_embeddings"]:
        weights.pop("lm_head.weight", None)
    named = {stored_name(family, layout, name): tensor.contiguous() for name, tensor in weights.items()}
    kind = ("pytorch_model", "bin") if pickle else ("model", "safetensors")
    save = torch.save if pickle else save_file
    if not sharded:
        save(named, folder / f"{kind[0]}.{kind[1]}")
        return weights
    names = sorted(named)
    shards = [names[i::3] for i in range(3)]
    where = {}
    for i, shard in enumerate(shards, 1):
        file = f"{kind[0]}-{i:05d}-of-00003.{kind[1]}"
        save({name: named[name] for name in shard}, folder / file)
        where |= dict.fromkeys(shard, file)
    total = sum(tensor.nbytes for tensor in named.values())
    index = {"metadata": {"total_size": total}, "weight_map": where}
    (folder / f"{kind[0]}.{kind[1]}.index.json").write_text(json.dumps(index))
    return weights
