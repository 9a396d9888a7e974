"""ANLS, average normalised Levenshtein similarity (https://arxiv.org/abs/1905.13648): near misses of reading count.

s = 1 − NL of the nearest answer, NL = edits / length of the longer text, and 0 where that is too far. Knows strings.
Edits are counted without case and with single spaces; the length is that of the texts as written, as in all published
scorers (reply: without spaces at its ends). At NL = 0.5 exactly they and the paper differ (`compat`):
  kits    0.5 counts (the challenge's server, lmms-eval, VLMEvalKit)
  paper   0.5 is too far
"""

from collections.abc import Sequence

FAR = 0.5
COMPAT = ("kits", "paper")


def distance(one: str, other: str) -> int:
    """Levenshtein's: insertions, deletions and substitutions."""
    above = list(range(len(other) + 1))
    for at, letter in enumerate(one, 1):
        here = [at]
        for place, there in enumerate(other):
            here.append(min(above[place] + (letter != there), above[place + 1] + 1, here[place] + 1))
        above = here
    return above[-1]


def spelled(text: str) -> str:
    return " ".join(text.lower().split())


def normalised_distance(reply: str, answer: str) -> float:
    longer = max(len(reply.upper()), len(answer.upper()))  # in capitals, where ß is two letters: so they are counted
    return distance(spelled(reply), spelled(answer)) / longer if longer else 0.0


def similarity(reply: str, answers: Sequence[str], compat: str) -> float:
    """0, or 0.5 … 1: how near the reply is to the nearest answer."""
    nearest = min(normalised_distance(reply, answer) for answer in answers)
    return 0.0 if nearest > FAR or (compat == "paper" and nearest == FAR) else 1.0 - nearest


def anls_score(reply: str, answers: Sequence[str], compat: str) -> dict[str, float | str | None]:
    """{"correct": similarity, None without answers, "parsed": the reply's text}; an empty reply is never right."""
    said = reply.strip()
    if not answers:
        return {"correct": None, "parsed": spelled(said) or None}
    return {"correct": similarity(said, answers, compat) if said else 0.0, "parsed": spelled(said) or None}
