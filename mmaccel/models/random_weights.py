"""Random-weight LLaVAs of any geometry: speed needs shapes, not knowledge.

Knows configs. Does not know what is measured on them.
"""

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

IMAGE_TOKEN = 3
TEXT_LOW, TEXT_HIGH = 10, 1000


@dataclass(frozen=True)
class LlavaGeometry:
    """A decoder's widths; the tower is a token one, since pictures are handed over as features."""

    width: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int = 2048
    visual: int = 576

    def __post_init__(self) -> None:
        if self.width % self.heads or self.heads % self.kv_heads:
            raise ValueError(
                f"geometry: width {self.width} must divide by heads {self.heads}, and those by kv_heads {self.kv_heads}"
            )


def random_llava(geometry: LlavaGeometry, *, dtype: torch.dtype, device: str, attention: str, seed: int) -> Any:
    """A `LlavaForConditionalGeneration` in eval mode with random weights."""
    from transformers import AutoModelForImageTextToText, CLIPVisionConfig, LlamaConfig, LlavaConfig

    side = round(geometry.visual**0.5)
    tower = CLIPVisionConfig(
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=14 * side,
        patch_size=14,
    )
    text = LlamaConfig(
        hidden_size=geometry.width,
        intermediate_size=geometry.ffn,
        num_hidden_layers=geometry.layers,
        num_attention_heads=geometry.heads,
        num_key_value_heads=geometry.kv_heads,
        vocab_size=geometry.vocab,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    )
    config = LlavaConfig(vision_config=tower, text_config=text, image_token_index=IMAGE_TOKEN)
    torch.manual_seed(seed)
    with torch.device(device):
        model = AutoModelForImageTextToText.from_config(config, dtype=dtype, attn_implementation=attention)
    model.generation_config.eos_token_id = None
    return model.eval()


def random_prompt(geometry: LlavaGeometry, *, before: int, after: int, device: str, seed: int) -> dict[str, Tensor]:
    """ids and mask of one prompt: text, one picture, text."""
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(TEXT_LOW, TEXT_HIGH, (before + after,), generator=generator).tolist()
    ids = torch.tensor([words[:before] + [IMAGE_TOKEN] * geometry.visual + words[before:]], device=device)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def takes_features(model: Any) -> bool:
    """Whether this library lets a caller hand over encoded pictures."""
    return "mm_encoder_outputs" in inspect.signature(model.forward).parameters


def random_features(model: Any, geometry: LlavaGeometry, seed: int) -> Any:
    """Pre-encoded picture features as the library's own `mm_encoder_outputs`, so that a forward times the decoder."""
    from transformers.modeling_outputs import BaseModelOutputWithPooling

    if not takes_features(model):
        raise ValueError("transformers: this version takes no mm_encoder_outputs, valid for the studies is a newer one")
    weight = model.get_input_embeddings().weight
    generator = torch.Generator().manual_seed(seed)
    features: Any = torch.randn(geometry.visual, geometry.width, generator=generator) * 0.02
    output: Any = BaseModelOutputWithPooling()
    output.pooler_output = [features.to(weight.device, weight.dtype)]
    return {"image": output}
