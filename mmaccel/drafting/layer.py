"""The decoder layer of a draft head: grouped attention with rotary positions over its own keys, and the training form
in which later steps see their own guesses.

Knows tensors only. Weights carry the names that published heads carry.
"""

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


def rotated(x: Tensor, position: Tensor, sizes: Sizes) -> Tensor:
    """x [B, H, q, d] at position [1, B, q], or [3, B, q] where pairs turn by time, height and width; halves are rotated
    as in Llama."""
    half = x.shape[-1] // 2
    rate = sizes.rope_theta ** -(torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angle = position[..., None].float() * rate  # [A, B, q, d / 2]
    if len(position) > 1:
        axis = axes_of(sizes).to(x.device).expand(1, *angle.shape[1:])
        angle = angle.gather(0, axis)
    angle = angle[0][:, None]  # [B, 1, q, d / 2]
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    low, high = x[..., :half], x[..., half:]
    return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)


def axes_of(sizes: Sizes) -> Tensor:
    """[d / 2] which axis turns each pair: in blocks as Qwen2.5-VL, or time, height, width by turns as Qwen3-VL."""
    if not sizes.interleaved:
        return torch.arange(3).repeat_interleave(torch.tensor(sizes.sections))
    axis = torch.zeros(sum(sizes.sections), dtype=torch.long)
    for one in (1, 2):
        axis[one : 3 * sizes.sections[one] : 3] = one
    return axis


@dataclass
class Keys:
    """keys, values: [B, Hkv, L, d].  valid: [B, L] slots that are a row's own."""

    keys: Tensor
    values: Tensor
    valid: Tensor

    @classmethod
    def none(cls, rows: int, sizes: Sizes, device: Any, dtype: torch.dtype) -> "Keys":
        empty = torch.empty(rows, sizes.kv_heads, 0, sizes.head_dim, device=device, dtype=dtype)
        return cls(empty, empty, torch.empty(rows, 0, dtype=torch.bool, device=device))

    def append(self, keys: Tensor, values: Tensor, valid: Tensor) -> "Keys":
        return Keys(
            torch.cat([self.keys, keys], 2), torch.cat([self.values, values], 2), torch.cat([self.valid, valid], 1)
        )

    def select(self, rows: Tensor) -> "Keys":
        return Keys(self.keys[rows], self.values[rows], self.valid[rows])


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
        return rotated(q, position, self.sizes), rotated(k, position, self.sizes), v

    def forward(self, q: Tensor, keys: Tensor, values: Tensor, seen: Tensor) -> Tensor:
        """q [B, H, q, d] over keys [B, Hkv, L, d], seen [B, q, L] bool → [B, q, width]."""
        mixed = F.scaled_dot_product_attention(q, keys, values, seen[:, None], enable_gqa=True)  # [B, H, q, d]
        return self.o_proj(mixed.transpose(1, 2).flatten(2))

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
