"""From records to points: sums and counts per sample, bootstrap intervals, paired deltas and speed-ups.

The unit of resampling is the sample (all its turns together); every comparison is paired by sample. Knows numbers only.
A value that was not measured is None and never filled in; records with an error count nowhere but in `errors`.

Definitions (columns of points.csv):
  n                 samples with at least one record without error
  accuracy          Σ score.correct / count, with a bootstrap interval; delta: paired with the baseline's same samples.
                    Records whose score is `apart` (another scale, such as the F1 of a caption) count in their kind
                    alone, unless the run has no others
  refused           why delta is empty although it was measured: the point saw other prompts or processor settings
  lost, gained      samples the baseline has right and this point wrong, and the other way; mcnemar_p: McNemar's exact p
  vanilla           where a question counts only if it is right in all rotations of its options: the plain mean;
                    incomplete: groups that lack a rotation and count nowhere
  parsed_rate       replies in which an answer was found; None when the benchmark parses nothing
  evidence_kept     Σ evidence tokens alive after the last station / Σ evidence tokens
  tau, alpha        Σ emitted / Σ verify steps; Σ accepted / Σ drafted, None for an empty draft
  entropy           Σ nats of the target's law / Σ tokens, where it decodes plainly; below TEMPLATED a tau says little
  *_p50, p95, p99   linear interpolation over records (itl: over all steps of all records); p95 needs 20 values, p99 100
  ttft_jitter       interquartile range of ttft over its median, needs 4 values
  tokens_per_s      Σ generated tokens / Σ end-to-end time
  speedup_e2e       median over samples of baseline time / this point's time; above 1 is faster
  speedup_prefill   the same of prefill + prune (scoring included)
  kept_fraction     Σ visual tokens after the last station / Σ visual tokens of the prompt
  mean_visual       visual tokens that enter a decoder layer, mean over layers and samples
  kv_fraction, mac_fraction   per-record fractions weighted by prompt length, so that long prompts count as they cost
  agreement         accuracy is not being right, but agreement with the baseline's reply, for there are no answers
  apart             samples whose score is on another scale and outside accuracy and delta
  timed             samples with times: all latencies and speed-ups are of those
  net_slower        the interval of speedup_e2e lies below 1
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from mmaccel.measure.buckets import Labels, bucket_labels
from mmaccel.measure.estimates import RESAMPLES, Estimate, jitter, median_ratio_interval, percentile
from mmaccel.measure.record import POINT_COLUMNS
from mmaccel.measure.scores import (
    clean,
    compared,
    grouped,
    inner,
    kind_of,
    kinds,
    one_scale,
    other_prompts,
    quality,
)

Record = Mapping[str, Any]

TEMPLATED = 0.5  # nats a token: below it the words are nearly given, and acceptance is no headline
STAGES = ("preprocess", "vision", "prune", "prefill", "draft", "verify", "decode")


def points_table(
    records: Iterable[Record], points: Sequence[Mapping[str, Any]], baseline: str, *, resamples: int = RESAMPLES
) -> list[dict[str, Any]]:
    """One row per point: the columns of points.csv, then those that the table has no room for."""
    names = [point["name"] for point in points]
    if baseline not in names:
        raise ValueError(f"baseline: got {baseline!r}, the points are {names}")
    by_point: dict[str, list[Record]] = {name: [] for name in names}
    parses = False
    records = list(records)
    shared = {id(record) for record in one_scale(records)}
    for record in records:
        if record["point"] not in by_point:
            raise ValueError(f"records name the point {record['point']!r}, the points are {names}")
        by_point[record["point"]].append(record)
        parses = parses or record.get("parsed") is not None or "unread" in (record.get("score") or {})
    base = clean(by_point[baseline])
    agrees = any((record.get("score") or {}).get("agreement") for record in records)
    labels = bucket_labels(record for point in names for record in by_point[point])
    rows = []
    for point in points:
        mine, is_base = by_point[point["name"]], point["name"] == baseline
        scored, against = ([record for record in side if id(record) in shared] for side in (mine, base))
        # another processor or model, where it is what is compared, may make other prompts of a sample
        refused = None if is_base or point.get("across") else other_prompts(clean(mine), base)
        fair = not is_base and not refused
        row = point_row(point, mine, base if fair else [], is_base, resamples)
        row["refused"] = refused
        row |= quality(scored, against if fair else None, parses, resamples)
        row["kinds"] = kinds(clean(mine), base if fair else None, parses, resamples)
        row["agreement"] = agrees
        if agrees and is_base:
            row["accuracy_ci"] = None  # with itself it always agrees
        row["apart"] = len({record["sample"] for record in clean(mine)} - {record["sample"] for record in scored})
        if point.get("twin"):
            twin = clean(by_point[point["twin"]])
            row["drafting"] = drafting(clean(mine), twin, bool(point.get("sampled")), resamples)
        row["buckets"] = buckets(scored, against if fair else None, labels, parses, resamples)
        rows.append(row)
    return rows


def point_row(
    point: Mapping[str, Any], records: Sequence[Record], base: Sequence[Record], is_base: bool, r: int
) -> dict[str, Any]:
    """What does not depend on which scores share a scale."""
    good = clean(records)
    row = dict.fromkeys(POINT_COLUMNS)
    row |= {"point": point["name"]} | {key: point.get(key) for key in ("pruner", "ratio", "draft", "quantization")}
    row["n"] = len({record["sample"] for record in good})
    row |= speculation(good) | latency(good) | cost(good) | {"evidence_kept": evidence_kept(good)}
    row |= speed(good, base, is_base, r)
    row["errors"] = len(records) - len(good)
    row["timed"] = len({record["sample"] for record in good if record.get("e2e_ms") is not None})
    row["baseline"] = is_base
    row["stages_ms"] = {name: percentile(times, 50) for name in STAGES if (times := inner(good, "stages_ms", name))}
    return row


def evidence_kept(records: Iterable[Record]) -> float | None:
    kept = total = 0.0
    for record in records:
        evidence = record.get("evidence") or {}
        share = evidence.get("kept_fraction")
        if evidence.get("tokens") and share is not None:
            kept += evidence["tokens"] * last(share, empty=1.0)  # no station: all of it stands
            total += evidence["tokens"]
    return kept / total if total else None


def last(value: Any, empty: float) -> float:
    """The last entry of a per-station list, `empty` of an empty one, a plain number itself."""
    if isinstance(value, (list, tuple)):
        return float(value[-1]) if value else empty
    return float(value)


def speculation(good: Sequence[Record]) -> dict[str, Any]:
    def total(name: str) -> float | None:
        values = inner(good, "spec", name)
        return sum(values) if values else None

    steps, drafted = total("steps"), total("drafted")
    emitted, accepted = total("emitted"), total("accepted")
    return {
        "tau": emitted / steps if steps and emitted is not None else None,
        "alpha": accepted / drafted if drafted and accepted is not None else None,
        "entropy": entropy(good),
    }


def entropy(good: Sequence[Record]) -> float | None:
    """Nats a token of plain decoding; where a point drafts, its twin says the same words and has it."""
    tokens = sum(inner(good, "spec", "laws"))
    return sum(inner(good, "spec", "entropy")) / tokens if tokens else None


def drafting(good: Sequence[Record], twin: Sequence[Record], sampled: bool, r: int) -> dict[str, Any]:
    """A drafted point beside the same point without a draft, over all and by kind of question.

    identical: share of replies that are the twin's, token by token (not where replies are sampled: drafts draw other
    dice).  speedup: median of paired end-to-end ratios.  break_even: the tau at which a step costs what its tokens cost
    the twin, mean drafted step / mean plain step; the head's pass over the prompt is in its first step.
    accepted: by depth from 1, the share of steps whose draft was accepted so far.  entropy: the twin's.
    """
    found, others = beside(good, twin, sampled, r), grouped(twin, kind_of)
    kinds = {kind: beside(mine, others.get(kind, []), sampled, r) for kind, mine in grouped(good, kind_of).items()}
    return found | ({"kinds": kinds} if len(kinds) > 1 else {})


def beside(good: Sequence[Record], twin: Sequence[Record], sampled: bool, r: int) -> dict[str, Any]:
    there = {(record["sample"], record["turn"]): record for record in twin}
    pairs = [(record, there[key]) for record in good if (key := (record["sample"], record["turn"])) in there]
    same = sum(mine["ids"] == other["ids"] for mine, other in pairs)
    faster = paired_times(good, twin, lambda record: record.get("e2e_ms"), r)
    timed = [pair for pair in pairs if pair[0].get("step_ms") and pair[1].get("step_ms")]
    ours, plain = ([ms for pair in timed for ms in pair[side]["step_ms"]] for side in (0, 1))
    steps, counted = sum(inner(good, "spec", "steps")), speculation(good)
    depths = [(record.get("spec") or {}).get("accepted_by_depth") or [] for record in good]
    deepest = max(map(len, depths), default=0)
    return {
        "identical": same / len(pairs) if pairs and not sampled else None, "pairs": len(pairs),
        "speedup": faster.value, "speedup_ci": faster.interval,
        "break_even": float(np.mean(ours) / np.mean(plain)) if timed else None,
        "accepted": [sum(d[at] for d in depths if len(d) > at) / steps for at in range(deepest)] if steps else [],
        "tau": counted["tau"], "alpha": counted["alpha"], "entropy": entropy([other for _, other in pairs]),
        "tokens": float(np.mean([len(other["ids"]) for _, other in pairs])) if pairs else None,
    }  # fmt: skip


def measured(records: Iterable[Record], name: str) -> list[float]:
    return [record[name] for record in records if record.get(name) is not None]


def latency(good: Sequence[Record]) -> dict[str, Any]:
    ttft, e2e = measured(good, "ttft_ms"), measured(good, "e2e_ms")
    gaps = [gap for record in good for gap in record.get("step_ms") or ()]
    return {
        "ttft_ms_p50": percentile(ttft, 50),
        "ttft_ms_p95": percentile(ttft, 95),
        "ttft_ms_p99": percentile(ttft, 99),
        "ttft_jitter": jitter(ttft),
        "itl_ms_p50": percentile(gaps, 50),
        "itl_ms_p99": percentile(gaps, 99),
        "tpot_ms_p50": percentile(measured(good, "tpot_ms"), 50),
        "tokens_per_s": throughput(good),
        "e2e_ms_p50": percentile(e2e, 50),
        "e2e_ms_p99": percentile(e2e, 99),
    }


def throughput(good: Sequence[Record]) -> float | None:
    pairs = [((record.get("tokens") or {}).get("generated"), record.get("e2e_ms")) for record in good]
    timed = [(tokens, ms) for tokens, ms in pairs if tokens is not None and ms]
    return 1e3 * sum(tokens for tokens, _ in timed) / sum(ms for _, ms in timed) if timed else None


def cost(good: Sequence[Record]) -> dict[str, Any]:
    counts = [record["tokens"] for record in good if (record.get("tokens") or {}).get("visual")]
    kept = [(last(c["kept"], c["visual"]), c["visual"]) for c in counts if c.get("kept") is not None]
    visual, peak = inner(good, "tokens", "mean_visual"), inner(good, "memory_mb", "peak")
    return {
        "kept_fraction": sum(k for k, _ in kept) / sum(v for _, v in kept) if kept else None,
        "mean_visual": sum(visual) / len(visual) if visual else None,
        "kv_fraction": by_prompt_length(good, "kv_fraction"),
        "mac_fraction": by_prompt_length(good, "mac_fraction"),
        "peak_mb": max(peak) if peak else None,
    }


def by_prompt_length(good: Sequence[Record], name: str) -> float | None:
    pairs = [(record.get(name), (record.get("tokens") or {}).get("prompt")) for record in good]
    weighed = [(value, weight or 1) for value, weight in pairs if value is not None]
    return sum(v * w for v, w in weighed) / sum(w for _, w in weighed) if weighed else None


def speed(good: Sequence[Record], base: Sequence[Record], is_base: bool, r: int) -> dict[str, Any]:
    """Empty for the baseline, which is its own yardstick."""
    if is_base:
        return {}
    e2e = paired_times(good, base, lambda record: record.get("e2e_ms"), r)
    prefill = paired_times(good, base, prefill_time, 0)
    return {
        "speedup_e2e": e2e.value,
        "speedup_e2e_ci": e2e.interval,
        "speedup_prefill": prefill.value,
        "net_slower": None if e2e.high is None else e2e.high < 1,
    }


def prefill_time(record: Record) -> float | None:
    stages = record.get("stages_ms") or {}
    return None if stages.get("prefill") is None else stages["prefill"] + (stages.get("prune") or 0.0)


def paired_times(
    good: Sequence[Record], base: Sequence[Record], time: Callable[[Record], float | None], r: int
) -> Estimate:
    """Speed-up over samples; a sample's time is the sum over the turns both sides finished."""
    here, there = turn_times(good, time), turn_times(base, time)
    ours: dict[str, float] = defaultdict(float)
    theirs: dict[str, float] = defaultdict(float)
    for key in there.keys() & here.keys():
        ours[key[0]] += here[key]
        theirs[key[0]] += there[key]
    order = sorted(theirs)  # sets have no order; the seeded bootstrap needs one
    ours, theirs = {key: ours[key] for key in order}, {key: theirs[key] for key in order}
    return median_ratio_interval(ours, theirs, resamples=max(r, 1))


