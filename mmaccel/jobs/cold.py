"""The cold start, apart from every point's numbers: loading, and the first request a process makes.

One whole request with nothing attached, thrown away as an answer; its times go to provenance.json and from there to
summary.json and the page. A resumed run has a cold start of its own, noted with the resumption.
"""

import time
from collections.abc import Callable
from typing import Any, TypeVar

from mmaccel.benchmarks.base import Sample
from mmaccel.jobs.sample import Asker

T = TypeVar("T")


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """(what it made, milliseconds)"""
    began = time.perf_counter()
    return work(), 1e3 * (time.perf_counter() - began)


def cold_start(asker: Asker, sample: Sample, load_ms: float) -> dict[str, Any]:
    """load_ms, and of the first request ttft_ms, e2e_ms and tokens; where it failed, what it said and no times."""
    try:
        record, _ = asker.ask(None, sample, [])
    except Exception as error:  # the sweep meets the same sample again and makes an error record of it
        return {"load_ms": load_ms, "error": f"{type(error).__name__}: {error}"}
    first = {"sample": sample.id, "ttft_ms": record["ttft_ms"], "e2e_ms": record["e2e_ms"]}
    return {"load_ms": load_ms, "first_request": first | {"tokens": record["tokens"]["generated"]}}
