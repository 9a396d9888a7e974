"""Writes the text files of this folder: per family a checkpoint in the public format with its widths cut, no weights.

    python tests/layouts/build.py

Image sizes, patch sizes, special tokens, prompt formats and file names are the published ones, so that token counts are
too; hidden sizes, depths and vocabularies are cut. Tokenizers are trained on the sentences below. The chat templates
are written here; they produce the published prompt formats.
"""

import json
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = Path(__file__).parent
CLIP_MEAN, CLIP_STD = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
HALF = [0.5, 0.5, 0.5]
TEXT = [
    "You are a helpful assistant.",
    "USER: What is shown in this picture? ASSISTANT: A red cube stands left of a blue ball.",
    "User: How many chairs are there? Assistant: There are three chairs and one table.",
    "Describe the image in detail. The cat sleeps on the sofa while the dog looks at the window.",
    "Which number is written on the sign? It says 42. Is the light green or red? Yes, no, left, right, above, below.",
]
QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def byte_level(vocabulary: int, words: str | None = None) -> Tokenizer:
    """A byte-level BPE (Qwen's word pattern, or GPT-2's)."""
    tokenizer = Tokenizer(models.BPE())
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=words is None)
    split = [pre_tokenizers.Split(Regex(words), "isolated")] if words else []
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*split, level])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.normalizer = normalizers.NFC() if words else None
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocabulary, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(TEXT, trainer)
    return tokenizer


