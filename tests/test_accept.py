"""Acceptance is exact: simulated frequencies against the law of plain sampling, for chains and trees of both kinds."""

import pytest
import torch
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from mmaccel.decoding.accept import accept
from mmaccel.decoding.sampling import Committed, Sampler
from mmaccel.drafting.base import Draft

V, ROWS = 5, 60_000


def _joint(draft: Draft, logits: Tensor, sampler: Sampler, table: Tensor) -> tuple[Tensor, Tensor]:
    """Observed and exact law of the first two emitted tokens, [V, V].

    table: [1 + V, V] logits after the prompt and after each first token; a second token that the path does not reach is
    drawn from the table, as the next step would.
    """
    path, token = accept(draft, logits, sampler, Committed(torch.zeros(len(logits), 1, dtype=torch.long)))
    emitted = torch.where(path >= 0, draft.tokens.gather(1, path.clamp(min=0)), -1)  # [B, t]
    first = torch.where(path[:, 0] >= 0, emitted[:, 0], token)
    second = torch.where(path[:, 1] >= 0, emitted[:, 1], token)
    alone = path[:, 0] < 0  # one token only: draw the next one plainly
    second = torch.where(alone, sampler.draw(_plain(sampler, table[1 + first])), second)
    observed = torch.bincount(first * V + second, minlength=V * V).view(V, V) / len(first)
    p = sampler.probabilities(_plain(sampler, table))
    return observed, p[0][:, None] * p[1:]


def _plain(sampler: Sampler, rows: Tensor) -> Tensor:
    """[n, V] processed logits of n rows without a draft."""
    ids = torch.zeros(len(rows), 1, dtype=torch.long)
    return sampler.scores(rows[:, None].clone(), Draft.empty(len(rows)), Committed(ids))[:, 0]


def _node_logits(draft: Draft, table: Tensor) -> Tensor:
    """[B, 1+t, V]: the law depends on the previous token alone; the second level's children get the same table."""
    after = table[1 + draft.tokens]  # [B, t, V]
    return torch.cat([table[:1].expand(len(after), 1, V), after], 1)


def _sampled(table: Tensor, q: Tensor, parents: list[int], without_replacement: bool) -> Draft:
    """Draws every node from q[previous token]; siblings with or without replacement."""
    tokens = torch.zeros(ROWS, 0, dtype=torch.long)
    laws: list[Tensor] = []
    for node, parent in enumerate(parents):
        previous = tokens[:, parent] + 1 if parent >= 0 else torch.zeros(ROWS, dtype=torch.long)
        law = q[previous].clone()  # [B, V]
        if without_replacement:
            for sibling in (s for s in range(node) if parents[s] == parent):
                law.scatter_(1, tokens[:, sibling, None], 0.0)
            law /= law.sum(1, keepdim=True)
        tokens = torch.cat([tokens, torch.multinomial(law, 1)], 1)
        laws.append(law)
    return Draft(tokens, torch.tensor(parents).expand(ROWS, -1), torch.stack(laws, 1))


PROCESSED = {
    "plain": [],
    "warped": [TemperatureLogitsWarper(0.7), TopKLogitsWarper(4), TopPLogitsWarper(0.95)],
}
SHAPES = {"chain": [-1, 0], "tree": [-1, -1, 0, 0, 1, -1, 5], "twins": [-1, -1, 0, 1]}


def _close(observed: Tensor, exact: Tensor) -> None:
    """Chi-square over the cells that can occur, and nothing where nothing may be."""
    can = exact > 0
    assert observed[~can].sum() == 0
    statistic = (ROWS * (observed - exact)[can] ** 2 / exact[can]).sum().item()
    freedom = int(can.sum()) - 1
    assert statistic < freedom + 5 * (2 * freedom) ** 0.5, f"chi-square {statistic:.1f} at {freedom} degrees of freedom"


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("processed", PROCESSED)
def test_picked_drafts_leave_the_law_alone(shape: str, processed: str) -> None:
    torch.manual_seed(1)
    table = torch.randn(1 + V, V)
    tokens = torch.tensor([[1, 2, 3, 0, 4, 2, 1][: len(SHAPES[shape])]]).expand(ROWS, -1)
    if shape == "twins":  # siblings with one and the same token
        tokens = torch.tensor([[1, 1, 3, 2]]).expand(ROWS, -1)
    draft = Draft(tokens, torch.tensor(SHAPES[shape]).expand(ROWS, -1))
    sampler = Sampler(LogitsProcessorList(PROCESSED[processed]), do_sample=True)
    _close(*_joint(draft, _node_logits(draft, table), sampler, table))


