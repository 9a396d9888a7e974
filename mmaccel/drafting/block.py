"""DFlash, Chen et al. 2026, https://arxiv.org/abs/2602.06036: a block of tokens in one pass, none waits for another.

What the target felt at every verified column, c_i = norm(fc([norm(taps_i); norm(h_i)])), goes into the keys and values
of every layer (the paper has no norms in front of fc; inner states may be ten times as wide as the last and drown it).
The block [e(x_n), m_1, …, m_k] stands at n, n + 1, … and reads those and all of itself; the target's own output matrix
reads the token of place n + j off mask j. The masks are learnt, each its own: one for all, as the paper has it, tells
places apart by rotation alone, and learns slower. Of every place the likeliest, so that a draft is a chain. Knows
tensors and drafts, no layers of the target.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mmaccel.drafting.base import Draft, DraftHead, DraftState, Loss, Seen, Target
from mmaccel.drafting.layer import MLP, Attention, Keys, RMSNorm, Sizes, rotated, turned
from mmaccel.drafting.recurrent import pick, shifted

Join = Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]]  # (layer, the block's keys, values) → all that it reads


class Layer(nn.Module):
    """An ordinary decoder layer; that its keys and values come from elsewhere too is the caller's."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.self_attn, self.mlp = Attention(sizes), MLP(sizes)
        self.input_layernorm = RMSNorm(sizes.width, sizes.eps)
        self.post_attention_layernorm = RMSNorm(sizes.width, sizes.eps)

    def context(self, c: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [B, Hkv, m, d] of c [B, m, D] at position [1, B, m]: columns are read, they ask nothing."""
        attention = self.self_attn
        k, v = (
            proj(c).unflatten(-1, (-1, attention.sizes.head_dim)).transpose(1, 2)
            for proj in (attention.k_proj, attention.v_proj)
        )
        return rotated(k, *turned(position, attention.sizes)), v


@dataclass
class Columns(DraftState):
    """keys: of each layer, of every column that was verified."""

    target: Target
    keys: tuple[Keys, ...]

    def fork(self) -> "Columns":
        return replace(self, keys=tuple(keys.fork() for keys in self.keys))

    def select(self, rows: Tensor) -> "Columns":
        return replace(self, keys=tuple(keys.select(rows) for keys in self.keys))


@dataclass(frozen=True)
class Anchors:
    """Places [B, a] in answers behind which blocks are guessed.  known: [B, a, k] the places behind that are the same
    answer's.  wanted: [B, a, k] their tokens."""

    at: Tensor
    known: Tensor
    wanted: Tensor


class Block(DraftHead):
    """taps: hidden_states indices that are fused with the last state; without, that one speaks alone.
    layers: of the head.  tokens: masks of a block; a smaller limit cuts the draft, not the block."""

    shape = "chain"
    watches = True

    def __init__(self, sizes: Sizes, taps: Sequence[int] = (), layers: int = 1, tokens: int = 8) -> None:
        super().__init__()
        for name, value in (("layers", layers), ("tokens", tokens)):
            if value < 1:
                raise ValueError(f"{name}: got {value}, valid are whole numbers from 1 on")
        if list(taps) != sorted(set(taps)):
            raise ValueError(f"taps: got {list(taps)}, valid are increasing hidden_states indices")
        self.sizes, self.taps, self.tokens = sizes, tuple(taps), tokens
        self.state_norms = nn.ModuleList(RMSNorm(sizes.width, sizes.eps) for _ in range(len(self.taps) + 1))
        self.fc = nn.Linear((len(self.taps) + 1) * sizes.width, sizes.width, bias=False)
        self.hidden_norm, self.norm = RMSNorm(sizes.width, sizes.eps), RMSNorm(sizes.width, sizes.eps)
        self.masks = nn.Parameter(torch.randn(tokens, sizes.width) * 0.02)
        self.layers = nn.ModuleList(Layer(sizes) for _ in range(layers))

    def fits(self, width: int, vocabulary: int) -> None:
        if self.sizes.width != width:
            raise ValueError(f"block: got a head of width {self.sizes.width}, the target's is {width}")

    # -- drafting --

    def start(self, target: Target, rows: int) -> Columns:
        self.fits(target.width, target.vocabulary)
        weight = self.fc.weight
        return Columns(target, tuple(Keys.none(rows, self.sizes, weight.device, weight.dtype) for _ in self.layers))

    def observe(self, state: DraftState, seen: Seen) -> None:
        assert isinstance(state, Columns)
        c, position = self.felt(seen), place(seen.position)
        alone = len(seen.ids) == 1  # one row has no holes but those of its prompt
        whole = seen.valid is None or (alone and (state.keys[0].length > 0 or bool(seen.valid.all())))
        for layer, keys in zip(self.layers, state.keys):
            keys.lay(*layer.context(c, position))  # type: ignore[operator]
            keys.hold(seen.whole, whole)

    def propose(self, state: DraftState, token: Tensor, position: Tensor, limit: int, sampler: Any) -> Draft:
        assert isinstance(state, Columns)
        if limit < 1:
            return Draft.empty(len(token), token.device)
        x, at = self.blocks(state.target.embed(token)[:, None], place(position))
        held = state.keys[0]
        sees = None if held.whole else held.mask(held.valid.new_ones(len(x), x.shape[1], x.shape[1]))
        guess = self.guess(x, at, sees, lambda layer, k, v: state.keys[layer].lay(k, v))[:, 1 : 1 + limit]
        return Draft.chain(state.target.says(guess).argmax(-1))

    # -- what both do --

    def felt(self, seen: Seen) -> Tensor:
        """c [B, m, D]"""
        assert seen.hidden is not None
        each = zip(self.state_norms, (*seen.taps, seen.hidden), strict=True)
        states = [norm(x.to(self.fc.weight.dtype)) for norm, x in each]
        return self.hidden_norm(self.fc(torch.cat(states, -1)))

    def blocks(self, anchor: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        """(rows [B, a · (1 + k), D] of blocks behind anchor [B, a, D]; [1, B, a · (1 + k)] where they stand)"""
        masks = self.masks.expand(*anchor.shape[:2], -1, -1)
        x = torch.cat([anchor[:, :, None].to(masks.dtype), masks], 2).flatten(1, 2)
        return x, (position[..., None] + torch.arange(1 + self.tokens, device=position.device)).flatten(2)

    def guess(self, x: Tensor, position: Tensor, sees: Tensor | None, join: Join) -> Tensor:
        """[B, q, D] what the target's output matrix reads, of blocks x [B, q, D].  sees: [B, q, L], None = all."""
        for at, layer in enumerate(self.layers):
            q, k, v = layer.self_attn.heads(layer.input_layernorm(x), position)  # type: ignore[operator, union-attr]
            x = x + layer.self_attn(q, *join(at, k, v), sees)  # type: ignore[operator]
            x = x + layer.mlp(layer.post_attention_layernorm(x))  # type: ignore[operator]
        return self.norm(x)

    # -- training --

    def loss(  # type: ignore[override]
        self, seen: Seen, answer: Tensor, target: Target, anchors: int = 64, gamma: float = 4.0
    ) -> Loss:
        """Cross entropy with the answer's own tokens, mask j weighted exp(−(j − 1) / gamma), mean over what counts.

        answer: [B, n] columns whose tokens the target says.  anchors: places of a row's answers from which a block is
        guessed, at most so many; random ones, outside of training always the same.
        """
        for name, value in (("anchors", anchors), ("gamma", gamma)):
            if value <= 0:
                raise ValueError(f"{name}: got {value}, valid are numbers above 0")
        found = self.anchored(seen, answer & seen.whole, anchors)
        guess = self.unrolled(seen, target, found.at)[found.known]  # [N, D]
        wanted, depth = found.wanted[found.known], found.known.nonzero()[:, 2]
        logits = target.says(guess)
        each, right = F.cross_entropy(logits, wanted, reduction="none"), logits.argmax(-1) == wanted
        sums, hits = (each.new_zeros(self.tokens).index_add(0, depth, x) for x in (each, right.to(each.dtype)))
        counts = found.known.sum((0, 1))  # [k]
        weight = torch.exp(-torch.arange(self.tokens, device=each.device) / gamma)
        total = (weight * sums).sum() / (weight * counts).sum().clamp(min=1.0)  # mask 1 weighs 1
        pairs = {f"loss_{j}": (sums[j].detach(), counts[j]) for j in range(self.tokens)}
        return Loss(total, pairs | {f"right_{j}": (hits[j], counts[j]) for j in range(self.tokens)})

    def anchored(self, seen: Seen, said: Tensor, most: int) -> Anchors:
        """At most `most` anchors a row, of said [B, n], each with a token of its answer behind."""
        starts, n = said & shifted(said, 1), said.shape[1]
        count = min(max(int(starts.sum(1).max()), 1), most)
        order = torch.rand(said.shape, device=said.device) if self.training else spread(n, said.device).expand_as(said)
        at = order.masked_fill(~starts, -1.0).topk(count, 1).indices
        ahead = at[..., None] + 1 + torch.arange(self.tokens, device=at.device)  # [B, a, k]
        inside, ahead = ahead < n, ahead.clamp(max=n - 1).flatten(1)
        known = inside & said.gather(1, ahead).view_as(inside) & starts.gather(1, at)[..., None]
        return Anchors(at, known.cumprod(2).bool(), seen.ids.gather(1, ahead).view_as(inside))

    def unrolled(self, seen: Seen, target: Target, at: Tensor) -> Tensor:
        """[B, a, k, D] what drafting would guess behind each place at [B, a], which sees the columns before it."""
        position = place(seen.position)  # [1, B, n]
        c, stood = self.felt(seen), position.expand(-1, len(at), -1).gather(2, at[None])
        x, where = self.blocks(pick(target.embed(seen.ids), at), stood)
        before = torch.arange(seen.ids.shape[1], device=at.device) < at[..., None]
        before = (before & seen.whole[:, None]).repeat_interleave(1 + self.tokens, 1)  # [B, q, n]
        block = torch.arange(x.shape[1], device=at.device) // (1 + self.tokens)
        sees = torch.cat([before, (block[:, None] == block).expand(len(x), -1, -1)], 2)

        def join(layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            keys, values = self.layers[layer].context(c, position)  # type: ignore[operator]
            return torch.cat([keys, k], 2), torch.cat([values, v], 2)

        return self.guess(x, where, sees, join).unflatten(1, (at.shape[1], -1))[:, :, 1:]


def spread(n: int, device: Any) -> Tensor:
    """[n] multiples of the golden ratio without their whole part: of any stretch the largest few lie far apart."""
    return torch.arange(n, device=device) * (5**0.5 - 1) / 2 % 1


def place(position: Tensor) -> Tensor:
    """[1, B, m] of [B, m] or [axes, B, m]: of M-RoPE the time, on which text counts up as on the others."""
    return (position if position.ndim == 2 else position[-3])[None]
