"""The door for lmms-eval: `--model mmaccel`, a chat model of theirs with our attach and decoding loop underneath.

Lives in lmms-eval's own environment, without Hydra and W&B. Knows their requests, a loaded VLM and the registry. Does
not know tasks, scores or run folders. Requests run one at a time, each with its own generation settings.
"""

import os
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import yaml
from lmms_eval.api.instance import GenerationResult, TokenCounts
from lmms_eval.api.model import lmms
from tqdm import tqdm

from mmaccel import registry
from mmaccel.attach import attach
from mmaccel.decoding.speculate import Speculate
from mmaccel.decoding.stats import Stats
from mmaccel.measure.clock import Clock
from mmaccel.measure.cost import visual_per_layer
from mmaccel.models.load import VLM

# What else of theirs is needed is imported where it is used: it imports lmms_eval.models, which loads this module.

OWN = (
    "pretrained", "pruner", "draft", "draft_<field>", "conf", "dtype", "device", "attention", "quantization",
    "revision", "max_pixels", "trust_remote_code", "batch_size", "max_batch_size",
)  # fmt: skip
BUDGET = ("ratio", "keep", "tokens", "mean_tokens")
READ = ("max_new_tokens", "do_sample", "temperature", "top_p", "top_k", "repetition_penalty", "num_beams", "until")
MOST = 1024  # new tokens, where the task does not say
FILLER = ["\n\n"]  # what lmms-eval puts in `until` where a task says nothing; it would cut every longer answer
PATIENCE = 8  # so many failures with no answer at all are a mistake of the settings
FAILURES = (ValueError, OSError, SyntaxError, torch.OutOfMemoryError)  # of one document; Pillow raises SyntaxError


def manifest() -> Any:
    """What the entry point gives lmms-eval's registry."""
    from lmms_eval.models.registry_v2 import ModelManifest

    return ModelManifest(model_id="mmaccel", chat_class_path=f"{MMAccel.__module__}.{MMAccel.__qualname__}")


@dataclass(frozen=True)
class Asked:
    """One of their requests: where its document is, what becomes messages, and what `generate` is given."""

    task: str
    split: str
    document: Any
    messages: Any  # their doc_to_messages
    options: Mapping[str, Any]
    stops: tuple[str, ...]

    @classmethod
    def of(cls, request: Any) -> "Asked":
        _, messages, given, document, task, split = request.args
        try:
            return cls(task, split, document, messages, options(given or {}), stops((given or {}).get("until")))
        except ValueError as wrong:
            raise ValueError(f"task {task}, document {document}: {wrong}") from wrong


@dataclass(frozen=True)
class Reply:
    """kept: (layer, visual tokens from it on) per station, empty where nothing was attached or shown."""

    text: str
    prompt: int
    generated: int
    visual: int
    kept: tuple[tuple[int, int], ...]
    stats: Stats
    seconds: float  # of generate
    stages: Mapping[str, float]  # ms


