"""The multiple-choice benchmarks on miniatures of their published files, and how a reply's letter is read."""

import csv
import random
from pathlib import Path

import pytest

from mmaccel.benchmarks.choice import chosen, inferred, rotated, together
from mmaccel.benchmarks.mmbench import MMBench
from mmaccel.benchmarks.mmmu import MMMU, READ, guess, official_letter, official_open
from mmaccel.benchmarks.ordering import whole_groups
from mmaccel.benchmarks.realworldqa import RealWorldQA
from mmaccel.benchmarks.scienceqa import ScienceQA
from mmaccel.jobs.conversation import conversation

DATA = Path(__file__).parent / "data"
DIRECTLY = "Answer with the option's letter from the given choices directly."
PETS = {"A": "cat", "B": "dog", "C": "a red car", "D": "tree"}


def bench(kind, file=None, **fields):
    folder = DATA / kind.__name__.lower()
    return kind(path=str(folder / file if file else folder), **fields)


def record(one, sample, reply, point="p"):
    score = dict(one.score(sample, [reply]))
    return {"point": point, "sample": sample.id, "kind": sample.kind, "prediction": reply,
            "parsed": score.pop("parsed"), "score": score}  # fmt: skip


@pytest.mark.parametrize(
    ("reply", "ours", "kit"),
    [
        ("B", "B", "B"), ("(B)", "B", "B"), ("**B**", "B", "B"), ("b.", "B", None), ("\\boxed{B}", "B", "B"),
        ("The answer is B because A is wrong", "B", "B"), ("The answer is A because B is wrong", "A", "A"),
        ("I think it is a dog", "B", "B"), ("B or C", None, None), ("The answer is B or C", None, "B"),
        ("Both A and B", None, None), ("a", "A", None), ("", None, None),
        ("A dog", "B", "A"), ("A red car", "C", "A"), ("The answer is a dog", "B", "A"),
        ("**B.** dog", "B", "B"), ("B. dog, not A. cat", "B", None),
        ("E.g. a dog", "B", "B"),
        ("The answer is A dog", "B", "A"), ("A-frame tree", "D", "D"),
        ("A. cat\nB. dog\nAnswer: B", "B", None), ("Is the answer A? No, the answer is C.", "C", "C"),
        ("The answer is not B", None, "B"), ("Option A is right.", "A", "A"), ("答案是B", "B", None),
        ("I'm sorry, I cannot tell if it is a dog", None, None), ("As an AI, I cannot see the dog", None, "B"),
        ("Cannot determine the answer", None, None), ("It is a cat or a dog", None, None),
        ("B it is now", "B", "B"), ("B it is right now", "B", None),
    ],
)  # fmt: skip
def test_the_letter_that_a_reply_chooses(reply, ours, kit):
    assert (chosen(reply, PETS), inferred(reply, PETS)) == (ours, kit)


@pytest.mark.parametrize(
    ("reply", "letter"),
    [
        ("It is not a dog.", None), ("It isn't a dog but a cat.", "A"), ("The answer is not a dog", None),
        ("top left: a small circle. " * 8 + "a dog", None),
        ("I see many things. " * 20 + "So the answer is the dog.", "B"),
    ],
)  # fmt: skip
def test_a_wording_counts_where_it_is_an_answer(reply, letter):
    assert chosen(reply, PETS) == letter


def test_wordings_are_told_apart():
    places = {"A": "left", "B": "top left", "C": "cannot be determined", "D": "猫"}
    replies = ("It is at the top left.", "left", "It cannot be determined.", "这是一只猫。", "left or top left of it")
    assert [chosen(reply, places) for reply in replies] == ["B", "A", "C", "D", "B"]
    assert chosen("Here", {"A": "?", "B": "!"}) is None


def test_copy_r_has_the_options_r_places_to_the_right():
    assert [rotated("abcd", r) for r in range(4)] == [list("abcd"), list("dabc"), list("cdab"), list("bcda")]


