"""Questions with short answers: loading miniatures in the published layouts, and every score against known vectors."""

import copy
import shutil
from pathlib import Path

import pytest

from mmaccel.benchmarks.anls import distance, similarity
from mmaccel.benchmarks.chartqa import ChartQa, relaxed
from mmaccel.benchmarks.docvqa import DocVqa
from mmaccel.benchmarks.gqa import Gqa
from mmaccel.benchmarks.infovqa import InfoVqa
from mmaccel.benchmarks.ocrbench import FORMULA, TEXT, OcrBench
from mmaccel.benchmarks.textvqa import TextVqa
from mmaccel.benchmarks.vqa_accuracy import CONTRACTED, leave_one_out, normalised, parted, vqa_score
from mmaccel.benchmarks.vqav2 import Vqav2

DATA = Path(__file__).parent / "data"
SHORT = "\nAnswer the question using a single word or phrase."
QUESTIONS, IMAGES = DATA / "gqa/testdev_balanced_instructions", DATA / "gqa/testdev_balanced_images"
TEN = [f"other {at}" for at in range(10)]

# benchmark, path, settings → per sample (id, kind, prompt, reference)
LAYOUTS = [
    (Vqav2, "vqav2", {}, [
        ("42000", "yes/no", f"Is the square red?{SHORT}", "yes"),
        ("42001", "number", f"How many corners are cut?{SHORT}", "2"),
        ("73000", "other", f"What is it?{SHORT}", "box"),
    ]),
    (Vqav2, "vqav2", {"split": "testdev"}, [("42000", "vqav2", f"Is the square red?{SHORT}", None)]),
    (Gqa, QUESTIONS, {"pictures": str(IMAGES)}, [
        ("201", "query", f"What colour is the square?{SHORT}", "red"),
        ("202", "verify", f"Is the square to the left?{SHORT}", "yes"),
        ("203", "choose", f"Is it a square or a disc?{SHORT}", "square"),
    ]),
    (Gqa, "gqa/GQA_TestDev_Balanced.tsv", {}, [
        ("0", "gqa", f"What colour is the square?{SHORT}", "red"),
        ("1", "gqa", f"Is the square to the left?{SHORT}", "yes"),
    ]),
    (TextVqa, "textvqa", {}, [("34602", "textvqa", f"What is written on the box?{SHORT}", "joe's, bar")]),
    (TextVqa, "textvqa", {"ocr": True}, [
        ("34602", "textvqa", f"What is written on the box?\nReference OCR token: JOE'S, BAR{SHORT}", "joe's, bar"),
    ]),
    (TextVqa, "textvqa", {"split": "test"}, [("39602", "textvqa", f"What year?{SHORT}", None)]),
    (TextVqa, "textvqa/TextVQA_VAL.tsv", {"compat": "vlmevalkit"}, [
        ("34602", "textvqa", f"what is written on the BOX?{SHORT}", "joe's, bar"),
        ("34603", "textvqa", f"Is it open?{SHORT}", "yes"),
    ]),
    (DocVqa, "docvqa", {}, [
        ("49153", "form", f"What is the date?{SHORT}", "4 February"),
        ("24580", "handwritten", f"Who signed?{SHORT}", "Ann Lee"),
    ]),
    (DocVqa, "docvqa", {"split": "test"}, [("24580", "docvqa", f"Who signed?{SHORT}", None)]),
    (DocVqa, "docvqa/DocVQA_VAL.tsv", {}, [("0", "docvqa", f"What is the date?{SHORT}", "4 February")]),
    (InfoVqa, "infovqa", {}, [
        ("65718", "single span", f"What share is red?{SHORT}", "40%"),
        ("65719", "multi-span", f"Which two?{SHORT}", "red, blue"),
    ]),
    (ChartQa, "chartqa", {}, [
        ("0", "human", "How high is the red bar?\nAnswer the question with a single word.", "14"),
        ("1", "augmented", "What is the share of blue?\nAnswer the question with a single word.", "0.57"),
        ("2", "human", "Which bar is highest?\nAnswer the question with a single word.", "Red"),
    ]),
    (ChartQa, "chartqa/ChartQA_TEST.tsv", {}, [
        ("10", "human", "How high?\nAnswer the question with a single word.", "14"),
        ("11", "augmented", "Which?\nAnswer the question with a single word.", "Red"),
    ]),
    *[(OcrBench, path, {}, [
        ("0", "Regular Text Recognition", "what is written in the image?", "JOE"),
        ("1", "Artistic Text Recognition", "what is written in the image?", "No. 7"),
        ("2", "Scene Text-centric VQA", "What is the price?", "1 2"),
        ("3", FORMULA, "Please write out the expression of the formula in the image.", "X ^ { 2 }"),
    ]) for path in ("ocrbench", "ocrbench/OCRBench.tsv")],
]  # fmt: skip


