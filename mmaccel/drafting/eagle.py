"""EAGLE, Li et al. 2024, https://arxiv.org/abs/2401.15077, with the dynamic tree of EAGLE-2, https://arxiv.org/abs/2406.16858.

One decoder layer guesses the target's next hidden state from the one before and the token between them:
f_{t+1} = Layer(fc([e(x_{t+1}); h_t])), and the target's own output matrix reads the token after that off f_{t+1}.
Where the target has run, its own hidden states replace the guesses.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mmaccel.drafting.base import Draft, DraftHead, DraftState, Loss, Seen, Target
from mmaccel.drafting.layer import MLP, Attention, Keys, RMSNorm, Sizes
from mmaccel.drafting.trees import Frontier, Pool

IMAGE_INPUTS = ("placeholder", "merged", "hidden")


class Layer(nn.Module):
    """Attention and feed-forward; the first norm of an ordinary layer is left out."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.self_attn, self.mlp = Attention(sizes), MLP(sizes)
        self.post_attention_layernorm = RMSNorm(sizes.width, sizes.eps)

    def rest(self, x: Tensor, mixed: Tensor) -> Tensor:
        x = x + mixed
        return x + self.mlp(self.post_attention_layernorm(x))


@dataclass
class Drafting(DraftState):
    """keys: of columns whose pair (hidden state, token after) is known.  waiting: those that lack the token after."""

    target: Target
    keys: Keys
    waiting: Seen | None = None

    def fork(self) -> "Drafting":
        return replace(self)

    def select(self, rows: Tensor) -> "Drafting":
        waiting = None if self.waiting is None else self.waiting.select(rows)
        return replace(self, keys=self.keys.select(rows), waiting=waiting)


