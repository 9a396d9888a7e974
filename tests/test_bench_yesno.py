"""Yes/no benchmarks, workloads of free text and dialogues: miniatures in the published layouts, and every score."""

import copy
import json
import random
import shutil
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from mmaccel.benchmarks.coco_captions import CocoCaptions
from mmaccel.benchmarks.dialogues import Dialogues
from mmaccel.benchmarks.hallusionbench import Hallusionbench, Place, keys
from mmaccel.benchmarks.llava_bench import LlavaBench
from mmaccel.benchmarks.mme import COGNITION, PERCEPTION, Mme
from mmaccel.benchmarks.mmvet import Mmvet
from mmaccel.benchmarks.pope import Pope
from mmaccel.benchmarks.yes_no import READERS
from mmaccel.jobs.conversation import conversation
from mmaccel.measure.official import official

DATA = Path(__file__).parent / "data"
SHORT = "\nAnswer the question using a single word or phrase."
END = " Please answer yes or no."
REASON = "First please perform reasoning, and think step by step to provide best answer to the following question: \n\n"
VAL = {"images": str(DATA / "pope/val2014")}
PLAIN = {"prompt": "plain"}

MME = [
    ("count/0.jpg#1", "count", "Is there one square in this image?", "yes"),
    ("count/0.jpg#2", "count", "Are there two squares in this image?", "no"),
    ("count/1.jpg#1", "count", "Is there one square in this image?", "yes"),
    ("count/1.jpg#2", "count", "Are there two squares in this image?", "no"),
    ("OCR/0.jpg#1", "OCR", 'Is the word in the picture "EXIT"?', "no"),
    ("OCR/0.jpg#2", "OCR", "Is there no word in the picture?", "yes"),
]
HALLUSION = [
    (f"VD_chart_{place}", "VD_chart", f"Is the square {colour}, by the figure?", answer)
    for place, colour, answer in (
        ("1_0_0_0", "red", "yes"), ("1_0_0_1", "red", "no"), ("2_0_1_0", "green", "no"), ("2_0_1_1", "green", "yes"),
    )
] + [
    ("VS_map_1_0_1_0", "VS_map", "Is the square blue, by the figure?", "yes"),
    ("VS_map_1_0_1_1", "VS_map", "Is the square blue, by the figure?", "no"),
    ("VS_map_2_0_2_0", "VS_map", "Is the square purple, by the figure?", "no"),
    ("VD_chart_1_1_0_0", "VD_chart", "Is the square orange, by the figure?", "yes"),
]  # fmt: skip
LLAVA = [
    ("0", "conv", "What is this place called?", None),
    ("1", "detail", "Describe this picture.", None),
    ("2", "complex", "Why might somebody have drawn it?", None),
]
MMVET = [
    ("v1_0", "math,ocr", "What is x in the equation?", None),
    ("v1_1", "rec", "Which colour is the square?", None),
]
# benchmark, path, settings → per sample (id, kind, prompt, reference)
LAYOUTS = [
    (Pope, "pope/test.parquet", {}, [
        (f"{kind}/{at}", kind, f"Is there a {thing} in the image?{SHORT}", answer)
        for kind, other in (("adversarial", "fork"), ("popular", "person"), ("random", "zebra"))
        for at, thing, answer in ((1, "square", "yes"), (2, other, "no"))
    ]),
    (Pope, "pope/POPE.tsv", PLAIN, [
        ("adversarial,popular,random/0", "adversarial,popular,random", "Is there a square in the image?", "yes"),
        ("adversarial/1", "adversarial", "Is there a fork in the image?", "no"),
        ("random,popular/2", "random,popular", "Is there a zebra in the image?", "no"),
    ]),
    (Pope, "pope/coco_pope_random.jsonl", VAL | {"max_new_tokens": 8}, [
        ("pope/1", "pope", f"Is there a square in the image?{SHORT}", "yes"),
        ("pope/2", "pope", f"Is there a zebra in the image?{SHORT}", "no"),
    ]),
    (Mme, "mme/test.parquet", {}, [(id, kind, asked + SHORT, answer) for id, kind, asked, answer in MME]),
    (Mme, "mme/MME.tsv", PLAIN, [(id, kind, asked + END, answer) for id, kind, asked, answer in MME]),
    (Hallusionbench, "hallusionbench/image.parquet", {}, HALLUSION),
    (Hallusionbench, "hallusionbench/HallusionBench.tsv", {}, HALLUSION),
    (Hallusionbench, "hallusionbench/HallusionBench.json", {}, HALLUSION),
    (LlavaBench, "llava_bench/train.parquet", {}, LLAVA),
    (LlavaBench, "llava_bench/LLaVABench.tsv", {}, LLAVA),
    (LlavaBench, "llava_bench/questions.jsonl", {"images": str(DATA / "llava_bench/images")}, LLAVA),
    (CocoCaptions, "coco_captions/val.parquet", {}, [
        (f"{at:012}.jpg", "coco_captions", "Describe the image in detail.", None) for at in range(2)
    ]),
    (CocoCaptions, "coco_captions/COCO_VAL.tsv", {"prompt": "sentence"}, [
        (str(at), "coco_captions", "Provide a one-sentence caption for the provided image.", None) for at in range(2)
    ]),
    (Mmvet, "mmvet/test.parquet", {}, MMVET),
    (Mmvet, "mmvet/MMVet.tsv", {"prompt": "reason"}, [(id, kind, REASON + asked, no) for id, kind, asked, no in MMVET]),
    (Dialogues, "dialogues/chats.jsonl", {"images": str(DATA / "dialogues/images"), "turns": 1}, [
        ("a#0", "dialogues", "What is shown?", None), ("b#1", "dialogues", "And here?<image 1>", None),
    ]),
]  # fmt: skip


