"""Does a checkpoint fit: bytes against free memory and tokens against the context, before anything is loaded.

Counts weights and the key-value cache. Does not count activations, the tower's included, so a run that passes can still
run out on a device with little to spare; one that is refused would certainly have.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import torch

from mmaccel.measure.cost import Geometry, kv_bytes
from mmaccel.models.checkpoint import Checkpoint, checkpoint
from mmaccel.models.load import DTYPES, KEPT_WHOLE, QUANTIZATIONS

GIB = 1 << 30
WIDTH = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0}  # bytes a value
QUANTIZED = {"int8": 1.0, "nf4": 0.5 + 4 / 64}  # bytes a weight; nf4 keeps a float per 64 of them
CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Weights:
    """Values in a checkpoint: those that quantisation can narrow, the others, and, already quantised, its bytes."""

    linear: int  # weights of the decoder's linear layers
    other: int
    fixed: int | None = None

    def bytes(self, dtype: str, quantization: str | None) -> float:
        if self.fixed is not None:
            return float(self.fixed)
        narrow = QUANTIZED[quantization] if quantization else WIDTH[dtype]
        return self.linear * narrow + self.other * WIDTH[dtype]


@dataclass(frozen=True)
class Fit:
    """One load and its longest conversation. `free` is None where it cannot be read."""

    name: str
    weights: Weights
    geometry: Geometry
    context: int
    dtype: str
    device: str
    quantization: str | None
    visual_tokens: int
    text_tokens: int
    max_new_tokens: int
    batch: int
    free: int | None

    @property
    def tokens(self) -> int:
        return self.visual_tokens + self.text_tokens + self.max_new_tokens

    @property
    def weight_bytes(self) -> float:
        return self.weights.bytes(self.dtype, self.quantization)

    @property
    def cache_bytes(self) -> float:
        return kv_bytes(self.geometry, [self.batch * self.tokens] * self.geometry.layers, WIDTH[self.dtype])

    @property
    def needed(self) -> float:
        return self.weight_bytes + self.cache_bytes

    @property
    def fits(self) -> bool:
        return self.free is None or self.needed <= self.free


def check_fit(
    path: str | Path,
    *,
    dtype: str | None = None,
    device: str | None = None,
    visual_tokens: int,
    text_tokens: int,
    max_new_tokens: int,
    batch: int = 1,
    quantization: str | None = None,
    revision: str | None = None,
) -> Fit:
    """Raises with the numbers and the flags that would fit. Counts are those of the longest row."""
    if dtype is not None and dtype not in DTYPES:
        raise ValueError(f"model.dtype: got {dtype!r}, valid are {', '.join(DTYPES)}")
    if quantization is not None and quantization not in QUANTIZATIONS:
        raise ValueError(f"model.quantization: got {quantization!r}, valid are null, {', '.join(QUANTIZATIONS)}")
    found = checkpoint(path, revision)
    text = text_config(found)
    fit = Fit(
        name=found.source,
        weights=weights(found),
        geometry=Geometry.of(text),
        context=text.max_position_embeddings,
        dtype=dtype or "float32",
        device=device or "cpu",
        quantization=quantization,
        visual_tokens=visual_tokens,
        text_tokens=text_tokens,
        max_new_tokens=max_new_tokens,
        batch=batch,
        free=free_memory(device or "cpu"),
    )
    check_context(fit)
    check_memory(fit)
    return fit


def check_context(fit: Fit) -> None:
    if fit.tokens <= fit.context:
        return
    room = fit.context - fit.visual_tokens - fit.text_tokens
    way = f"Would fit: sampler.max_new_tokens={room}" if room > 0 else "Only smaller or fewer pictures would fit"
    raise ValueError(
        f"{fit.name}: {fit.visual_tokens} visual + {fit.text_tokens} text tokens + max_new_tokens="
        f"{fit.max_new_tokens} make {fit.tokens}, the model's context is {fit.context}. {way}."
    )


def check_memory(fit: Fit) -> None:
    if fit.fits:
        return
    assert fit.free is not None  # else it fits
    ways = [f"{flags} (needs {gib(other.needed)})" for flags, other in alternatives(fit) if other.fits]
    smallest = min(other.needed for _, other in [("", fit), *alternatives(fit)])
    way = f"Would fit: {'; '.join(ways)}" if ways else f"No flag fits; the least it takes is {gib(smallest)}"
    raise ValueError(
        f"{fit.name} on {fit.device}: needs {gib(fit.needed)} ({gib(fit.weight_bytes)} weights in "
        f"{fit.quantization or fit.dtype}, {gib(fit.cache_bytes)} cache for {fit.batch} × {fit.tokens} tokens), "
        f"free are {gib(fit.free)}. {way}."
    )


def alternatives(fit: Fit) -> Iterator[tuple[str, Fit]]:
    """Flags with what each would make of this fit, cheapest change first."""
    if fit.batch > 1:
        yield "batch=1", replace(fit, batch=1)
    spare = (fit.free or 0) - fit.weight_bytes
    per_token = fit.cache_bytes / fit.tokens if fit.tokens else 0.0
    longest = int(spare / per_token) - fit.visual_tokens - fit.text_tokens if per_token else 0
    if 0 < longest < fit.max_new_tokens:
        yield f"sampler.max_new_tokens={longest}", replace(fit, max_new_tokens=longest)
    if fit.dtype == "float32":
        yield "model.dtype=bfloat16", replace(fit, dtype="bfloat16")
    if fit.quantization is None and fit.weights.fixed is None:
        dtype = "model.dtype=bfloat16 " if fit.dtype == "float32" else ""
        half = replace(fit, dtype="bfloat16") if dtype else fit
        for name in QUANTIZATIONS:
            yield f"{dtype}model.quantization={name}", replace(half, quantization=name)


def gib(amount: float) -> str:
    return f"{amount / GIB:.1f} GiB" if amount >= GIB / 10 else f"{amount / (1 << 20):.1f} MiB"


def text_config(found: Checkpoint) -> Any:
    """With the library's defaults: published files leave out what equals them."""
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(found.folder).get_text_config()


