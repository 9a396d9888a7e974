"""The decoder layer of a draft head: grouped attention with rotary positions over its own keys, and the training form
in which later steps see their own guesses.

Knows tensors only. Weights carry the names that published heads carry.
"""

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Sizes:
    """Of a draft layer. width: of the residual stream.  read: width of what attention reads (2 × width in EAGLE-3).
    vocabulary, positions: the target's, which only a file's reader needs.  sections, interleaved: of the target's
    M-RoPE, how many pairs of a head turn by time, height and width, in blocks or by turns."""

    width: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    rope_theta: float = 10000.0
    eps: float = 1e-5
    qkv_bias: bool = False
    read: int = 0
    vocabulary: int = 0
    positions: int = 0
    sections: tuple[int, ...] = ()
    interleaved: bool = False

    def __post_init__(self) -> None:
        if self.sections and (len(self.sections) != 3 or sum(self.sections) != self.head_dim // 2):
            raise ValueError(f"sections: got {self.sections}, valid are three that add up to {self.head_dim // 2}")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads: got {self.heads} over {self.kv_heads} key/value heads, valid are multiples")

    @property
    def reads(self) -> int:
        return self.read or self.width


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), x.shape[-1:], None, self.eps).to(x.dtype) * self.weight


def turned(position: Tensor, sizes: Sizes) -> tuple[Tensor, Tensor]:
    """(cos, sin), both [B, 1, q, d / 2] in fp32, of position [1, B, q], or [3, B, q] where pairs turn by time, height
    and width."""
    angle = position[..., None].float() * rates(sizes, position.device)  # [A, B, q, d / 2]
    if len(position) > 1:
        axis = axes_of(sizes).to(angle.device).expand(1, *angle.shape[1:])
        angle = angle.gather(0, axis)
    angle = angle[0][:, None]
    return angle.cos(), angle.sin()


@functools.cache
def rates(sizes: Sizes, device: torch.device) -> Tensor:
    half = sizes.head_dim // 2
    return sizes.rope_theta ** -(torch.arange(half, device=device, dtype=torch.float32) / half)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [B, H, q, d]; halves are rotated as in Llama."""
    low, high = x.chunk(2, -1)
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)


def axes_of(sizes: Sizes) -> Tensor:
    """[d / 2] which axis turns each pair: in blocks as Qwen2.5-VL, or time, height, width by turns as Qwen3-VL."""
    if not sizes.interleaved:
        return torch.arange(3).repeat_interleave(torch.tensor(sizes.sections))
    axis = torch.zeros(sum(sizes.sections), dtype=torch.long)
    for one in (1, 2):
        axis[one : 3 * sizes.sections[one] : 3] = one
    return axis


ROOM = 64  # slots that a buffer has beyond what it needs when it is made


@dataclass
class Keys:
    """Of the columns that were run. keys, values: [B, Hkv, room, d], of which the first `length` are held; what a draft
    lays behind them is written over.  valid: [B, length] slots that are a row's own.  whole: all of them, for sure."""

    keys: Tensor
    values: Tensor
    valid: Tensor
    whole: bool = True

    @classmethod
    def none(cls, rows: int, sizes: Sizes, device: Any, dtype: torch.dtype) -> "Keys":
        empty = torch.empty(rows, sizes.kv_heads, 0, sizes.head_dim, device=device, dtype=dtype)
        return cls(empty, empty, torch.empty(rows, 0, dtype=torch.bool, device=device))

    @property
    def length(self) -> int:
        return self.valid.shape[1]

    def lay(self, keys: Tensor, values: Tensor, after: int = 0) -> tuple[Tensor, Tensor]:
        """Writes them `after` slots behind what is held; views of everything up to there."""
        begin = self.length + after
        end = begin + keys.shape[2]
        if end > self.keys.shape[2]:
            more = end + ROOM - self.keys.shape[2]
            self.keys, self.values = (F.pad(x, (0, 0, 0, more)) for x in (self.keys, self.values))
        self.keys[:, :, begin:end], self.values[:, :, begin:end] = keys, values
        return self.keys[:, :, :end], self.values[:, :, :end]

    def hold(self, valid: Tensor, whole: bool) -> None:
        """The next valid.shape[1] slots are held from now on."""
        self.valid, self.whole = torch.cat([self.valid, valid], 1), self.whole and whole

    def mask(self, more: Tensor | None = None) -> Tensor | None:
        """[B, k, length + n] with more [B, k, n] bool behind; [B, 1, length] without; None where all is seen."""
        if more is None:
            return None if self.whole else self.valid[:, None]
        return torch.cat([self.valid[:, None].expand(-1, more.shape[1], -1), more], 2)

    def select(self, rows: Tensor) -> "Keys":
        return Keys(self.keys[rows], self.values[rows], self.valid[rows], self.whole)

    def fork(self) -> "Keys":
        return Keys(self.keys.clone(), self.values.clone(), self.valid, self.whole)


