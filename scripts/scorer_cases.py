"""Made rows of the benchmarks in the published layouts, and made replies to them, for scripts/scorer_parity.py.

Knows layouts and how people and models write answers. Does not know scorers or kits. Everything follows from the seed.
"""

import base64
import csv
import io
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image

Row = dict[str, Any]
COPY = 1_000_000  # rotation r of row i of MMBench is row i + r · COPY
PICTURE = "own.png"

# -- replies --


@dataclass(frozen=True)
class Gold:
    """What a reply is made of. letter: the right one of `options`."""

    right: Sequence[str]
    wrong: Sequence[str]
    options: Mapping[str, str] = field(default_factory=dict)
    letter: str | None = None


ARTICLES, MARKS = ("a", "an", "the", "A", "An", "The"), (".", "!", "?", ",", ";", ":", "...", "。", "%", '"', "'")
WRAPS = ("({})", "[{}]", '"{}"', "'{}'", "`{}`", "**{}**", "*{}*", "“{}”", "<{}>", "{{{}}}", "\\boxed{{{}}}", "_{}_")
SAYINGS = (
    "The answer is {}.", "It is {}", "It's {}!", "answer: {}", "I think it is {} because it looks so.", "not {}",
    "The correct answer is **{}**.", "So the final answer is {}", "x = {}", "Answer is {} .", "result {}\nthanks",
    "There is {} in the image.", "Probably {}, but I am not sure", "答案是{}", "Yes, {}", "No, {}", "A {} one",
)  # fmt: skip
TAIL = (
    " The picture shows a street with several people, and a sign stands beside the road; one of them looks away. None "
    "of the others is near. So that is what I see, e.g. in the U.S. at 10:30 p.m."
)
REFUSALS = (
    "I'm sorry, but I cannot help with that.", "As an AI language model I can't see images.", "I don't know",
    "Sorry, I can't help with images of people yet.", "I can't process this file.", "Cannot determine the answer",
    "I'm sorry, but without the image provided I cannot answer A.", "unanswerable", "Unable to tell. A guess: {}",
)  # fmt: skip
NUMBERS = (
    "0", "0.0", "1", "one", "two", "Two", "ten", "none", "None", "14", "14.", "14.7", "13.3", "14.70", "13.29",
    "-3", "5%", "5 %", "0.05", "1,000", "1000", "1,000.5", "$6", "$6.00", "1e3", "1.2e-1", ".5", "10-20", "3/4",
    "12.5", "12.504", "12.51", "2.", "½", "٣", "١٤", "inf", "nan", "1_000", "+14", "14 ", "0x0e", "57%", "0.57",
    "0.6", "12,345,678", "3.14159", "1,23", "1, 2", "1.000.000",
)  # fmt: skip
ODD = (
    "ß", "SS", "İ", "ı", "Ａ", "ＪＯＥ", "　", "é", "e\u0301", "😀", "…", "—", "–", "’", "\u00a0", "\u200b", "\t", "\n",
    "\\n", "图中没有", "是", "ﬁ", "ǅ", "K", "µ",
)  # fmt: skip
WORDS = (
    "yes", "no", "Yes", "No", "not", "none", "a", "an", "the", "A", "B", "C", "D", "E", "Z", "(A)", "B.", "C:",
    "d)", "[D]", "or", "and", "is", "answer", "answer is", "Answer:", "correct", "option", "dont", "don't", "it's",
    "isnt", "Im", "I'm", "joe's", "joes", "u.s.", "o'clock", "oclock", "somebody'd", "couldn'tve", "y'allll",
    "therere", "let's", "two", "2", "14", "14.", "1,000", "10-20", "5%", "=", "so", "could be", "final", "result",
    "-", "/", "?", "!", ",", ".", ";", ":", "(", ")", '"', "'", "&", "$", "#", "*", "<image 1>", "cannot", "sorry",
    "unknown", "e.g.", "i.e.", "x", "X",
)  # fmt: skip
YES_NO = (
    "Yes", "No", "yes.", "no.", "YES", "nO", "y", "n", "Y.", "N", "Yes, there is.", "No, there is not", "yeah",
    "nope", "Not sure", "I know", "Nothing", "There is a dog", "Yes and no", "no yes",
    "Yes, the notice says no smoking", "**Yes**", "**No**", "Yes!No", "'yes'", "is it? no", "eyes", "nose",
    "Not yes", "The answer is yes", "The answer is no.", "1", "0", "true", "false", "unknown", "y es", "n.o",
    "ye.s", " yes ", "\nNo", "yes\nno", "no,yes", "yes-no", "yes/no", "Correct", "I am sure: no", "It is not",
    "Yesterday", "Noon", "know", "Ｙｅｓ", "yes：", "yes。", "Non", "i, no", "a no", "12no",
)  # fmt: skip


