"""VLM: a loaded model, its processor and its family, taken from a folder, the Hub or the package.

Everything that can be refused is refused before the weights are read, and a checkpoint whose names do not all match is
refused after. Nothing of the model is changed; only its generation config is completed where it names no stop or pad
token. It does not know pruners, caches or runs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from mmaccel.models.checkpoint import Checkpoint, checkpoint
from mmaccel.models.family import Family, family_of
from mmaccel.models.inputs import Conversation, Inputs, Processor

DTYPES = ("float32", "bfloat16", "float16")
ATTENTION = {"sdpa": "sdpa", "eager": "eager", "flash": "flash_attention_2"}
QUANTIZATIONS = ("int8", "nf4")  # weights of the decoder's linear layers, through bitsandbytes
# The tower, the projector and the head keep their precision: they are small, and the head decides the tokens.
KEPT_WHOLE = (
    "lm_head",
    "model.vision_tower",
    "model.visual",
    "model.vision_model",
    "model.multi_modal_projector",
    "model.connector",
)


@dataclass(frozen=True)
class VLM:
    """`vlm.model.generate(**vlm.inputs(conversations))`."""

    model: Any
    processor: Processor
    path: Path  # the folder its small files were read from
    source: str  # the folder or Hub name
    revision: str | None  # Hub commit

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        dtype: str | None = None,
        device: str | None = None,
        attention: str | None = None,
        quantization: str | None = None,
        revision: str | None = None,
        max_pixels: int | None = None,
        image_processor: Mapping[str, Any] | None = None,
        trust_remote_code: bool = False,
    ) -> "VLM":
        """`path`: a folder, a Hub name, or `pico`. None means float32, cpu, sdpa; a run puts its machine's there.

        image_processor: settings in the place of the checkpoint's, e.g. {"do_center_crop": False}."""
        dtype, device, attention = dtype or "float32", device or "cpu", attention or "sdpa"
        options = load_options(dtype, device, attention, quantization)
        found = checkpoint(path, revision)
        processor = Processor.load(
            found.folder, max_pixels=max_pixels, trust_remote_code=trust_remote_code, settings=image_processor
        )
        check_vocabulary(processor)
        model = load_weights(found, {**options, "trust_remote_code": trust_remote_code})
        complete_generation(model, processor)
        return cls(model.eval(), processor, found.folder, found.source, found.revision)

    @property
    def tokenizer(self) -> Any:
        return self.processor.tokenizer

    @property
    def family(self) -> Family:
        return family_of(self.model)

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Tokens that end an answer."""
        stop = self.model.generation_config.eos_token_id
        return tuple(stop) if isinstance(stop, list | tuple) else (stop,)

    def inputs(self, conversations: Sequence[Conversation], *, answers: bool = False) -> Inputs:
        """What the model takes, on its device; see Processor.inputs."""
        return self.processor.inputs(conversations, answers=answers).to(self.device)


def load_options(dtype: str, device: str, attention: str, quantization: str | None) -> dict[str, Any]:
    """from_pretrained's arguments; raises for what this machine cannot do."""
    if dtype not in DTYPES:
        raise ValueError(f"model.dtype: got {dtype!r}, valid are {', '.join(DTYPES)}")
    check_attention(attention, dtype)
    place = checked_device(device)
    options: dict[str, Any] = {"dtype": getattr(torch, dtype), "attn_implementation": ATTENTION[attention]}
    if quantization is not None:
        options["quantization_config"] = quantization_config(quantization, dtype)
    if place.type != "cpu" or quantization is not None:
        options["device_map"] = {"": str(place)}
    return options


def checked_device(device: str) -> torch.device:
    try:
        place = torch.device(device)
    except RuntimeError as wrong:
        raise ValueError(f"model.device: got {device!r}, valid are cpu, cuda, cuda:0 …") from wrong
    if place.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"model.device: got {device!r}, torch finds no CUDA device here; machine=cpu runs anywhere")
    if place.type == "cuda" and (place.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"model.device: got {device!r}, this machine has {torch.cuda.device_count()} CUDA devices")
    return place


def check_attention(attention: str, dtype: str) -> None:
    if attention not in ATTENTION:
        raise ValueError(f"model.attention: got {attention!r}, valid are {', '.join(ATTENTION)}")
    if attention != "flash":
        return
    from transformers.utils import is_flash_attn_2_available

    if not is_flash_attn_2_available():
        raise ValueError(
            "model.attention: got 'flash', but FlashAttention 2 is not usable here (it needs a CUDA device and "
            "pip install 'mmaccel[gpu]'); valid here are sdpa, eager"
        )
    if dtype == "float32":
        raise ValueError("model.attention: got 'flash' with model.dtype=float32; it runs in bfloat16 or float16")


def quantization_config(name: str, dtype: str) -> Any:
    if name not in QUANTIZATIONS:
        raise ValueError(f"model.quantization: got {name!r}, valid are null, {', '.join(QUANTIZATIONS)}")
    if find_spec("bitsandbytes") is None:
        raise ValueError(f"model.quantization: {name!r} needs bitsandbytes: pip install 'mmaccel[quant]'")
    from transformers import BitsAndBytesConfig

    kept = list(KEPT_WHOLE)  # a list of ours replaces the library's default, so the head must be on it
    if name == "int8":
        return BitsAndBytesConfig(load_in_8bit=True, llm_int8_skip_modules=kept)
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_compute_dtype=getattr(torch, dtype),
        llm_int8_skip_modules=kept,
    )


def check_vocabulary(processor: Processor) -> None:
    """A tokenizer that knows more tokens than the model has rows fails deep inside an embedding."""
    rows = processor.layout.config.get_text_config().vocab_size
    if len(processor.tokenizer) > rows:
        raise ValueError(
            f"the tokenizer has {len(processor.tokenizer)} tokens, the model's embedding {rows} rows: "
            "tokenizer and model are not of the same checkpoint"
        )


def load_weights(found: Checkpoint, options: Mapping[str, Any]) -> Any:
    """Safetensors, or pickles read with weights_only (the library's rule for them)."""
    from transformers import AutoModelForImageTextToText

    load: Any = AutoModelForImageTextToText.from_pretrained
    model, info = load(found.source, revision=found.revision or "main", output_loading_info=True, **options)
    wrong = {
        "the model needs and the checkpoint lacks": info["missing_keys"],
        "the checkpoint has and the model does not know": [
            name for name in info["unexpected_keys"] if not str(name).startswith("medusa_head.")  # a draft head's own
        ],
        "differ in shape": info["mismatched_keys"],
    }
    said = [f"{len(names)} tensors {what}: {shortened(names)}" for what, names in wrong.items() if names]
    if said:
        raise ValueError(f"{found.source}: the weights do not fit config.json; {'; '.join(said)}")
    return model


def shortened(names: Any) -> str:
    listed = sorted(str(name) for name in names)
    return ", ".join(listed[:5] + ["…"] * (len(listed) > 5))


def complete_generation(model: Any, processor: Processor) -> None:
    """Stop and pad tokens where the checkpoint names none; its sampling defaults stay as they are."""
    generation = model.generation_config
    if generation.eos_token_id is None:
        generation.eos_token_id = processor.tokenizer.eos_token_id
    if generation.eos_token_id is None:
        raise ValueError("neither generation_config.json nor the tokenizer names a stop token (eos_token)")
    if generation.pad_token_id is None:
        generation.pad_token_id = processor.pad_token_id
