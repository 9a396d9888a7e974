"""EAGLE, Li et al. 2024, https://arxiv.org/abs/2401.15077, with the tree of EAGLE-2, https://arxiv.org/abs/2406.16858.

One decoder layer guesses the target's next hidden state from the one before and the token between them:
f_{t+1} = Layer(fc([e(x_{t+1}); h_t])), and the target's own output matrix reads the token after that off f_{t+1}.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mmaccel.drafting.base import Loss, Seen, Target
from mmaccel.drafting.layer import MLP, Attention, RMSNorm, Sizes
from mmaccel.drafting.recurrent import Pair, Recurrent, asked, shifted


class Layer(nn.Module):
    """Attention and feed-forward; the first norm of an ordinary layer is left out."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.self_attn, self.mlp = Attention(sizes), MLP(sizes)
        self.post_attention_layernorm = RMSNorm(sizes.width, sizes.eps)


class Eagle(Recurrent):
    """fc_bias: public heads of Vicuna have one, engines load heads without. The other fields are Recurrent's."""

    def __init__(
        self, sizes: Sizes, *, fc_bias: bool = False, levels: int = 5, beam: int = 8, nodes: int = 24,
        image_input: str = "merged", rope: str = "sequential",
    ) -> None:  # fmt: skip
        super().__init__(sizes, levels, beam, nodes, image_input, rope)
        self.fc = nn.Linear(2 * sizes.width, sizes.width, bias=fc_bias)
        self.layers = nn.ModuleList([Layer(sizes)])

    @property
    def layer(self) -> Layer:
        return self.layers[0]  # type: ignore[return-value]

    @property
    def attention(self) -> Attention:
        return self.layer.self_attn

    def fits(self, width: int, vocabulary: int) -> None:
        if self.sizes.width != width:
            raise ValueError(f"eagle: got a head of width {self.sizes.width}, the target's is {width}")

    def given(self, seen: Seen) -> Tensor:
        assert seen.hidden is not None
        return seen.hidden

    def pair(self, embeds: Tensor, hidden: Tensor) -> Pair:
        x = self.fc(torch.cat([embeds.to(hidden.dtype), hidden], -1).to(self.fc.weight.dtype))
        return x, x

    def rest(self, residual: Tensor, mixed: Tensor) -> Tensor:
        x = residual + mixed
        return x + self.layer.mlp(self.layer.post_attention_layernorm(x))

    def logits(self, target: Target, feature: Tensor) -> Tensor:
        return target.says(feature)

    def loss(  # type: ignore[override]
        self, seen: Seen, answer: Tensor, target: Target, steps: int = 1, noise: float = 0.0, decay: float = 0.8,
        ce: float = 0.1,
    ) -> Loss:  # fmt: skip
        """Distance to the target's hidden states plus `ce` × soft cross entropy with its law, over `steps` of guesses.

        answer: [B, n] columns whose tokens the target says.  One step with ce = 0.1 is the paper's; the later ones feed
        the guesses back, as drafting does (https://arxiv.org/abs/2408.15766).
        """
        assert seen.hidden is not None
        total: Tensor = seen.hidden.new_zeros((), dtype=torch.float32)
        sums: dict[str, tuple[Tensor, Tensor]] = {}
        first = asked(answer, steps)
        for step, feature in enumerate(self.unrolled(seen, target, steps, noise, first)):
            known = (shifted(answer, step + 2) & seen.whole)[:, first:]  # the token that is guessed is the answer's
            guess, true = feature[known], shifted(seen.hidden, step + 1)[:, first:][known]
            count = torch.tensor(len(guess), device=guess.device)
            logits, wanted = target.says(guess), target.says(true)
            soft = -(wanted.softmax(-1) * logits.log_softmax(-1)).sum()
            near = F.smooth_l1_loss(guess.float(), true.float(), reduction="none").mean(-1).sum()
            right = (logits.argmax(-1) == wanted.argmax(-1)).sum()
            total = total + decay**step * (near + ce * soft) / count.clamp(min=1)
            for name, value in (("loss", soft), ("distance", near), ("right", right)):
                sums[f"{name}_{step}"] = (value.detach(), count)
        return Loss(total, sums)
