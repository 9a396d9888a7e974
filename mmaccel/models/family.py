"""What the mechanism must know about a model family. The defaults are LLaVA-1.5's; a family states its deviations only.

Knows where a family keeps its tower, its visual ids and its grids. Does not know stations, pruners or caches.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mmaccel.columns import visual_runs


@dataclass(frozen=True)
class GridFacts:
    """What a grid is computed from. ids, visual, alive: [B, q]; positions: [B, q] or [axes, B, q] or None."""

    config: Any
    ids: Tensor
    visual: Tensor
    positions: Tensor | None


def _square_tokens(vision: Any, scale: int = 1) -> tuple[int, int]:
    """(tokens in a tile, tokens in a row of it)."""
    side = vision.image_size // vision.patch_size // scale
    return side * side, side


def _stack(visual: Tensor, image: Tensor, tile: Tensor, y: Tensor, x: Tensor) -> Tensor:
    grid = torch.stack([image, tile, torch.zeros_like(image), y, x], -1)  # [B, q, 5]
    return grid.masked_fill(~visual[..., None], -1)


def square_grid(facts: GridFacts) -> Tensor:
    """[B, q, 5] one square tile an image, pictures in prompt order (LLaVA-1.5)."""
    n, side = _square_tokens(facts.config.vision_config)
    order = facts.visual.cumsum(1) - 1  # [B, q] n-th visual token of the row
    image, inside = order // n, order % n
    return _stack(facts.visual, image, torch.zeros_like(image), inside // side, inside % side)


def tiled_grid(facts: GridFacts) -> Tensor:
    """[B, q, 5] square tiles; a picture ends with its global tile, which the row's last run always is (SmolVLM)."""
    n, side = _square_tokens(facts.config.vision_config, facts.config.scale_factor)
    order = facts.visual.cumsum(1) - 1
    tile, inside = order // n, order % n
    before = facts.ids.roll(1, 1)  # [B, q] the id in front of each column
    first = facts.visual & (inside == 0)
    last_first = torch.where(first, torch.arange(first.shape[1], device=first.device), 0).amax(1, keepdim=True)
    ending = first & (before == before.gather(1, last_first))  # the first token of each global tile
    ended = ending.cumsum(1) - ending.long()  # [B, q] pictures that ended before this tile began
    image = torch.where(first, ended, 0).cummax(1).values
    begin = torch.where(first, tile, 0)
    starts = first & ((image != image.roll(1, 1)) | (tile == 0))
    tile = tile - torch.where(starts, begin, 0).cummax(1).values
    return _stack(facts.visual, image, tile, inside // side, inside % side)


def mrope_grid(facts: GridFacts) -> Tensor:
    """[B, q, 5] read from the position axes (time, height, width) relative to each run's first token (Qwen-VL)."""
    if facts.positions is None or facts.positions.ndim != 3:
        raise ValueError("M-RoPE grid: got no [3|4, B, q] position_ids at the text model; pass mm_token_type_ids")
    run, offset = visual_runs(facts.visual)
    index = torch.arange(run.shape[1], device=run.device).expand_as(run)
    first = (index - offset).clamp(min=0)  # [B, q] where the column's run begins
    axes = [axis.expand_as(run) for axis in facts.positions[-3:]]
    time, height, width = (axis - axis.gather(1, first) for axis in axes)
    grid = torch.stack([run, torch.zeros_like(run), time, height, width], -1)
    return grid.masked_fill(~facts.visual[..., None], -1)


def other_llava(config: Any) -> str | None:
    """LLaVA's class also carries other towers and a strategy that keeps CLS, whose grids are not ours."""
    tower, strategy = config.vision_config.model_type, config.vision_feature_select_strategy
    if tower != "clip_vision_model":
        return f"vision_config.model_type: got {tower!r}, valid for a llava is 'clip_vision_model'"
    if strategy != "default":
        return f"vision_feature_select_strategy: got {strategy!r}, valid is 'default'"
    return None


def clip_attention(base: Any) -> list[nn.Module]:
    tower = base.vision_tower
    encoder = getattr(tower, "encoder", None) or tower.vision_model.encoder  # new, old layout
    return [layer.self_attn for layer in encoder.layers]


@dataclass(frozen=True)
class Family:
    """Deviations of one model family from LLaVA-1.5.

    cls_index: place of the CLS token in the tower, None without one.   rope: "1d" or "mrope".
    inject: a method of the text model that adds visual features after a layer (DeepStack), wrapped during an event.
    packed: the tower runs all pictures as one sequence, which under flash attention it does not split again.
    whole_layers: tower layers that attend over the whole picture, None = all.
    refusal: why a variant of the model type is not supported, None where it is.
    """

    model_types: tuple[str, ...]
    grid: Callable[[GridFacts], Tensor] = square_grid
    tower: Callable[[Any], list[nn.Module]] = clip_attention
    cls_index: int | None = 0
    rope: str = "1d"
    inject: str | None = None
    packed: bool = False
    whole_layers: Callable[[Any], tuple[int, ...] | None] = lambda config: None
    refusal: Callable[[Any], str | None] = lambda config: None

    def visual_ids(self, config: Any) -> tuple[int, ...]:
        found = (getattr(config, name, None) for name in ("image_token_id", "video_token_id"))
        return tuple(token for token in found if token is not None)


FAMILIES = (
    Family(("llava",), refusal=other_llava),
    Family(
        ("qwen2_5_vl",),
        grid=mrope_grid,
        tower=lambda base: [block.attn for block in base.visual.blocks],
        cls_index=None,
        rope="mrope",
        packed=True,
        whole_layers=lambda config: tuple(config.vision_config.fullatt_block_indexes),
    ),
    Family(
        ("qwen3_vl",),
        grid=mrope_grid,
        tower=lambda base: [block.attn for block in base.visual.blocks],
        cls_index=None,
        rope="mrope",
        inject="_deepstack_process",
        packed=True,
    ),
    Family(
        ("smolvlm", "idefics3"),
        grid=tiled_grid,
        tower=lambda base: [layer.self_attn for layer in base.vision_model.encoder.layers],
        cls_index=None,
    ),
)


def model_types() -> tuple[str, ...]:
    return tuple(kind for family in FAMILIES for kind in family.model_types)


def family_of(model: Any) -> Family:
    """The family of a loaded model; raises naming the supported ones."""
    kind = model.config.model_type
    for family in FAMILIES:
        if kind in family.model_types:
            return family
    raise ValueError(f"model: got model_type {kind!r}, valid are {', '.join(model_types())}")
