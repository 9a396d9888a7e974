#!/usr/bin/env python
"""Train, export and evaluate pico, the embedded model.

  train     train_pico.py --out RUN [--seed 0] [--budget 1.0] [--workers 2]      start from nothing
            train_pico.py --out RUN --resume                                     go on from RUN/checkpoint.pt
  export    train_pico.py --out RUN --export DIR                                 write the Hugging Face folder
  evaluate  train_pico.py --evaluate DIR --n 330 [--grey]                        accuracy per kind on held-out scenes

A run may be paused (kill -STOP, -CONT) or ended (kill -TERM: saves and exits) at any time. `echo 20000 > RUN/anneal`
lets the learning rate fall to 0 over the next 20000 samples and then ends the run; `touch RUN/skip` ends the stage.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parent.parent)]

from pico.model import Shape  # noqa: E402
from pico.train import STAGES, Trainer  # noqa: E402


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, default=Path("pico-run"), help="run folder: checkpoint.pt, log.jsonl, control files"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the weights and of the stream of pictures")
    parser.add_argument("--init", type=Path, metavar="DIR", help="begin with the weights of an exported folder")
    parser.add_argument("--begin", default=STAGES[0].name, metavar="NAME", help="the stage that --init begins with")
    parser.add_argument("--resume", action="store_true", help="go on from OUT/checkpoint.pt")
    parser.add_argument("--budget", type=float, default=1.0, help="multiplies every stage's number of samples")
    parser.add_argument(
        "--stage",
        action="append",
        default=[],
        metavar="NAME=SAMPLES",
        help=f"length of one stage ({', '.join(s.name for s in STAGES)})",
    )
    parser.add_argument("--workers", type=int, default=2, help="single-thread processes")
    parser.add_argument("--save-every", type=float, default=180, help="seconds between checkpoints")
    parser.add_argument(
        "--export", type=Path, metavar="DIR", help="only write OUT/checkpoint.pt as a Hugging Face folder"
    )
    parser.add_argument("--evaluate", type=Path, metavar="DIR", help="only measure an exported folder")
    parser.add_argument("--n", type=int, default=330, help="held-out pictures to evaluate on")
    parser.add_argument("--test-seed", type=int, default=0, help="of the held-out pictures")
    parser.add_argument("--kinds", nargs="*", help="kinds to evaluate, default all")
    parser.add_argument("--batch", type=int, default=8, help="of the evaluation")
    parser.add_argument("--grey", action="store_true", help="evaluate with a grey picture in place of the real one")
    parser.add_argument("--pruner", nargs="+", metavar="NAME [KEY=VALUE]", help="evaluate under it: fastv ratio=0.9")
    return parser.parse_args()


def staged(budget: float, lengths: list[str]) -> tuple:
    """The recipe's stages with the lengths asked for."""
    own = dict(item.split("=") for item in lengths)
    unknown = set(own) - {stage.name for stage in STAGES}
    if unknown:
        raise SystemExit(f"--stage: got {sorted(unknown)}, valid are {[stage.name for stage in STAGES]}")
    return tuple(replace(stage, samples=int(float(own.get(stage.name, stage.samples * budget)))) for stage in STAGES)


def main() -> None:
    a = arguments()
    if a.export:
        from pico.export import export

        print(json.dumps(export(a.out / "checkpoint.pt", a.export), indent=1))
        return
    if a.evaluate:
        import torch
        from pico.evaluate import evaluate

        torch.set_num_threads(a.workers)
        print(json.dumps(evaluate(a.evaluate, a.n, a.test_seed, a.batch, not a.grey, a.kinds, a.pruner), indent=1))
        return
    trainer = Trainer(a.out, a.seed, a.workers, staged(a.budget, a.stage), Shape(), a.save_every)
    trainer.start()
    if a.init:
        trainer.begin_from(a.init, a.begin)
    if a.resume:
        trainer.resume(a.out / "checkpoint.pt")
    trainer.run()


if __name__ == "__main__":
    main()
