"""Families of cases that only the operator has (rule cann), and the real shapes and value ranges of both rules."""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections.abc import Iterator, Sequence
from functools import partial
from importlib import resources
from typing import Any

import numpy as np

from samestep.verify.observation import Problem
from samestep.verify.patterns import INFINITY, TYPES, WORDS, Words, is_nan, word_of
from samestep.verify.suite import draw
from samestep.verify.suite.draw import Item, Rng
from samestep.verify.suite.families import USUAL, some
from samestep.verify.suite.variants import Variant, columns, constant, step

INF, NAN = math.inf, math.nan
# Around every way to ask whether momentum is zero: sign, subnormals, floor, ceil, float16, NaN, > 0.
MASKS = (0.0, -0.0, 1e-30, -1e-30, 1e-8, -1e-8, 6e-8, 1e-45, 3e-5, 1e-3, 0.9, 1.0, -0.5, 1.5, NAN, INF, -INF)
DAMPENINGS = (1.0, 1e-45, 1e-50, 3e38, INF, -INF, NAN, -0.5, 1.5, 1e-8, 0.1, 1e39, -0.0)
WEIGHT_DECAYS = (1e-50, 1e-45, 1e-40, 3.4e38, 1e39, INF, 1e-8, 0.1, 5e-4, 7e-46, 7.1e-46, 0.0)
LEARNING_RATES = (1e-45, -1e-45, 1e-40, 6e-8, 65504.0, 3.4e38, INF, -INF, NAN, -0.1, 0.0, -0.0, 1e-50, 1e39)
MOMENTA = (1e-45, 1e-40, 6e-8, 65504.0, 3.4e38, INF, NAN, -0.9, 2.0, 1e39, 1e-50, -3.4e38)


def mask(variants: Sequence[Variant], dtype: str, turn: int) -> Iterator[Item]:
    """Momentum at and around zero, over accum and stat that hold NaN payloads, infinities and -0.0 (O6)."""
    for variant, m in itertools.product(variants, MASKS):
        yield Item(f"mask/{dtype}/{variant.name}/m={m!r}/{turn}", "mask", "O6", dtype,
                   partial(_kept, variant=variant, dtype=dtype, momentum=m))


def _kept(rng: Rng, variant: Variant, dtype: str, **fixed: Any) -> Problem:
    infinity, sign = INFINITY[dtype], np.iinfo(WORDS[dtype]).max // 2 + 1
    kept = np.array([infinity + 1, infinity + 3, sign + infinity + 2, infinity, sign + infinity, sign, 0, 1],
                    WORDS[dtype])
    tensors = columns(rng, USUAL, dtype, mild=True)
    for k in (2, 3):
        chosen = rng.integers(0, 2, USUAL) > 0
        tensors[k] = np.where(chosen, kept[rng.integers(0, len(kept), USUAL)], tensors[k])
    return step(rng, variant, dtype, tensors, **fixed)


def stat(variants: Sequence[Variant], dtype: str, turn: int) -> Iterator[Item]:
    """Every kind of stat, also accum that is not zero where stat is 1."""
    for variant, kind, m in itertools.product(variants, STATS, (0.9, 0.0)):
        yield Item(f"stat/{dtype}/{variant.name}/{kind}/m={m}/{turn}", "stat", "O5", dtype,
                   partial(_with_stat, variant=variant, dtype=dtype, kind=kind, momentum=m))


STATS = {
    "all 0": (0.0,), "all 1": (1.0,), "0 and 1": (0.0, 1.0), "fractions": (0.25, 0.3, 0.7, 0.999, 1e-3),
    "above 1": (1.5, 2.0, 3.0, 100.0), "negative": (-0.0, -0.5, -1.0, -2.5), "tiny": (1e-45, 6e-8, 1e-30, -1e-8),
    "not finite": (NAN, INF, -INF, 1.0), "all kinds": (0.0, 1.0, 0.5, -1.0, 2.0, NAN, -0.0),
}


