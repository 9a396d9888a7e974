"""Miniatures of the yes/no benchmarks, the workloads of free text and dialogues, in the layouts they are published in.

    python tests/data/make_yesno.py

writes the folders beside this file. Every picture is drawn here; the questions are our own.
"""

import base64
import csv
import json
from io import BytesIO
from pathlib import Path

from datasets import Dataset, Features, Image, List, Value
from PIL import Image as Pillow
from PIL import ImageDraw

HERE = Path(__file__).parent
COLOURS = ("red", "green", "blue", "orange", "purple", "black")
TEXT = Value("string")


def picture(at: int) -> Pillow.Image:
    """A square of a colour on white; no two of the first six are alike."""
    image = Pillow.new("RGB", (32, 24), "white")
    ImageDraw.Draw(image).rectangle((4 + at, 4, 16 + at, 16), fill=COLOURS[at])
    return image


def encoded(at: int, format: str = "PNG") -> bytes:
    stream = BytesIO()
    picture(at).save(stream, format)
    return stream.getvalue()


def cell(at: int) -> dict:
    return {"bytes": encoded(at), "path": f"{at}.png"}


def parquet(file: str, columns: dict, rows: list[tuple]) -> None:
    table = {name: [row[at] for row in rows] for at, name in enumerate(columns)}
    (HERE / file).parent.mkdir(parents=True, exist_ok=True)
    Dataset.from_dict(table, features=Features(columns)).to_parquet(HERE / file)


def tsv(file: str, header: str, rows: list[tuple]) -> None:
    (HERE / file).parent.mkdir(parents=True, exist_ok=True)
    with (HERE / file).open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream, delimiter="\t", lineterminator="\n").writerows([header.split(), *rows])


def base(at: int) -> str:
    return base64.b64encode(encoded(at)).decode()


def saved(file: str, at: int, format: str) -> None:
    (HERE / file).parent.mkdir(parents=True, exist_ok=True)
    (HERE / file).write_bytes(encoded(at, format))


def lines(file: str, records: list[dict]) -> None:
    (HERE / file).write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


def pope() -> None:
    rows = []
    for category, other in (("adversarial", "fork"), ("popular", "person"), ("random", "zebra")):
        for number, (thing, answer) in enumerate((("square", "yes"), (other, "no")), 1):
            rows.append(
                (str(len(rows)), str(number), f"Is there a {thing} in the image?", answer, "0", cell(0), category)
            )
    columns = dict.fromkeys(("id", "question_id", "question", "answer", "image_source"), TEXT)
    parquet("pope/test.parquet", columns | {"image": Image(), "category": TEXT}, rows)
    tsv("pope/POPE.tsv", "index image question answer category", [
        (0, base(0), "Is there a square in the image?", "Yes", "adversarial,popular,random"),
        (1, "0", "Is there a fork in the image?", "No", "adversarial"),
        (2, "0", "Is there a zebra in the image?", "No", "random,popular"),
    ])  # fmt: skip
    saved("pope/val2014/COCO_val2014_000000000001.jpg", 0, "JPEG")
    name = "COCO_val2014_000000000001.jpg"
    lines("pope/coco_pope_random.jsonl", [
        {"question_id": 1, "image": name, "text": "Is there a square in the image?", "label": "yes"},
        {"question_id": 2, "image": name, "text": "Is there a zebra in the image?", "label": "no"},
    ])  # fmt: skip


def mme() -> None:
    """Two pictures of one category and one of another, so that the rows of a picture are not beside each other."""
    end = " Please answer yes or no."
    asked = [
        ("count/0.jpg", 0, f"Is there one square in this image?{end}", "Yes", "count"),
        ("count/1.jpg", 1, f"Is there one square in this image?{end}", "Yes", "count"),
        ("OCR/0.jpg", 2, f'Is the word in the picture "EXIT"?{end}', "No", "OCR"),
        ("count/0.jpg", 0, f"Are there two squares in this image?{end}", "No", "count"),
        ("OCR/0.jpg", 2, f"Is there no word in the picture?{end}", "Yes", "OCR"),
        ("count/1.jpg", 1, f"Are there two squares in this image?{end}", "No", "count"),
    ]
    columns = {"question_id": TEXT, "image": Image(), "question": TEXT, "answer": TEXT, "category": TEXT}
    parquet("mme/test.parquet", columns, [(id, cell(at), *rest) for id, at, *rest in asked])
    rows = [(at, base(shown), *rest, id.split("/")[1]) for at, (id, shown, *rest) in enumerate(asked)]
    tsv("mme/MME.tsv", "index image question answer category image_path", rows)


HALLUSION = (  # category, subcategory, visual_input, set, figure, question, right answer, picture
    ("VD", "chart", "1", "0", "0", "0", "1", 0),
    ("VD", "chart", "1", "0", "0", "1", "0", 0),
    ("VD", "chart", "2", "0", "1", "0", "0", 1),
    ("VD", "chart", "2", "0", "1", "1", "1", 1),
    ("VS", "map", "0", "0", "0", "0", "1", None),
    ("VS", "map", "0", "0", "0", "1", "0", None),
    ("VS", "map", "1", "0", "1", "0", "1", 2),
    ("VD", "chart", "1", "1", "0", "0", "1", 3),
    ("VS", "map", "1", "0", "1", "1", "0", 2),
    ("VS", "map", "2", "0", "2", "0", "0", 4),
)


