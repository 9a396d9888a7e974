"""One call that says whether the mechanism is right and fast on this device, in a few minutes.

    python scripts/gpu_check.py                     on the GPU (or the CPU, where there is none) → gpu_check.json
    python scripts/gpu_check.py --geometry tiny     the same road in seconds, to see that it runs

Needs torch, transformers, numpy and pillow beside the checkout. Sections: the masking oracle in fp32 and bf16 under
every attention backend that can be had (beside what caching alone differs by, the floor), the embedded model's
accuracy, prefill and decode of a random-weight LLaVA geometry, and there what a verification of 1 … 64 drafted nodes
and a draft of a random EAGLE head cost beside a plain step.
"""

import argparse
import json
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import torch  # noqa: E402

GEOMETRIES = {
    "7b": dict(width=4096, layers=32, heads=32, kv_heads=32, ffn=11008, vocab=32064),
    "1b": dict(width=2048, layers=16, heads=32, kv_heads=8, ffn=8192, vocab=32064),
    "tiny": dict(width=128, layers=4, heads=4, kv_heads=2, ffn=256, vocab=2048),
}
RATIOS = (0.3, 0.5, 0.7, 0.9)
NODES = (1, 8, 32, 64)
SHAPES = {"chain of 5": {"levels": 5, "beam": 1, "nodes": 5}, "tree of 32": {"levels": 5, "beam": 8, "nodes": 32}}
FAMILIES = ("llava", "qwen2_5_vl", "qwen3_vl", "smolvlm")