class Eagle(DraftHead):
    """levels: depth of the tree.  beam: nodes that go on at each level; 1 drafts a chain.  nodes: of the verified tree.
    image_input: what stands for the token at a picture's columns: the `placeholder`'s embedding, the `merged` features
    as the decoder gets them, or nothing, so that the `hidden` state speaks alone."""

    watches = True

    def __init__(
        self, sizes: Sizes, *, fc_bias: bool = False, levels: int = 5, beam: int = 8, nodes: int = 24,
        image_input: str = "merged",
    ) -> None:  # fmt: skip
        super().__init__()
        for name, value in (("levels", levels), ("beam", beam), ("nodes", nodes)):
            if value < 1:
                raise ValueError(f"{name}: got {value}, valid are whole numbers from 1 on")
        if image_input not in IMAGE_INPUTS:
            raise ValueError(f"image_input: got {image_input!r}, valid are {', '.join(IMAGE_INPUTS)}")
        self.sizes, self.levels, self.beam, self.nodes, self.image_input = sizes, levels, beam, nodes, image_input
        self.shape = "chain" if beam == 1 else "tree"
        self.fc = nn.Linear(2 * sizes.width, sizes.width, bias=fc_bias)
        self.layers = nn.ModuleList([Layer(sizes)])

    @property
    def layer(self) -> Layer:
        return self.layers[0]  # type: ignore[return-value]

    def fits(self, width: int, vocabulary: int) -> None:
        if self.sizes.width != width:
            raise ValueError(f"eagle: got a head of width {self.sizes.width}, the target's is {width}")

    def start(self, target: Target, rows: int) -> Drafting:
        self.fits(target.width, target.vocabulary)
        weight = self.fc.weight
        return Drafting(target, Keys.none(rows, self.sizes, weight.device, weight.dtype))

    def observe(self, state: DraftState, seen: Seen) -> None:
        assert isinstance(state, Drafting)
        state.waiting = seen if state.waiting is None else state.waiting.then(seen)

    def propose(self, state: DraftState, token: Tensor, position: Tensor, limit: int, sampler: Any) -> Draft:
        assert isinstance(state, Drafting)
        if limit < 1:
            return Draft.empty(len(token), token.device)
        feature = self.catch_up(state, token)  # [B, 1, D]
        pool = Pool(self.beam)
        frontier = pool.offer(self.logp(state, feature))
        at = row_position(position)  # [B, 1]
        tree = Grown.none(state.keys)
        hidden = feature.expand(-1, frontier.tokens.shape[1], -1)
        for level in range(1, min(self.levels, limit)):
            hidden, tree = self.grow(state, tree, frontier, hidden, at + level - 1)
            before = frontier
            frontier = pool.offer(self.logp(state, hidden), before)
            came = tree.came_from(frontier, pool, before)  # [B, k] which of the nodes just run each child hangs on
            hidden, tree = pick(hidden, came), tree.follow(came)
        return pool.best(self.nodes)

    def logp(self, state: Drafting, feature: Tensor) -> Tensor:
        return state.target.says(feature).log_softmax(-1)

    def joined(self, embeds: Tensor, hidden: Tensor) -> Tensor:
        return self.fc(torch.cat([embeds.to(hidden.dtype), hidden], -1).to(self.fc.weight.dtype))

    def catch_up(self, state: Drafting, token: Tensor) -> Tensor:
        """Runs the columns that waited for the token after them; [B, 1, D] the feature of the last."""
        seen, state.waiting = state.waiting, None
        assert seen is not None
        assert seen.hidden is not None
        embeds = self.embeds(state.target, seen)  # [B, m, D]
        embeds = torch.cat([embeds[:, 1:], state.target.embed(token)[:, None].to(embeds.dtype)], 1)
        x = self.joined(embeds, seen.hidden)
        valid = seen.valid if seen.valid is not None else torch.ones_like(seen.ids, dtype=torch.bool)
        q, k, v = self.layer.self_attn.heads(x, row_position(seen.position))
        past, m = state.keys.valid, x.shape[1]
        state.keys = state.keys.append(k, v, valid)
        causal = torch.ones(m, m, dtype=torch.bool, device=x.device).tril()
        own = causal & valid[:, None] | torch.eye(m, dtype=torch.bool, device=x.device)  # a hole sees itself
        seen_by = torch.cat([past[:, None].expand(-1, m, -1), own], 2)  # [B, m, L]
        return self.run(x[:, -1:], q[:, :, -1:], state.keys, seen_by[:, -1:])

    def run(self, x: Tensor, q: Tensor, keys: Keys, seen: Tensor) -> Tensor:
        layer = self.layer
        return layer.rest(x, layer.self_attn(q, keys.keys, keys.values, seen))

    def embeds(self, target: Target, seen: Seen) -> Tensor:
        """[B, m, D] of the columns' own tokens."""
        if self.image_input == "merged" and seen.embeds is not None:
            return seen.embeds
        embeds = target.embed(seen.ids)
        if self.image_input == "hidden" and seen.visual is not None:
            embeds = embeds.masked_fill(seen.visual[..., None], 0.0)
        return embeds

    def grow(
        self, state: Drafting, tree: "Grown", frontier: Frontier, hidden: Tensor, position: Tensor
    ) -> tuple[Tensor, "Grown"]:
        """Runs the frontier [B, k]: every node sees all true columns, its ancestors and itself."""
        x = self.joined(state.target.embed(frontier.tokens), hidden)  # [B, k, D]
        q, k, v = self.layer.self_attn.heads(x, position.expand(-1, x.shape[1]))
        tree = tree.add(k, v)
        keys = Keys(
            torch.cat([state.keys.keys, tree.keys], 2), torch.cat([state.keys.values, tree.values], 2), state.keys.valid
        )
        seen = torch.cat([state.keys.valid[:, None].expand(-1, x.shape[1], -1), tree.sees], 2)
        return self.run(x, q, keys, seen), tree

    def loss(  # type: ignore[override]
        self,
        seen: Seen,
        answer: Tensor,
        target: Target,
        steps: int = 1,
        noise: float = 0.0,
        decay: float = 0.8,
        ce: float = 0.1,
    ) -> Loss:
        """Distance to the target's hidden states plus `ce` × soft cross entropy with its law, over `steps` of guesses.

        answer: [B, n] columns whose tokens the target says.  One step with ce = 0.1 is the paper's; the later ones feed
        the guesses back, as drafting does (https://arxiv.org/abs/2408.15766).  noise: width of what is added to the
        hidden states, uniform around 0.
        """
        assert seen.hidden is not None
        h = seen.hidden
        valid = seen.valid if seen.valid is not None else torch.ones_like(seen.ids, dtype=torch.bool)
        embeds, position = self.embeds(target, seen), row_position(seen.position)
        causal = torch.ones(h.shape[1], h.shape[1], dtype=torch.bool, device=h.device).tril()
        sees = causal & valid[:, None] | torch.eye(h.shape[1], dtype=torch.bool, device=h.device)
        attention = self.layer.self_attn
        keys: list[Tensor] = []
        values: list[Tensor] = []
        feed = h + noise * (torch.rand_like(h) - 0.5) if noise else h
        total: Tensor = h.new_zeros((), dtype=torch.float32)
        sums: dict[str, tuple[Tensor, Tensor]] = {}
        for step in range(steps):
            ahead = step + 1  # place t reads the token at t + ahead and guesses the hidden state there
            x = self.joined(shifted(embeds, ahead), feed)
            q, k, v = attention.heads(x, position + step)
            keys.append(k)
            values.append(v)
            feature = self.layer.rest(x, attention.unrolled(q, keys, values, sees))
            known = shifted(answer, ahead + 1) & valid  # the token that is guessed is the answer's
            loss, counted = self.step_loss(feature[known], shifted(h, ahead)[known], target, step, ce)
            total = total + decay**step * loss
            sums |= counted
            feed = feature
        return Loss(total, sums)

    def step_loss(
        self, feature: Tensor, true: Tensor, target: Target, step: int, ce: float
    ) -> tuple[Tensor, dict[str, Any]]:
        count = torch.tensor(len(feature), device=feature.device)
        logits, wanted = target.says(feature), target.says(true)
        soft = -(wanted.softmax(-1) * logits.log_softmax(-1)).sum()
        near = F.smooth_l1_loss(feature.float(), true.float(), reduction="none").mean(-1).sum()
        right = (logits.argmax(-1) == wanted.argmax(-1)).sum()
        least = count.clamp(min=1)
        found = {
            f"loss_{step}": (soft.detach(), count),
            f"distance_{step}": (near.detach(), count),
            f"right_{step}": (right, count),
        }
        return (ce * soft + near) / least, found