@pytest.mark.parametrize(("made", "path", "settings", "wanted"), LAYOUTS, ids=[row[1] for row in LAYOUTS])
def test_a_published_layout_asks_what_is_published(made, path, settings, wanted):
    bench = made(path=str(DATA / path), **settings)
    samples = [bench[at] for at in range(len(bench))]
    assert [(one.id, one.kind, one.turns[0], one.reference[0]) for one in samples] == wanted
    assert {one.image.size for one in samples} == {(32, 24)}
    assert len({one.id for one in samples}) == len(samples)


@pytest.mark.parametrize(("made", "path", "settings", "wanted"), LAYOUTS, ids=[row[1] for row in LAYOUTS])
def test_scoring_twice_is_equal_and_leaves_the_sample_as_it_was(made, path, settings, wanted):
    bench = made(path=str(DATA / path), **settings)
    sample = bench[0]
    before = copy.deepcopy(sample.truth)
    first, other = bench.score(sample, ["Yes."]), bench.score(sample, ["No, it is none"])
    assert bench.score(sample, ["Yes."]) == first != other
    assert sample.truth == before
    records = [recorded(bench, sample, "Yes.")]
    assert bench.summary(records) == bench.summary(records)


# reply → what each reader makes of it
REPLIES = {
    "yes": ("yes", "yes", "yes", "yes"),
    " Yes\n": ("yes", "yes", "yes", "yes"),
    "Yes.": ("yes", None, "yes", "yes"),
    "Yes, there is": ("yes", None, "yes", "yes"),
    "**Yes**": ("yes", None, None, None),
    "Yes: two": ("yes", None, None, "yes"),
    "Yes, the notice says no smoking": ("yes", None, None, "yes"),
    "Yes,no": ("yes", None, None, "yes"),
    "There is a dog": (None, None, None, None),
    "The answer is yes": ("yes", None, "yes", None),
    "Not sure": (None, None, None, "no"),
    "I know": (None, None, None, None),
    "yeah": (None, None, None, None),
    "y": (None, None, None, "yes"),
    "N.": (None, None, None, "no"),
    "No": ("no", "no", "no", "no"),
    "no-one": ("no", None, "no", "no"),
    "": (None, None, None, None),
}


