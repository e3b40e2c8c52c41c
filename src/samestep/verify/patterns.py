"""Bit patterns of whole tensors: how they are held, compared (rule O9) and measured in ULPs.

A tensor under judgement is a flat array of unsigned words of its dtype's width: NaN payloads, the sign of zero and
memory that must not change are then plain integers.
"""

from __future__ import annotations

import struct
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from samestep.verify import oracle

Words: TypeAlias = NDArray[Any]  # unsigned integers

TYPES: dict[str, Any] = {
    "float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float64": np.float64,
}
WORDS: dict[str, Any] = {"float32": np.uint32, "float16": np.uint16, "bfloat16": np.uint16, "float64": np.uint64}
INFINITY = {"float32": 0x7F800000, "float16": 0x7C00, "bfloat16": 0x7F80, "float64": 0x7FF0000000000000}
SIGN = {name: 1 << (8 * np.dtype(word).itemsize - 1) for name, word in WORDS.items()}


def words_of(values: NDArray[Any], dtype: str) -> Words:
    """The patterns of an array of `dtype`, flat in C order; a view where that is possible."""
    return values.reshape(-1).view(WORDS[dtype])


def values_of(words: Words, dtype: str) -> NDArray[Any]:
    """The same memory as numbers of `dtype`."""
    return words.view(TYPES[dtype])


def word_of(value: float, dtype: str) -> int:
    """The pattern of `value` rounded once to `dtype`, to nearest even, whatever the floating-point environment is."""
    # Not by NumPy: ml_dtypes rounds float64 to float32 first, and so twice.
    word = struct.unpack("<Q", struct.pack("<d", value))[0]
    return oracle.encode(oracle.decode(word, oracle.FLOAT64), oracle.FORMATS[dtype])


def number_of(word: int, dtype: str) -> float:
    """The pattern `word` as a Python float, which holds every value of the four dtypes exactly."""
    with np.errstate(all="ignore"):  # a signalling NaN
        return float(np.array([word], WORDS[dtype]).view(TYPES[dtype]).astype(np.float64)[0])


def is_nan(words: Words, dtype: str) -> NDArray[np.bool_]:
    """Which patterns are NaNs."""
    word = WORDS[dtype]
    found: NDArray[np.bool_] = (words & word(SIGN[dtype] - 1)) > word(INFINITY[dtype])
    return found


def differs(expected: Words, got: Words, dtype: str, *, computed: bool = True) -> NDArray[np.bool_]:
    """Which elements break rule O9: a computed NaN equals any NaN; memory not to be written counts bit for bit."""
    unequal: NDArray[np.bool_] = expected != got
    if computed and unequal.any():
        unequal &= ~(is_nan(expected, dtype) & is_nan(got, dtype))
    return unequal


def ranks(words: Words, dtype: str) -> NDArray[np.int64]:
    """The patterns as integers in the order of their values: neighbours differ by 1, both zeros are 0."""
    sign = SIGN[dtype]
    magnitude = (words & WORDS[dtype](sign - 1)).astype(np.int64)
    signed: NDArray[np.int64] = np.where((words & WORDS[dtype](sign)) != 0, -magnitude, magnitude)
    return signed


def ulps(expected: Words, got: Words, dtype: str) -> NDArray[np.float64]:
    """Distance in units in the last place, elementwise: how many values of `dtype` lie between, plus one.

    0 for equal values, also +0 and -0; infinity is the neighbour of the largest number; infinite where exactly one of
    the two is a NaN, 0 where both are.
    """
    a, b = ranks(expected, dtype), ranks(got, dtype)
    # Across zero the distance of two float64 ranks may not fit into int64.
    across = np.abs(a).astype(np.float64) + np.abs(b)
    apart = np.where((a < 0) == (b < 0), np.abs(a - b), across)
    one, other = is_nan(expected, dtype), is_nan(got, dtype)
    return np.where(one | other, np.where(one & other, 0.0, np.inf), apart)