OTHERWISE = {
    "isnt": "isn't", "dont": "don't", "don't": "dont", "two": "2", "2": "two", "0": "none", "none": "0", "ten": "10",
    "somebody'd": "somebodyd", "y'allll": "y'all'll", "joe's,": "joes", "JOE's": "joe 's", "1,000": "1000",
}  # fmt: skip


def rewritten(text: str, dice: random.Random) -> str:
    """Words in another spelling of the same, or without one of the marks."""
    mark = dice.choice("'.,-/$:%")
    return dice.choice((" ".join(OTHERWISE.get(word, word) for word in text.split()), text.replace(mark, "")))


def cased(text: str, dice: random.Random) -> str:
    return dice.choice([str.upper, str.lower, str.title, str.swapcase, str.capitalize])(text)


def spaced(text: str, dice: random.Random) -> str:
    made = (
        f" {text} ",
        f"{text}\n",
        f"\n{text}",
        f"\t{text}",
        text.replace(" ", "  "),
        f"{text}\u00a0",
        f"{text} \n {text}",
    )
    return dice.choice(made)


def mistyped(text: str, dice: random.Random) -> str:
    """One edit, or two."""
    for _ in range(dice.choice((1, 1, 2))):
        at = dice.randrange(len(text) + 1)
        letter = dice.choice("aeinst 0.,-'")
        text = dice.choice(
            (text[:at] + letter + text[at:], text[:at] + text[at + 1 :], text[:at] + letter + text[at + 1 :])
        )
    return text


def wide(text: str) -> str:
    """Full-width letters, digits and marks."""
    return "".join(chr(ord(one) + 0xFEE0) if "!" <= one <= "~" else one for one in text)


def soup(gold: Gold, dice: random.Random) -> str:
    """Pieces of everything, in any order."""
    pool = (gold.right, gold.wrong or gold.right, WORDS, NUMBERS, ODD, list(gold.options) or WORDS, MARKS)
    pieces = [dice.choice(dice.choices(pool, (4, 3, 6, 1, 1, 3, 1))[0]) for _ in range(dice.randint(1, 7))]
    return dice.choice(("", " ", " ", " ", "\n", ", ")).join(pieces)


def any_of(gold: Gold, dice: random.Random) -> str:
    """A right text, or one that is not."""
    return dice.choice(gold.wrong if gold.wrong and dice.random() < 0.25 else gold.right)


