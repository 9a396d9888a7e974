"""Which of the samples that the input gate flagged stand on a contact sheet. Knows screenings and tiles."""

from collections.abc import Sequence
from itertools import chain, zip_longest

from mmaccel.benchmarks.base import Benchmark
from mmaccel.benchmarks.quality import DECODING
from mmaccel.benchmarks.screening import Look, Screening
from mmaccel.report.contact_sheet import Tile, small


def tiles(benchmark: Benchmark, found: Screening, most: int) -> list[Tile]:
    """The worst of every rule in turn, each sample once."""
    by_rule = zip_longest(*(found.examples(rule, most) for rule in found.quality.rules))
    chosen = dict.fromkeys(look.index for look in chain.from_iterable(by_rule) if look)
    looks = {look.index: look for look in found.rejected}
    return [tile(benchmark, looks[index]) for index in list(chosen)[:most]]


def tile(benchmark: Benchmark, look: Look) -> Tile:
    lines: Sequence[str] = [look.id, *(str(flag) for flag in look.flags)]
    try:
        return Tile(small(benchmark[look.index].image), tuple(lines))
    except DECODING:
        return Tile(None, (*lines, *(flag.note for flag in look.flags)))