def sync(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def median_ms(works: dict[str, Callable[[], Any]], device: str, rounds: int, warmup: int) -> dict[str, list[float]]:
    """name → times of every round, the works in rotating order."""
    names, times = list(works), {name: [] for name in works}
    for round_ in range(-warmup, rounds):
        first = round_ % len(names)
        for name in names[first:] + names[:first]:
            sync(device)
            began = time.perf_counter()
            works[name]()
            sync(device)
            if round_ >= 0:
                times[name].append(1e3 * (time.perf_counter() - began))
    return times


def device_facts(device: str) -> dict[str, Any]:
    import transformers

    facts = {"torch": torch.__version__, "transformers": transformers.__version__, "device": device}
    if device.startswith("cuda"):
        free, total = torch.cuda.mem_get_info()
        facts |= {"name": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
        facts |= {"free_gib": free >> 30, "gib": total >> 30}
    return facts


@torch.no_grad()
def oracle(device: str, dtype: torch.dtype, attention: str) -> dict[str, Any]:
    """Largest logit difference to the masking oracle over families, plans and a ragged batch, beside the floor."""
    from oracle import PLANS, oracle_logits
    from tiny import RAGGED, inputs, tiny

    from mmaccel.attach import attach

    worst: dict[str, Any] = {}
    for family in FAMILIES:
        wanted_from = tiny(family, "sdpa", dtype=dtype).to(device)
        model = wanted_from
        if attention == "flash_attention_2":
            model = tiny(family, "sdpa", dtype=dtype).to(device)
            model.get_decoder().config._attn_implementation = attention
        elif attention == "eager":
            model = tiny(family, attention, dtype=dtype).to(device)
        given = {name: tensor.to(device) for name, tensor in inputs(family, RAGGED[:2]).items()}
        given["pixel_values"] = given["pixel_values"].to(dtype)
        floor = (model(**given).logits[:, -1] - wanted_from(**given, use_cache=False).logits[:, -1]).abs().max()
        for name, plan in PLANS.items():
            with attach(model, plan):
                got = model(**given).logits[:, -1]
            none = torch.zeros(2, 0, dtype=torch.long, device=device)
            wanted = oracle_logits(wanted_from, given, none, plan)[:, 0]
            effect = (wanted - wanted_from(**given).logits[:, -1]).abs().max()
            worst[f"{family} {name}"] = {
                "difference": float((got - wanted).abs().max()), "floor": float(floor), "effect": float(effect)
            }  # fmt: skip
    largest, floor = (max(cell[key] for cell in worst.values()) for key in ("difference", "floor"))
    return {"largest": largest, "floor": floor, "effect": min(c["effect"] for c in worst.values()), "cells": worst}


def oracles(device: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for dtype in (torch.float32, torch.bfloat16):
        for attention in ("sdpa", "eager", "flash_attention_2"):
            if attention == "flash_attention_2" and (dtype == torch.float32 or not device.startswith("cuda")):
                continue
            name = f"{str(dtype).removeprefix('torch.')} {attention}"
            try:
                found[name] = oracle(device, dtype, attention)
            except Exception as error:  # a backend that is not there is a finding, not a stop
                found[name] = {"error": f"{type(error).__name__}: {error}"[:300]}
    return found


@torch.no_grad()
def accuracy(device: str, samples: int) -> dict[str, Any]:
    """The embedded model on held-out scenes, greedy, our loop: all tokens and FastV at 0.5 and 0.9."""
    from mmaccel.attach import attach
    from mmaccel.benchmarks.scenes import Scenes
    from mmaccel.decoding.speculate import Speculate
    from mmaccel.models.load import VLM
    from mmaccel.pruning.fastv import FastV

    vlm, scenes = VLM.load("pico", device=device), Scenes(n=samples, seed=1, kinds=("colour", "where", "sign", "chart"))
    right = {"all": 0.0, "fastv 0.5": 0.0, "fastv 0.9": 0.0}
    for index in range(samples):
        sample = scenes[index]
        turn = [{"type": "image", "image": sample.image}, {"type": "text", "text": sample.turns[0]}]
        inputs = vlm.inputs([[{"role": "user", "content": turn}]])

        def reply(inputs: Any = inputs) -> str:
            out = vlm.model.generate(**inputs, max_new_tokens=scenes.max_new_tokens, custom_generate=Speculate())
            return vlm.tokenizer.decode(out[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)

        right["all"] += scenes.score(sample, [reply()])["correct"]
        for ratio in (0.5, 0.9):
            with attach(vlm.model, FastV(layer=2, ratio=ratio)):
                right[f"fastv {ratio}"] += scenes.score(sample, [reply()])["correct"]
    return {name: round(100 * value / samples, 1) for name, value in right.items()} | {"n": samples}


@torch.no_grad()
def prefill(device: str, dtype: torch.dtype, fields: dict[str, int], rounds: int) -> dict[str, Any]:
    """t₀, t₁ and the share of the saved MACs that the clock shows; then decode tokens/s against the bandwidth floor."""
    from mmaccel.attach import attach
    from mmaccel.cache import cache_argument, cache_in, fork, logical_length
    from mmaccel.measure.cost import Geometry, ledger
    from mmaccel.models.random_weights import LlavaGeometry, random_features, random_llava, random_prompt
    from mmaccel.pruning.fastv import FastV

    geometry = LlavaGeometry(**fields)
    model = random_llava(geometry, dtype=dtype, device=device, attention="sdpa", seed=0)
    prompt: dict[str, Any] = random_prompt(geometry, before=8, after=24, device=device, seed=0)
    prompt["mm_encoder_outputs"] = random_features(model, geometry, 0)

    def forward() -> Any:
        return model(**prompt, use_cache=True, logits_to_keep=1)

    def pruned(ratio: float) -> Any:
        with attach(model, FastV(layer=2, ratio=ratio)) as attachment:
            out = forward()
        return out, attachment.events[0]

    works = {"0": forward} | {f"{ratio:g}": (lambda ratio=ratio: pruned(ratio)) for ratio in RATIOS}
    times = median_ms(works, device, rounds, 3)
    base, rows = times["0"], {}
    for ratio in RATIOS:
        out, event = pruned(ratio)
        kept = int(event.stops[0].visual)
        book = ledger(Geometry.of(model.config), 32, geometry.visual, [(2, kept)])
        saved = statistics.median(1 - t1 / t0 for t0, t1 in zip(base, times[f"{ratio:g}"]))
        rows[f"{ratio:g}"] = {
            "kept": kept, "ms": round(statistics.median(times[f"{ratio:g}"]), 3),
            "prune_ms": round(event.stops[0].prune_ms, 3), "mac_fraction": round(book.mac_fraction, 4),
            "efficiency": round(saved / (1 - book.mac_fraction), 3),
        }  # fmt: skip
    name, decode = cache_argument(model), {}
    for label, out in (("all", forward()), ("fastv 0.9", pruned(0.9)[0])):
        decode[label] = decode_speed(model, cache_in(out), name, fork, logical_length, device)
    values = sum(parameter.numel() for parameter in model.get_decoder().parameters())
    drafted = speculation(model, cache_in(forward()), name, prompt["input_ids"], device, rounds)
    return {
        "bare_ms": round(statistics.median(base), 3), "pruned": rows, "decode_tokens_per_s": decode,
        "weight_bytes": values * model.dtype.itemsize, "times": times, "speculation": drafted,
    }  # fmt: skip


@torch.no_grad()
def speculation(model: Any, cache: Any, name: str, ids: Any, device: str, rounds: int) -> dict[str, Any]:
    """ms of a plain step, of verifying a tree of so many nodes on the same cache, of a draft by a random head; such a
    head costs time below the tau of the last rows."""
    from mmaccel.cache import adopt, logical_length, rollback
    from mmaccel.drafting.base import Seen, Target
    from mmaccel.training.formats import new_head

    adopt(cache)
    length, target = logical_length(cache), Target.of(model)

    def step(nodes: int) -> None:
        q = 1 + nodes
        block = torch.eye(q, dtype=torch.bool, device=device)
        block[:, 0] = True  # all of them children of the root
        mask = torch.cat([block.new_ones(q, length), block], 1)[None, None] if nodes else None
        tokens = torch.full((1, q), 17, device=device)
        position = length + (torch.arange(q, device=device) > 0).long()[None]
        model(input_ids=tokens, position_ids=position, attention_mask=mask, **{name: cache})
        rollback(cache, length)

    works: dict[str, Callable[[], Any]] = {"plain": lambda: step(0)}
    works |= {f"verify {nodes}": (lambda nodes=nodes: step(nodes)) for nodes in NODES}
    hidden = torch.randn(*ids.shape, target.width, device=device, dtype=target.dtype)
    place, token = torch.arange(ids.shape[1], device=device)[None], torch.full((1,), 17, device=device)
    last = Seen(ids[:, -1:], place[:, -1:], None, hidden[:, -1:])
    for label, shape in SHAPES.items():
        head = new_head("eagle", model.config, shape | {"image_input": "placeholder"}).to(device, target.dtype).eval()
        state = head.start(target, 1)
        head.observe(state, Seen(ids, place, None, hidden))
        head.propose(state, token, place[:, -1:] + 1, 9, None)  # its pass over the prompt

        def draft(head: Any = head, state: Any = state) -> None:
            mine = state.fork()
            head.observe(mine, last)
            head.propose(mine, token, place[:, -1:] + 1, 9, None)

        works[f"draft {label}"] = draft
    spent = {what: round(statistics.median(times), 3) for what, times in median_ms(works, device, rounds, 3).items()}
    for label, nodes in (("chain of 5", 8), ("tree of 32", 32)):
        cost = spent[f"draft {label}"] + spent[f"verify {nodes}"]
        spent[f"break-even tau, {label}"] = round(cost / spent["plain"], 2)
    return spent


def decode_speed(model: Any, cache: Any, name: str, fork: Any, length_of: Any, device: str, steps: int = 32) -> float:
    """Greedy tokens per second on a filled cache; the weights' bytes times this is the bandwidth it draws."""
    length = length_of(cache)

    def walk() -> None:
        mine, token = fork(cache), torch.full((1, 1), 17, device=device)
        for step in range(steps):
            position = torch.full_like(token, length + step)
            out = model(input_ids=token, position_ids=position, **{name: mine})
            token = out.logits[:, -1:].argmax(-1)

    spent = median_ms({"walk": walk}, device, 3, 1)["walk"]
    return round(1e3 * steps / statistics.median(spent), 2)


def main() -> int:
    cuda = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if cuda else "cpu")
    parser.add_argument("--geometry", default="7b" if cuda else "tiny", choices=GEOMETRIES)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--samples", type=int, default=100 if cuda else 8)
    parser.add_argument("--out", type=Path, default=Path("gpu_check.json"))
    chosen = parser.parse_args()
    dtype = torch.bfloat16 if chosen.device.startswith("cuda") else torch.float32
    found: dict[str, Any] = {"facts": device_facts(chosen.device)}
    sections = {
        "oracle": lambda: oracles(chosen.device),
        "accuracy": lambda: accuracy(chosen.device, chosen.samples),
        "prefill": lambda: prefill(chosen.device, dtype, GEOMETRIES[chosen.geometry], chosen.rounds),
    }
    for name, section in sections.items():
        began = time.perf_counter()
        try:
            found[name] = section()
        except Exception:  # the other sections still tell something
            found[name] = {"error": traceback.format_exc()[-2000:]}
        print(f"{name}: {time.perf_counter() - began:.1f} s", flush=True)
        chosen.out.write_text(json.dumps(found, indent=1))
    table(found)
    return int(any("error" in found[name] for name in sections))


def table(found: dict[str, Any]) -> None:
    """The short version, last."""
    print(*found["facts"].values(), sep="  ")
    for name, cell in found["oracle"].items():
        told = "  ".join(f"{key} {cell[key]:.2e}" for key in ("largest", "floor", "effect") if key in cell)
        print(f"oracle    {name:28} {told or cell.get('error')}")
    print("accuracy ", found["accuracy"])
    rows = found["prefill"].get("pruned", {})
    print("prefill   bare ms", found["prefill"].get("bare_ms"), found["prefill"].get("error", ""))
    for ratio, row in rows.items():
        print(f"prefill   drop {ratio}: {row}")
    for what, value in found["prefill"].get("speculation", {}).items():
        print(f"drafting  {what:28} {value}")
    print("decode    tokens/s", found["prefill"].get("decode_tokens_per_s"))


if __name__ == "__main__":
    sys.exit(main())