SHORT: dict[str, Callable[[Gold, random.Random], str]] = {
    "answer": lambda gold, dice: dice.choice(gold.right),
    "wrong": lambda gold, dice: dice.choice(gold.wrong or ("wrong",)),
    "case": lambda gold, dice: cased(any_of(gold, dice), dice),
    "mark": lambda gold, dice: any_of(gold, dice) + dice.choice(MARKS),
    "rewritten": lambda gold, dice: rewritten(any_of(gold, dice), dice),
    "wrapped": lambda gold, dice: dice.choice(WRAPS).format(any_of(gold, dice)),
    "article": lambda gold, dice: f"{dice.choice(ARTICLES)} {any_of(gold, dice)}",
    "space": lambda gold, dice: spaced(any_of(gold, dice), dice),
    "sentence": lambda gold, dice: dice.choice(SAYINGS).format(any_of(gold, dice)),
    "long": lambda gold, dice: dice.choice(SAYINGS).format(any_of(gold, dice)) + TAIL,
    "several": lambda gold, dice: dice.choice((", ", " or ", " and ", "\n", "/")).join(
        any_of(gold, dice) for _ in "ab"
    ),
    "typo": lambda gold, dice: mistyped(any_of(gold, dice), dice),
    "refusal": lambda gold, dice: dice.choice(REFUSALS).format(any_of(gold, dice)),
    "empty": lambda gold, dice: dice.choice(("", " ", "\n", ".", "\t\n", "?", "**")),
    "number": lambda gold, dice: dice.choice(NUMBERS),
    "unicode": lambda gold, dice: dice.choice((wide(any_of(gold, dice)), any_of(gold, dice) + dice.choice(ODD))),
    "soup": soup,
}
LETTERED = (
    "{}",
    "({})",
    "{}.",
    "{}:",
    "{})",
    "[{}]",
    "**{}**",
    "{}\n",
    " {}",
    "{},",
    "\\boxed{{{}}}",
    "Option {}",
    "{}!",
    "'{}'",
)
CALLED = (
    "The answer is {}", "The answer is {}.", "Answer: {}", "The correct option is ({}).", "answer is **{}**",
    "({}) is right", "I choose {}", "{} because it fits", "The best choice is {}, as the rest is wrong",
    "It must be {} I think.", "Looking at the picture, the answer is {} since A is wrong.", "答案是{}", "选{}",
    "So, {} it is", "{} is the answer", "A: no. {}: yes.", "Final answer:\n\n{}", "The answer is option {}",
    "I believe that out of all of these it is {}",
)  # fmt: skip
BOTH = (
    "{} or {}",
    "{}, {}",
    "{} and {}",
    "Both {} and {}",
    "not {} but {}",
    "{}{}",
    "({}) ({})",
    "{}. no\n{}. yes",
    "{}/{}",
)


def letter(gold: Gold, dice: random.Random) -> str:
    return gold.letter if gold.letter and dice.random() < 0.5 else dice.choice(list(gold.options))


def headed(gold: Gold, dice: random.Random) -> str:
    one = letter(gold, dice)
    return dice.choice(("{}. {}", "{}: {}", "({}) {}", "{} {}", "{}) {}", "**{}** {}", "{} - {}")).format(
        one, gold.options[one]
    )


CHOICE: dict[str, Callable[[Gold, random.Random], str]] = {
    "letter": letter,
    "marked letter": lambda gold, dice: dice.choice(LETTERED).format(letter(gold, dice)),
    "small letter": lambda gold, dice: dice.choice(LETTERED).format(letter(gold, dice).lower()),
    "letter and wording": headed,
    "called letter": lambda gold, dice: dice.choice(CALLED).format(letter(gold, dice)),
    "letter and more": lambda gold, dice: dice.choice(CALLED).format(letter(gold, dice)) + TAIL,
    "two letters": lambda gold, dice: dice.choice(BOTH).format(letter(gold, dice), letter(gold, dice)),
    "no such letter": lambda gold, dice: dice.choice(LETTERED).format(dice.choice("EFZXAI")),
}
YES_OR_NO: dict[str, Callable[[Gold, random.Random], str]] = {"yes or no": lambda gold, dice: dice.choice(YES_NO)}


def replies(gold: Gold, n: int, dice: random.Random) -> list[tuple[str, str]]:
    """(family, reply), all families about equally often."""
    known = SHORT | (CHOICE if gold.options else YES_OR_NO if set(gold.right) <= {"yes", "no"} else {})
    names = list(known) + ["yes or no"] * 4 * ("yes or no" in known) + ["soup"] * 2
    return [(name, known[name](gold, dice)) for name in (dice.choice(names) for _ in range(n))]


# -- rows: each function gives those of the authors' layout and those of VLMEvalKit's tables --

