"""EAGLE-3, Li et al. 2025, https://arxiv.org/abs/2503.01840: low, middle and high hidden states, fused.

g = fc([h_low; h_mid; h_high]); one layer whose attention reads [norm(e(x_{t+1})); norm(g)] and whose residual is g. Its
output goes through a norm and an output matrix of its own, over its own vocabulary, and is fed back as it is. No hidden
state has to be met; it is trained on what it will see, `steps` of its own guesses ("training-time test").
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mmaccel.drafting.base import Loss, Seen, Target
from mmaccel.drafting.layer import MLP, Attention, RMSNorm, Sizes
from mmaccel.drafting.recurrent import Pair, Recurrent, asked, shifted


class MidLayer(nn.Module):
    """Two norms in front of an attention that reads both halves."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.self_attn, self.mlp = Attention(sizes), MLP(sizes)
        self.hidden_norm = RMSNorm(sizes.width, sizes.eps)
        self.input_layernorm = RMSNorm(sizes.width, sizes.eps)
        self.post_attention_layernorm = RMSNorm(sizes.width, sizes.eps)


class Eagle3(Recurrent):
    """taps: the library's hidden_states indices that are fused, in order; see `default_taps`.
    vocabulary: of the head; its tokens are `d2t` (offsets) of the target's.
    norm_before_fc, fc_norm, norm_before_residual, norm_output: the variants of EAGLE-3.1; a head must be served with
    the ones it was trained with. The other fields are Recurrent's."""

    d2t: Tensor
    t2d: Tensor

    def __init__(
        self, sizes: Sizes, *, taps: Sequence[int], vocabulary: int, target_vocabulary: int, tapped: int | None = None,
        norm_before_fc: bool = False, fc_norm: bool = False, norm_before_residual: bool = False,
        norm_output: bool = False, levels: int = 5, beam: int = 8, nodes: int = 24, image_input: str = "placeholder",
        rope: str = "sequential",
    ) -> None:  # fmt: skip
        super().__init__(sizes, levels, beam, nodes, image_input, rope)
        if sizes.reads != 2 * sizes.width:
            raise ValueError(f"sizes.read: got {sizes.reads}, valid for eagle3 is 2 × width = {2 * sizes.width}")
        if not 0 < vocabulary <= target_vocabulary:
            raise ValueError(f"vocabulary: got {vocabulary}, valid are 1 … {target_vocabulary}, the target's")
        if not taps or list(taps) != sorted(set(taps)):
            raise ValueError(f"taps: got {list(taps)}, valid are increasing hidden_states indices")
        self.taps, self.tapped = tuple(taps), tapped or sizes.width  # tapped: width of the target
        self.norm_before_residual, self.norm_output = norm_before_residual, norm_output
        self.fc = nn.Linear(len(self.taps) * self.tapped, sizes.width, bias=False)
        self.input_norm = RMSNorm(len(self.taps) * self.tapped, sizes.eps) if norm_before_fc else None
        self.fc_norm = nn.ModuleList(RMSNorm(self.tapped, sizes.eps) for _ in self.taps) if fc_norm else None
        self.midlayer = MidLayer(sizes)
        self.norm = RMSNorm(sizes.width, sizes.eps)
        self.lm_head = nn.Linear(sizes.width, vocabulary, bias=False)
        self.register_buffer("d2t", torch.zeros(vocabulary, dtype=torch.long))
        self.register_buffer("t2d", torch.arange(target_vocabulary) < vocabulary)

    def speak(self, tokens: Tensor) -> None:
        """Its vocabulary: the target's ids [V], increasing."""
        if tokens.shape != self.d2t.shape or not bool((tokens.diff() > 0).all()):
            raise ValueError(
                f"tokens: got {tuple(tokens.shape)}, valid are {len(self.d2t)} increasing ids of the target"
            )
        self.d2t.copy_(tokens - torch.arange(len(tokens), device=tokens.device))
        self.t2d.zero_()
        self.t2d[tokens] = True

    @property
    def attention(self) -> Attention:
        return self.midlayer.self_attn

    def fits(self, width: int, vocabulary: int) -> None:
        if self.tapped != width or self.sizes.width != width:
            raise ValueError(
                f"eagle3: got a head of width {self.sizes.width} on {self.tapped}, the target's is {width}"
            )
        if len(self.t2d) != vocabulary:
            raise ValueError(f"eagle3: got a head for {len(self.t2d)} tokens, the target has {vocabulary}")

    def names(self) -> Tensor:
        return self.d2t + torch.arange(len(self.d2t), device=self.d2t.device)

    def given(self, seen: Seen) -> Tensor:
        """g, the fused taps."""
        fused = torch.cat([tap.to(self.fc.weight.dtype) for tap in seen.taps], -1)
        if self.input_norm is not None:  # first, as engines have it where a head has both norms
            fused = self.input_norm(fused)
        if self.fc_norm is not None:
            fused = torch.cat([norm(x) for norm, x in zip(self.fc_norm, fused.split(self.tapped, -1))], -1)
        return self.fc(fused)

    def pair(self, embeds: Tensor, hidden: Tensor) -> Pair:
        layer = self.midlayer
        normed = layer.hidden_norm(hidden)
        read = torch.cat([layer.input_layernorm(embeds.to(hidden.dtype)), normed], -1)
        return normed if self.norm_before_residual else hidden, read

    def rest(self, residual: Tensor, mixed: Tensor) -> Tensor:
        x = residual + mixed
        x = x + self.midlayer.mlp(self.midlayer.post_attention_layernorm(x))
        return self.norm(x) if self.norm_output else x

    def logits(self, target: Target, feature: Tensor) -> Tensor:
        return self.lm_head(feature if self.norm_output else self.norm(feature)).float()

    def loss(  # type: ignore[override]
        self, seen: Seen, answer: Tensor, target: Target, steps: int = 7, noise: float = 0.0, decay: float = 0.8
    ) -> Loss:
        """Soft cross entropy with the target's law on the head's own tokens, over `steps` of own guesses.

        answer: [B, n] columns whose tokens the target says.  Places whose likeliest token the head cannot say are left
        out; the mean is over the places that count (the public code divides by all places).
        """
        assert seen.hidden is not None
        total: Tensor = seen.hidden.new_zeros((), dtype=torch.float32)
        sums: dict[str, tuple[Tensor, Tensor]] = {}
        own = self.names()
        first = asked(answer, steps)
        for step, feature in enumerate(self.unrolled(seen, target, steps, noise, first)):
            known = (shifted(answer, step + 2) & seen.whole)[:, first:]  # the token that is guessed is the answer's
            wanted = target.says(shifted(seen.hidden, step + 1)[:, first:][known])  # [k, V of the target]
            best = wanted.argmax(-1)
            said = self.t2d[best]  # [k] the head has a word for it
            logits = self.logits(target, feature[known])  # [k, V]
            law = wanted[:, own].softmax(-1)
            soft = -(law * logits.log_softmax(-1)).sum(-1)[said].sum()
            count, every = said.sum(), torch.tensor(len(said), device=said.device)
            total = total + decay**step * soft / count.clamp(min=1)
            sums[f"loss_{step}"] = (soft.detach(), count)
            sums[f"right_{step}"] = ((own[logits.argmax(-1)] == best).sum(), every)  # a word it lacks is a miss
        return Loss(total, sums)


def default_taps(depth: int) -> tuple[int, ...]:
    """As the public code taps a decoder of `depth` layers: the inputs of layers 2, depth // 2 and depth − 3."""
    return tuple(sorted({2, depth // 2, depth - 3} & set(range(depth))))


def frequent(counts: Tensor, size: int, always: Sequence[int] = ()) -> Tensor:
    """[size] the most frequent ids of counts [V], increasing, `always` among them; unused ids fill up from below."""
    counts = counts.clone().float()
    counts[list(always)] = counts.max() + 1
    order = counts.argsort(descending=True, stable=True)  # ties and zeros: the smaller id first
    return order[:size].sort().values
