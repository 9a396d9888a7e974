"""Each family's Station is what the contract says, and every method of conf/pruner runs on it end to end."""

from typing import Any

import pytest
import torch
from oracle import close
from test_mechanism import generated, model_of
from test_observe import Look
from tiny import FAMILIES, IMAGE, RAGGED, inputs, row_inputs
from torch import Tensor

from mmaccel.attach import attach
from mmaccel.columns import Needs
from mmaccel.registry import build, names

every_family = pytest.mark.parametrize("family", FAMILIES)
READ = ("column", "ids", "alive", "visual", "instruction", "grid", "mass", "anchor", "key", "embeds", "hidden")


def station_of(family: str, given: dict, layer: int = 0) -> dict[str, Any]:
    look = Look(layer, Needs(), lambda station: {name: getattr(station, name) for name in READ})
    with attach(model := model_of(family), look), torch.no_grad():
        model(**given)
    return look.found[0]


def shapes_of(family: str, row: dict) -> list[list[tuple[int, int]]]:
    """Per picture its tiles as (rows, columns) of tokens."""
    if family == "llava":
        return [[(4, 4)] for _ in row["shapes"]]
    if family == "smolvlm":
        return [[(4, 4)] * (h + 1) for h, _ in row["shapes"]]
    return [[shape] for shape in row["shapes"]]


@every_family
def test_the_station_is_what_the_contract_says(family: str) -> None:
    given = inputs(family, RAGGED)
    seen = station_of(family, given)
    alive = given["attention_mask"].bool()
    assert torch.equal(seen["alive"], alive)
    assert torch.equal(seen["visual"], (given["input_ids"] == IMAGE) & alive)
    assert torch.equal(seen["ids"], given["input_ids"])
    assert (seen["anchor"] == given["input_ids"].shape[1] - 1).all()
    assert torch.equal(seen["mass"], alive.float())
    assert torch.equal(seen["embeds"], seen["hidden"])
    for row, spec in enumerate(RAGGED):
        wanted = [
            [picture, tile, 0, y, x]
            for picture, tiles in enumerate(shapes_of(family, spec))
            for tile, (h, w) in enumerate(tiles)
            for y in range(h)
            for x in range(w)
        ]
        assert seen["grid"][row][seen["visual"][row]].tolist() == wanted
        assert (seen["grid"][row][~seen["visual"][row]] == -1).all()
        column = seen["column"][row][alive[row]]
        assert (column.diff() == 1).all()
    text_after = [spec["after"] for spec in RAGGED]
    tail = {"llava": 1, "smolvlm": 1, "qwen2_5_vl": 1, "qwen3_vl": 1}[family]  # the token that closes a picture
    got = seen["instruction"].sum(1).tolist()
    assert got[:2] == [count + tail for count in text_after[:2]]
    assert got[2] == RAGGED[2]["before"] + RAGGED[2]["after"]  # no picture: all of it


@every_family
def test_a_rows_key_does_not_depend_on_its_batch(family: str) -> None:
    batch = station_of(family, inputs(family, RAGGED))["key"]
    for row in range(2):
        assert station_of(family, row_inputs(family, RAGGED, row))["key"] == (batch[row],)
    other = inputs(family, RAGGED)
    other["pixel_values"] = other["pixel_values"] * 2.0
    changed = station_of(family, other)["key"]
    assert changed[0] != batch[0]  # another picture, another key
    assert changed[2] == batch[2]  # the row without a picture


PRUNERS: dict[str, dict] = {"pyramiddrop": {"layers": [1, 2, 4]}}


@every_family
@pytest.mark.parametrize("name", names("pruner"))
def test_every_method_runs_and_each_row_equals_its_batch_1_run(family: str, name: str) -> None:
    model = model_of(family)
    pruner = build("pruner", name, PRUNERS.get(name))
    with attach(model, pruner) as attachment:
        batch = generated(model, inputs(family, RAGGED), 4)
        event = attachment.events[0]
        assert [stop.layer for stop in event.stops] == list(pruner.stations(6))
        for row in range(len(RAGGED)):
            single = generated(model, row_inputs(family, RAGGED, row), 4)
            if RAGGED[row]["shapes"]:
                kept = [int(stop.visual) for stop in attachment.events[-1].stops]
                assert kept == [int(stop.visual[row]) for stop in event.stops]
            close(torch.stack(batch.logits, 1)[row], torch.stack(single.logits, 1)[0])
    if name != "keep_all":
        assert int(event.stops[-1].visual[0]) < int(event.visual[0])