ASKED = (
    "What is it?", "  How many are there? ", "WHO signed the Form?", "what share is 5% of $6?\n",
    "Où est-ce, à Paris?", "这是什么？", 'Is the word "EXIT" or \'exit\'?', "e.g. which?\nAnd where?", "İs it ßo?",
)  # fmt: skip
ANSWERS = (
    "red", "Red", "a box", "the", "two", "2", "14", "14.", "0", "5%", "0.57", "1,000", "1000", "$6.00", "10-20",
    "don't know", "dont know", "joe's, bar", "JOE's bar", "u.s.", "U.S.A", "5:30 p.m.", "ann  lee", "Straße",
    "İzmir", "é", "１２", "中文", "x", "isnt", "somebody'd", "y'allll", "let's", "4 February", "yes", "no", "none",
    "-3", "12.5", "http://a.org/b", "[sic]", "3/4",
)  # fmt: skip
WORDINGS = (
    "a cat", "a black cat", "dog", "the Sun", "None", "0", "12", "3.5", "yes", "no", "It is A.", "left",
    "to the left of it", "A and B", "42%", "café", "红色", "the answer is C", "Paris, France", "I", "nan", "e",
    "X = 2", "black", "None of the above",
)  # fmt: skip
HINTS = (None, "nan", "", "It is a circle.", "  Look. ", "None of it is real.", "NaN", "0")
GIVEN = NUMBERS[:38]  # those that may be an answer
SUBJECTS = ("Accounting", "Art_Theory", "Math", "Basic_Medical_Science", "History", "Computer_Science")
PERCEPTION = ("existence", "count", "position", "color", "posters", "celebrity", "scene", "landmark", "artwork", "OCR")
COGNITION = ("commonsense_reasoning", "numerical_calculation", "text_translation", "code_reasoning")
OCR_TYPES = (
    "Regular Text Recognition", "Irregular Text Recognition", "Artistic Text Recognition", "Handwriting Recognition",
    "Digit String Recognition", "Non-Semantic Text Recognition", "Scene Text-centric VQA", "Doc-oriented VQA",
    "Key Information Extraction", "Handwritten Mathematical Expression Recognition",
)  # fmt: skip
Tables = tuple[list[Row], list[Row]]


def answered(dice: random.Random) -> list[str]:
    """What ten people say, with more or less agreement."""
    few = dice.sample(ANSWERS, dice.randint(1, 4))
    return [dice.choice(few[: dice.randint(1, len(few))]) for _ in range(10)]


def textvqa(dice: random.Random, n: int) -> Tables:
    own, kit = [], []
    for at in range(n):
        question, said, kind = dice.choice(ASKED), answered(dice), dice.choice(("number", "other"))
        own.append({"question_id": at, "question": question, "answers": said, "answer_type": kind})
        kit.append({"index": at, "question": question, "answer": str(said)})
    return own, kit


def vqav2(dice: random.Random, n: int) -> Tables:
    own, kit = textvqa(dice, n)
    for row in own:
        said = enumerate(row["answers"], 1)
        row["answers"] = [{"answer": one, "answer_confidence": "yes", "answer_id": at} for at, one in said]
    return own, kit


def gqa(dice: random.Random, n: int) -> Tables:
    rows = [(str(at), dice.choice(ASKED), dice.choice(ANSWERS)) for at in range(n)]
    own = [{"id": id, "imageId": id, "question": question, "answer": answer} for id, question, answer in rows]
    return own, [{"index": int(id), "question": question, "answer": answer} for id, question, answer in rows]


def chartqa(dice: random.Random, n: int) -> Tables:
    own, kit = [], []
    for at in range(n):
        question, said = dice.choice(ASKED), dice.sample(ANSWERS + GIVEN, 2)
        half, told = dice.choice(("human", "augmented")), str(said) if dice.random() < 0.3 else said[0]
        own.append({"type": f"{half}_test", "question": question, "answer": said[0]})
        kit.append({"index": at, "question": question, "answer": told, "split": f"test_{half}"})
    return own, kit


def docvqa(dice: random.Random, n: int) -> Tables:
    own, kit = [], []
    for at in range(n):
        question, said = dice.choice(ASKED), dice.sample(ANSWERS, dice.randint(1, 3))
        types = dice.sample(("form", "layout", "table/list"), dice.randint(1, 2))
        own.append({"questionId": str(at), "question": question, "answers": said, "question_types": types})
        kit.append({"index": at, "question": question, "answer": str(said)})
    return own, kit