def llama(vocabulary: int) -> Tokenizer:
    """A Llama BPE: ▁ for the space, byte fallback, BOS in front."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    reserved = ["<unk>", "<s>", "</s>", *[f"<0x{byte:02X}>" for byte in range(256)]]
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=reserved, max_token_length=8, show_progress=False
    )
    tokenizer.train_from_iterator([word for line in TEXT for word in line.replace(" ", "\0 ").split("\0")], trainer)
    plain = json.loads(tokenizer.to_str())
    plain["added_tokens"] = plain["added_tokens"][:3]  # the bytes are ordinary entries of the vocabulary
    tokenizer = Tokenizer.from_str(json.dumps(plain))
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", "<s> $A <s> $B", [("<s>", 1)])
    return tokenizer


def specials(tokenizer: Tokenizer, names: list[str]) -> None:
    tokenizer.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in names])


def added(tokenizer: Tokenizer) -> dict[str, dict]:
    """`added_tokens_decoder` as tokenizer_config.json holds it."""
    listed = json.loads(tokenizer.to_str())["added_tokens"]
    return {str(t["id"]): {k: v for k, v in t.items() if k != "id"} for t in listed}


def write(family: str, tokenizer: Tokenizer, files: dict[str, dict | str]) -> None:
    folder = HERE / family
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content, indent=1) + "\n"
        (folder / name).write_text(text, encoding="utf-8")


# USER: <image>\nquestion ASSISTANT: answer USER: …   pictures before the words of their message, no stop token
LLAVA_TEMPLATE = (
    "{%- for turn in messages -%}"
    "{%- if turn['role'] != 'system' -%}{{ turn['role'] | upper }}{{ ': ' }}{%- endif -%}"
    "{%- for part in turn['content'] if part['type'] == 'image' -%}{{ '<image>\\n' }}{%- endfor -%}"
    "{%- for part in turn['content'] if part['type'] == 'text' -%}"
    "{%- if turn['role'] == 'assistant' -%}{%- generation -%}{{ part['text'] + ' ' }}{%- endgeneration -%}"
    "{%- else -%}{{ part['text'] + ' ' }}{%- endif -%}"
    "{%- endfor -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ 'ASSISTANT:' }}{%- endif -%}"
)

# <|im_start|>role\n … <|im_end|>\n with the parts in the order given; {system} only in Qwen2.5-VL
QWEN_TEMPLATE = (
    "{system}"
    "{%- for turn in messages -%}"
    "{{ '<|im_start|>' + turn['role'] + '\\n' }}"
    "{%- if turn['content'] is string -%}{{ turn['content'] }}"
    "{%- else -%}"
    "{%- for part in turn['content'] -%}"
    "{%- if part['type'] == 'image' -%}{{ '<|vision_start|><|image_pad|><|vision_end|>' }}"
    "{%- elif part['type'] == 'video' -%}{{ '<|vision_start|><|video_pad|><|vision_end|>' }}"
    "{%- else -%}{{ part['text'] }}{%- endif -%}"
    "{%- endfor -%}"
    "{%- endif -%}"
    "{{ '<|im_end|>\\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"
)
QWEN_SYSTEM = (
    "{%- if messages[0]['role'] != 'system' -%}"
    "{{ '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}"
    "{%- endif -%}"
)

# <|im_start|>User:<image>question<end_of_utterance>\nAssistant: answer<end_of_utterance>\n
SMOLVLM_TEMPLATE = (
    "{{ '<|im_start|>' }}"
    "{%- for turn in messages -%}"
    "{{ turn['role'] | capitalize }}{{ ':' if turn['content'][0]['type'] == 'image' else ': ' }}"
    "{%- for part in turn['content'] -%}"
    "{{ '<image>' if part['type'] == 'image' else part['text'] }}"
    "{%- endfor -%}"
    "{{ '<end_of_utterance>\\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ 'Assistant:' }}{%- endif -%}"
)


def build_llava() -> None:
    tokenizer = llama(420)
    specials(tokenizer, ["<image>", "<pad>"])
    image, pad = tokenizer.token_to_id("<image>"), tokenizer.token_to_id("<pad>")
    vocabulary = 448
    config = {
        "architectures": ["LlavaForConditionalGeneration"],
        "ignore_index": -100,
        "image_token_index": image,
        "model_type": "llava",
        "pad_token_id": pad,
        "projector_hidden_act": "gelu",
        "text_config": {
            "architectures": ["LlamaForCausalLM"],
            "hidden_size": 32,
            "intermediate_size": 64,
            "max_position_embeddings": 4096,
            "model_type": "llama",
            "num_attention_heads": 4,
            "num_hidden_layers": 3,
            "num_key_value_heads": 4,
            "rms_norm_eps": 1e-05,
            "torch_dtype": "float16",
            "vocab_size": vocabulary,
        },
        "tie_word_embeddings": False,
        "torch_dtype": "float16",
        "transformers_version": "4.36.0.dev0",
        "vision_config": {
            "hidden_size": 32,
            "image_size": 336,
            "intermediate_size": 64,
            "model_type": "clip_vision_model",
            "num_attention_heads": 2,
            "num_hidden_layers": 3,
            "patch_size": 14,
            "projection_dim": 16,
            "vocab_size": 32000,
        },
        "vision_feature_layer": -2,
        "vision_feature_select_strategy": "default",
        "vocab_size": vocabulary,
    }
    image_processor = {
        "crop_size": {"height": 336, "width": 336},
        "do_center_crop": True,
        "do_convert_rgb": True,
        "do_normalize": True,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": CLIP_MEAN,
        "image_processor_type": "CLIPImageProcessor",
        "image_std": CLIP_STD,
        "processor_class": "LlavaProcessor",
        "resample": 3,
        "rescale_factor": 0.00392156862745098,
        "size": {"shortest_edge": 336},
    }
    processor = {
        "image_token": "<image>",
        "num_additional_image_tokens": 1,
        "patch_size": 14,
        "processor_class": "LlavaProcessor",
        "vision_feature_select_strategy": "default",
    }
    tokenizer_config = {
        "add_bos_token": True,
        "add_eos_token": False,
        "added_tokens_decoder": added(tokenizer),
        "bos_token": "<s>",
        "clean_up_tokenization_spaces": False,
        "eos_token": "</s>",
        "legacy": False,
        "model_max_length": 1000000000000000019884624838656,
        "pad_token": "<pad>",
        "padding_side": "left",
        "processor_class": "LlavaProcessor",
        "tokenizer_class": "LlamaTokenizer",
        "unk_token": "<unk>",
        "use_default_system_prompt": False,
    }
    generation = {"_from_model_config": True, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": pad}
    write(
        "llava",
        tokenizer,
        {
            "config.json": config,
            "generation_config.json": generation,
            "preprocessor_config.json": image_processor,
            "processor_config.json": processor,
            "tokenizer_config.json": tokenizer_config,
            "chat_template.json": {"chat_template": LLAVA_TEMPLATE},
        },
    )


QWEN_SPECIALS = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
]


def qwen_tokenizer(family: str) -> tuple[Tokenizer, dict, dict]:
    """Tokenizer, tokenizer_config.json, and the ids the model's config names."""
    tokenizer = byte_level(400, QWEN_WORDS)
    specials(tokenizer, QWEN_SPECIALS)
    config = {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": added(tokenizer),
        "additional_special_tokens": QWEN_SPECIALS[1:],
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 131072 if family == "qwen2_5_vl" else 262144,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }
    at = tokenizer.token_to_id
    ids = {
        "vision_start_token_id": at("<|vision_start|>"),
        "vision_end_token_id": at("<|vision_end|>"),
        "image_token_id": at("<|image_pad|>"),
        "video_token_id": at("<|video_pad|>"),
    }
    return tokenizer, config, ids


