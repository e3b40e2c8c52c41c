"""What the acceptance rules in use today say of a tensor: for showing beside the bits, never for judging here.

a is what came, g what was expected, both as numbers; |a-g| is the error. These rules were made for outputs computed
in another precision, so they allow for rounding; that an update of 0.1 % lies inside what they allow is what they
miss. Each is as its users define it (docs/dumps.md):

- mixed tolerance: |a-g| <= atol + rtol*|g| on at least 99 % of the elements;
- MERE and MARE, the mean and the maximum of |a-g| / (|g| + 1e-7): at most a threshold by dtype, MARE ten times that;
- double-1e-3 (1e-4): |a-g| / (|g| + eps) is more than 1e-3 (1e-4) on at most a fraction 1e-3 (1e-4) of the elements,
  eps being the dtype's;
- cosine of the angle between a and g at least 0.99; largest |a-g| at most 1e-3.

Where a and g are both NaN, or the same infinity, the error is 0; where only one is finite, or they are infinities of
both signs, it is infinite. The cosine leaves out elements that are not finite in either; of two tensors of zeros it
is 1, of one NaN, which fails.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from samestep.verify.patterns import Words, values_of

PIECE = 1 << 20  # elements looked at at a time: the float64 copies must not take more memory than the tensors
ATOL = 2.0**-16
RTOL = {"float32": 2.0**-10, "float16": 2.0**-9, "bfloat16": 2.0**-6, "float64": 2.0**-10}
RELATIVE = {"float32": 2.0**-13, "float16": 2.0**-10, "bfloat16": 2.0**-7, "float64": 2.0**-13}
EPS = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7, "float64": 2.0**-52}
NAMES = ("mixed tolerance", "MERE", "MARE", "double-1e-3", "double-1e-4", "cosine", "max abs")


class Metric(NamedTuple):
    """One of today's rules on one tensor: its figure, the limit as it is written, and whether it passes."""

    name: str
    value: float
    limit: str
    passed: bool


class _Sums(NamedTuple):
    """What the rules need of a piece of a tensor; pieces add up (maxima apart)."""

    elements: int
    outside: int  # of the mixed tolerance
    relative: float  # sum of |a-g| / (|g| + 1e-7)
    largest_relative: float
    over3: int
    over4: int
    ag: float
    aa: float
    gg: float
    largest: float  # |a-g|


def judged(expected: Words, got: Words, dtype: str) -> list[Metric]:
    """Today's rules on flat patterns of `dtype`, in the order of `NAMES`; for float64 with float32's thresholds."""
    pieces = [_sums(expected[k:k + PIECE], got[k:k + PIECE], dtype) for k in range(0, expected.size, PIECE)]
    columns: list[tuple[Any, ...]] = list(zip(*pieces, strict=True))
    total = _Sums(*(max(column) if name.startswith("largest") else sum(column)
                    for name, column in zip(_Sums._fields, columns, strict=True)))
    n = total.elements
    inside, mean, cosine = (n - total.outside) / n, total.relative / n, _cosine(total)
    over3, over4 = total.over3 / n, total.over4 / n
    relative = RELATIVE[dtype]
    power = int(math.log2(relative))
    return [
        Metric(NAMES[0], inside, f"99 % within 2^-16 + 2^{int(math.log2(RTOL[dtype]))}*|g|", inside >= 0.99),
        Metric(NAMES[1], mean, f"<= 2^{power}", mean <= relative),
        Metric(NAMES[2], total.largest_relative, f"<= 10 * 2^{power}", total.largest_relative <= 10 * relative),
        Metric(NAMES[3], over3, "<= 1e-3 of elements", over3 <= 1e-3),
        Metric(NAMES[4], over4, "<= 1e-4 of elements", over4 <= 1e-4),
        Metric(NAMES[5], cosine, ">= 0.99", cosine >= 0.99),
        Metric(NAMES[6], total.largest, "<= 1e-3", total.largest <= 1e-3),
    ]


def _sums(expected: Words, got: Words, dtype: str) -> _Sums:
    g, a = (values_of(words, dtype).astype(np.float64) for words in (expected, got))
    with np.errstate(all="ignore"):
        error = np.abs(a - g)
        error[(a == g) | (np.isnan(a) & np.isnan(g))] = 0
        error[np.isnan(error)] = np.inf
        size = np.abs(g)
        size[~np.isfinite(size)] = 0  # beside an infinite g no error is small
        over = error / (size + EPS[dtype])
        relative = error / (size + 1e-7)
        both = np.isfinite(a) & np.isfinite(g)
        a, g = a[both], g[both]
        return _Sums(
            error.size, int(np.count_nonzero(error > ATOL + RTOL[dtype] * size)), float(relative.sum()),
            float(relative.max()), int(np.count_nonzero(over > 1e-3)), int(np.count_nonzero(over > 1e-4)),
            _dot(a, g), _dot(a, a), _dot(g, g), float(error.max()))


def _dot(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    return float((x * y).sum())


def _cosine(total: _Sums) -> float:
    if total.aa == 0 or total.gg == 0:
        return 1.0 if total.aa == total.gg else math.nan
    return total.ag / (math.sqrt(total.aa) * math.sqrt(total.gg))
