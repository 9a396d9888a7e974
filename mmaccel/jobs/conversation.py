"""What a turn of a sample is to the model and to its record. Does not know models or points."""

import hashlib
from collections.abc import Sequence
from typing import Any

from mmaccel.benchmarks.base import Sample


def conversation(image: Any, turns: Sequence[str], said: Sequence[str]) -> list[dict[str, Any]]:
    """The messages up to the next user turn; the picture stands in the first."""
    messages: list[dict[str, Any]] = []
    for at, turn in enumerate(turns[: len(said) + 1]):
        picture = [{"type": "image", "image": image}] if at == 0 else []
        messages.append({"role": "user", "content": [*picture, {"type": "text", "text": turn}]})
        if at < len(said):
            messages.append({"role": "assistant", "content": [{"type": "text", "text": said[at]}]})
    return messages


def dice(seed: int, sample: str, turn: int) -> int:
    """The same dice for every point of a sample, other dice for every sample."""
    digest = hashlib.sha256(f"{seed}/{sample}/{turn}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:4], "big")


def known(benchmark: str, sample: Sample, turn: int) -> dict[str, Any]:
    """The record's fields that no model is needed for."""
    return {
        "sample": sample.id, "turn": turn, "benchmark": benchmark, "kind": sample.kind,
        "question": sample.turns[turn], "reference": sample.reference[turn], "image": dict(sample.facts),
    }  # fmt: skip
