"""Heads on the disk: config.json and model.safetensors in the layouts the public code reads, and back.

EAGLE-1/2: an ordinary Llama config of one layer plus `bias`; weights `fc.*` and `layers.0.*` without a prefix and
without the first norm; ViSpec: the same with `imadpt.*` and `img_fc.*`. EAGLE-3: `midlayer.*` or `layers.0.*`, `fc`,
`norm`, `lm_head`, `d2t` as offsets, `t2d`; speculators: the same with the layer's config nested and the target named.
Medusa v0.1: `{head}.{block}.linear.*` and `{head}.{layers}.weight`; 1.0: the same behind `medusa_head.` among the
target's own. What only we know stands under the config's key `mmaccel`. Knows names and shapes. Does not know models.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from mmaccel.drafting.base import DraftHead
from mmaccel.drafting.eagle import Eagle
from mmaccel.drafting.eagle3 import Eagle3, default_taps
from mmaccel.drafting.layer import Sizes
from mmaccel.drafting.medusa import Medusa
from mmaccel.drafting.vispec import ViSpec
from mmaccel.training.taps import write_taps

OURS = "mmaccel"
SHIPPED = Path(__file__).resolve().parents[1] / "assets" / "heads"
FULL = "medusa_head."  # in front of a head's weights among those of its target
NEW = ("eagle", "eagle3", "vispec", "medusa")
EAGLE_DIALS = ("levels", "beam", "nodes", "image_input", "rope")
EAGLE3_FLAGS = ("norm_before_residual", "norm_output", "norm_before_fc", "fc_norm")


def save_head(head: DraftHead, folder: str | Path, more: Mapping[str, Any] | None = None) -> Path:
    """`more`: what else the config says under `mmaccel`, e.g. the target and the data."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    file = "model.safetensors"
    if isinstance(head, Eagle):
        config, tensors = eagle_config(head), dict(head.state_dict())
    elif isinstance(head, Eagle3):
        config, tensors = eagle3_config(head), eagle3_tensors(head)
    elif isinstance(head, Medusa):
        config, tensors, file = medusa_config(head), medusa_tensors(head), "medusa_lm_head.safetensors"
    else:
        config, tensors = {OURS: {"head": type(head).__name__}}, dict(head.state_dict())
        if not tensors:
            raise ValueError(f"head: got {type(head).__name__}, which has no weights")
    config[OURS] |= dict(more or {})
    if isinstance(head, Medusa) and "target" in config[OURS]:
        config["base_model_name_or_path"] = config[OURS]["target"]  # the public loader takes another model without it
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    save_file({name: x.detach().cpu().contiguous() for name, x in tensors.items()}, folder / file)
    return folder


def load_head(folder: str | Path, pruner: Any = None, **dials: Any) -> DraftHead:
    """The head in a folder, or one of those that ship, by name.

    dials: fields that are not weights (levels, beam, widths, …), in place of the stored ones where they are not None.
    pruner: of the draft alone; the head is shown what it keeps of the prompt.
    """
    shipped = SHIPPED / folder
    given = {name: value for name, value in dials.items() if value is not None}
    head = read_head(shipped if shipped.is_dir() else Path(folder), given)
    head.pruner = pruner
    return head


def restored(head: DraftHead, folder: str | Path) -> DraftHead:
    """A head of one's own with the weights that a training left in `folder`; the published ones are load_head's."""
    return filled(head, weights(Path(folder)))


def read_head(folder: Path, dials: Mapping[str, Any]) -> DraftHead:
    if not (folder / "config.json").is_file():
        names = ", ".join(sorted(path.parent.name for path in SHIPPED.glob("*/config.json"))) or "none"
        raise FileNotFoundError(f"draft.folder: {folder} has no config.json; those that ship are {names}")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    tensors = weights(folder)
    if "speculators_model_type" in config:
        config = from_speculators(config)
    if "medusa_num_heads" in config:
        return medusa(config, tensors, dials)
    if "lm_head.weight" in tensors and "fc.weight" in tensors:
        return eagle3(config, tensors, dials)
    if "fc.weight" in tensors:
        return eagle(config, tensors, dials)
    raise ValueError(
        f"{folder}: neither EAGLE (fc.weight) nor Medusa (medusa_num_heads); it holds {sorted(tensors)[:8]}"
    )


