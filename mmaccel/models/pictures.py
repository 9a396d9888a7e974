"""What a picture becomes, per family: the tensors the tower reads, the text that stands for it, its token count.

One class per way of laying pictures out. It knows the library's image processors (always their PIL backend, so that a
machine with torchvision sees the same pixels as one without) and the numbers of the model's config. It knows nothing of
templates, padding or weights. The text follows the checkpoint's processor files, the token count follows the model's
config; where the two disagree the caller finds it by counting.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import chain
from typing import Any, ClassVar

from PIL import Image
from torch import Tensor

Rows = Sequence[Sequence[Image.Image]]  # per conversation its pictures in prompt order

# Taken from their own modules: the oldest supported transformers hides some of these classes behind torchvision.
IMAGE_PROCESSORS = {
    "CLIPImageProcessor": ("clip", "CLIPImageProcessorPil"),
    "SiglipImageProcessor": ("siglip", "SiglipImageProcessorPil"),
    "LlavaImageProcessor": ("llava", "LlavaImageProcessorPil"),
    "Qwen2VLImageProcessor": ("qwen2_vl", "Qwen2VLImageProcessorPil"),
    "SmolVLMImageProcessor": ("smolvlm", "SmolVLMImageProcessorPil"),
    "Idefics3ImageProcessor": ("idefics3", "Idefics3ImageProcessorPil"),
}


def image_processor_class(name: str | None, default: str) -> Any:
    """The PIL class for an `image_processor_type` as checkpoints spell it (with or without Fast or Pil)."""
    base = (name or default).removesuffix("Fast").removesuffix("Pil")
    if base not in IMAGE_PROCESSORS:
        raise ValueError(f"image_processor_type: got {name!r}, valid are {sorted(IMAGE_PROCESSORS)}")
    module, kind = IMAGE_PROCESSORS[base]
    return getattr(import_module(f"transformers.models.{module}.image_processing_pil_{module}"), kind)


@dataclass(frozen=True)
class Placed:
    """One picture in the prompt: the text that stands for it and the visual tokens the tower will give for it."""

    text: str
    tokens: int


@dataclass(frozen=True)
class Layout(ABC):
    """How one kind of model lays its pictures out. `image_token` is the token of the config's image_token_id."""

    config: Any  # the model's config
    files: Mapping[str, Any]  # processor_config.json of the checkpoint, {} where there is none
    image_token: str

    processor: ClassVar[str]  # image processor where the checkpoint names none
    template: ClassVar[str]  # prompt format where the checkpoint brings none (Jinja)
    mrope: ClassVar[bool] = False  # the model reads mm_token_type_ids to place its pictures

    @abstractmethod
    def place(self, image_processor: Any, rows: Rows) -> tuple[dict[str, Tensor], list[list[Placed]]]:
        """The tower's tensors for all pictures, and what each becomes in its row's prompt."""


def regroup(flat: Sequence[Placed], rows: Rows) -> list[list[Placed]]:
    items = iter(flat)
    return [[next(items) for _ in row] for row in rows]


