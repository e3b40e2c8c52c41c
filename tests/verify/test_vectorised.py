"""The judge for volume gives the patterns that the exact oracles give."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

import suite
from samestep.verify import oracle, oracle_torch, vectorised
from samestep.verify.patterns import WORDS, word_of
from samestep.verify.suite import draw

MOMENTA = (0.9, 0.0, -0.0, 1e-8, -0.5, math.nan, math.inf, 1e-45)
RATES = (0.1, 1e-3, -1.0, 0.0, math.inf, 1e-45, math.nan, 65504.0)
EXTREMES = (0.3, 1e-45, 1e-50, 3e38, math.inf, math.nan, -0.5, 1.5)


def columns(rng, dtype, n, rows=3):
    """Any patterns, specials and ordinary values; each pair of neighbouring specials among them."""
    found = [*draw.mixed(rng, (rows, n), dtype)]
    words = draw.specials(dtype)
    for column in found:
        column[:len(words)] = rng.permutation(words)
    return found


@pytest.mark.parametrize(("dtype", "order", "key"), suite.KERNELS, ids=suite.IDS)
def test_rule_cann(dtype, order, key):
    rng = np.random.default_rng([1, *map(ord, dtype + order + key.variant)])
    for momentum, rate, extreme in zip(MOMENTA, RATES, EXTREMES, strict=True):
        p, g, a = columns(rng, dtype, 60)
        s = draw.stats(rng, (60,), dtype)
        lr, m = word_of(rate, dtype), word_of(momentum, dtype)
        attributes = suite.attributes(key, dampening=extreme, weight_decay=abs(extreme) if extreme else 0.0)._asdict()
        before = [x.copy() for x in (p, g, a, s)]
        after = vectorised.cann(p, g, lr, a, m, s, dtype=dtype, order=order, **attributes)
        found = oracle.differing([x.tolist() for x in before], [x.tolist() for x in after], dtype=dtype,
                                 learning_rate=lr, momentum=m, order=order, **attributes)
        assert not found
        assert all(np.array_equal(x, y) for x, y in zip(before, (p, g, a, s), strict=True))


KINDS = list(itertools.product((0.0, 0.9), (False, True), (0.0, 0.01), (False, True), (False, True)))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_rule_torch(dtype):
    rng = np.random.default_rng([2, *map(ord, dtype)])
    for k, (momentum, first, weight_decay, nesterov, maximize) in enumerate(KINDS):
        p, g, b = columns(rng, dtype, 60)
        buffer = None if first else b
        kind = {"momentum": momentum, "dampening": 0.0 if nesterov else 0.3, "weight_decay": weight_decay,
                "nesterov": nesterov, "maximize": maximize, "lr": (0.1, 1e-3, 1.0, 1e-45)[k % 4], "dtype": dtype}
        assert_torch(p, g, buffer, first, kind)


@pytest.mark.parametrize("name", ["lr", "momentum", "dampening", "weight_decay"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_rule_torch_at_extremes(dtype, name):
    rng = np.random.default_rng([3, *map(ord, dtype + name)])
    for number in (1e-45, 5e-324, 1e-50, 3.4e38, 1e39, math.inf, -math.inf, math.nan, -0.1, 1e-300, 1e300):
        p, g, b = columns(rng, dtype, 50)
        kind = {"lr": 0.1, "momentum": 0.9, "dampening": 0.25, "weight_decay": 0.01, "dtype": dtype, name: number}
        assert_torch(p, g, b, False, kind)


@pytest.mark.parametrize(("dtype", "grad", "state"), [
    ("bfloat16", "float32", "float32"), ("float32", "bfloat16", "float32"), ("bfloat16", "bfloat16", "float32"),
    ("float16", "float64", "float64"), ("float64", "float32", "float64"), ("float32", "float16", "bfloat16"),
])
def test_rule_torch_with_other_dtypes_of_gradient_and_buffer(dtype, grad, state):
    rng = np.random.default_rng([4, *map(ord, dtype + grad + state)])
    for first in (False, True):
        p, g, b = (columns(rng, kind, 80, rows=1)[0] for kind in (dtype, grad, state))
        kind = {"lr": 0.1, "momentum": 0.9, "dampening": 0.1, "weight_decay": 0.01, "dtype": dtype,
                "grad_dtype": grad, "state_dtype": state}
        assert_torch(p, g, None if first else b, first, kind)


def assert_torch(p, g, b, first, kind):
    with np.errstate(all="ignore"):
        after = vectorised.torch(p, g, b, first=first, **kind)
    found = oracle_torch.torch_differing(
        (p.tolist(), g.tolist(), None if b is None else b.tolist()),
        (after[0].tolist(), None if after[1] is None else after[1].tolist()), first=first, **kind)
    assert not found, kind


def exact_fma(x, y, z, fmt):
    values = (oracle.decode(int(np.float64(v).view(np.uint64)), oracle.FLOAT64) for v in (x, y, z))
    return oracle.encode(oracle_torch.fma(*values, fmt), fmt)


def near_ties(rng, n):
    """float32 x, y, z with x*y + z a little below the middle between two numbers; further away; and cancelling."""
    i, j = rng.integers(1, 9, n) * 2.0**-23, (2 * rng.integers(0, 1 << 22, n) + 1) * 2.0**-23
    x, y, z = 2.0**-12 * (1 + i), 2.0**-12 * (1 - i), 1 + j
    x[::4], y[::4] = (1 + rng.integers(0, 1 << 23, (n + 3) // 4) * 2.0**-23 for _ in range(2))
    z[::8] = -(x * y)[::8]
    return x, y, z.astype(np.float32).astype(np.float64)


def test_a_fused_multiply_add_in_float32_is_rounded_once():
    x, y, z = near_ties(np.random.default_rng(5), 4000)
    assert all((number == number.astype(np.float32)).all() for number in (x, y, z))
    got = vectorised.fma32(x, y, z).astype(np.float32).view(np.uint32)
    expected = [exact_fma(*numbers, oracle.FLOAT32) for numbers in zip(x, y, z, strict=True)]
    assert got.tolist() == expected
    twice = (x * y + z).astype(np.float32).view(np.uint32)
    assert (twice != got).sum() > 2000  # the numbers tell one rounding from two


def test_a_fused_multiply_add_in_float64_is_rounded_once():
    rng = np.random.default_rng(6)
    x, y = (rng.uniform(1, 2, 4000) for _ in range(2))
    z = rng.choice([1.0, -1.0], 4000) * 2.0 ** rng.integers(-110, 110, 4000)
    z[::4] = -(x * y)[::4]
    assert_fma64(x, y, z)


def test_a_fused_multiply_add_in_float64_at_extremes():
    rng = np.random.default_rng(7)
    words = draw.specials("float64").view(np.float64)
    scales = np.concatenate([words, 2.0 ** np.array([-1074, -1022, -600, -200, 200, 600, 1023.0])])
    with np.errstate(over="ignore", invalid="ignore"):
        x, y, z = (np.concatenate([rng.choice(scales, 3000) * rng.choice([1.0, 1.5, 1 + 2.0**-52], 3000), words])
                   for _ in range(3))
    assert_fma64(x, y, z)


def assert_fma64(x, y, z):
    with np.errstate(all="ignore"):
        got = vectorised.fma64(x, y, z)
        twice = x * y + z
    nan = int(WORDS["float64"](0x7FF8000000000000))
    words = np.where(np.isnan(got), np.uint64(nan), got.view(np.uint64)).tolist()
    assert words == [exact_fma(*numbers, oracle.FLOAT64) for numbers in zip(x, y, z, strict=True)]
    assert (twice != got).sum() > (np.isnan(got)).sum()


def test_the_oracle_finds_a_wrong_last_place():
    rng = np.random.default_rng(8)
    p, g, a = columns(rng, "float32", 40)
    after = vectorised.cann(p, g, word_of(0.1, "float32"), a, word_of(0.9, "float32"), a, dtype="float32")
    after[0][7] ^= 1
    found = oracle.differing([x.tolist() for x in (p, g, a, a)], [x.tolist() for x in after], dtype="float32",
                             learning_rate=word_of(0.1, "float32"), momentum=word_of(0.9, "float32"))
    assert [(one.tensor, one.position) for one in found] in ([("parameters", 7)], [])
    assert found or np.isnan(after[0].view(np.float32)[7])
