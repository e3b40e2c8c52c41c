"""Where in a tensor elements differ: all, a tail, lanes of a vector, a stride, a range, or anywhere.

Each candidate is a set of positions that holds every differing element. What is named is the set that chance explains
least: of all ways to spread k elements over n, C(s, k) / C(n, k) lie inside a given set of s; that, times the number
of such sets looked at, must be below `CHANCE`, or else nothing but "scattered" is said.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

CHANCE = 1e-3
WIDTHS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)  # elements of a vector register or of a block


class Places(NamedTuple):
    """Where the differing elements of a flat tensor lie.

    `kind` is none, all, one, tail, body, lane, stride, range or scattered; `text` says it in words. `start` and `stop`
    bound the differing elements. `size` counts the positions of the set that is named, `found` those that differ.
    """

    kind: str
    text: str
    found: int
    size: int
    start: int = 0
    stop: int = 0


class _Candidate(NamedTuple):
    kind: str
    text: str
    size: int
    tried: float  # sets of this kind among which it was chosen


def places(differs: NDArray[np.bool_]) -> Places:
    """Where `differs`, one flag an element of a flat tensor, is set."""
    n, indices = differs.size, np.flatnonzero(differs)
    found = indices.size
    if found == 0:
        return Places("none", "nowhere", 0, n)
    start, stop = int(indices[0]), int(indices[-1]) + 1
    if found == n:
        return Places("all", "every element", found, n, start, stop)
    if found == 1:
        return Places("one", f"index {start:,}", 1, 1, start, stop)
    candidates = [*_ends(n, start, stop), *_strides(indices, n), *_lanes(indices, n), _range(n, start, stop)]
    chances = [_chance(candidate, found, n) for candidate in candidates]
    best = min(range(len(candidates)), key=chances.__getitem__)
    if chances[best] > math.log(CHANCE):
        return Places("scattered", f"scattered from {start:,} to {stop - 1:,}", found, n, start, stop)
    kind, text, size, _ = candidates[best]
    share = "" if found == size else f" ({found:,} of those {size:,})"
    return Places(kind, text + share, found, size, start, stop)


def _chance(candidate: _Candidate, found: int, n: int) -> float:
    """The logarithm of: how often would so many elements, spread at random, all lie in such a set?"""
    return _ways(candidate.size, found) - _ways(n, found) + math.log(candidate.tried)


def _ways(n: int, k: int) -> float:
    """log C(n, k)."""
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def _ends(n: int, start: int, stop: int) -> list[_Candidate]:
    """What is left over after the last full vector, or all but that; for the narrowest width that fits the elements."""
    found = []
    tails = {n % width: width for width in reversed(WIDTHS) if 0 < n % width < n}  # each by its narrowest width
    inside = [tail for tail in tails if start >= n - tail]
    if inside:
        tail = min(inside)
        found.append(_Candidate("tail", f"only in the tail: the last {tail:,}, after the last full vector of "
                                f"{_widths(n, tail)}", tail, len(tails)))
    outside = [tail for tail in tails if stop <= n - tail]
    if outside:
        tail = max(outside)
        found.append(_Candidate("body", f"only in full vectors of {_widths(n, tail)}, not in the tail of the last "
                                f"{tail:,}", n - tail, len(tails)))
    return found


def _widths(n: int, tail: int) -> str:
    """The vector widths that leave such a tail: they cannot be told apart, and each is twice the one before."""
    fitting = [width for width in WIDTHS if n % width == tail and width <= n]
    return f"{fitting[0]}" if len(fitting) == 1 else f"{fitting[0]} to {fitting[-1]:,}"


def _strides(indices: NDArray[np.int64], n: int) -> list[_Candidate]:
    """One element of every few: the greatest common divisor of the distances."""
    stride = int(np.gcd.reduce(np.diff(indices)))
    if stride < 2:
        return []
    first = int(indices[0]) % stride
    size = (n - first + stride - 1) // stride
    if stride in WIDTHS:
        return [_Candidate("lane", f"only in lane {first} of {stride}", size, stride * len(WIDTHS))]
    return [_Candidate("stride", f"only every {stride:,}th element, from {first:,} on", size, float(stride) ** 2)]


def _lanes(indices: NDArray[np.int64], n: int) -> list[_Candidate]:
    """Some lanes of a vector and not the others."""
    found = []
    for width in WIDTHS[1:7]:
        lanes = np.unique(indices % width)
        if 1 < lanes.size < width <= n:
            size = int(sum((n - lane + width - 1) // width for lane in lanes.tolist()))
            text = f"only in lanes {_ranges(lanes.tolist())} of {width}"
            found.append(_Candidate("lane", text, size, math.comb(width, lanes.size) * len(WIDTHS)))
    return found


def _ranges(numbers: list[int]) -> str:
    """1, 2, 3, 7 as ``1-3, 7``."""
    groups: list[list[int]] = []
    for number in numbers:
        if groups and groups[-1][1] == number - 1:
            groups[-1][1] = number
        else:
            groups.append([number, number])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in groups)


def _range(n: int, start: int, stop: int) -> _Candidate:
    if stop == n:
        text = f"only in the last {n - start:,}"
    elif start == 0:
        text = f"only in the first {stop:,}"
    else:
        text = f"only from {start:,} to {stop - 1:,}"
    return _Candidate("range", text, stop - start, n * (n + 1) / 2)
