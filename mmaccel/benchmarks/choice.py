"""Multiple choice: the options of a row, which of them a reply chooses, and questions asked in all rotations.

Knows strings and rows. Does not know benchmarks. Two ways to read a reply: `ours`, and `vlmevalkit`, which has the
outcomes of that kit's `can_infer` without a judge (https://github.com/open-compass/VLMEvalKit), its mistakes included.
A reply that chooses none, or more than one, is None. Under `ours` an article is never option A.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from string import ascii_uppercase
from typing import Any

from mmaccel.benchmarks.rows import Row
from mmaccel.benchmarks.text import normal
from mmaccel.measure.scores import is_whole

Options = Mapping[str, str]  # letter → wording, in order
DIRECTLY = "Answer with the option's letter from the given choices directly."

REFUSED = re.compile(
    r"^\W*(?:(?:i['’]m|i am) )?(?:sorry|unfortunately|unable|cannot|can['’]t)\b|\bas an ai\b"
    r"|\bi(?:['’]m| am)? (?:cannot|can['’]t|can not|unable|not able|not sure|do not know|don['’]t know)\b",
    re.IGNORECASE,
)
CUE = (
    r"(?i:\banswer(?:\s+(?:is|would be|should be|must be)|\W*[:：])(?:\s+(?:option|choice|letter))?"
    r"|答案[是为：:]|选择?)"
)
NO_NOUN = r"\s+(?:is|because|since|and|or)\b"  # no article stands before these
LONG = 24  # words: in a longer reply a wording may be there by chance
CJK = re.compile(r"[\u3040-\u30ff\u4e00-\u9fff]")

KIT_REFUSED = (  # replies that VLMEvalKit counts as no answer
    "Sorry, I can't help with images of people yet.", "I can't process this file.",
    "I'm sorry, but without the image provided", "Cannot determine the answer",
)  # fmt: skip
KIT_MARKS = str.maketrans(dict.fromkeys(".()[],:;!*#{}", " "))
KIT_CUE = re.compile(r"answer\s+is\s+\**([A-D])", re.IGNORECASE)
KIT_TAIL = 4  # a letter counts among so many last words


def chosen(reply: str, options: Options) -> str | None:
    """The letter alone; the wording alone; the last letter that is called the answer; the one in front; and where the
    reply is no refusal the only letter that stands in it, or the only wording."""
    found = alone(reply, options) or exact(reply, options) or concluded(reply, options) or opening(reply, options)
    if found or (REFUSED.search(reply) and not any(REFUSED.search(wording) for wording in options.values())):
        return found
    return standing(reply, options) or named(reply, options)


def inferred(reply: str, options: Options) -> str | None:
    """VLMEvalKit: the only letter among the words, if it is one of the last; "answer is X"; the only wording."""
    words = reply.translate(KIT_MARKS).split()
    letters = [letter for letter in options if letter in words]
    if any(said in reply for said in KIT_REFUSED) or (not letters and "Z" in words):
        return None
    if len(letters) == 1 and words.index(letters[0]) >= len(words) - KIT_TAIL:
        return letters[0]
    said = KIT_CUE.search(reply)
    if said and said[1].upper() in options:
        return said[1].upper()
    if len(reply) > 2 * sum(map(len, options.values())):
        return None
    return only([letter for letter, wording in options.items() if wording.lower() in reply.lower()])


READERS: dict[str, Callable[[str, Options], str | None]] = {"ours": chosen, "vlmevalkit": inferred}


def verdict(reply: str, options: Options, reference: str | None, compat: str) -> dict[str, Any]:
    """correct (None where the answer is not known) and parsed."""
    parsed = READERS[compat](reply, options)
    return {"correct": None if reference is None else float(parsed == reference), "parsed": parsed}


def only(found: Sequence[str]) -> str | None:
    return found[0] if len(found) == 1 else None


def alone(reply: str, options: Options) -> str | None:
    match = re.fullmatch(rf"[\W_]*([{''.join(options)}])[\W_]*", reply, re.IGNORECASE)
    return match and match[1].upper()


def exact(reply: str, options: Options) -> str | None:
    said = normal(reply)
    return only([letter for letter, wording in options.items() if said and normal(wording) == said])


def opening(reply: str, options: Options) -> str | None:
    """ "B. dog", "(b) dog", "**B** dog", "B - dog"; not "e.g. a dog", and not the first of several or of a list."""
    letters = "".join(options)
    mark = r"(?:[).:,;\]*。、：）](?![A-Za-z]\.)|\s*\n|\s[-–—]\s)"
    match = re.match(rf"[\W_]*([{letters}]){mark}", reply, re.IGNORECASE)
    if match is None or goes_on(reply[match.end(1) :], options):
        return None
    listed = set(re.findall(rf"\n[\W_]*([{letters}])[).:]", reply))
    return match[1].upper() if listed <= {match[1].upper()} else None


def concluded(reply: str, options: Options) -> str | None:
    """The last letter that is called the answer."""
    letters = "".join(options)
    said = re.finditer(rf"{CUE}[\W_]*([{letters}{letters.lower()}])(?![A-Za-z0-9'’])", reply)
    found = [match[1].upper() for match in said if called(match[1], reply[match.end() :], options)]
    return found[-1] if found else None


def called(letter: str, after: str, options: Options) -> bool:
    """Whether a letter behind a cue is one: "the answer is A" and "… A because", not "… a dog", "… A or B"."""
    if goes_on(after, options):
        return False
    if letter not in "AaIi" or not re.match(r"\s+\w", after) or re.match(NO_NOUN, after):
        return True
    begun = f"{normal(after)} "
    return letter == "A" and not any(begun.startswith(f"{normal(wording)} ") for wording in options.values())


def goes_on(after: str, options: Options) -> bool:
    """Another letter follows as a second choice."""
    letters = "".join(options) + "".join(options).lower()
    second = rf"(?![AaIi]\s+\w)[{letters}](?![A-Za-z0-9'’])"
    return bool(re.match(rf"[\W_]*?(?:[,/&]|\b(?:or|and)\b)[\W_]*{second}", after))


def standing(reply: str, options: Options) -> str | None:
    """The only capital letter that stands as a word, unless it is ruled out ("not B")."""
    letters = "".join(options)
    found: set[str | None] = set()
    for match in re.finditer(rf"(?<![A-Za-z0-9'’-])([{letters}])(?![A-Za-z0-9'’]|-\w)", reply):
        before, after = reply[: match.start()], reply[match.end() :]
        article = match[1] in "AI" and re.match(r"\s+\w", after) and not re.match(NO_NOUN, after)
        if article and not re.search(r"(?i:option|choice|letter)\s+$", before):
            continue
        ruled_out = re.search(r"(?i:\bnot|n['’]t|\bneither|\bnor|\bexcept)\s+(?i:option |choice )?\W*$", before)
        found.add(None if ruled_out else match[1])
    return found.pop() if len(found) == 1 else None


def named(reply: str, options: Options) -> str | None:
    """The only wording that is said, in whole words: behind the last cue where there is one, else in a reply that is
    not long. One that lies inside another that is said does not count, nor one that is denied ("not a dog")."""
    text = re.split(CUE, reply)[-1]
    if len(text.split()) > LONG + max(len(wording.split()) for wording in options.values()):
        return None
    said = {letter: wording for letter, wording in options.items() if within(wording, text)}
    inside = {
        one for one in said for other in said if len(said[one]) < len(said[other]) and within(said[one], said[other])
    }
    denied = {one for one in said if any(within(f"{word} {said[one]}", text) for word in ("not", "isn't", "no"))}
    return only([letter for letter in said if letter not in inside | denied])


def within(wording: str, text: str) -> bool:
    """Chinese and Japanese do not part their words."""
    if CJK.search(wording):
        return wording.strip() in text
    return bool(normal(wording)) and f" {normal(wording)} " in f" {normal(text)} "


def cell(value: Any) -> str | None:
    """An option's text; "None" is one, what stands for an empty cell is none."""
    text = "" if value is None or value != value else str(value)
    return None if text.strip() in ("", "nan") else text


