"""Where a benchmark's rows come from: every layout of a file, every way it holds a picture, every complaint by name."""

import base64
import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import datasets
import pyarrow.parquet
import pytest
from PIL import Image

from mmaccel.benchmarks.rows import Source, listed
from mmaccel.benchmarks.table import Table


def png(colour: str = "red", size: tuple[int, int] = (20, 10)) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", size, colour).save(stream, "PNG")
    return stream.getvalue()


@dataclass
class Plain(Table):
    """The least that a benchmark over rows is."""

    name: str = "plain"
    datasets: Sequence[str] = ("nobody/first", "nobody/second")
    USUAL: ClassVar[Mapping[str, tuple[str, ...]]] = {"question_id": ("index",), "category": ("l2-category",)}

    def kind(self, row):
        return row.maybe("category") or "plain"

    def sample(self, row):
        return self.one_turn(row, row.text("question_id"), row.text("question"), row.text("answer"))

    def score(self, sample, replies):
        return {"correct": float(replies[-1] == sample.reference[-1]), "parsed": replies[-1]}


def table(file, rows):
    with file.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]), delimiter="\t" if file.suffix == ".tsv" else ",")
        writer.writeheader()
        writer.writerows(rows)
    return str(file)


ROW = {
    "index": 1,
    "question": "What?",
    "answer": "red",
    "category": "colour",
    "image": base64.b64encode(png()).decode(),
}


@pytest.fixture(params=["tsv", "csv", "jsonl", "json", "parquet", "folder"])
def path(request, tmp_path):
    rows = [ROW, ROW | {"index": 2, "answer": "None", "category": "none"}]
    if request.param in ("tsv", "csv"):
        return table(tmp_path / f"a.{request.param}", rows)
    if request.param == "jsonl":
        (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + "\n")
        return str(tmp_path / "a.jsonl")
    if request.param == "json":
        (tmp_path / "a.json").write_text(json.dumps(rows))
        return str(tmp_path / "a.json")
    held = {key: [row[key] for row in rows] for key in ROW} | {"image": [{"bytes": png(), "path": None}] * 2}
    kinds = datasets.Features({**{key: datasets.Value("string") for key in ROW}, "image": datasets.Image()})
    made = datasets.Dataset.from_dict(held | {"index": ["1", "2"]}, features=kinds)
    if request.param == "parquet":
        made.to_parquet(tmp_path / "a.parquet")
        return str(tmp_path / "a.parquet")
    (tmp_path / "data").mkdir()
    made.to_parquet(tmp_path / "data" / "test-00000-of-00001.parquet")
    made.select([0]).to_parquet(tmp_path / "data" / "dev-00000-of-00001.parquet")
    return str(tmp_path / "data")


def test_every_layout_gives_the_same_samples(path):
    found = Plain(path=path, split="test")
    first, second = found[0], found[1]
    assert (first.id, first.turns, first.reference, first.kind) == ("1", ("What?",), ("red",), "colour")
    assert second.reference == ("None",), "an answer may be the word None"
    assert (first.image.size, first.image.getpixel((0, 0))) == ((20, 10), (255, 0, 0))
    assert (first.facts["width"], first.facts["height"]) == (20, 10)
    assert len(Plain(path=path, split="test", kinds=["colour"])) == 1
    with pytest.raises(ValueError, match=r"benchmark.kinds: \['x'\] leaves nothing; there are colour"):
        Plain(path=path, split="test", kinds=["x"])


def test_a_digest_tells_rows_pictures_and_settings_apart(tmp_path):
    first = Plain(path=table(tmp_path / "a.tsv", [ROW])).digest(1)
    assert Plain(path=table(tmp_path / "b.tsv", [ROW])).digest(1) == first
    other = ROW | {"image": base64.b64encode(png("blue")).decode()}
    assert Plain(path=table(tmp_path / "c.tsv", [other])).digest(1) != first
    assert Plain(path=table(tmp_path / "d.tsv", [ROW | {"answer": "blue"}])).digest(1) != first


def test_a_picture_that_is_a_file_counts_by_what_it_holds(tmp_path):
    (tmp_path / "b.png").write_bytes(png("blue"))
    found = Plain(path=table(tmp_path / "a.tsv", [ROW | {"image": "b.png"}]))
    before = found.digest(1)
    (tmp_path / "b.png").write_bytes(png("green"))
    assert found.digest(1) != before


def test_json_rows_may_differ_and_a_json_file_may_hold_lines(tmp_path):
    first = {key: value for key, value in ROW.items() if key != "category"}
    (tmp_path / "a.json").write_text("\n".join(json.dumps(row) for row in (first, ROW)))
    found = Plain(path=str(tmp_path / "a.json"))
    assert [found[at].kind for at in range(2)] == ["plain", "colour"]


