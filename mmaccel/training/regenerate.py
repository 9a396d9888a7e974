"""Answers in the target's own words, which are what a draft head has to guess: conversations in, LLaVA records out.

Every turn of the assistant is said anew in order, each after what was said anew before it. An answer that did not end
within its length is no answer, and its conversation is left out. Knows a loaded VLM and messages. Does not know heads.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from mmaccel.attach import attach
from mmaccel.measure.record import write_atomic
from mmaccel.models.inputs import prepared
from mmaccel.training.data import MARK, Conversation, Message

FROM = {"user": "human", "assistant": "gpt", "system": "system"}


def regenerated(
    vlm: Any, conversations: Sequence[Sequence[Message]], options: Mapping[str, Any], pruner: Any | None = None
) -> list[list[Message] | None]:
    """The same conversations with the target's answers; None where one of them did not end.

    options: for `generate`, max_new_tokens among them.  pruner: the answers of the target under it.
    """
    told: list[list[Message] | None] = [[] for _ in conversations]
    for turn in range(max(map(len, conversations))):
        asks: list[int] = []
        for row, messages in enumerate(conversations):
            said = told[row]
            if said is None or turn >= len(messages):
                continue
            if messages[turn]["role"] == "assistant":
                asks.append(row)
            else:
                said.append(messages[turn])
        prompts = [said for row in asks if (said := told[row]) is not None]
        if not prompts:
            continue
        for row, answer in zip(asks, answered(vlm, prompts, options, pruner)):
            said = told[row]
            if said is not None and answer is not None:
                said.append({"role": "assistant", "content": answer})
            else:
                told[row] = None
    return told


def answered(
    vlm: Any, prompts: Sequence[Sequence[Message]], options: Mapping[str, Any], pruner: Any | None
) -> list[str | None]:
    inputs = vlm.inputs(prompts)
    with nullcontext() if pruner is None else attach(vlm.model, pruner):
        sequences = vlm.model.generate(**inputs, **options)
    stops, found = set(vlm.stop_ids), list[str | None]()
    for ids in sequences[:, inputs["input_ids"].shape[1] :].tolist():
        text = vlm.tokenizer.decode(ids, skip_special_tokens=True).strip()
        found.append(text if stops & set(ids) and text and MARK not in text else None)
    return found


def record(
    conversation: Conversation, messages: Sequence[Message], index: int, folder: Path, limit: int
) -> dict[str, Any]:
    """One LLaVA record; pictures of at most `limit` pixels are written under folder/images.  index: the conversation's
    place in its source."""
    pictures: list[str] = []
    turns: list[dict[str, str]] = []
    for message in messages:
        content = message["content"]
        parts: list[Any] = [{"type": "text", "text": content}] if isinstance(content, str) else content
        said: list[str] = []
        for part in parts:
            if part["type"] == "image":
                pictures.append(f"{index:07d}-{len(pictures)}.png")
                picture = prepared(part["image"], limit, conversation.id)  # upright and in RGB, as the target saw it
                picture.save(folder / "images" / pictures[-1])
                said.append(MARK)
            else:
                said.append(part["text"])
        turns.append({"from": FROM[message["role"]], "value": "\n".join(said)})
    return {"id": conversation.id, "index": index, "image": pictures, "conversations": turns}


def written(file: Path) -> list[dict[str, Any]]:
    """The records of a run that may have been killed while it wrote; a torn last line is cut off the file."""
    if not file.is_file():
        return []
    *lines, torn = file.read_text(encoding="utf-8").split("\n")  # a text may hold other marks that end a line
    if torn:
        write_atomic(file, "".join(f"{line}\n" for line in lines))
    return [json.loads(line) for line in lines]
