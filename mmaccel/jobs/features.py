"""Around the call that turns a picture into features: its time taken, or the work shared between points.

Knows the feature call every Hugging Face VLM has. Does not know points or samples. The model is left as it was.
"""

import copy
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from mmaccel.benchmarks.wire import all_bytes
from mmaccel.measure.clock import Clock


@contextmanager
def wrapped(model: Any, around: Callable[..., Any]) -> Iterator[None]:
    """For the time of the block the model calls around(its own feature call, args, kwargs)."""
    base = model.model
    original, own = base.get_image_features, vars(base).get("get_image_features")

    @functools.wraps(original)  # generate reads the signature to know which inputs to hand over
    def features(*args: Any, **kwargs: Any) -> Any:
        return around(original, args, kwargs)

    base.get_image_features = features
    try:
        yield
    finally:
        if own is None:
            vars(base).pop("get_image_features", None)
        else:
            base.get_image_features = own


@contextmanager
def timed_features(model: Any, clock: Clock) -> Iterator[list[float]]:
    """The tower's and projector's time as the stage "vision", for every point alike; yields when they began.

    On CUDA the host waits once for the stage to end, else the loop's own clock would count the queued tower as prefill.
    """
    entered: list[float] = []

    def around(original: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> Any:
        entered.append(time.perf_counter())
        with clock.stage("vision"):
            found = original(*args, **kwargs)
        if clock.cuda:
            torch.cuda.synchronize(clock.device)  # one wait a request, for every point alike
        return found

    with wrapped(model, around):
        yield entered


class Shared:
    """What points without times share of a sample: the last prompt, and the last picture's features."""

    def __init__(self) -> None:
        self.sample: tuple[Any, list[str]] | None = None
        self.inputs: Any = None
        self.asked: Mapping[str, Any] = {}
        self.output: Any = None

    def prompt(self, make: Callable[..., Any], sample: Any, said: Sequence[str]) -> Any:
        """make(bytes, sample, said), once for the same sample and replies."""
        if self.sample is None or self.sample[0] is not sample or self.sample[1] != list(said):
            self.sample, self.inputs = (sample, list(said)), make(all_bytes(sample), sample, said)
        return self.inputs

    @contextmanager
    def features(self, model: Any) -> Iterator[None]:
        """Calls of the block with equal arguments run the tower once."""

        def around(original: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> Any:
            asked = {**{str(at): value for at, value in enumerate(args)}, **kwargs}
            if self.output is None or not same(self.asked, asked):
                self.asked, self.output = asked, original(*args, **kwargs)
            return copy.copy(self.output)  # others write attributes on it; the tensors are one

        with wrapped(model, around):
            yield


def same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return one.keys() == other.keys() and all(equal(one[name], other[name]) for name in one)


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        return isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) and torch.equal(one, other)
    return bool(one == other)
