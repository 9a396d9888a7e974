"""One request: a sample's turn through one point, timed from the picture's bytes to the last token, as one record.

Knows a loaded VLM, attach and the decoding loop. Does not know which points there are, nor where records go.
A later turn is a new request that carries the whole conversation, as a server without a session sees it.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from mmaccel.attach import attach
from mmaccel.benchmarks.base import Benchmark, Box, Sample
from mmaccel.benchmarks.wire import all_bytes, from_bytes
from mmaccel.decoding.sampling import generate_options
from mmaccel.decoding.speculate import Speculate
from mmaccel.jobs.conversation import conversation, dice
from mmaccel.jobs.facts import account, evidence, megabytes, merges
from mmaccel.jobs.features import Shared, timed_features
from mmaccel.jobs.pictures import seen_box, within
from mmaccel.jobs.timing import UNTIMED, counters, timings
from mmaccel.measure.clock import Clock
from mmaccel.measure.cost import Geometry


@dataclass
class Asker:
    """sampler: what generate is given. The point's pruner is attached for the request alone."""

    vlm: Any
    benchmark: Benchmark
    sampler: Mapping[str, Any]
    seed: int = 0
    shared: Shared = field(default_factory=Shared, init=False)
    geometry: Geometry = field(init=False)

    def __post_init__(self) -> None:
        self.geometry = Geometry.of(self.vlm.model.config)
        self.device = self.vlm.model.device

    def ask(
        self, pruner: Any | None, sample: Sample, said: Sequence[str], limit: int | None = None, timed: bool = True,
        head: Any | None = None,
    ) -> tuple[dict[str, Any], Any]:  # fmt: skip
        """(the record's measured part, the pruning event) of the turn that follows the replies in `said`.

        Where it is not timed, preprocessing and the tower's work are shared with the requests before, without times."""
        clock, data = Clock(self.device), all_bytes(sample) if timed else []
        dealt = dice(self.seed, sample.id, len(said))
        speculate = Speculate(head, tokenizer=self.vlm.tokenizer, seed=dealt, clock=clock)
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        around = timed_features(self.vlm.model, clock) if timed else self.sharing(pruner)
        with around as entered, attached(self.vlm.model, pruner) as events:
            began = time.perf_counter()
            with clock.stage("preprocess"):
                inputs = self.inputs(data, sample, said) if timed else self.shared.prompt(self.inputs, sample, said)
            options = self.options(limit)
            self.check_room(inputs.prompt_tokens[0], options["max_new_tokens"])
            sequences = self.vlm.model.generate(**inputs, **options, custom_generate=speculate)
            ids = sequences[0, inputs["input_ids"].shape[1] :].tolist()
            text = self.vlm.tokenizer.decode(ids, skip_special_tokens=True).strip()
            ended = time.perf_counter()
        if pruner is not None and not events:
            raise RuntimeError("the pruner never fired: no forward of this request brought a picture to its stations")
        event, stats = (events[0] if events else None), speculate.stats
        book, tokens = account(self.geometry, inputs.prompt_tokens[0], inputs.visual_tokens[0], event, len(ids))
        times = {"began": began, "ended": ended, "vision": entered[0] if entered else None}
        boxes = within(sample.region[len(said)], self.seen(sample)) if len(sample.region) > len(said) else ()
        return {
            "prediction": text, "ids": ids, "finish": stats.finish[0], "tokens": tokens,
            "kv_fraction": book.kv_fraction, "mac_fraction": book.mac_fraction,
            **(timings(clock.ms(), event, stats, times, len(ids)) if timed else UNTIMED),
            "memory_mb": self.memory(book, timed, head), "spec": counters(stats, speculate.laws),
            "evidence": None if merges(pruner) else evidence(event, boxes),
            "prompt_hash": inputs.prompt_hash[0], "processor_hash": self.vlm.processor.hash,
        }, event  # fmt: skip

    def inputs(self, data: Sequence[bytes], sample: Sample, said: Sequence[str]) -> Any:
        return self.vlm.inputs([conversation(sample, said, [from_bytes(one) for one in data])])

    def sharing(self, pruner: Any | None) -> Any:
        """A pruner that watches the tower's layers runs it itself."""
        watches = pruner is not None and pruner.needs(self.geometry.layers).vision_layers
        return nullcontext() if watches else self.shared.features(self.vlm.model)

    def seen(self, sample: Sample) -> Box:
        return seen_box(sample.image, self.vlm.processor.image_processor)

    def options(self, limit: int | None) -> dict[str, Any]:
        given = generate_options(self.sampler)
        most = given.pop("max_new_tokens", self.benchmark.max_new_tokens)
        if limit:
            given.pop("min_new_tokens", None)  # of a warm-up, which may end earlier
        return given | {"max_new_tokens": min(most, limit) if limit else most}

    def check_room(self, prompt: int, most: int) -> None:
        if prompt + most > self.vlm.processor.context:
            raise ValueError(
                f"the prompt has {prompt} tokens, with max_new_tokens={most} they make {prompt + most}, the model's "
                f"context is {self.vlm.processor.context}"
            )

    def memory(self, book: Any, timed: bool, head: Any | None) -> dict[str, float | None]:
        value_bytes = next(iter(self.vlm.model.parameters())).element_size()
        cuda = timed and self.device.type == "cuda"
        peak = torch.cuda.max_memory_allocated(self.device) / 1e6 if cuda else None  # the processor's cannot be reset
        weights = megabytes(self.vlm.model) + (megabytes(head) if head is not None else 0.0)
        return {"weights": weights, "kv": book.kv_bytes(value_bytes) / 1e6, "vision_cache": None, "peak": peak}


@contextmanager
def attached(model: Any, pruner: Any | None) -> Iterator[list[Any]]:
    """The events of the block; the baseline has nothing attached at all."""
    with nullcontext() if pruner is None else attach(model, pruner) as attachment:
        yield [] if attachment is None else attachment.events
