"""Makes the miniatures of the multiple-choice benchmarks, in the layouts their authors and VLMEvalKit publish.

python tests/data/make_choice.py writes tests/data/{mmbench,mmmu,scienceqa,realworldqa}. The pictures are drawn here.
"""

import base64
import csv
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from datasets import Dataset, Features, Image, List, Value
from PIL import Image as Pictures
from PIL import ImageDraw

HERE = Path(__file__).parent
TEXT, NUMBER = Value("string"), Value("int64")
COPY = 1_000_000


def picture(colour: str, side: int = 24) -> dict[str, Any]:
    image = Pictures.new("RGB", (side, side), "white")
    ImageDraw.Draw(image).ellipse((4, 4, side - 5, side - 5), fill=colour)
    stream = BytesIO()
    image.save(stream, "PNG")
    return {"bytes": stream.getvalue(), "path": None}


def coded(colour: str) -> str:
    return base64.b64encode(picture(colour)["bytes"]).decode()


def parquet(name: str, rows: Sequence[Mapping[str, Any]], features: Mapping[str, Any]) -> None:
    (HERE / name).parent.mkdir(exist_ok=True)
    full = [{column: row.get(column) for column in features} for row in rows]
    Dataset.from_list(full, features=Features(features)).to_parquet(HERE / name)


