"""MMMU: college questions with up to seven pictures, which stand where the text names them; letters or short answers.

Knows the layout of the rows and the official way to read an answer. Does not know models.
https://arxiv.org/abs/2311.16502
"""

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from PIL import Image

from mmaccel.benchmarks.base import MARK, Sample
from mmaccel.benchmarks.choice import DIRECTLY, Options, answer_of, chosen, lines, options_of, shares
from mmaccel.benchmarks.folder import read_picture
from mmaccel.benchmarks.quality import picture_facts
from mmaccel.benchmarks.rows import Row
from mmaccel.benchmarks.table import SHORT_ANSWER, Table, right
from mmaccel.measure.scores import mean

SUBJECT = re.compile(r"[a-z]+_(.+?)_\d+")  # validation_Accounting_1
OPEN = "open"
KEYS = ("could be ", "so ", "is ", "thus ", "therefore ", "final ", "answer ", "result ")
NUMBER = re.compile(r"-?(?:\d+(?:\.\d+)?e[+-]?\d+|\b\d{1,3}(?:,\d{3})+(?:\.\d+)?\b|\d*\.\d+|\d+\b)")
OFFICIAL_NUMBERS = (  # each reads the text anew: with commas, with an exponent, and plain ones that no comma follows
    re.compile(r"-?\b\d{1,3}(?:,\d{3})+\b"),
    re.compile(r"-?\d+(?:\.\d+)?e[+-]?\d+"),
    re.compile(r"-?(?:\d+\.\d+|\.\d+|\d+\b)(?!e[+-]?\d+)(?![,\d])"),
)
READ: dict[str, tuple[re.Pattern[str], ...]] = {"ours": (NUMBER,), "mmmu_random": OFFICIAL_NUMBERS}
Said = str | float


