"""The generated benchmark: same seed same sample, evidence where the object is drawn, answers true of the scene."""

import hashlib
import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from mmaccel.benchmarks import scene_draw
from mmaccel.benchmarks.scene_caption import TEMPLATES
from mmaccel.benchmarks.scene_graph import COLOURS, SIDE
from mmaccel.benchmarks.scene_questions import ASK, BY_NAME, DESCRIBE, names, options, point
from mmaccel.benchmarks.scenes import FRAMES, KINDS, Scenes, caption_facts, make_question, normalise


def pixels(picture: Image.Image) -> np.ndarray:
    return np.asarray(picture).astype(int)


def test_same_seed_same_sample():
    one, two = Scenes(n=22, seed=3), Scenes(n=44, seed=3)
    for k in range(22):
        a, b = one[k], two[k]
        assert (a.id, a.turns, a.reference, a.region, a.facts) == (b.id, b.turns, b.reference, b.region, b.facts)
        assert a.image.tobytes() == b.image.tobytes()
    other = Scenes(n=22, seed=4)
    assert all(one[k].image.tobytes() != other[k].image.tobytes() for k in range(22))


def test_a_kind_keeps_its_samples_when_others_are_left_out():
    every, signs = Scenes(n=3 * len(KINDS)), Scenes(n=3, kinds=["sign"])
    wanted = [every[k] for k in range(every.n) if every[k].kind == "sign"]
    assert [s.id for s in wanted] == [signs[k].id for k in range(3)]
    assert wanted[1].image.tobytes() == signs[1].image.tobytes()


def test_questions_do_not_drift():
    """The recorded runs name samples by id: a change of the generator must be noticed."""
    text = "\n".join(
        f"{s.turns[0]} {s.reference[0]} {s.region}" for s in (Scenes(n=28, kinds=KINDS)[k] for k in range(28))
    )
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "19ec969b6da5a461"


def test_held_out_by_name_of_the_seed_space():
    with pytest.raises(ValueError, match="training"):
        Scenes(split="train")
    test, val = Scenes(n=11), Scenes(n=11, split="val")
    assert all(test[k].image.tobytes() != val[k].image.tobytes() for k in range(11))


def test_every_prefix_is_balanced():
    kinds = [Scenes(n=55).source(k)[1].kind for k in range(55)]
    for stop in range(1, 56):
        counts = Counter(kinds[:stop])
        assert max(counts.values()) - min(counts[k] for k in KINDS) <= 1


@pytest.mark.parametrize("kind", KINDS)
def test_evidence_lies_in_the_picture_and_on_what_is_asked_for(kind):
    for number in range(25):
        scene, question = make_question("test", 1, kind, number)
        parts = scene_parts(scene)
        whole = pixels(scene_draw.draw(scene))
        assert question.evidence or (kind in ("exist", "count", "unanswerable", "caption") and not scene.things)
        for box in question.evidence:
            assert -4 <= box[0] < box[2] <= SIDE + 4
            assert -4 <= box[1] < box[3] <= SIDE + 4
            # without the part, the picture changes inside its box, and (almost) only there
            without = parts[box]
            if without is None:
                continue
            changed = np.abs(whole - pixels(scene_draw.draw(without))).sum(-1) > 0
            left, top, right, bottom = (round(v) for v in box)
            inside = changed[max(0, top - 1) : bottom + 2, max(0, left - 1) : right + 2]
            assert inside.sum() == changed.sum() > 40


def scene_parts(scene):
    """{evidence box: the scene without the part in it, or None where the part is not drawn alone}."""
    parts = {t.box: replace(scene, things=tuple(o for o in scene.things if o is not t)) for t in scene.things}
    parts |= {s.box: replace(scene, signs=tuple(o for o in scene.signs if o is not s)) for s in scene.signs}
    if scene.chart:
        parts |= {scene.chart.bar_box(k): None for k in range(len(scene.chart.bars))}
    if scene.table:
        rows, columns = len(scene.table.values), len(scene.table.values[0])
        parts |= {scene.table.cell_box(r, c): None for r in range(-1, rows) for c in range(-1, columns)}
    return parts


def test_a_bar_fills_its_evidence_box():
    for number in range(20):
        scene, question = make_question("test", 2, "chart", number)
        picture = pixels(scene_draw.draw(scene))
        for colour, value in scene.chart.bars:
            k = [c for c, _ in scene.chart.bars].index(colour)
            left, top, right, bottom = (int(v) for v in scene.chart.bar_box(k))
            assert (picture[top : bottom + 1, left : right + 1] == COLOURS[colour]).all()
            assert bottom - top == 10 * value
        if "value" in question.text:
            assert len(question.evidence) == 1