@dataclass
class Tally:
    """Sums over the requests of one call; every mean is divided once, in `metrics`."""

    depth: int
    failed: int = 0
    sums: dict[str, float] = field(default_factory=dict)

    def count(self, name: str, value: float = 1) -> None:
        self.sums[name] = self.sums.get(name, 0) + value

    def add(self, reply: Reply) -> None:
        stats = reply.stats
        counted = {
            "requests": 1, "tokens": reply.generated, "seconds": reply.seconds, "steps": stats.steps,
            "emitted": stats.emitted, "drafted": stats.drafted, "accepted": stats.accepted,
        }  # fmt: skip
        counted |= {f"{name}_ms": ms for name, ms in reply.stages.items()}
        if reply.visual:
            per_layer = sum(visual_per_layer(self.depth, reply.visual, reply.kept)) / self.depth
            last = reply.kept[-1][1] if reply.kept else reply.visual
            counted |= {"shown": 1, "visual": reply.visual, "kept": last, "per_layer": per_layer}
        for name, value in counted.items():
            self.count(name, value)

    def fail(self, asked: Asked, error: Exception) -> None:
        """Notes it and goes on, unless nothing has worked so far."""
        self.failed += 1
        said = f"task {asked.task}, document {asked.document}: {type(error).__name__}: {error}"
        if self.failed >= PATIENCE and not self.sums.get("requests"):
            raise RuntimeError(f"the first {self.failed} requests all failed; the last one: {said}") from error
        warnings.warn(f"{said} (answered with an empty string)", stacklevel=2)

    def metrics(self) -> dict[str, float]:
        """For the throughput channel. It averages over calls, so a ratio's two sums stand beside it."""
        said = {"total_requests": self.get("requests"), "failed_requests": self.failed}
        said |= {f"spec_{name}": self.get(name) for name in ("emitted", "steps", "drafted", "accepted")}
        named = {"visual_tokens": "visual", "visual_tokens_kept": "kept", "visual_tokens_per_layer": "per_layer"}
        ratios = {name: (part, "shown") for name, part in named.items()}
        ratios |= {"tau": ("emitted", "steps"), "alpha": ("accepted", "drafted")}
        ratios |= {name: (name, "requests") for name in self.sums if name.endswith("_ms")}
        return said | {name: self.get(a) / self.get(b) for name, (a, b) in ratios.items() if self.get(b)}

    def get(self, name: str) -> float:
        return self.sums.get(name, 0)


