"""Accuracy of an exported folder on held-out scenes, through the library's own processor and `generate`, in batches."""

from __future__ import annotations

from collections import defaultdict
from contextlib import nullcontext
from pathlib import Path

import torch
from PIL import Image
from transformers import AutoProcessor, LlavaForConditionalGeneration

from mmaccel.attach import attach
from mmaccel.benchmarks.scenes import Scenes
from mmaccel.pruning.base import FunctionPruner, Pruner
from mmaccel.registry import build


def load(folder: Path) -> tuple[LlavaForConditionalGeneration, AutoProcessor]:
    model = LlavaForConditionalGeneration.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    return model.eval(), AutoProcessor.from_pretrained(folder, local_files_only=True)


def pruner(words: list[str]) -> Pruner:
    """["fastv", "ratio=0.9"] → that pruner; "vtw" with layer=K drops every visual token before layer K."""
    name, fields = words[0], {key: float(value) for key, value in (word.split("=") for word in words[1:])}
    if "layer" in fields:
        fields["layer"] = int(fields["layer"])
    if name == "vtw":
        return FunctionPruner(lambda station: station.alive & ~station.visual, fields["layer"])
    return build("pruner", name, fields)


def reply(
    model: LlavaForConditionalGeneration,
    processor: AutoProcessor,
    samples: list,
    limit: int,
    picture: bool,
    prune: Pruner | None = None,
) -> list[str]:
    """Greedy answers; without `picture` a grey one takes its place."""
    grey = Image.new("RGB", (336, 336), (128, 128, 128))
    chats = [
        [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": sample.turns[0]}]}]
        for sample in samples
    ]
    text = [processor.apply_chat_template(chat) for chat in chats]
    images = [sample.image if picture else grey for sample in samples]
    inputs = processor(images=images, text=text, return_tensors="pt", padding=True, add_special_tokens=False)
    with torch.inference_mode(), attach(model, prune) if prune else nullcontext():
        out = model.generate(**inputs, max_new_tokens=limit, do_sample=False)
    return processor.batch_decode(out[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)


def evaluate(
    folder: Path,
    n: int,
    seed: int,
    batch: int,
    picture: bool = True,
    kinds: list[str] | None = None,
    prune: list[str] | None = None,
) -> dict:
    """{"kinds": {kind: (mean score, n)}, "short": pooled accuracy of short answers, "by character": of objects that
    are asked for by their character, "wrong": some examples}."""
    model, processor = load(folder)
    bench = Scenes(n=n, seed=seed, kinds=kinds)
    scores: dict[str, list[float]] = defaultdict(list)
    wrong: dict[str, list] = defaultdict(list)
    marked: list[float] = []  # asked for by its character
    order = sorted(
        range(n), key=lambda k: bench.asked[k % len(bench.asked)] == "caption"
    )  # captions apart: they are long
    for start in range(0, n, batch):
        samples = [bench[k] for k in order[start : start + batch]]
        limit = 160 if any(sample.kind == "caption" for sample in samples) else 12
        for sample, said in zip(
            samples, reply(model, processor, samples, limit, picture, pruner(prune) if prune else None)
        ):
            score = bench.score(sample, [said])["correct"]
            scores[sample.kind].append(score)
            if "object marked" in sample.turns[0] and sample.kind in ("colour", "shape", "where"):
                marked.append(score)
            if score < 1:
                wrong[sample.kind].append((sample.turns[0], sample.reference[0], said))
    short = [score for kind, values in scores.items() if kind != "caption" for score in values]
    return {
        "kinds": {kind: (round(100 * sum(v) / len(v), 1), len(v)) for kind, v in scores.items()},
        "short": (round(100 * sum(short) / max(1, len(short)), 1), len(short)),
        "by character": (round(100 * sum(marked) / max(1, len(marked)), 1), len(marked)),
        "wrong": {kind: values[:4] for kind, values in wrong.items()},
    }
