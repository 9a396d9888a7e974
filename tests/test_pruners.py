"""Every method against a slow, obvious loop; every yaml under conf/pruner against the contract."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import ROWS, columns_of, groups, leave, station_of, walk

from mmaccel import registry
from mmaccel.columns import Needs, Selection, Station
from mmaccel.pruning.base import Chain, FunctionPruner, Narrowed, Pruner, checked_layer, checked_layers
from mmaccel.pruning.budget import Budget
from mmaccel.pruning.fastv import FastV
from mmaccel.pruning.keep_all import KeepAll
from mmaccel.pruning.pool import Pool, largest_grid
from mmaccel.pruning.pyramiddrop import PyramidDrop
from mmaccel.pruning.random import Random, mixed, mixed_tensor, signed
from mmaccel.pruning.select import merge
from mmaccel.pruning.uniform import Uniform

TILED = [[2, [(3, 3), (2, 4)], 1, (4, 2), 3], [1, (2, 2), "sep", 2]]
METHODS: dict[str, Pruner] = {
    "keep_all": KeepAll(),
    "fastv": FastV(layer=2, ratio=0.5),
    "fastv_prompt": FastV(layer=3, tokens=5, scope="per_prompt"),
    "fastv_instruction": FastV(layer=1, keep=0.3, anchor="instruction"),
    "fastv_mean": FastV(layer=2, mean_tokens=9.0),
    "pyramiddrop": PyramidDrop(ratio=0.5),
    "pyramiddrop_tokens": PyramidDrop(layers=(1, 2, 6), tokens=2),
    "pool": Pool(ratio=0.6),
    "pool_late": Pool(layer=3, tokens=4, scope="per_tile"),
    "random": Random(ratio=0.5),
    "random_like": Random(like=PyramidDrop(keep=0.6), seed=3),
    "uniform": Uniform(ratio=0.7),
    "uniform_like": Uniform(like=PyramidDrop(keep=0.6)),
    "chain": Chain([Uniform(layer=1, ratio=0.2), FastV(layer=2, ratio=0.5), PyramidDrop(layers=(2, 5), ratio=0.5)]),
    "chain_pool": Chain([Pool(layer=0, keep=0.5), Random(layer=0, keep=0.5), FastV(layer=2, ratio=0.5)]),
}
method = pytest.mark.parametrize("name", METHODS)


def rounded(x: float) -> int:
    return max(1, math.floor(x + 0.5 + 1e-9))


def flat(lists) -> list[int]:
    return [place for each in lists for place in each]


def start_of(station, b: int) -> int:
    return int(station.alive[b].nonzero()[0])


def slow_top(scores: dict[int, float], k: int) -> list[int]:
    """The k best places, ties to the lower, ascending."""
    chosen: list[int] = []
    for _ in range(min(k, len(scores))):
        best = None
        for place in sorted(scores):
            if place not in chosen and (best is None or scores[place] > scores[best]):
                best = place
        chosen.append(best)  # type: ignore[arg-type]
    return sorted(chosen)


def slow_scores(station, b: int, layer: int, members: list[int], row: int | None = None) -> dict[int, float]:
    """Mean over heads of one attention row, by place from the row's start."""
    rows = station.attention_rows[layer]
    at = int(station.anchor[b]) if row is None else row
    start = start_of(station, b)
    return {j: torch.stack([head[at, start + j] for head in rows[b]]).mean().item() for j in members}


# -- each method against its loop --------------------------------------------------------------------------------------


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("scope", ["per_image", "per_prompt", "per_tile"])
def test_fastv_is_the_mean_over_heads_of_the_last_row_of_layer_k_minus_1(scope, ties):
    rows = ROWS + TILED
    station = station_of(rows, ties=ties)
    found = walk(FastV(layer=3, ratio=0.6, scope=scope), station)[0][0]
    for b, row in enumerate(rows):
        expected: list[int] = []
        for members in groups(row, scope):
            expected += slow_top(slow_scores(station, b, 2, members), rounded(0.4 * len(members)))
        assert found[b] == sorted(expected)