def qwen_generation(tokenizer: Tokenizer, **sampling: float) -> dict:
    end, stop = tokenizer.token_to_id("<|endoftext|>"), tokenizer.token_to_id("<|im_end|>")
    return {"bos_token_id": end, "pad_token_id": end, "do_sample": True, "eos_token_id": [stop, end], **sampling}


def build_qwen2_5_vl() -> None:
    tokenizer, tokenizer_config, ids = qwen_tokenizer("qwen2_5_vl")
    config = {  # the published file is flat: the text model's numbers stand at the top
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "attention_dropout": 0.0,
        "bos_token_id": tokenizer.token_to_id("<|endoftext|>"),
        "eos_token_id": tokenizer.token_to_id("<|im_end|>"),
        **ids,
        "vision_token_id": tokenizer.token_to_id("<|vision_pad|>"),
        "hidden_act": "silu",
        "hidden_size": 64,
        "initializer_range": 0.02,
        "intermediate_size": 96,
        "max_position_embeddings": 128000,
        "max_window_layers": 3,
        "model_type": "qwen2_5_vl",
        "num_attention_heads": 4,
        "num_hidden_layers": 3,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0,
        "sliding_window": 32768,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.41.2",
        "use_cache": True,
        "use_sliding_window": False,
        "vision_config": {
            "depth": 2,
            "hidden_act": "silu",
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_heads": 2,
            "in_chans": 3,
            "out_hidden_size": 64,
            "patch_size": 14,
            "spatial_merge_size": 2,
            "spatial_patch_size": 14,
            "window_size": 112,
            "fullatt_block_indexes": [1],
            "tokens_per_second": 2,
            "temporal_patch_size": 2,
        },
        "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]},
        "vocab_size": 448,
    }
    image_processor = {
        "min_pixels": 3136,
        "max_pixels": 12845056,
        "patch_size": 14,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_mean": CLIP_MEAN,
        "image_std": CLIP_STD,
        "image_processor_type": "Qwen2VLImageProcessor",
        "processor_class": "Qwen2_5_VLProcessor",
    }
    template = QWEN_TEMPLATE.replace("{system}", QWEN_SYSTEM)
    write(
        "qwen2_5_vl",
        tokenizer,
        {
            "config.json": config,
            "generation_config.json": qwen_generation(tokenizer, repetition_penalty=1.05, temperature=1e-06),
            "preprocessor_config.json": image_processor,
            "tokenizer_config.json": tokenizer_config,
            "chat_template.json": {"chat_template": template},
        },
    )


def build_qwen3_vl() -> None:
    tokenizer, tokenizer_config, ids = qwen_tokenizer("qwen3_vl")
    config = {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        **ids,
        "model_type": "qwen3_vl",
        "text_config": {
            "attention_bias": False,
            "attention_dropout": 0.0,
            "bos_token_id": tokenizer.token_to_id("<|endoftext|>"),
            "dtype": "bfloat16",
            "eos_token_id": tokenizer.token_to_id("<|im_end|>"),
            "head_dim": 16,
            "hidden_act": "silu",
            "hidden_size": 48,
            "initializer_range": 0.02,
            "intermediate_size": 96,
            "max_position_embeddings": 262144,
            "model_type": "qwen3_vl_text",
            "num_attention_heads": 4,
            "num_hidden_layers": 4,
            "num_key_value_heads": 2,
            "rms_norm_eps": 1e-06,
            "rope_scaling": {"mrope_interleaved": True, "mrope_section": [4, 2, 2], "rope_type": "default"},
            "rope_theta": 5000000,
            "tie_word_embeddings": True,
            "use_cache": True,
            "vocab_size": 448,
        },
        "tie_word_embeddings": True,
        "transformers_version": "4.57.0.dev0",
        "vision_config": {
            "deepstack_visual_indexes": [0, 1],
            "depth": 3,
            "hidden_act": "gelu_pytorch_tanh",
            "hidden_size": 32,
            "in_channels": 3,
            "initializer_range": 0.02,
            "intermediate_size": 48,
            "model_type": "qwen3_vl",
            "num_heads": 2,
            "num_position_embeddings": 2304,
            "out_hidden_size": 48,
            "patch_size": 16,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
        },
    }
    image_processor = {
        "size": {"longest_edge": 16777216, "shortest_edge": 65536},
        "patch_size": 16,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_mean": HALF,
        "image_std": HALF,
        "processor_class": "Qwen3VLProcessor",
        "image_processor_type": "Qwen2VLImageProcessorFast",
    }
    write(
        "qwen3_vl",
        tokenizer,
        {
            "config.json": config,
            "generation_config.json": qwen_generation(tokenizer, top_p=0.8, top_k=20, temperature=0.7),
            "preprocessor_config.json": image_processor,
            "tokenizer_config.json": tokenizer_config,
            "chat_template.json": {"chat_template": QWEN_TEMPLATE.replace("{system}", "")},
        },
    )


