"""Honest numbers: pairing, resampling, what is left empty, and the words for what was not resolved."""

import json

import numpy as np
import pytest

from mmaccel.measure.estimates import bootstrap_interval, jitter, median_ratio_interval, paired_interval, percentile
from mmaccel.measure.record import POINT_COLUMNS, RunFolder, write_points
from mmaccel.measure.scores import differences, mcnemar
from mmaccel.measure.stats import points_table, resolved, speed_verdict, verdict
from mmaccel.measure.survival import LABELS, bucket, by_survival

POINTS = [
    {"name": "base", "pruner": None, "ratio": None, "draft": None, "quantization": None},
    {"name": "half", "pruner": "fastv", "ratio": 0.5, "draft": None, "quantization": None},
]


def record(point, sample, *, turn=0, correct=1.0, e2e=100.0, **more):
    full = {
        "point": point, "sample": str(sample), "turn": turn, "kind": "colour", "score": {"correct": correct},
        "parsed": "red", "e2e_ms": e2e, "ttft_ms": e2e / 2, "step_ms": [10.0, 12.0],
        "tokens": {"prompt": 600, "visual": 576, "kept": [288], "mean_visual": 306.0, "generated": 3},
        "stages_ms": {"prefill": e2e / 4, "prune": e2e / 40}, "kv_fraction": 0.5, "mac_fraction": 0.5,
        "spec": {"steps": 2, "drafted": 0, "accepted": 0, "emitted": 2},
        "memory_mb": {"peak": 900.0}, "evidence": {"tokens": 10, "kept_fraction": [0.9, 0.5]},
    }  # fmt: skip
    return {**full, **more}


def both(n, base=None, half=None):
    """n samples through both points; `base` and `half` give what differs, by sample."""
    return [
        record(point, s, **(differs(s) if differs else {}))
        for s in range(n)
        for point, differs in (("base", base), ("half", half))
    ]


def rows(records, points=POINTS, **more):
    return {row["point"]: row for row in points_table(records, points, "base", **more)}


def slow_bootstrap(sums, counts, resamples, seed):
    rng, means = np.random.default_rng(seed), []
    for _ in range(resamples):
        picks = rng.integers(0, len(sums), len(sums))
        means.append(sum(sums[i] for i in picks) / sum(counts[i] for i in picks))
    return np.quantile(means, [0.025, 0.975])


def test_bootstrap_equals_a_loop_and_is_seeded():
    rng = np.random.default_rng(1)
    counts = rng.integers(1, 4, 40)
    sums = rng.binomial(counts, 0.7)
    fast = bootstrap_interval(sums, counts, resamples=500, seed=3)
    assert fast.interval == pytest.approx(tuple(slow_bootstrap(sums, counts, 500, 3)))
    assert fast == bootstrap_interval(sums, counts, resamples=500, seed=3)
    assert fast != bootstrap_interval(sums, counts, resamples=500, seed=4)
    assert fast.value == sums.sum() / counts.sum()


def test_bootstrap_covers_the_truth_about_as_often_as_it_says():
    rng, hits = np.random.default_rng(0), 0
    for trial in range(200):
        estimate = bootstrap_interval(rng.binomial(1, 0.7, 80), resamples=400, seed=trial)
        hits += estimate.low <= 0.7 <= estimate.high
    assert 0.90 <= hits / 200 <= 0.99


def test_blocks_do_not_change_the_draws(monkeypatch):
    sums = list(np.random.default_rng(0).random(50))
    whole = bootstrap_interval(sums, resamples=300)
    monkeypatch.setattr("mmaccel.measure.estimates.BLOCK_VALUES", 1000)
    assert bootstrap_interval(sums, resamples=300) == whole


def test_no_spread_is_not_certainty():
    estimate = bootstrap_interval([1.0] * 100, bounds=(0.0, 1.0))
    assert estimate.interval == (pytest.approx(0.025 ** (1 / 100)), 1.0)
    delta = paired_interval({str(i): (0.0, 1.0) for i in range(100)})
    assert delta.value == 0
    assert delta.low < -0.03 < 0.03 < delta.high
    assert bootstrap_interval([1.0]).interval is None
    assert bootstrap_interval([]).value is None


