"""Patterns: conversion, rule O9's comparison, and distances in ULPs."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from samestep.rounding import round_number
from samestep.verify.patterns import (
    INFINITY,
    SIGN,
    TYPES,
    WORDS,
    differs,
    is_nan,
    number_of,
    ranks,
    ulps,
    values_of,
    word_of,
    words_of,
)
from samestep.verify.suite import draw

DTYPES = tuple(TYPES)


def words(dtype, *patterns):
    return np.array(patterns, WORDS[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_become_patterns_and_patterns_numbers(dtype):
    for word in draw.specials(dtype)[~is_nan(draw.specials(dtype), dtype)].tolist():
        assert word_of(number_of(word, dtype), dtype) == word
    assert is_nan(words(dtype, word_of(math.nan, dtype)), dtype).all()
    assert math.isnan(number_of(word_of(math.nan, dtype), dtype))
    values = np.arange(6).reshape(2, 3).astype(TYPES[dtype])
    flat = words_of(values, dtype)
    assert flat.shape == (6,)
    assert np.shares_memory(flat, values)
    assert np.array_equal(values_of(flat, dtype).reshape(2, 3), values)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_number_is_rounded_once_to_nearest_even(dtype):
    unit = number_of(word_of(1.0, dtype) + 1, dtype) - 1
    numbers = [1 + unit / 2, 1 + 1.5 * unit, 1 + unit / 2 + 2.0**-50, 0.1, 1e-45, 7e-46, 1e39, 65520.0, 2.0**-25, -0.0]
    for number in numbers:
        assert word_of(number, dtype) == round_number(number, dtype)[1]


@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_equals_nan_only_where_it_was_computed(dtype):
    infinity, sign = INFINITY[dtype], SIGN[dtype]
    expected = words(dtype, infinity + 1, infinity + 1, 0, infinity, 5, sign | infinity + 1)
    got = words(dtype, infinity + 1, sign | infinity + 2, sign, infinity + 1, 5, 5)
    assert differs(expected, got, dtype).tolist() == [False, False, True, True, False, True]
    assert differs(expected, got, dtype, computed=False).tolist() == [False, True, True, True, False, True]


@pytest.mark.parametrize("dtype", DTYPES)
def test_which_patterns_are_nans(dtype):
    special = draw.specials(dtype)
    with np.errstate(all="ignore"):
        assert np.array_equal(is_nan(special, dtype), np.isnan(special.view(TYPES[dtype]).astype(np.float64)))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_ranks_are_in_the_order_of_the_values_and_neighbours_differ_by_one(dtype):
    every = np.arange(1 << 16, dtype=np.uint16)
    numbers = every[~is_nan(every, dtype)]
    values = numbers.view(TYPES[dtype]).astype(np.float64)
    order = np.argsort(values, kind="stable")
    steps = np.diff(ranks(numbers, dtype)[order])
    assert set(steps.tolist()) == {0, 1}
    assert (steps == 0).sum() == 1  # between the zeros
    assert np.array_equal(steps == 0, np.diff(values[order]) == 0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_distances(dtype):
    infinity, sign = INFINITY[dtype], SIGN[dtype]
    one = word_of(1.0, dtype)
    table = [
        (0, 0, 0), (0, sign, 0), (one, one + 1, 1), (one, one - 1, 1), (0, 1, 1), (sign | 1, 1, 2), (sign, 3, 3),
        (infinity, infinity - 1, 1), (infinity, sign | infinity, 2 * infinity), (one, sign | one, 2 * one),
        (infinity + 1, sign | infinity + 7, 0), (infinity + 1, infinity, math.inf), (one, infinity + 1, math.inf),
    ]
    for (a, b, distance), (x, y) in itertools.product(table, ((0, 1), (1, 0))):
        pair = (a, b)
        got = ulps(words(dtype, pair[x]), words(dtype, pair[y]), dtype)
        assert got.dtype == np.float64
        assert got.tolist() == [float(distance)], (a, b)
