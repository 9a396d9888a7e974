"""Runs a real lmms-eval task with `--model mmaccel` in lmms-eval's own environment, and holds it against our own loop.

    python scripts/lmms_eval_door.py --env ENV --out OUT

ENV is made where it is not there yet: torch, what lmms-eval imports for a task of pictures and words, lmms-eval itself
with --no-deps (its latex2sympy2 and Hydra pin the same package to different versions, and its wandb is an old one), and
this checkout with --no-deps. OUT gets a task (yaml, rule of scoring, a parquet file of drawn scenes) and lmms-eval's
results. Every answer and every count is compared with attach and generate in this process, on the same rows.
"""

import argparse
import json
import os
import subprocess
import sys
import textwrap
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

LMMS_EVAL = "lmms_eval==0.7.3"
# mmaccel's own and, of lmms-eval's, those that its command line, its tasks and its chat models import
PACKAGES = (
    "transformers", "accelerate", "datasets", "pillow", "safetensors", "numpy", "pyyaml", "tqdm",
    "loguru", "pydantic", "pytablewriter", "sacrebleu", "evaluate", "tenacity", "aiohttp", "jinja2", "requests", "pytz",
    "filelock<4",  # lmms-eval 0.7.3 imports filelock._api, which 4 no longer has
)  # fmt: skip
ABSENT = ("hydra", "omegaconf", "wandb", "torchvision", "latex2sympy2")  # the run must not need them
TASK, NEW_TOKENS = "mmaccel_scenes", {"caption": 160}
RUNS = (
    {"pruner": "fastv", "ratio": 0.5},
    {"pruner": "fastv", "ratio": 0.5, "draft": "eagle"},
    {"pruner": "none"},
)
YAML = """
task: {task}_{kind}
dataset_path: parquet
dataset_kwargs:
  data_files:
    test: {rows}
test_split: test
output_type: generate_until
doc_to_visual: !function rules.visual
doc_to_text: question
doc_to_target: answer
process_results: !function rules.score
generation_kwargs:
  max_new_tokens: {most}
  temperature: 0
metric_list:
  - metric: correct
    aggregation: mean
    higher_is_better: true
"""
RULES = """
import json

from mmaccel.benchmarks.base import Sample
from mmaccel.benchmarks.scenes import Scenes


def visual(doc):
    return [doc["image"].convert("RGB")]


def score(doc, results):
    truth = json.loads(doc["truth"])
    sample = Sample("", doc["kind"], None, (doc["question"],), (doc["answer"],), truth=truth)
    return {"correct": Scenes(n=1).score(sample, results)["correct"]}
"""


def build(folder: Path, lmms_eval: str) -> Path:
    """The environment's Python; what is there already stays, this checkout is installed anew."""
    python, made = folder / "bin" / "python", folder / "made_for_the_door"
    if not made.is_file():
        venv.create(folder, with_pip=True)
        pins = [line.split("#")[0].strip() for line in (ROOT / "constraints.txt").read_text().splitlines()]
        install(python, next(pin for pin in pins if pin.startswith("torch==")))
        install(python, "-c", str(ROOT / "constraints.txt"), *PACKAGES)
        install(python, "--no-deps", lmms_eval)
        made.touch()  # last, so that an interrupted installation is taken up again
    install(python, "--no-deps", "--force-reinstall", str(ROOT))
    there = [name for name in ABSENT if called([python, "-c", f"import {name}"], check=False).returncode == 0]
    if there:
        raise RuntimeError(f"{folder}: has {', '.join(there)}, which this run is to show it can do without")
    return python


def install(python: Path, *words: str) -> None:
    called([python, "-m", "pip", "install", "--quiet", *words], online=True)


def called(
    command: Sequence[Any], *, check: bool = True, online: bool = False, **more: Any
) -> subprocess.CompletedProcess[str]:
    """With an environment that does not lead to this checkout; raises with the end of what was said."""
    inherited = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "HF_HUB_OFFLINE")}
    env = inherited | ({} if online else {"HF_HUB_OFFLINE": "1"})
    done = subprocess.run([str(word) for word in command], env=env, capture_output=True, text=True, check=False, **more)
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return done


def samples(kinds: Sequence[str], rows: int) -> dict[str, list[Any]]:
    from mmaccel.benchmarks.scenes import Scenes

    found = {kind: Scenes(n=rows, kinds=[kind], split="door") for kind in kinds}
    return {kind: [scenes[index] for index in range(rows)] for kind, scenes in found.items()}


def write_tasks(folder: Path, asked: Mapping[str, Sequence[Any]]) -> None:
    """One task a kind: they differ in how long an answer may be, and lmms-eval hands all of them over in one call."""
    import datasets

    datasets.disable_progress_bars()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rules.py").write_text(RULES.lstrip(), encoding="utf-8")
    for kind, several in asked.items():
        rows = [
            {
                "image": one.image,
                "question": one.turns[0],
                "answer": one.reference[0],
                "kind": kind,
                "truth": json.dumps(dict(one.truth)),
            }
            for one in several
        ]
        table = datasets.Dataset.from_list(rows).cast_column("image", datasets.Image())
        table.to_parquet(str(folder / f"{kind}.parquet"))
        filled = {"task": TASK, "kind": kind, "rows": folder / f"{kind}.parquet", "most": NEW_TOKENS.get(kind, 12)}
        (folder / f"{TASK}_{kind}.yaml").write_text(YAML.lstrip().format(**filled), encoding="utf-8")


