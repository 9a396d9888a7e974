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
    vocabulary, positions: the target's, which only a file's reader needs."""

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

    def __post_init__(self) -> None:
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


def rotated(x: Tensor, position: Tensor, theta: float) -> Tensor:
    """x [B, H, q, d] at position [B, q], halves rotated as in Llama."""
    half = x.shape[-1] // 2
    rate = theta ** -(torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angle = position[:, None, :, None].float() * rate  # [B, 1, q, d / 2]
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    low, high = x[..., :half], x[..., half:]
    return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)


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
        """x [B, q, reads] → q [B, H, q, d], k, v [B, Hkv, q, d]."""
        q, k, v = (
            proj(x).unflatten(-1, (-1, self.sizes.head_dim)).transpose(1, 2)
            for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        theta = self.sizes.rope_theta
        return rotated(q, position, theta), rotated(k, position, theta), v

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