def test_a_picture_may_be_another_rows_or_a_file(tmp_path):
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "b.png").write_bytes(png("blue"))
    rows = [
        ROW,
        ROW | {"index": 2, "image": "1"},
        ROW | {"index": 3, "image": "b.png"},
        ROW | {"index": 4, "image": "4"},
    ]
    found = Plain(path=table(tmp_path / "a.tsv", rows), images=str(tmp_path / "pictures"))
    assert [found[at].image.getpixel((0, 0)) for at in range(3)] == [(255, 0, 0), (255, 0, 0), (0, 0, 255)]
    with pytest.raises(ValueError, match=r"a.tsv row 3, column 'image': no picture '4'"):
        found[3]


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        ("../secret.png", "lies outside"), ("", "got str for a picture"), ("x" * 81, "no picture"),
        (base64.b64encode(b"no picture at all, but long enough to be no file's name").decode(), "UnidentifiedImage"),
        (base64.b64encode(png(size=(200, 200))).decode(), "200 × 200 pixels, at most benchmark.max_pixels=1,000"),
    ],
)  # fmt: skip
def test_a_bad_picture_is_named_when_it_is_asked_for(tmp_path, cell, said):
    found = Plain(path=table(tmp_path / "a.tsv", [ROW | {"image": cell}, ROW]), max_pixels=1000)
    assert found[1].image.size == (20, 10)
    with pytest.raises(ValueError, match=f"a.tsv row 0, column 'image': .*{said}"):
        found[0]


def test_missing_columns_are_named_with_those_there_are(tmp_path):
    path = table(tmp_path / "a.tsv", [{"index": 1, "query": "What?", "image": "x"}])
    with pytest.raises(ValueError, match=r"a.tsv lacks the columns question, answer; it has .*image. 'bench"):
        Plain(path=path)
    path = table(tmp_path / "b.tsv", [{"index": 1, "query": "What?", "label": "red", "image": ROW["image"]}])
    found = Plain(path=path, columns={"question": "query", "answer": "label"})
    assert (found[0].turns, found[0].reference) == (("What?",), ("red",))
    with pytest.raises(ValueError, match=r"columns: got the names \['querry'\], valid are image, question, answer"):
        Plain(path=path, columns={"querry": "query"})
    with pytest.raises(ValueError, match=r"benchmark.columns: got \['nowhere'\], b.tsv has index"):
        Plain(path=path, columns={"question": "nowhere"})


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.jsonl", '{"a": 1}\n{"a": ', "a.jsonl line 2: no JSON"),
        ("a.jsonl", "[1]\n", "a.jsonl line 1: got a list"),
        ("a.json", "{}", "a.json: valid is a list of objects"),
        ("a.tsv", "a\tb\n1\t2\t3\n", "a.tsv row 0: more values than columns"),
        ("a.tsv", 'a\tb\n"1\t2', "a.tsv line"),
        ("a.tsv", "index\tquestion\tanswer\timage\n", "a.tsv has no rows"),
        ("a.xlsx", "x", "'a.xlsx', read are .parquet, .tsv"),
    ],
)
def test_a_broken_file_is_named_with_its_line(tmp_path, name, text, said):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=said):
        Plain(path=str(tmp_path / name))


def test_sources_are_tried_in_order_and_all_are_named(monkeypatch):
    asked = []

    def load(name, config, split, revision):
        asked.append(name)
        if name == "nobody/first":
            raise FileNotFoundError("not there")
        rows = {key: [str(value)] for key, value in ROW.items()}
        return datasets.Dataset.from_dict(rows)

    monkeypatch.setattr("datasets.load_dataset", load)
    assert Plain().rows.name == "nobody/second"
    assert asked == ["nobody/first", "nobody/second"]
    monkeypatch.setattr("datasets.load_dataset", lambda *a, **k: load("nobody/first", *a[1:], **k))
    with pytest.raises(ValueError, match=r"(?s)none could be opened.*nobody/first: FileNotFoundError.*nobody/second"):
        Plain(split="test")


def test_a_path_comes_first_and_must_be_there(tmp_path):
    with pytest.raises(ValueError, match=r"benchmark.path: no file or folder 'nowhere'"):
        Plain(path="nowhere")
    with pytest.raises(ValueError, match=r"benchmark.path: no parquet file in"):
        Source(path=str(tmp_path)).open()
    with pytest.raises(ValueError, match=r"benchmark.path: a file is needed"):
        Source().open()


@pytest.mark.parametrize(
    ("text", "read"),
    [('["a", "b"]', ["a", "b"]), ('["a", null]', ["a"]), ("[]", []),
     ("['a', 'b']", ["a", "b"]), ("a", ["a"]), ("nan", None), ("[a", ["[a"]),
     ("[__import__('os')]", ["[__import__('os')]"])],
)  # fmt: skip
def test_lists_in_cells_are_read_and_never_run(text, read):
    assert listed(text) == read


def test_pictures_in_lists_are_neither_decoded_nor_fetched_when_a_row_is_read(tmp_path):
    kinds = datasets.Features({"a": datasets.List(datasets.Image()), "b": {"c": datasets.Image()}})
    cell = {"bytes": None, "path": "http://127.0.0.1:1/x.png"}
    held = {"a": [[cell, {"bytes": b"no picture", "path": None}]], "b": [{"c": cell}]}
    said = {"huggingface": json.dumps({"info": {"features": kinds.to_dict()}})}  # as published files carry it
    made = pyarrow.Table.from_pydict(held, schema=kinds.arrow_schema).replace_schema_metadata(said)
    pyarrow.parquet.write_table(made, tmp_path / "a.parquet")
    rows = Source(path=str(tmp_path / "a.parquet")).open()
    assert rows[0]["a"][1]["bytes"] == b"no picture"
    assert rows[0]["b"]["c"]["path"] == "http://127.0.0.1:1/x.png"