def test_mmbench_asks_group_after_group_with_the_prompt_of_lmms_eval():
    one = bench(MMBench)
    assert [sample.id for sample in one] == [
        "241", "1000241", "2000241", "3000241", "252", "1000252", "2000252", "7", "1000007",
    ]  # fmt: skip
    assert one[0].turns == (
        "What is drawn? There are several options:\nA. a cross\nB. a star\nC. a circle\nD. a square\n\n" + DIRECTLY,
    )
    assert one[1].turns[0].split("\n")[1:5] == ["A. a square", "B. a cross", "C. a star", "D. a circle"]
    assert [one[k].reference[0] for k in range(4)] == ["C", "D", "A", "B"]
    assert one[4].turns[0].count("\n") == 5, "the option that is 'nan' is none"
    assert one[7].turns[0].startswith("It is a circle. Is it round? There")
    assert [sample.kind for sample in one][3:5] == ["object_localization", "attribute_recognition"]
    assert one[8].truth == {"options": {"A": "no", "B": "yes"}, "l2": "attribute_reasoning", "group": "7", "of": 2}
    chinese = bench(MMBench, language="cn")[7].turns[0].split("\n")
    assert chinese[0] == "It is a circle. Is it round? 有如下几个选项："
    assert chinese[1:] == ["A. yes", "B. no", "", "请直接使用所提供的选项字母作为答案回答。"]
    assert [sample.id for sample in bench(MMBench, circular=False)] == ["241", "252", "7"]
    assert [sample.id for sample in bench(MMBench, kinds=["attribute_recognition"])] == ["252", "1000252", "2000252"]


def test_mmbench_with_missing_rotations_is_refused_or_completed():
    kit = "MMBench_DEV_EN.tsv"
    with pytest.raises(ValueError, match=r"benchmark\.incomplete: got refuse, .*_EN\.tsv the questions 241 have"):
        bench(MMBench, kit)
    full, mended = bench(MMBench), bench(MMBench, kit, incomplete="complete")
    for k in range(7):
        mine, other = ((s.id, s.turns, s.reference, s.truth, s.image.tobytes()) for s in (full[k], mended[k]))
        assert mine == other, "also where the cell names the row of the picture"
    assert mended.digest(7) != bench(MMBench, kit, circular=False).digest(2)


def test_mmbench_limits_and_indices(tmp_path):
    one = bench(MMBench)
    assert [one.whole(size) for size in (4, 6, 7, 8, 9, 100)] == [4, 4, 7, 7, 9, 9]
    with pytest.raises(ValueError, match=r"limit: got 3, the first 4 are scored together"):
        one.whole(3)
    assert bench(MMBench, circular=False).whole(2) == 2
    assert whole_groups("aab", 2) == 2
    rows = list(csv.DictReader((DATA / "mmbench" / "MMBench_DEV_EN.tsv").open(), delimiter="\t"))

    def saved(change):
        file = tmp_path / "other.tsv"
        with file.open("w", newline="") as lines:
            writer = csv.DictWriter(lines, [*rows[0], "g_index"], delimiter="\t")
            writer.writeheader()
            writer.writerows({**row, **change(row)} for row in rows[3:6])
        return str(file)

    groups = saved(lambda row: {"g_index": 252, "index": {"1000252": "9"}.get(row["index"], row["index"])})
    assert [s.id for s in MMBench(path=groups)] == ["252", "9", "2000252"]
    with pytest.raises(ValueError, match=r"row 0: got index 'x' and group '252', valid are whole numbers"):
        MMBench(path=saved(lambda row: {"g_index": 252, "index": "x"}))
    with pytest.raises(ValueError, match="no base row of the questions 242"):
        MMBench(path=saved(lambda row: {"g_index": 242}))
    with pytest.raises(ValueError, match="row 1: index 252 is that of row 0 too"):
        MMBench(path=saved(lambda row: {"g_index": 252, "index": 252}))