@pytest.mark.parametrize(("make", "path", "settings", "expected"), LAYOUTS)
def test_published_layouts_are_read(make, path, settings, expected):
    bench = make(path=str(DATA / path), **settings)
    samples = [bench[at] for at in range(len(bench))]
    assert [(one.id, one.kind, one.turns[0], one.reference[0]) for one in samples] == expected
    assert all(one.image.mode == "RGB" and one.image.size == (48, 32) for one in samples)
    assert all((one.facts["width"], one.facts["height"]) == (48, 32) for one in samples)
    for sample in samples:  # the same number twice, and nobody's answer is touched
        before = copy.deepcopy((dict(sample.truth), sample.reference))
        first = bench.score(sample, ["A red, box."])
        assert bench.score(sample, ["A red, box."]) == first
        assert (dict(sample.truth), sample.reference) == before
        assert (first["correct"] is None) == (sample.reference[0] is None)
        empty = bench.score(sample, [" \n"])
        assert (empty["correct"], empty["parsed"]) == (None if sample.reference[0] is None else 0.0, None)


@pytest.mark.parametrize(("said", "expected"), [(0, 0.0), (1, 0.3), (2, 0.6), (3, 0.9), (4, 1.0), (10, 1.0)])
@pytest.mark.parametrize("compat", ["official", "lmms", "vlmevalkit"])
def test_vqa_accuracy_leaves_each_person_out(said, expected, compat):
    answers = ["box"] * said + TEN[said:]
    assert vqa_score("box", answers, compat)["correct"] == pytest.approx(expected)
    assert vqa_score("box", answers[::-1], compat)["correct"] == pytest.approx(expected)
    slow = [min(1, sum(other == "box" for other in answers[:at] + answers[at + 1 :]) / 3) for at in range(10)]
    assert leave_one_out("box", answers) == pytest.approx(sum(slow) / 10)


@pytest.mark.parametrize(
    ("text", "official", "lmms", "vlmevalkit"),
    [
        ("14.", "14", "14", "14."),
        ("1,000", "1000", "1000", "1000"),
        ("1,,000", "1 000", "1000", "1 000"),
        ("10-20", "10 20", "10 20", "10 20"),
        ("10 -20", "10 20", "10 20", "10 20"),
        ("u.s.", "us", "us", "us"),
        ("Two\tdogs\n", "2 dogs", "2 dogs", "2 dogs"),
        ("None of the above!", "0 of above", "0 of above", "0 of above"),
        ("yes/no", "yes no", "yes no", "yes no"),
        ("yes/ no/maybe", "yes nomaybe", "yes nomaybe", "yes nomaybe"),
        ("$5.50 : it's 3%", "$5.50 : it's 3%", "$5.50 : it's 3%", "$5.50 : it's 3%"),
        ("Dont, I", "don't i", "don't i", "don't i"),
        ("A", "", "", ""),
        ("x" + "." * 40, "x" + "." * 8, "x" + "." * 8, "x" + "." * 8),
    ],
)
def test_answers_are_brought_to_one_form(text, official, lmms, vlmevalkit):
    found = [normalised(text, compat) for compat in ("official", "lmms", "vlmevalkit")]
    assert found == [official, lmms, vlmevalkit]


@pytest.mark.parametrize(
    ("word", "form"),
    [("dont", "don't"), ("couldn'tve", "couldn't've"), ("couldnt've", "couldn't've"), ("hed've", "he'd've"),
     ("itll", "it'll"), ("oclock", "o'clock"), ("'ows'at", "'ow's'at"), ("y'all'dve", "y'all'd've"),
     ("somebody'd", "somebodyd"), ("therere", "there're"), ("twas", "'twas")],
)  # fmt: skip
def test_contractions(word, form):
    assert normalised(word, "lmms") == form


def test_contractions_are_those_of_the_published_table_and_no_more():
    assert len(CONTRACTED) == 114  # 120, less those in capitals, which are never met, and two that change nothing
    words = ("ill", "well", "shell", "were", "shed", "its", "im", "ive", "lets", "id", "wed", "shes")
    assert [normalised(word, "lmms") for word in words] == list(words)