def turn_times(records: Iterable[Record], time: Callable[[Record], float | None]) -> dict[tuple[str, int], float]:
    timed = (((record["sample"], record["turn"]), time(record)) for record in records)
    return {key: value for key, value in timed if value is not None}


def buckets(
    good: Sequence[Record], base: Sequence[Record] | None, labels: Labels, parses: bool, r: int
) -> dict[str, dict[str, dict[str, Any]]]:
    """Accuracy, delta and speed-up per bucket of the pictures' size, sharpness and edge density: fact → label → …"""
    table = {}
    for fact, of_sample in labels.items():

        def label(record: Record, of_sample: Mapping[str, str] = of_sample) -> str | None:
            return of_sample.get(record["sample"])

        ours, theirs = grouped(good, label), None if base is None else grouped(base, label)
        found = compared(ours, theirs, parses, r)
        for name, others in (theirs or {}).items():
            if name not in found:
                continue
            faster = paired_times(ours[name], others, lambda record: record.get("e2e_ms"), r)
            found[name] |= {"speedup": faster.value, "speedup_ci": faster.interval, "timed": faster.n}
        table[fact] = {name: found[name] for name in dict.fromkeys(of_sample.values()) if name in found}
    return table


def resolved(row: Mapping[str, Any]) -> bool | None:
    """Whether the delta's interval excludes 0; None where there is no interval."""
    interval = row.get("delta_ci")
    return None if interval is None else not interval[0] <= 0 <= interval[1]


