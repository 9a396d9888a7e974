"""A synthetic run folder, seeded: what a real sweep leaves, without a model. For the report's and the tracker's tests.

`python -m tests.runfolder DIR` writes one and its report, to look at.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from mmaccel.measure.cost import Geometry, ledger
from mmaccel.measure.record import RunFolder, write_points
from mmaccel.measure.stats import points_table
from mmaccel.report.overlay import survival_map

KINDS = {"colour": 0.02, "counting": 0.06, "position": 0.05, "small text": 0.42, "chart": 0.16, "choice": 0.0}
GEOMETRY = Geometry(layers=8, width=256, heads=8, kv_heads=2, head_dim=32, ffn=768)
HOSTILE = "</script><script>alert(1)</script><img src=http://x.invalid onerror=alert(2)>"
HOSTILE += " ${7*7} `x` \u2028 & \" ' {{x}} \ud83d"
CONFIG = {
    "name": "fastv_sweep", "model": {"path": "pico"}, "seed": 0,
    "pruner": {"_target_": "mmaccel.pruning.fastv.FastV", "layer": 2}, "tracker": {"mode": "offline"},
    "sweep": {"pruner": {"ratio": [0.3, 0.5, 0.7, 0.8, 0.9]}},
}  # fmt: skip
PROVENANCE = {
    "time": "2026-01-02T03:04:05+00:00", "command": "python -m mmaccel.run +experiment=fastv_sweep limit=200",
    "git": {"sha": "0123456789abcdef0123456789abcdef01234567", "dirty": False}, "seed": 0, "dtype": "float32",
    "versions": {"mmaccel": "0.1.0", "torch": "2.13.0", "transformers": "5.24.0", "python": "3.11.9"},
    "device": {"type": "cpu", "name": "An ordinary processor", "cores": 2}, "threads": 2, "attention": "sdpa",
    "cold_start": {"load_ms": 1834.2, "first_request": {"sample": "scene-0", "ttft_ms": 912.4, "e2e_ms": 1000.0}},
    "weights": {"sha256": "5e0f" * 16, "of": "safetensors files"},
}  # fmt: skip


def points(suffix: str = "", count: int | None = None) -> list[dict]:
    sweep = [("baseline", None, None), ("keep_all", "keep_all", None)]
    sweep += [(f"fastv ratio={r}", "fastv", r) for r in (0.3, 0.5, 0.7, 0.8, 0.9)]
    sweep += [(f"pyramiddrop ratio={r}", "pyramiddrop", r) for r in (0.3, 0.5, 0.7)]
    sweep += [(f"random ratio={r}", "random", r) for r in (0.3, 0.5, 0.7, 0.9)]
    sweep += [(f"pool ratio={r}", "pool", r) for r in (0.3, 0.5, 0.7, 0.9)]
    return [
        {"name": name + suffix, "pruner": pruner and pruner + suffix, "ratio": ratio} for name, pruner, ratio in sweep
    ][:count]


def stops(pruner: str | None, ratio: float | None) -> list[tuple[int, int]]:
    keep = 1 - (ratio or 0.0)
    if pruner == "pyramiddrop":
        return [(layer, round(576 * keep**k)) for k, layer in enumerate((2, 4, 6), 1)]
    if pruner == "pool":
        return [(0, round(576 * (2 + 6 * keep) / 8))]
    return [(2, round(576 * keep))] if pruner in ("fastv", "random") else []


def loss(pruner: str | None, removed: float, kind: str) -> float:
    weight = {"fastv": 0.55, "pyramiddrop": 0.5, "random": 1.25, "pool": 0.8}.get(pruner or "", 0.0)
    return min(0.9, weight * (removed**3.2) * (0.25 + 4 * KINDS[kind]))


def record(point: dict, index: int, rng: np.random.Generator, luck: float, suffix: str) -> dict:
    kind = list(KINDS)[index % len(KINDS)]
    pruner = (point["pruner"] or "").removesuffix(suffix) or None
    planned = stops(pruner, point["ratio"])
    generated = int(2 + index % 5)
    book = ledger(GEOMETRY, 42, 576, planned, generated)
    removed = 1 - book.mean_visual / 576 if planned else 0.0
    correct = float(luck < 0.93 - loss(pruner, removed * 1.25, kind))
    noise = float(rng.lognormal(0, 0.05))
    overhead = 1.5 if pruner else 0.0
    prefill, decode = 118 * book.mac_fraction * noise, (generated - 1) * 7.5 * noise
    stages = {"preprocess": 14.0 * noise, "vision": 46 * noise, "prune": overhead * len(planned), "prefill": prefill,
              "decode": decode}  # fmt: skip
    e2e = sum(stages.values()) + overhead
    answer = ["red", "3", "left", "EXIT 42", "17", "B"][index % 6]
    return {
        "point": point["name"], "sample": f"scene-{index}{suffix}", "turn": 0, "benchmark": "scenes",
        "kind": kind + suffix, "reference": answer,
        "question": f"What is written on the sign, in the corner of picture {index}?{suffix}",
        "prediction": (answer if correct else "I cannot tell") + suffix, "parsed": answer, "finish": "stop",
        "ids": [1, 2], "score": {"correct": correct}, "stages_ms": stages, "step_ms": [7.5 * noise] * (generated - 1),
        "tokens": {"prompt": 618, "visual": 576, "kept": list(book.kept), "mean_visual": book.mean_visual,
                   "generated": generated},
        "kv_fraction": book.kv_fraction, "mac_fraction": book.mac_fraction, "ttft_ms": e2e - decode, "e2e_ms": e2e,
        "tpot_ms": 7.5 * noise if generated > 1 else None, "memory_mb": {"weights": 22.0, "kv": book.kv_bytes(4) / 1e6},
        "spec": {"steps": generated - 1, "drafted": 0, "accepted": 0, "emitted": generated - 1},
        "image": {"width": 336, "height": 336, "sharpness": 40.0 * (1 + index % 7), "edges": 0.04 + 0.01 * (index % 5)},
        "evidence": {"tokens": 12, "kept_fraction": [(k / 576) ** 0.6 for k in book.kept]},
    }  # fmt: skip


def records(n: int, seed: int, suffix: str = "", count: int | None = None) -> Iterator[dict]:
    rng = np.random.default_rng(seed)
    for index in range(n):
        luck = float(rng.random())
        for point in points(suffix, count):
            yield record(point, index, rng, luck, suffix)


def drawing(index: int) -> Image.Image:
    rng = np.random.default_rng(index)
    image = Image.new("RGB", (336, 336), tuple(int(v) for v in rng.integers(205, 245, 3)))
    draw = ImageDraw.Draw(image)
    for _ in range(7):
        x, y, r = (int(v) for v in rng.integers((20, 20, 18), (300, 300, 52)))
        hue = tuple(int(v) for v in rng.integers(30, 220, 3))
        (draw.ellipse if rng.random() < 0.5 else draw.rectangle)((x - r, y - r, x + r, y + r), fill=hue)
    draw.rectangle((8, 296, 104, 328), fill="white", outline="black", width=2)
    draw.text((16, 302), f"EXIT {index}", fill="black", font_size=18)
    return image


def pictures(folder: RunFolder, count: int, suffix: str = "") -> None:
    rng = np.random.default_rng(0)
    for index in range(count):
        image, name = drawing(index), f"scene-{index}{suffix}"
        image.save(folder.picture(name))
        liking = [int(v) for v in rng.permutation(576)]
        for point in points(suffix):
            planned = stops((point["pruner"] or "").removesuffix(suffix), point["ratio"])
            if not planned or point["name"].startswith("pool"):
                continue
            kept = [[divmod(v, 24) for v in liking[:k]] for _, k in planned]
            survival_map(image, (24, 24), kept).save(folder.picture(name, point["name"]))


def make_run(
    path: Path, *, n: int = 120, count: int | None = None, with_pictures: int = 3, hostile: bool = False
) -> RunFolder:
    """n samples through the first `count` points; `hostile` puts markup and odd characters into every string."""
    suffix = HOSTILE if hostile else ""
    config = CONFIG | ({"name": HOSTILE, HOSTILE: HOSTILE} if hostile else {})
    folder = RunFolder.create(path, config, PROVENANCE | ({"command": HOSTILE} if hostile else {}))
    with folder:
        for one in records(n, 0, suffix, count):
            folder.append(one)
        if hostile:
            folder.append({"point": f"baseline{suffix}", "sample": HOSTILE, "turn": 0, "error": HOSTILE})
        pictures(folder, with_pictures, suffix)
        write_points(folder, points_table(folder.records(), points(suffix, count), f"baseline{suffix}", resamples=500))
    return folder


if __name__ == "__main__":
    from mmaccel.report.page import write_report

    target = Path(sys.argv[1])
    make_run(target, n=240, with_pictures=6, hostile="hostile" in sys.argv)
    print(write_report(target))