def build_smolvlm() -> None:
    tokenizer = byte_level(400)
    cells = [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
    tail = ["<fake_token_around_image>", "<image>", "<end_of_utterance>"]
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<global-img>", *cells, *tail]
    specials(tokenizer, names)
    at = tokenizer.token_to_id
    config = {
        "architectures": ["SmolVLMForConditionalGeneration"],
        "image_token_id": at("<image>"),
        "model_type": "smolvlm",
        "pad_token_id": at("<|im_end|>"),
        "scale_factor": 4,
        "text_config": {
            "architectures": ["VLlama3ForCausalLM"],
            "head_dim": 16,
            "hidden_size": 48,
            "intermediate_size": 96,
            "is_llama_config": True,
            "max_position_embeddings": 8192,
            "model_type": "llama",
            "num_attention_heads": 3,
            "num_hidden_layers": 3,
            "num_key_value_heads": 1,
            "pad_token_id": at("<|im_end|>"),
            "rms_norm_eps": 1e-05,
            "rope_interleaved": False,
            "rope_theta": 100000,
            "torch_dtype": "bfloat16",
            "vocab_size": 480,
        },
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "transformers_version": "4.47.1",
        "use_cache": True,
        "vision_config": {
            "hidden_size": 24,
            "image_size": 512,
            "intermediate_size": 48,
            "max_image_size": {"longest_edge": 512},
            "model_type": "smolvlm_vision",
            "num_attention_heads": 2,
            "num_hidden_layers": 2,
            "patch_size": 16,
            "size": {"longest_edge": 2048},
        },
        "vocab_size": 480,
    }
    image_processor = {
        "do_convert_rgb": True,
        "do_image_splitting": True,
        "do_normalize": True,
        "do_pad": True,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": HALF,
        "image_processor_type": "SmolVLMImageProcessor",
        "image_std": HALF,
        "max_image_size": {"longest_edge": 512},
        "processor_class": "SmolVLMProcessor",
        "resample": 1,
        "rescale_factor": 0.00392156862745098,
        "size": {"longest_edge": 2048},
    }
    tokenizer_config = {
        "add_prefix_space": False,
        "added_tokens_decoder": added(tokenizer),
        "additional_special_tokens": tail,
        "bos_token": "<|im_start|>",
        "clean_up_tokenization_spaces": False,
        "end_of_utterance_token": "<end_of_utterance>",
        "eos_token": "<end_of_utterance>",
        "fake_image_token": "<fake_token_around_image>",
        "global_image_token": "<global-img>",
        "image_token": "<image>",
        "legacy": False,
        "model_max_length": 8192,
        "pad_token": "<|im_end|>",
        "processor_class": "SmolVLMProcessor",
        "tokenizer_class": "GPT2Tokenizer",
        "truncation_side": "left",
        "unk_token": "<|endoftext|>",
        "vocab_size": 480,
    }
    generation = {
        "_from_model_config": True,
        "bos_token_id": at("<|im_start|>"),
        "eos_token_id": at("<end_of_utterance>"),
        "pad_token_id": at("<|im_end|>"),
    }
    write(
        "smolvlm",
        tokenizer,
        {
            "config.json": config,
            "generation_config.json": generation,
            "preprocessor_config.json": image_processor,
            "processor_config.json": {"image_seq_len": 64, "processor_class": "SmolVLMProcessor"},
            "tokenizer_config.json": tokenizer_config,
            "chat_template.jinja": SMOLVLM_TEMPLATE,
        },
    )


if __name__ == "__main__":
    build_llava()
    build_qwen2_5_vl()
    build_qwen3_vl()
    build_smolvlm()