def test_mmbench_is_right_only_where_all_rotations_are():
    one = bench(MMBench)
    wrong = {"2000241", "7"}
    records = [record(one, s, "zzz" if s.id in wrong else f"({s.reference[0]})") for s in one]
    assert one.score(one[1], ["D"]) == {
        "correct": 1.0, "parsed": "D", "l2": "finegrained_perception", "group": "241", "of": 4,
    }  # fmt: skip
    assert {r["parsed"] for r in records if r["sample"] in wrong} == {None}
    assert one.summary(records) == pytest.approx({
        "circular": 1 / 3, "vanilla": 7 / 9, "category object_localization": 0.0, "category attribute_recognition": 1.0,
        "category physical_property_reasoning": 0.0, "l2 finegrained_perception": 0.5, "l2 attribute_reasoning": 0.0,
    })  # fmt: skip
    kept = one.summary([r for r in records if r["sample"] != "1000252"])
    assert (kept["circular"], kept["vanilla"]) == (0.0, 6 / 8), "a question that lacks a rotation is neither"
    assert one.unit(records[0]) == one.unit(records[3]) == "241"
    vanilla = bench(MMBench, circular=False)
    plain = vanilla.summary([record(vanilla, s, s.reference[0]) for s in vanilla])
    assert "circular" not in plain
    assert plain["vanilla"] == plain["l2 attribute_reasoning"] == 1.0
    assert one.summary([]) == {"circular": None, "vanilla": None}


def test_the_circular_share_equals_a_slow_count():
    rng = random.Random(0)
    sizes = {group: rng.choice((2, 3, 4)) for group in range(40)}
    records = [
        {"sample": f"{group}-{r}", "score": {"correct": float(rng.random() < 0.8), "group": str(group), "of": size}}
        for group, size in sizes.items()
        for r in range(size)
    ]
    rng.shuffle(records)
    slow = [all(r["score"]["correct"] for r in records if r["score"]["group"] == str(g)) for g in range(40)]
    assert sum(hit for _, hit in together(records)) == sum(slow)
    assert len(together(records)) == 40


@pytest.mark.parametrize(("compat", "correct"), [("ours", 0.0), ("vlmevalkit", 1.0)])
def test_only_the_kits_reader_takes_the_article(compat, correct):
    one = bench(MMBench, compat=compat)
    assert one[2].reference == ("A",)
    assert one.score(one[2], ["A star"])["correct"] == correct


def test_mmmu_shows_the_pictures_that_the_text_names_where_it_names_them():
    one = bench(MMMU)
    assert [s.id for s in one][:2] == ["validation_Accounting_1", "validation_Basic_Medical_Science_2"]
    assert [s.kind for s in one] == ["Accounting", "Basic_Medical_Science", "Math", "Math"]
    assert one[0].turns == (f"<image 1> What is the sum?\nA. $6\nB. $7\nC. $8\n\n{DIRECTLY}",)
    medicine = one[1]
    assert medicine.turns == (f"Which one of these follows <image 2>?\nA. <image 1>\nB. <image 3>\n\n{DIRECTLY}",)
    assert [p.getpixel((12, 12)) for p in medicine.pictures] == [(255, 0, 0), (0, 128, 0), (0, 0, 255)]
    parts = conversation(medicine, [])[0]["content"]
    shown = [part.get("image") or part["text"].strip() for part in parts]
    assert shown[:5] == ["Which one of these follows", medicine.more[0], "?\nA.", medicine.image, "B."]
    assert one[2].turns == ("<image 1> How long is it?\n\nAnswer the question using a single word or phrase.",)
    assert (one[2].reference, one[2].truth["accepted"]) == (("12.5",), ("12.5", "twelve and a half"))
    assert (one[3].marked, len(one[3].pictures), one[3].reference) == (False, 2, (None,))
    assert one.score(one[3], ["A"])["correct"] is None


def test_mmmu_reads_the_table_of_vlmevalkit():
    art, maths = bench(MMMU, "MMMU_DEV_VAL.tsv")
    assert (art.kind, art.id, len(art.pictures)) == ("Art_Theory", "1", 1)
    assert art.turns[0].startswith("<image 1> What follows?\nA. red")
    assert art.image.getpixel((12, 12)) == (0, 0, 255)
    assert (maths.marked, maths.reference) == (False, ("A",))


@pytest.mark.parametrize(
    ("reply", "letter"),
    [
        ("B", "B"), ("(B) or (A)", "A"), ("I take B.", "B"), ("blue", None), ("**B**", None), ("A is not B here", "B"),
        ("A dog is blue in this image here", "A"), ("it seems that the thing is blue", "B"), ("", None),
        ("it may be red but then it is blue", "B"), ("C.", "C"), ("so B.x", "B"),
    ],
)  # fmt: skip
def test_mmmus_official_letter(reply, letter):
    assert official_letter(reply, {"A": "red", "B": "blue", "C": "grey"}) == letter


