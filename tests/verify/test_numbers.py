"""The substituted numbers against exact rational arithmetic: every operation, fused or not, flushed or not."""

import numpy as np
import pytest

from samestep.verify import oracle
from samestep.verify.fingerprint.evaluate import sites_of
from samestep.verify.fingerprint.numbers import STORES, Arithmetic, stored, wide
from samestep.verify.patterns import TYPES, WORDS, is_nan

INNERS = ("float32", "float16", "bfloat16", "float64")
SPECIALS = (0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-45, -3e-42, 1.2e-38, 3.4e38, 6e-8, 65504.0, 1.0009765625)


def numbers(rng, dtype, size=240):
    """Patterns at random, ordinary numbers, small ones and special ones, as float64."""
    word = WORDS[dtype]
    patterns = wide(rng.integers(0, np.iinfo(word).max, size, word, endpoint=True), dtype)
    with np.errstate(all="ignore"):
        normal = rng.standard_normal(size)
        columns = (normal, rng.standard_normal(size) * 2.0**-124, rng.choice(np.array(SPECIALS), size))
        ordinary, small, special = (
            wide(values.astype(np.float32).astype(TYPES[dtype]).view(word), dtype) for values in columns)
    return np.select([rng.integers(0, 4, size) == k for k in range(3)], [patterns, small, special], ordinary)


def exact(value):
    return oracle.decode(int(np.float64(value).view(np.uint64)), oracle.FLOAT64)


def rounded(value, inner):
    """As hardware does 16-bit operations: to float32 first."""
    if inner != "float64":
        value = oracle.round_to(value, oracle.FLOAT32)
    return oracle.round_to(value, oracle.FORMATS[inner])


def same(values, expected):
    got = [int(word) for word in np.asarray(values, np.float64).view(np.uint64)]
    assert [oracle.same(oracle.encode(want, oracle.FLOAT64), word, "float64")
            for want, word in zip(expected, got, strict=True)] == [True] * len(got)


def run(how, operation, *columns):
    with np.errstate(all="ignore"):
        return operation(*(how.number(column, name) for column, name in zip(columns, "pqrs", strict=False))).values


@pytest.mark.parametrize("inner", INNERS)
def test_each_operation_rounds_once_to_the_inner_type(inner):
    rng = np.random.default_rng(1)
    x, y = numbers(rng, inner), numbers(rng, inner)
    for operation, ideal in (
        (lambda p, q: p * q, oracle.exact_product),
        (lambda p, q: p + q, oracle.exact_sum),
        (lambda p, q: p - q, lambda one, other: oracle.exact_sum(one, oracle.negated(other))),
    ):
        same(run(Arithmetic(inner), operation, x, y),
             [rounded(ideal(exact(one), exact(other)), inner) for one, other in zip(x, y, strict=True)])


@pytest.mark.parametrize("inner", INNERS)
@pytest.mark.parametrize("minus", [False, True])
@pytest.mark.parametrize("first", [False, True])
def test_a_fused_sum_takes_the_product_unrounded(inner, minus, first):
    rng = np.random.default_rng(2)
    x, y = numbers(rng, inner), numbers(rng, inner)
    with np.errstate(all="ignore"):  # a third of the sums cancel, where fusing shows most
        cancel = -run(Arithmetic(inner), lambda p, q: p * q, x, y)
    z = np.where(rng.integers(0, 3, x.size) == 0, cancel, numbers(rng, inner))

    def operation(p, q, r):
        one, other = (p * q, r) if first else (r, p * q)
        return one - other if minus else one + other

    def ideal(one, two, three):
        product = oracle.exact_product(one, two)
        left, right = (product, three) if first else (three, product)
        return rounded(oracle.exact_sum(left, oracle.negated(right) if minus else right), inner)

    met = Arithmetic(inner)
    plain = run(met, operation, x, y, z)
    assert list(met.sites) == ["other"]
    fused = run(Arithmetic(inner, fused=frozenset(["other"])), operation, x, y, z)
    same(fused, [ideal(*map(exact, triple)) for triple in zip(x, y, z, strict=True)])
    assert (fused != plain).any()


def test_of_two_products_either_is_fused():
    rng = np.random.default_rng(3)
    columns = [numbers(rng, "float32") for _ in range(4)]

    def operation(how):
        p, q, r, m = (how.number(column, name) for column, name in zip(columns, ("p", "q", "r", "m"), strict=True))
        return p * q + r * m

    met = Arithmetic("float32")
    with np.errstate(all="ignore"):
        operation(met)
        assert met.sites == {"nesterov/grad": "p*q+(r*m)", "nesterov/accum": "(p*q)+r*m"}
        for name, whole, part in (("nesterov/grad", (0, 1), (2, 3)), ("nesterov/accum", (2, 3), (0, 1))):
            got = operation(Arithmetic("float32", fused=frozenset([name]))).values
            same(got, [rounded(oracle.exact_sum(
                oracle.exact_product(row[whole[0]], row[whole[1]]),
                rounded(oracle.exact_product(row[part[0]], row[part[1]]), "float32")), "float32")
                for row in (list(map(exact, values)) for values in zip(*columns, strict=True))])