def verdict(row: Mapping[str, Any]) -> str:
    """The row's accuracy against the baseline, in words. An interval that holds 0 is never called no loss."""
    if row.get("baseline"):
        return "baseline"
    if row.get("refused"):
        return f"not compared: {row['refused']}"
    if row.get("delta") is None:
        return "not measured"
    if not resolved(row):
        return f"not resolved at n = {row.get('pairs') or row['n']}"
    low, high = row["delta_ci"]
    return f"{points(row['delta'])} points [{points(low)}, {points(high)}]"


def speed_verdict(row: Mapping[str, Any]) -> str:
    """The row's end-to-end time against the baseline, in words."""
    if row.get("baseline"):
        return "baseline"
    if row.get("speedup_e2e") is None or row.get("speedup_e2e_ci") is None:
        return "not measured"
    low, high = row["speedup_e2e_ci"]
    word = "net slower" if high < 1 else "faster" if low > 1 else "no speed-up resolved"
    return f"{times(row['speedup_e2e'])}× [{times(low)}, {times(high)}], {word}"


def times(ratio: float) -> str:
    """Two decimals, three where two would read as exactly 1."""
    return f"{ratio:.2f}" if ratio == 1 or f"{ratio:.2f}" != "1.00" else f"{ratio:.3f}"


def points(share: float) -> str:
    """A difference of accuracies in percentage points, with a true minus sign."""
    return f"{100 * share:+.1f}".replace("-", "−")
