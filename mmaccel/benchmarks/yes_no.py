"""What the yes/no benchmarks share: readers of a reply by name, and the score of one.

A reader says "yes", "no" or None where it cannot tell; None is wrong and counts as unparsed.
"""

from collections.abc import Callable, Mapping
from typing import Any

from mmaccel.benchmarks.rows import Row
from mmaccel.benchmarks.text import yes_no
from mmaccel.benchmarks.vqa_accuracy import FORMS, plain

SPELLED = {"yes": "yes", "no": "no", "1": "yes", "0": "no"}


def alone(reply: str) -> str | None:
    """VLMEvalKit: whichever of the two is a word of the reply without the other; a "**Yes**" is another word."""
    found = set(plain(reply.lower(), FORMS["vlmevalkit"]).split()) & {"yes", "no"}
    return found.pop() if len(found) == 1 else None


def exact(reply: str) -> str | None:
    """lmms-eval on POPE: nothing but the word, so that "Yes." is not read."""
    said = reply.lower().strip()
    return said if said in ("yes", "no") else None


def leading(reply: str) -> str | None:
    """MME's: the word or its letter alone, else what the first four characters hold, so that "Not sure" is a no."""
    said = reply.lower().strip().replace(".", "")
    if len(said) == 1:
        return {"y": "yes", "n": "no"}.get(said)
    return next((answer for answer in ("yes", "no") if answer in said[:4]), None)


READERS: Mapping[str, Callable[[str], str | None]] = {
    "ours": yes_no, "lmms": exact, "vlmevalkit": alone, "official": leading,
}  # fmt: skip


def wanted(row: Row, name: str = "answer") -> str:
    """The row's right answer, "yes" or "no"."""
    said = row.text(name).strip().lower().rstrip(".")
    if said not in SPELLED:
        column = row.named.get(name, name)
        raise ValueError(f"{row.where}, column {column!r}: got {said!r}, valid are yes and no")
    return SPELLED[said]


def judged(compat: str, reply: str, answer: str) -> dict[str, Any]:
    """The score's part that all of them have."""
    read = READERS[compat](reply)
    return {"correct": float(read == answer), "parsed": read, "answer": answer}
