"""What numba makes of formula.py: no fused multiply-add, no fast-math, and packed arithmetic (rule O5)."""

from __future__ import annotations

import platform
import re

import numba
import pytest

import suite
from samestep.engine import cpu, walk
from samestep.engine.batch import Kernel

FUSED_ASM = re.compile(r"\b(vfn?m(add|sub)\w*|fn?madd|fn?msub|fmla|fmls)\b")
FAST = "fast|contract|reassoc|nnan|ninf|nsz|arcp|afn"
FUSED_IR = re.compile(rf"llvm\.(fma|fmuladd)|= f(add|sub|mul|div)[^\n%]*\b({FAST})\b")


def compiled(kernel, **options):
    """The optimised LLVM and the assembly of a kernel, compiled afresh."""
    function = numba.cfunc(walk.KERNEL, nopython=True, error_model="numpy", **options)(cpu._source(kernel))
    return function._library.get_llvm_str(), function._library.get_asm_str()


def faults(llvm, assembly):
    return FUSED_IR.findall(llvm) + FUSED_ASM.findall(assembly)


@pytest.mark.parametrize(("dtype", "order", "key"), suite.KERNELS, ids=suite.IDS)
def test_no_multiply_is_fused_and_arithmetic_is_packed(dtype, order, key):
    llvm, assembly = compiled(Kernel(order, dtype, key))
    assert faults(llvm, assembly) == []
    if platform.machine() == "x86_64":
        for operation in ("mul", "add", "sub"):
            assert re.search(rf"\bv{operation}ps\b.*%[zy]mm", assembly), f"no packed {operation}"
        if dtype == "float16":
            assert re.search(r"\bvcvtph2ps\b.*%[zy]mm", assembly)
            assert re.search(r"\bvcvtps2ph\b.*%[zy]mm", assembly)
        if dtype == "bfloat16":
            assert "vcvtneps2bf16" not in assembly  # it would flush subnormals
            assert "vcvtne2ps2bf16" not in assembly


@pytest.mark.parametrize("dtype", suite.NUMPY)
def test_a_fused_kernel_would_be_noticed(dtype, monkeypatch):
    from samestep import formula
    from samestep.engine import kernels

    fused = numba.njit(formula.cann, error_model="numpy", fastmath={"contract"})
    monkeypatch.setattr(kernels, "_cann", fused)
    assert faults(*compiled(Kernel("spec", dtype, suite.KEYS[3]), fastmath={"contract"}))