def weights(folder: Path) -> dict[str, Tensor]:
    """Of a folder that holds a whole model too, only what is a head's."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        files = {file for name, file in names.items() if name.startswith(FULL)} or set(names.values())
        return own_part({name: x for file in sorted(files) for name, x in load_file(folder / file).items()})
    for name in ("model.safetensors", "medusa_lm_head.safetensors"):
        if (folder / name).is_file():
            return own_part(load_file(folder / name))
    for name in ("pytorch_model.bin", "medusa_lm_head.pt"):
        if (folder / name).is_file():
            return torch.load(folder / name, map_location="cpu", weights_only=True)
    raise FileNotFoundError(f"{folder}: no weights; valid are model.safetensors, pytorch_model.bin, medusa_lm_head.*")


def own_part(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    heads = {name.removeprefix(FULL): x for name, x in tensors.items() if name.startswith(FULL)}
    return heads or tensors


def from_speculators(config: Mapping[str, Any]) -> dict[str, Any]:
    """Their nested config as the flat one; raises for another method than EAGLE-3."""
    kind = config["speculators_model_type"]
    if kind != "eagle3":
        raise ValueError(f"speculators_model_type: got {kind!r}, valid is eagle3")
    if "norm_before_residual" not in config:  # their class, their training and vLLM each have another default
        raise ValueError("norm_before_residual: the config does not say, and readers differ; valid are true and false")
    flat = dict(config["transformer_layer_config"])
    names = (*EAGLE3_FLAGS, "draft_vocab_size", "target_hidden_size", "eagle_aux_hidden_state_layer_ids", OURS)
    return flat | {name: config[name] for name in names if config.get(name) is not None}


def save_speculators(
    head: Eagle3, folder: str | Path, target: str, architectures: Sequence[str], more: Mapping[str, Any] | None = None
) -> Path:
    """An EAGLE-3 head as the speculators library and vLLM read it. target: the model it drafts for, as it is served."""
    folder, flat = Path(folder), eagle3_config(head)
    folder.mkdir(parents=True, exist_ok=True)
    ours = flat.pop(OURS) | dict(more or {})
    outer = {name: flat.pop(name) for name in (*EAGLE3_FLAGS, "draft_vocab_size", "eagle_aux_hidden_state_layer_ids")}
    width = flat.pop("target_hidden_size", None)
    for name in ("architectures", "eagle_config"):
        flat.pop(name)
    proposal = {
        "proposal_type": "greedy", "speculative_tokens": head.levels, "verifier_accept_k": 1, "accept_tolerance": 0.0,
    }  # fmt: skip
    config = {
        "architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3", "speculators_version": "0.3.0",
        "target_hidden_size": width, "transformer_layer_config": flat,
        "speculators_config": {
            "algorithm": "eagle3", "default_proposal_method": "greedy", "proposal_methods": [proposal],
            "verifier": {"name_or_path": target, "architectures": list(architectures)},
        },
        **outer, OURS: ours,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    tensors = {name.replace("midlayer.", "layers.0.", 1): x for name, x in eagle3_tensors(head).items()}
    save_file({name: x.detach().cpu().contiguous() for name, x in tensors.items()}, folder / "model.safetensors")
    return folder


def save_medusa_full(head: Medusa, folder: str | Path, target: str | Path) -> Path:
    """Medusa 1.0: the folder of the target with the heads among its weights, in a shard of their own."""
    folder, target = Path(folder), Path(target)
    folder.mkdir(parents=True, exist_ok=True)
    for file in target.iterdir():
        if file.is_file():
            shutil.copy2(file, folder / file.name)
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        held = json.loads(index.read_text(encoding="utf-8"))
    else:
        shard = "model-00001-of-00002.safetensors"  # readers prefer a file of the plain name to the index
        (folder / "model.safetensors").rename(folder / shard)
        with safe_open(folder / shard, "pt") as weights_file:
            held = {"metadata": {}, "weight_map": dict.fromkeys(weights_file.keys(), shard)}
    tensors = {f"{FULL}{name}": x.detach().cpu().contiguous() for name, x in medusa_tensors(head).items()}
    save_file(tensors, folder / "model-medusa-head.safetensors", {"format": "pt"})
    held["weight_map"] |= dict.fromkeys(tensors, "model-medusa-head.safetensors")
    index.write_text(json.dumps(held, indent=2) + "\n", encoding="utf-8")
    own = {name: value for name, value in medusa_config(head).items() if name != "hidden_size"}
    config = json.loads((folder / "config.json").read_text(encoding="utf-8")) | own
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    return folder


def layer_config(s: Sizes, rope: str) -> dict[str, Any]:
    """A Llama of one layer."""
    return {
        "model_type": "llama", "num_hidden_layers": 1, "hidden_size": s.width, "intermediate_size": s.ffn,
        "num_attention_heads": s.heads, "num_key_value_heads": s.kv_heads, "head_dim": s.head_dim,
        "rope_theta": s.rope_theta, "rms_norm_eps": s.eps, "vocab_size": s.vocabulary,
        "max_position_embeddings": s.positions, "hidden_act": "silu", "tie_word_embeddings": False,
        **({"rope_scaling": sections(s)} if rope == "mrope" else {}),
    }  # fmt: skip


def sections(s: Sizes) -> dict[str, Any]:
    return {"rope_type": "default", "mrope_section": list(s.sections), "mrope_interleaved": s.interleaved}


def read_sizes(config: Mapping[str, Any], **more: Any) -> Sizes:
    heads, rope = config["num_attention_heads"], config.get("rope_parameters") or {}
    scaling = config.get("rope_scaling") or {}
    if {scaling.get("type"), scaling.get("rope_type"), rope.get("rope_type")} - {None, "default", "mrope"}:
        raise ValueError(f"rope_scaling: got {scaling or rope}, valid is none (scaled rotations are not built)")
    theta = rope.get("rope_theta") or config.get("rope_theta") or 10000.0
    return Sizes(
        config["hidden_size"], heads, config.get("num_key_value_heads") or heads,
        config.get("head_dim") or config["hidden_size"] // heads, config["intermediate_size"],
        float(theta), config.get("rms_norm_eps", 1e-6), bool(config.get("qkv_bias")),
        vocabulary=config.get("vocab_size", 0), positions=config.get("max_position_embeddings", 0),
        **mrope(scaling or rope), **more,
    )  # fmt: skip


def eagle_config(head: Eagle) -> dict[str, Any]:
    name = "vispec" if isinstance(head, ViSpec) else "eagle"
    return layer_config(head.sizes, head.rope) | {
        "architectures": ["LlamaForCausalLM"], "qkv_bias": head.sizes.qkv_bias, "bias": head.fc.bias is not None,
        OURS: {"head": name} | {name: getattr(head, name) for name in EAGLE_DIALS},
    }  # fmt: skip


def eagle(config: Mapping[str, Any], tensors: dict[str, Tensor], dials: Mapping[str, Any]) -> Eagle:
    stored = config.get(OURS, {})
    fields = {name: stored[name] for name in EAGLE_DIALS if name in stored} | dict(dials)
    bias = "fc.bias" in tensors  # the file decides: published configs leave `bias` out
    if "imadpt.q" in tensors:
        head: Eagle = ViSpec(read_sizes(config), queries=len(tensors["imadpt.q"]), fc_bias=bias, **fields)
    else:
        head = Eagle(read_sizes(config), fc_bias=bias, **fields)
    tensors.pop("embed_tokens.weight", None)  # the target's own, which the head is lent
    return filled(head, tensors)  # type: ignore[return-value]


def eagle3_config(head: Eagle3) -> dict[str, Any]:
    """Taps stand in vLLM's place and count, and once more in SGLang's, which ignores the first."""
    flags = {name: getattr(head, name) for name in ("norm_before_residual", "norm_output")}
    flags |= {"norm_before_fc": head.input_norm is not None, "fc_norm": head.fc_norm is not None}
    nested: dict[str, Any] = {"use_aux_hidden_state": True}
    if min(head.taps) > 0:
        nested["eagle_aux_hidden_state_layer_ids"] = write_taps(head.taps, "sglang")
    # the public code draws a random embedding where this key stands, and says nothing
    flags |= {"target_hidden_size": head.tapped} if head.tapped != head.sizes.width else {}
    return layer_config(head.sizes, head.rope) | flags | {
        "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": len(head.d2t),
        "eagle_config": nested, "num_aux_hidden_states": len(head.taps),  # vLLM takes 3 where it is not told
        "eagle_aux_hidden_state_layer_ids": write_taps(head.taps, "vllm"),
        OURS: {"head": "eagle3"} | {name: getattr(head, name) for name in EAGLE_DIALS},
    }  # fmt: skip


def eagle3_tensors(head: Eagle3) -> dict[str, Tensor]:
    """Without the two maps where it says every word of the target: vLLM then has no place for them."""
    tensors = dict(head.state_dict())
    if len(head.d2t) == len(head.t2d):
        del tensors["d2t"], tensors["t2d"]
    return tensors


def eagle3(config: Mapping[str, Any], tensors: dict[str, Tensor], dials: Mapping[str, Any]) -> Eagle3:
    """Weights as the public code names them or as layers.0; of one vocabulary, d2t and t2d may be absent."""
    tensors = {name.replace("layers.0.", "midlayer.", 1): x for name, x in tensors.items()}
    for name in ("embed_tokens.weight", "verifier_norm.weight", "verifier_lm_head.weight"):
        tensors.pop(name, None)
    sizes = read_sizes(config, read=2 * config["hidden_size"])
    vocabulary, own = config["vocab_size"], tensors["lm_head.weight"].shape[0]
    if own == vocabulary and "d2t" not in tensors:
        tensors |= {"d2t": torch.zeros(own, dtype=torch.long), "t2d": torch.ones(own, dtype=torch.bool)}
    width = config.get("target_hidden_size") or config["hidden_size"]
    stored, flags = config.get(OURS, {}), {name: bool(config.get(name)) for name in EAGLE3_FLAGS}
    fields = {name: stored[name] for name in EAGLE_DIALS if name in stored} | dict(dials)
    taps = fields.pop("taps", None) or config.get("eagle_aux_hidden_state_layer_ids")
    if taps is None:
        raise ValueError(
            "taps: this config does not say which hidden states its head reads (eagle_aux_hidden_state_layer_ids); "
            "give them, e.g. taps=[2,16,29] for a target of 32 layers as the public code taps it"
        )
    head = Eagle3(
        sizes, taps=taps, vocabulary=own, target_vocabulary=vocabulary, tapped=width, **(flags | fields),
    )  # fmt: skip
    return filled(head, tensors)  # type: ignore[return-value]


def medusa_config(head: Medusa) -> dict[str, Any]:
    return {
        "medusa_num_heads": len(head.blocks), "medusa_num_layers": len(head.blocks[0]),  # type: ignore[arg-type]
        "hidden_size": head.width, OURS: {"head": "medusa", "tree": [list(path) for path in head.tree.paths()]},
    }  # fmt: skip


def medusa_tensors(head: Medusa) -> dict[str, Tensor]:
    out: dict[str, Tensor] = {}
    for name, x in head.state_dict().items():
        part, at, rest = name.split(".", 2)
        layers = len(head.blocks[int(at)])  # type: ignore[arg-type]
        out[f"{at}.{rest}" if part == "blocks" else f"{at}.{layers}.{rest}"] = x
    return out


def medusa(config: Mapping[str, Any], tensors: dict[str, Tensor], dials: Mapping[str, Any]) -> Medusa:
    """The file says how many heads there are: published configs are known to say another number."""
    heads = 1 + max(int(name.split(".")[0]) for name in tensors)
    layers = sum(name.startswith("0.") and name.endswith("linear.weight") for name in tensors)
    own = f"0.{layers}.weight" in tensors
    width = tensors["0.0.linear.weight"].shape[0]
    vocabulary = tensors[f"0.{layers}.weight"].shape[0] if own else 1
    fields = {"tree": config.get(OURS, {}).get("tree")} | dict(dials)
    if "widths" in dials:
        fields["tree"] = None
    head = Medusa(width, vocabulary, heads, layers, own, **fields)
    named = {}
    for name, x in tensors.items():
        at, rest = name.split(".", 1)
        own_part = own and rest == f"{layers}.weight"
        named[f"outputs.{at}.weight" if own_part else f"blocks.{at}.{rest}"] = x
    return filled(head, named)  # type: ignore[return-value]


def filled(head: DraftHead, tensors: Mapping[str, Tensor]) -> DraftHead:
    """Every weight there and none too many, or an error that lists the names."""
    wanted = head.state_dict()
    missing, left = sorted(wanted.keys() - tensors.keys()), sorted(tensors.keys() - wanted.keys())
    shapes = [f"{k}: {tuple(tensors[k].shape)} for {tuple(wanted[k].shape)}" for k in wanted.keys() & tensors.keys()
              if tensors[k].shape != wanted[k].shape]  # fmt: skip
    if missing or left or shapes:
        raise ValueError(f"{type(head).__name__}: missing {missing}, unknown {left}, of another shape {sorted(shapes)}")
    head.load_state_dict(dict(tensors))
    return head


def mrope(rope: Mapping[str, Any]) -> dict[str, Any]:
    found = rope.get("mrope_section")
    return {"sections": tuple(found), "interleaved": bool(rope.get("mrope_interleaved"))} if found else {}


def sizes_of(config: Any) -> Sizes:
    """A layer like the target's own."""
    text = config.get_text_config()
    heads = text.num_attention_heads
    rope = getattr(text, "rope_parameters", None) or {}
    theta = rope.get("rope_theta") or getattr(text, "rope_theta", None) or 10000.0
    return Sizes(
        text.hidden_size, heads, getattr(text, "num_key_value_heads", None) or heads,
        getattr(text, "head_dim", None) or text.hidden_size // heads, text.intermediate_size, float(theta),
        getattr(text, "rms_norm_eps", 1e-6), vocabulary=text.vocab_size, positions=text.max_position_embeddings,
        **mrope(rope),
    )  # fmt: skip


def new_head(name: str, config: Any, fields: Mapping[str, Any]) -> DraftHead:
    """A head made for that target, or the one in the folder `name`. fields: of a new head; dials of a stored one."""
    text = config.get_text_config()
    if name == "eagle":
        return Eagle(sizes_of(config), **fields)
    if name == "vispec":
        return ViSpec(sizes_of(config), **fields)
    if name == "medusa":
        return Medusa(text.hidden_size, text.vocab_size, **fields)
    if name == "eagle3":
        sizes = replace(sizes_of(config), read=2 * text.hidden_size)
        given = {"taps": default_taps(text.num_hidden_layers), "vocabulary": text.vocab_size} | dict(fields)
        return Eagle3(sizes, target_vocabulary=text.vocab_size, **given)
    check_name(name)
    return load_head(name, **fields)


def check_name(name: str) -> None:
    if name not in NEW and not Path(name).is_dir():
        raise ValueError(f"job.head: got {name!r}, valid are {', '.join(NEW)} and the folder of a head")