@pytest.mark.parametrize("without_replacement", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("processed", PROCESSED)
def test_sampled_drafts_leave_the_law_alone(shape: str, processed: str, without_replacement: bool) -> None:
    torch.manual_seed(2)
    table, q = torch.randn(1 + V, V), torch.randn(1 + V, V).softmax(-1)
    draft = _sampled(table, q, SHAPES[shape], without_replacement)
    sampler = Sampler(LogitsProcessorList(PROCESSED[processed]), do_sample=True)
    _close(*_joint(draft, _node_logits(draft, table), sampler, table))


def test_the_simulation_can_fail() -> None:
    """Tokens picked by argmax but declared as sampled from q are accepted too often: the test above sees it."""
    torch.manual_seed(3)
    table, q = torch.randn(1 + V, V), torch.randn(1 + V, V).softmax(-1)
    tokens = torch.stack([q[0].argmax().expand(ROWS), q[1 + q[0].argmax()].argmax().expand(ROWS)], 1)
    dishonest = Draft.chain(tokens, torch.stack([q[0].expand(ROWS, V), q[1 + tokens[:, 0]]], 1))
    with pytest.raises(AssertionError, match="chi-square"):
        _close(*_joint(dishonest, _node_logits(dishonest, table), Sampler(do_sample=True), table))


def test_q_equal_to_p_is_always_accepted() -> None:
    torch.manual_seed(4)
    table = torch.randn(1 + V, V)
    draft = _sampled(table, table.softmax(-1), [-1, 0], False)
    path, _ = accept(draft, _node_logits(draft, table), Sampler(do_sample=True), Committed(draft.tokens[:, :1]))
    assert (path >= 0).float().mean() > 0.9999


def test_zeros_on_both_sides() -> None:
    torch.manual_seed(5)
    table = torch.randn(1 + V, V)
    table[:, 3] = -torch.inf
    q = torch.randn(1 + V, V).softmax(-1)
    q[:, 0] = 0
    draft = _sampled(table, q / q.sum(1, keepdim=True), [-1, -1, 0, 1], False)
    _close(*_joint(draft, _node_logits(draft, table), Sampler(do_sample=True), table))


@pytest.mark.parametrize("with_q", [False, True])
def test_greedy_walks_to_the_argmax_alone(with_q: bool) -> None:
    table = torch.randn(1 + V, V, generator=torch.Generator().manual_seed(6))
    best = int(table[0].argmax())
    then = int(table[1 + best].argmax())
    other = (best + 1) % V
    tokens = torch.tensor([[other, best, then, then, best]])
    draft = Draft(tokens, torch.tensor([[-1, -1, 0, 1, 3]]), torch.full((1, 5, V), 1 / V) if with_q else None)
    path, token = accept(draft, _node_logits(draft, table), Sampler(), Committed(tokens))
    last = int(table[1 + then].argmax())
    expected = [1, 3, 4, -1, -1] if last == best else [1, 3, -1, -1, -1]
    assert path.tolist() == [expected]
    assert token.item() == int(table[1 + (best if last == best else then)].argmax())


def test_padding_and_what_hangs_on_it_are_not_there() -> None:
    table = torch.zeros(1 + V, V)
    table[:, 2] = 1.0  # 2 is always right
    draft = Draft(torch.tensor([[2, 2, 2], [2, 2, 2]]), torch.tensor([[-2, 0, -1], [-1, 0, -2]]))
    assert draft.real.tolist() == [[False, False, True], [True, True, False]]
    assert draft.depth.amax(1).tolist() == [1, 2]
    path, token = accept(draft, _node_logits(draft, table), Sampler(), Committed(draft.tokens))
    assert path.tolist() == [[2, -1, -1], [0, 1, -1]]
    assert token.tolist() == [2, 2]


def test_what_a_node_sees() -> None:
    parents = [-1, -1, 0, 2, 1, -1, 3]
    draft = Draft(torch.zeros(1, 7, dtype=torch.long), torch.tensor([parents]))
    for node, parent in enumerate(parents):
        line = {0, node + 1}
        while parent >= 0:
            line.add(parent + 1)
            parent = parents[parent]
        assert set(draft.sees[0, node + 1].nonzero()[:, 0].tolist()) == line
    assert draft.depth[0].tolist() == [0, 1, 1, 2, 3, 2, 1, 4]
    long = Draft.chain(torch.zeros(1, 33, dtype=torch.long))
    assert torch.equal(long.sees[0], torch.ones(34, 34).tril().bool())


def test_processors_read_the_ids_that_lead_to_the_node() -> None:
    """Row by row, node by node, against one call of the processors with that node's own ids."""
    torch.manual_seed(7)
    prompt = torch.tensor([[0, 1, 2], [3, 4, 3]])
    committed = Committed(prompt)
    committed.new = [[4, 1, 2], [2]]
    processors = LogitsProcessorList([RepetitionPenaltyLogitsProcessor(1.7), NoRepeatNGramLogitsProcessor(2)])
    draft = Draft(torch.tensor([[3, 1, 4], [0, 3, 4]]), torch.tensor([[-1, 0, -1], [-1, -1, 1]]))
    logits = torch.randn(2, 4, V)
    scores = Sampler(processors).scores(logits, draft, committed)
    lines = [
        [[0, 1, 2, 4, 1, 2], [0, 1, 2, 4, 1, 2, 3], [0, 1, 2, 4, 1, 2, 3, 1], [0, 1, 2, 4, 1, 2, 4]],
        [[3, 4, 3, 2], [3, 4, 3, 2, 0], [3, 4, 3, 2, 3], [3, 4, 3, 2, 3, 4]],
    ]
    for row in range(2):
        for node in range(4):
            alone = processors(torch.tensor([lines[row][node]]), logits[row, node][None].clone())[0]
            assert torch.equal(scores[row, node], alone), (row, node)


def test_committed_rows_grow_apart() -> None:
    committed = Committed(torch.tensor([[7, 8], [9, 6]]))
    for step in range(400):
        committed.new[0].append(step % 5)
        if step % 3 == 0:
            committed.new[1] += [1, 2]
            assert committed.row(1).tolist() == [9, 6, *committed.new[1]]
    assert committed.row(0).tolist() == [7, 8, *committed.new[0]]
    assert committed.sequences(pad=5)[1].tolist() == [9, 6, *committed.new[1], *[5] * (400 - len(committed.new[1]))]


@pytest.mark.parametrize("bad", [((2, 3), (2, 4)), ((3,), (3,))])
def test_draft_shapes_are_checked(bad: tuple) -> None:
    with pytest.raises(ValueError, match="valid is"):
        Draft(torch.zeros(bad[0], dtype=torch.long), torch.zeros(bad[1], dtype=torch.long))
