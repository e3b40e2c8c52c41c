"""Today's acceptance rules, by values computed by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from samestep.verify.compare import metrics
from samestep.verify.patterns import TYPES, WORDS


def judged(expected, got, dtype="float32"):
    words = (np.array(values, np.float64).astype(TYPES[dtype]).view(WORDS[dtype]) for values in (expected, got))
    return {metric.name: metric for metric in metrics.judged(*words, dtype)}


def test_the_names_come_in_order():
    assert tuple(judged([1], [1])) == metrics.NAMES


def test_one_element_off_by_a_thousandth():
    found = judged([1, 2, 4, -8], [1, 2 + 2**-9, 4, -8])
    relative = 2**-9 / (2 + 1e-7)
    assert found["mixed tolerance"].value == 1
    assert found["MERE"].value == pytest.approx(relative / 4, rel=1e-14)
    assert found["MARE"].value == pytest.approx(relative, rel=1e-14)
    assert found["double-1e-3"].value == 0
    assert found["double-1e-4"].value == 0.25
    product, size = 1 + 2 * (2 + 2**-9) + 16 + 64, 1 + (2 + 2**-9)**2 + 16 + 64
    assert found["cosine"].value == pytest.approx(product / math.sqrt(size * 85), rel=1e-14)
    assert found["max abs"].value == 2**-9
    passed = {name for name, metric in found.items() if metric.passed}
    assert passed == {"mixed tolerance", "MARE", "double-1e-3", "cosine"}  # 2^-12 is more than MERE's 2^-13


def test_the_same_values_pass_everything():
    for dtype in TYPES:
        found = judged([1, -0.0, math.inf, -math.inf, math.nan], [1, 0.0, math.inf, -math.inf, math.nan], dtype)
        assert [metric.value for metric in found.values()] == [1, 0, 0, 0, 0, 1, 0]
        assert all(metric.passed for metric in found.values())


@pytest.mark.parametrize(("dtype", "rtol"), [("float32", -10), ("float16", -9), ("bfloat16", -6)])
def test_the_mixed_tolerance_at_its_edge(dtype, rtol):
    def share(errors, of=100):
        expected = [1.0] * of
        return judged(expected, [1 + error for error in errors] + [1.0] * (of - len(errors)), dtype)["mixed tolerance"]

    at, above = 2.0**rtol, 2.0 ** (rtol + 1)
    assert share([at] * 50) == ("mixed tolerance", 1, f"99 % within 2^-16 + 2^{rtol}*|g|", True)
    assert share([above]).value == 0.99
    assert share([above]).passed
    assert share([above] * 2).value == 0.98
    assert not share([above] * 2).passed
    assert share([above] * 7, 700).passed
    assert not share([above] * 8, 700).passed
    assert judged([0.0], [2.0**-16])["mixed tolerance"].value == 1
    assert judged([0.0], [2.0**-15])["mixed tolerance"].value == 0


@pytest.mark.parametrize(("dtype", "power"), [("float32", -13), ("float16", -10), ("bfloat16", -7)])
def test_mere_and_mare_by_dtype(dtype, power):
    found = judged([1.0] * 8, [1 + 2.0**power] * 8, dtype)
    assert found["MERE"].passed
    assert found["MARE"].limit == f"<= 10 * 2^{power}"
    found = judged([1.0] * 8, [1 + 2.0 ** (power + 1)] * 8, dtype)
    assert not found["MERE"].passed
    assert found["MARE"].passed
    found = judged([1.0] * 80, [1 + 2.0 ** (power + 4)] + [1.0] * 79, dtype)
    assert found["MERE"].passed
    assert not found["MARE"].passed


def test_relative_errors_beside_zero():
    found = judged([0.0], [1e-6])
    assert found["MARE"].value == pytest.approx(10, rel=1e-4)
    assert found["double-1e-3"].value == 1
    assert judged([0.0], [1e-5], "float16")["double-1e-3"].value == 1  # 1e-5 / 2^-10
    assert judged([0.0], [6e-8], "float16")["double-1e-4"].value == 0


def test_the_double_rules_allow_their_own_fraction():
    for power, name in ((3, "double-1e-3"), (4, "double-1e-4")):
        n, wrong = 20_000, 20_000 // 10**power
        for count, passes in ((wrong, True), (wrong + 1, False)):
            got = np.ones(n)
            got[:count] += 1.5 * 10.0**-power
            found = judged(np.ones(n), got)[name]
            assert found.value == count / n
            assert found.passed is passes


@pytest.mark.parametrize(("expected", "got"), [
    (1.0, math.nan), (math.nan, 1.0), (1.0, math.inf), (math.inf, 1.0), (math.inf, -math.inf), (math.nan, math.inf),
    (math.inf, math.nan),
])
def test_one_that_is_not_finite_is_an_infinite_error(expected, got):
    found = judged([1.0, expected], [1.0, got])
    assert [found[name].value for name in metrics.NAMES] == [0.5, math.inf, math.inf, 0.5, 0.5, 1, math.inf]
    assert [metric.passed for metric in found.values()] == [False] * 5 + [True, False]


def test_the_cosine_of_zeros_and_of_opposites():
    assert judged([0.0, 0.0], [0.0, -0.0])["cosine"].value == 1
    assert math.isnan(judged([0.0, 0.0], [1.0, 0.0])["cosine"].value)
    assert not judged([0.0, 0.0], [1.0, 0.0])["cosine"].passed
    assert judged([1.0, 2.0], [-1.0, -2.0])["cosine"].value == pytest.approx(-1)
    assert judged([3e38, 0.0], [0.0, 3e38])["cosine"].value == 0


def test_pieces_add_up(monkeypatch):
    rng = np.random.default_rng(0)
    expected = rng.standard_normal(1000)
    got = expected * (1 + rng.choice([0, 1e-5, 1e-3], 1000))
    whole = judged(expected, got)
    monkeypatch.setattr(metrics, "PIECE", 7)
    for name, metric in judged(expected, got).items():
        assert metric.value == pytest.approx(whole[name].value, rel=1e-12)
        assert metric.passed == whole[name].passed
