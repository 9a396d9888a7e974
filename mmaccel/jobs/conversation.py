"""What a turn of a sample is to the model and to its record. Does not know models or points."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mmaccel.benchmarks.base import MARK, Sample


def conversation(sample: Sample, said: Sequence[str], pictures: Sequence[Any] | None = None) -> list[dict[str, Any]]:
    """The messages up to the user turn that follows the replies in `said`. pictures: in the place of the sample's."""
    shown = sample.pictures if pictures is None else pictures
    messages: list[dict[str, Any]] = []
    for at, turn in enumerate(sample.turns[: len(said) + 1]):
        content = [text_part(turn)] if at else first_turn(turn, shown, sample.marked)
        messages.append({"role": "user", "content": content})
        if at < len(said):
            messages.append({"role": "assistant", "content": [text_part(said[at])]})
    return messages


def first_turn(turn: str, pictures: Sequence[Any], marked: bool) -> list[dict[str, Any]]:
    """Pictures where their marks stand; one that is marked twice is shown once, one that is not marked comes first."""
    if not marked:
        return [*map(image_part, pictures), text_part(turn)]
    pieces = MARK.split(turn)  # text, number, text, number, text …
    wanted = [int(number) for number in pieces[1::2]]
    wrong = [number for number in wanted if not 1 <= number <= len(pictures)]
    if wrong:
        raise ValueError(f"the question names <image {wrong[0]}>, there are {len(pictures)} pictures")
    parts = [image_part(picture) for at, picture in enumerate(pictures, 1) if at not in wanted]
    shown: set[int] = set()
    for piece, number in zip(pieces[::2], [*wanted, 0]):
        parts += [text_part(piece)] if piece.strip() else []
        if number and number not in shown:
            parts.append(image_part(pictures[number - 1]))
            shown.add(number)
    return parts


def image_part(picture: Any) -> dict[str, Any]:
    return {"type": "image", "image": picture}


def text_part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def dice(seed: int, sample: str, turn: int) -> int:
    """The same dice for every point of a sample, other dice for every sample."""
    digest = hashlib.sha256(f"{seed}/{sample}/{turn}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:4], "big")


def apart(sample: Sample, names: set[str], index: int) -> Sample:
    """The sample under a name that no sample before it had, for records are known by it; adds it to `names`."""
    named = replace(sample, id=f"{sample.id}#{index}") if sample.id in names else sample
    names.add(named.id)
    return named


def known(benchmark: str, sample: Sample, turn: int) -> dict[str, Any]:
    """The record's fields that no model is needed for."""
    return {
        "sample": sample.id, "turn": turn, "benchmark": benchmark, "kind": sample.kind,
        "question": sample.turns[turn], "reference": sample.reference[turn], "image": dict(sample.facts),
    }  # fmt: skip