class Llava(Layout):
    """Every picture is cropped to one square: (side/patch)² tokens, 576 for LLaVA-1.5."""

    processor = "CLIPImageProcessor"
    template = (
        "{% for m in messages %}{% if m.role != 'system' %}{{ m.role.upper() + ': ' }}{% endif %}"
        "{% for c in m.content %}{% if c.type == 'image' %}{{ '<image>\\n' }}{% endif %}{% endfor %}"
        "{% for c in m.content %}{% if c.type == 'text' %}{{ c.text + ' ' }}{% endif %}{% endfor %}"
        "{% endfor %}{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
    )

    def place(self, image_processor: Any, rows: Rows) -> tuple[dict[str, Tensor], list[list[Placed]]]:
        pixels = image_processor(images=list(chain(*rows)), return_tensors="pt")["pixel_values"]  # [n, 3, h, w]
        height, width = pixels.shape[-2:]
        side = self.config.vision_config.image_size
        if (height, width) != (side, side):
            raise ValueError(
                f"the image processor gives pictures of {width}×{height}, the vision tower expects {side}×{side}: "
                "preprocessor_config.json and config.json are not of the same checkpoint"
            )
        placed = Placed(self.image_token * self.written(height, width), self.given(height, width))
        return {"pixel_values": pixels}, regroup([placed] * len(pixels), rows)

    def given(self, height: int, width: int) -> int:
        """Tokens the tower gives: its patches, its CLS where it has one, less the one that `default` drops."""
        tower = self.config.vision_config
        cls = 1 if tower.model_type == "clip_vision_model" else 0
        dropped = 1 if self.config.vision_feature_select_strategy == "default" else 0
        return (height // tower.patch_size) * (width // tower.patch_size) + cls - dropped

    def written(self, height: int, width: int) -> int:
        """Tokens the checkpoint's processor writes; what it does not say (old checkpoints) is the tower's."""
        tower = self.config.vision_config
        patch = self.files.get("patch_size") or tower.patch_size
        strategy = self.files.get("vision_feature_select_strategy") or self.config.vision_feature_select_strategy
        cls = self.files.get("num_additional_image_tokens")
        if cls is None:
            cls = 1 if tower.model_type == "clip_vision_model" else 0
        return (height // patch) * (width // patch) + cls - (1 if strategy == "default" else 0)


class QwenVL(Layout):
    """Every picture keeps its shape, rounded to whole merged patches (28 or 32 pixels): (h/28)(w/28) tokens."""

    processor = "Qwen2VLImageProcessor"
    mrope = True
    template = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}"
        "{% for c in m.content %}{% if c.type == 'image' %}{{ '<|vision_start|><|image_pad|><|vision_end|>' }}"
        "{% else %}{{ c.text }}{% endif %}{% endfor %}{{ '<|im_end|>\\n' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
    )

    def place(self, image_processor: Any, rows: Rows) -> tuple[dict[str, Tensor], list[list[Placed]]]:
        out = image_processor(images=list(chain(*rows)), return_tensors="pt")
        tensors = {name: out[name] for name in ("pixel_values", "image_grid_thw")}
        self.check(image_processor, tensors["pixel_values"])
        tower = self.config.vision_config.spatial_merge_size ** 2
        patches = tensors["image_grid_thw"].prod(1).tolist()  # [n] before merging
        written = image_processor.merge_size**2
        return tensors, regroup([Placed(self.image_token * (n // written), n // tower) for n in patches], rows)

    def check(self, image_processor: Any, pixels: Tensor) -> None:
        """pixels [patches, 3·t·p·p]: a patch of the wrong size would only be found deep inside the tower."""
        tower = self.config.vision_config
        width = 3 * tower.temporal_patch_size * tower.patch_size**2
        if pixels.shape[1] != width:
            raise ValueError(
                f"the image processor gives patches of {pixels.shape[1]} numbers (patch_size "
                f"{image_processor.patch_size}), the vision tower expects {width} (patch_size {tower.patch_size}): "
                "preprocessor_config.json and config.json are not of the same checkpoint"
            )


class Qwen25VL(QwenVL):
    """Qwen2.5-VL's prompts begin with a system line."""

    template = (
        "{% if messages[0].role != 'system' %}"
        "{{ '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}{% endif %}" + QwenVL.template
    )


class Tiled(Layout):
    """SmolVLM and Idefics3: rows × columns of square tiles and the whole picture once more, named in the text."""

    processor = "SmolVLMImageProcessor"
    template = (
        "<|im_start|>{% for m in messages %}{{ m.role.capitalize() + ':' }}"
        "{% if m.content[0].type != 'image' %}{{ ' ' }}{% endif %}"
        "{% for c in m.content %}{% if c.type == 'image' %}{{ '<image>' }}{% else %}{{ c.text }}{% endif %}{% endfor %}"
        "{{ '<end_of_utterance>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
    )

    def place(self, image_processor: Any, rows: Rows) -> tuple[dict[str, Tensor], list[list[Placed]]]:
        holding = [row for row, pictures in enumerate(rows) if pictures]
        out = image_processor(
            images=[list(rows[row]) for row in holding], return_tensors="pt", return_row_col_info=True
        )
        tensors = {}
        for name in ("pixel_values", "pixel_attention_mask"):
            if name in out:  # a row without pictures holds empty tiles, which the tower leaves out
                full = out[name].new_zeros((len(rows), *out[name].shape[1:]))
                full[holding] = out[name]
                tensors[name] = full  # [B, tiles, (3,) h, w]
        cells = [list(zip(out["rows"][i], out["cols"][i])) for i in range(len(holding))]
        height, width = tensors["pixel_values"].shape[-2:]
        per_tile = self.given(height, width)
        flat = [Placed(self.written(r, c, height, width), (r * c + 1) * per_tile) for r, c in chain(*cells)]
        placed = regroup(flat, rows)
        check_tiles(tensors["pixel_values"], [sum(p.tokens for p in row) // per_tile for row in placed])
        return tensors, placed

    def given(self, height: int, width: int) -> int:
        """Tokens the tower gives per tile: 64 for 512/16 at scale 4, 81 for 378/14 at scale 3."""
        patch = self.config.vision_config.patch_size
        return (height // patch) * (width // patch) // self.config.scale_factor**2

    def written(self, rows: int, columns: int, height: int, width: int) -> str:
        fake = "<fake_token_around_image>"
        tile = self.image_token * (self.files.get("image_seq_len") or self.given(height, width))
        lines = [
            "".join(f"{fake}<row_{r + 1}_col_{c + 1}>{tile}" for c in range(columns)) + "\n" for r in range(rows)
        ]
        return "".join(lines) + ("\n" if rows else "") + f"{fake}<global-img>{tile}{fake}"


def check_tiles(pixels: Tensor, tiles: list[int]) -> None:
    """pixels [B, T, 3, h, w]: the tower drops tiles that are zero everywhere, so none of a picture's may be."""
    real = (pixels.flatten(2).abs().amax(2) != 0).sum(1).tolist()  # [B]
    if real != tiles:
        raise ValueError(
            f"tiles per row: the pictures were cut into {tiles}, {real} of them are not all zero, and the vision tower "
            "drops the others: image_mean in preprocessor_config.json maps a whole tile to 0"
        )


LAYOUTS: dict[str, type[Layout]] = {
    "llava": Llava,
    "qwen2_5_vl": Qwen25VL,
    "qwen3_vl": QwenVL,
    "smolvlm": Tiled,
    "idefics3": Tiled,
}
