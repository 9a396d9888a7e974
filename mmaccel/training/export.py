"""A head as the serving engines load it, with the line that serves it and what they will not do with it.

The engines' rules are those of vLLM 0.33 and SGLang 0.5.23. Knows configs and names. Runs no engine.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmaccel.drafting.base import DraftHead
from mmaccel.drafting.eagle import Eagle
from mmaccel.drafting.eagle3 import Eagle3
from mmaccel.drafting.vispec import ViSpec
from mmaccel.training.formats import EAGLE3_FLAGS, save_head, save_speculators

VLLM_TARGETS = (
    "llava", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "mistral3", "pixtral", "llama4", "gemma4", "minicpmv",
    "kimi_k25",
)  # fmt: skip


LAYOUTS = ("native", "speculators")


def export_head(
    head: DraftHead, folder: str | Path, target: str, config: Mapping[str, Any], layout: str = "native"
) -> list[str]:
    """Writes weights, config and README; returns the warnings, which stand in the README too.

    target: the folder or Hub name that is served.  config: its config.json.  layout: of the folder; speculators' holds
    an EAGLE-3 head alone.
    """
    if layout not in LAYOUTS:
        raise ValueError(f"layout: got {layout!r}, valid are {', '.join(LAYOUTS)}")
    if layout == "speculators" and not isinstance(head, Eagle3):
        raise ValueError(f"layout: got speculators for {type(head).__name__}, valid is native (theirs is EAGLE-3's)")
    folder = Path(folder)
    warnings = cautions(head, config)
    if isinstance(head, Eagle3) and layout == "speculators":
        save_speculators(head, folder, target, config.get("architectures", []), {"target": target})
    else:
        save_head(head, folder, {"target": target})
    (folder / "README.md").write_text(page(head, folder, target, warnings), encoding="utf-8")
    return warnings


def cautions(head: DraftHead, config: Mapping[str, Any]) -> list[str]:
    kind, found = config.get("model_type"), []
    if isinstance(head, Eagle3):
        if kind not in VLLM_TARGETS:
            found.append(f"vLLM runs no EAGLE-3 head on a {kind}; it knows {', '.join(VLLM_TARGETS)}.")
        if "image_token_id" not in config and "image_token_index" not in config:
            found.append("vLLM wants image_token_id or image_token_index in the target's config, which has neither.")
        if head.image_input != "placeholder":
            found.append(
                f"vLLM feeds a head the placeholder's embedding at a picture's columns; this one was trained with "
                f"{head.image_input}, so acceptance will fall. SGLang feeds the merged features."
            )
        else:
            found.append(
                "SGLang feeds merged features at a picture's columns; this head was trained on the placeholder."
            )
        odd = [name for name in EAGLE3_FLAGS if getattr(head, name, None) not in (None, False)]
        odd += ["norm_before_fc"] if head.input_norm is not None else []
        if odd or len(head.taps) != 3:
            told = f"{', '.join(sorted(set(odd))) or 'no norms of 3.1'} and {len(head.taps)} taps"
            found.append(f"SGLang knows three taps and none of EAGLE-3.1's norms; this head has {told}.")
        if min(head.taps) == 0:
            found.append("SGLang has no name for the embeddings, which this head taps.")
    elif isinstance(head, Eagle) and not isinstance(head, ViSpec):
        found.append("vLLM's EAGLE-1 takes no pictures: it serves this head for text alone.")
        if head.fc.bias is not None:
            found.append("vLLM's EAGLE-1 has no fc bias and will not load this head; SGLang's always has one.")
        else:
            found.append("SGLang's EAGLE-1 expects an fc bias, which this head has not.")
    else:
        found.append(
            f"{type(head).__name__}: vLLM and SGLang of today serve no such head; the folder is for other readers."
        )
    return found


PAGE = """# A draft head for {target}

{kind}, {weights:,} weights.
{serving}
## What to know

{warnings}
"""
SERVING = """
## vLLM

```
vllm serve {target} --speculative-config '{chosen}'
```

## SGLang

```
python -m sglang.launch_server --model-path {target} --speculative-algorithm {algorithm} \\
  --speculative-draft-model-path {name} --speculative-num-steps {levels} \\
  --speculative-eagle-topk 1 --speculative-num-draft-tokens {nodes}
```

Run either from the folder that holds this one.
"""


def page(head: DraftHead, folder: Path, target: str, warnings: list[str]) -> str:
    kind, name, levels = type(head).__name__, folder.resolve().name, getattr(head, "levels", 1)
    method = {"Eagle3": "eagle3", "Eagle": "eagle"}.get(kind)
    chosen = json.dumps({"method": method, "model": name, "num_speculative_tokens": levels})
    serving = SERVING.format(
        target=target, chosen=chosen, algorithm=str(method).upper(), name=name, levels=levels, nodes=levels + 1
    )
    size = sum(p.numel() for p in head.parameters())
    listed = "\n".join(f"- {warning}" for warning in warnings)
    return PAGE.format(target=target, kind=kind, weights=size, serving=serving if method else "", warnings=listed)
