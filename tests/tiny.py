"""Tiny random models of each family, built from configs, and hand-made inputs with ragged batches."""

from typing import Any

import torch
from torch import Tensor

FAMILIES = ("llava", "qwen2_5_vl", "qwen3_vl", "smolvlm")
DEPTH = 6
IMAGE, VIDEO, START, END, PAD = 90, 91, 92, 93, 0
TEXT = dict(
    hidden_size=64, intermediate_size=96, num_hidden_layers=DEPTH, num_attention_heads=4, num_key_value_heads=2,
    vocab_size=128, max_position_embeddings=512, bos_token_id=1, eos_token_id=2, pad_token_id=PAD,
)  # fmt: skip


def _config(family: str) -> Any:
    import transformers as t

    if family == "llava":
        vision = t.CLIPVisionConfig(
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=3,
            num_attention_heads=2,
            image_size=56,
            patch_size=14,
        )
        return t.LlavaConfig(
            vision_config=vision, text_config=t.LlamaConfig(**TEXT), image_token_id=IMAGE, image_token_index=IMAGE,
            vision_feature_layer=-2, vision_feature_select_strategy="default", image_seq_length=16,
        )  # fmt: skip
    if family == "smolvlm":
        vision = dict(
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=2,
            image_size=64,
            patch_size=8,
        )
        text = t.LlamaConfig(**TEXT)
        return t.SmolVLMConfig(
            vision_config=vision, text_config=text, image_token_id=IMAGE, scale_factor=2, pad_token_id=PAD
        )
    ids = dict(image_token_id=IMAGE, video_token_id=VIDEO, vision_start_token_id=START, vision_end_token_id=END)
    rope = {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10000.0}
    if family == "qwen2_5_vl":
        vision = dict(
            depth=2, hidden_size=32, intermediate_size=48, num_heads=2, out_hidden_size=64, patch_size=14,
            spatial_merge_size=2, temporal_patch_size=2, window_size=56, fullatt_block_indexes=[1],
        )  # fmt: skip
        return t.Qwen2_5_VLConfig(vision_config=vision, text_config=dict(TEXT, rope_parameters=rope), **ids)
    vision = dict(
        depth=4, hidden_size=32, intermediate_size=48, num_heads=2, out_hidden_size=64, patch_size=16,
        spatial_merge_size=2, temporal_patch_size=2, num_position_embeddings=64, deepstack_visual_indexes=[0, 1, 2],
    )  # fmt: skip
    text = dict(TEXT, head_dim=16, rope_parameters=dict(rope, mrope_interleaved=True))
    return t.Qwen3VLConfig(vision_config=vision, text_config=text, **ids)


def tiny(family: str, attention: str = "sdpa", seed: int = 0, dtype: torch.dtype = torch.float32) -> Any:
    """A random model of the family in eval mode; weights wide enough that pruning changes the logits."""
    from transformers import AutoModelForImageTextToText

    torch.manual_seed(seed)
    model = AutoModelForImageTextToText.from_config(_config(family), attn_implementation=attention)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim >= 2:
                parameter.normal_(0, 0.2, generator=generator)
            elif name.endswith("weight"):
                parameter.fill_(1.0)
            else:
                parameter.normal_(0, 0.02, generator=generator)
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = PAD
    return model.to(dtype).eval()


def _pictures(family: str, shapes: list[tuple[int, int]], generator: torch.Generator) -> dict[str, Tensor]:
    """Pixels for pictures of (h, w) merged tokens; LLaVA and SmolVLM have one size only."""
    if not shapes:
        return {}
    if family == "llava":
        return {"pixel_values": torch.randn(len(shapes), 3, 56, 56, generator=generator)}
    patch = 14 if family == "qwen2_5_vl" else 16
    grids = torch.tensor([[1, 2 * h, 2 * w] for h, w in shapes])
    patches = int(grids.prod(-1).sum())
    return {
        "pixel_values": torch.randn(patches, 3 * 2 * patch * patch, generator=generator),
        "image_grid_thw": grids,
    }