@pytest.mark.parametrize(("reply", "said"), REPLIES.items())
def test_readers(reply, said):
    assert {name: read(reply) for name, read in READERS.items()} == dict(
        zip(("ours", "lmms", "vlmevalkit", "official"), said)
    )


@pytest.mark.parametrize(
    ("made", "path", "compat", "right"),
    [(Pope, "pope/test.parquet", "ours", 1.0), (Pope, "pope/test.parquet", "lmms", 0.0),
     (Pope, "pope/test.parquet", "vlmevalkit", 0.0), (Mme, "mme/test.parquet", "ours", 1.0),
     (Mme, "mme/test.parquet", "official", 1.0), (Mme, "mme/test.parquet", "vlmevalkit", 0.0),
     (Hallusionbench, "hallusionbench/image.parquet", "vlmevalkit", 0.0),
     (Hallusionbench, "hallusionbench/image.parquet", "ours", 1.0)],
)  # fmt: skip
def test_compat_chooses_the_reader(made, path, compat, right):
    bench = made(path=str(DATA / path), compat=compat)
    score = bench.score(bench[0], ["Yes, the notice says no smoking"])
    assert (score["correct"], score["parsed"]) == (right, "yes" if right else None)


def recorded(bench, sample, reply):
    """A record as a run writes it."""
    score = dict(bench.score(sample, [reply]))
    parsed = score.pop("parsed")
    return {"sample": sample.id, "kind": sample.kind, "prediction": reply, "parsed": parsed, "score": score}


def replied(bench, seed=0, copies=1):
    """Records of all samples with drawn replies; of the copies, groups bear other names."""
    rng, records = random.Random(seed), []
    for number in range(copies):
        for at in range(len(bench)):
            record = recorded(bench, bench[at], rng.choice(["Yes", "yes", "No.", "no", "maybe"]))
            if "group" in record["score"]:
                record["score"]["group"] += f"#{number}"
            records.append(record | {"sample": f"{record['sample']}#{number}"})
    return records


@pytest.mark.parametrize("compat", ["ours", "lmms", "vlmevalkit"])
@pytest.mark.parametrize("path", ["pope/test.parquet", "pope/POPE.tsv"])
def test_pope_rates_are_those_of_the_confusion_matrix(path, compat):
    bench = Pope(path=str(DATA / path), compat=compat)
    records = replied(bench, copies=12)
    found, f1 = bench.summary(records), {}
    for category in ("adversarial", "popular", "random"):
        mine = [one for one in records if category in one["kind"].split(",")]
        truth = np.array([one["score"]["answer"] == "yes" for one in mine])
        yes = np.array([one["parsed"] == "yes" for one in mine])
        no = np.array([one["parsed"] == "no" for one in mine])
        missed = (truth & no).sum() if compat == "lmms" else (truth & ~yes).sum()
        precision, recall = (truth & yes).sum() / yes.sum(), (truth & yes).sum() / ((truth & yes).sum() + missed)
        f1[category] = 2 * precision * recall / (precision + recall)
        wanted = {
            "accuracy": ((truth & yes) | (~truth & no)).mean(), "precision": precision, "recall": recall,
            "F1": f1[category], "yes ratio": yes.mean(),
        }  # fmt: skip
        assert {name: found[f"{category} {name}"] for name in wanted} == pytest.approx(wanted)
    assert found["macro F1"] == pytest.approx(sum(f1.values()) / 3)
    pooled = [(c, one) for one in records for c in one["kind"].split(",")]
    hits = sum(one["score"]["answer"] == one["parsed"] == "yes" for _, one in pooled)
    wrong = sum(one["parsed"] == "yes" for _, one in pooled) - hits
    misses = [one["parsed"] for _, one in pooled if one["score"]["answer"] == "yes" and one["parsed"] != "yes"]
    counted = sum(said is not None for said in misses) if compat == "lmms" else len(misses)
    assert found["pooled F1"] == pytest.approx(2 * hits / (2 * hits + wrong + counted))