def test_pairing_removes_what_the_samples_share():
    rng = np.random.default_rng(0)
    hard = rng.binomial(1, 0.5, 200)
    base = [record("base", i, correct=float(h)) for i, h in enumerate(hard)]
    half = [record("half", i, correct=float(h) if i >= 10 else 0.0) for i, h in enumerate(hard)]
    paired = paired_interval(differences(half, base))
    assert paired.half_width < 0.03
    assert bootstrap_interval(hard).half_width > 0.06
    assert paired_interval(differences([*half, record("half", "only here")], base)).n == 200


def test_speed_up_is_the_median_of_paired_ratios_and_survives_a_slow_moment():
    base = {str(i): 100.0 for i in range(50)}
    point = {str(i): 80.0 for i in range(50)} | {"3": 10_000.0}
    estimate = median_ratio_interval(point, base)
    assert estimate.value == estimate.low == estimate.high == 1.25
    assert median_ratio_interval({"0": 1.0}, base).interval is None
    assert median_ratio_interval({}, base).value is None


def test_five_pairs_are_no_interval_and_six_are():
    for n, there in ((5, False), (6, True)):
        base = {str(i): 100.0 for i in range(n)}
        speed = median_ratio_interval({str(i): 50.0 + i for i in range(n)}, base)
        delta = paired_interval(dict.fromkeys(base, (-1.0, 1.0)))
        assert (speed.interval is not None, delta.interval is not None) == (there, there)
        assert speed.value > 1
        assert (delta.value, delta.n) == (-1.0, n)


@pytest.mark.parametrize(("q", "needs"), [(50, 1), (95, 20), (99, 100)])
def test_a_percentile_needs_its_count(q, needs):
    assert percentile([1.0] * (needs - 1), q) is None
    assert percentile(list(range(needs)), q) == np.percentile(range(needs), q)


def test_jitter():
    assert jitter([1.0, 2.0, 3.0]) is None
    assert jitter([90.0, 100.0, 100.0, 110.0]) == pytest.approx(5 / 100)


def test_columns_in_order_and_values():
    records = both(40, lambda s: {"correct": float(s % 2)}, lambda s: {"correct": float(s % 2), "e2e": 50.0})
    table = points_table(records, POINTS, "base")
    assert list(table[1])[: len(POINT_COLUMNS)] == list(POINT_COLUMNS)
    base, half = table
    assert half["n"] == 40
    assert half["accuracy"] == 0.5
    assert (half["delta"], half["pairs"], resolved(half)) == (0.0, 40, False)
    assert half["speedup_e2e"] == half["speedup_prefill"] == 2.0
    assert half["net_slower"] is False
    assert half["tau"] == 1.0
    assert half["alpha"] is None
    assert half["ttft_ms_p95"] == 25.0
    assert half["ttft_ms_p99"] is None
    assert half["e2e_ms_p99"] is None
    assert half["itl_ms_p50"] == 11.0
    assert half["itl_ms_p99"] is None  # 80 steps
    assert half["tokens_per_s"] == pytest.approx(60.0)
    assert half["kept_fraction"] == 0.5
    assert half["evidence_kept"] == 0.5
    assert half["peak_mb"] == 900.0
    assert half["parsed_rate"] == 1.0
    assert half["stages_ms"] == {"prune": 1.25, "prefill": 12.5}
    assert [base[c] for c in ("delta", "delta_ci", "speedup_e2e", "speedup_e2e_ci", "net_slower")] == [None] * 5


def test_tau_is_weighted_by_tokens_and_alpha_by_drafts():
    spec = [
        {"steps": 1, "drafted": 4, "accepted": 4, "emitted": 5},
        {"steps": 9, "drafted": 36, "accepted": 0, "emitted": 9},
    ]
    row = rows([record("base", i, spec=s) for i, s in enumerate(spec)])["base"]
    assert row["tau"] == 14 / 10
    assert row["alpha"] == 4 / 40