@pytest.mark.parametrize(("depth", "k"), [(8, 1), (16, 1), (24, 2), (32, 2), (40, 3), (48, 3), (80, 5)])
def test_fastv_scaled_stands_at_the_papers_share_of_the_depth(depth, k):
    scaled = FastV(layer="scaled", ratio=0.5)
    assert scaled.stations(depth) == (k,) == FastV(layer=k, ratio=0.5).stations(depth)
    assert scaled.needs(depth) == FastV(layer=k, ratio=0.5).needs(depth)
    with pytest.raises(ValueError, match="layer: got 'deep', valid are whole numbers from 1 on and 'scaled'"):
        FastV(layer="deep", ratio=0.5)


def test_fastv_from_the_last_instruction_row():
    station = station_of()
    station.instruction = station.instruction & (torch.arange(station.ids.shape[1]) < station.ids.shape[1] - 1)
    found = walk(FastV(layer=2, tokens=3, anchor="instruction"), station)[0][0]
    for b, row in enumerate(ROWS):
        at = max((int(j) for j in station.instruction[b].nonzero()), default=int(station.anchor[b]))
        expected = [slow_top(slow_scores(station, b, 1, members, at), 3) for members in groups(row)]
        assert found[b] == sorted(flat(expected))


def test_equal_attention_keeps_the_first_by_position():
    station = station_of([[2, (5, 8), 3]])
    station.attention_rows = {layer: torch.ones_like(rows) for layer, rows in station.attention_rows.items()}
    for _ in range(10):
        assert walk(FastV(layer=2, tokens=10), station)[0][0] == [list(range(2, 12))]


@pytest.mark.parametrize("system", [36, 35, 14, 0])
def test_the_length_of_the_system_prompt_moves_nothing(system):
    station = station_of([[system, (4, 6), 5]])
    reference = station_of([[1, (4, 6), 5]])
    scores = torch.rand(24)
    for each, shift in ((station, system), (reference, 1)):
        each.attention_rows[1][0, :, -1, shift : shift + 24] = scores
    found, expected = (walk(FastV(ratio=0.7), each)[0][0][0] for each in (station, reference))
    assert [j - system for j in found] == [j - 1 for j in expected]


@pytest.mark.parametrize("system", [0, 1, 3])
@pytest.mark.parametrize(("n", "tokens"), [(576, 58), (576, 127), (577, 98), (196, 98), (81, 580), (576, 580)])
def test_exactly_the_budget_distinct_and_ascending(n, tokens, system):
    station = station_of([[system, (1, n), 2]], heads=1, depth=3)
    kept = walk(FastV(tokens=tokens), station)[0][0][0]
    assert len(kept) == len(set(kept)) == min(n, tokens)
    assert kept == sorted(kept)


def slow_pyramid(station, row: list, b: int, stages: tuple[int, ...], keep: float) -> list[list[int]]:
    """One row through all stages; the anchor's attention at the stage's own layer, λ^i of the original count."""
    standing = groups(row)
    first = [len(members) for members in standing]
    found = []
    for i, stage in enumerate(stages, 1):
        standing = [
            slow_top(slow_scores(station, b, stage, members), rounded(keep**i * n))
            for members, n in zip(standing, first)
        ]
        found.append(sorted(flat(standing)))
    return found


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize(("layers", "keep"), [(None, 0.5), ((1, 3), 0.19), ((0, 2, 3, 7), 0.8)])
def test_pyramiddrop_keeps_shares_of_the_original_count(layers, keep, ties):
    rows = ROWS + TILED
    station = station_of(rows, ties=ties)
    pruner = PyramidDrop(layers=layers, keep=keep)
    found = walk(pruner, station_of(rows, ties=ties))[0]
    for b, row in enumerate(rows):
        assert [stop[b] for stop in found] == slow_pyramid(station, row, b, pruner.stations(8), keep)