def _row(family: str, shapes: list[tuple[int, int]], before: int, after: int, generator: torch.Generator) -> list[int]:
    words = lambda n: torch.randint(3, 80, (n,), generator=generator).tolist()  # noqa: E731
    row = words(before)
    for h, w in shapes:
        if family == "llava":
            row += [IMAGE] * 16 + words(1)
        elif (
            family == "smolvlm"
        ):  # h tiles and the global one, each <fake> <tile> image…
            for tile in range(h):
                row += [88, 70 + tile] + [IMAGE] * 16
            row += [88, 85] + [IMAGE] * 16 + [88]
        else:
            row += [START] + [IMAGE] * (h * w) + [END]
    return row + words(after)


def inputs(family: str, rows: list[dict] | None = None, seed: int = 0) -> dict[str, Tensor]:
    """Left-padded model inputs of rows {"shapes": [(h, w), …], "before": 3, "after": 5}; default is ONE."""
    generator = torch.Generator().manual_seed(seed)
    rows = rows or [ONE]
    ids = [_row(family, row["shapes"], row["before"], row["after"], generator) for row in rows]
    width = max(map(len, ids))
    input_ids = torch.tensor([[PAD] * (width - len(row)) + row for row in ids])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in ids])
    made = {"input_ids": input_ids, "attention_mask": mask}
    if family == "smolvlm":
        made |= _tiles([[h + 1 for h, _ in row["shapes"]] for row in rows], generator)
    else:
        made |= _pictures(family, [shape for row in rows for shape in row["shapes"]], generator)
    if family.startswith("qwen"):
        made["mm_token_type_ids"] = (input_ids == IMAGE).int()
    return made


def _tiles(tiles: list[list[int]], generator: torch.Generator) -> dict[str, Tensor]:
    most = max(sum(row) for row in tiles)
    if not most:
        return {}
    pixels = torch.zeros(len(tiles), most, 3, 64, 64)
    for pixel, row in zip(pixels, tiles):
        pixel[: sum(row)] = torch.randn(sum(row), 3, 64, 64, generator=generator)
    return {"pixel_values": pixels}


ONE = {"shapes": [(3, 4)], "before": 3, "after": 5}
RAGGED = [  # the longest row keeps fewer columns than the next one: fillers fall on unpadded columns
    {"shapes": [(4, 4), (2, 3)], "before": 2, "after": 4},
    {"shapes": [(1, 2)], "before": 3, "after": 18},
    {"shapes": [], "before": 4, "after": 6},
]


def row_inputs(family: str, rows: list[dict], index: int, seed: int = 0) -> dict[str, Tensor]:
    """The batch-1 inputs of one row of `inputs(family, rows)`: same ids, same pixels, no padding."""
    batch = inputs(family, rows, seed)
    alive = batch["attention_mask"][index].bool()
    made = {"input_ids": batch["input_ids"][index : index + 1, alive]}
    made["attention_mask"] = torch.ones_like(made["input_ids"])
    if "mm_token_type_ids" in batch:
        made["mm_token_type_ids"] = batch["mm_token_type_ids"][index : index + 1, alive]
    if not rows[index]["shapes"]:
        return made
    first = sum(len(row["shapes"]) for row in rows[:index])
    count = len(rows[index]["shapes"])
    if family == "smolvlm":
        made["pixel_values"] = batch["pixel_values"][index : index + 1, : sum(h + 1 for h, _ in rows[index]["shapes"])]
    elif family == "llava":
        made["pixel_values"] = batch["pixel_values"][first : first + count]
    else:
        sizes = batch["image_grid_thw"].prod(-1).tolist()
        made["image_grid_thw"] = batch["image_grid_thw"][first : first + count]
        made["pixel_values"] = batch["pixel_values"].split(sizes)
        made["pixel_values"] = torch.cat(made["pixel_values"][first : first + count])
    return made
