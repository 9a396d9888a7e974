"""Attention rows without attention matrices, through the library's own AttentionInterface.

For one attention module and one forward, `recording` hands queries, keys and mask to a recorder on their way into the
backend; the asked rows are computed later, in fp32 and in blocks, over all keys: never n × n. The module sees a private
copy of its config for that time, so masks, other layers and other models keep the backend they had.
This module knows attention. It does not know stations, pictures or caches.
"""

import copy
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

try:
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface
except ImportError as error:  # pragma: no cover - every 5.x has it
    raise ImportError("mmaccel needs transformers ≥ 5.17 with AttentionMaskInterface") from error

PREFIX = "mmaccel_"
BLOCK_ELEMENTS = 1 << 25  # logits computed at a time: 128 MiB in fp32


@dataclass(frozen=True)
class Record:
    """What one attention call was given. query: [B, H, n, d]; key: [B, Hkv, m, d], past first; the backend's mask."""

    query: Tensor
    key: Tensor
    mask: Tensor | None
    scale: float


class Captured(Exception):
    """Raised inside the attention call to stop a dry run once queries and keys are known."""


Recorder = Callable[[Record], None]


@contextmanager
def recording(module: nn.Module, recorder: Recorder, *, dry: bool = False) -> Iterator[None]:
    """While open, every attention call of `module` is shown to `recorder`; `dry` stops the call there (`Captured`)."""
    own: Any = module.config
    private = copy.copy(own)
    private._attn_implementation = _register(own._attn_implementation or "eager")
    private._mmaccel_recorder = (recorder, dry)
    module.config = private
    try:
        yield
    finally:
        module.config = own


def _register(backend: str) -> str:
    """The observing twin of a backend; its name holds "flash" exactly when the backend's does."""
    name = backend if backend.startswith(PREFIX) else PREFIX + backend
    if name not in ALL_ATTENTION_FUNCTIONS.valid_keys():
        AttentionInterface.register(name, _observed(backend))
        # without a mask function of the same name a mask would silently become None
        if backend in ALL_MASK_ATTENTION_FUNCTIONS.valid_keys():
            AttentionMaskInterface.register(name, ALL_MASK_ATTENTION_FUNCTIONS[backend])
    return name


def _observed(backend: str) -> Callable:
    def forward(module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **kwargs: Any) -> Any:
        recorder, dry = module.config._mmaccel_recorder
        scale = kwargs.get("scaling")
        recorder(Record(query, key, attention_mask, query.shape[-1] ** -0.5 if scale is None else scale))
        if dry:
            raise Captured
        if backend == "eager":
            inner = sys.modules[type(module).__module__].eager_attention_forward
        else:
            inner = ALL_ATTENTION_FUNCTIONS[backend]
        return inner(module, query, key, value, attention_mask, **kwargs)

    return forward


def attention_rows(record: Record, rows: Tensor, visible: Tensor | None) -> Tensor:
    """[B, H, r, m] softmax rows in fp32 of the queries at `rows` [B, r] (-1 = an empty row of zeros) over all keys.

    visible: [B, r, m] bool, read where the backend got no 4-D mask; None = every key is seen.
    """
    B, H, _, d = record.query.shape
    groups = H // record.key.shape[1]
    key = record.key.float()  # [B, Hkv, m, d]
    step = max(1, BLOCK_ELEMENTS // max(1, B * H * key.shape[2]))
    blocks = []
    for start in range(0, rows.shape[1], step):
        at = rows[:, start : start + step]  # [B, s]
        take = at.clamp(min=0)[:, None, :, None].expand(-1, H, -1, d)
        query = record.query.gather(2, take).float()  # [B, H, s, d]
        query = query.view(B, H // groups, groups, -1, d)
        logits = torch.einsum("bkgsd,bkmd->bkgsm", query, key).flatten(1, 2) * record.scale  # [B, H, s, m]
        logits = _masked(logits, record.mask, at, None if visible is None else visible[:, start : start + step])
        blocks.append(logits.softmax(-1).masked_fill((at < 0)[:, None, :, None], 0.0))
    return torch.cat(blocks, 2)


def _masked(logits: Tensor, mask: Tensor | None, rows: Tensor, visible: Tensor | None) -> Tensor:
    if mask is not None and mask.ndim == 4:
        B, width = len(rows), mask.shape[-1]
        at = rows.clamp(min=0)[:, None, :, None].expand(-1, mask.shape[1], -1, width)
        picked = mask.expand(B, -1, -1, -1).gather(2, at)  # [B, H|1, s, m]
        if picked.dtype != torch.bool:
            return logits + picked.float()
        return logits.masked_fill(~picked, torch.finfo(logits.dtype).min)
    if visible is not None:
        return logits.masked_fill(~visible[:, None], torch.finfo(logits.dtype).min)
    return logits


def column_means(record: Record) -> Tensor:
    """[B, H, m] the mean over all rows, in blocks: the score of a tower without CLS. Full attention only."""
    n = record.query.shape[2]
    B = len(record.query)
    total: Tensor | None = None
    step = max(1, BLOCK_ELEMENTS // max(1, B * record.query.shape[1] * record.key.shape[2]))
    for start in range(0, n, step):
        rows = torch.arange(start, min(n, start + step), device=record.query.device).expand(B, -1)
        part = attention_rows(record, rows, None).sum(2)
        total = part if total is None else total + part
    assert total is not None
    return total / n
