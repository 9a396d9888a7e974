"""Reading short answers: one normal form, and the few parsers a scorer needs.

Knows strings only. A parser returns None where it cannot read the reply: that is counted as unparsed, never guessed.
"""

import re
import unicodedata

_NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_DIGITS = {word: str(value) for value, word in enumerate(_NUMBERS)} | {"none": "0"}
_ARTICLES = frozenset({"a", "an", "the"})
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}\b)")
_WORD = re.compile(r"(?:(?<!\S)[-+])?(?:\d+(?:\.\d+)?|\.\d+)%?(?!\w)|\w+")
_NUMBER = re.compile(r"(?<!\S)[-+]?\d+(?:\.\d+)?(?=%?(?:\s|$))")


def words(text: str) -> list[str]:
    """Lower-case words without punctuation; number words as digits; a decimal point and a leading sign stay."""
    plain = unicodedata.normalize("NFKC", text).lower().replace("’", "").replace("'", "")
    found = _WORD.findall(_THOUSANDS.sub("", plain))
    return [_DIGITS.get(word, f"0{word}" if word.startswith(".") else word) for word in found]


def normal(text: str) -> str:
    """The form in which two short answers are compared: `words` without articles."""
    kept = [word for word in words(text) if word not in _ARTICLES]
    return " ".join(kept or words(text))  # "A" alone is an option letter, not an article


def yes_no(text: str) -> str | None:
    """"yes" or "no": the first word if it is one of them, else whichever of the two appears alone."""
    found = words(text)
    if found and found[0] in ("yes", "no"):
        return found[0]
    seen = {word for word in found if word in ("yes", "no")}
    return seen.pop() if len(seen) == 1 else None


def number(text: str) -> float | None:
    """The only number of the reply, in digits or as a word; two different numbers are no answer."""
    found = {float(value) for value in _NUMBER.findall(" ".join(words(text)))}
    return found.pop() if len(found) == 1 else None


def judge(reply: str, reference: str, *, contains: bool = False) -> tuple[str | None, float]:
    """(what was read, 1.0 or 0.0): yes/no and numbers by their parser, everything else by its normal form.

    contains: a longer reply counts when the reference stands in it as whole words.
    """
    wanted = normal(reference)
    if wanted in ("yes", "no"):
        read = yes_no(reply)
        return read, float(read == wanted)
    if _NUMBER.fullmatch(wanted):
        value = number(reply)
        return (None if value is None else f"{value:g}"), float(value == float(wanted))
    read = normal(reply)
    hit = read == wanted or (contains and f" {wanted} " in f" {read} ")
    return read or None, float(hit)
