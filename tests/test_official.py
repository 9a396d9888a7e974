"""A benchmark's own scores: any function of records, resampled by unit and paired, against slow loops."""

import numpy as np
import pytest

from mmaccel.measure.official import Copies, official


def record(sample, right, group=None):
    return {"sample": str(sample), "kind": "k", "score": {"correct": float(right), "group": group}}


def unit(one):
    return one["score"]["group"] or one["sample"]


def share(records):
    return {"share": sum(one["score"]["correct"] for one in records) / len(records), "n asked": len(records)}


def pairs_right(records):
    """Share of groups of which all are right."""
    groups = {}
    for one in records:
        groups.setdefault(one["score"]["group"], []).append(one["score"]["correct"])
    return {"pairs": sum(all(group) for group in groups.values()) / len(groups)}


def test_the_mean_of_samples_has_the_plain_bootstrap_interval():
    rights = [1, 0, 1, 1, 0, 1, 0, 1, 1, 1]
    found = official(share, unit, [record(s, right) for s, right in enumerate(rights)], None, resamples=400)
    rng, means = np.random.default_rng(0), []
    for _ in range(400):
        means.append(np.mean([rights[pick] for pick in rng.integers(0, 10, 10)]))
    assert found["share"]["value"] == 0.7
    assert found["share"]["ci"] == pytest.approx(list(np.quantile(means, [0.025, 0.975])))
    assert found["n asked"] == {"value": 10, "ci": None}
    assert "delta" not in found["share"]


def test_a_pair_is_drawn_whole_and_twice_is_two_pairs():
    records = [record(f"{g}{s}", right, group=f"g{g}") for g, rights in enumerate([(1, 1), (1, 0)]) for s, right in
               enumerate(rights)]  # fmt: skip
    units = {"g0": records[:2], "g1": records[2:]}
    drawn = Copies(units, ["g0", "g1"]).of([0, 0, 1])
    assert pairs_right(drawn)["pairs"] == pytest.approx(2 / 3)
    assert [one["sample"] for one in records] == ["00", "01", "10", "11"], "the records are as they were"


def test_differences_are_paired_on_the_units_of_both():
    base = [record(s, s % 2) for s in range(20)]
    mine = [record(s, 1) for s in range(10)]
    found = official(share, unit, mine, base)["share"]
    assert (found["value"], found["delta"]) == (1.0, 0.5)
    assert found["delta_ci"][0] < 0.5 < found["delta_ci"][1]
    same = official(share, unit, base, base)["share"]
    assert (same["delta"], same["delta_ci"]) == (0.0, None), "draws that all agree are no certainty"
    assert same["ci"][0] < 0.5 < same["ci"][1]


def test_the_value_and_its_interval_are_of_all_units_the_difference_of_the_shared_ones():
    mine = [record(s, s < 10) for s in range(20)]
    found = official(share, unit, mine, [record(s, 1) for s in range(10, 20)])["share"]
    assert found["value"] == 0.5
    assert found["ci"][0] < 0.5 < found["ci"][1]
    assert found["delta"] == -1.0


def test_the_baselines_draws_are_made_once():
    asked, known = [], {}

    def counted(records):
        asked.append(len(records))
        return share(records)

    base, mine = [record(s, s % 2) for s in range(9)], [record(s, 1) for s in range(9)]
    first = official(counted, unit, mine, base, resamples=20, known=known)
    cost = len(asked)
    assert official(counted, unit, mine, base, resamples=20, known=known) == first
    assert len(asked) - cost == cost - 20


def test_few_units_and_missing_values_have_no_interval():
    assert official(share, unit, [record(s, 1) for s in range(5)], None)["share"] == {"value": 1.0, "ci": None}
    many = [record(s, 1) for s in range(9)]
    assert official(lambda records: {"x": None}, unit, many, many)["x"]["value"] is None
    assert official(lambda records: {}, unit, many, many) == {}
