"""Which nodes of a draft the target would have said itself, exactly: greedy and sampled, chains and trees.

Knows drafts, logits and a sampler. Does not know models, caches or stopping.

Picked drafts (q None) are walked with the target's own draws: at each node the target draws y from its law p; if a
child carries y the walk goes on there, else y is committed. A child x is thus accepted with p(x), and what is committed
after rejecting all children has the law p with them struck out and renormalised: the walk that tries the children one
by one, in one draw, and exact because y itself is committed. Temperature 0 is the same code, y being the argmax.

Sampled drafts (q given) are tried in order: x goes through with min(1, p(x)/q(x)); rejected, p becomes max(p − q, 0)
renormalised for the next sibling (https://arxiv.org/abs/2211.17192, for siblings https://arxiv.org/abs/2305.09781).
"""

import torch
from torch import Tensor

from mmaccel.decoding.sampling import Committed, Sampler
from mmaccel.drafting.base import Draft


def accept(draft: Draft, logits: Tensor, sampler: Sampler, prefix: Committed) -> tuple[Tensor, Tensor]:
    """The accepted path [B, t] (node indices root to leaf, then -1) and the token [B] that follows it.

    logits: [B, 1+t, V], row 0 those after the last committed token.  prefix: each row's ids up to that token.
    """
    scores = sampler.scores(logits, draft, prefix)
    if draft.size == 0:
        return draft.tokens, sampler.draw(scores[:, 0])
    if draft.q is None or not sampler.do_sample:
        return _match(draft, sampler.draw(scores))
    return _reject(draft, sampler.probabilities(scores), sampler)


def _match(draft: Draft, drawn: Tensor) -> tuple[Tensor, Tensor]:
    """drawn: [B, 1+t] what the target says after each node."""
    wanted = drawn.gather(1, (draft.parent + 1).clamp(min=0))  # [B, t]
    matched = (draft.tokens == wanted) & draft.real & ~_repeated(draft)
    missing = (draft.sees[:, 1:, 1:] & ~matched[:, None, :]).any(2)  # [B, t] an ancestor or itself did not match
    return _path(~missing, drawn)


def _repeated(draft: Draft) -> Tensor:
    """[B, t] nodes whose earlier sibling carries the same token: only the first can be walked."""
    same = draft.tokens[:, :, None] == draft.tokens[:, None, :]
    same = same & (draft.parent[:, :, None] == draft.parent[:, None, :])
    return same.tril(-1).any(2)


def _path(accepted: Tensor, drawn: Tensor) -> tuple[Tensor, Tensor]:
    """accepted: [B, t] bool, one path per row (parents stand before children).  drawn: [B, 1+t]."""
    t = accepted.shape[1]
    node = torch.arange(t, device=accepted.device)
    path = torch.where(accepted, node, t).sort(1).values  # [B, t]
    leaf = torch.where(accepted, node + 1, 0).amax(1, keepdim=True)  # [B, 1]
    return path.masked_fill(path == t, -1), drawn.gather(1, leaf)[:, 0]


def _reject(draft: Draft, p: Tensor, sampler: Sampler) -> tuple[Tensor, Tensor]:
    """p: [B, 1+t, V]. One pass over the nodes, parents before children, all rows at once, the host not asked."""
    assert draft.q is not None
    B, t = draft.tokens.shape
    q = draft.q.to(p.dtype)
    chance = sampler.uniform((t, B), p.device)
    current = torch.zeros(B, dtype=torch.long, device=p.device)  # node the walk stands on, 0 = root
    law, accepted = p[:, 0], torch.zeros(B, t, dtype=torch.bool, device=p.device)
    for node in range(t):
        token = draft.tokens[:, node, None]
        p_token, q_token = law.gather(1, token)[:, 0], q[:, node].gather(1, token)[:, 0]
        here = draft.parent[:, node] + 1 == current
        taken = here & (q_token > 0) & (chance[node] * q_token < p_token)
        law = torch.where((here & ~taken)[:, None], _residual(law, q[:, node]), law)
        law = torch.where(taken[:, None], p[:, node + 1], law)
        current = torch.where(taken, node + 1, current)
        accepted[:, node] = taken
    path, _ = _path(accepted, current.new_zeros(B, 1 + t))
    return path, sampler.pick(law)


def _residual(p: Tensor, q: Tensor) -> Tensor:
    """[B, V] max(p − q, 0) renormalised; p itself where nothing is left (rejection there has probability 0)."""
    rest = (p - q).clamp(min=0)
    total = rest.sum(1, keepdim=True)
    return torch.where(total > 0, rest / total.clamp(min=torch.finfo(p.dtype).tiny), p)
