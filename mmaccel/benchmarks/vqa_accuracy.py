"""VQA accuracy (https://arxiv.org/abs/1505.00468): a reply is right as far as others who were asked said the same.

acc(reply) = mean over the people of min(1, how many of the *others* said it / 3): of ten people 1, 2, 3, 4 with the
reply's words give 0.3, 0.6, 0.9, 1. Knows strings. Does not know benchmarks, prompts or pictures.

Answers are brought to one form first, in which published scorers differ (`compat`):
  official    that of the data set's authors; where all people wrote the same, reply and answers are compared as written
  lmms        lmms-eval (since August 2025): always in that form
  vlmevalkit  VLMEvalKit: always, and a period behind a digit stays ("14." is not "14")
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmaccel.benchmarks.rows import Row, listed

OTHERS = 3  # so many others make an answer wholly right
PUNCTUATION = ';/[]"{}()=+\\_-><@`,?!'
PERIODS = 32  # at most so many are removed: the published code gives a flag's value where the count stands
ARTICLES = frozenset({"a", "an", "the"})
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
NUMBERS = {"none": "0"} | {word: str(value) for value, word in enumerate(DIGITS)}
ENDINGS = {
    "n't": "ai are ca could did does do did had has have is might must need ought sha should was were wo would",
    "n't've": "could had might should would",
    "'ve": "could might must not should they we what where who would you",
    "'d": "he how it someone something there they where who you",
    "'d've": "he it she somebody someone something there they we who you",
    "'ll": "how it somebody someone something they what who why you",
    "'s": "he how somebody someone that there what when where who why",
    "'re": "there they what why you",
}
WHOLE = ("ma'am", "o'clock", "'ow's'at", "'twas", "y'all", "y'all'll", "y'all'd've")


def contracted() -> dict[str, str]:
    """A contraction that lacks one of its apostrophes → the contraction.

    Those of I are absent: words are in lower case when they are looked up, and the published table has a capital."""
    forms = [*WHOLE, *(stem + ending for ending, stems in ENDINGS.items() for stem in stems.split())]
    table = {form[:at] + form[at + 1 :]: form for form in forms for at, letter in enumerate(form) if letter == "'"}
    return table | {"somebody'd": "somebodyd"}  # turned round in the published table


CONTRACTED = contracted()


@dataclass(frozen=True)
class Form:
    thousands: re.Pattern[str]  # where it is found, punctuation vanishes instead of parting words
    period: re.Pattern[str]
    as_written: bool  # where all people agree


FORMS = {
    "official": Form(re.compile(r"\d,\d"), re.compile(r"\.(?!\d)"), True),
    "lmms": Form(re.compile(r"\d,+\d"), re.compile(r"\.(?!\d)"), False),
    "vlmevalkit": Form(re.compile(r"\d,\d"), re.compile(r"(?<!\d)\.(?!\d)"), False),
}


def flat(text: str) -> str:
    return text.replace("\n", " ").replace("\t", " ").strip()


def parted(text: str) -> str:
    """What TextVQA's scorer does first: no commas and question marks, and a possessive is a word."""
    return text.lower().replace(",", "").replace("?", "").replace("'s", " 's").strip()


def normalised(text: str, compat: str) -> str:
    """The form in which answers are compared: punctuation, articles, number words and contractions settled."""
    found = (NUMBERS.get(word, word) for word in plain(flat(text), FORMS[compat]).lower().split())
    return " ".join(CONTRACTED.get(word, word) for word in found if word not in ARTICLES)


def plain(text: str, form: Form) -> str:
    """Without punctuation, except `' $ : %` and decimal points. A mark that touches a space anywhere is deleted
    everywhere, any other parts two words."""
    joined = form.thousands.search(text) is not None
    marks: dict[str, int | str | None] = {
        mark: "" if joined or f"{mark} " in text or f" {mark}" in text else " " for mark in PUNCTUATION if mark in text
    }
    return form.period.sub("", text.translate(str.maketrans(marks)), count=PERIODS)


def leave_one_out(said: str, answers: Sequence[str]) -> float:
    """By position: someone's own answer does not speak for it, an equal answer of another does."""
    same, people = answers.count(said), len(answers)
    own, other = min(1.0, (same - 1) / OTHERS), min(1.0, same / OTHERS)
    return (same * own + (people - same) * other) / people


def vqa_score(
    reply: str, answers: Sequence[str], compat: str, first: Callable[[str], str] = str
) -> dict[str, float | str | None]:
    """{"correct": accuracy or None without answers, "parsed": the reply in its form}. first: is done before all else.

    An empty reply is never right, though an answer of articles alone has an empty form too."""
    if not reply.strip():
        return {"correct": 0.0 if answers else None, "parsed": None}
    agreed = FORMS[compat].as_written and len({flat(answer) for answer in answers}) == 1
    form = flat if agreed else lambda text: normalised(first(text), compat)
    said = form(reply)
    correct = leave_one_out(said, [form(answer) for answer in answers]) if answers else None
    return {"correct": correct, "parsed": said or flat(reply)}


def people(row: Row) -> list[str]:
    """The answers of a row, texts or {"answer": text}; none on the test splits."""
    cell = row.get("answers")
    cell = listed(cell) if isinstance(cell, str) else cell
    found = [str(one["answer"] if isinstance(one, Mapping) else one) for one in cell or ()]
    if 0 < len(found) <= OTHERS:
        raise ValueError(
            f"{row.where}, column {row.named.get('answers')!r}: got {len(found)} answers, valid are {OTHERS + 1} or "
            f"more: a reply is right if {OTHERS} others said it"
        )
    return found


def commonest(answers: Sequence[str]) -> str | None:
    """The answer most people gave; the first of several."""
    return max(answers, key=answers.count, default=None)


def by_name(
    records: Iterable[Mapping[str, Any]], names: Callable[[Mapping[str, Any]], Iterable[str]]
) -> dict[str, float | None]:
    """Name → the mean score of the records that bear it; a record may bear several."""
    groups: dict[str, list[float]] = defaultdict(list)
    for record in records:
        if record["score"].get("correct") is not None:
            for name in names(record):
                groups[name].append(record["score"]["correct"])
    return {name: sum(scores) / len(scores) for name, scores in sorted(groups.items())}