def test_answers_agree_with_the_scene():
    """Each answer recomputed from the scene by other means than the generator's."""
    for number in range(60):
        scene, q = make_question("test", 5, "count", number)
        word = (
            q.text.split()[2].rstrip("s").removesuffix("e")
            if "crosses" in q.text
            else q.text.split()[2].removesuffix("s")
        )
        seen = [t for t in scene.things if word in (t.colour, t.shape, t.size) or word == "object"]
        assert q.answer == str(len(seen))
        scene, q = make_question("test", 5, "exist", number)
        _, _, _, colour, shape = q.text.rstrip("?").split()
        assert (q.answer == "yes") == any((t.colour, t.shape) == (colour, shape) for t in scene.things)
        scene, q = make_question("test", 5, "where", number)
        x, y = ((q.evidence[0][k] + q.evidence[0][k + 2]) / 2 / SIDE for k in (0, 1))
        rows, columns = ("top", "", "bottom")[int(y * 3)], ("left", "", "right")[int(x * 3)]
        assert q.answer == (f"{rows} {columns}".strip() or "center")
        scene, q = make_question("test", 5, "relation", number)
        (a, b), axis = q.evidence, 0 if "left" in q.text else 1
        less = a[axis] + a[axis + 2] < b[axis] + b[axis + 2]
        assert q.answer == (("left", "right") if axis == 0 else ("above", "below"))[not less]


def test_a_phrase_points_at_one_object():
    import random

    for number in range(60):
        scene, _ = make_question("test", 6, "colour", number)
        for thing in scene.things:
            for phrase in names(scene, thing):
                words = set(phrase.split()) - {"object"}
                assert [t for t in scene.things if words <= {t.colour, t.shape, t.size}] == [thing]
            phrase = point(random.Random(number), scene, thing, by_mark=1.0)
            if thing.mark:
                assert phrase == f"object marked {thing.mark}"
                assert sum(t.mark == thing.mark for t in scene.things) == 1


def test_nothing_overlaps():
    for number in range(40):
        scene, _ = make_question("test", 7, "chart", number)
        boxes = [p.box for p in (*scene.things, *scene.signs, scene.chart) if p is not None]
        for k, a in enumerate(boxes):
            for b in boxes[k + 1 :]:
                assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]


def test_answers_are_not_guessable_from_their_frequency():
    answers = Counter(make_question("test", 8, "exist", k)[1].answer for k in range(300))
    assert 0.4 < answers["yes"] / 300 < 0.6
    letters = Counter(make_question("test", 8, "choice", k)[1].answer for k in range(300))
    assert letters["A"] < 180


def test_the_right_letter_stands_before_the_right_value():
    for number in range(60):
        scene, q = make_question("test", 9, "choice", number)
        options = q.text.split("? ")[1]
        chosen = dict(re.findall(r"([A-D]): (.*?)(?= [A-D]: |$)", options))[q.answer]
        thing = next(t for t in scene.things if t.box == q.evidence[0])
        assert chosen in (thing.colour, thing.shape, thing.cell, thing.mark)


def test_score():
    bench = Scenes(n=33)
    for k in range(33):
        sample = bench[k]
        right = bench.score(sample, [sample.reference[0]])
        assert right["correct"] == 1.0
        assert bench.score(sample, ["zzz"])["correct"] == 0.0
    assert normalise(" Red.\n", "colour") == "red"
    assert normalise("Yes, there is.", "exist") == "yes"
    assert normalise("B: blue", "choice") == normalise("(B)", "choice") == "b"
    assert normalise("blue", "choice") == "blue"
    assert normalise("k 4 u", "sign") == "k4u"


def test_caption_score_counts_facts():
    text = (
        "The picture shows a small red star marked K at the top left, a large blue circle at the center. "
        "The small sign says U4. The chart has red 3, blue 5."
    )
    assert sum(caption_facts(text).values()) == 6
    bench = Scenes(n=1, kinds=["caption"])
    sample = replace(bench[0], reference=(text,))
    half = bench.score(sample, [text.replace("red star", "pink star").replace("U4", "U5").replace("red 3", "red 2")])
    assert half["correct"] == pytest.approx(4 / 12)  # of 6 facts one object, its mark, the sign and a bar are wrong
    assert bench.score(sample, [""])["correct"] == 0.0


def test_bad_arguments_name_the_valid_ones():
    with pytest.raises(ValueError, match="valid are exist, colour"):
        Scenes(kinds=["color"])
    with pytest.raises(ValueError, match="each kind once"):
        Scenes(kinds=["count", "count"])
    with pytest.raises(ValueError, match="at least 1"):
        Scenes(n=0)
    with pytest.raises(IndexError):
        Scenes(n=2)[2]