@pytest.mark.parametrize(
    ("reply", "answers", "compat", "expected"),
    [
        ("two", ["2"] * 10, "official", 0.0),  # all agree: as written
        ("Yes", ["yes"] * 10, "official", 0.0),
        ("yes", [" yes\n"] * 10, "official", 1.0),
        ("Yes", ["yes"] * 9 + ["no"], "official", 1.0),
        ("two", ["2"] * 10, "lmms", 1.0),
        ("Yes.", ["yes"] * 10, "vlmevalkit", 1.0),
        ("14", ["14."] * 10, "lmms", 1.0),
        ("14", ["14."] * 10, "vlmevalkit", 0.0),
        ("A", ["a"] * 10, "lmms", 1.0),
        ("", ["a"] * 10, "lmms", 0.0),
        ("a box", ["box", *TEN[1:]], "lmms", 0.3),
    ],
)
def test_vqa_variants_differ_where_they_are_known_to(reply, answers, compat, expected):
    assert vqa_score(reply, answers, compat)["correct"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("reply", "lmms", "vlmevalkit"),
    [
        ("Joe's Bar", 1.0, 1.0),  # seven of ten, however they wrote it
        ("Joe 's bar?", 1.0, 0.0),  # a possessive is a word of its own
        ("joe's,bar", 0.0, 1.0),  # commas vanish before they could part words
        ("cafe", 0.3, 0.3),  # neither cut off nor counted as right
    ],
)
def test_textvqa_variants(reply, lmms, vlmevalkit):
    for compat, expected in (("lmms", lmms), ("vlmevalkit", vlmevalkit)):
        bench = TextVqa(path=str(DATA / "textvqa"), compat=compat)
        assert bench.score(bench[0], [reply])["correct"] == pytest.approx(expected)
    assert parted("Joe's, Bar?") == "joe 's bar"


def test_too_few_answers_are_an_error_of_the_row(tmp_path):
    shutil.copy(DATA / "gqa/files/n7.png", tmp_path / "a.png")
    row = '{"image": "a.png", "question": "What?", "answers": ["a", "b", "c"]}'
    (tmp_path / "rows.jsonl").write_text(row)
    with pytest.raises(ValueError, match=r"rows.jsonl row 0, column 'answers': got 3 answers, valid are 4 or more"):
        Vqav2(path=str(tmp_path / "rows.jsonl"))[0]


def test_gqa_joins_pictures_by_their_id(tmp_path):
    table = Gqa(path=str(QUESTIONS), pictures=str(IMAGES))
    files = Gqa(path=str(QUESTIONS), pictures=str(DATA / "gqa/files"))
    shown = [bench[at].image.tobytes() for bench in (table, files) for at in range(3)]
    assert shown[:3] == shown[3:]
    assert shown[0] == shown[1] != shown[2]
    assert table.digest(3) == Gqa(path=str(QUESTIONS), pictures=str(IMAGES)).digest(3)
    shutil.copytree(DATA / "gqa/files", tmp_path, dirs_exist_ok=True)
    moved = Gqa(path=str(QUESTIONS), pictures=str(tmp_path))
    assert moved.digest(3) == files.digest(3)
    shutil.copy(tmp_path / "n7.png", tmp_path / "n9.png")
    assert moved.digest(3) != files.digest(3)
    assert moved.digest(2) == files.digest(2)
    (tmp_path / "n9.png").unlink()
    with pytest.raises(ValueError, match=r"row 2, column 'imageId': no picture 'n9'"):
        moved[2]
    assert [len(Gqa(path=str(QUESTIONS), pictures=str(IMAGES), kinds=[kind])) for kind in ("query", "choose")] == [1, 1]


def test_gqa_names_what_cannot_be_joined(tmp_path):
    with pytest.raises(ValueError, match=r"benchmark\.pictures: needed, for testdev_balanced_instructions only names"):
        Gqa(path=str(QUESTIONS))
    with pytest.raises(ValueError, match=r"has none of the pictures that .* names, the first is 'n7'"):
        Gqa(path=str(QUESTIONS), pictures=str(tmp_path))
    with pytest.raises(ValueError, match=r"benchmark\.pictures: .* lacks \['image'\]"):
        Gqa(path=str(QUESTIONS), pictures=str(QUESTIONS))
    (tmp_path / "in").mkdir()
    shutil.copy(DATA / "gqa/files/n7.png", tmp_path / "n7.png")
    rows = '{"imageId": "../n7", "question": "?", "answer": "red"}\n'
    (tmp_path / "rows.jsonl").write_text(rows)
    with pytest.raises(ValueError, match="has none of the pictures"):  # never a file outside of the folder
        Gqa(path=str(tmp_path / "rows.jsonl"), pictures=str(tmp_path / "in"))


