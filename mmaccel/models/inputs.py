"""Conversations in, exactly what the model's forward and generate take out.

Processor joins a checkpoint's tokenizer, image processor, chat template and config: it renders the template, places the
pictures, counts, tokenises once and pads on the left. One path for all families and machines: the library's own
processors are not used, since those of Qwen-VL and SmolVLM cannot be built without torchvision. It needs no weights, so
a run can count its tokens before anything is loaded. It does not know devices' memory, hooks or caches.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageOps
from torch import BoolTensor, Tensor

from mmaccel.models.pictures import LAYOUTS, Layout, Placed, image_processor_class
from mmaccel.models.preprocess import differing, with_settings

Message = Mapping[str, Any]  # {"role": "user" | "assistant" | "system", "content": str | list[Part]}
Part = Mapping[str, Any]  # {"type": "image", "image": PIL} | {"type": "text", "text": str}
Conversation = Sequence[Message]
PICTURE_LIMIT = 89_478_485  # pixels; Pillow's own decompression-bomb line, where it only warns
STRETCHED = 200  # longer over shorter side; Qwen-VL's own line, and what bounds a resize by the shorter side


@dataclass(frozen=True, eq=False)
class Inputs(Mapping[str, Tensor]):
    """A mapping of what the model takes: `model.generate(**inputs)`. Rows are padded on the left."""

    tensors: dict[str, Tensor]
    visual_tokens: list[int]  # per row
    prompt_tokens: list[int]  # per row, without padding
    prompt_hash: list[str]  # per row: sha256 of its ids
    answer: BoolTensor | None = None  # [B, q] tokens of assistant turns, stop token included where the template has one

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def to(self, device: str | torch.device) -> "Inputs":
        moved = {name: tensor.to(device) for name, tensor in self.tensors.items()}
        answer = None if self.answer is None else self.answer.to(device)
        return Inputs(moved, self.visual_tokens, self.prompt_tokens, self.prompt_hash, answer)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Row:
    """One conversation, tokenised. `answer` marks the tokens of assistant turns."""

    ids: list[int]
    answer: list[bool]


@dataclass(frozen=True)
class Processor:
    """A checkpoint's tokenizer, image processor and prompt format. `max_pixels` bounds a picture as it comes in."""

    tokenizer: Any
    image_processor: Any
    layout: Layout
    template: str  # Jinja
    max_pixels: int = PICTURE_LIMIT
    files: Mapping[str, str] = field(default_factory=dict)  # name → sha256 of the files it was read from
    written: Mapping[str, Any] = field(default_factory=dict)  # what the checkpoint says of its pictures
    own: Any = None  # the image processor that the checkpoint's files alone make

    @classmethod
    def load(
        cls, folder: Path, *, max_pixels: int | None = None, trust_remote_code: bool = False,
        settings: Mapping[str, Any] | None = None,
    ) -> "Processor":  # fmt: skip
        """settings: of the image processor, in the place of the checkpoint's own."""
        from transformers import AutoConfig, AutoTokenizer

        whole = isinstance(max_pixels, int) and not isinstance(max_pixels, bool)
        if max_pixels is not None and not (whole and max_pixels > 0):
            raise ValueError(f"model.max_pixels: got {max_pixels!r}, valid are null and whole numbers from 1 on")
        config = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
        written = read_json(folder / "processor_config.json")
        kind = LAYOUTS[config.model_type]
        named = read_json(folder / "preprocessor_config.json") or written.get("image_processor", {})
        own = image_processor_class(named.get("image_processor_type"), kind.processor).from_pretrained(folder)
        layout = kind(config, written, image_token(config, tokenizer))
        template = chat_template(folder, written, tokenizer) or kind.template
        names = ("preprocessor_config.json", "processor_config.json", "tokenizer.json", "tokenizer_config.json")
        return cls(
            tokenizer=tokenizer,
            image_processor=with_settings(own, settings),
            layout=layout,
            template=template,
            max_pixels=max_pixels or PICTURE_LIMIT,
            files={n: hashlib.sha256((folder / n).read_bytes()).hexdigest() for n in names if (folder / n).is_file()},
            written=named,
            own=own,
        )

    @cached_property
    def hash(self) -> str:
        """sha256 over everything that decides what a conversation becomes (`processor_hash` of a record)."""
        facts = {
            "image_processor": self.image_processor.to_dict(),
            "template": self.template,
            "layout": type(self.layout).__name__,
            "files": dict(self.files),
        }
        return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()

    @cached_property
    def differing(self) -> dict[str, list[Any]]:
        """Setting → [the checkpoint's, the one in use] where pictures are not prepared as the checkpoint says."""
        return differing(self.image_processor, self.own or self.image_processor, self.written)

    @property
    def context(self) -> int:
        return self.layout.config.get_text_config().max_position_embeddings

    def inputs(self, conversations: Sequence[Conversation], *, answers: bool = False) -> Inputs:
        """`answers`: the conversations end with their last assistant turn, and `answer` marks what it said."""
        if not conversations:
            raise ValueError("conversations: got none, at least one is needed")
        messages, pictures = self.read(conversations, answers)
        tensors: dict[str, Tensor] = {}
        placed: list[list[Placed]] = [[] for _ in messages]
        if any(pictures):
            tensors, placed = self.layout.place(self.image_processor, pictures)
        rows = [self.row(i, turns, placed[i], answers) for i, turns in enumerate(messages)]
        visual = [sum(p.tokens for p in row) for row in placed]
        for i, row in enumerate(rows):
            self.check(i, row, placed[i])
        return self.collate(rows, tensors, visual, answers)

    def read(self, conversations: Sequence[Conversation], answers: bool) -> tuple[list[list[dict]], list[list]]:
        """Per row its messages in the template's terms, and its pictures in order."""
        messages: list[list[dict]] = []
        pictures: list[list[Image.Image]] = []
        for i, conversation in enumerate(conversations):
            check_roles(i, conversation, answers)
            found: list[Image.Image] = []
            messages.append([self.message(i, turn, found) for turn in conversation])
            pictures.append(found)
        return messages, pictures

    def message(self, row: int, turn: Message, pictures: list[Image.Image]) -> dict:
        content = turn["content"]
        parts: list[dict] = []
        for part in [{"type": "text", "text": content}] if isinstance(content, str) else content:
            if part.get("type") == "image":
                pictures.append(prepared(part["image"], self.max_pixels, f"row {row}, picture {len(pictures)}"))
                parts.append({"type": "image"})
            elif part.get("type") == "text":
                parts.append({"type": "text", "text": self.checked_text(row, part["text"])})
            else:
                raise ValueError(f"row {row}: got a part of type {part.get('type')!r}, valid are 'image' and 'text'")
        return {"role": turn["role"], "content": parts}

    def checked_text(self, row: int, text: str) -> str:
        if self.layout.image_token in text:
            raise ValueError(
                f"row {row}: the text holds {self.layout.image_token!r}, which stands for a picture in this model's "
                "prompts; give the picture as a part of type 'image' and leave the token out of the text"
            )
        return text

    def render(self, messages: list[dict], prompt: bool) -> str:
        return self.tokenizer.apply_chat_template(
            messages, chat_template=self.template, tokenize=False, add_generation_prompt=prompt
        )

    def row(self, index: int, messages: list[dict], placed: list[Placed], answers: bool) -> Row:
        rendered = self.render(messages, prompt=not answers)
        written = rendered.count(self.layout.image_token)
        if written != len(placed):
            raise ValueError(
                f"row {index}: the conversation has {len(placed)} pictures, its chat template wrote "
                f"{self.layout.image_token!r} {written} times"
            )
        text = self.expand(rendered, placed)
        if not answers:
            return Row(self.encode(text)["input_ids"], [])
        encoded = self.encode(text, return_offsets_mapping=True)
        spans = [
            (self.expand(before, placed), len(self.expand(upto, placed)))
            for before, upto in self.answer_texts(index, messages, rendered)
        ]
        return Row(encoded["input_ids"], self.answer_mask(index, encoded, spans))

    def expand(self, text: str, placed: list[Placed]) -> str:
        """`text`, or any beginning of it, with each picture's token written out."""
        pieces = text.split(self.layout.image_token)
        return pieces[0] + "".join(p.text + piece for p, piece in zip(placed, pieces[1:]))

    def encode(self, text: str, **more: Any) -> Any:
        bos = self.tokenizer.bos_token
        begun = bool(bos) and text.startswith(bos)  # as the library's processors: BOS is not added twice
        return self.tokenizer(text, add_special_tokens=not begun, **more)

    def answer_texts(self, index: int, messages: list[dict], rendered: str) -> list[tuple[str, str]]:
        """Per assistant turn: the text before its answer, and the text up to the answer's end."""
        found = []
        for turn, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            before = self.render(messages[:turn], prompt=True)
            upto = self.render(messages[: turn + 1], prompt=False)
            if not (rendered.startswith(upto) and upto.startswith(before)):
                raise ValueError(
                    f"row {index}, turn {turn}: this chat template writes the beginning of a conversation differently "
                    "once it goes on, so the answer's tokens cannot be told exactly; pass one turn at a time"
                )
            found.append((before, upto.rstrip()))  # a line break after the stop token is the template's own
        return found

    def answer_mask(self, index: int, encoded: Any, spans: list[tuple[str, int]]) -> list[bool]:
        """Marks the tokens of each answer; raises unless the prompt before it is tokenised as generation would."""
        ids, offsets = encoded["input_ids"], encoded["offset_mapping"]
        mask = [False] * len(ids)
        for before, end in spans:
            inside = [i for i, (a, b) in enumerate(offsets) if a < b and b > len(before) and a < end]
            if not inside or not before.strip():
                raise ValueError(f"row {index}: an assistant turn is empty, nothing can be learned from it")
            whole = all(offsets[i][0] >= len(before) and offsets[i][1] <= end for i in inside)
            if not whole or self.encode(before)["input_ids"] != ids[: inside[0]]:
                raise ValueError(
                    f"row {index}: the tokenizer joins the answer to the text around it ({before[-12:]!r} before it), "
                    "so the answer's tokens cannot be told exactly"
                )
            for i in inside:
                mask[i] = True
        return mask

    def check(self, index: int, row: Row, placed: list[Placed]) -> None:
        written = row.ids.count(self.layout.config.image_token_id)
        given = [p.tokens for p in placed]
        if written != sum(given):
            raise ValueError(
                f"row {index}: the prompt holds {written} visual tokens, the vision tower will give {sum(given)} "
                f"({given} per picture): processor_config.json or preprocessor_config.json does not fit config.json"
            )
        if len(row.ids) > self.context:
            raise ValueError(
                f"row {index}: the prompt has {len(row.ids)} tokens ({written} of them visual), "
                f"the model's context is {self.context}"
            )

    def collate(self, rows: list[Row], tensors: dict[str, Tensor], visual: list[int], answers: bool) -> Inputs:
        longest = max(len(row.ids) for row in rows)
        pad = self.pad_token_id
        ids = torch.tensor([[pad] * (longest - len(row.ids)) + row.ids for row in rows])  # [B, q]
        mask = torch.tensor([[0] * (longest - len(row.ids)) + [1] * len(row.ids) for row in rows])
        text = {"input_ids": ids, "attention_mask": mask}
        if self.layout.mrope:
            text["mm_token_type_ids"] = (ids == self.layout.config.image_token_id).long()
        answer = torch.tensor([[False] * (longest - len(row.ids)) + row.answer for row in rows]) if answers else None
        return Inputs(
            {**text, **tensors},
            visual,
            [len(row.ids) for row in rows],
            [hashlib.sha256(json.dumps(row.ids).encode()).hexdigest() for row in rows],
            answer,  # type: ignore[arg-type]
        )

    @property
    def pad_token_id(self) -> int:
        pad = self.tokenizer.pad_token_id
        return self.tokenizer.eos_token_id if pad is None else pad