@every_family
@pytest.mark.parametrize("name", ["fastv", "pyramiddrop", "random", "uniform"])
def test_what_a_method_dropped_is_gone_exactly(family: str, name: str) -> None:
    """The event's own columns, replayed as key masks on the whole prompt, give the same logits."""
    model, given = model_of(family), inputs(family, RAGGED)
    with attach(model, build("pruner", name, PRUNERS.get(name)), positions="original") as attachment, torch.no_grad():
        got = model(**given).logits[:, -1]
    alive = given["attention_mask"].bool()
    n = alive.shape[1]
    causal = torch.ones(n, n, dtype=torch.bool).tril() & alive[:, None] | torch.eye(n, dtype=torch.bool)
    stops = attachment.events[0].stops
    handles = []
    for layer, block in enumerate(model.get_decoder().layers):
        seen = causal
        reached = [stop for stop in stops if stop.layer <= layer]
        if reached:
            stands = torch.zeros(len(alive), n + 1, dtype=torch.bool)
            stands.scatter_(1, reached[-1].column.masked_fill(reached[-1].column < 0, n), True)
            seen = causal & (stands[:, None, :n] | torch.eye(n, dtype=torch.bool))

        def hook(module: Any, args: tuple, kwargs: dict, seen: Tensor = seen) -> tuple:
            return args, {**kwargs, "attention_mask": seen[:, None]}

        handles.append(block.register_forward_pre_hook(hook, with_kwargs=True))
    with torch.no_grad():
        wanted = model(**given, use_cache=False).logits[:, -1]
    for handle in handles:
        handle.remove()
    close(got, wanted)


@pytest.mark.parametrize("family", ["llava", "smolvlm", "qwen2_5_vl"])
def test_pooling_at_the_embeddings_is_the_decoder_on_means(family: str) -> None:
    """Pooled by hand: one mean per 2 x 2 cell on the lowest column of its members, at its original position."""
    model, given = model_of(family), row_inputs(family, RAGGED, 0)
    caught: list[dict] = []
    text = model.get_decoder()
    handle = text.register_forward_pre_hook(lambda m, a, kwargs: caught.append(kwargs), with_kwargs=True)
    with torch.no_grad():
        model(**given)
    handle.remove()
    embeds = caught[0]["inputs_embeds"][0]
    positions = caught[0]["position_ids"]
    if positions is None:
        positions = torch.arange(embeds.shape[0])[None]
    look = station_of(family, given)
    cells: dict[tuple, list[int]] = {}
    for column in range(embeds.shape[0]):
        image, tile, t, y, x = look["grid"][0, column].tolist()
        cells.setdefault((image, tile, t, y // 2, x // 2) if image >= 0 else ("text", column), []).append(column)
    first = sorted(members[0] for members in cells.values())
    by_first = {members[0]: members for members in cells.values()}
    short = torch.stack([embeds[by_first[column]].mean(0) for column in first])[None]
    with torch.no_grad():
        hidden = text(
            inputs_embeds=short,
            position_ids=positions[..., first],
            attention_mask=torch.ones(1, len(first)),
            use_cache=True,
        ).last_hidden_state
        wanted = model.lm_head(hidden)[:, -1]

    def pool(station: Any) -> Any:
        from mmaccel.columns import Selection

        keep, into = torch.zeros_like(station.alive), torch.full_like(station.column, -1)
        for members in cells.values():
            keep[0, members[0]] = True
            into[0, members] = members[0]
        return Selection(keep, into)

    with attach(model, pool, layer=0) as attachment, torch.no_grad():
        got = model(**given).logits[:, -1]
    close(got, wanted)
    assert int(attachment.events[0].stops[0].visual) == sum(1 for column in first if look["visual"][0, column])
