"""attention=flash on a CPU: a stand-in with flash's contract instead of its kernel.

The contract: a 2-D padding mask or none, never a 4-D one; causal from the bottom right; at batch 1 with several
queries, position ids that do not increase by one are read as the starts of packed sequences.
"""

from typing import Any

import pytest
import torch
from oracle import PLANS, close, oracle_logits
from test_mechanism import ONE, TWO, Talk, generated, some_tokens
from tiny import FAMILIES, inputs, tiny
from torch import Tensor
from transformers.masking_utils import AttentionMaskInterface, flash_attention_mask
from transformers.modeling_utils import AttentionInterface

import mmaccel.walk as walk
from mmaccel.attach import attach
from mmaccel.masks import View, layer_mask
from mmaccel.pruning.base import FunctionPruner

NAME = "flash_standin"


def flash_standin(module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any):
    if attention_mask is not None and attention_mask.ndim != 2:
        raise TypeError("flash takes a 2-D padding mask")
    B, H, q, _ = query.shape
    m = key.shape[2]
    seen = torch.ones(q, m, dtype=torch.bool).tril(m - q).expand(B, 1, q, m)
    if attention_mask is not None:
        assert attention_mask.shape == (B, m)
        seen = seen & attention_mask.bool()[:, None, None]
    positions = kwargs.get("position_ids")
    if positions is not None and attention_mask is None and B == 1 and q > 1 and q == m:
        sequence = (positions[0].diff(prepend=positions[0, :1] - 1) != 1).cumsum(0)
        seen = seen & (sequence[:, None] == sequence[None])
    groups = H // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    logits = (query @ key.mT * kwargs["scaling"]).masked_fill(~seen, torch.finfo(torch.float32).min)
    return (logits.softmax(-1) @ value).transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, flash_standin)
AttentionMaskInterface.register(NAME, flash_attention_mask)


def flash(family: str) -> Any:
    model = tiny(family)
    model.get_decoder().config._attn_implementation = NAME
    return model


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("rows", [[ONE], TWO], ids=["batch 1", "left-padded batch"])
def test_flash_equals_the_masking_oracle(family: str, plan: str, rows: list[dict]) -> None:
    given = inputs(family, rows)
    with attach(flash(family), PLANS[plan]) as attachment:
        out = generated(attachment.model, given, 6)
    tokens = out.sequences[:, given["input_ids"].shape[1] :]
    wanted = oracle_logits(tiny(family), given, tokens[:, :-1], PLANS[plan])
    close(torch.stack(out.logits, 1), wanted)


def test_a_chain_verifies_under_flash_and_a_tree_is_refused() -> None:
    model, given, tokens = flash("llava"), inputs("llava", TWO), some_tokens(2, 5)
    with attach(model, PLANS["at 2"]):
        one, block = Talk(model, given), Talk(model, given)
        close(block.forward(tokens, torch.arange(5).expand(2, -1)), one.say(tokens))
    view = View(torch.zeros(1, 2).long(), torch.arange(5)[None], 3, False)
    with pytest.raises(ValueError, match="no trees under flash"):
        layer_mask(torch.ones(1, 1, 2, 5).bool(), view, additive=None, flash=True)


def test_scores_are_observed_through_flash() -> None:
    given, caught = inputs("llava", TWO), {}

    def look(station: Any) -> Tensor:
        caught[station.layer, len(caught)] = station.attention(1)
        return station.alive

    for model in (flash("llava"), tiny("llava", "eager")):
        with attach(model, FunctionPruner(look, 2)), torch.no_grad():
            model(**given)
    a, b = caught.values()
    close(a, b, 1e-5)


def test_gapped_positions_would_be_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wrong variant: position ids handed on after a station."""
    plain = walk.EventWalk._narrow

    def leaky(self: Any, layer: int, hidden: Tensor, kwargs: dict) -> dict:
        index, _ = self.standing()
        made = plain(self, layer, hidden, kwargs)
        return made if made is kwargs else {**made, "position_ids": kwargs["position_ids"].gather(1, index)}

    monkeypatch.setattr(walk.EventWalk, "_narrow", leaky)
    given = inputs("llava", [ONE])
    del given["attention_mask"]
    with attach(flash("llava"), PLANS["at 2"]) as attachment:
        got = attachment.model(**given).logits[:, -1]
    wanted = oracle_logits(tiny("llava"), inputs("llava", [ONE]), torch.zeros(1, 0).long(), PLANS["at 2"])
    with pytest.raises(AssertionError):
        close(got, wanted[:, 0])
