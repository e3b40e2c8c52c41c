"""Statistics of rounds: quantiles, paired ratios, and an interval of a median that assumes no distribution."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence

import numpy as np

CONFIDENCE = 0.95


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """Median, 10th and 90th percentile."""
    low, middle, high = np.percentile(values, (10, 50, 90)).tolist()
    return {"median": middle, "p10": low, "p90": high}


@functools.cache
def _cut(count: int) -> int:
    """How many of `count` values may be cut off at either end so that the rest covers the median with `CONFIDENCE`.

    The number of values below the median is binomial with 1/2, whatever the values' distribution.
    """
    tail = 0.0
    for below in range(count // 2 + 1):
        tail += math.exp(math.lgamma(count + 1) - math.lgamma(below + 1) - math.lgamma(count - below + 1)
                         - count * math.log(2))
        if tail > (1 - CONFIDENCE) / 2:
            return max(below - 1, 0)
    return 0


def of_median(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the median; least and greatest where five or fewer values cannot give one."""
    ordered = sorted(values)
    cut = _cut(len(ordered))
    return ordered[cut], ordered[-1 - cut]


def ratio(ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> dict[str, float]:
    """Our time over theirs, paired by round: quantiles, and `low` .. `high`, the interval of the median.

    Arguments are times by placement and round. Where arrays lie in memory moves all rounds of a placement together, so
    the interval is widened to hold every placement's median.
    """
    placements = [[x / y for x, y in zip(one, other, strict=True)]
                  for one, other in zip(ours, theirs, strict=True) if one]
    together = [value for values in placements for value in values]
    low, high = of_median(together)
    medians = [float(np.median(values)) for values in placements]
    return {**quantiles(together), "low": min(low, *medians), "high": max(high, *medians)}


def judged(times: Mapping[str, float], ratios: Mapping[str, Mapping[str, float]], wrong: set[str],
           ) -> dict[str, str | float | None]:
    """The fastest peer that is not wrong, samestep's ratio to it, and the verdict; all None without such a peer."""
    peers = [name for name in ratios if name not in wrong and name != "limit"]
    if not peers:
        return dict.fromkeys(("best", "ratio", "low", "high", "verdict"))
    best = min(peers, key=lambda name: times[name])
    low, high = ratios[best]["low"], ratios[best]["high"]
    verdict = "faster" if high < 1 else "slower" if low > 1 else "tie"
    return {"best": best, "ratio": ratios[best]["median"], "low": low, "high": high, "verdict": verdict}