def check_roles(row: int, conversation: Conversation, answers: bool) -> None:
    roles = [turn.get("role") for turn in conversation]
    if unknown := [role for role in roles if role not in ("system", "user", "assistant")]:
        raise ValueError(f"row {row}: got role {unknown[0]!r}, valid are 'system', 'user' and 'assistant'")
    wanted = "assistant" if answers else "user"
    if not roles or roles[-1] != wanted:
        got = f"ends with {roles[-1]!r}" if roles else "is empty"
        raise ValueError(f"row {row}: the conversation {got}, with answers={answers} it ends with {wanted!r}")


def prepared(image: Any, limit: int, where: str) -> Image.Image:
    """The picture upright and in RGB; `where` names it in errors."""
    if not isinstance(image, Image.Image):
        raise ValueError(f"{where}: got {type(image).__name__}, expected a PIL image")
    width, height = image.size
    if width * height > limit or not width * height:
        raise ValueError(
            f"{where}: {width}×{height} is {width * height / 1e6:.1f} million pixels, the limit is {limit / 1e6:.1f} "
            "(raise it with model.max_pixels=…, or shrink the picture)"
        )
    if max(width, height) > STRETCHED * min(width, height):
        raise ValueError(
            f"{where}: {width}×{height}, one side is more than {STRETCHED} times the other; an image processor that "
            "fits the shorter side would make millions of pixels of it. Crop the picture"
        )
    try:
        upright = ImageOps.exif_transpose(image)
    except (OSError, SyntaxError, Image.DecompressionBombError) as broken:
        raise ValueError(f"{where}: {width}×{height}, cannot be decoded: {broken}") from broken
    if upright.mode.startswith("I;16"):  # Pillow would clip 16-bit grey to 255
        upright = upright.convert("I").point(lambda value: value / 256).convert("L")
    return upright if upright.mode == "RGB" else upright.convert("RGB")


def image_token(config: Any, tokenizer: Any) -> str:
    """The token of the config's image_token_id; a tokenizer of another checkpoint shows here."""
    token = config.image_token_id
    if token not in tokenizer.added_tokens_decoder:
        there = tokenizer.convert_ids_to_tokens(token) if token < len(tokenizer) else None
        raise ValueError(
            f"config.json gives image token {token}, the tokenizer ({len(tokenizer)} tokens) has {there!r} there, "
            "which is no special token: tokenizer and model are not of the same checkpoint"
        )
    return tokenizer.added_tokens_decoder[token].content


def chat_template(folder: Path, written: Mapping[str, Any], tokenizer: Any) -> str | None:
    """The checkpoint's prompt format, looked for where the library's processors look, in their order."""
    found = written.get("chat_template") or read_json(folder / "chat_template.json").get("chat_template")
    if not found and (folder / "chat_template.jinja").is_file():
        found = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    found = found or tokenizer.chat_template
    return found.get("default") if isinstance(found, Mapping) else found


def read_json(path: Path) -> dict[str, Any]:
    """A checkpoint's JSON file, {} where there is none."""
    if not path.is_file():
        return {}
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as broken:
        raise ValueError(f"{path}: not valid JSON: {broken}") from broken
