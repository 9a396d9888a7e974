"""Stage times with one interface on CPU and CUDA: events on the stream there, perf_counter here.

Knows when a stage was entered and left. Does not know what runs in it, and never waits for the device before `ms()`.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass
class Span:
    name: str
    start: Any
    stop: Any = None
    inside: list["Span"] = field(default_factory=list)


class Clock:
    """`with clock.stage("prefill"): …`; stages may nest and repeat, and their times never overlap.

    A stage's time excludes the stages inside it (prune inside prefill), so all of them add up to at most the whole.
    """

    def __init__(self, device: str | torch.device = "cpu") -> None:
        self.cuda = torch.device(device).type == "cuda"
        self.device = device
        self._spans: list[Span] = []
        self._open: list[Span] = []

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        span = Span(name, self._mark())
        (self._open[-1].inside if self._open else self._spans).append(span)
        self._open.append(span)
        try:
            yield
        finally:
            span.stop = self._mark()
            self._open.pop()

    def ms(self) -> dict[str, float]:
        """Milliseconds per stage so far, in order of first entry; on CUDA the one place that waits for the device."""
        if self._open:
            raise RuntimeError(f"Clock.ms: stage {self._open[-1].name!r} is still open")
        if self.cuda:
            torch.cuda.synchronize(self.device)
        times: dict[str, float] = {}
        for span in self._spans:
            self._add(span, times)
        return times

    def reset(self) -> None:
        """Forget what was timed (warm-up)."""
        self._spans.clear()

    def _add(self, span: Span, times: dict[str, float]) -> None:
        own = self._between(span) - sum(self._between(inner) for inner in span.inside)
        times[span.name] = times.get(span.name, 0.0) + max(own, 0.0)
        for inner in span.inside:
            self._add(inner, times)

    def _between(self, span: Span) -> float:
        return span.start.elapsed_time(span.stop) if self.cuda else 1e3 * (span.stop - span.start)

    def _mark(self) -> Any:
        if not self.cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event