@pytest.mark.parametrize("flush", ["inputs", "outputs", "both"])
@pytest.mark.parametrize("inner", ["float32", "float16"])
def test_flushing_takes_subnormals_of_the_inner_type_as_zeros_of_their_sign(flush, inner):
    rng = np.random.default_rng(4)
    x, y = numbers(rng, inner), numbers(rng, inner)
    normal = {"float32": -126, "float16": -14}[inner]

    def flushed(value):
        integer, exponent = value
        if integer and integer.bit_length() + exponent <= normal:
            return oracle.ZERO if integer > 0 else oracle.NEGATIVE_ZERO
        return value

    before = flushed if flush in ("inputs", "both") else lambda value: value
    after = flushed if flush in ("outputs", "both") else lambda value: value
    for operation, ideal in ((lambda p, q: p * q, oracle.exact_product), (lambda p, q: p + q, oracle.exact_sum)):
        got = run(Arithmetic(inner, flush), operation, x, y)
        same(got, [after(rounded(ideal(before(exact(one)), before(exact(other))), inner))
                   for one, other in zip(x, y, strict=True)])
        assert (got != run(Arithmetic(inner), operation, x, y)).any()


def test_the_new_velocity_can_be_rounded_as_soon_as_it_is_there():
    def operation(how):
        names = ("accum", "m", "grad", "lr")
        given = zip((1.0, 0.9, 0.1234567, 1.0), names, strict=True)
        accum, m, grad, lr = (how.number(value, name) for value, name in given)
        return (accum * m + grad) * lr

    assert operation(Arithmetic("float64", rounded=("bfloat16", "velocity"))).values == [1.0234375]
    assert operation(Arithmetic("float64")).values == [1.0234567]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("store", STORES)
def test_stores_round_as_they_say(dtype, store):
    rng = np.random.default_rng(5)
    fmt, inner = oracle.FORMATS[dtype], "float64" if dtype == "float32" or store == "through float32" else "float32"
    held = numbers(rng, dtype, 400)
    with np.errstate(all="ignore"):
        step = wide(held.astype(np.float32).astype(TYPES[dtype]).view(WORDS[dtype]) + WORDS[dtype](1), dtype)
        middle = (held + step) / 2  # ties, and what lies beside them
        values = np.where(rng.integers(0, 2, 400) == 0, middle, numbers(rng, inner, 400))
        got = stored(values, dtype, store)
    for value, word in zip(values, got, strict=True):
        ideal = exact(value)
        if store == "through float32" or (dtype == "bfloat16" and store == "nearest-even"):
            ideal = oracle.round_to(ideal, oracle.FLOAT32)
        expected = oracle.encode(ideal, fmt)
        if store in ("truncate", "half-away") and np.isfinite(value):
            expected = ideal_store(ideal, fmt, store)
        assert oracle.same(expected, int(word), dtype), (value, store)


def ideal_store(value, fmt, store):
    """Towards zero, or to nearest with ties away from zero, in exact arithmetic."""
    integer, exponent = value
    if not integer:
        return oracle.encode(value, fmt)
    sign = (integer < 0) << (fmt.bits - 1)
    drop = max(abs(integer).bit_length() - fmt.precision, fmt.emin - exponent)
    kept = abs(integer)
    if drop > 0:
        kept = (kept + (1 << (drop - 1) if store == "half-away" else 0)) >> drop
        exponent += drop
    if kept.bit_length() + exponent > fmt.limit:
        return sign | (fmt.infinity - (store == "truncate"))
    return sign | oracle.encode((kept, exponent) if kept else oracle.ZERO, fmt)


def test_stores_keep_nan_and_infinity():
    values = np.array([np.nan, np.inf, -np.inf])
    for store in STORES:
        with np.errstate(all="ignore"):
            words = stored(values, "bfloat16", store)
        assert is_nan(words, "bfloat16").tolist() == [True, False, False]
        assert words[1:].tolist() == [0x7F80, 0xFF80]


def test_the_sums_of_a_rule_are_named_by_what_they_compute():
    assert sites_of("cann", "spec") == {
        "weight decay": "grad+parameters*wd", "velocity/accum": "accum*m+grad",
        "dampening": "accum_t-grad*(1-stat)*d", "nesterov/grad": "grad*lr+(accum_t*m*lr)",
        "nesterov/accum": "(grad*lr)+accum_t*m*lr", "step": "parameters-accum_t*lr"}
    assert set(sites_of("cann", "ascend950")) == set(sites_of("cann", "spec")) - {"nesterov/grad"}
    assert sites_of("torch", "")["velocity/grad"] == "grad*(1-d)+(accum*m)"
    assert sites_of("torch", "")["step"] == "parameters-accum_t*lr"
    assert sites_of("keras", "")["decay"] == "parameters-parameters*wd*lr"