def tsv(name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    columns = list(dict.fromkeys(column for row in rows for column in row))
    with (HERE / name).open("w", newline="", encoding="utf-8") as lines:
        writer = csv.DictWriter(lines, columns, delimiter="\t", restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def rotations(index: int, options: Sequence[str], right: int, **row: Any) -> list[dict[str, Any]]:
    """The base row and its copies: copy r has the options r places to the right."""
    n, made = len(options), []
    for r in range(n):
        moved = {"ABCD"[(j + r) % n]: option for j, option in enumerate(options)}
        made.append({"index": index + r * COPY, "answer": "ABCD"[(right + r) % n], **moved, **row})
    return made


def mmbench() -> None:
    shape = {"question": "What is drawn?", "hint": "nan", "category": "object_localization", "split": "dev"}
    shape |= {"source": "own", "L2-category": "finegrained_perception", "comment": "nan"}
    colour = {**shape, "question": "Which colour is it?", "category": "attribute_recognition"}
    logic = {**shape, "question": "Is it round?", "hint": "It is a circle.", "category": "physical_property_reasoning"}
    logic["L2-category"] = "attribute_reasoning"
    red, blue, green = (picture(name) for name in ("red", "blue", "green"))
    groups = [
        rotations(241, ["a cross", "a star", "a circle", "a square"], 2, **shape, image=red),
        rotations(252, ["blue", "red", "green"], 0, **colour, D="nan", image=blue),
        rotations(7, ["yes", "no"], 0, **logic, C=None, D=None, image=green),
    ]
    base_rows_first = sorted((row for group in groups for row in group), key=lambda row: row["index"] // COPY)
    columns = ["question", "hint", "answer", "A", "B", "C", "D", "category"]
    features = {"index": NUMBER, **dict.fromkeys(columns, TEXT), "image": Image()}
    features |= dict.fromkeys(["source", "L2-category", "comment", "split"], TEXT)
    parquet("mmbench/dev-00000-of-00001.parquet", base_rows_first, features)
    kit = [{**row, "l2-category": row["L2-category"], "image": coded("red")} for row in groups[0]]
    kit += [{**row, "l2-category": row["L2-category"], "image": coded("blue")} for row in groups[1]]
    for row in kit:
        row["image"] = row["index"] % COPY if row["index"] >= COPY else row["image"]
        for column in ("L2-category", "comment", "source"):
            del row[column]
        row |= {column: "" for column, value in row.items() if value == "nan"}
    tsv("mmbench/MMBench_DEV_EN.tsv", [row for row in kit if row["index"] != 241 + 2 * COPY])


def mmmu() -> None:
    rows = [
        {"id": "validation_Accounting_1", "question": "<image 1> What is the sum?", "options": "['$6', '$7', '$8']",
         "answer": "B", "question_type": "multiple-choice", "image_1": picture("red")},
        {"id": "validation_Basic_Medical_Science_2", "question": "Which one of these follows <image 3>?",
         "options": "['<image 2>', '<image 4>']", "answer": "A", "question_type": "multiple-choice",
         "image_1": picture("gray"), "image_2": picture("red"), "image_3": picture("green", 40),
         "image_4": picture("blue")},
        {"id": "validation_Math_3", "question": "<image 1> How long is it?", "options": "[]",
         "answer": "['12.5', 'twelve and a half']", "question_type": "open", "image_1": picture("blue")},
        {"id": "validation_Math_4", "question": "What is left over?", "options": "['x', 'y']", "answer": "?",
         "question_type": "multiple-choice", "image_1": picture("black"), "image_2": picture("red")},
    ]  # fmt: skip
    text = ["id", "question", "options", "explanation"]
    features = {**dict.fromkeys(text, TEXT), **{f"image_{k}": Image() for k in range(1, 8)}}
    features |= dict.fromkeys(["img_type", "answer", "topic_difficulty", "question_type", "subfield"], TEXT)
    parquet("mmmu/validation-00000-of-00001.parquet", rows, features)
    tsv("mmmu/MMMU_DEV_VAL.tsv", [
        {"index": 1, "question": "<image 2> What follows?", "A": "red", "B": "blue", "answer": "B",
         "category": "Art_Theory", "split": "validation", "image": str([coded("red"), coded("blue")])},
        {"index": 2, "question": "How many are there?", "A": "3", "B": "Other Answers", "answer": "A",
         "category": "Math", "split": "validation", "image": coded("green")},
    ])  # fmt: skip


def scienceqa() -> None:
    rows = [
        {"image": picture("red"), "question": "Which is larger?", "choices": ["the Sun", "the Moon"], "answer": 0,
         "hint": "Look at the circle.", "grade": "grade3", "subject": "natural science"},
        {"image": picture("blue"), "question": "Which state is this?", "choices": ["Ohio", "Iowa", "Utah"], "answer": 2,
         "hint": "", "grade": "grade8", "subject": "social science"},
        {"image": None, "question": "Which word rhymes?", "choices": ["hat", "dog"], "answer": 1, "hint": "",
         "grade": "grade2", "subject": "language science"},
    ]  # fmt: skip
    text = ["hint", "task", "grade", "subject", "topic", "category", "skill", "lecture", "solution"]
    features = {"image": Image(), "question": TEXT, "choices": List(TEXT), "answer": Value("int8")}
    parquet("scienceqa/test-00000-of-00001.parquet", rows, features | dict.fromkeys(text, TEXT))
    tsv("scienceqa/ScienceQA_TEST.tsv", [
        {"index": 11, "image": coded("red"), "question": "Which is larger?", "hint": "Look.", "A": "the Sun",
         "B": "None", "C": "", "answer": "B", "category": "natural science"},
    ])  # fmt: skip


def realworldqa() -> None:
    asked = "Where is it?\n\nA. Left\nB. Right\nC. Ahead\n"
    directly = "Please answer directly with only the letter of the correct option and nothing else."
    word = "Please answer directly with a single word or number."
    rows = [
        {"image": picture("red"), "answer": "B", "question": f"{asked}{directly}"},
        {"image": picture("blue"), "answer": "2", "question": f"How many lanes are there? {word}"},
        {"image": picture("green"), "answer": "A", "question": f"Is it near?\nA. Yes\nB. No\n{directly}"},
    ]
    for at, row in enumerate(rows):
        row["image_path"] = f"{at}.webp"
    features = {"image": Image(), "image_path": TEXT, "question": TEXT, "answer": TEXT}
    parquet("realworldqa/test-00000-of-00001.parquet", rows, features)
    tsv("realworldqa/RealWorldQA.tsv", [
        {"index": 5, "image": coded("red"), "question": "Where is it?", "A": "Left", "B": "Right", "answer": "B"},
    ])  # fmt: skip


if __name__ == "__main__":
    for make in (mmbench, mmmu, scienceqa, realworldqa):
        make()
