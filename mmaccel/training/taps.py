"""Which hidden states a head reads, in the numbers of those who wrote it: off by one is a head that is never accepted.

Ours is the library's hidden_states index k: what enters layer k, so that 0 is the embeddings. Knows numbers only.
"""

from collections.abc import Sequence

# what a written value v means: hidden_states[v + offset]
OFFSETS = {
    "hidden_states": 0,  # the library, and the public EAGLE-3 code: the input of layer v
    "vllm": 0,  # top-level eagle_aux_hidden_state_layer_ids, 0 = the embeddings
    "speculators": 0,  # the same key, read by vLLM
    "sglang": 1,  # eagle_config.eagle_aux_hidden_state_layer_ids: the output of layer v
    "modelopt": 1,  # the same nested key, by hooks on layer v
    "dflash": 1,  # target_layer_ids: the output of layer v
}


def read_taps(values: Sequence[int], written: str, depth: int) -> tuple[int, ...]:
    """Those values as hidden_states indices of a decoder of `depth` layers."""
    taps = tuple(value + offset_of(written) for value in values)
    wrong = [tap for tap in taps if not 0 <= tap < depth]
    if wrong:
        raise ValueError(
            f"taps: got {list(values)} as {written} counts, which are hidden states {wrong} of {depth} layers; valid "
            f"are {-offset_of(written)} … {depth - 1 - offset_of(written)}"
        )
    return taps


def write_taps(taps: Sequence[int], written: str) -> list[int]:
    """hidden_states indices in that convention; raises for what it cannot name."""
    values = [tap - offset_of(written) for tap in taps]
    if min(values, default=0) < 0:
        raise ValueError(
            f"taps: {list(taps)} cannot be written as {written} counts, which has no name for the embeddings"
        )
    return values


def offset_of(written: str) -> int:
    if written not in OFFSETS:
        raise ValueError(f"taps: got the convention {written!r}, valid are {', '.join(OFFSETS)}")
    return OFFSETS[written]