def weights(found: Checkpoint) -> Weights:
    """From the safetensors headers; for pickles and files still on the Hub, from the model built without memory."""
    if "quantization_config" in found.config and found.safe:
        return Weights(0, 0, fixed=sum(tensor.bytes for tensor in found.tensors()))
    tied = found.config.get("tie_word_embeddings", False)
    if found.safe:
        listed = [(t.name, t.shape) for t in found.tensors()]
    else:
        listed = [(name, tuple(p.shape)) for name, p in empty_model(found).named_parameters()]
    linear = other = 0
    for name, shape in listed:
        if tied and name.endswith("lm_head.weight"):
            continue  # stored, but it shares the embedding's memory
        if is_decoder_linear(name, shape):
            linear += prod(shape)
        else:
            other += prod(shape)
    return Weights(linear, other)


def is_decoder_linear(name: str, shape: tuple[int, ...]) -> bool:
    """A matrix inside the decoder's layers, by old and new checkpoint names alike."""
    towers = [kept.removeprefix("model.") for kept in KEPT_WHOLE]
    return len(shape) == 2 and ".layers." in f".{name}" and not any(tower in name for tower in towers)


def empty_model(found: Checkpoint) -> torch.nn.Module:
    from transformers import AutoConfig, AutoModelForImageTextToText

    with torch.device("meta"):
        return AutoModelForImageTextToText.from_config(AutoConfig.from_pretrained(found.folder))


def free_memory(device: str) -> int | None:
    """Bytes a new model can take there; None where the system does not say."""
    place = torch.device(device)
    if place.type == "cuda":
        return torch.cuda.mem_get_info(place)[0] if torch.cuda.is_available() else None
    if place.type != "cpu":
        return None
    known = [amount for amount in (available(), container_room()) if amount is not None]
    return min(known, default=None)


def available(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """Linux's own estimate of what can be had without swapping."""
    if not meminfo.is_file():
        return None
    for line in meminfo.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def container_room(cgroup: Path = CGROUP) -> int | None:
    """What a container's own limit leaves (cgroup v2), which the machine's free memory does not show."""
    try:
        limit = (cgroup / "memory.max").read_text().strip()
        used = int((cgroup / "memory.current").read_text())
        stat = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    if limit == "max":
        return None
    return max(int(limit) - used + int(stat.get("inactive_file", 0)), 0)  # cached files give way