def test_pope_yes_ratio_is_of_the_replies_and_no_rate_divides_by_zero():
    bench = Pope(path=str(DATA / "pope/test.parquet"))
    always = bench.summary([recorded(bench, bench[at], "Yes") for at in range(6)])
    assert (always["random yes ratio"], always["random recall"], always["random accuracy"]) == (1.0, 1.0, 0.5)
    never = bench.summary([recorded(bench, bench[at], "No") for at in range(6)])
    assert (never["random yes ratio"], never["random precision"], never["macro F1"]) == (0.0, 0.0, 0.0)
    assert bench.summary([])["macro F1"] is None


def test_mme_scores_are_acc_and_acc_plus_of_the_pairs():
    bench = Mme(path=str(DATA / "mme/test.parquet"))
    records = replied(bench, copies=20)
    found = bench.summary(records)
    for category in ("count", "OCR"):
        pairs = defaultdict(list)
        for one in (one for one in records if one["kind"] == category):
            pairs[one["score"]["group"]].append(one["score"]["correct"])
        acc = 100 * np.mean([right for both in pairs.values() for right in both])
        plus = 100 * np.mean([all(both) for both in pairs.values()])
        assert found[category] == pytest.approx(acc + plus)
    assert found["perception"] is found["cognition"] is None, "a sum over categories that were not asked"
    without = bench.summary([one for one in records if one["sample"] != "count/1.jpg#1#0"])
    whole = [one for one in records if one["score"]["group"] != "count/1.jpg#0"]
    assert without == bench.summary(whole) | {"n incomplete pictures": 1.0}


def test_mme_sums_over_the_ten_and_the_four():
    bench = Mme(path=str(DATA / "mme/test.parquet"))
    right = [recorded(bench, bench[at], bench[at].reference[0]) for at in (0, 1)]
    records = [{**one, "kind": kind} for kind in PERCEPTION + COGNITION for one in right]
    found = bench.summary(records)
    assert (found["perception"], found["cognition"], found["OCR"]) == (2000.0, 800.0, 200.0)
    assert bench.summary(records[2:])["perception"] is None


def test_mme_a_limit_keeps_pairs_whole_and_an_odd_picture_is_refused(tmp_path):
    bench = Mme(path=str(DATA / "mme/test.parquet"))
    assert [bench.whole(size) for size in (2, 3, 4, 5, 6, 99)] == [2, 2, 4, 4, 6, 6]
    with pytest.raises(ValueError, match=r"limit: got 1, .* valid is 2 or more"):
        bench.whole(1)
    lines = (DATA / "mme/MME.tsv").read_text().splitlines()
    (tmp_path / "MME.tsv").write_text("\n".join(lines[:-1]))
    with pytest.raises(ValueError, match=r"picture '1.jpg' of count has 1 questions, valid are 2; .* 1 of 3"):
        Mme(path=str(tmp_path / "MME.tsv"))
    assert len(Mme(path=str(tmp_path / "MME.tsv"), kinds=["OCR"])) == 2


@pytest.mark.parametrize("compat", ["ours", "vlmevalkit"])
def test_hallusionbench_groups_as_the_authors_do(compat):
    bench = Hallusionbench(path=str(DATA / "hallusionbench/HallusionBench.tsv"), compat=compat)
    records = replied(bench, copies=40)
    found, right = bench.summary(records), [one["score"]["correct"] for one in records]
    figures, pairs = defaultdict(list), defaultdict(list)
    for one, correct in zip(records, right):
        index, number = one["sample"].split("#")
        category, sub, _, chosen, figure, question = index.split("_")
        figures[category, sub, chosen, figure, number].append(correct)
        pairs[category, sub, chosen, question, number].append(correct)
    wanted = [np.mean(right), *(np.mean([all(one) for one in g.values()]) for g in (figures, pairs))]
    assert [found[name] for name in ("aAcc", "fAcc", "qAcc")] == pytest.approx(wanted)
    assert found["score"] == pytest.approx(np.mean(wanted))
    assert (len(figures), len(pairs)) == (5 * 40, 5 * 40)
    cut = bench.summary(records[1:])  # figure 0 and question 0 of the first set lack a record
    assert cut["n incomplete groups"] == 2
    assert cut["fAcc"] == pytest.approx(np.mean([all(one) for one in list(figures.values())[1:]]))


