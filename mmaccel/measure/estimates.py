"""A value with its interval: bootstrap over samples, paired differences, medians of paired ratios, percentiles.

Knows numbers only. A value that was not measured is None and never filled in.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

Sums = dict[str, tuple[float, float]]  # unit → (sum, count)

MINIMUM = {50: 1, 95: 20, 99: 100}  # values a percentile needs before it is more than the largest value's noise
PAIRS = 6  # paired samples an interval needs: of fewer, not even all on one side is 95 % evidence (2 · 0.5⁵ > 0.05)
RESAMPLES = 2000
BLOCK_VALUES = 4_000_000  # resampled values held at once


@dataclass(frozen=True)
class Estimate:
    """A value with its interval; low and high are None below two samples, of paired values below PAIRS."""

    value: float | None
    low: float | None
    high: float | None
    n: int

    @property
    def interval(self) -> tuple[float, float] | None:
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def half_width(self) -> float | None:
        return None if self.low is None or self.high is None else (self.high - self.low) / 2


def resampled(n: int, resamples: int, seed: int) -> Iterable[np.ndarray]:
    """Blocks [r, n] of indices drawn with replacement, `resamples` rows in all."""
    rng = np.random.default_rng(seed)
    rows = max(1, min(resamples, BLOCK_VALUES // max(n, 1)))
    for start in range(0, resamples, rows):
        yield rng.integers(0, n, (min(rows, resamples - start), n))


def bootstrap_interval(
    sums: Sequence[float],
    counts: Sequence[float] | None = None,
    *,
    level: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = 0,
    bounds: tuple[float, float] | None = None,
) -> Estimate:
    """Σ sums / Σ counts with a percentile bootstrap over samples.

    `bounds`: the range one sample's value can take. When all samples agree the bootstrap sees no spread at all; with
    bounds the interval then covers what n equal draws still allow (a share 1 − ((1 − level)/2)^(1/n) that differs).
    """
    s = np.asarray(sums, dtype=float)  # [n]
    c = np.ones_like(s) if counts is None else np.asarray(counts, dtype=float)  # [n]
    s, c = s[c > 0], c[c > 0]
    n = len(s)
    if n == 0:
        return Estimate(None, None, None, 0)
    value = float(s.sum() / c.sum())
    if n == 1:
        return Estimate(value, None, None, 1)
    if bounds is not None and np.ptp(s / c) == 0:
        unseen = 1 - ((1 - level) / 2) ** (1 / n)
        return Estimate(value, value - unseen * (value - bounds[0]), value + unseen * (bounds[1] - value), n)
    means = np.concatenate([s[i].sum(1) / c[i].sum(1) for i in resampled(n, resamples, seed)])  # [resamples]
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Estimate(value, float(low), float(high), n)


def paired_interval(differences: Sums, *, level: float = 0.95, resamples: int = RESAMPLES, seed: int = 0) -> Estimate:
    """Σ differences / Σ counts over units, each difference that of two scores of one answer in 0 … 1."""
    bounds = (-1.0, 1.0)
    found = bootstrap_interval(*columns_of(differences), level=level, resamples=resamples, seed=seed, bounds=bounds)
    return found if found.n >= PAIRS else Estimate(found.value, None, None, found.n)


def median_ratio_interval(
    point: Mapping[str, float],
    base: Mapping[str, float],
    *,
    level: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Estimate:
    """Median over shared samples of base / point (a speed-up when the values are times), with a bootstrap interval."""
    shared = [key for key in base if key in point and point[key] > 0 and base[key] > 0]
    ratios = np.asarray([base[key] / point[key] for key in shared])  # [n]
    if len(ratios) < PAIRS:
        return Estimate(float(np.median(ratios)) if len(ratios) else None, None, None, len(ratios))
    medians = np.concatenate([np.median(ratios[i], axis=1) for i in resampled(len(ratios), resamples, seed)])
    low, high = np.quantile(medians, [(1 - level) / 2, (1 + level) / 2])
    return Estimate(float(np.median(ratios)), float(low), float(high), len(ratios))


def percentile(values: Sequence[float], q: int) -> float | None:
    """None below the count that makes the q-th percentile mean something."""
    return float(np.percentile(values, q)) if len(values) >= MINIMUM[q] else None


def jitter(values: Sequence[float]) -> float | None:
    if len(values) < 4:
        return None
    low, middle, high = np.percentile(values, [25, 50, 75])
    return float((high - low) / middle) if middle > 0 else None


def columns_of(sums: Sums) -> tuple[list[float], list[float]]:
    return [total for total, _ in sums.values()], [count for _, count in sums.values()]
