"""What numba makes of formula.py: no fused multiply-add, no fast-math, and packed arithmetic (rule O5)."""

from __future__ import annotations

import platform
import re

import numba
import pytest

import suite
from samestep.engine import cpu, walk
from samestep.engine.batch import Kernel
from samestep.tiling import TilingKey

FUSED_ASM = re.compile(r"\b(vfn?m(add|sub)\w*|fn?madd|fn?msub|fmla|fmls)\b")
FAST = "fast|contract|reassoc|nnan|ninf|nsz|arcp|afn"
FUSED_IR = re.compile(rf"llvm\.(fma|fmuladd)|= f(add|sub|mul|div)[^\n%]*\b({FAST})\b")


def compiled(kernel, narrow=False, **options):
    """The optimised LLVM and the assembly of a kernel, compiled afresh."""
    function = numba.cfunc(walk.KERNEL, nopython=True, error_model="numpy", **options)(cpu._source(kernel, narrow))
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


OWN_FMA = re.compile(r"llvm\.fma\.(v\d+)?f(32|64)\(")
TORCH = [
    Kernel("", p, TilingKey(0, nesterov, decayed, False), "torch", g, b, momentum, maximize)
    for p, g, b in (("float32",) * 3, ("float64",) * 3, ("float16",) * 3, ("bfloat16",) * 3,
                    ("float32", "bfloat16", "float32"), ("bfloat16", "bfloat16", "float32"))
    for nesterov, decayed, momentum, maximize in ((False, True, True, False), (True, False, True, True),
                                                  (False, True, False, False))
]


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("kernel", TORCH, ids=cpu.kernel_name)
def test_rule_torch_has_its_own_fused_multiply_adds_and_no_others(kernel, narrow):
    llvm, assembly = compiled(kernel, narrow)
    assert not re.search(rf"= f(add|sub|mul|div)[^\n%]*\b({FAST})\b", llvm)
    assert "llvm.fmuladd" not in llvm
    assert OWN_FMA.search(llvm)
    assert " fadd " not in llvm  # what rule T adds, it adds in a fused multiply-add
    if platform.machine() == "x86_64":
        assert re.search(r"\bvfn?m(add|sub)\d+p[sd]\b.*%[zy]mm", assembly)
        if cpu.is_narrow(kernel, stream=narrow):
            assert "%zmm" not in assembly


@pytest.mark.parametrize("dtype", suite.NUMPY)
def test_a_fused_kernel_would_be_noticed(dtype, monkeypatch):
    from samestep import formula
    from samestep.engine import kernels

    fused = numba.njit(formula.cann, error_model="numpy", fastmath={"contract"})
    monkeypatch.setattr(kernels, "_cann", fused)
    assert faults(*compiled(Kernel("spec", dtype, suite.KEYS[3]), fastmath={"contract"}))