def test_hallusionbench_leaves_out_rows_without_a_picture_and_knows_what_a_blind_question_is():
    bench = Hallusionbench(path=str(DATA / "hallusionbench/HallusionBench.json"))
    assert (len(bench), bench.left_out) == (8, 2)
    assert [bench.whole(size) for size in (4, 6, 7, 8)] == [4, 4, 7, 8]
    sample = bench[0]
    assert bench.score(sample, ["It is unclear."])["correct"] == 0.0
    blind = Place("VS", "map", "0", "0", "0", "0")
    sample.truth["place"] = blind
    found = bench.score(sample, ["It is unclear."])
    assert (found["correct"], found["parsed"], found["figure"]) == (1.0, None, None)
    assert bench.score(sample, ["No"])["correct"] == 0.0
    record = recorded(bench, sample, "Yes")
    assert bench.summary([record])["fAcc"] is None, "no figure, no figure accuracy"
    assert keys(blind)[1] == ("question", "VS_map_0", "0")


def test_intervals_draw_together_what_is_scored_together():
    bench = Mme(path=str(DATA / "mme/test.parquet"))
    records = replied(bench, copies=4)
    found = official(bench.summary, bench.unit, records, replied(bench, seed=1, copies=4), resamples=20)
    assert found["count"]["ci"][0] <= found["count"]["value"] <= found["count"]["ci"][1]
    assert found["n incomplete pictures"]["value"] == 0


@pytest.mark.parametrize(
    ("made", "path", "truth"),
    [(LlavaBench, "llava_bench/train.parquet", {"answer": "It is a square."}),
     (LlavaBench, "llava_bench/LLaVABench.tsv", {"answer": "It is a square."}),
     (CocoCaptions, "coco_captions/val.parquet", {"captions": ("A red square.", "There is a square.")}),
     (CocoCaptions, "coco_captions/COCO_VAL.tsv", {"captions": ("A red square.", "There is a square.")}),
     (Mmvet, "mmvet/MMVet.tsv", {"answer": "-1<AND>-5"})],
)  # fmt: skip
def test_free_text_keeps_published_answers_and_judges_nothing(made, path, truth):
    bench = made(path=str(DATA / path))
    sample = bench[0]
    assert (sample.truth, sample.reference) == (truth, (None,))
    assert bench.score(sample, ["A red square, on white."]) == {"correct": None, "parsed": "red square on white"}
    assert bench.summary([{"prediction": "one two three"}, {"prediction": "one"}]) == {"words": 2.0}


def test_dialogues_ask_the_human_turns_and_carry_the_models_own_replies():
    bench = Dialogues(path=str(DATA / "dialogues/chats.json"), images=str(DATA / "dialogues/images"))
    assert (len(bench), bench.left_out) == (4, 1)
    first, at_end, two, inner = (bench[at] for at in range(4))
    assert first.turns == ("What is shown?", "Which colour has it?", "Thank you. What is around it?")
    assert first.truth["answers"] == ["A square.", "Red."]
    assert first.reference == (None, None, None)
    messages = conversation(first, ["It says this.", "And that."])
    assert [one["content"][-1]["text"] for one in messages[1::2]] == ["It says this.", "And that."]
    assert parts(at_end) == ["And here?", (0, 128, 0)]
    assert parts(two) == [(0, 128, 0), (255, 0, 0), "What changed?"]
    assert parts(inner) == ["First: ", (0, 128, 0), "Then: ", (255, 0, 0), "What changed?"]
    assert len({bench[at].id for at in range(4)}) == 4, "ids repeat in published files"
    short = Dialogues(path=bench.path, images=bench.images, turns=2)[0]
    assert (len(short.turns), len(short.reference), short.truth["answers"]) == (2, 2, ["A square.", "Red."])