def shifted(x: Tensor, by: int) -> Tensor:
    """x [B, n, …] moved left, zeros behind."""
    return torch.cat([x[:, by:], torch.zeros_like(x[:, :by])], 1)


def row_position(position: Tensor) -> Tensor:
    """[B, m]: of M-RoPE's axes time, which text counts up on all alike. `generate` puts an axis in front of them."""
    return position if position.ndim == 2 else position[-3]


def pick(x: Tensor, at: Tensor) -> Tensor:
    """x [B, n, D] at [B, k]."""
    return x.gather(1, at[..., None].expand(-1, -1, x.shape[-1]))


@dataclass(frozen=True)
class Grown:
    """The drafted nodes that have run. keys, values: [B, Hkv, n, d].  sees: [B, k, n] which of them each node of the
    last level sees."""

    keys: Tensor
    values: Tensor
    sees: Tensor

    @classmethod
    def none(cls, like: Keys) -> "Grown":
        empty = like.keys[:, :, :0]
        return cls(empty, empty, like.valid.new_zeros(len(like.valid), 1, 0))

    def add(self, keys: Tensor, values: Tensor) -> "Grown":
        k = keys.shape[2]
        own = torch.eye(k, dtype=torch.bool, device=keys.device).expand(len(keys), -1, -1)
        sees = torch.cat([self.sees.expand(-1, k, -1), own], 2)
        return Grown(torch.cat([self.keys, keys], 2), torch.cat([self.values, values], 2), sees)

    def came_from(self, frontier: Frontier, pool: Pool, before: Frontier) -> Tensor:
        """[B, k] the index, among the nodes that ran last, of each frontier node's parent."""
        parents = torch.cat(pool.parents, 1).gather(1, frontier.pool)  # [B, k] places in the pool
        return (parents[:, :, None] == before.pool[:, None, :]).to(torch.int8).argmax(2)

    def follow(self, came: Tensor) -> "Grown":
        return Grown(self.keys, self.values, self.sees.gather(1, came[..., None].expand(-1, -1, self.sees.shape[2])))
