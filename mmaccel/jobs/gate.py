"""What is refused before the first point: settings, checkpoints, pictures and pruners that cannot work.

Reads small files only; what needs the loaded model is reaches.py's.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mmaccel import registry
from mmaccel.benchmarks.base import Benchmark, Sample
from mmaccel.jobs.conversation import conversation
from mmaccel.jobs.drafts import that_are_asked
from mmaccel.jobs.points import Point
from mmaccel.jobs.quality import behind_gate
from mmaccel.models.checkpoint import checkpoint
from mmaccel.models.fit import check_fit
from mmaccel.models.inputs import Inputs, Processor
from mmaccel.models.load import load_options

FROM_MACHINE = ("dtype", "device", "attention")


@dataclass(frozen=True)
class Plan:
    """All that a run needs and that stood the checks. model: its node, with the machine's settings filled in."""

    benchmark: Benchmark
    size: int
    model: Mapping[str, Any]
    pruners: Mapping[str, Any]
    first: Sample | None = None  # the first that can be read
    heads: Mapping[str, Any] = field(default_factory=dict)  # of the points that draft
    points: tuple[Point, ...] = ()  # those whose kinds of question the benchmark asks


def checked_plan(config: Mapping[str, Any], points: list[Point], foreign: bool) -> Plan:
    """Raises ValueError, naming what was given and what is valid, for whatever cannot work."""
    for point in points:
        point.pruner(foreign=foreign)  # budgets out of range, before any file is read
    limit, least = (checked_limit(config["sampler"], name) for name in ("max_new_tokens", "min_new_tokens"))
    benchmark = registry.instantiate(config["benchmark"], foreign=foreign)
    size, points = limited(benchmark, config["limit"]), that_are_asked(points, benchmark)
    model = model_node(config)
    found = checkpoint(model["path"], model.get("revision"))
    processor = Processor.load(
        found.folder, max_pixels=model.get("max_pixels"), trust_remote_code=bool(model.get("trust_remote_code")),
        settings=model.get("image_processor"),
    )  # fmt: skip
    load_options(model["dtype"], model["device"], model["attention"], model.get("quantization"))
    depth = processor.layout.config.get_text_config().num_hidden_layers
    pruners = {point.name: point.pruner(depth, foreign) for point in points}
    heads = draft_heads(points, processor.layout.config.get_text_config(), foreign)
    benchmark, size = behind_gate(benchmark, size, config["quality"], foreign)
    sample, inputs = first_readable(benchmark, size, processor)
    visual, most = inputs.visual_tokens[0], limit or benchmark.max_new_tokens
    if least and least > most:
        raise ValueError(f"sampler.min_new_tokens: got {least}, valid are null and at most max_new_tokens = {most}")
    check_fit(
        model["path"], dtype=model["dtype"], device=model["device"], visual_tokens=visual,
        text_tokens=inputs.prompt_tokens[0] - visual, max_new_tokens=most,
        quantization=model.get("quantization"), revision=model.get("revision"),
    )  # fmt: skip
    return Plan(benchmark, size, model, pruners, sample, heads, tuple(points))


def draft_heads(points: list[Point], text: Any, foreign: bool) -> dict[str, Any]:
    """Point → its head, each draft built once and held against the target's config."""
    nodes = {point.draft[0]: point.draft[1] for point in points if point.draft}
    built = {name: registry.instantiate(node, foreign=foreign) for name, node in nodes.items()}
    for name, head in built.items():
        head.fits(text.hidden_size, text.vocab_size)
        if head.looks is not None and head.looks >= text.num_hidden_layers:
            valid = f"0 … {text.num_hidden_layers - 1}"
            raise ValueError(f"draft.layer of {name}: got {head.looks}, the model's layers are {valid}")
        if head.pruner and any(point.node and point.draft and point.draft[0] == name for point in points):
            raise ValueError(f"draft.pruner of {name}: got one where the target is pruned too; valid is either")
    return {point.name: built[point.draft[0]] for point in points if point.draft}


def checked_limit(sampler: Mapping[str, Any], name: str) -> int | None:
    tokens = sampler.get(name)
    if tokens is not None and (isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 1):
        raise ValueError(f"sampler.{name}: got {tokens!r}, valid are null and whole numbers from 1 on")
    return tokens


def first_readable(benchmark: Benchmark, size: int, processor: Processor) -> tuple[Sample, Inputs]:
    """The first sample that becomes a prompt; those before it become error records. Raises where none does."""
    said: list[str] = []
    for index in range(size):
        try:
            sample = benchmark[index]
            return sample, processor.inputs([conversation(sample, [""] * (len(sample.turns) - 1))])
        except (ValueError, OSError, SyntaxError) as error:
            said.append(f"{type(error).__name__}: {error}")
    raise ValueError(f"benchmark {benchmark.name}: none of {size} samples can be read; the first said: {said[0]}")


def model_node(config: Mapping[str, Any]) -> dict[str, Any]:
    """The model's yaml; where it leaves dtype, device or attention open, the machine's."""
    node, machine = dict(config["model"]), config["machine"]
    for name in FROM_MACHINE:
        if node.get(name) is None:
            node[name] = machine[name]
    return node


def limited(benchmark: Benchmark, limit: int | None) -> int:
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise ValueError(f"limit: got {limit!r}, valid are null and whole numbers from 1 on")
    if not len(benchmark):
        raise ValueError(f"benchmark {benchmark.name}: no sample is left after its filters")
    if limit is None:
        return len(benchmark)
    asked = benchmark.whole(min(limit, len(benchmark)))
    if asked < min(limit, len(benchmark)):
        print(f"limit={limit}: {asked} samples are asked, so that none is cut off from its group", file=sys.stderr)
    return asked
