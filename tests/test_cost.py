"""The ledger against hand counts, known figures of LLaVA-1.5-7B and PyTorch's own FLOP counter."""

from types import SimpleNamespace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from mmaccel.measure.cost import Geometry, decode_macs, kv_bytes, ledger, mac_fraction, macs

LLAVA = Geometry(layers=32, width=4096, heads=32, kv_heads=32, head_dim=128, ffn=11008, vocab=32064)
TINY = Geometry(layers=2, width=8, heads=4, kv_heads=2, head_dim=3, ffn=10, vocab=11)


def test_hand_count():
    # n = 5: q 8·12, k and v 8·6 each, o 12·8 → 288 a token; scores and mix 5·5·12 each; feed-forward 3·8·10 a token
    assert macs(TINY, [5, 0]) == 5 * (96 + 48 + 48 + 96) + 2 * 25 * 12 + 5 * 240
    assert macs(TINY, [5, 5]) == 2 * macs(TINY, [5, 0])
    assert kv_bytes(TINY, [5, 3], 2) == 2 * (2 * 3) * 2 * 8
    # two forwards after the prompt's: they see 5 + 1 and 5 + 2 columns in layer 0, 3 + 1 and 3 + 2 in layer 1
    assert decode_macs(TINY, [5, 3], 3) == 4 * (288 + 240) + 2 * (6 + 7 + 4 + 5) * 12
    assert decode_macs(TINY, [5, 3], 1) == decode_macs(TINY, [5, 3], 0) == 0


def test_known_figures_of_llava():
    assert macs(LLAVA, [576] * 32) == pytest.approx(3.82e12, rel=2e-3)
    assert macs(LLAVA, [640] * 32) == pytest.approx(4.25e12, rel=2e-3)
    n, d, m = 576, 4096, 11008
    assert macs(LLAVA, [n] * 32) == 32 * (4 * n * d * d + 2 * n * n * d + 3 * n * d * m)


@pytest.mark.parametrize(("kept", "mean"), [(288, 306), (144, 171), (72, 103.5)])
def test_average_tokens_of_fastv_at_layer_2(kept, mean):
    account = ledger(LLAVA, text=0, visual=576, stops=[(2, kept)])
    assert account.mean_visual == mean
    assert account.kv_fraction == mean / 576
    assert account.kept == (kept,)


def test_pyramid_and_text():
    account = ledger(LLAVA, text=64, visual=576, stops=[(8, 288), (16, 144), (24, 72)], generated=10)
    assert account.mean_visual == (576 + 288 + 144 + 72) / 4
    assert account.tokens_per_layer[7:9] == (640, 352)
    assert account.kv_fraction == (64 + account.mean_visual) / 640
    assert account.mac_fraction == mac_fraction(LLAVA, account.tokens_per_layer, 640)
    assert account.prefill_macs < account.mac_fraction * account.prefill_macs_full * (1 + 1e-12)
    assert account.decode_macs < account.decode_macs_full
    assert account.kv_bytes(2) == 2 * 4096 * 2 * (sum(account.tokens_per_layer) + 32 * 9)


def test_nothing_pruned_is_one():
    account = ledger(LLAVA, text=10, visual=5)
    assert (account.kv_fraction, account.mac_fraction, account.mean_visual) == (1.0, 1.0, 5.0)
    all_gone = ledger(LLAVA, text=10, visual=5, stops=[(0, 0)])
    assert (all_gone.mean_visual, all_gone.kv_fraction) == (0.0, 10 / 15)


@pytest.mark.parametrize(
    ("stops", "message"),
    [
        ([(32, 5)], r"layer 32 .* 0 … 31"),
        ([(2, 577)], r"577 kept at layer 2, expected 0 … 576"),
        ([(4, 9), (4, 8)], "increasing"),
        ([(2, 9), (3, 10)], "10 kept at layer 3, expected 0 … 9"),
        ([(2, -1)], "-1 kept"),
    ],
)
def test_impossible_stops_are_refused(stops, message):
    with pytest.raises(ValueError, match=message):
        ledger(LLAVA, text=1, visual=576, stops=stops)


def test_geometry_of_configs():
    text = {"num_hidden_layers": 2, "hidden_size": 8, "num_attention_heads": 4, "intermediate_size": 10,
            "num_key_value_heads": 2, "head_dim": 3, "vocab_size": 11}  # fmt: skip
    assert Geometry.of(text) == Geometry.of({"text_config": text}) == TINY
    assert Geometry.of(SimpleNamespace(text_config=SimpleNamespace(**text))) == TINY
    plain = Geometry.of({k: v for k, v in text.items() if k not in ("num_key_value_heads", "head_dim")})
    assert (plain.kv_heads, plain.head_dim) == (4, 2)
    with pytest.raises(ValueError, match=r"lacks \['intermediate_size'\]"):
        Geometry.of({k: v for k, v in text.items() if k != "intermediate_size"})
    with pytest.raises(ValueError, match="counts for 3 layers, the model has 2"):
        macs(TINY, [1, 1, 1])


def decoder_flops(counter: FlopCounterMode) -> int:
    """All but the rotary table, which older libraries make with a matrix product."""
    rotary = counter.get_flop_counts().get("LlamaForCausalLM.model.rotary_emb", {})
    return counter.get_total_flops() - sum(rotary.values())


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_equals_the_flop_counter_on_a_tiny_llama(kv_heads):
    from transformers import LlamaConfig, LlamaForCausalLM

    from mmaccel.cache import cache_argument, cache_in

    config = LlamaConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=kv_heads,
        head_dim=16, vocab_size=50, attn_implementation="eager",
    )  # fmt: skip
    model, geometry = LlamaForCausalLM(config).eval(), Geometry.of(config)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        cache = cache_in(model(torch.arange(17)[None], use_cache=True, logits_to_keep=1))
    assert decoder_flops(counter) == 2 * (macs(geometry, [17] * 3) + 32 * 50)  # 32 · 50: the language-model head
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.tensor([[1]]), **{cache_argument(model): cache})
    assert decoder_flops(counter) == 2 * (decode_macs(geometry, [17] * 3, 2) + 32 * 50)