class MMAccel(lmms):
    """lmms-eval's chat model. `fields`: those of draft_… are the draft's, all others the pruner's.

    conf: a folder laid out as mmaccel's conf/, whose pruner/*.yaml and draft/*.yaml may be named too.
    dtype, device, attention: None = CUDA where there is one, and conf/machine's settings for it.
    """

    is_simple = False

    def __init__(
        self,
        pretrained: str,
        pruner: str | None = None,
        draft: str | None = None,
        conf: str | None = None,
        dtype: str | None = None,
        device: str | None = None,
        attention: str | None = None,
        quantization: str | None = None,
        revision: str | None = None,
        max_pixels: int | None = None,
        trust_remote_code: bool = False,
        batch_size: int | str = 1,
        max_batch_size: int | None = None,
        **fields: Any,
    ) -> None:
        super().__init__()
        if str(batch_size) not in ("1", "auto"):
            raise ValueError(f"batch_size: got {batch_size!r}, valid is 1: requests run one at a time")
        if not isinstance(revision, str | None):
            raise ValueError(f"revision: got the number {revision!r}, valid is a name or a whole commit hash")
        search = [conf] if conf else []
        of_draft = {name.removeprefix("draft_"): value for name, value in fields.items() if name.startswith("draft_")}
        of_pruner = {name: value for name, value in fields.items() if not name.startswith("draft_")}
        self.pruner = built("pruner", pruner, of_pruner, search)
        self.head = built("draft", draft, of_draft, search)
        if self.pruner is not None and getattr(self.head, "pruner", None):
            raise ValueError("draft_pruner: got one where the target is pruned too; valid is either")
        device = placed(device)
        machine = registry.load("machine", device.partition(":")[0])
        self.vlm = VLM.load(
            pretrained, dtype=dtype or machine["dtype"], device=device, attention=attention or machine["attention"],
            quantization=quantization, revision=revision, max_pixels=max_pixels, trust_remote_code=trust_remote_code,
        )  # fmt: skip
        self.device = self.vlm.device
        text = self.vlm.model.config.get_text_config()
        self.depth = text.num_hidden_layers
        if self.head is not None:
            self.head.fits(text.hidden_size, text.vocab_size)
            self.head.to(self.device, self.vlm.model.dtype).eval()
        with self.attached():  # raises here for a layer beyond the depth, not at the first request
            pass

    def attached(self) -> Any:
        return nullcontext() if self.pruner is None else attach(self.vlm.model, self.pruner)

    def generate_until(self, requests: Sequence[Any]) -> list[Any]:
        return [
            GenerationResult(said[-1].text, TokenCounts(input_tokens=said[-1].prompt, output_tokens=said[-1].generated))
            if whole
            else GenerationResult("")
            for said, whole in self.through(requests, self.only)
        ]

    def generate_until_multi_round(self, requests: Sequence[Any]) -> list[list[str]]:
        """Per request what was said in each round, "" in one that failed, which is then the last."""
        return [
            [reply.text for reply in said] + ([] if whole else [""])
            for said, whole in self.through(requests, self.rounds)
        ]

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        raise NotImplementedError(
            "loglikelihood: mmaccel measures what a model generates; it has no score of a given continuation. Use the "
            "task's generate_until variant"
        )

    def through(self, requests: Sequence[Any], turns: Any) -> list[tuple[list[Reply], bool]]:
        """Per request the replies to its turns, and whether all of them were answered; logs the metrics of the call."""
        every = [Asked.of(request) for request in requests]  # settings are refused before anything runs
        tally, found = Tally(self.depth), []
        for asked in tqdm(every, desc="mmaccel", disable=self.rank != 0):
            said: list[Reply] = []
            whole = True
            try:
                for messages in turns(asked, said):
                    said.append(self.ask(messages, asked))
                    tally.add(said[-1])
            except FAILURES as error:
                whole = False
                tally.fail(asked, error)
            found.append((said, whole))
        log(tally)
        return found

    def only(self, asked: Asked, said: Sequence[Reply]) -> Iterator[Any]:
        yield asked.messages(self.task_dict[asked.task][asked.split][asked.document])

    def rounds(self, asked: Asked, said: Sequence[Reply]) -> Iterator[Any]:
        """The task's messages round by round; from the second on it is shown what was said, and says when it ends."""
        document = self.task_dict[asked.task][asked.split][asked.document]
        yield asked.messages(document)
        facts = None
        while True:
            texts = [reply.text for reply in said]
            given = asked.messages(document, round_idx=len(said), previous_output=texts, previous_round_info=facts)
            if not (isinstance(given, tuple) and len(given) == 4):
                return
            messages, last, _, facts = given
            if last:
                return
            yield messages

    def ask(self, messages: Any, asked: Asked) -> Reply:
        from lmms_eval.protocol import ChatMessages

        clock = Clock(self.device)
        with clock.stage("preprocess"):
            inputs = self.vlm.inputs([ChatMessages(messages=messages).to_hf_messages()])
        prompt, visual = inputs.prompt_tokens[0], inputs.visual_tokens[0]
        most = min(asked.options["max_new_tokens"], self.vlm.processor.context - prompt)
        if most < 1:
            raise ValueError(f"the prompt has {prompt} tokens and fills the model's context, nothing can be said")
        loop = Speculate(self.head, tokenizer=self.vlm.tokenizer, stop_strings=asked.stops, clock=clock)
        with self.attached() as attachment:
            began = time.perf_counter()
            settings = {**asked.options, "max_new_tokens": most}
            sequences = self.vlm.model.generate(**inputs, **settings, custom_generate=loop)
            ids = sequences[0, inputs["input_ids"].shape[1] :].tolist()
            ended = time.perf_counter()
        event = attachment.events[0] if attachment is not None and attachment.events else None
        if attachment is not None and visual and event is None:
            raise RuntimeError("the pruner never fired: no forward of this request brought a picture to its stations")
        kept = tuple((stop.layer, int(stop.visual[0])) for stop in event.stops) if event is not None else ()
        visual = int(event.visual[0]) if event is not None else visual  # of them those that may be pruned
        text = before(self.vlm.tokenizer.decode(ids, skip_special_tokens=True), asked.stops).strip()
        times = stages(clock, event, loop.stats, began, ended)
        return Reply(text, prompt, len(ids), visual, kept, loop.stats, ended - began, times)

    def clean(self) -> None:
        """lmms-eval asks for the memory back after the last request; a VLM is no module that it would find."""
        del self.vlm, self.head
        super().clean()