@pytest.mark.parametrize(
    ("reply", "lmms", "vlmevalkit"),
    [("red", 1, 1), (" Red\n", 1, 1), ("red.", 1, 0), ("(Red)", 1, 0), ("red .", 0, 0), ("a red", 0, 0), ("", 0, 0)],
)
def test_gqa_is_an_exact_match(reply, lmms, vlmevalkit):
    for compat, expected in (("lmms", lmms), ("vlmevalkit", vlmevalkit)):
        bench = Gqa(path=str(DATA / "gqa/GQA_TestDev_Balanced.tsv"), compat=compat)
        assert bench.score(bench[0], [reply])["correct"] == expected


@pytest.mark.parametrize(
    ("reply", "answers", "kits", "paper"),
    [
        ("Paris", ["Paris"], 1, 1),
        ("Pariss", ["Paris"], 5 / 6, 5 / 6),
        ("abef", ["abcd"], 0.5, 0.0),
        ("abefg", ["abcd"], 0.0, 0.0),
        ("PARIS", ["london", "paris"], 1, 1),
        ("4  february", ["4 February"], 1, 1),  # no edits, whatever the length
        ("4   febr", ["4 febru"], 7 / 8, 7 / 8),  # one edit, of 8 letters as written
        ("straße", ["strase"], 6 / 7, 6 / 7),  # ß is one letter to edit and two to count
    ],
)
def test_anls(reply, answers, kits, paper):
    assert similarity(reply, answers, "kits") == pytest.approx(kits)
    assert similarity(reply, answers, "paper") == pytest.approx(paper)


@pytest.mark.parametrize(("one", "other", "edits"), [("", "abc", 3), ("kitten", "sitting", 3), ("ab", "ba", 2)])
def test_levenshtein(one, other, edits):
    assert distance(one, other) == distance(other, one) == edits


@pytest.mark.parametrize(
    ("reply", "answer", "expected"),
    [("105", "100", True), ("105.0001", "100", False), ("95", "100", True), ("14.", "14", True), ("0.0", "0", False),
     ("5%", "5", False), ("0.05", "5%", True), ("1,000", "1000", False), ("Red", "red", True),
     ("red bar", "red", False), ("0", "0", True), ("-100", "100", False),
     ("-97", "-100", True), ("nan", "5", False), ("2 dogs", "2", False)],
)  # fmt: skip
def test_relaxed_accuracy(reply, answer, expected):
    assert relaxed(reply, answer) is expected


def test_chartqa_takes_any_answer_of_a_list():
    bench = ChartQa(path=str(DATA / "chartqa/ChartQA_TEST.tsv"))
    assert [bench.score(bench[1], [said])["correct"] for said in (" crimson ", "red", "blue")] == [1, 1, 0]
    assert bench.score(bench[0], ["14.7"]) == {"correct": 1.0, "parsed": "14.7"}


@pytest.mark.parametrize(
    ("row", "reply", "lmms", "vlmevalkit"),
    [
        (0, "It says Joe's", 1, 1),
        (0, "ＪＯＥ", 1, 0),
        (1, "no.\n7", 1, 1),
        (1, "No.　7", 1, 0),
        (2, "the price is 12.", 1, 1),
        (2, "1  2", 0, 0),  # spaces count outside of formulas
        (3, "$X^{2}$", 1, 1),
        (3, "x^{2}", 0, 0),  # and so does the case inside
    ],
)
def test_ocrbench_looks_for_an_answer_in_the_reply(row, reply, lmms, vlmevalkit):
    for compat, expected in (("lmms", lmms), ("vlmevalkit", vlmevalkit)):
        bench = OcrBench(path=str(DATA / "ocrbench"), compat=compat)
        assert bench.score(bench[row], [reply])["correct"] == expected


def test_an_empty_answer_would_be_in_every_reply(tmp_path):
    shutil.copy(DATA / "gqa/files/n7.png", tmp_path / "a.png")
    row = '{"image": "a.png", "question": "What?", "answer": [" "], "question_type": "Doc-oriented VQA"}'
    (tmp_path / "rows.jsonl").write_text(row)
    with pytest.raises(ValueError, match=r"row 0, column 'answer': empty"):
        OcrBench(path=str(tmp_path / "rows.jsonl"))[0]