@dataclass
class MMMU(Table):
    """Multiple choice by its letter, open questions by the official rule: a gold text inside a key phrase of the reply,
    or a gold number (to two places) among its numbers.

    compat: `ours` reads letters as `choice` does and counts what it cannot read as wrong, and 1,000.5 is one number;
    `mmmu_random` reads letters and numbers as the official script does, which guesses a letter that it cannot read:
    here by dice of the sample's own, and the reply counts as unparsed.
    Columns: id, question, options (a list, also as Python writes it), answer, question_type, image_1 … image_7.
    Also one `image` (a list of several) and options A, B, … as in a table of VLMEvalKit, whose open questions are
    choices. Summary: the share right per subject and of all ("overall"), and how many were not read.
    """

    datasets: Sequence[str] = ("lmms-lab-encoder/MMMU", "lmms-lab/MMMU", "MMMU/MMMU")
    split: str | None = "validation"
    max_new_tokens: int = 128
    name: str = "mmmu"
    compat: str = "ours"

    NEEDS: ClassVar[tuple[str, ...]] = ("id", "image", "question", "options", "answer")
    USUAL: ClassVar[Mapping[str, tuple[str, ...]]] = {"id": ("index",), "image": ("image_1",), "options": ("A",)}
    ALSO: ClassVar[tuple[str, ...]] = ("category", "question_type")
    CHOICES: ClassVar[Mapping[str, tuple[Any, ...]]] = {"compat": ("ours", "mmmu_random")}

    def kind(self, row: Row) -> str:
        """The subject."""
        found = SUBJECT.fullmatch(row.text("id"))
        return found[1] if found else row.maybe("category") or self.name

    def sample(self, row: Row) -> Sample:
        options: Options = {} if row.get("question_type") == OPEN else options_of(row, "options")
        question, truth, reference = row.text("question"), {"options": options, "accepted": ()}, None
        if options:
            question, reference = f"{question}\n{lines(options)}\n\n{DIRECTLY}", answer_of(row, options)
        else:
            truth["accepted"] = () if row.maybe("answer") in (None, "?") else tuple(row.several("answer"))
            question, reference = f"{question}\n{SHORT_ANSWER}", next(iter(truth["accepted"]), None)
        question, pictures = placed(row, question)
        images = [image for image, _ in pictures]
        width, height = pictures[0][1]
        facts = picture_facts(images[0]) | {"width": width, "height": height, "pictures": len(images)}
        return Sample(
            row.text("id"), self.kind(row), images[0], (question,), (reference,), facts=facts, truth=truth,
            more=tuple(images[1:]), marked=bool(MARK.search(question)),
        )  # fmt: skip

    def score(self, sample: Sample, replies: Sequence[str]) -> dict[str, Any]:
        reply, options = replies[-1], sample.truth["options"]
        if options:
            read = chosen(reply, options) if self.compat == "ours" else official_letter(reply, options)
            taken = read or (guess(sample.id, options) if self.compat == "mmmu_random" else None)
            hit = taken == sample.reference[-1]
        else:
            read = reply.strip() or None
            hit = official_open(reply, sample.truth["accepted"], READ[self.compat])
        correct = None if sample.reference[-1] is None else float(hit)
        return {"correct": correct, "parsed": read, "unparsed": read is None}

    def summary(self, records: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
        scored = [record for record in records if record["score"]["correct"] is not None]
        return {
            "overall": mean(right(scored)),
            **shares(((record["kind"], record["score"]["correct"]) for record in scored), "subject"),
            "n unparsed": sum(record["score"]["unparsed"] for record in records),
        }


def placed(row: Row, question: str) -> tuple[str, list[tuple[Image.Image, tuple[int, int]]]]:
    """(the text with its marks numbered by the pictures that it names, those pictures with their sizes); where it names
    none, all of the row."""
    named = sorted({int(number) for number in MARK.findall(question)})
    if row.named["image"] == "image_1":
        wanted = named or [number for number in range(1, 8) if row.has(f"image_{number}")]
        pictures = [row.picture(f"image_{number}") for number in wanted]
    else:
        pictures = one_column(row, named)
    if not pictures:
        raise ValueError(f"{row.where}, column {row.named['image']!r}: no picture")
    places = {number: place for place, number in enumerate(named, 1)}
    return MARK.sub(lambda mark: f"<image {places[int(mark[1])]}>", question), pictures


def one_column(row: Row, named: Sequence[int]) -> list[tuple[Image.Image, tuple[int, int]]]:
    """The pictures that the text names of the list in one cell."""
    cells = row.several("image") if isinstance(row.get("image"), str) else [row.get("image")]
    if any(not 1 <= number <= len(cells) for number in named):
        raise ValueError(f"{row.where}: the question names the pictures {list(named)}, there are {len(cells)}")
    if len(cells) == 1:
        return [row.picture()]
    wanted = [cells[number - 1] for number in named] or cells
    try:
        return [read_picture(row.opened(cell), *row.limits) for cell in wanted]
    except Exception as error:  # Pillow's decoders raise OSError, SyntaxError, ValueError and struct.error alike
        column = row.named["image"]
        raise ValueError(f"{row.where}, column {column!r}: {type(error).__name__}: {error}") from error


def guess(sample: str, options: Options) -> str:
    """The same for one sample in whatever order samples are scored."""
    return random.Random(f"mmmu/{sample}").choice(list(options))


def official_letter(reply: str, options: Options) -> str | None:
    """ "(B)" anywhere, else "B ", else "B.", else in a reply of more than five words the wording; of several the last.
    None where the official script guesses."""
    for mark in ",.!?;:'":
        reply = reply.strip(mark)
    reply = f" {reply} "
    for form, last in (("({})", "({})"), ("{} ", " {} "), ("{}.", " {} ")):
        found = [letter for letter in options if form.format(letter) in reply]
        if found:
            return max(found, key=lambda letter: reply.rfind(last.format(letter)))
    if len(reply.split()) <= 5:
        return None
    low = reply.lower()
    said = [letter for letter, wording in options.items() if wording.lower() in low]
    return max(said, key=lambda letter: low.rfind(options[letter].lower()), default=None)


def official_open(reply: str, accepted: Sequence[str], numbers: Sequence[re.Pattern[str]]) -> bool:
    gold = {form for answer in accepted for form in forms(answer)}
    texts = [form for form in gold if isinstance(form, str)]
    for said in (form for phrase in phrases(reply, numbers) for form in forms(phrase)):
        if said in gold if isinstance(said, float) else any(text in said for text in texts):
            return True
    return False


def phrases(reply: str, numbers: Sequence[re.Pattern[str]]) -> list[str]:
    """What may be the answer: of each line the shortest rest behind a key word, and the numbers in it."""
    text = reply.strip().strip(".").lower()
    rows = text.split("\n")
    rests = [*(rest(row, KEYS) for row in rows[:-1]), rest(rows[-1], (*KEYS, "="))]
    found = [one for one in rests if one and one not in list(":,.!?;'")] or [text]
    return [*found, *(number for phrase in found for pattern in numbers for number in pattern.findall(phrase))]


def rest(row: str, keys: Sequence[str]) -> str:
    """The shortest text behind the last of any key; empty where there is none, and where the last key ends the line."""
    shortest = ""
    for one in (row.rsplit(key, 1)[1].strip() for key in keys if key in row):
        shortest = one if not shortest or len(one) < len(shortest) else shortest
    return shortest


def forms(text: str) -> list[Said]:
    """A number to two places, or lower case; a single character needs a space on a side, or it would be everywhere."""
    text = text.strip()
    try:
        return [round(float(text.replace(",", "")), 2)]
    except ValueError:
        low = text.lower()
        return [f" {low}", f"{low} "] if len(low) == 1 else [low]