def test_pyramiddrop_published_numbers():
    assert PyramidDrop(ratio=0.5).stations(32) == (8, 16, 24)
    assert PyramidDrop(ratio=0.5).needs(32) == Needs(text_layers=(8, 16, 24))
    assert PyramidDrop(ratio=0.5).positions == "compact"
    station = station_of([[1, (24, 24), 2]], depth=32, heads=1)
    counts = [len(stop[0]) for stop in walk(PyramidDrop(ratio=0.5), station)[0]]
    assert counts == [288, 144, 72]
    assert sum(8 * n for n in (576, *counts)) / 32 == 270
    station = station_of([[1, (24, 24), 2]], depth=32, heads=1)
    counts = [len(stop[0]) for stop in walk(PyramidDrop(layers=(2, 8, 16), keep=0.19), station)[0]]
    mean = sum(layers * n for layers, n in zip((2, 6, 8, 16), (576, *counts))) / 32
    assert counts == [109, 21, 4]  # its author's recipe for 64, published as 62.9 with counts cut off (109, 20, 3)
    assert mean == 63.6875
    station = station_of([[1, (24, 24), 2]], depth=32, heads=1)
    counts = [len(stop[0]) for stop in walk(PyramidDrop(layers=(2, 8, 16), mean_tokens=128), station)[0]]
    assert sum(layers * n for layers, n in zip((2, 6, 8, 16), (576, *counts))) / 32 == pytest.approx(128, abs=0.5)


def test_pyramiddrop_tokens_is_what_the_last_stage_leaves():
    station = station_of([[1, (24, 24), 2], [(1, 3), 4]], depth=8, heads=1)
    counts = [[len(row) for row in stop] for stop in walk(PyramidDrop(tokens=9), station)[0]]
    assert counts == [[144, 3], [36, 3], [9, 3]]