@pytest.mark.parametrize(
    ("reply", "accepted", "right"),
    [
        ("12.5", ["12.5"], True), ("The length is 12.5 cm.", ["12.5"], True), ("12.504", ["12.5"], True),
        ("12.51", ["12.5"], False), ("it is 1,000", ["1000"], True), ("x = 7", ["7"], True),
        ("about 7kg", ["7"], False),
        ("the answer is a Right Triangle", ["right triangle"], True), ("triangle", ["right triangle"], False),
        ("x", ["x"], True), ("next", ["x"], False), ("1e3", ["1000"], True), ("-4", ["4"], False), ("", ["7"], False),
        ("I guess so\nthe answer is 8\nnot 9", ["8"], True), ("one of these", ["4", "one"], True), ("7", [], False),
    ],
)  # fmt: skip
@pytest.mark.parametrize("compat", READ)
def test_mmmus_open_answers(reply, accepted, right, compat):
    assert official_open(reply, accepted, READ[compat]) is right


@pytest.mark.parametrize(
    ("reply", "gold", "ours", "official"),
    [
        ("it is 1,000.5 m", "1000.5", True, False), ("it is 1,000.5 m", "1000", False, True),
        ("it is 5, or more", "5", True, False),
    ],
)  # fmt: skip
def test_numbers_with_commas_are_whole_in_ours_and_in_pieces_in_the_official_script(reply, gold, ours, official):
    found = [official_open(reply, [gold], READ[compat]) for compat in ("ours", "mmmu_random")]
    assert found == [ours, official]


def test_mmmu_counts_what_it_cannot_read_and_guesses_only_when_asked():
    ours, kit = bench(MMMU), bench(MMMU, compat="mmmu_random")
    sample = ours[0]
    guessed = guess(sample.id, sample.truth["options"])
    assert ours.score(sample, ["hard to say"]) == {"correct": 0.0, "parsed": None, "unparsed": True}
    assert kit.score(sample, ["hard to say"]) == {"correct": float(guessed == "B"), "parsed": None, "unparsed": True}
    assert {guess(f"validation_Art_{k}", sample.truth["options"]) for k in range(30)} == {"A", "B", "C"}
    assert ours.score(sample, ["$7"])["parsed"] == ours.score(sample, ["**B**"])["parsed"] == "B"
    assert kit.score(sample, ["**B**"])["parsed"] is None
    assert ours.score(ours[2], ["twelve and a half"]) == {
        "correct": 1.0, "parsed": "twelve and a half", "unparsed": False,
    }  # fmt: skip
    replies = {"Accounting": "B", "Basic_Medical_Science": "?", "Math": "13"}
    records = [record(ours, s, replies[s.kind]) for s in ours]
    assert ours.summary(records) == pytest.approx({
        "overall": 1 / 3, "subject Accounting": 1.0, "subject Basic_Medical_Science": 0.0, "subject Math": 0.0,
        "n unparsed": 2,
    })  # fmt: skip


def test_mmmu_weighs_subjects_by_their_questions():
    def made(kind, correct):
        return {"sample": "s", "kind": kind, "score": {"correct": correct, "unparsed": False}}

    found = bench(MMMU).summary([made("Art", 1.0), *(made("Music", 0.0) for _ in range(3))])
    assert (found["overall"], found["subject Art"], found["n unparsed"]) == (0.25, 1.0, 0)


def test_scienceqa():
    one = bench(ScienceQA)
    first, second = one[0], one[1]
    assert first.turns == (f"Context: Look at the circle.\nWhich is larger?\nA. the Sun\nB. the Moon\n{DIRECTLY}",)
    assert (first.id, first.reference, first.kind) == ("row-0", ("A",), "natural science")
    assert second.turns[0].startswith("Which state is this?\nA. Ohio\nB. Iowa\nC. Utah")
    assert second.reference == ("C",)
    with pytest.raises(ValueError, match=r"row 2, column 'image'"):
        one[2]
    kit = bench(ScienceQA, "ScienceQA_TEST.tsv")[0]
    assert (kit.id, kit.truth["options"], kit.reference) == ("11", {"A": "the Sun", "B": "None"}, ("B",))
    records = [record(one, first, "A"), record(one, second, "Ohio")]
    assert one.summary(records) == {"subject NAT": 1.0, "subject SOC": 0.0, "grades G1-6": 1.0, "grades G7-12": 0.0}


