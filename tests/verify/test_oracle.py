"""The judge against independent truths: numpy, ml_dtypes, exact fractions and cases worked by hand."""

from __future__ import annotations

import ast
import math
from bisect import bisect_right
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from samestep.verify import oracle
from samestep.verify.oracle import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, FORMATS, decode, encode, same

NUMPY: dict[str, Any] = {
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float32": np.float32,
    "float64": np.float64,
}
UNSIGNED: dict[int, Any] = {16: np.uint16, 32: np.uint32, 64: np.uint64}
NAN32 = 0x7FC00000
NAN32_PAYLOAD = 0xFFA00123
NEGATIVE_ZERO32 = 0x80000000
INFINITY32 = 0x7F800000

# Zeros, ones, subnormals and normals at every edge, infinities, quiet and signalling NaN, and numbers whose
# sum or product is a tie.
SPECIALS = [
    0x00000000, 0x80000000, 0x3F800000, 0xBF800000, 0x00000001, 0x80000001, 0x007FFFFF, 0x807FFFFF,
    0x00800000, 0x80800000, 0x00800001, 0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000,
    0xFF800001, 0x3F800001, 0x33800000, 0xB3800000, 0x33800001, 0x3F000000, 0x3EFFFFFF, 0x1A800000,
    0x20000000, 0x5F000000, 0x73000000, 0xF3000000,
]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Overflow and invalid operations are part of the cases."""
    with np.errstate(all="ignore"):
        yield


def bits(number: float, dtype: str = "float32") -> int:
    """The pattern of `number` in `dtype`, rounded by numpy or ml_dtypes."""
    scalar = np.array([number], NUMPY[dtype])
    return int(scalar.view(UNSIGNED[FORMATS[dtype].bits])[0])


def double_of(value: oracle.Value) -> float:
    """A decoded value as a Python float; exact for the three operator formats and for float64."""
    integer, exponent = value
    if integer:
        return float(Fraction(integer) * Fraction(2) ** exponent)
    specials = {
        oracle.ZERO: 0.0,
        oracle.NEGATIVE_ZERO: -0.0,
        oracle.INFINITY: math.inf,
        oracle.NEGATIVE_INFINITY: -math.inf,
        oracle.NAN: math.nan,
    }
    return specials[value]


def value_of(number: float) -> oracle.Value:
    """A Python float as an exact value, through its float64 pattern."""
    return decode(bits(number, "float64"), FLOAT64)


def assert_same(expected: np.ndarray[Any, Any], got: list[int], dtype: str) -> None:
    """Equal patterns, any NaN for a NaN, decided by numpy alone."""
    patterns = np.array(got, UNSIGNED[FORMATS[dtype].bits])
    found = patterns.view(NUMPY[dtype])
    unequal = expected.view(patterns.dtype) != patterns
    wrong = np.flatnonzero(unequal & ~(np.isnan(expected) & np.isnan(found)))
    assert not wrong.size, [(int(i), expected[i], found[i]) for i in wrong[:5]]


def random_patterns(seed: int, count: int, width: int = 32) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 1 << width, count, dtype=UNSIGNED[width])


def moderate_patterns(seed: int, count: int, dtype: str) -> np.ndarray[Any, Any]:
    """Patterns of numbers near 1, of any sign, so that sums round and products seldom overflow."""
    numbers = np.random.default_rng(seed).normal(0.0, 2.0, count).astype(NUMPY[dtype])
    return numbers.view(UNSIGNED[FORMATS[dtype].bits])


# Decoding.


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_16_bit_pattern_decodes_as_numpy_widens_it(dtype: str) -> None:
    truth = np.arange(1 << 16, dtype=np.uint16).view(NUMPY[dtype]).astype(np.float64).tolist()
    for pattern, expected in enumerate(truth):
        got = double_of(decode(pattern, FORMATS[dtype]))
        if math.isnan(expected):
            assert math.isnan(got), hex(pattern)
        else:
            assert (got, math.copysign(1, got)) == (expected, math.copysign(1, expected)), hex(pattern)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_wide_patterns_decode_as_numpy_reads_them(dtype: str) -> None:
    width = FORMATS[dtype].bits
    patterns = random_patterns(1, 3000, width)
    patterns[:1000] &= UNSIGNED[width]((1 << 20) - 1)
    for pattern, expected in zip(patterns.tolist(), patterns.view(NUMPY[dtype]).tolist(), strict=True):
        got = double_of(decode(pattern, FORMATS[dtype]))
        assert got == expected or (math.isnan(got) and math.isnan(expected)), hex(pattern)


@pytest.mark.parametrize("dtype", list(FORMATS))
def test_encode_inverts_decode(dtype: str) -> None:
    fmt = FORMATS[dtype]
    patterns = range(1 << 16) if fmt.bits == 16 else random_patterns(2, 5000, fmt.bits).tolist()
    for pattern in patterns:
        value = decode(pattern, fmt)
        assert encode(value, fmt) == (fmt.nan if value == oracle.NAN else pattern), hex(pattern)


@pytest.mark.parametrize("pattern", [-1, 1 << 16])
def test_a_pattern_of_another_width_is_refused(pattern: int) -> None:
    with pytest.raises(ValueError, match="float16"):
        decode(pattern, FLOAT16)


def test_numpy_integers_do_not_wrap_around() -> None:
    patterns = np.array([bits(x) for x in (1.0, 0.5, 0.1, 3.5, 0.9, 0.25)], np.uint32)
    assert oracle.cann(*patterns, dtype="float32", dampening=0.5) == oracle.cann(
        *patterns.tolist(), dtype="float32", dampening=0.5
    )


# Rounding.


def doubles_to_round(dtype: str, seed: int) -> np.ndarray[Any, Any]:
    """float64 values over the format's whole range: random ones, exact ties, and the neighbours of ties."""
    fmt = FORMATS[dtype]
    patterns = random_patterns(seed, 3000, fmt.bits)
    top = fmt.infinity - 1
    edges = [0, 1, 2, (1 << fmt.precision - 1) - 1, 1 << fmt.precision - 1, top - 1, top]
    low = np.concatenate([patterns & UNSIGNED[fmt.bits](top), np.array(edges, patterns.dtype)])
    low = low[low <= top]
    lower = low.view(NUMPY[dtype]).astype(np.float64)
    upper = (low + 1).astype(patterns.dtype).view(NUMPY[dtype]).astype(np.float64)
    # Above the largest number a tie lies where the next power of two would be its neighbour.
    upper[low == top] = 2.0**fmt.limit
    ties = lower + (upper - lower) / 2
    span = np.random.default_rng(seed + 1).uniform(fmt.emin - 3, fmt.limit + 1, 3000)
    special = [0.0, math.inf, math.nan, 5e-324, 1e-310, 1.7e308]
    positive = [lower, ties, np.nextafter(ties, 0), np.nextafter(ties, np.inf), 2.0**span, special]
    every = np.concatenate(positive)
    return np.concatenate([every, -every])


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_rounding_a_double_is_numpys(dtype: str) -> None:
    doubles = doubles_to_round(dtype, 3)
    got = [encode(value_of(x), FORMATS[dtype]) for x in doubles.tolist()]
    assert_same(doubles.astype(NUMPY[dtype]), got, dtype)


