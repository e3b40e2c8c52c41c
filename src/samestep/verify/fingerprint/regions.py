"""Kernels that treat the end of a tensor another way: the body by vectors, the tail by another rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from samestep.verify.fingerprint.evaluate import Case
from samestep.verify.fingerprint.hypotheses import Hypothesis

WIDTHS = tuple(1 << k for k in range(2, 11))


class Split(NamedTuple):
    """Where a tensor's tail begins: after as many whole vectors of `width` as fit."""

    width: int

    def body(self, size: int) -> int:
        """The number of elements before the tail."""
        return size - size % self.width


def splits(cases: Sequence[Case], h: Hypothesis) -> list[tuple[Split, str]]:
    """The splits by which `h` explains all of one part, and not all of the other: ("body" or "tail" is explained).

    The narrowest vectors first. Empty where no split does.
    """
    wrong = [unexplained(case, h) for case in cases]
    found = []
    for split in map(Split, WIDTHS):
        ends = [split.body(case.size) for case in cases]
        if all(end == case.size for end, case in zip(ends, cases, strict=True)):
            continue
        if all(not places.size or places[0] >= end for places, end in zip(wrong, ends, strict=True)):
            found.append((split, "body"))
        elif all(not places.size or places[-1] < end for places, end in zip(wrong, ends, strict=True)):
            found.append((split, "tail"))
    return found


def parts(cases: Sequence[Case], split: Split, which: str) -> list[Case]:
    """The bodies or the tails of the cases, as cases."""
    found = []
    for case in cases:
        end = split.body(case.size)
        rows = np.arange(end) if which == "body" else np.arange(end, case.size)
        if rows.size:
            found.append(case.part(rows))
    return found


def unexplained(case: Case, h: Hypothesis) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    """The indices of the elements that `h` does not explain in every tensor."""
    wrong = np.zeros(case.size, bool)
    for flags in case.explained(h).values():
        wrong |= ~flags
    return np.flatnonzero(wrong)