class Attention(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        wide, narrow = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
        self.q_proj = nn.Linear(sizes.reads, wide, bias=sizes.qkv_bias)
        self.k_proj = nn.Linear(sizes.reads, narrow, bias=sizes.qkv_bias)
        self.v_proj = nn.Linear(sizes.reads, narrow, bias=sizes.qkv_bias)
        self.o_proj = nn.Linear(wide, sizes.width, bias=False)

    def heads(self, x: Tensor, position: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x [B, q, reads] at position [A, B, q] → q [B, H, q, d], k, v [B, Hkv, q, d]."""
        q, k, v = (
            proj(x).unflatten(-1, (-1, self.sizes.head_dim)).transpose(1, 2)
            for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        cos, sin = turned(position, self.sizes)
        return rotated(q, cos, sin), rotated(k, cos, sin), v

    def forward(self, q: Tensor, keys: Tensor, values: Tensor, seen: Tensor | None) -> Tensor:
        """q [B, H, q, d], few of them, over keys [B, Hkv, L, d], seen [B, q, L] bool or None = all → [B, q, width]."""
        (B, H, n, d), groups = q.shape, keys.shape[1]
        score = q.reshape(B, groups, -1, d) @ keys.transpose(2, 3) * d**-0.5  # [B, Hkv, H / Hkv · q, L]
        if seen is not None:
            parted = score.view(B, groups, H // groups, n, -1)
            score = parted.masked_fill(~seen[:, None, None], -torch.inf).flatten(2, 3)
        mixed = score.float().softmax(-1).to(values.dtype) @ values  # [B, Hkv, H / Hkv · q, d]
        return self.o_proj(mixed.view(B, H, n, d).transpose(1, 2).flatten(2))

    def unrolled(self, q: Tensor, keys: list[Tensor], values: list[Tensor], seen: Tensor) -> Tensor:
        """Training: q of step i over the true keys of step 0 ([B, Hkv, n, d], seen [B, q, n]) and, of each later step
        ([B, Hkv, q, d]), the key at its own place alone: what a draft of depth i sees. → [B, q, width]."""
        groups = self.sizes.heads // self.sizes.kv_heads
        wide_k, wide_v = ([x.repeat_interleave(groups, 1) for x in side] for side in (keys, values))
        scale = self.sizes.head_dim**-0.5
        score = (q @ wide_k[0].transpose(2, 3) * scale).masked_fill(~seen[:, None], torch.finfo(q.dtype).min)
        own = [(q * k).sum(-1, keepdim=True) * scale for k in wide_k[1:]]  # [B, H, q, 1]
        share = torch.cat([score, *own], -1).float().softmax(-1).to(q.dtype)
        n = seen.shape[2]
        mixed = share[..., :n] @ wide_v[0]
        for at, value in enumerate(wide_v[1:]):
            mixed = mixed + share[..., n + at : n + at + 1] * value
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(sizes.width, sizes.ffn, bias=False)
        self.up_proj = nn.Linear(sizes.width, sizes.ffn, bias=False)
        self.down_proj = nn.Linear(sizes.ffn, sizes.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