def test_rounding_a_double_to_bfloat16_finds_the_nearest() -> None:
    finite = [Fraction(x) for x in np.arange(0x7F80, dtype=np.uint16).view(ml_dtypes.bfloat16).tolist()]
    finite.append(Fraction(2) ** 128)  # its pattern, 0x7F80, is infinity: overflow begins half-way to it
    for x in doubles_to_round("bfloat16", 5).tolist():
        got = encode(value_of(x), BFLOAT16)
        if math.isnan(x):
            assert got == 0x7FC0
            continue
        exact = finite[-1] if math.isinf(x) else min(abs(Fraction(x)), finite[-1])
        below = min(bisect_right(finite, exact) - 1, 0x7F7F)
        gap_below, gap_above = exact - finite[below], finite[below + 1] - exact
        nearest = below + int(gap_above < gap_below or (gap_above == gap_below and below & 1))
        assert got == nearest | (0x8000 if math.copysign(1, x) < 0 else 0), x


def test_rounding_a_float32_to_bfloat16_is_the_integer_method() -> None:
    patterns = random_patterns(7, 20_000)
    patterns[:4000] &= 0xFFFF8000
    patterns = patterns[(patterns & 0x7FFFFFFF) <= 0x7F800000]
    for pattern in patterns.tolist():
        assert encode(decode(pattern, FLOAT32), BFLOAT16) == (pattern + 0x7FFF + (pattern >> 16 & 1)) >> 16