def test_fractions_are_ratios_of_sums():
    tokens = [{"prompt": 1000, "visual": 900, "kept": [90], "mean_visual": 90.0, "generated": 1},
              {"prompt": 10, "visual": 9, "kept": 9, "mean_visual": 9.0, "generated": 1}]  # fmt: skip
    records = [record("base", i, tokens=t, kv_fraction=f) for i, (t, f) in enumerate(zip(tokens, [0.19, 1.0]))]
    row = rows(records)["base"]
    assert row["kept_fraction"] == 99 / 909
    assert row["kv_fraction"] == pytest.approx((190 + 10) / 1010)


def test_errors_are_counted_and_nothing_else():
    failed = record("half", "x", correct=0.0, e2e=1.0, error="out of memory")
    row = rows([*both(10), failed])["half"]
    assert (row["n"], row["errors"], row["accuracy"]) == (10, 1, 1.0)
    assert row["speedup_e2e"] == 1.0


def test_unmeasured_is_empty():
    empty = rows([{"point": "base", "sample": "0", "turn": 0}])
    numbers = {k: v for k, v in empty["base"].items() if k in POINT_COLUMNS and k not in ("point", "n", "errors")}
    assert set(numbers.values()) == {None}
    assert empty["half"]["n"] == 0
    assert verdict(empty["half"]) == speed_verdict(empty["half"]) == "not measured"
    assert rows([record("base", 0, parsed=None)])["base"]["parsed_rate"] is None


def test_turns_of_a_sample_are_resampled_together():
    records = [record("base", s, turn=t, correct=float(s % 2)) for s in range(20) for t in range(4)]
    one = [record("base", s, correct=float(s % 2)) for s in range(20)]
    assert rows(records)["base"]["accuracy_ci"] == rows(one)["base"]["accuracy_ci"]
    assert rows(records)["base"]["n"] == 20


def test_a_conversation_is_timed_over_the_turns_both_finished():
    records = [record("base", s, turn=t, e2e=100.0) for s in range(3) for t in (0, 1)]
    records += [record("half", s, turn=0, e2e=50.0) for s in range(3)]
    assert rows(records)["half"]["speedup_e2e"] == 2.0


def test_words():
    lost = both(60, half=lambda s: {"correct": float(s > 20), "e2e": 140.0})
    row = rows(lost)["half"]
    assert verdict(row).startswith("−35.0 points [−4")
    assert "net slower" in speed_verdict(row)
    assert row["net_slower"] is True
    row = rows(both(60, half=lambda s: {"correct": float(s > 0), "e2e": 60.0}))["half"]
    assert verdict(row) == "not resolved at n = 60"
    assert speed_verdict(row).endswith("faster")
    assert verdict(rows(lost)["base"]) == "baseline"


def test_kinds_are_kept_apart():
    named = ["colour", "text"]
    records = both(40, lambda s: {"kind": named[s % 2]}, lambda s: {"kind": named[s % 2], "correct": float(s % 2 == 0)})
    kinds = rows(records)["half"]["kinds"]
    assert kinds["colour"]["accuracy"] == 1.0
    assert kinds["text"]["delta"] == -1.0
    assert kinds["text"]["n"] == 20


def test_order_of_records_does_not_matter():
    rng = np.random.default_rng(0)
    noisy = {"base": rng.uniform(50, 150, 30), "half": rng.uniform(50, 150, 30)}
    right = {name: rng.binomial(1, 0.6, 30).astype(float) for name in noisy}
    records = [record(p, s, e2e=noisy[p][s], correct=right[p][s]) for s in range(30) for p in noisy]
    shuffled = sorted(records, key=lambda r: (r["point"], r["e2e_ms"]))
    for column in ("accuracy_ci", "delta_ci", "speedup_e2e_ci"):
        assert rows(records)["half"][column] == rows(shuffled)["half"][column]