def parts(sample):
    """The first turn as the model gets it: texts, and the colours of the pictures' squares."""
    content = conversation(sample, [])[0]["content"]
    return [part["text"] if part["type"] == "text" else part["image"].getpixel((10, 10)) for part in content]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"conversations": "hello"}, "column 'conversations': got 'hello'"),
        ({"conversations": [{"from": "gpt", "value": "Hi"}]}, "turn 0: from gpt, valid is human, gpt"),
        ({"conversations": [{"from": "system", "value": "Hi"}]}, "turn 0: from 'system'"),
        ({"conversations": [{"from": "human", "value": "<image>"}]}, "turn 0: is empty"),
        ({"conversations": [{"from": "human", "value": "<image><image>?"}]}, "1 pictures and 2 <image> marks"),
        ({"conversations": [{"from": "human", "value": "?"}, {"from": "gpt", "value": "<image>!"}]}, "turn 1: holds"),
        ({"image": "2.png"}, "column 'image': .*no picture '2.png'"),
        ({"image": ["0.png", "../0.png"]}, "column 'image': .*lies outside"),
    ],
)
def test_a_dialogue_that_cannot_be_asked_says_why(tmp_path, record, message):
    shutil.copy(DATA / "dialogues/images/0.png", tmp_path)
    good = {"image": "0.png", "conversations": [{"from": "human", "value": "?"}]}
    (tmp_path / "chats.json").write_text(json.dumps([good | record]))
    with pytest.raises(ValueError, match=f"chats.json row 0.*{message}"):
        Dialogues(path=str(tmp_path / "chats.json"))[0]


@pytest.mark.parametrize(
    ("made", "path", "settings", "message"),
    [
        (Pope, "mmvet/MMVet.tsv", {"columns": {"answer": "reply"}}, r"columns: got \['reply'\]"),
        (Mme, "pope/coco_pope_random.jsonl", {}, "lacks the columns question, answer, category"),
        (Mme, "pope/POPE.tsv", {}, "lacks the columns picture"),
        (Hallusionbench, "pope/coco_pope_random.jsonl", {}, "lacks the columns question, answer"),
        (
            Hallusionbench,
            "pope/test.parquet",
            {},
            "lacks the columns subcategory, visual_input, set_id, figure_id, or index",
        ),
        (CocoCaptions, "dialogues/chats.json", {}, "lacks the columns question_id"),
        (Dialogues, "pope/POPE.tsv", {}, "lacks the columns conversations"),
        (Dialogues, "dialogues/chats.json", {"turns": 0}, "benchmark.turns: got 0"),
        (Pope, "pope/POPE.tsv", {"compat": "official"}, "benchmark.compat: got 'official', valid are ours, lmms"),
        (CocoCaptions, "coco_captions/COCO_VAL.tsv", {"prompt": "long"}, "benchmark.prompt: got 'long'"),
    ],
)
def test_what_a_source_lacks_is_named_when_it_is_opened(made, path, settings, message):
    with pytest.raises(ValueError, match=message):
        made(path=str(DATA / path), **settings)


@pytest.mark.parametrize("answer", ["maybe", ""])
def test_an_answer_that_is_neither_yes_nor_no_is_named(tmp_path, answer):
    rows = [{"question": "?", "image": "0.png", "answer": answer}]
    (tmp_path / "pope.json").write_text(json.dumps(rows))
    with pytest.raises(ValueError, match=r"pope.json row 0, column 'answer'"):
        Pope(path=str(tmp_path / "pope.json"))[0]
