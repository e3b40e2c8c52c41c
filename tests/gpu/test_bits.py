"""The gpu engine's kernels in Triton's interpreter: bits of rule O (O5..O9), addresses, tables and tails."""

from __future__ import annotations

import numpy as np
import pytest

import samestep
import suite
from samestep.engine import gpu
from samestep.engine.batch import Kernel
from samestep.tiling import legal_keys

pytest.importorskip("triton", reason="Triton is not installed here (pip install 'samestep[gpu]')")

GUARD = 64  # bytes before and after a tensor, which nobody may write


def test_the_interpreter_stands_in():
    assert gpu.unavailable() is None
    assert gpu.device_type() == "cpu"


@pytest.mark.parametrize(("dtype", "order", "key"), suite.KERNELS, ids=suite.IDS)
def test_the_oracle_finds_nothing_wrong(dtype, order, key):
    wrong, checked = suite.check("gpu", dtype, order, key, length=50, seed=6)
    assert (wrong, checked) == (0, 400)


@pytest.mark.parametrize(("dtype", "order", "key"), suite.KERNELS, ids=suite.IDS)
def test_whole_blocks_tails_and_odd_addresses(dtype, order, key):
    rng = np.random.default_rng(7)
    block, width = gpu.BLOCKS[dtype], suite.BITS[dtype]().itemsize
    for momentum, length, offset in ((0.9, 2 * block, 0), (0.9, block + 1, 0), (0.0, block, 0), (0.9, block, width),
                                     (-0.0, block + 7, 3)):
        lr, m = suite.scalar(0.1, dtype), suite.scalar(momentum, dtype)
        before = suite.tensors(rng, length, dtype)
        expected = suite.run("reference", before, dtype, key, order, lr, m)
        placed = [guarded(column, offset * (k != 1)) for k, column in enumerate(before)]
        run_in_place([column for _, column in placed], dtype, key, order, lr, m)
        got = [column for _, column in placed]
        assert suite.differing(expected, got, dtype, momentum == 0) == 0, (momentum, length, offset)
        assert all(is_intact(raw, column) for raw, column in placed)


def guarded(bits, offset):
    """Memory with a copy of `bits`, `offset` bytes after a multiple of 64, and the view of it."""
    raw = np.full(bits.nbytes + 4 * GUARD, 0xA5, np.uint8)
    start = GUARD + -(raw.ctypes.data + GUARD) % 64 + offset
    column = raw[start:start + bits.nbytes].view(bits.dtype)
    column[:] = bits
    return raw, column


def is_intact(raw, column):
    start = column.ctypes.data - raw.ctypes.data
    return bool((raw[:start] == 0xA5).all() and (raw[start + column.nbytes:] == 0xA5).all())


def run_in_place(columns, dtype, key, order, lr, m, engine="gpu"):
    p, g, a, s = (column.view(suite.NUMPY[dtype]) for column in columns)
    samestep.sgd_(p, g, lr, a, m, s, **suite.attributes(key)._asdict(), order=order, engine=engine)


LENGTHS = (1, 5, 64, 1024, 1500, 2048, 2600, 3)


@pytest.mark.parametrize(("dtype", "order", "key"), [suite.KERNELS[k] for k in range(0, 36, 5)])
def test_a_batch_of_different_lengths(dtype, order, key):
    rng = np.random.default_rng(8)
    for momentum in (0.9, 0.0):
        lr, m = suite.scalar(0.1, dtype), suite.scalar(momentum, dtype)
        sets = [suite.tensors(rng, length, dtype) for length in LENGTHS]
        expected = [suite.run("reference", columns, dtype, key, order, lr, m) for columns in sets]
        placed = [[guarded(column, 2 * k * (i % 3 == 1)) for k, column in enumerate(columns)]
                  for i, columns in enumerate(sets)]
        p, g, a, s = ([row[k][1].view(suite.NUMPY[dtype]) for row in placed] for k in range(4))
        samestep.sgd_batch_(p, g, lr, a, m, s, **suite.attributes(key)._asdict(), order=order, engine="gpu")
        for row, right in zip(placed, expected, strict=True):
            assert suite.differing(right, [column for _, column in row], dtype, momentum == 0) == 0
            assert all(is_intact(*part) for part in row)


@pytest.mark.parametrize("momentum", suite.MOMENTA)
def test_what_must_not_be_written_keeps_every_bit(momentum):
    # A signalling NaN becomes a quiet one wherever it is computed with or copied as a float.
    signalling, length = 0x7F800001, 2000
    p, g = np.zeros(length, np.float32), np.ones(length, np.float32)
    a, s = (np.full(length, signalling, np.uint32) for _ in range(2))
    samestep.sgd_(p, g, 0.1, a.view(np.float32), momentum, s.view(np.float32), engine="gpu")
    if momentum == 0:
        assert (a == signalling).all()
        assert (s == signalling).all()
    else:
        assert (a != signalling).all()
        assert (s == 0).all()


@pytest.mark.parametrize("role", range(4))
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_pattern_of_each_tensor(dtype, role):
    rng = np.random.default_rng(9)
    patterns = np.arange(1 << 16, dtype=np.uint16)
    columns = suite.tensors(rng, len(patterns), dtype)
    columns[role] = rng.permutation(patterns)
    lr, m, key = suite.scalar(0.1, dtype), suite.scalar(0.9, dtype), suite.KEYS[3]
    reference, got = (suite.run(engine, columns, dtype, key, "spec", lr, m) for engine in ("reference", "gpu"))
    assert suite.differing(reference, got, dtype, masked=False) == 0


def test_all_twelve_keys_are_those_of_the_suite():
    # Both schModes run the same kernel: what differs between them, the number of blocks, is the launch's.
    assert {key._replace(sch_mode=0) for key in legal_keys()} == set(suite.KEYS)
    for dtype, order, key in suite.KERNELS:
        made = [gpu._compiled(Kernel(order, dtype, key._replace(sch_mode=mode)), None, False) for mode in (0, 1)]
        assert made[0] is made[1]


def test_the_split_has_a_block_for_each_program():
    for dtype, block in gpu.BLOCKS.items():
        for total in (1, block - 1, block, block + 1, 10 * block + 3):
            split = gpu.plan(total, dtype)
            assert (split.block_num, split.block_former) == (-(-total // block), min(block, total))
            assert split.sch_mode == (total > block)
