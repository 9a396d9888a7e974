"""The target of one batch of conversations: prefill, verify a draft in one forward, commit what was accepted.

Knows the model's call, its cache, positions and masks. Does not know sampling, stopping or draft heads.
Positions are carried from the prefill's own `position_ids`, per row and axis; they count no dead column, and the
model's `rope_deltas` is never read.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from mmaccel.attach import attach
from mmaccel.cache import CACHE_NAMES, adopt, cache_in, commit, logical_length
from mmaccel.decoding.look import Look
from mmaccel.decoding.watch import Watch
from mmaccel.drafting.base import Draft, DraftHead, Seen, image_token
from mmaccel.pruning.ghost import Ghost

OWN = {"position_ids", "attention_mask", "logits_to_keep", "inputs_embeds", *CACHE_NAMES}  # set anew in every step
TYPES = ("token_type_ids", "mm_token_type_ids", "moe_mm_token_type_ids")


class Verifier:
    """Columns are logical. A step opens the same columns for every row; a finished row keeps none of them.

    mask: [B, L] of the committed columns, or None while all of them are open to every running row.
    position: [B, 1] or [axes, B, 1] of the next column.
    """

    def __init__(self, model: Any, model_kwargs: dict[str, Any], running: list[bool], head: DraftHead) -> None:
        """running: which rows have not ended, kept up to date by the caller."""
        self.model, self.running, self.shape = model, running, head.shape
        self.watch = Watch(model, head.taps) if head.watches else None
        self.look = None if head.looks is None else Look(model, head.looks)
        self.pruner, self.shown = head.pruner, list[tuple[Tensor, Tensor]]()
        self.given, self.rows = model_kwargs, len(running)
        if model_kwargs.get("position_ids") is None:
            raise ValueError(f"{type(model).__name__}: got no position_ids, valid are models whose forward takes them")
        self.additive = _additive(model, head.shape)
        self.opened: list[bool] = []  # the rows that `open` was made for

    def prefill(self, ids: Tensor, generation_config: Any) -> Tensor:
        """[B, 1, V] the logits after the prompt."""
        ghost: AbstractContextManager[Any] = nullcontext()
        if self.pruner is not None:
            ghost = attach(self.model, Ghost(self.pruner, lambda *told: self.shown.append(told)))
        with ghost, self.watch or nullcontext():
            outputs = self.model._prefill(ids, generation_config, self.given, is_first_iteration=True)
        cache = cache_in(outputs)
        if cache is None:
            raise ValueError(f"{type(self.model).__name__}: returned no key-value cache, which decoding needs")
        self.cache, self.cache_name = cache, next(name for name in CACHE_NAMES if name in outputs)
        if self.shape != "none":
            adopt(self.cache)  # raises for layers whose last slots cannot be taken back one by one
        self.mask: Tensor | None = self.given.get("attention_mask")
        position, skip = self.given["position_ids"], self.given["position_ids"].shape[-1] - ids.shape[1]
        self.prompt = self._seen_prompt(ids, position[..., skip:])
        if self.shown:
            self.prompt = self.prompt.where(self._drafted(ids.shape[1]))
        if self.look is not None:
            before = ids.new_full((self.rows, logical_length(self.cache) - ids.shape[1]), -1)
            image = image_token(self.model.config)
            self.look.prompt(self.cache, torch.cat([before, ids], 1) == (-2 if image is None else image))
        last = position[..., -1:]
        self.position = last.expand(*last.shape[:-2], self.rows, 1) + 1
        self.types = {name: self.given[name][..., -1:] for name in TYPES if self.given.get(name) is not None}
        self.limited = "logits_to_keep" in self.given
        self.given = {name: value for name, value in self.given.items() if name not in OWN and name not in TYPES}
        return outputs.logits[:, -1:].float()

    def verify(self, token: Tensor, draft: Draft) -> Tensor:
        """[B, 1+t, V] the logits after `token` [B] and after every node of the draft below it."""
        q = 1 + draft.size
        self.ids, self.draft = torch.cat([token[:, None], draft.tokens], 1), draft  # [B, 1+t]
        self.at = self.position + draft.depth if draft.size else self.position
        self.seen_mask = self._mask(draft)
        inputs = self.model.prepare_inputs_for_generation(
            self.ids,
            attention_mask=self.seen_mask,
            position_ids=self.at,
            **{self.cache_name: self.cache},
            **({"logits_to_keep": q} if self.limited else {}),
            **{name: _types(name, last, q) for name, last in self.types.items()},
            **self.given,
        )
        with self.watch or nullcontext(), self.look.step() if self.look else nullcontext():
            return self.model(**inputs, return_dict=True).logits[:, -q:].float()

    def commit(self, path: Tensor, kept: list[int]) -> Seen:
        """Keeps each row's first `kept` of [token, *path] (0: the row had ended before). Returns the new columns."""
        if self.draft.size == 0:
            if self.mask is not None:
                self.mask = self.seen_mask
            self.position = self.position + 1
            ended = None if all(self.running) else torch.tensor(kept).to(self.ids.device)[:, None] > 0  # [B, 1]
            return self._seen_step(self.ids, self.at, ended, None)
        device, longest = self.ids.device, max(kept)
        count = torch.tensor(kept).to(device)[:, None]  # [B, 1]
        keep: Any = torch.zeros_like(self.ids, dtype=torch.bool)  # [B, 1+t]
        keep.scatter_(1, path + 1, torch.arange(path.shape[1], device=device) < count - 1)
        keep[:, :1] = count > 0
        commit(self.cache, keep.shape[1], keep)
        valid = torch.arange(longest, device=device) >= longest - count  # [B, m] right-aligned
        if self.mask is not None or len({n for n in kept if n}) > 1:
            past = self._past(logical_length(self.cache) - longest)
            self.mask = torch.cat([past, valid.to(past.dtype)], 1)
        self.position = self.position + count
        order = keep.to(torch.int8).argsort(dim=1, stable=True)[:, keep.shape[1] - longest :]  # [B, m]
        at = self.at.gather(-1, order.expand(*self.at.shape[:-1], longest))
        return self._seen_step(self.ids.gather(1, order), at, valid, order)

    def _seen_prompt(self, ids: Tensor, position: Tensor) -> Seen:
        """The prompt's columns that reached the end, with what the head reads of them."""
        valid = None if self.mask is None else self.mask[:, self.mask.shape[1] - ids.shape[1] :].bool()
        if self.watch is None:
            return Seen(ids, position, valid)
        if self.watch.embeds is None or self.watch.embeds.shape[1] < ids.shape[1]:
            raise ValueError(
                "prefill_chunk_size: valid is None with a head that reads hidden states of the whole prompt"
            )
        return self.watch.prompt(self.cache, ids, position, valid, image_token(self.model.config))[0]

    def _drafted(self, length: int) -> Tensor:
        """[B, N] which of the prompt's columns the draft's pruner keeps."""
        column, keep = self.shown.pop()  # [B, q]
        place = column - (logical_length(self.cache) - length)
        kept = torch.zeros(self.rows, length + 1, dtype=torch.bool, device=column.device)
        kept.scatter_(1, place.masked_fill(~keep, length), True)  # the last place takes what is not kept
        return kept[:, :-1]

    def _seen_step(self, ids: Tensor, position: Tensor, valid: Tensor | None, order: Tensor | None) -> Seen:
        """order: [B, m] which places of the step's block these are, None = all of it."""
        looked = None
        if self.look is not None:
            looked = self.look.share(ids.new_zeros(self.rows) if order is None else order[:, -1])
        if self.watch is None:
            return Seen(ids, position, valid, looked=looked)

        def those(states: Tensor | None) -> Tensor:
            assert states is not None
            return states if order is None else states.gather(1, order[..., None].expand(-1, -1, states.shape[2]))

        watch = self.watch
        taps = tuple(those(watch.taps[tap]) for tap in watch.wanted)
        visual = torch.zeros_like(ids, dtype=torch.bool)
        return Seen(ids, position, valid, those(watch.hidden), taps, those(watch.embeds), visual, looked)

    def _mask(self, draft: Draft) -> Tensor | None:
        q = 1 + draft.size
        if draft.size and self.shape == "tree":
            past = self._past(logical_length(self.cache)).bool()
            visible = torch.cat([past[:, None].expand(-1, q, -1), draft.sees], 2)[:, None]  # [B, 1, q, L + q]
            if self.additive is None:
                return visible
            closed = torch.finfo(self.additive).min
            return torch.zeros_like(visible, dtype=self.additive).masked_fill_(~visible, closed)
        if self.mask is None:
            return None
        if self.running != self.opened:
            self.opened, self.open = list(self.running), self.mask.new_tensor(self.running)[:, None]  # [B, 1]
        return torch.cat([self.mask, self.open.expand(-1, q)], 1)

    def _past(self, length: int) -> Tensor:
        """[B, L] open committed columns."""
        if self.mask is not None:
            return self.mask
        return torch.ones(self.rows, length, dtype=torch.long, device=self.ids.device)


def _types(name: str, last: Tensor, q: int) -> Tensor:
    """[B, q] token types of new text: as the last token's, except that the picture's types have 0 for text."""
    last = last.expand(-1, q)
    return last if name == "token_type_ids" else torch.zeros_like(last)


def _additive(model: Any, shape: str) -> torch.dtype | None:
    """The float dtype of the masks a tree is verified with, None where they are bool."""
    backend = model.config.get_text_config(decoder=True)._attn_implementation or "eager"
    if shape == "tree" and any(name in backend for name in ("flash", "flex")):
        raise ValueError(
            f"attention: got {backend} with a head that drafts trees, valid are sdpa and eager (no 4-D masks there); "
            "a head that drafts chains runs on every backend"
        )
    return model.dtype if "eager" in backend else None