def options_of(row: Row, name: str) -> dict[str, str]:
    """Letter → wording: of a list in column `name`, or of the columns A, B, … where that is what `name` stands for."""
    listed = row.named.get(name) != row.named.get("A", "A")
    found = [cell(row.get(letter)) for letter in ascii_uppercase] if not listed else list(row.several(name))
    given = {letter: text for letter, text in zip(ascii_uppercase, found) if text is not None}
    column = row.named.get(name, name)
    if len(given) < 2:
        raise ValueError(f"{row.where}, column {column!r}: got {row.get(name)!r}, valid are two options or more")
    gap = next((letter for letter, last in zip(ascii_uppercase, given) if letter not in given), None)
    if gap is not None:
        raise ValueError(f"{row.where}, column {gap!r}: empty, but there is an option after it")
    return given


def answer_of(row: Row, options: Options) -> str | None:
    """The right letter; None where the answers are withheld."""
    answer = row.maybe("answer")
    if answer is None or answer.strip() == "?":
        return None
    if answer.strip().upper() not in options:
        column = row.named.get("answer", "answer")
        raise ValueError(f"{row.where}, column {column!r}: got {answer!r}, valid are {', '.join(options)}")
    return answer.strip().upper()


def lines(options: Options) -> str:
    return "\n".join(f"{letter}. {wording}" for letter, wording in options.items())


def rotated(values: Sequence[str], by: int) -> list[str]:
    """`by` places to the right: new[(j + by) % n] = old[j]."""
    return [values[(place - by) % len(values)] for place in range(len(values))]


def turned(options: Options, answer: str | None, by: int) -> tuple[dict[str, str], str | None]:
    """The question's rotation: its options, and the letter where the right one then stands."""
    letters = list(options)
    moved = dict(zip(letters, rotated(list(options.values()), by)))
    return moved, answer and letters[(letters.index(answer) + by) % len(letters)]


def together(records: Iterable[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], float]]:
    """(the first record, 1.0 where all are right) per group that has all of its rotations."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        if record["score"].get("of") and record["score"]["correct"] is not None:
            groups.setdefault(record["score"]["group"], []).append(record)
    whole = [group for group in groups.values() if is_whole(group)]
    return [(group[0], min(record["score"]["correct"] for record in group)) for group in whole]


def shares(pairs: Iterable[tuple[str | None, float]], word: str) -> dict[str, float | None]:
    """ "word name" → the mean of its values, by name; those of no name count nowhere."""
    values: dict[str, list[float]] = {}
    for name, value in pairs:
        if name is not None:
            values.setdefault(name, []).append(value)
    return {f"{word} {name}": sum(found) / len(found) for name, found in sorted(values.items())}