def test_every_kind_can_be_asked_and_short_answers_stay_short():
    assert set(KINDS) == set(ASK)
    assert not set(KINDS) & set(BY_NAME)
    for kind in KINDS:
        sample = Scenes(n=1, kinds=[kind])[0]
        assert sample.kind == kind
        assert sample.image.size == (SIDE, SIDE)
        assert kind == "caption" or len(sample.reference[0].split()) <= 2
        assert {"width", "height", "sharpness", "entropy", "edges"} <= set(sample.facts)


def test_captions_can_be_few_and_the_cycle_goes_on_without_them():
    every, few = Scenes(n=4 * len(KINDS)), Scenes(n=4 * len(KINDS) - 3, captions=1)
    kinds = [few.source(k)[1].kind for k in range(few.n)]
    assert Counter(kinds) == {kind: 1 if kind == "caption" else 4 for kind in KINDS}
    ids = [few[k].id for k in range(few.n)]
    assert set(ids) < {every[k].id for k in range(every.n)}  # the same samples, fewer captions
    assert len(set(ids)) == few.n
    assert few[few.n - 1].turns == every[every.n - 2].turns
    assert "caption" not in [Scenes(n=40, captions=0).source(k)[1].kind for k in range(40)]
    assert [Scenes(captions=1, kinds=["caption"], n=3).source(k)[1].kind for k in range(3)] == ["caption"] * 3
    with pytest.raises(ValueError, match="captions: got -1"):
        Scenes(captions=-1)


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda template: template.request)
def test_a_caption_states_every_fact_in_every_wording_and_order(template):
    for number in range(12):
        scene, _ = make_question("test", 10, "caption", number)
        pieces = template.pieces(scene)
        text = "".join(piece for piece, _ in pieces).strip()
        wanted = Counter(("object", t.size, t.colour, t.shape, t.cell) for t in scene.things)
        wanted.update(("mark", t.colour, t.shape, t.mark) for t in scene.things if t.mark)
        wanted.update(("sign", sign.size, sign.text) for sign in scene.signs)
        wanted.update(("bar", colour, str(value)) for colour, value in (scene.chart.bars if scene.chart else ()))
        assert caption_facts(text) == wanted
        told = [box for _, box in pieces if box]
        assert sorted(told) == sorted(box for box in scene_parts(scene) if box in told)
        assert len(told) == len(set(told)) >= len(scene.things)
        across = [t.x for t in sorted(scene.things, key=lambda t: told.index(t.box))]
        if template.order == " from left to right":
            assert across == sorted(across)
        if template.order == " text first" and scene.signs:
            assert text.startswith("The ")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a small red circle marked AB at the top, a large blue star at the left.", 3),
        ("At the top is a small red circle marked AB.", 2),
        ("top: small red circle AB.", 2),
        ("top left: small red circle. At the top left is a small red circle at the top left.", 2),
        ("The chart has red 3. The chart has blue 2, pink 1.", 3),
        ("The picture shows no objects.", 0),
    ],
)
def test_a_statement_counts_once_and_a_wrong_mark_is_a_wrong_fact(text, wanted):
    assert sum(caption_facts(text).values()) == wanted


def test_requests_for_captions_differ_and_all_are_asked():
    asked = Counter(make_question("test", 11, "caption", number)[1].text for number in range(300))
    assert set(asked) == {template.request for template in TEMPLATES}
    assert len(asked) == 20


def test_the_digest_is_that_of_the_questions():
    assert Scenes(n=9).digest(5) == Scenes(n=6).digest(5)
    assert len({Scenes(n=9).digest(5), Scenes(n=9).digest(6), Scenes(n=9, seed=1).digest(5)}) == 3
    assert Scenes(captions=6).digest(539)[:16] == "2ad8b1f3408b6c82", "recorded runs are resumed by it"


def test_circular_choices_are_asked_in_all_rotations():
    plain, bench = Scenes(n=42, kinds=KINDS), Scenes(n=42, kinds=KINDS, circular=True)
    samples = [bench[k] for k in range(len(bench))]
    firsts = [sample for sample in samples if not re.search(r"-r\d$", sample.id)]
    assert [(s.id, s.turns) for s in firsts] == [(s.id, s.turns) for s in map(plain.__getitem__, range(42))]
    groups = [[s for s in samples if s.truth.get("group") == f"test-0-choice-{number}"] for number in range(3)]
    assert [len(group) for group in groups] == [2, 2, 4]
    for number, group in enumerate(groups):
        question = make_question("test", 0, "choice", number)[1]
        values, right = list(options(question).values()), options(question)[question.answer]
        assert len(group) == group[0].truth["of"] == len(values)
        for by, sample in enumerate(group):
            asked = dict(re.findall(r"([A-D]): (.*?)(?= [A-D]: |$)", sample.turns[0].split("? ")[1]))
            assert list(asked.values()) == values[len(values) - by :] + values[: len(values) - by]
            assert asked[sample.reference[0]] == right
            assert sample.image.tobytes() == group[0].image.tobytes()
            assert bench.score(sample, [f"{sample.reference[0]}: {right}"])["correct"] == 1.0
            assert bench.score(sample, ["A"]).keys() == {"correct", "parsed", "group", "of"}
    assert sum(len(group) for group in groups) == len(samples) - 39
    start, size = samples.index(groups[0][0]), len(groups[0])
    assert [bench.whole(start + k) for k in range(size + 1)] == [start] * size + [start + size]
    assert plain.whole(start + 1) == start + 1


