"""The bits of the Ascend path, on the CPU: every kernel's linalg form against the reference engine."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

import suite
from lowering import linalg_on_cpu
from lowering.missing import give_up
from samestep.contract import DTYPES, ORDERS
from samestep.engine.batch import Kernel
from samestep.tiling import TilingKey, decode, encode, legal_keys

MOMENTA = (0.9, 0.0, -0.0, 1e-30, -0.5, math.nan)
GUARD = 64  # elements past the end, which must keep their bits
BLOCK, LENGTH = 4608, 2 * 4608 + 37  # three blocks; a run of 4096 and a tail in each but the last
KERNELS = [Kernel(*names) for names in itertools.product(ORDERS, DTYPES, legal_keys())]
IDS = [f"{kernel.order}-{kernel.dtype}-{encode(kernel.key)}" for kernel in KERNELS]


@pytest.fixture(scope="session")
def cpu_tools():
    if lacking := linalg_on_cpu.missing():
        give_up(f"{', '.join(lacking)} not found; as root: apt-get install mlir-19-tools llvm-19 gcc")


def wrong(function, kernel):
    """Elements that differ from the reference engine's, over all momenta."""
    found = 0
    rng = np.random.default_rng([7, *map(ord, kernel.dtype + kernel.order), encode(kernel.key)])
    several = kernel.key.sch_mode
    attributes = suite.attributes(kernel.key)
    for momentum in MOMENTA:
        lr, m = suite.scalar(0.1, kernel.dtype), suite.scalar(momentum, kernel.dtype)
        padded = suite.tensors(rng, LENGTH + GUARD, kernel.dtype)
        p, g, a, s = (column.copy() for column in padded)
        linalg_on_cpu.call(function, [p, g, lr, a, m, s], attributes.dampening, attributes.weight_decay, LENGTH,
                           BLOCK if several else 0, 3 if several else 1)
        before = [column[:LENGTH] for column in padded]
        after = [column[:LENGTH] for column in (p, g, a, s)]
        right = suite.run("reference", before, kernel.dtype, kernel.key, kernel.order, lr, m)
        found += suite.differing(after, right, kernel.dtype, masked=bool(m[0] == 0))
        found += sum(int((new[LENGTH:] != old[LENGTH:]).sum()) for new, old in zip((p, g, a, s), padded, strict=True))
    return found


@pytest.mark.parametrize("kernel", KERNELS, ids=IDS)
def test_the_linalg_form_has_the_reference_bits(kernel, ascend_kernels, cpu_tools, tmp_path):
    linalg = ascend_kernels[kernel].files["linalg"].decode()
    assert wrong(linalg_on_cpu.compiled(linalg, tmp_path), kernel) == 0


MUTANT = Kernel("spec", "float32", TilingKey(0, False, True, True))


def test_a_fused_kernel_would_be_noticed(ascend_kernels, cpu_tools, tmp_path):
    linalg = ascend_kernels[MUTANT].files["linalg"].decode()
    assert wrong(linalg_on_cpu.compiled(linalg, tmp_path, "-fp-contract=fast", "-mattr=+fma"), MUTANT) > 0


@pytest.mark.parametrize(("right", "mutated"), [
    ("arith.cmpf une", "arith.cmpf ueq"),
    ("arith.cmpf une", "arith.cmpf ugt"),
    ("arith.cmpf une", "arith.cmpf one"),
], ids=["inverted", "by sign", "not for NaN"])
def test_a_wrong_mask_would_be_noticed(right, mutated, ascend_kernels, cpu_tools, tmp_path):
    linalg = ascend_kernels[MUTANT].files["linalg"].decode()
    assert right in linalg
    assert wrong(linalg_on_cpu.compiled(linalg.replace(right, mutated), tmp_path), MUTANT) > 0


def test_the_order_would_be_noticed(ascend_kernels, cpu_tools, tmp_path):
    other = MUTANT._replace(order="ascend950")
    linalg = ascend_kernels[other].files["linalg"].decode()
    assert wrong(linalg_on_cpu.compiled(linalg, tmp_path), MUTANT) > 0


def test_all_thirty_six_keys_are_here():
    assert len({(kernel.dtype, encode(kernel.key)) for kernel in KERNELS}) == 36
    assert {decode(encode(kernel.key)) for kernel in KERNELS} == set(legal_keys())
