"""What a run asked, in one hash: a resumed run with other pictures, questions or answers is told apart by it.

Knows benchmarks. One that can say so cheaply brings its own `digest(size)`; of the others every sample is made once.
"""

import hashlib
import json
from collections.abc import Iterator
from typing import Any

from mmaccel.benchmarks.base import Benchmark


def digest(benchmark: Benchmark, size: int) -> str:
    """sha256 over the first `size` samples, in order."""
    own = getattr(benchmark, "digest", None)
    if own is not None:
        return own(size)
    total = hashlib.sha256()
    for facts, pixels in samples(benchmark, size):
        total.update(json.dumps(facts).encode() + b"\n" + pixels)
    return total.hexdigest()


def samples(benchmark: Benchmark, size: int) -> Iterator[tuple[list[Any], bytes]]:
    for index in range(size):
        try:
            sample = benchmark[index]
        except (ValueError, OSError, SyntaxError) as error:  # it becomes an error record
            yield [index, type(error).__name__], b""
            continue
        pictures = [picture.convert("RGB") for picture in sample.pictures]
        sizes = [picture.size for picture in pictures]
        yield [sample.id, sample.turns, sample.reference, sizes], b"".join(picture.tobytes() for picture in pictures)