def records(kinds, scores, **more):
    return [
        {
            "sample": str(at),
            "kind": kind,
            "score": {"correct": score, **{key: value[at] for key, value in more.items()}},
        }
        for at, (kind, score) in enumerate(zip(kinds, scores))
    ]


def test_summaries_are_means_over_the_named_halves():
    scores = [1.0, 0.3, 0.0, 1.0, None, 0.9]
    kinds = ["yes/no", "number", "number", "other", "other", "other"]
    bench = Vqav2(path=str(DATA / "vqav2"))
    expected = {"overall": 3.2 / 5, "yes/no": 1.0, "number": 0.15, "other": 0.95}
    assert bench.summary(records(kinds, scores)) == pytest.approx(expected)
    assert bench.summary([]) == dict.fromkeys(("overall", "yes/no", "number", "other"))
    gqa = Gqa(path=str(DATA / "gqa/GQA_TestDev_Balanced.tsv"))
    mixed = records(["query", "verify", "choose", "query"], [1.0, 0.0, 1.0, 1.0])
    assert gqa.summary(mixed) == {"overall": 0.75, "binary": 0.5, "open": 1.0}
    assert gqa.summary(records(["gqa"], [1.0])) == {"overall": 1.0, "binary": None, "open": None}
    chart = ChartQa(path=str(DATA / "chartqa"))
    assert chart.summary(records(["human", "human"], [1.0, 0.0])) == {"overall": 0.5, "human": 0.5, "augmented": None}
    assert TextVqa(path=str(DATA / "textvqa")).summary(records(["textvqa"] * 2, [0.3, 1.0])) == {"overall": 0.65}


def test_docvqa_counts_a_question_under_each_of_its_types():
    types = [["form", "layout"], ["layout"], []]
    found = DocVqa(path=str(DATA / "docvqa")).summary(records(["x"] * 3, [1.0, 0.5, 0.0], types=types))
    assert found == {"anls": 0.5, "form": 1.0, "layout": 0.75}
    bench = InfoVqa(path=str(DATA / "infovqa"))
    assert bench.score(bench[1], ["red blue"]) == {
        "correct": pytest.approx(8 / 9), "parsed": "red blue", "types": ["multi-span"],
    }  # fmt: skip


def test_ocrbench_counts_right_replies_and_keeps_no_score():
    kinds = [TEXT[0], TEXT[0], TEXT[5], FORMULA, "Doc-oriented VQA"]
    made = records(kinds, [1.0, 0.0, 1.0, 1.0, 0.0])
    bench = OcrBench(path=str(DATA / "ocrbench"))
    found = bench.summary(made)
    assert bench.summary(made) == found
    assert (found["final score"], found["n asked"], found["share"]) == (3, 5, 0.6)
    assert found["Text Recognition"] == pytest.approx(2 / 3)
    assert (found[TEXT[0]], found[FORMULA], found["Doc-oriented VQA"], found[TEXT[1]]) == (0.5, 1.0, 0.0, None)


@pytest.mark.parametrize(
    ("make", "cells", "settings", "message"),
    [
        (Vqav2, "image question", {}, "lacks the columns answers"),
        (TextVqa, "question answers", {}, "lacks the columns image"),
        (TextVqa, "image question answers", {"ocr": True}, r"benchmark\.ocr: .* has no column ocr_tokens"),
        (DocVqa, "image answers", {}, "lacks the columns question"),
        (ChartQa, "image question", {}, "lacks the columns answer"),
        (OcrBench, "image question answer", {}, "lacks the columns question_type"),
        (Gqa, "question answer", {}, "has neither image nor imageId"),
        (Vqav2, "image question answers", {"compat": "lmm"}, r"benchmark\.compat: got 'lmm', valid are official, lmms"),
        (DocVqa, "image question answers", {"compat": "lmms"}, r"benchmark\.compat: got 'lmms', valid are kits, paper"),
    ],
)
def test_what_is_missing_is_named_when_the_source_is_opened(tmp_path, make, cells, settings, message):
    row = ", ".join(f'"{name}": "x"' for name in cells.split())
    (tmp_path / "rows.jsonl").write_text(f"{{{row}}}")
    with pytest.raises(ValueError, match=message):
        make(path=str(tmp_path / "rows.jsonl"), **settings)
