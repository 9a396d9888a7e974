"""Speculation against plain decoding in bf16: where answers part, and whether they may.

python scripts/bf16_divergence.py --n 24

In fp32 the words are equal. In bf16 a verification rounds otherwise than single steps do, and so does a batch: every
row of the table counts answers that differ from plain decoding at batch 1, those whose two tokens lie within a few
roundings of one another (ties), and the rest. The control drafts nothing: the same prompts, plainly, in a padded batch.
Exit 1 where more than ties differ.
"""

import argparse
import sys

import torch

from mmaccel.benchmarks.scenes import Scenes
from mmaccel.decoding.diverge import divergence
from mmaccel.decoding.speculate import Speculate
from mmaccel.jobs.conversation import conversation
from mmaccel.models.load import VLM
from mmaccel.training.formats import load_head

BATCH = 4


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="pico")
    parser.add_argument("--heads", nargs="*", default=["pico-eagle", "pico-medusa"])
    parser.add_argument("--n", type=int, default=24, help="captions")
    parser.add_argument("--most", type=int, default=96, help="new tokens")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    vlm = VLM.load(given.model, dtype="bfloat16", device=given.device)
    samples = [Scenes(n=given.n, kinds=["caption"])[at] for at in range(given.n)]
    talks = [conversation(sample, []) for sample in samples]
    prompts = [vlm.inputs([talk]) for talk in talks]

    def said(inputs: object, head: object = None) -> list[list[int]]:
        ids = vlm.model.generate(
            **inputs, custom_generate=Speculate(head), max_new_tokens=given.most, do_sample=False
        )[:, inputs["input_ids"].shape[1] :]
        stop = set(vlm.stop_ids)
        return [row[: next((at + 1 for at, one in enumerate(row) if one in stop), len(row))] for row in ids.tolist()]

    plain = [said(inputs)[0] for inputs in prompts]
    batches = [said(vlm.inputs(talks[at : at + BATCH])) for at in range(0, len(talks), BATCH)]
    rows = {f"control: plain, batch {BATCH}": [row for batch in batches for row in batch]}
    for name in given.heads:
        head = load_head(name).to(vlm.device, vlm.model.dtype).eval()
        rows[name] = [said(inputs, head)[0] for inputs in prompts]
    print(f"{'against plain decoding':36s} {'answers':>8s} {'differ':>7s} {'ties':>5s} {'not':>4s}  largest gap")
    wrong = 0
    for name, answers in rows.items():
        found = [divergence(vlm.model, i, a, b) for i, a, b in zip(prompts, plain, answers, strict=True)]
        parted = [one for one in found if one is not None]
        ties = sum(one.tie() for one in parted)
        wrong += len(parted) - ties
        gap = max((one.gap for one in parted), default=0.0)
        print(f"{name:36s} {len(found):8d} {len(parted):7d} {ties:5d} {len(parted) - ties:4d}  {gap:.4f}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