def test_names_are_checked():
    with pytest.raises(ValueError, match=r"baseline: got 'x', the points are \['base', 'half'\]"):
        points_table([], POINTS, "x")
    with pytest.raises(ValueError, match="records name the point 'other'"):
        points_table([record("other", 1)], POINTS, "base")


def test_the_table_reaches_the_folder(tmp_path):
    folder = RunFolder.create(tmp_path / "run", {}, {})
    for sample in range(5):
        for point in ("base", "half"):
            folder.append(record(point, sample))
    write_points(folder, points_table(folder.records(), POINTS, "base"))
    assert json.loads((folder.path / "summary.json").read_text())["baseline"] == "base"


def pictured(side, sharpness, edges, **more):
    return {"image": {"width": side, "height": side // 2, "sharpness": sharpness, "edges": edges}, **more}


def test_buckets_are_thirds_of_the_samples_and_the_same_for_every_point():
    of = lambda s: pictured(100 + s, float(s % 4), 0.05)  # noqa: E731
    table = rows(both(90, of, lambda s: of(s) | {"correct": float(s < 60)}))
    half, base = table["half"]["buckets"], table["base"]["buckets"]
    assert list(half) == ["size", "sharpness"], "all pictures have the same edge density: nothing to tell apart"
    assert {label: part["n"] for label, part in half["size"].items()} == {"≤ 129": 30, "129 – 159": 30, "> 159": 30}
    assert [part["accuracy"] for part in half["size"].values()] == [1.0, 1.0, 0.0]
    assert half["size"]["> 159"]["delta"] == -1.0
    assert half["size"]["> 159"]["pairs"] == 30
    assert "delta" not in base["size"]["> 159"]
    assert list(base["size"]) == list(half["size"])
    assert {label: part["n"] for label, part in half["sharpness"].items()} == {"≤ 1": 46, "1 – 2": 22, "> 2": 22}


def test_a_bucket_of_few_samples_resolves_nothing():
    of = lambda s: pictured(100 + s, 1.0, 0.1 * s)  # noqa: E731
    records = both(9, of, lambda s: of(s) | {"correct": float(s < 6)})
    part = rows(records)["half"]["buckets"]["edge density"]["> 0.500"]
    assert part["delta"] == -1.0
    assert verdict(part) == "not resolved at n = 3"


def test_failed_requests_and_unknown_pictures_are_in_no_bucket():
    records = both(8, lambda s: pictured(100 + s, 1.0, 0.1))
    found = rows([r | {"error": "x"} if r["sample"] == "7" and r["point"] == "base" else r for r in records])
    assert sum(part["n"] for part in found["base"]["buckets"]["size"].values()) == 7
    assert sum(part["pairs"] for part in found["half"]["buckets"]["size"].values()) == 7
    assert rows(both(8))["half"]["buckets"] == {}


def test_pictures_that_differ_in_one_only_make_two_buckets():
    of = lambda s: pictured(100 if s else 40, 1.0, 0.1)  # noqa: E731
    assert {k: v["n"] for k, v in rows(both(9, of, of))["half"]["buckets"]["size"].items()} == {"≤ 40": 1, "> 40": 8}
    of = lambda s: pictured(100, 1.0 + 1e-6 * s, 0.1)  # noqa: E731
    assert len(rows(both(9, of, of))["half"]["buckets"]["sharpness"]) == 3, "cuts that read alike get more digits"


def test_scores_of_another_scale_count_in_their_kind_alone():
    found = [record("base", f"s{k}", correct=1.0, kind="short") for k in range(8)]
    found += [record("half", f"s{k}", correct=float(k > 3), kind="short") for k in range(8)]
    alone = rows(found)
    apart = [
        record(point, f"c{k}", score={"correct": 0.25, "apart": True}, kind="caption")
        for point in ("base", "half")
        for k in range(9)
    ]
    table = rows([*found, *apart])
    for row, before in zip(table.values(), alone.values()):
        assert (row["accuracy"], row["delta"], row["pairs"]) == (before["accuracy"], before["delta"], before["pairs"])
        assert row["kinds"]["caption"]["accuracy"] == 0.25
        assert row["n"] == before["n"] + 9
        assert (row["apart"], before["apart"]) == (9, 0)
    assert [row["accuracy"] for row in rows(apart).values()] == [0.25, 0.25]


def test_accuracy_by_surviving_evidence():
    def seen(sample, share, correct, point="half"):
        return record(point, sample, correct=correct, evidence={"tokens": 4, "kept_fraction": [1.0, share]})

    found = [seen("a", 0.0, 0.0), seen("b", 0.25, 0.0), seen("c", 0.2, 1.0), seen("d", 0.75, 1.0), seen("e", 1.0, 1.0)]
    found += [seen("a", 0.5, 1.0, "other"), record("half", "f", evidence=None)]  # nowhere
    found += [record("half", "g", error="broken", evidence={"tokens": 4, "kept_fraction": [0.0]})]
    table = by_survival(found, {"method": ["half", "other"], "none": ["nobody"]})
    assert list(table) == ["method"]
    read = {row["left"]: (row["n"], row["accuracy"], row["share"]) for row in table["method"]}
    assert read == {
        "none": (1, 0.0, 0.0), "≤ 25 %": (2, 0.5, 0.225), "≤ 50 %": (1, 1.0, 0.5), "≤ 75 %": (1, 1.0, 0.75),
        "all": (1, 1.0, 1.0),
    }  # fmt: skip
    assert LABELS[bucket(0.9999)] == "< 100 %"
    assert len({bucket(share) for share in (0.0, 0.1, 0.3, 0.6, 0.9, 1.0)}) == len(LABELS)


def rotation(point, group, turn_of, correct, of=3):
    score = {"correct": correct, "group": group, "of": of}
    return record(point, f"{group}/{turn_of}", score=score)


def test_a_rotated_question_is_right_only_in_all_rotations():
    truth = {"a": (1, 1, 1), "b": (1, 0, 1), "c": (0, 0, 0)}
    made = [rotation("base", group, r, right) for group, rights in truth.items() for r, right in enumerate(rights)]
    made += [rotation("base", "cut", r, 1) for r in range(2)]  # its third rotation is not there
    made += [rotation("half", group, r, 1) for group in truth for r in range(3)]
    found = rows(made)
    assert found["base"]["accuracy"] == pytest.approx(1 / 3)
    assert found["base"]["vanilla"] == pytest.approx(7 / 11)
    assert found["base"]["incomplete"] == 1
    assert (found["half"]["delta"], found["half"]["pairs"]) == (pytest.approx(2 / 3), 3)
    assert (found["half"]["lost"], found["half"]["gained"]) == (0, 2)
    assert found["base"]["kinds"]["colour"]["n"] == 3
    assert "vanilla" not in rows(both(3))["base"]


@pytest.mark.parametrize(("lost", "gained", "p"), [(0, 0, 1.0), (5, 0, 0.0625), (8, 2, 0.109375), (3, 3, 1.0)])
def test_mcnemar_is_the_exact_binomial(lost, gained, p):
    wrong = {"score": {"correct": 0.0}}
    made = both(20, lambda s: wrong if s < gained else {}, lambda s: wrong if s >= 20 - lost else {})
    found = rows(made)["half"]
    assert (found["lost"], found["gained"], found["mcnemar_p"]) == (lost, gained, pytest.approx(p))


def test_scores_between_right_and_wrong_have_no_mcnemar():
    assert rows(both(8, half=lambda s: {"score": {"correct": 0.3}}))["half"]["mcnemar_p"] is None


@pytest.mark.parametrize(
    ("name", "words"), [("prompt_hash", "other prompts"), ("processor_hash", "other processor settings")]
)
def test_points_that_saw_something_else_are_not_compared(name, words):
    found = rows(both(8, lambda s: {name: "a"}, lambda s: {name: "b" if s == 3 else "a"}))["half"]
    assert (found["delta"], found["delta_ci"], found["accuracy"]) == (None, None, 1.0)
    assert verdict(found) == f"not compared: {words} than the baseline on 1 of 8 samples"
    later = rows(both(8, lambda s: {name: "a", "turn": 1}, lambda s: {name: "b", "turn": 1}))["half"]
    assert later["delta"] == 0.0, "a later turn's prompt holds what the model said before"


def test_kinds_say_how_many_replies_could_be_read():
    found = rows(both(8, half=lambda s: {"parsed": None if s < 2 else "red"}))["half"]
    assert (found["kinds"]["colour"]["parsed_rate"], found["parsed_rate"]) == (0.75, 0.75)


def test_buckets_have_a_speed_of_their_own():
    def picture(s):
        return {"image": {"sharpness": float(s)}, "e2e_ms": 100.0}

    found = rows(both(18, picture, lambda s: picture(s) | {"e2e_ms": 50.0 if s < 6 else 100.0}))["half"]
    speeds = [part["speedup"] for part in found["buckets"]["sharpness"].values()]
    assert speeds == [2.0, 1.0, 1.0]


def test_only_answers_that_both_sides_gave_are_compared():
    """Right in the first turn, wrong in the second; failing in the second makes nobody better."""
    turns = [record(point, s, turn=t, correct=1.0 - t) for point in ("base", "half") for s in range(10) for t in (0, 1)]
    lost = [one for one in turns if one["point"] == "half" and one["turn"]]
    found = rows([one | {"error": "x", "score": None} if one in lost else one for one in turns])["half"]
    assert (found["accuracy"], found["delta"], found["pairs"]) == (1.0, 0.0, 10)


def test_questions_about_one_picture_are_drawn_together():
    def score(s):
        return {"score": {"correct": float(s % 40 < 20), "unit": f"picture {s % 40}"}}

    alone = rows(both(120, lambda s: {"score": {"correct": float(s % 40 < 20)}}))
    together = rows(both(120, score, score))
    width = {name: found["base"]["accuracy_ci"][1] - found["base"]["accuracy_ci"][0] for name, found in
             (("alone", alone), ("together", together))}  # fmt: skip
    assert width["together"] > 1.5 * width["alone"]
    assert (together["half"]["pairs"], together["half"]["lost"], together["half"]["mcnemar_p"]) == (40, 0, None)


def test_a_group_is_whole_when_all_of_its_samples_are_there():
    twice = [rotation("base", "a", r, 1.0) | {"turn": turn} for r in range(2) for turn in range(2)]
    found = rows([*twice, *(rotation("base", "b", r, 1.0) for r in range(3))])["base"]
    assert (found["accuracy"], found["incomplete"]) == (1.0, 1)
    assert found["kinds"]["colour"]["n"] == 1


def test_what_is_refused_has_no_difference_anywhere():
    def saw(what):
        return lambda s: {"prompt_hash": what, "image": {"sharpness": float(s)}}

    found = rows(both(18, saw("a"), saw("b")))["half"]
    parts = [found, found["kinds"]["colour"], *found["buckets"]["sharpness"].values()]
    assert all(part.get("delta") is None and part.get("delta_ci") is None for part in parts)
    assert found["speedup_e2e"] is None
    across = [POINTS[0], POINTS[1] | {"across": ["processor"]}]
    assert rows(both(18, saw("a"), saw("b")), across)["half"]["delta"] == 0.0


def test_mcnemar_of_thousands_is_quick_and_that_of_agreement_is_none():
    assert mcnemar(5000, 5000) == 1.0
    assert 0 < mcnemar(5200, 4800) < 1e-4
    agrees = both(8, half=lambda s: {"score": {"correct": float(s < 3), "agreement": True}})
    assert (rows(agrees)["half"]["lost"], rows(agrees)["half"]["mcnemar_p"]) == (5, None)


def test_where_nothing_is_parsed_no_kind_says_so():
    found = rows(both(8, lambda s: {"parsed": None}, lambda s: {"parsed": None}))["half"]
    assert (found["parsed_rate"], found["kinds"]["colour"]["parsed_rate"]) == (None, None)
