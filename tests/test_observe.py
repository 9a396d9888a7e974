"""Observed rows equal the eager backend's own attention weights, and never cost n × n."""

import resource
from typing import Any

import pytest
import torch
from oracle import PLANS, DropCodes, close
from tiny import FAMILIES, ONE, RAGGED, inputs, tiny
from torch import Tensor

from mmaccel.attach import attach
from mmaccel.columns import Needs, Selection, Station
from mmaccel.observe import Record, attention_rows
from mmaccel.pruning.base import FunctionPruner, Pruner


def eager_weights(family: str, given: dict) -> tuple[Tensor, ...]:
    with torch.no_grad():
        return tiny(family, "eager")(**given, output_attentions=True).attentions


class Look(Pruner):
    """Reads, keeps everything."""

    def __init__(self, layer: int, needs: Needs, read: Any) -> None:
        self.layer, self._needs, self.read, self.found = layer, needs, read, []

    def stations(self, depth: int) -> tuple[int, ...]:
        return (self.layer,)

    def needs(self, depth: int) -> Needs:
        return self._needs

    def select(self, station: Station) -> Selection:
        self.found.append(self.read(station))
        return Selection(station.alive)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("layer", [1, 2], ids=["the layer before", "the station's own layer, run ahead"])
def test_rows_equal_eager_under_sdpa(family: str, layer: int) -> None:
    """GQA everywhere, q/k-norm in Qwen3-VL, M-RoPE in both Qwens, left padding and several pictures in the batch."""
    for rows in ([ONE], RAGGED):
        given = inputs(family, rows)
        wanted = eager_weights(family, given)[layer]  # [B, H, q, q]
        look = Look(
            2,
            Needs(text_layers=(layer,)),
            lambda s: (s.attention(layer), s.attention(layer, s.instruction), s.instruction),
        )
        model = tiny(family)
        with torch.no_grad():
            bare = model(**given).logits
            with attach(model, look):
                assert torch.equal(model(**given).logits, bare)  # looking changes nothing
        anchor_row, instruction_rows, instruction = look.found[-1]
        close(anchor_row[:, :, 0], wanted[:, :, -1], 1e-5)
        for row in range(len(rows)):
            at = instruction[row].nonzero()[:, 0]
            close(instruction_rows[row][:, -len(at) :], wanted[row][:, at], 1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_under_active_pruning(family: str) -> None:
    """A station at 4 reads layer 3, whose keys are what a station at 0 left; and layer 1 seen from there."""
    given = inputs(family, RAGGED)
    first = PLANS["at 0"]
    caught: dict[str, list] = {}

    class Both(DropCodes):
        def stations(self, depth: int) -> tuple[int, ...]:
            return (0, 4)

        def needs(self, depth: int) -> Needs:
            return Needs(text_layers=(1, 3))

        def select(self, station: Station) -> Selection:
            if station.layer == 0:
                return super().select(station)
            caught[station_backend] = [*(station.attention(layer) for layer in (1, 3)), station.column]
            return Selection(station.alive)

    weights = {}
    for station_backend in ("sdpa", "eager"):
        model = tiny(family, station_backend)
        with attach(model, Both(first.plan)), torch.no_grad():
            out = model(**given, **({"output_attentions": True} if station_backend == "eager" else {}))
        weights[station_backend] = out.attentions
    for layer, got, other in zip((1, 3), caught["sdpa"], caught["eager"], strict=False):
        close(got, other, 1e-5)
        close(got[:, :, 0], weights["eager"][layer][:, :, -1], 1e-5)


@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl", "qwen3_vl"])
def test_unrotated_scores(family: str) -> None:
    """rope=False equals the scores of a model whose rotary embedding does nothing to that layer's queries and keys."""
    given = inputs(family, RAGGED)
    look = Look(0, Needs(text_layers=(0,)), lambda s: s.attention(0, rope=False))
    with attach(model := tiny(family), look), torch.no_grad():
        model(**given)
    model = tiny(family, "eager")
    rotary = model.get_decoder().rotary_emb
    handle = rotary.register_forward_hook(lambda m, a, out: (torch.ones_like(out[0]), torch.zeros_like(out[1])))
    with torch.no_grad():
        wanted = model(**given, output_attentions=True).attentions[0]
    handle.remove()
    close(look.found[0][:, :, 0], wanted[:, :, -1], 1e-5)


def test_cls_row_of_a_clip_tower() -> None:
    given = inputs("llava", RAGGED)
    look = Look(0, Needs(vision_layers=(-2,), vision=frozenset({"cls"})), lambda s: s.vision().attention(-2))
    with attach(model := tiny("llava"), look), torch.no_grad():
        model(**given)
        model.generate(**given, max_new_tokens=2)  # here the pictures are encoded before the forward
    eager = tiny("llava", "eager")
    with torch.no_grad():
        wanted = eager.model.vision_tower(given["pixel_values"], output_attentions=True).attentions[-2]
    for found in look.found:
        close(torch.stack(found), wanted[:, :, 0], 1e-5)


def test_mean_row_of_a_tower_without_cls() -> None:
    given = inputs("smolvlm", [ONE])
    look = Look(0, Needs(vision_layers=(1,), vision=frozenset({"mean"})), lambda s: s.vision().attention(1))
    with attach(model := tiny("smolvlm"), look), torch.no_grad():
        model(**given)
    eager = tiny("smolvlm", "eager")
    pixels = given["pixel_values"][0]
    grid = torch.ones(len(pixels), 8, 8, dtype=torch.bool)
    with torch.no_grad():
        out = eager.model.vision_model(pixel_values=pixels, patch_attention_mask=grid, output_attentions=True)
    close(torch.stack(look.found[0]), out.attentions[1].mean(2), 1e-5)


def test_what_is_not_there_is_refused() -> None:
    cls = Needs(vision_layers=(-2,), vision=frozenset({"cls"}))
    with pytest.raises(ValueError, match="got cls"), attach(tiny("smolvlm"), Look(0, cls, None)):
        pass
    with (
        pytest.raises(ValueError, match="runs after the last station"),
        attach(tiny("llava"), Look(1, Needs((3,)), None)),
    ):
        pass
    model = tiny("llava")
    with (
        pytest.raises(ValueError, match="those of needs"),
        attach(model, Look(2, Needs(), lambda s: s.attention(1))),
    ):
        model(**inputs("llava"))


def test_the_wrong_mask_would_show() -> None:
    """The wrong variant: a row computed without the padding mask is far from eager."""
    given = inputs("llava", RAGGED)
    wanted = eager_weights("llava", given)[1][2, :, -1]  # the padded, picture-less row
    keep: list[Record] = []
    from mmaccel.observe import recording

    model = tiny("llava")
    with recording(model.get_decoder().layers[1].self_attn, keep.append), torch.no_grad():
        model(**given)
    record = keep[0]
    last = torch.full((3, 1), given["input_ids"].shape[1] - 1)
    good = attention_rows(record, last, None)[2, :, 0]
    bad = attention_rows(Record(record.query, record.key, None, record.scale), last, None)[2, :, 0]
    close(good, wanted, 1e-5)
    with pytest.raises(AssertionError):
        close(bad, wanted, 1e-5)


def test_memory_stays_linear_at_16k_visual_tokens() -> None:
    """One row over 16k columns and 8 heads: the row is 0.5 MiB, an n × n matrix would be 8 GiB in fp32."""
    n, heads, d = 16_384, 8, 64
    key, query = torch.randn(1, 2, n, d), torch.randn(1, heads, n, d)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    rows = attention_rows(Record(query, key, None, d**-0.5), torch.tensor([[n - 1]]), None)
    many = attention_rows(Record(query, key, None, d**-0.5), torch.arange(n - 32, n)[None], None)
    grown_mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert rows.shape == (1, heads, 1, n)
    close(many[:, :, -1:], rows, 1e-6)
    assert grown_mib < 400, f"{grown_mib:.0f} MiB"


def test_blocks_do_not_change_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    import mmaccel.observe as observe

    torch.manual_seed(0)
    record = Record(torch.randn(2, 4, 9, 8), torch.randn(2, 2, 9, 8), None, 0.3)
    rows = torch.arange(9).expand(2, -1)
    causal = torch.ones(2, 9, 9, dtype=torch.bool).tril()
    whole, mean = attention_rows(record, rows, causal), observe.column_means(record)
    monkeypatch.setattr(observe, "BLOCK_ELEMENTS", 2 * 4 * 9 * 2)  # two rows at a time
    close(attention_rows(record, rows, causal), whole, 1e-6)
    close(observe.column_means(record), mean, 1e-6)
    close(mean, attention_rows(record, rows, None).mean(2), 1e-6)


def test_a_function_is_a_pruner() -> None:
    given, model = inputs("llava"), tiny("llava")
    with attach(
        model, lambda station: station.alive & (~station.visual | (station.grid[..., 3] < 2)), layer=2
    ) as attachment:
        model(**given)
    assert attachment.events[0].stops[0].visual.tolist() == [8]
    with pytest.raises(ValueError, match="layer: got None"), attach(model, lambda station: station.alive):
        pass
    with pytest.raises(ValueError, match="valid are 0 … 5"), attach(model, FunctionPruner(lambda s: s.alive, 6)):
        pass
    with attach(model, FunctionPruner(lambda s: s.alive, 1)), pytest.raises(RuntimeError, match="attached already"):  # noqa: SIM117
        with attach(model, FunctionPruner(lambda s: s.alive, 1)):
            pass