def _with_stat(rng: Rng, variant: Variant, dtype: str, kind: str, **fixed: Any) -> Problem:
    p, g, a, _ = columns(rng, USUAL, dtype, mild=True)
    words = np.array([word_of(value, dtype) for value in STATS[kind]], WORDS[dtype])
    return step(rng, variant, dtype, [p, g, a, words[rng.integers(0, len(words), USUAL)]], **fixed)


def hyperparameters(variants: Sequence[Variant], dtype: str, turn: int) -> Iterator[Item]:
    """Hyperparameters at extremes; terms that are absent because a float32 attribute is 0 (O4)."""
    ruled = variants[0].rule
    table = {"learning_rate": LEARNING_RATES, "momentum": MOMENTA, "dampening": DAMPENINGS,
             "weight_decay": WEIGHT_DECAYS}
    for name, numbers in table.items():
        allowed = [v for v in variants if name not in ("dampening", "weight_decay") or getattr(v, name)]
        for k, number in enumerate(numbers):
            if ruled == "torch" and (math.isnan(number) or 3.5e38 < abs(number) < INF):
                continue  # refused by one optimizer or the other
            for variant in some(allowed, turn + k):
                yield Item(f"hyperparameters/{dtype}/{variant.name}/{name}={number!r}/{turn}", "hyperparameters",
                           "O4" if ruled == "cann" else "T", dtype,
                           partial(_at_extreme, variant=variant, dtype=dtype, fixed={name: number}))


def _at_extreme(rng: Rng, variant: Variant, dtype: str, fixed: dict[str, Any]) -> Problem:
    """Half of everything ordinary, and among the rest infinities, which 0*inf turns into NaN."""
    tensors = [np.where(rng.integers(0, 2, USUAL) > 0, wild, mild) for wild, mild in
               zip(columns(rng, USUAL, dtype), columns(rng, USUAL, dtype, mild=True), strict=True)]
    tensors[0][:3] = INFINITY[dtype]
    return step(rng, variant, dtype, tensors, **fixed)


@functools.cache
def _rows() -> list[dict[str, Any]]:
    text = resources.files("samestep.verify").joinpath("data/ttk_shapes.json").read_text()
    rows: list[dict[str, Any]] = json.loads(text)["cases"]
    return rows


def ttk(variants: Sequence[Variant], dtype: str, turn: int) -> Iterator[Item]:
    """Shapes and value ranges of a real case file of the operator's sister; each with the dtype it has there."""
    for index, row in enumerate(_rows()):
        # In float64 without the ranges of infinities: the judge computes those elements one by one.
        if row["dtype"] == dtype or (dtype, row["dtype"], "inf" in row["range"]) == ("float64", "float32", False):
            near = [variant for variant in variants if variant.nesterov == row["nesterov"]]
            variant = near[(index + turn) % len(near)]
            yield Item(f"ttk/{dtype}/{variant.name}/case {index}/{turn}", "ttk",
                       "O5" if variant.rule == "cann" else "T", dtype,
                       partial(_ranged, variant=variant, dtype=dtype, shape=tuple(row["shape"]),
                               limits=tuple(map(float, row["range"]))))


def _ranged(rng: Rng, variant: Variant, dtype: str, shape: tuple[int, ...], limits: tuple[float, ...]) -> Problem:
    n = math.prod(shape)
    tensors = [_within(rng, n, dtype, limits) for _ in range(4)]
    return step(rng, variant, dtype, tensors, shape)


def _within(rng: Rng, n: int, dtype: str, limits: tuple[float, ...]) -> Words:
    """Values of a range (lo, hi); of the range of infinities any pattern but NaN; of more values one of them."""
    if len(limits) > 2:
        words = np.array([word_of(value, dtype) for value in limits], WORDS[dtype])
        return words[rng.integers(0, len(words), n)]
    low, high = limits
    if math.isinf(low):
        words = draw.patterns(rng, (n,), dtype)
        return np.where(is_nan(words, dtype), constant(0, n, words), words)
    drawn: Words = rng.uniform(low, high, n).astype(TYPES[dtype]).view(WORDS[dtype])
    return drawn
