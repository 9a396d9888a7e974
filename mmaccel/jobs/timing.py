"""Where a request's time went: the stages, the loop's own times and its counters, as a record's fields.

Knows what the decoding loop counted. Does not know points or samples.
"""

from collections.abc import Mapping
from typing import Any


def timings(
    stages: dict[str, float], event: Any, stats: Any, times: Mapping[str, Any], generated: int
) -> dict[str, Any]:
    """Stages that do not overlap, and the request's own times. Some library versions encode pictures inside prefill."""
    prune = sum(stop.prune_ms for stop in event.stops) if event is not None else 0.0
    prefill_began = stats.first_token_at - stats.prefill_ms / 1e3
    inside = stages.get("vision", 0.0) if times["vision"] is not None and times["vision"] >= prefill_began else 0.0
    ttft, e2e = 1e3 * (stats.first_token_at - times["began"]), 1e3 * (times["ended"] - times["began"])
    rest = sum(stats.step_ms) - stages.get("draft", 0.0) - stages.get("verify", 0.0)
    stages |= {"prune": prune, "prefill": stats.prefill_ms - prune - inside, "decode": max(rest, 0.0)}
    tpot = (e2e - ttft) / (generated - 1) if generated > 1 else None  # the first chunk is the prefill's one token
    return {"stages_ms": stages, "step_ms": stats.step_ms, "ttft_ms": ttft, "tpot_ms": tpot, "e2e_ms": e2e}


UNTIMED = dict.fromkeys(("stages_ms", "step_ms", "ttft_ms", "tpot_ms", "e2e_ms"))


def counters(stats: Any, laws: Any) -> dict[str, Any]:
    names = ("steps", "drafted", "accepted", "emitted", "nodes", "accepted_by_depth")
    entropy, tokens = laws.entropy()
    measured: dict[str, Any] = {"entropy": entropy, "laws": tokens} if tokens else {}
    measured |= {"looked": stats.looked, "said": stats.said} if stats.looked else {}
    return {name: getattr(stats, name) for name in names} | measured
