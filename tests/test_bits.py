"""The oracle, the reference engine and the cpu engine agree bit for bit (rules O5..O9)."""

from __future__ import annotations

import numpy as np
import pytest

import samestep
import suite
from samestep import formula
from samestep.engine.reference import float32, stored

ENGINES = ("reference", "cpu")
LENGTHS = (*range(1, 68), 1023, 4097, 100_003)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("dtype", "order", "key"), suite.KERNELS, ids=suite.IDS)
def test_the_oracle_finds_nothing_wrong(engine, dtype, order, key):
    # 36 kernels x 8 momenta x 400 elements = 115,200 elements for each engine, three tensors each.
    wrong, checked = suite.check(engine, dtype, order, key)
    assert checked == 3200
    assert wrong == 0


@pytest.mark.parametrize(("dtype", "order", "key"), suite.KERNELS, ids=suite.IDS)
def test_cpu_equals_reference_at_every_length_and_alignment(dtype, order, key):
    rng = np.random.default_rng(1)
    for momentum in suite.MOMENTA:
        lr, m = suite.scalar(0.1, dtype), suite.scalar(momentum, dtype)
        longest = suite.tensors(rng, max(LENGTHS), dtype)
        for length in LENGTHS:
            offset = int(rng.integers(0, 4))  # in bytes: not a multiple of the element
            columns = [misaligned(column[-length:], offset * (k + 1) % 64) for k, column in enumerate(longest)]
            reference = suite.run("reference", [column[-length:] for column in longest], dtype, key, order, lr, m)
            run_in_place(columns, dtype, key, order, lr, m)
            assert suite.differing(reference, columns, dtype, momentum == 0) == 0, (momentum, length, offset)


def misaligned(bits, offset):
    """A copy of `bits` that starts `offset` bytes into its memory."""
    raw = np.zeros(bits.nbytes + 64, np.uint8)[offset:offset + bits.nbytes]
    copy = raw.view(bits.dtype)
    copy[:] = bits
    return copy


def run_in_place(columns, dtype, key, order, lr, m):
    p, g, a, s = (column.view(suite.NUMPY[dtype]) for column in columns)
    samestep.sgd_(p, g, lr, a, m, s, **suite.attributes(key)._asdict(), order=order)


def test_cpu_equals_reference_on_a_hundred_million_elements():
    # 36 kernels x 28 x 100,003 elements: > 10^8. Every call gets another stretch of one long random tape.
    length, checked = 100_003, 0
    rng = np.random.default_rng(2)
    for dtype, order, key in suite.KERNELS:
        tape = suite.tensors(rng, 3 * length, dtype)
        lr = suite.scalar(0.1, dtype)
        for turn in range(28):
            momentum = suite.MOMENTA[turn % len(suite.MOMENTA)]
            starts = rng.integers(0, 2 * length, 4)
            columns = [column[start:start + length] for column, start in zip(tape, starts, strict=True)]
            m = suite.scalar(momentum, dtype)
            after = [suite.run(engine, columns, dtype, key, order, lr, m) for engine in ENGINES]
            assert suite.differing(*after, dtype, momentum == 0) == 0, (dtype, order, key, momentum)
            checked += length
    assert checked >= 10**8


ROLES = ("parameters", "gradient", "accum", "stat", "learning_rate", "momentum")
COLUMN = {"parameters": 0, "gradient": 1, "accum": 2, "stat": 3}
SIXTEEN = [kernel for kernel in suite.KERNELS if kernel[0] != "float32"]
PATTERNS = np.arange(1 << 16, dtype=np.uint16)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_pattern_of_each_input(dtype, role):
    order, key = ("spec", suite.KEYS[3]) if role != "momentum" else ("ascend950", suite.KEYS[4])
    assert differing_over_patterns(role, dtype, order, key) == 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(("dtype", "order", "key"), SIXTEEN, ids=[i for i in suite.IDS if "float32" not in i])
def test_every_pattern_of_each_input_in_every_kernel(dtype, order, key, role):
    assert differing_over_patterns(role, dtype, order, key) == 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("role", COLUMN)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("order", ["spec", "ascend950"])
def test_the_oracle_agrees_on_every_pattern(dtype, role, order):
    columns, lr, m = patterns_of(role, dtype, seed=5)
    after = suite.run("cpu", columns, dtype, suite.KEYS[3], order, lr, m)
    assert suite.wrong_by_oracle(columns, after, dtype, suite.KEYS[3], order, lr, m) == 0


def patterns_of(role, dtype, seed):
    """All 65,536 patterns of one tensor, the others at random; learning_rate and momentum."""
    rng = np.random.default_rng(seed)
    columns = suite.tensors(rng, len(PATTERNS), dtype)
    columns[COLUMN[role]] = rng.permutation(PATTERNS)
    return columns, suite.scalar(0.1, dtype), suite.scalar(0.9, dtype)


def differing_over_patterns(role, dtype, order, key):
    if role in COLUMN:
        columns, lr, m = patterns_of(role, dtype, seed=3)
        after = [suite.run(engine, columns, dtype, key, order, lr, m) for engine in ENGINES]
        return suite.differing(*after, dtype, masked=False)
    return sum(differing_over_scalars(role, dtype, order, key))


def differing_over_scalars(role, dtype, order, key):
    """One call of cpu for each pattern of a scalar, and formula.py over all patterns at once."""
    columns = suite.tensors(np.random.default_rng(4), 16, dtype)
    other = suite.scalar(0.9 if role == "learning_rate" else 0.1, dtype)
    fixed, varied = float32(other.view(np.uint16), dtype)[0], float32(PATTERNS, dtype)[:, None]
    lr, m = (varied, fixed) if role == "learning_rate" else (fixed, varied)
    p, g, a, s = (float32(column, dtype) for column in columns)
    d, wd, _ = map(np.float32, suite.attributes(key))
    with np.errstate(all="ignore"):
        out = formula.cann(p, g, lr, a, m, s, d, wd, np.float32(1), key.nesterov, key.weight_decay, key.dampening,
                           order == "ascend950")
        p_out, accum_t = (stored(np.broadcast_to(x, (len(PATTERNS), 16)).copy(), dtype) for x in out)
    for pattern in PATTERNS:
        scalar = np.array([pattern], np.uint16).view(suite.NUMPY[dtype])
        scalars = (scalar, other) if role == "learning_rate" else (other, scalar)
        masked = role == "momentum" and pattern in (0, 0x8000)
        state = columns[2:] if masked else [accum_t[pattern], np.zeros(16, np.uint16)]
        after = suite.run("cpu", columns, dtype, key, order, *scalars)
        yield suite.differing([p_out[pattern], columns[1], *state], after, dtype, masked)