def test_rounding_is_once_not_through_float32() -> None:
    # 1 + 2**-11 is a float16 tie; the 2**-40 above it is lost where float32 comes between.
    just_above_tie = (2**40 + 2**29 + 1, -40)
    assert encode(just_above_tie, FLOAT16) == 0x3C01
    assert encode(oracle.round_to(just_above_tie, FLOAT32), FLOAT16) == 0x3C00


@pytest.mark.parametrize(
    ("number", "pattern"),
    [
        (1e-50, 0), (-1e-50, NEGATIVE_ZERO32), (0.0, 0), (-0.0, NEGATIVE_ZERO32), (0, 0), (False, 0),
        (1e300, INFINITY32), (-1e300, 0xFF800000), (10**400, INFINITY32), (-(10**400), 0xFF800000),
        (math.inf, INFINITY32), (-math.inf, 0xFF800000), (math.nan, NAN32), (1, 0x3F800000),
        (True, 0x3F800000), (-2, 0xC0000000), (0.1, 0x3DCCCCCD), (1e-45, 1), (2**24 + 1, 0x4B800000),
        (2**24 + 3, 0x4B800002), (0.5, 0x3F000000), (3.4028235677973366e38, INFINITY32),
    ],
)
def test_attributes_become_float32(number: float, pattern: int) -> None:
    assert encode(oracle.float32_of(number), FLOAT32) == pattern


# Operations.