@pytest.mark.parametrize("keep", [0.05, 0.3, 0.5, 1.0])
def test_uniform_is_round_linspace(keep):
    rows = ROWS + TILED + [[1, (1, 97), 2]]
    found = walk(Uniform(layer=0, keep=keep), station_of(rows, heads=1))[0][0]
    for b, row in enumerate(rows):
        expected = []
        for members in groups(row):
            n, k = len(members), rounded(keep * len(members))
            expected += [members[(2 * j * (n - 1) + k - 1) // (2 * (k - 1)) if k > 1 else 0] for j in range(k)]
        assert found[b] == sorted(set(expected))


@settings(max_examples=60)
@given(n=st.integers(1, 700), k=st.integers(1, 700))
def test_uniform_keeps_exactly_k(n, k):
    station = station_of([[1, (1, n), 1]], heads=1, depth=1)
    assert len(walk(Uniform(layer=0, tokens=k), station)[0][0][0]) == min(n, k)


def test_random_ranks_by_the_hash():
    rows = ROWS + TILED
    station = station_of(rows)
    found = walk(Random(layer=2, ratio=0.5, seed=7), station)[0][0]
    for b, row in enumerate(rows):
        seed = mixed(mixed(mixed(7) ^ b) ^ 2)
        places = sorted(flat(groups(row)))
        draw = {j: signed(mixed((seed + i) & (2**64 - 1))) for i, j in enumerate(places, 1)}
        expected = [slow_top({j: draw[j] for j in members}, rounded(0.5 * len(members))) for members in groups(row)]
        assert found[b] == sorted(flat(expected))


def test_the_hash_is_the_same_in_python_and_torch():
    words = [0, 1, 2**63, 2**64 - 1, 0x123456789ABCDEF0]
    assert mixed_tensor(torch.tensor([signed(w) for w in words])).tolist() == [signed(mixed(w)) for w in words]
    assert mixed(0) == 0xE220A8397B1DCDAF  # the published first output of SplitMix64 from seed 0


def test_random_is_uniform_nested_and_differs_by_key_seed_and_layer():
    keys = tuple(range(400))
    station = station_of([[1, (4, 5), 2]] * 400, heads=1, depth=4, keys=keys)
    half = Random(layer=2, ratio=0.5).select(station).keep & station.visual
    most = Random(layer=2, ratio=0.8).select(station).keep & station.visual
    share = half[:, 1:21].float().mean(0)
    assert (share - 0.5).abs().max() < 0.125  # 5 standard deviations
    assert (half | most).equal(half)
    assert not half[0].equal(half[1])
    assert not half.equal(Random(layer=2, ratio=0.5, seed=1).select(station).keep & station.visual)
    station.layer = 3
    assert not half.equal(Random(layer=3, ratio=0.5).select(station).keep & station.visual)


@pytest.mark.parametrize("control", [Random, Uniform])
@pytest.mark.parametrize("other", [FastV(layer=3, ratio=0.7), PyramidDrop(layers=(1, 4), keep=0.4, scope="per_prompt")])
def test_a_control_mirrors_stations_counts_and_positions(control, other):
    mirror = control(like=other)
    assert mirror.stations(8) == other.stations(8)
    assert mirror.positions == other.positions
    counts = [[[len(row) for row in stop] for stop in walk(p, station_of())[0]] for p in (mirror, other)]
    assert counts[0] == counts[1]


def test_a_control_takes_a_budget_or_another_pruner():
    with pytest.raises(ValueError, match=r"like: got a pruner and ratio"):
        Random(like=FastV(ratio=0.5), ratio=0.5)
    with pytest.raises(ValueError, match="like: got KeepAll"):
        Uniform(like=KeepAll())
    with pytest.raises(ValueError, match=r"seed: got 1\.5"):
        Random(ratio=0.5, seed=1.5)


def slow_pool(station, row: list, b: int, pruner: Pool) -> tuple[list[int], dict[int, list[int]]]:
    """(kept places, members of each) by a loop over blocks, cells and tokens."""
    cells, members_of = columns_of(row), {}
    for group in groups(row, pruner.scope):
        blocks: dict = {}
        for j in group:
            blocks.setdefault(cells[j][:3], []).append(j)
        k = min(len(group), pruner.tokens if pruner.tokens else rounded(pruner.budget.share * len(group)))
        for block in blocks.values():
            part = max(1, k * len(block) // len(group))
            ys, xs = [cells[j][3] for j in block], [cells[j][4] for j in block]
            h, w = max(ys) - min(ys) + 1, max(xs) - min(xs) + 1
            gh, gw = (h, w) if part >= len(block) else largest_grid(h, w, part)
            found: dict = {}
            for j in block:
                cell = ((cells[j][3] - min(ys)) * gh // h, (cells[j][4] - min(xs)) * gw // w)
                found.setdefault(cell, []).append(j)
            members_of.update({min(places): places for places in found.values()})
    return sorted(members_of), members_of


@pytest.mark.parametrize(
    "pruner", [Pool(ratio=0.6), Pool(tokens=4), Pool(tokens=3, scope="per_tile"), Pool(keep=0.3, scope="per_prompt")]
)
def test_pool_is_the_mean_over_cells(pruner):
    rows = ROWS + TILED
    station = station_of(rows)
    selection = pruner.select(station)
    hidden, mass = merge(station.hidden, station.mass, selection.into)
    for b, row in enumerate(rows):
        start = start_of(station, b)
        kept, members = slow_pool(station, row, b, pruner)
        alive = (selection.keep[b] & station.visual[b]).nonzero()[:, 0] - start
        assert alive.tolist() == kept
        for j, places in members.items():
            expected = torch.stack([station.hidden[b, start + m] for m in places]).mean(0)
            torch.testing.assert_close(hidden[b, start + j], expected)
            assert mass[b, start + j] == len(places)
    text = station.alive & ~station.visual
    assert hidden[text].equal(station.hidden[text])


def test_pooling_twice_is_a_true_mean():
    station = station_of([[1, (6, 6), 2]])
    _, once = walk(Pool(tokens=9), station)
    _, twice = walk(Pool(tokens=1), once)
    torch.testing.assert_close(twice.hidden[0, 1], station.hidden[0, 1:37].mean(0))
    assert twice.mass[0].tolist() == [1, 36, 1, 1]


def test_pool_on_what_is_no_rectangle_stays_within_its_budget():
    station = station_of([[1, (6, 6), 2], [1, (1, 3), 2]])
    _, rest = walk(Random(layer=0, ratio=0.4), station)
    assert rest.visual.sum(1).tolist() == [22, 2]
    for tokens in (1, 5, 9, 21):
        found, after = walk(Pool(layer=0, tokens=tokens), rest)
        assert 1 <= len(found[0][0]) <= tokens
        assert after.mass[after.visual].sum() == 24  # nothing is lost, only averaged
    assert walk(Pool(layer=0, tokens=22), rest)[1].column.equal(rest.column)


def test_pool_cuts_the_box_of_what_stands():
    """With the upper half gone, the lower half is pooled as a picture of its own."""
    station = station_of([[1, (6, 4), 2]])
    station.alive = station.alive & ~(station.visual & (station.grid[..., 3] < 3))
    station.visual = station.visual & station.alive
    into = Pool(keep=1 / 3).select(station).into[0]
    cells = [into[13 + 4 * y + x].item() for y in range(3) for x in range(4)]
    assert largest_grid(3, 4, 4) == (2, 2)
    assert cells == [13, 13, 15, 15, 13, 13, 15, 15, 21, 21, 23, 23]


def test_what_receives_only_itself_is_untouched_whatever_its_mass():
    station = station_of([[1, (6, 4), 2]])
    mass = torch.full_like(station.mass, 3.0)
    own = torch.arange(station.ids.shape[1])[None]
    assert not (station.hidden * 3 / 3).equal(station.hidden)
    hidden, after = merge(station.hidden, mass, own)
    assert hidden.equal(station.hidden)
    assert after.equal(mass)


@pytest.mark.parametrize(
    ("h", "w", "tokens", "grid"),
    [(24, 24, 288, (16, 18)), (24, 24, 23, (4, 5)), (24, 24, 1, (1, 1)), (24, 24, 576, (24, 24)), (1, 10, 3, (1, 3)),
     (2, 8, 4, (1, 4)), (3, 5, 14, (3, 4))],
)  # fmt: skip
def test_largest_grid(h, w, tokens, grid):
    assert largest_grid(h, w, tokens) == grid


@settings(max_examples=60)
@given(h=st.integers(1, 24), w=st.integers(1, 24), tokens=st.integers(1, 600))
def test_the_grid_never_exceeds_the_budget(h, w, tokens):
    gh, gw = largest_grid(h, w, tokens)
    assert gh * gw <= tokens
    assert gh <= h
    assert gw <= w
    if tokens >= h * w:
        assert (gh, gw) == (h, w)


# -- chains ------------------------------------------------------------------------------------------------------------


def test_a_chain_at_different_stations_is_one_after_the_other():
    first, second = Uniform(layer=1, ratio=0.4), FastV(layer=4, ratio=0.5)
    found, end = walk(Chain([first, second]), station_of())
    one, between = walk(first, station_of())
    between.layer = 4
    two, after = walk(second, between)
    assert found == one + two
    assert end.column.equal(after.column)


@pytest.mark.parametrize(
    "members",
    [
        [Uniform(layer=2, ratio=0.4), FastV(layer=2, ratio=0.5)],
        [Pool(layer=2, tokens=6), FastV(layer=2, ratio=0.5)],
        [FastV(layer=2, ratio=0.5), Pool(layer=2, tokens=3)],
        [Pool(layer=2, tokens=9), Pool(layer=2, tokens=2), Random(layer=2, ratio=0.5)],
    ],
)
def test_a_chain_at_one_station_is_one_after_the_other(members):
    found, end = walk(Chain(members), station_of())
    station = station_of()
    for member in members:
        station.layer = 2
        station = leave(station, member.select(station), 2)
    assert end.column.equal(station.column)
    torch.testing.assert_close(end.hidden, station.hidden)
    torch.testing.assert_close(end.mass, station.mass)
    assert len(found) == 1


def test_a_chain_carries_values_through():
    def doubled(station: Station) -> Selection:
        return Selection(keep=station.alive, value=station.hidden * 2)

    station = station_of()
    members = [FunctionPruner(doubled, 2), Pool(layer=2, tokens=2)]
    selection = Chain(members).select(station)
    expected = Narrowed(station, members[1].select(station)).hidden * 2
    torch.testing.assert_close(selection.value[selection.keep], expected[selection.keep])
    back = Chain(members[::-1]).select(station)
    torch.testing.assert_close(back.value[back.keep], expected[back.keep])


def test_what_a_chain_says_of_itself():
    chain = Chain([FastV(layer=3, ratio=0.5), PyramidDrop(ratio=0.5), Random(layer=2, ratio=0.1)])
    assert chain.stations(8) == (2, 3, 4, 6)
    assert chain.needs(8) == Needs(text_layers=(2, 4, 6))
    assert chain.positions == "original"
    assert Chain([PyramidDrop(ratio=0.5), Random(like=PyramidDrop(ratio=0.2))]).positions == "compact"
    with pytest.raises(ValueError, match="pruners: got none"):
        Chain([])
    with pytest.raises(ValueError, match="pruners: got"):
        Chain([lambda station: station.alive])


# -- what holds for every method ---------------------------------------------------------------------------------------


@method
def test_text_stays_order_ascends_and_every_row_equals_its_batch_of_one(name):
    rows = ROWS + TILED
    found, end = walk(METHODS[name], station_of(rows))
    for b, row in enumerate(rows):
        alone, one = walk(METHODS[name], station_of([row], keys=(b,)))
        assert [stop[b] for stop in found] == [stop[0] for stop in alone]
        assert end.column[b][end.alive[b]].diff().gt(0).all()
        assert int((end.alive & ~end.visual)[b].sum()) == len(columns_of(row)) - len(flat(groups(row)))
        torch.testing.assert_close(end.hidden[b][end.alive[b]], one.hidden[0][one.alive[0]])
    for stop in found:
        for b, row in enumerate(rows):  # no picture is left without a token
            if "prompt" not in name:
                assert all(set(members) & set(stop[b]) for members in groups(row))


@method
def test_the_same_answer_ten_times_and_no_input_touched(name):
    station = station_of()
    before = [tensor.clone() for tensor in (station.hidden, station.visual, station.alive, station.grid, station.mass)]
    answers = [walk(METHODS[name], station_of())[0] for _ in range(3)]
    assert answers[0] == answers[1] == answers[2]
    station.layer = METHODS[name].stations(8)[0]
    METHODS[name].select(station)
    for was, now in zip(before, (station.hidden, station.visual, station.alive, station.grid, station.mass)):
        assert was.equal(now)


@pytest.mark.parametrize("dial", [{"ratio": 0}, {"ratio": 0.0}, {"keep": 1}, {"tokens": 1000}, {"mean_tokens": 1000}])
@pytest.mark.parametrize("kind", [FastV, PyramidDrop, Pool, Random, Uniform])
def test_a_budget_that_drops_nothing_is_the_identity(kind, dial):
    station = station_of(ROWS + TILED)
    end = walk(kind(**dial), station)[1]
    expected = station_of(ROWS + TILED)
    assert end.column.equal(expected.column)
    assert end.hidden.equal(expected.hidden)  # bit for bit, merging methods included
    assert (end.mass == 1).all()


@pytest.mark.parametrize("kind", [FastV, Pool, Random, Uniform])
@pytest.mark.parametrize("tokens", [1, 4, 6])
def test_a_count_is_idempotent(kind, tokens):
    pruner = kind(layer=2, tokens=tokens)
    once, rest = walk(pruner, station_of())
    rest.layer = 2
    assert walk(pruner, rest)[0] == once


@pytest.mark.parametrize("kind", [FastV, PyramidDrop, Pool, Random, Uniform])
def test_all_removed_only_with_allow_zero(kind):
    assert walk(kind(ratio=1.0, allow_zero=True), station_of())[0][-1] == [[]] * len(ROWS)
    assert [len(row) for row in walk(kind(ratio=1.0), station_of())[0][-1]] == [1, 2, 0, 2, 1]


@method
def test_a_batch_without_pictures_is_left_alone(name):
    station = station_of([[5], [3]])
    found, end = walk(METHODS[name], station)
    assert end.alive.sum() == 8
    assert all(rows == [[], []] for rows in found)


def test_protected_visual_columns_stay():
    station = station_of([[1, (2, 2), "sep", (2, 2), "sep", 2]])
    for pruner in (FastV(tokens=1), Pool(tokens=1), PyramidDrop(tokens=1), Random(tokens=1), Uniform(tokens=1)):
        assert {5, 10} <= set(walk(pruner, station_of([[1, (2, 2), "sep", (2, 2), "sep", 2]]))[1].column[0].tolist())
    assert station.alive.sum() == 13


def test_kept_heads_are_query_heads():
    """GQA: rows have the query heads, however few key heads there are; the mean is over all of them."""
    station = station_of([[1, (1, 4), 1]], heads=6)
    row = torch.zeros(1, 6, 1, 6)
    row[0, 5, 0, 3] = 1.0
    station.attention_rows[1] = row
    assert walk_once(FastV(tokens=1), station) == [3]


def walk_once(pruner: Pruner, station) -> list[int]:
    return (pruner.select(station).keep & station.visual)[0].nonzero()[:, 0].tolist()


def test_half_precision_attention_is_averaged_in_fp32():
    station = station_of([[1, (1, 3), 1]], heads=2, depth=3)
    row = torch.tensor([[0.0, 0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 2.0**-12, 0.0, 0.0]], dtype=torch.bfloat16)
    station.attention_rows[1] = row.view(1, 2, 1, 5)
    assert walk_once(FastV(tokens=1), station) == [2]  # in bf16 the sums tie and the lower column would win


@pytest.mark.parametrize("layer", [-1, 1.5, True, "2", None])
def test_a_layer_that_is_no_layer_is_refused_at_construction(layer):
    for kind in (FastV, Pool, Random, Uniform):
        with pytest.raises(ValueError, match=r"layer: got .* valid are whole numbers"):
            kind(layer=layer, ratio=0.5)
    with pytest.raises(ValueError, match="layers: got"):
        PyramidDrop(layers=(3, layer), ratio=0.5)


def test_a_layer_beyond_the_depth_is_refused():
    for pruner in (FastV(layer=8, ratio=0.5), Pool(layer=8, ratio=0.5), Random(layer=8, ratio=0.5), KeepAll(layer=8)):
        with pytest.raises(ValueError, match=r"layer: got 8, valid are . … 7 \(the model has 8 decoder layers\)"):
            pruner.stations(8)
    with pytest.raises(ValueError, match="layers: got 9"):
        PyramidDrop(layers=(3, 9), ratio=0.5).stations(8)
    with pytest.raises(ValueError, match="give a list"):
        PyramidDrop(ratio=0.5).stations(3)
    with pytest.raises(ValueError, match="increasing"):
        PyramidDrop(layers=(3, 3), ratio=0.5)
    with pytest.raises(ValueError, match="layer: got 0, valid are whole numbers from 1 on"):
        FastV(layer=0, ratio=0.5)
    with pytest.raises(ValueError, match="anchor: got 'first', valid are last, instruction"):
        FastV(anchor="first", ratio=0.5)
    assert checked_layer(0, 1) == 0
    assert checked_layers([0, 2], 3) == (0, 2)


def test_a_station_without_history_says_what_is_missing():
    station = station_of()
    del station.history
    with pytest.raises(ValueError, match=r"station\.history is missing"):
        PyramidDrop(ratio=0.5).select(station)
    assert FastV(ratio=0.5).select(station).keep.any()  # a share of what stands needs none


# -- every yaml --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", registry.names("pruner"))
def test_every_yaml_under_conf_pruner_keeps_the_contract(name):
    pruner = registry.build("pruner", name)
    stops = pruner.stations(8)
    assert list(stops) == sorted(set(stops))
    assert all(0 <= layer < 8 for layer in stops)
    assert pruner.positions in ("original", "compact")
    assert all(0 <= layer < 8 for layer in pruner.needs(8).text_layers)
    station = station_of(ROWS + TILED)
    first = station_of(ROWS + TILED)
    first.layer = stops[0]
    selection = pruner.select(first)
    assert selection.keep.dtype == torch.bool
    assert selection.keep.shape == station.visual.shape
    if selection.into is not None:  # where it says where things go, that column is kept
        assert selection.keep.gather(1, selection.into.clamp(min=0))[selection.into >= 0].all()
    found, end = walk(pruner, station)
    start_text = station_of(ROWS + TILED)
    assert (end.alive & ~end.visual).sum() == (start_text.alive & ~start_text.visual).sum()
    assert end.column[end.alive].ge(0).all()
    share = getattr(pruner, "budget", Budget(ratio=0)).share
    for b, row in enumerate(ROWS + TILED):
        assert found[-1][b] == sorted(set(found[-1][b]))
        for members in groups(row):
            assert 1 <= len(set(members) & set(found[0][b])) <= rounded(share * len(members))
