"""A checkpoint as a Hugging Face folder: config, weights in the hub's key layout, tokenizer, processor, template."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaProcessor, PreTrainedTokenizerFast
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from pico import optim
from pico.data import MEAN, SPREAD
from pico.model import Shape, parameter_shapes
from pico.words import SPECIAL, build

TEMPLATE = (  # "USER: <image>\n{question} ASSISTANT: {answer}</s>", turns one after another
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'user' %}USER: "
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}<image>\n{% endif %}{% endfor %}"
    "{% for part in message['content'] %}{% if part['type'] == 'text' %}{{ part['text'] }}{% endif %}{% endfor %}"
    "{% endif %} ASSISTANT:"
    "{% else %} "
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{% if part['type'] == 'text' %}{{ part['text'] }}{% endif %}{% endfor %}"
    "{% endif %}{{ eos_token }}{% endif %}{% endfor %}"
)


def config(s: Shape, ids: dict[str, int]) -> LlavaConfig:
    vision = CLIPVisionConfig(
        hidden_size=s.vision_width, intermediate_size=s.vision_ffn, num_hidden_layers=s.vision_layers,
        num_attention_heads=s.vision_heads, image_size=336, patch_size=14, hidden_act="gelu", layer_norm_eps=1e-5,
        projection_dim=s.vision_width,
    )  # fmt: skip
    text = LlamaConfig(
        vocab_size=s.vocab, hidden_size=s.width, intermediate_size=s.ffn, num_hidden_layers=s.layers,
        num_attention_heads=s.heads, num_key_value_heads=s.kv_heads, head_dim=s.width // s.heads, rms_norm_eps=1e-5,
        max_position_embeddings=1024, tie_word_embeddings=True, hidden_act="silu",
        bos_token_id=ids["<s>"], eos_token_id=ids["</s>"], pad_token_id=ids["<pad>"],
    )  # fmt: skip
    return LlavaConfig(
        vision_config=vision, text_config=text, image_token_id=ids["<image>"], vision_feature_layer=-2,
        vision_feature_select_strategy="default", projector_hidden_act="gelu", image_seq_length=576,
        tie_word_embeddings=True, architectures=["LlavaForConditionalGeneration"], dtype="bfloat16",
    )  # fmt: skip


def processor() -> LlavaProcessor:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=build(), bos_token="<s>", eos_token="</s>", pad_token="<pad>", padding_side="left",
        additional_special_tokens=["<image>"], model_max_length=1024, clean_up_tokenization_spaces=False,
    )  # fmt: skip
    pictures = CLIPImageProcessorPil(
        size={"shortest_edge": 336}, crop_size={"height": 336, "width": 336},
        image_mean=[MEAN / 255] * 3, image_std=[SPREAD / 255] * 3,
    )  # fmt: skip
    return LlavaProcessor(
        image_processor=pictures, tokenizer=tokenizer, patch_size=14, vision_feature_select_strategy="default",
        num_additional_image_tokens=1, chat_template=TEMPLATE, image_token="<image>",
    )  # fmt: skip


def weights(master: Tensor, s: Shape) -> dict[str, Tensor]:
    """The shipped tensors (bf16) of a flat fp32 master copy: no auxiliary heads, the patch matrix as a kernel."""
    out = {}
    for slot in optim.lay_out(parameter_shapes(s)):
        if not slot.name.startswith("aux."):
            out[slot.name] = slot.of(master).to(torch.bfloat16).contiguous().clone()
    kernel = "vision_tower.vision_model.embeddings.patch_embedding.weight"
    out[kernel] = out[kernel].view(s.vision_width, 3, 14, 14)
    return out


def export(checkpoint: Path, folder: Path) -> dict:
    """Write the folder; returns what the card needs to know of the run."""
    state = torch.load(checkpoint, weights_only=True)
    s = Shape(**state["shape"])
    folder.mkdir(parents=True, exist_ok=True)
    ids = {name: build().token_to_id(name) for name in SPECIAL}
    save_file(weights(state["master"], s), folder / "model.safetensors", metadata={"format": "pt"})
    config(s, ids).save_pretrained(folder)
    processor().save_pretrained(folder)
    settings = folder / "tokenizer_config.json"  # the class name that older engines know as well
    settings.write_text(settings.read_text().replace('"TokenizersBackend"', '"PreTrainedTokenizerFast"'))
    (folder / "model.safetensors").chmod(0o644)
    generation = {
        "bos_token_id": ids["<s>"],
        "eos_token_id": ids["</s>"],
        "pad_token_id": ids["<pad>"],
        "do_sample": False,
    }
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    return {"seed": state["seed"], **state["progress"]}
