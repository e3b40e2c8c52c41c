"""Where elements differ: each place is named if it stands out, and not if chance explains it."""

from __future__ import annotations

import numpy as np
import pytest

from samestep.verify.compare.places import places


def at(n, indices):
    flags = np.zeros(n, np.bool_)
    flags[indices] = True
    return places(flags)


RNG = np.random.default_rng(0)


def some(indices, share=0.5):
    """A random part of the indices, but the first and last."""
    indices = np.asarray(indices)
    kept = RNG.random(indices.size) < share
    kept[[0, -1]] = True
    return indices[kept]


@pytest.mark.parametrize(("n", "indices", "kind", "text"), [
    (100, [], "none", "nowhere"),
    (100, range(100), "all", "every element"),
    (1, [0], "all", "every element"),
    (100, [17], "one", "index 17"),
    (4099, [4096, 4097, 4098], "tail", "only in the tail: the last 3, after the last full vector of 4 to 1,024"),
    (4099, [4096, 4098], "tail", "(2 of those 3)"),
    (1037, range(1032, 1037), "tail", "only in the tail: the last 5, after the last full vector of 8"),
    (1037, range(1024, 1037), "tail", "only in the tail: the last 13, after the last full vector of 16 to 1,024"),
    (4099, range(4096), "body", "only in full vectors of 4 to 1,024, not in the tail of the last 3"),
    (4111, some(range(4096)), "body", "not in the tail of the last 15"),
    (4096, range(3, 4096, 4), "lane", "only in lane 3 of 4"),
    (4096, some(range(3, 4096, 4)), "lane", "only in lane 3 of 4 ("),
    (4099, range(0, 4099, 8), "lane", "only in lane 0 of 8"),
    (4096, range(1, 4096, 2), "lane", "only in lane 1 of 2"),
    (4096, [k for k in range(4096) if k % 8 >= 4], "lane", "only in lanes 4-7 of 8"),
    (4096, some([k for k in range(4096) if k % 16 in (2, 3, 9)]), "lane", "only in lanes 2-3, 9 of 16 ("),
    (4096, range(6, 4096, 60), "stride", "only every 60th element, from 6 on"),
    (4096, range(99, 4096, 100), "stride", "only every 100th element, from 99 on"),
    (4096, range(1000, 2000), "range", "only from 1,000 to 1,999"),
    (4096, some(range(1000, 2001)), "range", "only from 1,000 to 2,000 ("),
    (4096, range(500), "range", "only in the first 500"),
    (4096, range(3500, 4096), "range", "only in the last 596"),
])
def test_a_place_is_named(n, indices, kind, text):
    found = at(n, list(indices))
    assert found.kind == kind
    assert text in found.text
    assert found.found == len(list(indices))
    if found.found:
        assert (found.start, found.stop) == (min(indices), max(indices) + 1)


@pytest.mark.parametrize("share", [0.001, 0.01, 0.1, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("n", [33, 1000, 4099])
def test_chance_is_called_scattered(n, share):
    """A false name may come once in a thousand times or so."""
    rng = np.random.default_rng(1)
    named = 0
    for _ in range(200):
        flags = rng.random(n) < share
        named += places(flags).kind not in ("none", "one", "all", "scattered")
    assert named <= 2


def test_few_elements_prove_no_pattern():
    assert at(1000, [8, 16]).kind == "scattered"
    assert at(1000, [500, 501]).text == "scattered from 500 to 501"
    assert at(35, [33]).kind == "one"
    assert at(35, [32, 34]).kind == "scattered"  # two of the last three of 35: chance does that
    assert at(35, [32, 33, 34]).kind == "tail"