def test_circular_needs_choices_and_room_for_a_whole_question():
    with pytest.raises(ValueError, match="circular: got True, valid are false and, where choice is asked, true"):
        Scenes(kinds=["count"], circular=True)
    with pytest.raises(ValueError, match="limit: got 1, the first 2 are scored together"):
        Scenes(n=3, kinds=["choice"], circular=True).whole(1)


def test_who_always_says_a_is_right_in_one_rotation_and_in_no_circle():
    bench = Scenes(n=30, kinds=["choice"], circular=True)
    samples = [bench[k] for k in range(len(bench))]
    records = [{"sample": s.id, "kind": s.kind, "score": bench.score(s, ["A"])} for s in samples]
    assert bench.summary(records) == {"circular": 0.0, "vanilla": pytest.approx(30 / len(bench))}
    assert len({bench.unit(record) for record in records}) == 30
    assert Scenes().summary(records) == {}


def test_a_dialogue_scores_each_of_its_turns():
    bench = Scenes(n=20, kinds=["dialogue"])
    assert bench.max_new_tokens == 12
    for sample in (bench[k] for k in range(20)):
        assert len(sample.turns) == len(sample.reference) == len(sample.region) == len(set(sample.truth["kinds"])) == 3
        for turn, (kind, answer) in enumerate(zip(sample.truth["kinds"], sample.reference)):
            said = [*sample.reference[:turn], answer]
            found = bench.score(sample, said)
            assert found == {"correct": 1.0, "parsed": normalise(answer, kind), "turn": turn + 1, "asked": kind}
            assert bench.score(sample, [*said[:-1], "zzz"])["correct"] == 0.0
            before = " ".join([*sample.turns[:turn], *sample.reference[:turn]])
            assert answer not in re.findall(r"\w+", before), "an answer is not given away by what was said before"
    sample = bench[0]
    records = [{"sample": sample.id, "kind": sample.kind, "score": bench.score(sample, [*sample.reference[:t], reply])}
               for t, reply in enumerate([sample.reference[0], "zzz", sample.reference[2]])]  # fmt: skip
    assert bench.summary(records) == {"turn 1": 1.0, "turn 2": 0.0, "turn 3": 1.0}
    assert bench.digest(3) != Scenes(n=20, kinds=["dialogue"], seed=1).digest(3)


def test_a_description_is_scored_as_a_caption():
    bench = Scenes(n=12, kinds=["description"])
    assert bench.max_new_tokens == Scenes(kinds=["caption"]).max_new_tokens == 160
    for k in range(12):
        sample, scene = bench[k], bench.source(k)[0]
        assert sample.turns == (DESCRIBE,)
        assert sum(caption_facts(sample.reference[0]).values()) >= len(scene.things)
        other = " ".join(reversed(re.split(r"(?<=\.) ", sample.reference[0])))
        assert bench.score(sample, [other])["correct"] == 1.0
    assert bench.score(sample, [sample.reference[0]]).keys() == {"correct", "parsed", "exact", "apart"}


def test_a_frame_moves_the_evidence_with_the_picture():
    square, padded, stretched = (Scenes(n=1, kinds=["colour"], frame=frame)[0] for frame in FRAMES)
    assert [one.image.size for one in (square, padded, stretched)] == [(336, 336), (504, 336), (504, 336)]
    assert padded.image.crop((84, 0, 420, 336)).tobytes() == square.image.tobytes()
    assert stretched.region == square.region
    (left, top, right, bottom), (a, b, c, d) = square.region[0][0], padded.region[0][0]
    assert (b, d) == (top, bottom)
    assert (a * 504 - 84, c * 504 - 84) == pytest.approx((left * 336, right * 336))
    assert len({Scenes(n=1, frame=frame).digest(1) for frame in FRAMES}) == 3
    with pytest.raises(ValueError, match="frame: got 'round', valid are square, padded, stretched"):
        Scenes(frame="round")
