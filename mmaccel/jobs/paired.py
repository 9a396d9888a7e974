"""One sample through all points: the order, the records, what is repeated after a kill and what is not.

The order rotates with the sample, so that no point always comes first. A bad sample becomes error records and the run
goes on. Samples beyond the timed ones share the tower's work between the points. Where the benchmark has no answer the
score is agreement with the unpruned reply (where it has some, agreement stands beside the score and is averaged into
nothing): records that come before the baseline's wait for it, so that every line on the disk is whole.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from mmaccel.benchmarks.base import Sample
from mmaccel.jobs.agreement import agreement, scored, waits
from mmaccel.jobs.conversation import apart, conversation, known
from mmaccel.jobs.gate import Plan
from mmaccel.jobs.pictures import try_pictures
from mmaccel.jobs.points import BASELINE, Point
from mmaccel.jobs.sample import Asker
from mmaccel.measure.record import RunFolder

DRAFTED = 8  # tokens of a warm-up in which a head drafts and the draft is verified
HOPELESS = 3  # samples without one good record, from the start: then the fault is not the samples'


class Paired:
    def __init__(
        self, asker: Asker, plan: Plan, folder: RunFolder, warmup: int, maps: int, timed: int | None = None
    ) -> None:
        self.asker, self.plan, self.folder, self.warmup, self.maps = asker, plan, folder, warmup, maps
        self.timed = plan.size if timed is None else timed
        self.done = {(r["point"], r["sample"], r["turn"]): r for r in folder.records()}
        self.good = any(not record["error"] for record in self.done.values())
        self.warm: set[tuple[str, int]] = set()
        self.samples_seen, self.ids = 0, set[str]()

    def sample(self, index: int, points: Sequence[Point]) -> Iterator[dict[str, Any]]:
        """The new records, each on the disk when it is yielded."""
        try:
            sample = self.plan.benchmark[index]
        except (ValueError, OSError, SyntaxError) as error:  # a picture whose header was right and whose rest is not
            none = Sample(f"#{index}", "unreadable", None, ("",), (None,))  # type: ignore[arg-type]
            yield from (line for point in points for line in self.write(point, self.failed(none, 0, error)))
            return
        sample = apart(sample, self.ids, index)
        points = [point for point in points if point.kinds is None or sample.kind in point.kinds]
        held: list[tuple[Point, dict[str, Any]]] = []
        start = index % len(points)
        for point in [*points[start:], *points[:start]]:
            for record in self.turns(point, sample, index):
                key = (BASELINE, sample.id, record["turn"])
                if waits(record) and point.name != BASELINE and key not in self.done:
                    held.append((point, record))
                else:
                    yield from self.write(point, record)
        for waiting in held:
            yield from self.write(*waiting)
        self.stop_if_hopeless()

    def turns(self, point: Point, sample: Sample, index: int) -> Iterator[dict[str, Any]]:
        """The turns of one point that are not on the disk yet; after a failed turn the later ones fail with it."""
        said: list[str] = []
        broken: Exception | None = None
        for turn in range(len(sample.turns)):
            stored = self.done.get((point.name, sample.id, turn))
            if stored is not None:
                said.append(stored["prediction"] or "")
                broken = broken or (RuntimeError(stored["error"]) if stored["error"] else None)
                continue
            try:
                if broken:
                    raise RuntimeError(f"an earlier turn failed: {broken}")
                record, event = self.request(point, sample, said, timed=index < self.timed)
                if index < self.maps and not said:
                    try_pictures(self.folder, sample, point.name, event, self.asker.seen(sample))
            except Exception as error:  # whatever a picture or a kernel does to one request, the others are measured
                broken = broken or error
                record = self.failed(sample, turn, error)
            said.append(record["prediction"] or "")
            yield record

    def request(self, point: Point, sample: Sample, said: Sequence[str], timed: bool) -> tuple[dict[str, Any], Any]:
        pruner = self.plan.pruners[point.name]
        if timed:
            self.warm_up(point, pruner, sample, said)
        measured, event = self.asker.ask(pruner, sample, said, timed=timed, head=self.plan.heads.get(point.name))
        score = scored(self.plan.benchmark, sample, [*said, measured["prediction"]])
        return known(self.plan.benchmark.name, sample, len(said)) | measured | score, event

    def warm_up(self, point: Point, pruner: Any, sample: Sample, said: Sequence[str]) -> None:
        """Throw away the first requests of a new shape: their kernels and buffers are made then."""
        shape = (point.name, self.asker.vlm.inputs([conversation(sample, said)]).visual_tokens[0])
        if shape not in self.warm:
            head = self.plan.heads.get(point.name)
            for _ in range(self.warmup):
                self.asker.ask(pruner, sample, said, limit=2 if head is None else DRAFTED, head=head)
            self.warm.add(shape)

    def failed(self, sample: Sample, turn: int, error: Exception) -> dict[str, Any]:
        said = {"prediction": None, "error": f"{type(error).__name__}: {error}"}
        return known(self.plan.benchmark.name, sample, turn) | said

    def write(self, point: Point, record: dict[str, Any]) -> Iterator[dict[str, Any]]:
        record = {"point": point.name, "error": None} | record
        key = (point.name, record["sample"], record["turn"])
        if key in self.done:
            return
        base = record if point.name == BASELINE else self.done.get((BASELINE, *key[1:]))
        if waits(record) and base is not None and not base.get("error"):
            record["score"] |= agreement(record, base, mixed=getattr(self.plan.benchmark, "answered", False))
        self.folder.append(record)
        self.done[key] = record
        self.good = self.good or not record["error"]
        yield record

    def stop_if_hopeless(self) -> None:
        self.samples_seen += 1
        if not self.good and self.samples_seen >= min(HOPELESS, self.plan.size):
            last = next(reversed(self.done.values()))["error"]
            raise RuntimeError(f"no request of the first {self.samples_seen} samples succeeded; the last said: {last}")