def built(group: str, name: str | None, given: Mapping[str, Any], search: Sequence[Any]) -> Any | None:
    """The object of a yaml with these fields; None for "none". Raises ValueError, with all valid names."""
    if name in (None, "none"):
        if given:
            names = ", ".join(registry.names(group, search))
            raise ValueError(
                f"model_args: got {', '.join(given)} without {group}=, valid for {group} are {names}; the arguments "
                f"that are no {group}'s are {', '.join(OWN)}"
            )
        return None
    values, node = {key: scalar(value) for key, value in given.items()}, registry.load(group, str(name), search)
    if any(values.get(dial) is not None for dial in BUDGET):  # in the place of the one that the yaml sets
        values = {dial: None for dial in BUDGET if dial in node} | values
    try:
        return registry.build(group, str(name), values, search=search)
    except (TypeError, ValueError) as wrong:  # a TypeError where what is built hands unknown fields on
        keys = ", ".join(key for key in node if not key.startswith("_"))
        raise ValueError(
            f"model_args, {group}={name}: {wrong}. Its yaml has {keys}; what is no {group}'s: {', '.join(OWN)}"
        ) from wrong


def scalar(value: Any) -> Any:
    """What stands in a yaml; lmms-eval hands numbers, true and false over as such, and all else as text."""
    return yaml.safe_load(value) if isinstance(value, str) else value


def placed(device: str | None) -> str:
    """A process of several takes the CUDA device of its own rank."""
    device = str(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    return f"cuda:{os.environ['LOCAL_RANK']}" if device == "cuda" and "LOCAL_RANK" in os.environ else device


def options(given: Mapping[str, Any]) -> dict[str, Any]:
    """What `generate` is given for a task's generation_kwargs; of what they leave open the checkpoint decides.

    A temperature, where given, says whether tokens are drawn (above 0), else do_sample does, as in lmms-eval's own
    Hugging Face model.
    """
    for name in sorted(set(given) - set(READ)):
        warnings.warn(f"generation_kwargs: {name} is not read, valid are {', '.join(READ)}", stacklevel=2)
    if given.get("num_beams") not in (None, 1):
        raise ValueError(f"generation_kwargs.num_beams: got {given['num_beams']!r}, valid is 1")
    most = given.get("max_new_tokens")
    most = MOST if most is None else most
    if isinstance(most, bool) or most != int(most) or most < 1:
        raise ValueError(f"generation_kwargs.max_new_tokens: got {most!r}, valid are whole numbers from 1 on")
    heat = given.get("temperature")
    drawn = bool(given.get("do_sample")) if heat is None else float(heat) > 0
    names = ("repetition_penalty", *(("temperature", "top_p", "top_k") if drawn else ()))
    chosen = {name: given[name] for name in names if given.get(name) is not None}
    return {"do_sample": drawn, "max_new_tokens": int(most)} | chosen


def stops(until: Any) -> tuple[str, ...]:
    """The strings that end an answer."""
    listed = [until] if isinstance(until, str) else list(until or [])
    return () if listed == FILLER else tuple(stop for stop in listed if stop)


def before(text: str, ends: Sequence[str]) -> str:
    """The text up to the first stop string in it."""
    return text[: min((at for at in (text.find(end) for end in ends) if at >= 0), default=len(text))]


def stages(clock: Clock, event: Any | None, stats: Stats, began: float, ended: float) -> dict[str, float]:
    """ms; the vision tower's time is in prefill, a head's in draft, and what of decode is neither is the loop's own."""
    taken = clock.ms()
    prune = {} if event is None else {"prune": sum(stop.prune_ms for stop in event.stops)}
    first = 1e3 * (stats.first_token_at - began)
    decode = 1e3 * (ended - began) - first - taken.get("draft", 0.0) - taken.get("verify", 0.0)
    return taken | prune | {"prefill": first - prune.get("prune", 0.0), "decode": decode}


def log(tally: Tally) -> None:
    """Into results["throughput"], where lmms-eval puts avg_ in front of each name."""
    from lmms_eval.models.model_utils.gen_metrics import log_metrics

    tokens, seconds = tally.get("tokens"), tally.get("seconds")
    log_metrics(
        total_elapsed_time=seconds, total_gen_tokens=int(tokens), avg_speed=tokens / seconds if seconds else 0.0,
        additional_metrics=tally.metrics(),
    )  # fmt: skip