def operand_pairs() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Random patterns, patterns near one another, and every pair of special values."""
    x, y = random_patterns(11, 40_000), random_patterns(12, 40_000)
    near_x, near_y = moderate_patterns(13, 20_000, "float32"), moderate_patterns(14, 20_000, "float32")
    near_y[:2000] = near_x[:2000] ^ 0x80000000
    special = np.array(SPECIALS, np.uint32)
    grid_x, grid_y = np.meshgrid(special, special)
    return np.concatenate([x, near_x, grid_x.ravel()]), np.concatenate([y, near_y, grid_y.ravel()])


@pytest.mark.parametrize("name", ["mul", "add", "sub"])
def test_operations_are_numpys_float32(name: str) -> None:
    x, y = operand_pairs()
    numpys = {"mul": np.multiply, "add": np.add, "sub": np.subtract}[name]
    truth = numpys(x.view(np.float32), y.view(np.float32))
    operation = getattr(oracle, name)
    got = [
        encode(operation(decode(a, FLOAT32), decode(b, FLOAT32)), FLOAT32)
        for a, b in zip(x.tolist(), y.tolist(), strict=True)
    ]
    assert_same(truth, got, "float32")


@pytest.mark.parametrize(
    ("name", "x", "y", "expected"),
    [
        ("add", "NEGATIVE_ZERO", "NEGATIVE_ZERO", "NEGATIVE_ZERO"),
        ("add", "NEGATIVE_ZERO", "ZERO", "ZERO"),
        ("add", "ONE", "MINUS_ONE", "ZERO"),
        ("sub", "ONE", "ONE", "ZERO"),
        ("sub", "NEGATIVE_ZERO", "ZERO", "NEGATIVE_ZERO"),
        ("add", "INFINITY", "NEGATIVE_INFINITY", "NAN"),
        ("sub", "INFINITY", "INFINITY", "NAN"),
        ("sub", "INFINITY", "NEGATIVE_INFINITY", "INFINITY"),
        ("mul", "ZERO", "MINUS_ONE", "NEGATIVE_ZERO"),
        ("mul", "NEGATIVE_ZERO", "MINUS_ONE", "ZERO"),
        ("mul", "ZERO", "INFINITY", "NAN"),
        ("mul", "NEGATIVE_INFINITY", "MINUS_ONE", "INFINITY"),
        ("mul", "NAN", "ZERO", "NAN"),
    ],
)
def test_special_values(name: str, x: str, y: str, expected: str) -> None:
    got = getattr(oracle, name)(getattr(oracle, x), getattr(oracle, y))
    assert got == getattr(oracle, expected)


def test_an_underflowing_product_keeps_its_sign() -> None:
    tiny, minus_tiny = (1, -149), (-1, -149)
    assert oracle.mul(tiny, minus_tiny) == oracle.NEGATIVE_ZERO
    assert oracle.mul(minus_tiny, minus_tiny) == oracle.ZERO


def test_the_exact_core_serves_float64_and_fused_operations() -> None:
    x, y = random_patterns(15, 5000, 64), random_patterns(16, 5000, 64)
    y[:1000] = x[:1000] + UNSIGNED[64](12345)
    pairs = [(decode(a, FLOAT64), decode(b, FLOAT64)) for a, b in zip(x.tolist(), y.tolist(), strict=True)]
    products = [encode(oracle.exact_product(*pair), FLOAT64) for pair in pairs]
    sums = [encode(oracle.exact_sum(*pair), FLOAT64) for pair in pairs]
    assert_same(x.view(np.float64) * y.view(np.float64), products, "float64")
    assert_same(x.view(np.float64) + y.view(np.float64), sums, "float64")

    # (1 + 2**-23)**2 - (1 + 2**-22) is 2**-46 when rounded once, and zero when the product is rounded first.
    factor, rest = decode(0x3F800001, FLOAT32), oracle.negated(decode(0x3F800002, FLOAT32))
    fused = oracle.round_to(oracle.exact_sum(oracle.exact_product(factor, factor), rest), FLOAT32)
    assert double_of(fused) == 2.0**-46
    assert oracle.add(oracle.mul(factor, factor), rest) == oracle.ZERO


# The rule.


Patterns = tuple[int, int, int]


def cann32(p: float, g: float, lr: float, a: float, m: float, s: float, **options: Any) -> Patterns:
    """`cann` on float32 numbers instead of patterns."""
    return oracle.cann(*(bits(x) for x in (p, g, lr, a, m, s)), dtype="float32", **options)


def test_the_readme_sample() -> None:
    f = np.float32
    accum = f(f(3.5) * f(0.9)) + f(0.5)
    parameters = f(1) - f(accum * f(0.1))
    assert abs(parameters - 0.635) < 1e-6 and abs(accum - 3.65) < 1e-6
    got = cann32(1, 0.5, 0.1, 3.5, 0.9, 1)
    assert got == (bits(float(parameters)), bits(float(accum)), 0)


def test_the_readme_sample_without_momentum() -> None:
    parameters = np.float32(1) - np.float32(0.5) * np.float32(0.1)
    assert abs(parameters - 0.95) < 1e-6
    assert cann32(1, 0.5, 0.1, 3.5, 0, 1) == (bits(float(parameters)), bits(3.5), bits(1))


@pytest.mark.parametrize("momentum", [0.0, -0.0])
def test_zero_momentum_keeps_every_bit_of_accum_and_stat(momentum: float) -> None:
    for accum, stat in [(NAN32_PAYLOAD, NAN32_PAYLOAD), (NEGATIVE_ZERO32, 0xFF800000), (INFINITY32, 1)]:
        _, *kept = oracle.cann(
            bits(1), bits(0.5), bits(0.1), accum, bits(momentum), stat, dtype="float32", dampening=0.5
        )
        assert kept == [accum, stat]


@pytest.mark.parametrize("momentum", [1e-30, -1e-30, 1e-45, math.nan])
def test_any_other_momentum_writes_accum_and_stat(momentum: float) -> None:
    _, accum, stat = cann32(1, 0.5, 0.1, 3.5, momentum, -1)
    assert stat == 0
    assert same(NAN32 if math.isnan(momentum) else bits(0.5), accum, "float32")


def test_a_float16_momentum_that_is_subnormal_is_not_zero() -> None:
    one = bits(1, "float16")
    assert oracle.cann(one, one, one, one, 1, one, dtype="float16")[1:] == (one, 0)


@pytest.mark.parametrize("nesterov", [False, True])
def test_infinite_accum_without_momentum_makes_parameters_nan(nesterov: bool) -> None:
    parameters, accum, stat = cann32(1, 0.5, 0.1, math.inf, 0, 1, nesterov=nesterov)
    assert same(NAN32, parameters, "float32")
    assert (accum, stat) == (INFINITY32, bits(1))


def test_weight_decay_that_rounds_to_zero_is_absent() -> None:
    assert cann32(math.inf, 0.5, 0.1, 0, 0.9, 1, weight_decay=1e-50)[0] == INFINITY32
    assert cann32(math.inf, 0.5, 0.1, 0, 0.9, 1, weight_decay=-0.0)[0] == INFINITY32
    # 1e-45 is a float32 subnormal: the branch is there, and infinity - infinity * lr is NaN.
    assert same(NAN32, cann32(math.inf, 0.5, 0.1, 0, 0.9, 1, weight_decay=1e-45)[0], "float32")


def test_stat_is_read_only_with_dampening() -> None:
    expected = cann32(1, 0.5, 0.1, 3.5, 0.9, 1)
    for dampening in (0.0, -0.0, 1e-50):
        assert cann32(1, 0.5, 0.1, 3.5, 0.9, math.nan, dampening=dampening) == expected
    assert same(NAN32, cann32(1, 0.5, 0.1, 3.5, 0.9, math.nan, dampening=0.5)[1], "float32")


def test_dampening_acts_outside_the_momentum_test() -> None:
    # 2 - 2 * (1 - 0) * 0.5 is 1, also when momentum is zero.
    assert cann32(4, 2, 1, 0, 0, 0, dampening=0.5) == (bits(3), bits(0), bits(0))
    assert cann32(4, 2, 1, 0, 0, 1, dampening=0.5) == (bits(2), bits(0), bits(1))


def test_each_term_by_hand() -> None:
    # grad = 1 + 4*0.5 = 3, accum_t = 2*0.5 + 3 = 4.
    assert cann32(4, 1, 0.25, 2, 0.5, 1, weight_decay=0.5) == (bits(3), bits(4), 0)
    # p_out = 4 - (3*0.25 + 4*0.5*0.25) = 2.75.
    assert cann32(4, 1, 0.25, 2, 0.5, 1, weight_decay=0.5, nesterov=True) == (bits(2.75), bits(4), 0)
    # accum_t = 4 - 3*(1 - 0.5)*0.5 = 3.25, p_out = 4 - 3.25*0.25.
    expected = (bits(3.1875), bits(3.25), 0)
    assert cann32(4, 1, 0.25, 2, 0.5, 0.5, weight_decay=0.5, dampening=0.5) == expected


@pytest.mark.parametrize("order", ["spec", "ascend950"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"dampening": 0.3},
        {"weight_decay": 0.01},
        {"weight_decay": 0.01, "dampening": 0.3},
        {"weight_decay": 0.01, "nesterov": True},
        {"nesterov": True},
    ],
)
@pytest.mark.parametrize("dtype", oracle.CANN_DTYPES)
def test_the_rule_is_the_formula_in_numpy_float32(dtype: str, options: dict[str, Any], order: str) -> None:
    width = FORMATS[dtype].bits
    columns = [
        np.concatenate([random_patterns(seed, 150, width), moderate_patterns(seed, 450, dtype)])
        for seed in range(4)
    ]
    p, g, a, s = (column.view(NUMPY[dtype]).astype(np.float32) for column in columns)
    learning_rate, momentum = bits(0.1, dtype), bits(0.9, dtype)
    lr, m = (np.float32(np.array(x, NUMPY[dtype])) for x in (0.1, 0.9))
    wd, d = np.float32(options.get("weight_decay", 0)), np.float32(options.get("dampening", 0))
    spec, one = order == "spec", np.float32(1)
    grad = g + p * wd if wd else g
    accum_t = a * m + grad
    if d:
        accum_t = accum_t - ((grad * (one - s)) * d if spec else grad * ((one - s) * d))
    step = accum_t * lr
    if options.get("nesterov"):
        step = grad * lr + (accum_t * m) * lr if spec else (grad + accum_t * m) * lr
    rule = oracle.cann_rule(learning_rate, momentum, dtype=dtype, order=order, **options)
    got = list(map(rule.update, *(column.tolist() for column in columns)))
    parameters, accum, stat = (list(column) for column in zip(*got, strict=True))
    assert_same((p - step).astype(NUMPY[dtype]), parameters, dtype)
    assert_same(accum_t.astype(NUMPY[dtype]), accum, dtype)
    assert not any(stat)


def outcomes(order: str, stats: list[float], **options: Any) -> list[Patterns]:
    """The results of 300 float32 elements in one evaluation order."""
    rng = np.random.default_rng(21)
    rows = rng.normal(0, 1, (300, 3)).tolist()
    return [
        cann32(p, g, 0.1, a, 0.9, stats[i % len(stats)], order=order, **options)
        for i, (p, g, a) in enumerate(rows)
    ]


def test_the_two_orders_differ_where_the_table_says() -> None:
    assert outcomes("spec", [1.0], nesterov=True) != outcomes("ascend950", [1.0], nesterov=True)
    assert outcomes("spec", [0.3, 0.7], dampening=0.1) != outcomes("ascend950", [0.3, 0.7], dampening=0.1)
    assert outcomes("spec", [0.0, 1.0], dampening=0.1) == outcomes("ascend950", [0.0, 1.0], dampening=0.1)
    assert outcomes("spec", [0.5], weight_decay=0.1) == outcomes("ascend950", [0.5], weight_decay=0.1)


@pytest.mark.parametrize("options", [{"dtype": "float64"}, {"dtype": "float32", "order": "x"}])
def test_unknown_names_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="is not one of"):
        oracle.cann(0, 0, 0, 0, 0, 0, **options)


# Comparing.


@pytest.mark.parametrize(
    ("dtype", "nan", "other_nan", "infinity", "negative_zero"),
    [
        ("float32", 0x7FC00000, 0xFF800001, 0x7F800000, 0x80000000),
        ("float16", 0x7E00, 0xFC01, 0x7C00, 0x8000),
        ("bfloat16", 0x7FC0, 0xFF81, 0x7F80, 0x8000),
    ],
)
def test_same(dtype: str, nan: int, other_nan: int, infinity: int, negative_zero: int) -> None:
    assert same(5, 5, dtype) and same(nan, other_nan, dtype) and same(other_nan, nan, dtype)
    assert not same(5, 6, dtype)
    assert not same(0, negative_zero, dtype)
    assert not same(nan, infinity, dtype) and not same(infinity, nan, dtype)


Columns = tuple[list[int], ...]


def updated(momentum: float) -> tuple[Columns, list[list[int]], dict[str, Any]]:
    """Four elements before and after a right update, and the arguments for `differing`.

    Element 1 computes NaN; element 2 has NaN in accum, with a payload; element 3 computes zeros.
    """
    numbers = ([1.0, math.nan, 2.0, 0.0], [0.5, 1.0, 1.0, 0.0], [3.5, 1.0, 1.0, 0.0], [1.0, 1.0, 1.0, -0.0])
    before = tuple([bits(x) for x in column] for column in numbers)
    before[2][2] = NAN32_PAYLOAD
    arguments = {"dtype": "float32", "learning_rate": bits(0.1), "momentum": bits(momentum)}
    rows = [
        oracle.cann(p, g, bits(0.1), a, bits(momentum), s, dtype="float32")
        for p, g, a, s in zip(*before, strict=True)
    ]
    return before, [list(column) for column in zip(*rows, strict=True)], arguments


@pytest.mark.parametrize("momentum", [0.9, 0.0])
def test_a_right_update_has_no_differences(momentum: float) -> None:
    before, after, arguments = updated(momentum)
    assert oracle.differing(before, after, **arguments) == []


def test_numpy_columns_are_accepted_and_python_ints_come_back() -> None:
    before, after, arguments = updated(0.9)
    after[1][0] ^= 1
    columns: list[Any] = [np.array(column, np.uint32) for column in (*before, *after)]
    found = oracle.differing(columns[:4], columns[4:], **arguments)
    assert found == oracle.differing(before, after, **arguments) and len(found) == 1
    assert type(found[0].expected) is type(found[0].got) is int


@pytest.mark.parametrize("momentum", [0.9, 0.0])
@pytest.mark.parametrize(("column", "tensor"), [(0, "parameters"), (1, "accum"), (2, "stat")])
def test_one_flipped_bit_is_found(momentum: float, column: int, tensor: str) -> None:
    before, after, arguments = updated(momentum)
    right = after[column][0]
    after[column][0] ^= 1
    found = oracle.differing(before, after, **arguments)
    assert found == [(tensor, 0, right, right ^ 1)]
    assert (found[0].tensor, found[0].position, found[0].expected, found[0].got) == found[0]


@pytest.mark.parametrize("momentum", [0.9, 0.0])
@pytest.mark.parametrize(("column", "tensor"), [(0, "parameters"), (1, "accum"), (2, "stat")])
def test_a_zero_of_the_other_sign_is_found(momentum: float, column: int, tensor: str) -> None:
    before, after, arguments = updated(momentum)
    right = after[column][3]
    assert right in (0, NEGATIVE_ZERO32)
    after[column][3] ^= NEGATIVE_ZERO32
    expected = [(tensor, 3, right, right ^ NEGATIVE_ZERO32)]
    assert oracle.differing(before, after, **arguments) == expected


@pytest.mark.parametrize(("momentum", "reported"), [(0.9, False), (0.0, True)])
def test_a_changed_payload_counts_only_where_nothing_is_written(momentum: float, reported: bool) -> None:
    before, after, arguments = updated(momentum)
    after[0][1] ^= 0x80000001
    assert oracle.differing(before, after, **arguments) == []
    right = after[1][2]
    after[1][2] ^= 2
    expected = [("accum", 2, right, right ^ 2)] if reported else []
    assert oracle.differing(before, after, **arguments) == expected


def test_the_attributes_reach_the_comparison() -> None:
    before = [moderate_patterns(seed, 60, "float32").tolist() for seed in range(4)]
    scalars: dict[str, Any] = {"dtype": "float32", "learning_rate": bits(0.1), "momentum": bits(0.9)}
    variants: list[dict[str, Any]] = [
        {},
        {"weight_decay": 0.5},
        {"nesterov": True},
        {"nesterov": True, "order": "ascend950"},
        {"dampening": 0.3},
        {"dampening": 0.3, "order": "ascend950"},
    ]
    for made in variants:
        rows = map(oracle.cann_rule(**scalars, **made).update, *before)
        after = list(zip(*rows, strict=True))
        for judged in variants:
            agrees = oracle.differing(before, after, **scalars, **judged) == []
            assert agrees == (made is judged), (made, judged)


def test_columns_of_unequal_length_are_refused() -> None:
    before, after, arguments = updated(0.9)
    after[1].pop()
    with pytest.raises(ValueError, match="shorter"):
        oracle.differing(before, after, **arguments)


def test_the_judge_depends_on_nothing_it_judges() -> None:
    tree = ast.parse(Path(oracle.__file__).read_text(encoding="utf-8"))
    imported: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            imported.add(node.module or "")
    assert imported == {"__future__", "math", "collections.abc", "operator", "typing"}
