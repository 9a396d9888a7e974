"""The ledger: what a prompt costs a decoder, in MACs and KV slots, from plain numbers.

Convention: multiply-accumulates (1 MAC = 2 FLOPs) of the decoder layers alone: four attention projections (two of them
narrower under grouped queries), QKᵀ and AV over the full n×n square, a three-matrix feed-forward. Not counted: norms,
softmax, rotary embedding, the language-model head, the vision tower, and a pruner's own scoring.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Geometry:
    """A dense decoder's widths. `heads · head_dim` need not equal `width` (Qwen3)."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int = 0

    def __post_init__(self) -> None:
        for name in ("layers", "width", "heads", "kv_heads", "head_dim", "ffn"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"Geometry.{name}: got {value!r}, expected a positive integer")

    @classmethod
    def of(cls, config: Any) -> "Geometry":
        """From a Hugging Face config, object or dict; of a vision-language config, its text part."""
        text = field_of(config, "text_config")
        config = config if text is None else text
        names = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")
        missing = [name for name in names if field_of(config, name) is None]
        if missing:
            raise ValueError(f"Geometry.of: the config lacks {missing}; needed are {list(names)}")
        layers, width, heads, ffn = (int(field_of(config, name)) for name in names)
        return cls(
            layers=layers,
            width=width,
            heads=heads,
            kv_heads=int(field_of(config, "num_key_value_heads") or heads),
            head_dim=int(field_of(config, "head_dim") or width // heads),
            ffn=ffn,
            vocab=int(field_of(config, "vocab_size") or 0),
        )


def field_of(config: Any, name: str) -> Any:
    return config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)


def layer_macs(g: Geometry, queries: int, keys: int) -> int:
    """One layer, `queries` new columns attending to `keys` columns (themselves included)."""
    projections = 2 * g.width * g.head_dim * (g.heads + g.kv_heads)  # q, o and k, v
    return queries * (projections + 3 * g.width * g.ffn) + 2 * queries * keys * g.heads * g.head_dim


def macs(geometry: Geometry, tokens_per_layer: Sequence[int]) -> int:
    """Prefill MACs when layer l sees tokens_per_layer[l] columns."""
    check_layers(geometry, tokens_per_layer)
    return sum(layer_macs(geometry, n, n) for n in tokens_per_layer)


def mac_fraction(geometry: Geometry, tokens_per_layer: Sequence[int], full: int) -> float:
    """Prefill MACs as a fraction of those with `full` columns in every layer."""
    return macs(geometry, tokens_per_layer) / macs(geometry, [full] * geometry.layers)


def decode_macs(geometry: Geometry, tokens_per_layer: Sequence[int], generated: int) -> int:
    """The forwards after prefill: the prompt's forward gives the first token, so `generated` − 1 of one column each."""
    check_layers(geometry, tokens_per_layer)
    steps = max(generated - 1, 0)
    past = steps * (steps + 1) // 2  # Σ over steps of the generated columns a step sees, its own included
    return sum(
        steps * layer_macs(geometry, 1, 0) + 2 * (steps * n + past) * geometry.heads * geometry.head_dim
        for n in tokens_per_layer
    )


def kv_bytes(geometry: Geometry, slots_per_layer: Sequence[int], bytes_per_value: float) -> float:
    """Keys and values of all layers."""
    check_layers(geometry, slots_per_layer)
    return 2 * geometry.kv_heads * geometry.head_dim * bytes_per_value * sum(slots_per_layer)


def check_layers(geometry: Geometry, per_layer: Sequence[int]) -> None:
    if len(per_layer) != geometry.layers:
        raise ValueError(f"got counts for {len(per_layer)} layers, the model has {geometry.layers}")
    if min(per_layer) < 0:
        raise ValueError(f"token counts: got {min(per_layer)}, expected 0 or more")


@dataclass(frozen=True)
class Ledger:
    """One prompt's account. Fractions are of the same prompt with nothing pruned.

    kept: visual tokens after each station. kv_fraction: slots after prefill, all layers. mac_fraction: prefill.
    prefill_*, decode_*: MACs; decoding one column at a time on that cache.
    """

    geometry: Geometry
    tokens_per_layer: tuple[int, ...]
    kept: tuple[int, ...]
    mean_visual: float
    kv_fraction: float
    mac_fraction: float
    prefill_macs: int
    prefill_macs_full: int
    decode_macs: int
    decode_macs_full: int
    generated: int

    def kv_bytes(self, bytes_per_value: float = 2) -> float:
        """At the end of generation: the last token's keys are never written."""
        tail = max(self.generated - 1, 0)
        return kv_bytes(self.geometry, [n + tail for n in self.tokens_per_layer], bytes_per_value)


def ledger(
    geometry: Geometry, text: int, visual: int, stops: Sequence[tuple[int, int]] = (), generated: int = 0
) -> Ledger:
    """`text` and `visual` prompt columns; `stops`: (layer, visual tokens that enter this layer and those below)."""
    standing = visual_per_layer(geometry.layers, visual, stops)
    tokens, full = [text + v for v in standing], [text + visual] * geometry.layers
    return Ledger(
        geometry=geometry,
        tokens_per_layer=tuple(tokens),
        kept=tuple(kept for _, kept in stops),
        mean_visual=sum(standing) / geometry.layers,
        kv_fraction=sum(tokens) / sum(full) if sum(full) else 1.0,
        mac_fraction=mac_fraction(geometry, tokens, full[0]) if sum(full) else 1.0,
        prefill_macs=macs(geometry, tokens),
        prefill_macs_full=macs(geometry, full),
        decode_macs=decode_macs(geometry, tokens, generated),
        decode_macs_full=decode_macs(geometry, full, generated),
        generated=generated,
    )


def visual_per_layer(depth: int, visual: int, stops: Sequence[tuple[int, int]]) -> list[int]:
    """Visual tokens each layer sees: a stop before layer l shortens l and every later layer."""
    standing, last = [visual] * depth, -1
    for layer, kept in stops:
        if not last < layer < depth:
            raise ValueError(f"stops: got layer {layer} after {last}, expected increasing layers in 0 … {depth - 1}")
        if not 0 <= kept <= standing[layer]:
            raise ValueError(f"stops: got {kept} kept at layer {layer}, expected 0 … {standing[layer]}")
        standing[layer:] = [kept] * (depth - layer)
        last = layer
    return standing