@pytest.mark.parametrize(
    ("reply", "ours", "lmms"),
    [("C", 1.0, 1.0), ("c", 1.0, 1.0), ("C. Utah", 1.0, 1.0), ("C.", 1.0, 1.0), ("(C)", 1.0, 0.0), ("Utah", 1.0, 0.0),
     ("The answer is C", 1.0, 0.0), ("A. Ohio", 0.0, 0.0)],
)  # fmt: skip
def test_scienceqas_letter(reply, ours, lmms):
    for compat, wanted in (("ours", ours), ("vlmevalkit", None), ("lmms_eval", lmms)):
        one = bench(ScienceQA, compat=compat)
        score = one.score(one[1], [reply])
        assert wanted is None or score["correct"] == wanted
        assert score["grade"] == "grade8"


def test_realworldqa():
    one = bench(RealWorldQA)
    choice, count, yes = one
    assert choice.turns[0].endswith("A. Left\nB. Right\nC. Ahead\nPlease answer directly with only the letter of the "
                                    "correct option and nothing else.")  # fmt: skip
    assert [(s.id, s.kind, s.reference[0]) for s in one] == [
        ("row-0", "choice", "B"), ("row-1", "open", "2"), ("row-2", "choice", "A"),
    ]  # fmt: skip
    assert choice.truth["options"] == {"A": "Left", "B": "Right", "C": "Ahead"}
    assert yes.truth["options"] == {"A": "Yes", "B": "No"}
    kit = bench(RealWorldQA, "RealWorldQA.tsv")[0]
    assert (kit.id, kit.turns) == ("5", (f"Where is it?\nA. Left\nB. Right\n{DIRECTLY}",))
    assert one.score(choice, ["right"]) == {"correct": 1.0, "parsed": "B"}
    assert one.score(count, ["There are two."]) == {"correct": 1.0, "parsed": "2"}
    plain = bench(RealWorldQA, compat="vlmevalkit")
    assert [plain.score(count, [reply])["correct"] for reply in ("2.", "two")] == [1.0, 0.0]
    records = [record(one, choice, "A"), record(one, count, "2"), record(one, yes, "A")]
    assert one.summary(records) == {"kind choice": 0.5, "kind open": 1.0}


@pytest.mark.parametrize("kind", [MMBench, MMMU, ScienceQA, RealWorldQA])
def test_scores_are_pure_and_bad_files_are_named_first(kind, tmp_path):
    one = bench(kind)
    sample = one[0]
    before = repr((sample.turns, sample.reference, dict(sample.truth)))
    assert one.score(sample, ["B"]) == one.score(sample, ["B"])
    assert repr((sample.turns, sample.reference, dict(sample.truth))) == before
    (tmp_path / "a.tsv").write_text("index\timage\tquestion\n1\tx\ty\n")
    with pytest.raises(ValueError, match=r"benchmark \w+: a\.tsv lacks the columns (options|choices|answer)"):
        kind(path=str(tmp_path / "a.tsv"))
    with pytest.raises(ValueError, match=r"benchmark\.compat: got 'theirs', valid are ours, "):
        bench(kind, compat="theirs")


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ("red\t\tblue\tA", "row 0, column 'B': empty, but there is an option after it"),
        ("red\tnan\t\tA", "row 0, column 'A': got 'red', valid are two options or more"),
        ("red\tblue\t\tC", "row 0, column 'answer': got 'C', valid are A, B"),
    ],
)
def test_a_row_that_cannot_be_asked_is_named(tmp_path, cells, message):
    (tmp_path / "a.tsv").write_text(f"index\timage\tquestion\tA\tB\tC\tanswer\n1\tx\ty\t{cells}\n")
    with pytest.raises(ValueError, match=message):
        MMBench(path=str(tmp_path / "a.tsv"), circular=False)[0]