def hallusionbench() -> None:
    names = ("category", "subcategory", "visual_input", "set_id", "figure_id", "question_id", "gt_answer")
    records, shown = [], []
    for *values, at in HALLUSION:
        record = dict(zip(names, values))
        file = None if at is None else f"./{values[0]}/{values[1]}/{values[3]}_{values[4]}.png"
        question = f"Is the square {COLOURS[at or 0]}, by {'the figure' if file else 'what you know'}?"
        record |= {"sample_note": "squares", "question": question, "gt_answer_details": "See the figure."}
        records.append(record | {"filename": file})
        if at is not None:
            saved(f"hallusionbench/{file}", at, "PNG")
            shown.append((record, at))
    (HERE / "hallusionbench/HallusionBench.json").write_text(json.dumps(records, indent=1), encoding="utf-8")
    columns = [*records[0]]
    parquet("hallusionbench/image.parquet", dict.fromkeys(columns, TEXT) | {"image": Image()}, [
        (*(record.get(name, "file") for name in columns), cell(at)) for record, at in shown
    ])  # fmt: skip
    tsv("hallusionbench/HallusionBench.tsv", "index image question answer category l2-category", [
        ("_".join(record[name] for name in names[:6]), base(at), record["question"],
         "Yes" if record["gt_answer"] == "1" else "No", record["category"],
         f"{record['category']}_{record['subcategory']}")
        for record, at in shown
    ])  # fmt: skip


def llava_bench() -> None:
    asked = [("0", "What is this place called?", 0, "conv"), ("1", "Describe this picture.", 0, "detail"),
             ("2", "Why might somebody have drawn it?", 1, "complex")]  # fmt: skip
    columns = {"question_id": TEXT, "question": TEXT, "image": Image(), "caption": TEXT, "gpt_answer": TEXT}
    parquet("llava_bench/train.parquet", columns | {"category": TEXT, "image_id": TEXT}, [
        (id, question, cell(at), "A square on white.", "It is a square.", category, f"00{at + 1}.jpg")
        for id, question, at, category in asked
    ])  # fmt: skip
    lines("llava_bench/questions.jsonl", [
        {"question_id": int(id), "image": f"00{at + 1}.jpg", "text": question, "category": category}
        for id, question, at, category in asked
    ])  # fmt: skip
    for at in (0, 1):
        saved(f"llava_bench/images/00{at + 1}.jpg", at, "JPEG")
    tsv("llava_bench/LLaVABench.tsv", "index image question gpt4_ans caption category", [
        (id, base(at), question, "It is a square.", "A square on white.", category)
        for id, question, at, category in asked
    ])  # fmt: skip


def coco_captions() -> None:
    captions = [["A red square.", "There is a square."], ["A green square on white."]]
    columns = {
        "question_id": TEXT, "image": Image(), "question": TEXT, "answer": List(TEXT), "id": Value("int64"),
        "license": Value("int8"), "file_name": TEXT, "coco_url": TEXT, "height": Value("int32"),
        "width": Value("int32"), "date_captured": TEXT,
    }  # fmt: skip
    parquet("coco_captions/val.parquet", columns, [
        (f"{at:012}.jpg", cell(at), "Caption?", said, at, 1, f"{at:012}.jpg", "none", 24, 32, "2013-11-14")
        for at, said in enumerate(captions)
    ])  # fmt: skip
    tsv("coco_captions/COCO_VAL.tsv", "index image answer",
        [(at, base(at), repr(said)) for at, said in enumerate(captions)])  # fmt: skip


def mmvet() -> None:
    asked = [("v1_0", "What is x in the equation?", "-1<AND>-5", "ocr,math"),
             ("v1_1", "Which colour is the square?", "green<OR>dark green", "rec")]  # fmt: skip
    columns = {"question_id": TEXT, "image": Image(), "question": TEXT, "answer": TEXT, "image_source": TEXT}
    parquet("mmvet/test.parquet", columns | {"capability": TEXT}, [
        (id, cell(at), question, answer, "drawn", skills) for at, (id, question, answer, skills) in enumerate(asked)
    ])  # fmt: skip
    tsv("mmvet/MMVet.tsv", "index image question answer category", [
        (id, base(at), question, answer, skills) for at, (id, question, answer, skills) in enumerate(asked)
    ])  # fmt: skip


def turns(*values: str) -> list[dict]:
    return [{"from": ("human", "gpt")[at % 2], "value": value} for at, value in enumerate(values)]


def dialogues() -> None:
    for at in (0, 1):
        saved(f"dialogues/images/{at}.png", at, "PNG")
    records = [
        {"id": "a", "image": "0.png", "conversations": turns(
            "<image>\nWhat is shown?", "A square.", "Which colour has it?", "Red.", "Thank you. What is around it?")},
        {"id": "b", "image": "1.png", "conversations": turns("And here?\n<image>", "A green square.")},
        {"id": "c", "conversations": turns("What is a square?", "Four equal sides.")},
        {"id": "a", "image": ["1.png", "0.png"], "conversations": turns(
            "<image>\n<image>\nWhat changed?", "The colour.")},
        {"id": "d", "image": ["1.png", "0.png"], "conversations": turns(
            "First: <image>\nThen: <image>\nWhat changed?", "The colour.")},
    ]  # fmt: skip
    (HERE / "dialogues/chats.json").write_text(json.dumps(records, indent=1), encoding="utf-8")
    lines("dialogues/chats.jsonl", records[:2])


if __name__ == "__main__":
    for make in (pope, mme, hallusionbench, llava_bench, coco_captions, mmvet, dialogues):
        make()
