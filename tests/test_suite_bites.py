"""The judge judged: each known way to be wrong, planted in the reference engine, makes the suite's check fail."""

from __future__ import annotations

import numpy as np
import pytest

import suite
from samestep import formula
from samestep.engine import reference

cann = formula.cann


def fused(p, g, lr, a, m, s, d, wd, one, nesterov, weight_decay, dampening, ascend950):
    """accum*m + grad rounded once."""
    grad = g + p * wd if weight_decay else g
    accum_t = (a.astype(np.float64) * np.float64(m) + grad.astype(np.float64)).astype(np.float32)
    if dampening:
        accum_t = accum_t - grad * ((one - s) * d) if ascend950 else accum_t - (grad * (one - s)) * d
    if not nesterov:
        return p - accum_t * lr, accum_t
    ahead = accum_t * m
    return p - ((grad + ahead) * lr if ascend950 else grad * lr + ahead * lr), accum_t


def dampening_inside(*args):
    """Dampening only where momentum is not zero, as torch has it."""
    args = list(args)
    args[11] = args[11] and args[4] != 0
    return cann(*args)


def other_order(*args):
    return cann(*args[:12], not args[12])


def weight_decay_never_absent(*args):
    return cann(*args[:10], True, *args[11:])


def stat_always_read(*args):
    return cann(*args[:11], True, args[12])


def float16_inside(*args):
    values = [x.astype(np.float16) if isinstance(x, (np.ndarray, np.floating)) else x for x in args]
    return tuple(x.astype(np.float32) for x in cann(*values))


FORMULAS = [fused, dampening_inside, other_order, weight_decay_never_absent, stat_always_read, float16_inside]


def write_back_at_negative_zero(monkeypatch):
    update = reference._update

    def mutant(batch, lr, m, p, g, a, s):
        tiny = np.float32(-1e-45)  # -0.0 taken for a number
        before = a.copy(), s.copy()
        update(batch, lr, m, p, g, a, s)
        if m == 0 and np.signbit(m):
            after = p.copy()
            a[:], s[:] = before
            update(batch, lr, tiny, p.copy(), g, a, s)
            p[:] = after

    monkeypatch.setattr(reference, "_update", mutant)


def double_rounding(monkeypatch):
    stored = reference.stored

    def mutant(values, dtype):
        if dtype == "float32":  # through float64's neighbour of ten fewer bits
            wide = values.astype(np.float64)
            return stored((wide + wide * 2.0**9 - wide * 2.0**9).astype(np.float32), dtype)
        bits = values.view(np.uint32)  # first to four bits more than the dtype has, then to the dtype
        drop = np.uint32(12 if dtype == "bfloat16" else 9)
        once = (bits + ((np.uint32(1) << (drop - np.uint32(1))) - np.uint32(1) + (bits >> drop & np.uint32(1)))) >> drop
        return stored(np.where(np.isfinite(values), once << drop, bits).view(np.float32), dtype)

    monkeypatch.setattr(reference, "stored", mutant)


def truncation(monkeypatch):
    stored = reference.stored

    def mutant(values, dtype):
        drop = {"float32": 1, "float16": 13, "bfloat16": 16}[dtype]
        bits = values.view(np.uint32)
        cut = np.where(np.isfinite(values), bits >> np.uint32(drop) << np.uint32(drop), bits)
        return stored(cut.view(np.float32), dtype)

    monkeypatch.setattr(reference, "stored", mutant)


def state_kept(monkeypatch):
    update = reference._update
    monkeypatch.setattr(reference, "_update", lambda b, lr, m, p, g, a, s: update(b, lr, m, p, g, a, s.copy()))


def wrong_elements():
    found = {}
    for dtype, order, key in suite.KERNELS:
        wrong, _ = suite.check("reference", dtype, order, key, length=100)
        found[dtype, order, key.variant] = wrong
    return found


def test_nothing_is_found_in_the_engine_as_it_is():
    assert not any(wrong_elements().values())


@pytest.mark.parametrize("mutant", FORMULAS, ids=lambda mutant: mutant.__name__)
def test_a_mutant_of_the_formula_fails(mutant, monkeypatch):
    monkeypatch.setattr(formula, "cann", mutant)
    assert any(wrong_elements().values())


@pytest.mark.parametrize(
    "plant", [write_back_at_negative_zero, double_rounding, truncation, state_kept], ids=lambda plant: plant.__name__
)
def test_a_mutant_of_the_stores_fails(plant, monkeypatch):
    plant(monkeypatch)
    assert any(wrong_elements().values())


# In 16 bits accum*m is exact in float32, so that there is nothing to fuse.
EVERYWHERE = [(fused, k) for k in suite.KERNELS if k[0] == "float32"] + [(float16_inside, k) for k in suite.KERNELS]


@pytest.mark.parametrize(("mutant", "kernel"), EVERYWHERE)
def test_wrong_arithmetic_is_found_in_every_kernel(mutant, kernel, monkeypatch):
    monkeypatch.setattr(formula, "cann", mutant)
    assert suite.check("reference", *kernel)[0] > 0