def evaluate(python: Path, out: Path, tasks: Path, kinds: Sequence[str], arguments: Mapping[str, Any]) -> Path:
    """lmms-eval's own command line; returns the folder of its results."""
    said = ",".join(f"{name}={value}" for name, value in {"pretrained": "pico", "device": "cpu", **arguments}.items())
    command = [
        python, "-m", "lmms_eval", "--model", "mmaccel", "--model_args", said, "--include_path", tasks,
        "--tasks", ",".join(f"{TASK}_{kind}" for kind in kinds), "--output_path", out, "--log_samples",
    ]  # fmt: skip
    done = called(command, cwd=out.parent)
    (out.parent / f"{out.name}.log").write_text(done.stdout + done.stderr, encoding="utf-8")
    if not list(out.rglob("*_results.json")):  # lmms-eval ends with 0 whatever happened
        raise RuntimeError(f"lmms-eval left no results:\n{done.stderr[-3000:]}")
    print(f"\n$ python -m lmms_eval --model mmaccel --model_args {said} …")
    print(textwrap.indent("\n".join(line for line in done.stdout.splitlines() if line.startswith("|")), "  "))
    return out


def results(out: Path, kinds: Sequence[str]) -> tuple[dict[str, Any], dict[str, list[dict[str, Any]]]]:
    """(what lmms-eval wrote of the run, kind → its samples in the order of the documents)."""
    summary = json.loads(newest(out, "*_results.json").read_text(encoding="utf-8"))
    found = {}
    for kind in kinds:
        lines = newest(out, f"*_samples_{TASK}_{kind}.jsonl").read_text(encoding="utf-8").splitlines()
        found[kind] = sorted(map(json.loads, lines), key=lambda line: line["doc_id"])
    return summary, found


def newest(folder: Path, pattern: str) -> Path:
    return max(folder.rglob(pattern), key=lambda file: file.stat().st_mtime)


def ours(vlm: Any, sample: Any, most: int, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The same request through attach and generate, in this process."""
    from contextlib import nullcontext

    from mmaccel import registry
    from mmaccel.attach import attach
    from mmaccel.decoding.speculate import Speculate

    budget = {"ratio": arguments["ratio"]} if "ratio" in arguments else {}
    pruner = None if arguments["pruner"] == "none" else registry.build("pruner", arguments["pruner"], budget)
    head = registry.build("draft", arguments["draft"]).to(vlm.model.dtype).eval() if "draft" in arguments else None
    parts = [{"type": "image", "image": sample.image}, {"type": "text", "text": sample.turns[0]}]
    inputs, loop = vlm.inputs([[{"role": "user", "content": parts}]]), Speculate(head)
    with nullcontext() if pruner is None else attach(vlm.model, pruner) as attachment:
        out = vlm.model.generate(**inputs, do_sample=False, max_new_tokens=most, custom_generate=loop)
    ids = out[0, inputs["input_ids"].shape[1] :]
    kept = inputs.visual_tokens[0] if attachment is None else int(attachment.events[0].stops[-1].visual[0])
    text = vlm.tokenizer.decode(ids, skip_special_tokens=True).strip()
    return {
        "text": text, "tokens": len(ids), "kept": kept, "emitted": loop.stats.emitted, "steps": loop.stats.steps,
    }  # fmt: skip


def compare(
    summary: Mapping[str, Any], theirs: Mapping[str, Sequence[Any]], mine: Mapping[str, Sequence[Any]]
) -> list[str]:
    """What differs; empty where every answer, length and count is the same."""
    wrong = []
    for kind, several in mine.items():
        for line, own in zip(theirs[kind], several, strict=True):
            got = (line["filtered_resps"], line["token_counts"][0]["output_tokens"])
            if got != (own["text"], own["tokens"]):
                wrong.append(f"{kind} {line['doc_id']}: got {got}, our own loop {(own['text'], own['tokens'])}")
    every = [own for several in mine.values() for own in several]
    sums = {name: sum(own[name] for own in every) for name in ("tokens", "kept", "emitted", "steps")}
    expected = {
        "total_gen_tokens": sums["tokens"], "avg_visual_tokens_kept": sums["kept"] / len(every),
        "avg_tau": sums["emitted"] / sums["steps"], "avg_failed_requests": 0,
    }  # fmt: skip
    said = summary["throughput"]
    return wrong + [
        f"{name}: got {said[name]}, expected {value}" for name, value in expected.items() if said[name] != value
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--env", type=Path, required=True, help="folder of lmms-eval's environment, made where missing")
    parser.add_argument("--out", type=Path, required=True, help="folder of the task and the results")
    parser.add_argument("--rows", type=int, default=6, help="of each kind")
    parser.add_argument("--kinds", nargs="+", default=["exist", "count", "caption"], help="of the drawn scenes")
    parser.add_argument("--lmms-eval", default=LMMS_EVAL, help="a requirement, or a wheel")
    chosen = parser.parse_args()
    python, out = build(chosen.env.resolve(), chosen.lmms_eval), chosen.out.resolve()
    asked = samples(chosen.kinds, chosen.rows)
    write_tasks(out / "task", asked)

    from mmaccel.models.load import VLM

    vlm, wrong = VLM.load("pico"), []
    for number, arguments in enumerate(RUNS):
        folder = evaluate(python, out / f"run{number}", out / "task", chosen.kinds, arguments)
        summary, theirs = results(folder, chosen.kinds)
        mine = {
            kind: [ours(vlm, sample, NEW_TOKENS.get(kind, 12), arguments) for sample in several]
            for kind, several in asked.items()
        }
        differ = compare(summary, theirs, mine)
        print(f"  {sum(map(len, mine.values()))} answers and their counts against our own loop: {differ or 'equal'}")
        wrong += differ
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
