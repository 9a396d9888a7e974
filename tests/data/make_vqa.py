"""Makes the miniature VQAv2, GQA, TextVQA, DocVQA, InfographicVQA, ChartQA and OCRBench beside this file.

    python tests/data/make_vqa.py

The columns and their types are the published ones; questions, answers and pictures are made up here.
"""

import base64
import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset, Features, Image, List, Value
from PIL import Image as Pillow
from PIL import ImageDraw

HERE = Path(__file__).parent
TEXT, WHOLE, YES = Value("string"), Value("int64"), Value("bool")
COLOURS = ("firebrick", "seagreen", "royalblue", "goldenrod", "orchid")


def picture(number: int, text: str = "", size: tuple[int, int] = (48, 32)) -> dict[str, Any]:
    image = Pillow.new("RGB", size, "white")
    draw = ImageDraw.Draw(image)
    draw.rectangle((6 + number, 5, 26 + number, 20), fill=COLOURS[number % len(COLOURS)])
    draw.text((2, 20), text, fill="black")
    stream = io.BytesIO()
    image.save(stream, "PNG", optimize=True)
    return {"bytes": stream.getvalue(), "path": f"{number}.png"}


def parquet(name: str, features: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> None:
    file = HERE / name
    file.parent.mkdir(parents=True, exist_ok=True)
    Dataset.from_list([dict(row) for row in rows], features=Features(features)).to_parquet(file)


def tsv(name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """VLMEvalKit's layout: pictures in base64, or another row's index where the picture is the same."""
    file = HERE / name
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(rows[0]), delimiter="\t")
        writer.writeheader()
        writer.writerows(rows)


def encoded(number: int, text: str = "") -> str:
    return base64.b64encode(picture(number, text)["bytes"]).decode()


def said(*answers: tuple[str, int]) -> list[dict[str, Any]]:
    words = [word for word, times in answers for _ in range(times)]
    return [{"answer": word, "answer_confidence": "yes", "answer_id": at} for at, word in enumerate(words, 1)]


def vqav2() -> None:
    features = {
        "question_type": TEXT, "multiple_choice_answer": TEXT,
        "answers": List({"answer": TEXT, "answer_confidence": TEXT, "answer_id": WHOLE}),
        "image_id": WHOLE, "answer_type": TEXT, "question_id": WHOLE, "question": TEXT, "image": Image(),
    }  # fmt: skip
    rows = [
        ("is the", "yes", said(("yes", 10)), 42, "yes/no", 42000, "Is the square red?"),
        ("how many", "2", said(("2", 6), ("two", 2), ("3", 2)), 42, "number", 42001, "How many corners are cut?"),
        ("what is", "don't know", said(("dont know", 1), ("box", 5), ("a box", 4)), 73, "other", 73000, "What is it?"),
    ]
    pictures = [picture(0), picture(0), picture(1)]
    named = [dict(zip(features, (*row, image))) for row, image in zip(rows, pictures)]
    parquet("vqav2/validation-00000-of-00001.parquet", features, named)
    unknown = {"answers": None, "multiple_choice_answer": None, "answer_type": None, "question_type": None}
    parquet("vqav2/testdev-00000-of-00001.parquet", features, [named[0] | unknown])


def gqa() -> None:
    features = {
        "id": TEXT, "imageId": TEXT, "question": TEXT, "answer": TEXT, "fullAnswer": TEXT, "isBalanced": YES,
        "types": {"detailed": TEXT, "semantic": TEXT, "structural": TEXT},
    }  # fmt: skip
    rows = [
        ("201", "n7", "What colour is the square?", "red", "The square is red.", True, ("colour", "attr", "query")),
        ("202", "n7", "Is the square to the left?", "yes", "Yes, it is.", True, ("relVerify", "rel", "verify")),
        ("203", "n9", "Is it a square or a disc?", "square", "It is a square.", True, ("chooseObj", "obj", "choose")),
    ]
    named = [dict(zip(features, (*row[:6], dict(zip(features["types"], row[6]))))) for row in rows]
    parquet("gqa/testdev_balanced_instructions/testdev-00000-of-00001.parquet", features, named)
    shown = [("n9", picture(3)), ("n7", picture(0))]
    parquet(
        "gqa/testdev_balanced_images/testdev-00000-of-00001.parquet", {"id": TEXT, "image": Image()},
        [{"id": id, "image": image} for id, image in shown],
    )  # fmt: skip
    for id, image in shown:
        (HERE / "gqa/files").mkdir(exist_ok=True)
        (HERE / f"gqa/files/{id}.png").write_bytes(image["bytes"])
    tsv("gqa/GQA_TestDev_Balanced.tsv", [
        {"index": 0, "image": encoded(0), "question": "What colour is the square?", "answer": "red"},
        {"index": 1, "image": "0", "question": "Is the square to the left?", "answer": "yes"},
    ])  # fmt: skip


def textvqa() -> None:
    features = {
        "image_id": TEXT, "question_id": Value("int32"), "question": TEXT, "question_tokens": List(TEXT),
        "image": Image(), "image_width": Value("int32"), "image_height": Value("int32"), "flickr_original_url": TEXT,
        "flickr_300k_url": TEXT, "answers": List(TEXT), "image_classes": List(TEXT), "set_name": TEXT,
        "ocr_tokens": List(TEXT),
    }  # fmt: skip
    place = ("https://example.org/a.jpg", "https://example.org/b.jpg")
    question, answers = "what is written on the BOX?", ["joe's, bar"] * 4 + ["joe's bar"] * 3 + ["bar", "joes", "cafe"]
    row = (
        "0a1b", 34602, question, question.lower().rstrip("?").split(), picture(2, "JOE'S"), 48, 32, *place, answers,
        ["Box"], "val", ["JOE'S", "BAR"],
    )  # fmt: skip
    unanswered = (
        "0c2d", 39602, "what year?", ["what", "year"], picture(3, "1998"), 48, 32, *place, None, [], "test", [],
    )  # fmt: skip
    parquet("textvqa/validation-00000-of-00001.parquet", features, [dict(zip(features, row))])
    parquet("textvqa/test-00000-of-00001.parquet", features, [dict(zip(features, unanswered))])
    tsv("textvqa/TextVQA_VAL.tsv", [
        {"index": 34602, "image": encoded(2, "JOE'S"), "question": question, "answer": str(answers)},
        {"index": 34603, "image": "34602", "question": "Is it open?", "answer": str(["yes"] * 9 + ["14."])},
    ])  # fmt: skip


def docvqa() -> None:
    features = {
        "questionId": TEXT, "question": TEXT, "question_types": List(TEXT), "image": Image(), "docId": WHOLE,
        "ucsf_document_id": TEXT, "ucsf_document_page_no": TEXT, "answers": List(TEXT), "data_split": TEXT,
    }  # fmt: skip
    rows = [
        ("49153", "What is the date?", ["form", "layout"], picture(1, "4/2"), 14465, "pybv0228", "81",
         ["4 February", "february  4"], "val"),
        ("24580", "Who signed?", ["handwritten"], picture(2, "Ann"), 4733, "snbx0223", "1", ["Ann Lee"], "val"),
    ]  # fmt: skip
    parquet("docvqa/validation-00000-of-00001.parquet", features, [dict(zip(features, row)) for row in rows])
    unknown = dict(zip(features, rows[1])) | {"answers": None, "question_types": None, "data_split": "test"}
    parquet("docvqa/test-00000-of-00001.parquet", features, [unknown])
    tsv("docvqa/DocVQA_VAL.tsv", [
        {"index": 0, "image": encoded(1), "question": "What is the date?", "answer": "['4 February', 'february  4']"},
    ])  # fmt: skip


def infovqa() -> None:
    features = {
        "questionId": TEXT, "question": TEXT, "answers": List(TEXT), "answer_type": List(TEXT), "image": Image(),
        "image_url": TEXT, "operation/reasoning": List(TEXT), "ocr": TEXT, "data_split": TEXT,
    }  # fmt: skip
    rows = [
        ("65718", "What share is red?", ["40%", "40 %"], ["single span"], picture(0, "40%"), "https://example.org/1",
         ["counting"], "[]", "val"),
        ("65719", "Which two?", ["red, blue"], ["multi-span"], picture(2), "https://example.org/2", [], "[]", "val"),
    ]  # fmt: skip
    parquet("infovqa/validation-00000-of-00001.parquet", features, [dict(zip(features, row)) for row in rows])


def chartqa() -> None:
    features = {"type": TEXT, "question": TEXT, "answer": TEXT, "image": Image()}
    rows = [
        ("human_test", "How high is the red bar?", "14", picture(0)),
        ("augmented_test", "What is the share of blue?", "0.57", picture(2)),
        ("human_test", "Which bar is highest?", "Red", picture(0)),
    ]
    parquet("chartqa/test-00000-of-00001.parquet", features, [dict(zip(features, row)) for row in rows])
    tsv("chartqa/ChartQA_TEST.tsv", [
        {"index": 10, "image": encoded(0), "question": "How high?", "answer": "14", "split": "test_human"},
        {"index": 11, "image": "10", "question": "Which?", "answer": "['Red', 'Crimson']", "split": "test_augmented"},
    ])  # fmt: skip


def ocrbench() -> None:
    features = {"dataset": TEXT, "question": TEXT, "question_type": TEXT, "answer": List(TEXT), "image": Image()}
    word, formula = "what is written in the image?", "Please write out the expression of the formula in the image."
    rows = [
        ("IIIT5K", word, "Regular Text Recognition", ["JOE"], picture(0, "JOE")),
        ("WordArt", f"{word}\n", "Artistic Text Recognition", ["No. 7"], picture(1, "No. 7")),
        ("ESTVQA", "What is the price?", "Scene Text-centric VQA", ["1 2", "12"], picture(2, "12")),
        ("HME100k", formula, "Handwritten Mathematical Expression Recognition", ["X ^ { 2 }"], picture(3, "X2")),
    ]
    named = [dict(zip(features, row)) for row in rows]
    parquet("ocrbench/test-00000-of-00001.parquet", features, named)
    tsv("ocrbench/OCRBench.tsv", [
        {"index": at, "image": encoded(at), "question": row[1].strip(), "answer": str(row[3]), "category": row[2]}
        for at, row in enumerate(rows)
    ])  # fmt: skip


if __name__ == "__main__":
    for make in (vqav2, gqa, textvqa, docvqa, infovqa, chartqa, ocrbench):
        make()
