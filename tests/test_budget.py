"""Budgets: what is refused at construction, the one rounding rule, the average-over-layers solver."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from synthetic import ROWS, groups, station_of, walk

from mmaccel.pruning.budget import Budget, History
from mmaccel.pruning.fastv import FastV
from mmaccel.pruning.pyramiddrop import PyramidDrop
from mmaccel.pruning.random import Random
from mmaccel.pruning.select import NOBODY, group_key, group_size, group_sum, order_in_group, rank_in_group


@pytest.mark.parametrize("value", [9, -0.1, math.nan, math.inf, True, "0.5x", "0.5", [0.5]])
@pytest.mark.parametrize("dial", ["ratio", "keep"])
def test_a_share_out_of_range_names_field_value_and_range(dial, value):
    with pytest.raises(ValueError, match=rf"^{dial}: got .*valid is a number from 0 to 1") as error:
        Budget(**{dial: value})
    assert repr(value) in str(error.value)


@pytest.mark.parametrize("value", [-1, 2.0, 2.5, True, math.nan, "64"])
def test_tokens_are_a_whole_number(value):
    with pytest.raises(ValueError, match=r"^tokens: got .*whole number"):
        Budget(tokens=value)


@pytest.mark.parametrize("value", [0, -3, math.inf, False, "64"])
def test_mean_tokens_are_finite_and_positive(value):
    with pytest.raises(ValueError, match=r"^mean_tokens: got .*finite number above 0"):
        Budget(mean_tokens=value)


def test_exactly_one_dial():
    with pytest.raises(ValueError, match="exactly one of ratio, keep, tokens, mean_tokens"):
        Budget()
    with pytest.raises(ValueError, match=r"ratio=None"):
        FastV(layer=2, ratio=None)
    with pytest.raises(ValueError, match=r"got ratio=0.5, tokens=64; .*set the others to null"):
        FastV(layer=2, ratio=0.5, tokens=64)


def test_scope_and_allow_zero_are_checked():
    with pytest.raises(ValueError, match="scope: got 'image', valid are per_image, per_prompt, per_tile"):
        FastV(ratio=0.5, scope="image")
    with pytest.raises(ValueError, match="allow_zero: got 'yes'"):
        FastV(ratio=0.5, allow_zero="yes")


@given(
    n=st.integers(1, 3000), hundredths=st.integers(0, 100), dial=st.sampled_from(["ratio", "keep"]), zero=st.booleans()
)
def test_rounding_is_to_the_nearest_halves_up_and_one_stays(n, hundredths, dial, zero):
    share = Fraction(hundredths, 100) if dial == "keep" else 1 - Fraction(hundredths, 100)
    budget = Budget(**{dial: hundredths / 100}, allow_zero=zero)
    size = torch.tensor([[n]])
    expected = math.floor(share * n + Fraction(1, 2))
    expected = max(expected, 0 if zero and share == 0 else 1)
    assert int(budget.whole(size.double() * budget.share, size)) == expected


def test_degenerate_budgets():
    station = station_of([[1, (1, 3), 1]])

    def kept(**dials):
        return int(Budget(**dials).kept(station).max())

    assert kept(ratio=0.99) == 1  # 0.03 of 3 tokens
    assert kept(ratio=0.99, allow_zero=True) == 1  # only an exactly empty budget removes a picture
    assert kept(ratio=1.0) == kept(keep=0) == kept(tokens=0) == 1
    assert kept(ratio=1, allow_zero=True) == kept(tokens=0, allow_zero=True) == kept(keep=0.0, allow_zero=True) == 0
    assert kept(ratio=0) == kept(tokens=580) == kept(mean_tokens=580) == 3


@pytest.mark.parametrize(("mean", "tokens"), [(192, 166), (128, 98), (64, 30)])
def test_fastv_average_over_32_layers(mean, tokens):
    station = station_of([[35, (24, 24), 9]], layer=2, depth=32, heads=1)
    kept = int(FastV(layer=2, mean_tokens=mean).kept(station).max())
    assert kept == tokens
    assert abs((2 * 576 + 30 * kept) / 32 - mean) < 0.5


def test_an_infeasible_average_is_refused_with_the_least_possible():
    station = station_of([[1, (24, 24), 1]], layer=5, depth=32, heads=1)
    with pytest.raises(ValueError, match=r"^mean_tokens: got 64, infeasible pruning at layer 5.*valid is 90.84"):
        FastV(layer=5, mean_tokens=64).kept(station)
    assert int(FastV(layer=5, mean_tokens=90.85).kept(station).max()) == 1
    station = station_of([[1, (24, 24), 1]], layer=8, depth=32, heads=1)
    with pytest.raises(ValueError, match=r"infeasible with stages \[8, 16, 24\].*valid is 144.75"):
        PyramidDrop(mean_tokens=128).kept(station)


def mean_input(counts: dict[int, int], first: int, depth: int) -> float:
    """Plain loop: the average over layers of the tokens that enter each."""
    total, standing = 0, first
    for layer in range(depth):
        standing = counts.get(layer, standing)
        total += standing
    return total / depth


@given(n=st.integers(1, 40), mean=st.floats(1, 40), layer=st.integers(0, 7))
def test_the_solved_average_is_met_within_half_a_token(n, mean, layer):
    station = station_of([[1, (1, n), 1]], layer=layer, depth=8, heads=1)
    pruner = Random(layer=layer, mean_tokens=mean)
    try:
        kept = int(pruner.kept(station).max())
    except ValueError:
        assert (layer * n + (8 - layer) * 0.5) / 8 > mean - 1e-6
        return
    got = mean_input({layer: kept}, n, 8)
    assert got == n if mean >= n else abs(got - mean) <= 0.5 + 1e-6


@given(n=st.integers(4, 60), mean=st.floats(2, 60))
def test_the_pyramid_solves_lambda_for_the_average(n, mean):
    station = station_of([[1, (1, n), 2]], depth=16, heads=1)
    pruner = PyramidDrop(layers=(2, 5, 11), mean_tokens=mean)
    try:
        counts = [len(rows[0]) for rows in walk(pruner, station)[0]]
    except ValueError:
        assert (2 * n + 14 * 0.5) / 16 > mean - 1e-6
        return
    got = mean_input(dict(zip((2, 5, 11), counts)), n, 16)
    assert counts == sorted(counts, reverse=True)
    assert got == n if mean >= n else abs(got - mean) <= 0.5 + 1e-6


def test_an_earlier_station_counts_in_the_average():
    """After half left at layer 1, the second station knows what the first layers carried."""
    station = station_of([[1, (4, 5), 2]], layer=1, depth=8)
    counts, after = walk(Random(layer=1, ratio=0.5), station)
    assert len(counts[0][0]) == 10
    after.layer = 4  # 20 + 3·10 spent of 8·8 = 64: 14 left for 4 layers
    assert int(FastV(layer=4, mean_tokens=8).kept(after).max()) == 4  # 3.5, halves up


@pytest.mark.parametrize("scope", ["per_image", "per_prompt", "per_tile"])
def test_groups_against_a_loop(scope):
    rows = [*ROWS, [2, [(2, 2), (3, 1), (1, 1)], 1, (2, 2), 3]]
    station = station_of(rows)
    key = group_key(station.grid, station.visual, scope)
    size, order, total = group_size(key), order_in_group(key), group_sum(key, key, station.column)
    for b, row in enumerate(rows):
        start = int(station.alive[b].nonzero()[0])
        for members in groups(row, scope):
            for place, j in enumerate(members):
                assert size[b, start + j] == len(members)
                assert order[b, start + j] == place
                assert total[b, start + j] == sum(start + m for m in members)
    assert (size[~station.visual] == 0).all()
    assert (key[~station.visual] == NOBODY).all()


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0, 1, NOBODY])), min_size=1, max_size=30))
def test_rank_in_group_against_a_loop(pairs):
    score, key = torch.tensor([pairs]).unbind(-1)
    for scores in (score, score.float()):
        rank = rank_in_group(scores, key)[0].tolist()
        for i, (mine, group) in enumerate(pairs):
            better = [j for j, (s, k) in enumerate(pairs) if k == group and (s > mine or (s == mine and j < i))]
            assert rank[i] == len(better)


def test_a_nan_score_ranks_last():
    score = torch.tensor([[math.nan, -1.0, math.inf, math.nan]])
    assert rank_in_group(score, torch.zeros_like(score, dtype=torch.long)).tolist() == [[2, 1, 0, 3]]


@pytest.mark.parametrize("padding", ["left", "right"])
def test_history_marks_the_layer_at_which_a_column_left(padding):
    column = torch.tensor([[-1, 0, 1, 2, 3]] if padding == "left" else [[0, 1, 2, 3, -1]])
    visual = (column == 1) | (column == 2)
    grid = torch.where(visual[..., None], 0, -1).expand(1, 5, 5)
    history = History.start(6, column, grid, visual)
    history = history.after(2, torch.tensor([[-1, 0, 2, 3]] if padding == "left" else [[0, 2, 3, -1]]))
    history = history.after(4, torch.tensor([[0, 3]]))
    assert history.dropped_at[0, column[0] == 1].tolist() == [2]
    assert history.dropped_at[0, column[0] == 2].tolist() == [4]
    assert (history.dropped_at[~visual] == 6).all()
    assert (history.keys("per_image", 3) == 0).sum() == 1
