# SPDX-License-Identifier: Apache-2.0
"""Median of paired ratios or differences, with its 95 % bootstrap interval."""
import random
import statistics

RESAMPLES = 10_000


def interval(values, seed=1):
    """(median, low, high): percentile bootstrap of the median, reproducible by its seed."""
    if not values:
        raise ValueError("no pair was measured")
    rng = random.Random(seed)
    medians = sorted(statistics.median(rng.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return statistics.median(values), medians[int(0.025 * RESAMPLES)], medians[int(0.975 * RESAMPLES) - 1]


def paired(ours, theirs, how):
    """Interval of how(ours, theirs) over pairs measured side by side."""
    if len(ours) != len(theirs):
        raise ValueError("the arms have different numbers of runs")
    return interval([how(a, b) for a, b in zip(ours, theirs)])
