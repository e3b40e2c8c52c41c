"""m == 0 writes neither accum nor stat: their bytes survive and their pages are not touched (rule O6)."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
import pytest

import samestep
import suite
from samestep.engine import cpu

ENGINES = ["reference", "cpu"]
PROT_READ = 1


def pages(bits):
    """The same bits in memory of their own, and a switch that takes the right to write to it away from the process."""
    memory = mmap.mmap(-1, -(-bits.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE)
    array = np.frombuffer(memory, bits.dtype, len(bits))
    array[:] = bits
    address = ctypes.c_void_p(array.ctypes.data)

    def protect(protection):
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.mprotect(address, ctypes.c_size_t(len(memory)), protection) == 0, ctypes.get_errno()

    return array, protect


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("dtype", suite.NUMPY)
@pytest.mark.parametrize("zero", [0.0, -0.0])
@pytest.mark.parametrize("length", [1, 67, 4097, 300_007])
def test_read_only_pages_survive_a_step_without_momentum(engine, dtype, zero, length):
    columns = suite.tensors(np.random.default_rng(length), length, dtype)
    lr, m = suite.scalar(0.1, dtype), suite.scalar(zero, dtype)
    expected = suite.run("reference", columns, dtype, suite.KEYS[3], "spec", lr, m)
    (a, protect_a), (s, protect_s) = pages(columns[2]), pages(columns[3])
    p, g = columns[0].copy(), columns[1]
    protect_a(PROT_READ)
    protect_s(PROT_READ)
    try:
        tensors = (x.view(suite.NUMPY[dtype]) for x in (p, g, a, s))
        p_, g_, a_, s_ = tensors
        samestep.sgd_(p_, g_, lr, a_, m, s_, **suite.attributes(suite.KEYS[3])._asdict(), engine=engine)
    finally:
        protect_a(PROT_READ | 2)
        protect_s(PROT_READ | 2)
    assert suite.differing(expected, [p, g, a, s], dtype, masked=True) == 0
    assert a.tobytes() == columns[2].tobytes()
    assert s.tobytes() == columns[3].tobytes()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("dtype", suite.NUMPY)
def test_payloads_infinities_and_negative_zeros_survive(engine, dtype):
    width = suite.BITS[dtype]
    infinity = suite.bits_of(np.inf, dtype)
    sign = 1 << (8 * width().itemsize - 1)
    kept = np.array([infinity + 1, infinity + 3, sign + infinity + 2, infinity, sign + infinity, sign, 0, 1], width)
    one = np.full(len(kept), suite.bits_of(1.0, dtype), width)
    for zero in (0.0, -0.0):
        after = suite.run(engine, [one, one, kept, kept], dtype, suite.KEYS[0], "spec", suite.scalar(0.1, dtype),
                          suite.scalar(zero, dtype))
        assert after[2].tobytes() == after[3].tobytes() == kept.tobytes()
        # Infinity times zero reaches the parameters (rule O7).
        assert suite.is_nan(after[0], dtype).tolist() == [True] * 5 + [False] * 3


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("momentum", [1e-30, -1e-30, float("nan"), 1e-8])
def test_every_other_momentum_writes(engine, momentum):
    ones = np.ones(5, np.float32)
    a, s = ones.copy(), ones.copy()
    samestep.sgd_(ones.copy(), ones, 0.1, a, momentum, s, engine=engine)
    assert s.tobytes() == bytes(20)
    assert np.isnan(a).all() if momentum != momentum else (a == 1 + np.float32(momentum)).all()


@pytest.mark.parametrize("dtype", suite.NUMPY)
@pytest.mark.parametrize("variant", [0, 1, 3])
@pytest.mark.parametrize("filled", ["ones", "zeros", "zeros then a one", "negative zeros"])
def test_the_ways_to_clear_stat_give_the_same_bits(dtype, variant, filled, monkeypatch):
    # Above a size stat is cleared past the caches, or left where it is +0 already; both must look like plain stores.
    length = 50_001
    columns = suite.tensors(np.random.default_rng(8), length, dtype)
    value = {"ones": 1.0, "negative zeros": -0.0}.get(filled, 0.0)
    columns[3][:] = suite.bits_of(value, dtype)
    if filled == "zeros then a one":
        columns[3][[100, 9000, length - 1]] = suite.bits_of(1.0, dtype)
    lr, m = suite.scalar(0.1, dtype), suite.scalar(0.9, dtype)
    expected = suite.run("reference", columns, dtype, suite.KEYS[variant], "spec", lr, m)
    for cache_bytes in (1, 1 << 40):
        monkeypatch.setattr(cpu, "_LONG", cache_bytes)
        monkeypatch.setattr(cpu, "last_cache", lambda size=cache_bytes: size)
        cpu._split.cache_clear()
        for offset in (0, 1, 6):
            moved = [shifted(column, offset) for column in columns]
            p, g, a, s = (column.view(suite.NUMPY[dtype]) for column in moved)
            samestep.sgd_(p, g, lr, a, m, s, **suite.attributes(suite.KEYS[variant])._asdict())
            assert suite.differing(expected, moved, dtype, masked=False) == 0
    cpu._split.cache_clear()


def shifted(bits, offset):
    """A copy that begins `offset` bytes into its memory, between bytes that must not change."""
    raw = np.full(bits.nbytes + 64, 0xAB, np.uint8)[offset:offset + bits.nbytes]
    copy = raw.view(bits.dtype)
    copy[:] = bits
    return copy
