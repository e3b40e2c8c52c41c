"""What is left unexplained: where it lies, and what kind of numbers it is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from samestep.verify.fingerprint.evaluate import Case, Flags
from samestep.verify.fingerprint.hypotheses import Hypothesis
from samestep.verify.fingerprint.numbers import TINY
from samestep.verify.patterns import Words, is_nan, values_of

CLASSES = ("NaN", "inf", "subnormal", "zero", "ordinary")


def classified(words: Words, dtype: str) -> list[Flags]:
    """For each of `CLASSES`, which patterns belong to it."""
    with np.errstate(all="ignore"):
        size = np.abs(values_of(words, dtype).astype(np.float64))
    nan = is_nan(words, dtype)
    return [nan, np.isinf(size), (size > 0) & (size < TINY[dtype]), size == 0,
            (size >= TINY[dtype]) & np.isfinite(size)]


def index_pattern(places: Sequence[int], size: int) -> str:
    """Where `places` lie in a tensor of `size` elements: all, tail, head, range, lane, stride or scattered."""
    index = np.asarray(places)
    first, last, count = int(index[0]), int(index[-1]), index.size
    if count == size:
        return "all indices"
    if count == 1:
        return f"index {first}" + (", the last" if first == size - 1 else "")
    dense = count > 0.5 * (last - first + 1)
    if dense and last == size - 1:
        return f"tail: from index {first} on"
    if dense and first == 0:
        return f"head: indices 0 to {last}"
    if dense and count > 2:
        return f"range: indices {first} to {last}"
    step = int(np.gcd.reduce(np.diff(index)))
    if step > 1 and count > 2:
        lane = "lane" if step & (step - 1) == 0 else "stride"
        return f"{lane}: index = {first % step} modulo {step}"
    return f"scattered from index {first} to {last}"


def residual(cases: Sequence[Case], h: Hypothesis) -> tuple[str, ...]:
    """Lines about the elements that `h` leaves unexplained, tensor by tensor, over all cases; empty if none."""
    lines: dict[str, int] = {}
    for case in cases:
        explained = case.explained(h)
        for name, after in case.after():
            wrong = np.flatnonzero(~explained[name])
            if not wrong.size:
                continue
            counts = ", ".join(f"{int(flags[wrong].sum()):,} {label}" for label, flags in zip(
                CLASSES, classified(after, case.problem.dtype), strict=True) if flags[wrong].any())
            q = case.problem
            line = (f"{name}: {wrong.size:,} of {case.size:,} elements; {index_pattern(wrong.tolist(), case.size)}; "
                    f"values: {counts}; momentum {case.momentum:g}, dampening {q.dampening:g}, weight decay "
                    f"{q.weight_decay:g}{', nesterov' if q.nesterov else ''}")
            lines[line] = wrong.size
    most = sorted(lines, key=lambda line: -lines[line])
    return tuple(most[:8] + ([f"and {len(most) - 8} more steps"] if len(most) > 8 else []))
