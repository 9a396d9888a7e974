"""Where a request's time went: the tower's stage, the loop's own times and its counters, as a record's fields.

Knows the feature call every Hugging Face VLM has and what the decoding loop counted. Does not know points or samples.
"""

import functools
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from mmaccel.measure.clock import Clock


@contextmanager
def timed_features(model: Any, clock: Clock) -> Iterator[list[float]]:
    """The tower's and projector's time as the stage "vision", for every point alike; the model is left as it was.

    On CUDA the host waits once for the stage to end, else the loop's own clock would count the queued tower as prefill.
    """
    base, entered = model.model, []  # type: ignore[var-annotated]
    original, own = base.get_image_features, vars(base).get("get_image_features")

    @functools.wraps(original)  # generate reads the signature to know which inputs to hand over
    def features(*args: Any, **kwargs: Any) -> Any:
        entered.append(time.perf_counter())
        with clock.stage("vision"):
            found = original(*args, **kwargs)
        if clock.cuda:
            torch.cuda.synchronize(clock.device)  # one wait a request, for every point alike
        return found

    base.get_image_features = features
    try:
        yield entered
    finally:
        if own is None:
            vars(base).pop("get_image_features", None)
        else:
            base.get_image_features = own


def timings(
    stages: dict[str, float], event: Any, stats: Any, times: Mapping[str, Any], generated: int
) -> dict[str, Any]:
    """Stages that do not overlap, and the request's own times. Some library versions encode pictures inside prefill."""
    prune = sum(stop.prune_ms for stop in event.stops) if event is not None else 0.0
    prefill_began = stats.first_token_at - stats.prefill_ms / 1e3
    inside = stages.get("vision", 0.0) if times["vision"] is not None and times["vision"] >= prefill_began else 0.0
    ttft, e2e = 1e3 * (stats.first_token_at - times["began"]), 1e3 * (times["ended"] - times["began"])
    stages |= {"prune": prune, "prefill": stats.prefill_ms - prune - inside, "decode": sum(stats.step_ms)}
    tpot = (e2e - ttft) / (generated - 1) if generated > 1 else None  # the first chunk is the prefill's one token
    return {"stages_ms": stages, "step_ms": stats.step_ms, "ttft_ms": ttft, "tpot_ms": tpot, "e2e_ms": e2e}


def counters(stats: Any) -> dict[str, Any]:
    names = ("steps", "drafted", "accepted", "emitted", "nodes", "accepted_by_depth")
    return {name: getattr(stats, name) for name in names}