def ocrbench(dice: random.Random, n: int) -> Tables:
    own, kit = [], []
    for at in range(n):
        kind, question = OCR_TYPES[at % len(OCR_TYPES)], dice.choice(ASKED)
        formula = kind == OCR_TYPES[-1]
        said = ["X ^ { 2 }", "x^{2}"] if formula else dice.sample(ANSWERS, dice.randint(1, 2))
        name = "HME100k" if formula else "IIIT5K"
        own.append({"dataset": name, "question": question, "question_type": kind, "answer": said})
        kit.append({"index": at, "question": question, "answer": str(said), "category": kind})
    return own, kit


def pope(dice: random.Random, n: int) -> Tables:
    """In VLMEvalKit's table a row may be of several categories."""
    own, kit, kinds = [], [], ("adversarial", "popular", "random")
    for at in range(n):
        question, answer = dice.choice(ASKED), dice.choice(("yes", "no"))
        own.append({"question_id": str(at), "question": question, "answer": answer, "category": dice.choice(kinds)})
        several = ",".join(dice.sample(kinds, dice.randint(1, 3)))
        kit.append({"index": at, "question": question, "answer": answer.title(), "category": several})
    return own, kit


def mme(dice: random.Random, n: int) -> Tables:
    """Pairs, of every category two or more; VLMEvalKit's names of pictures repeat over categories."""
    own: list[Row] = []
    kit: list[Row] = []
    for at in range(max(n // 2, 28)):
        kind = (PERCEPTION + COGNITION)[at % 14]
        for answer in dice.sample(("Yes", "No"), 2):
            question = f"{dice.choice(ASKED)} Please answer yes or no."
            row = {"question": question, "answer": answer, "category": kind}
            own.append({"question_id": f"{kind}/{at}.png", **row})
            kit.append({"index": len(kit), "image_path": f"{at // 14}.jpg", **row})
    return own, kit


def hallusionbench(dice: random.Random, n: int) -> Tables:
    """Sets of figures with some of the questions each; in the supplement part the first has no picture."""
    own, kit = [], []
    names = ("category", "subcategory", "visual_input", "set_id", "figure_id", "question_id")
    for group in range(n // 4):
        part, name = dice.choice((("VD", "chart"), ("VS", "map"), ("VS", "table"), ("VD", "video")))
        asked = [(figure, number) for figure in range(dice.randint(1, 3)) for number in range(dice.randint(1, 3))]
        for figure, number in asked:
            answer, question = dice.choice("10"), dice.choice(ASKED)
            place = dict(zip(names, (part, name, str(min(figure, 2)), str(group), str(figure), str(number))))
            blind = part == "VS" and figure == 0
            own.append({**place, "question": question, "gt_answer": answer} | ({"image": None} if blind else {}))
            kit.append({
                "index": "_".join(place.values()), "category": part, "l2-category": f"{part}_{name}",
                "question": question, "answer": "Yes" if answer == "1" else "No", **({"image": ""} if blind else {}),
            })  # fmt: skip
    return own, kit


def chosen(dice: random.Random, most: int, without: Sequence[str] = ("nan",)) -> tuple[str, list[str], int]:
    """(question, wordings, the right one's place)."""
    wordings = dice.sample([one for one in WORDINGS if one not in without], dice.randint(2, most))
    return dice.choice(ASKED), wordings, dice.randrange(len(wordings))


def lettered(wordings: Sequence[str], most: int, none: str | None = None) -> dict[str, str | None]:
    return {"ABCDEFG"[at]: wordings[at] if at < len(wordings) else none for at in range(most)}


def mmbench(dice: random.Random, n: int) -> Tables:
    """Groups with all of their rotations."""
    own, kit = [], []
    for group in range(3, 3 + n // 3):
        question, wordings, right = chosen(dice, 4)
        none, hint = dice.choice((None, "nan")), dice.choice(HINTS)
        kinds = dice.choice((("object_localization", "finegrained_perception"), ("ocr", "coarse_perception")))
        for turn in range(len(wordings)):
            moved = [wordings[(place - turn) % len(wordings)] for place in range(len(wordings))]
            row = {"index": group + turn * COPY, "question": question, "category": kinds[0], "split": "dev"}
            row["answer"] = "ABCD"[(right + turn) % len(wordings)]
            rest = {"hint": hint, "L2-category": kinds[1], "source": "own", "comment": "nan"}
            own.append({**row, **lettered(moved, 4, none), **rest})
            kit.append({**row, **lettered(moved, 4, ""), "l2-category": kinds[1], "hint": hint or ""})
    return own, kit


def mmmu(dice: random.Random, n: int) -> Tables:
    """An open question's answer is a text, or a list as Python writes it."""
    own, kit = [], []
    for at in range(n):
        question, wordings, right = chosen(dice, 7, without=())
        subject, said = dice.choice(SUBJECTS), str(dice.choice(ANSWERS + GIVEN))
        said = str(dice.sample(ANSWERS, 2)) if dice.random() < 0.2 else said
        row = {"id": f"validation_{subject}_{at}", "question": f"{question} <image 1>", "image_1": PICTURE}
        if dice.random() < 0.5:
            own.append({**row, "question_type": "open", "options": "[]", "answer": said})
        else:
            given = {"options": str(wordings), "answer": "ABCDEFG"[right]}
            own.append({**row, "question_type": "multiple-choice", **given})
        question, wordings, right = chosen(dice, 7, without=("nan", "None"))
        kit.append({
            "index": at, "question": f"{question} <image 1>", **lettered(wordings, 7, ""), "split": "validation",
            "answer": "ABCDEFG"[right], "category": subject,
        })  # fmt: skip
    return own, kit


def scienceqa(dice: random.Random, n: int) -> Tables:
    own, kit = [], []
    for at in range(n):
        question, wordings, right = chosen(dice, 5)
        hint, subject = dice.choice(HINTS) or "", dice.choice(("natural science", "social science"))
        grade = f"grade{dice.randint(1, 12)}"
        row = {"question": question, "hint": hint}
        own.append({**row, "choices": wordings, "answer": right, "subject": subject, "grade": grade})
        kit.append({**row, "index": at, **lettered(wordings, 5, ""), "answer": "ABCDE"[right], "category": subject})
    return own, kit


def realworldqa(dice: random.Random, n: int) -> Tables:
    """The authors write options into the question, VLMEvalKit into columns."""
    own, kit = [], []
    only = "Please answer directly with only the letter of the correct option and nothing else."
    word = "Please answer directly with a single word or number."
    for at in range(n):
        question, wordings, right = chosen(dice, 4, without=("nan", "None"))
        text = "\n".join(f"{letter}. {wording}" for letter, wording in zip("ABCD", wordings))
        row = {"question": f"{question}\n\n{text}\n{only}", "answer": "ABCD"[right]}
        if dice.random() < 0.5:
            row = {"question": f"{question} {word}", "answer": dice.choice(ANSWERS)}
        own.append({"image_path": f"{at}.webp", **row})
        kit.append({"index": at, "question": question, **lettered(wordings, 4, ""), "answer": "ABCD"[right]})
    return own, kit


ROWS: dict[str, Callable[[random.Random, int], Tables]] = {
    "vqav2": vqav2, "gqa": gqa, "textvqa": textvqa, "pope": pope, "mme": mme, "mmbench": mmbench, "mmmu": mmmu,
    "hallusionbench": hallusionbench, "realworldqa": realworldqa, "chartqa": chartqa, "docvqa": docvqa,
    "infovqa": docvqa, "ocrbench": ocrbench, "scienceqa": scienceqa,
}  # fmt: skip


def written(name: str, n: int, seed: int, folder: Path) -> tuple[Path, Path]:
    """The files of made rows, in JSON lines as the authors' columns are, and in VLMEvalKit's table."""
    folder.mkdir(parents=True, exist_ok=True)
    stream = io.BytesIO()
    Image.new("RGB", (8, 8), "seagreen").save(stream, "PNG")
    (folder / PICTURE).write_bytes(stream.getvalue())
    own, kit = ROWS[name](random.Random(f"{name}/{seed}"), n)
    lines, table = folder / f"{name}.jsonl", folder / f"{name}.tsv"
    full = (row if "image_1" in row else {"image": PICTURE} | row for row in own)
    lines.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in full), encoding="utf-8")
    picture = base64.b64encode(stream.getvalue()).decode()
    columns = list(dict.fromkeys(["image", *(column for row in kit for column in row)]))
    with table.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, delimiter="\t", restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows({"image": picture} | row for row in kit)
    return lines, table
