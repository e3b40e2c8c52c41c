"""What the bit tests share: bit patterns, engines run on them, and the comparison of rule O9.

`check` is the suite in one function: it runs an engine over every kind of input and counts the elements that the
exact oracle calls wrong. test_suite_bites.py shows that it does so for each known way to be wrong.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

import samestep
from samestep.contract import DTYPES, ORDERS
from samestep.rounding import round_number
from samestep.tiling import VARIANTS, TilingKey, decode
from samestep.verify import oracle

NUMPY = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
BITS = {"float32": np.uint32, "float16": np.uint16, "bfloat16": np.uint16}
MOMENTA = (0.9, 0.0, -0.0, 1e-8, 1e-30, -0.5, math.nan, math.inf)
SPECIALS = (
    0.0, -0.0, 1.0, -1.0, 0.5, 3.0, math.inf, -math.inf, math.nan, 1e-45, -1e-45, 1e-40, 1.17549435e-38, 3.4e38,
    -3.4e38, 65504.0, 6e-8, -6e-8, 6.1e-5, 1.0009765625, 1.0078125, 1e-3,
)
KEYS = [decode(number << 1) for number in VARIANTS]
KERNELS = [(dtype, order, key) for dtype in DTYPES for order in ORDERS for key in KEYS]
IDS = [f"{dtype}-{order}-{key.variant}" for dtype, order, key in KERNELS]


class Attributes(NamedTuple):
    dampening: float
    weight_decay: float
    nesterov: bool


def attributes(key: TilingKey, dampening: float = 0.3, weight_decay: float = 0.01) -> Attributes:
    """Attributes that select `key`."""
    return Attributes(dampening * key.dampening, weight_decay * key.weight_decay, key.nesterov)


def bits_of(value: float, dtype: str) -> int:
    return round_number(value, dtype)[1]


def scalar(value: float, dtype: str) -> Any:
    """A one-element array of `dtype`."""
    return np.array([bits_of(value, dtype)], BITS[dtype]).view(NUMPY[dtype])


def random_bits(rng: np.random.Generator, length: int, dtype: str) -> Any:
    """Half bit patterns at random, half ordinary values; a sprinkling of special values."""
    width = BITS[dtype]
    patterns = rng.integers(0, np.iinfo(width).max, length, width, endpoint=True)
    ordinary = rng.standard_normal(length).astype(np.float32).astype(NUMPY[dtype]).view(width)
    special = rng.choice(np.array([bits_of(value, dtype) for value in SPECIALS], width), length)
    kind = rng.integers(0, 8, length)
    return np.where(kind < 3, patterns, np.where(kind < 6, ordinary, special))


def stats(rng: np.random.Generator, length: int, dtype: str) -> Any:
    """A stat: mostly 0 and 1, some fractions, some of anything."""
    usual = rng.choice(np.array([bits_of(v, dtype) for v in (0.0, 0.0, 1.0, 1.0, 0.25, 0.7, 2.0)], BITS[dtype]), length)
    return np.where(rng.integers(0, 4, length) > 0, usual, random_bits(rng, length, dtype))


def tensors(rng: np.random.Generator, length: int, dtype: str) -> list[Any]:
    """The bits of parameters, gradient, accum and stat."""
    return [*(random_bits(rng, length, dtype) for _ in range(3)), stats(rng, length, dtype)]


def run(engine: str, columns: list[Any], dtype: str, key: TilingKey, order: str, lr: Any, m: Any) -> list[Any]:
    """Copies of the four columns after one step on `engine`; `lr` and `m` are one-element arrays of the dtype."""
    after = [column.copy() for column in columns]
    p, g, a, s = (column.view(NUMPY[dtype]) for column in after)
    samestep.sgd_(p, g, lr, a, m, s, **attributes(key)._asdict(), order=order, engine=engine)
    return after


def is_nan(bits: Any, dtype: str) -> Any:
    infinity = bits_of(math.inf, dtype)
    return (bits & BITS[dtype](np.iinfo(BITS[dtype]).max >> 1)) > infinity


def differing(one: list[Any], other: list[Any], dtype: str, masked: bool) -> int:
    """Elements of parameters, gradient, accum, stat that differ by rule O9; unwritten memory byte for byte."""
    wrong = 0
    for k in range(4):
        unequal = one[k] != other[k]
        if k == 0 or (k in (2, 3) and not masked):
            unequal &= ~(is_nan(one[k], dtype) & is_nan(other[k], dtype))
        wrong += int(unequal.sum())
    return wrong


def wrong_by_oracle(
    before: list[Any], after: list[Any], dtype: str, key: TilingKey, order: str, lr: Any, m: Any
) -> int:
    """Elements that the exact oracle calls wrong; a changed gradient counts too."""
    found = oracle.differing(
        [column.tolist() for column in before], [after[k].tolist() for k in (0, 2, 3)], dtype=dtype,
        learning_rate=int(lr.view(BITS[dtype])[0]), momentum=int(m.view(BITS[dtype])[0]), order=order,
        **attributes(key)._asdict(),
    )
    return len(found) + int((before[1] != after[1]).sum())


def check(engine: str, dtype: str, order: str, key: TilingKey, length: int = 400, seed: int = 0) -> tuple[int, int]:
    """(elements the oracle calls wrong, elements checked) of one kernel of `engine`, over all momenta."""
    rng = np.random.default_rng([seed, *map(ord, dtype + order + key.variant)])
    wrong = checked = 0
    for momentum in MOMENTA:
        lr, m = scalar(0.1, dtype), scalar(momentum, dtype)
        before = tensors(rng, length, dtype)
        after = run(engine, before, dtype, key, order, lr, m)
        wrong += wrong_by_oracle(before, after, dtype, key, order, lr, m)
        checked += length
    return wrong, checked


def every_float16():
    """Elements that differ between cpu and reference with every float16 pattern as gradient, at several scales."""
    patterns = np.arange(1 << 16, dtype=np.uint16)
    rng = np.random.default_rng(9)
    for scale in (1.0, 2.0**-12, 6e-8, 60000.0):
        columns = [rng.permutation(patterns), patterns, rng.permutation(patterns), stats(rng, 1 << 16, "float16")]
        lr, m = scalar(scale, "float16"), scalar(0.9, "float16")
        after = [run(engine, columns, "float16", KEYS[3], "spec", lr, m) for engine in ("cpu", "reference")]
        yield differing(*after, "float16", masked=False)
