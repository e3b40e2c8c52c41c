"""Tensors drawn for the conformance suite: words of a dtype, from a given random generator."""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from samestep.verify.observation import Problem
from samestep.verify.patterns import INFINITY, SIGN, TYPES, WORDS, Words, is_nan, number_of, word_of

Rng = np.random.Generator

# Values that rules go wrong at in some dtype; those that one dtype lacks fall on a neighbour there.
NUMBERS = (1.0, -1.0, 0.5, 3.0, 1e-3, 65504.0, 6e-8, -6e-8, 6.1e-5, 1e-40, 1.0009765625, 1.0078125)
STATS = (0.0, 0.0, 0.0, 1.0, 1.0, 0.25, 0.7, 2.0, -0.0, -1.0)


class Item(NamedTuple):
    """One check of the suite: a problem to be solved to the bit.

    `rule` is the id of SEMANTICS it checks. `make` draws the problem from a generator seeded by `seed` and by
    `stream`, or by the name where that is empty: an item is the same in every run and on every machine. The tensors
    begin `offset` elements into their allocations; a `guarded` item also looks at the memory around them.
    """

    name: str
    family: str
    rule: str
    dtype: str
    make: Callable[[Rng], Problem]
    offset: int = 0
    guarded: bool = False
    stream: str = ""
    seed: int = 0

    def problem(self) -> Problem:
        """Draw the inputs; a floating-point environment other than the IEEE default may change them."""
        return self.make(np.random.default_rng([self.seed, zlib.crc32((self.stream or self.name).encode())]))


@functools.cache
def specials(dtype: str) -> Words:
    """Patterns that rules go wrong at: zeros, ends of the subnormals and normals, infinities, NaNs with payloads."""
    infinity, sign = INFINITY[dtype], SIGN[dtype]
    one = word_of(1.0, dtype)
    least = {"float16": 10, "bfloat16": 7, "float32": 23, "float64": 52}[dtype]  # bits of the fraction
    normal = 1 << least
    ends = [0, 1, normal - 1, normal, infinity - 1, infinity]
    nans = [infinity + 1, infinity | normal >> 1, sign | infinity | normal - 1]
    words = [*ends, *(sign | word for word in ends), *nans, one + 1, one - 1, *(word_of(x, dtype) for x in NUMBERS)]
    found = np.array(list(dict.fromkeys(words)), WORDS[dtype])
    found.flags.writeable = False
    return found


@functools.cache
def special_numbers(dtype: str) -> tuple[float, ...]:
    """The values among `specials`, as Python numbers, one NaN only."""
    words = specials(dtype)
    return (*(number_of(int(word), dtype) for word in words[~is_nan(words, dtype)]), math.nan)


def patterns(rng: Rng, shape: tuple[int, ...], dtype: str) -> Words:
    """Any bit pattern."""
    word = WORDS[dtype]
    return rng.integers(0, np.iinfo(word).max, shape, word, endpoint=True)


def ordinary(rng: Rng, shape: tuple[int, ...], dtype: str, scale: float = 1.0) -> Words:
    """Normally distributed values."""
    drawn = rng.standard_normal(shape) * scale
    words: Words = drawn.astype(TYPES[dtype]).view(WORDS[dtype])
    return words


def mixed(rng: Rng, shape: tuple[int, ...], dtype: str) -> Words:
    """Three eighths any pattern, three eighths ordinary values, the rest special ones."""
    kind = rng.integers(0, 8, shape, np.uint8)
    if dtype == "float64":  # the judge is slow where exponents are extreme
        kind[rng.integers(0, 4, shape, np.uint8) > 0] = 5
    chosen = specials(dtype)[rng.integers(0, len(specials(dtype)), shape)]
    return np.where(kind < 3, patterns(rng, shape, dtype),
                    np.where(kind < 6, ordinary(rng, shape, dtype), chosen))


@functools.cache
def _usual_stats(dtype: str) -> Words:
    return np.array([word_of(number, dtype) for number in STATS], WORDS[dtype])


def stats(rng: Rng, shape: tuple[int, ...], dtype: str) -> Words:
    """Mostly 0 and 1, some fractions, some of anything."""
    usual = _usual_stats(dtype)[rng.integers(0, len(STATS), shape)]
    return np.where(rng.integers(0, 8, shape, np.uint8) > 0, usual, mixed(rng, shape, dtype))
