"""How much a text and a picture have to do with each other, by a CLIP-style model: for the input gate's mismatch rule.

Knows two-tower models of the library (Radford et al. 2021, https://arxiv.org/abs/2103.00020). Knows no thresholds.
"""

from collections.abc import Callable
from pathlib import Path

import torch
from PIL import Image

from mmaccel.models.inputs import read_json
from mmaccel.models.pictures import image_processor_class


def similarity(path: str) -> Callable[[Image.Image, str], float]:
    """(picture, text) → cosine of their embeddings, −1 … 1. `path`: a folder or a Hub name; the model stays on the CPU.

    A text beyond the model's context is cut."""
    from transformers import AutoModel, AutoTokenizer
    from transformers.utils import cached_file

    model = AutoModel.from_pretrained(path).eval()
    if not hasattr(model, "get_text_features") or not hasattr(model, "get_image_features"):
        raise ValueError(f"quality.model: {path!r} is a {type(model).__name__}, valid are CLIP-style models")
    tokenizer = AutoTokenizer.from_pretrained(path)
    file = cached_file(path, "preprocessor_config.json")  # of a folder or of the Hub
    named = read_json(Path(file)) if file else {}
    processor = image_processor_class(named.get("image_processor_type"), "CLIPImageProcessor").from_pretrained(path)
    longest = model.config.text_config.max_position_embeddings
    padding = "max_length" if "siglip" in model.config.model_type else False  # as SigLIP was trained

    @torch.no_grad()
    def cosine(image: Image.Image, text: str) -> float:
        words = tokenizer(text, truncation=True, max_length=longest, padding=padding, return_tensors="pt")
        pixels = processor(images=[image.convert("RGB")], return_tensors="pt")["pixel_values"]  # [1, 3, h, w]
        said, seen = features(model.get_text_features(**words)), features(model.get_image_features(pixel_values=pixels))
        return float(torch.nn.functional.cosine_similarity(said, seen)[0])

    return cosine


def features(found: object) -> torch.Tensor:
    """[1, D]; newer libraries return them as a field."""
    return found if isinstance(found, torch.Tensor) else found.pooler_output  # type: ignore[attr-defined]
