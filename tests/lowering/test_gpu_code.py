"""What Triton makes of the gpu engine's kernels for devices that need not be here: every operation of the rule, none
fused, none that flushes or approximates, 128 bits moved at once, nothing spilled (rules O5, O7, T)."""

from __future__ import annotations

import itertools

import pytest

from lowering import mutants
from samestep import formula
from samestep.contract import ORDERS
from samestep.engine import gpu as engine
from samestep.engine.batch import Kernel
from samestep.lowering import build, gpu
from samestep.lowering.instructions import count
from samestep.tiling import TilingKey

TARGETS = sorted(gpu.GPUS)
NEVER = ("flush", "approximate", "spill")
BYTES = engine.SIZES


def kernels(rule):
    keys = [key for key in build.every_key(rule) if not key.sch_mode]  # schMode 1 is the same code, see test_build.py
    return build.kernels(rule, keys, build.RULE_DTYPES[rule], ORDERS)


class Number:
    """A number that counts what is done to it."""

    def __init__(self, done):
        self.done = done

    def _count(self, name):
        self.done[name] = self.done.get(name, 0) + 1
        return self

    def __mul__(self, other):
        return self._count("mul")

    def __add__(self, other):
        return self._count("add")

    __sub__ = __add__

    def __neg__(self):
        return self


def operations(kernel):
    """Multiplies, adds (and subtracts) and fused multiply-adds of the rule for one element."""
    done = {"mul": 0, "add": 0, "fma": 0}
    x, key = Number(done), kernel.key
    if kernel.rule == "cann":
        formula.cann(x, x, x, x, x, x, x, x, x, key.nesterov, key.weight_decay, key.dampening,
                     kernel.order == "ascend950")
    else:
        formula.torch(x, x, x, x, x, x, x, lambda a, b, c: c._count("fma"), False, key.weight_decay, kernel.momentum,
                      key.nesterov, False)
    return done


def faults(kernel, target, counts):
    """What is wrong with compiled code, by its instruction counts."""
    wanted = operations(kernel)
    found = [name for name in NEVER if counts.get(name)]
    elements = engine.BLOCKS[kernel.dtype] // threads(target)
    # Two bodies: for a block that is full and aligned, and for any other. maximize may take an instruction to negate.
    names = [name for name in wanted if not (name in ("mul", "add") and kernel.maximize)]
    # AMD's packed instructions may do in vain what another instruction does too.
    spare = 1 if target.startswith("sm") else 1.5
    for name in names:
        least = 2 * elements * wanted[name]
        if not least <= counts[name] <= least * (1 if name == "fma" else spare):
            found.append(name)
    if is_narrow(kernel, elements, counts):
        found.append("narrow")
    return found


def is_narrow(kernel, elements, counts):
    """Is anything moved in the body for full and aligned blocks by less than 128 bits? The other goes by elements.

    A compiler may put the same load into both arms of a branch.
    """
    size = BYTES[kernel.dtype]
    scalars = {"load": 8, "store": 0}  # learning rate, momentum, a row of the table
    return any(
        counts.get(f"{name}_128", 0) < number * elements * size // 16
        or counts.get(f"{name}_{8 * size}", 0) > number * elements + scalars[name]
        for name, number in zip(("load", "store"), tensors(kernel), strict=True)
    )


def threads(target):
    return engine.launch_options()["num_warps"] * gpu.GPUS[target].warp_size


def tensors(kernel):
    """How many tensors the kernel reads and writes."""
    if kernel.rule == "cann":
        return 3 + kernel.key.dampening, 3
    return 2 + kernel.momentum, 1 + kernel.momentum


def check(target, wanted, form):
    compiled = build.lower_all([build.unit_of(target, kernel, form) for kernel in wanted])
    wrong = {unit.name: faults(unit.kernel, target, result.instructions) for unit, result in compiled.items()}
    for unit, result in compiled.items():
        local = [name for name in ("local_bytes", "stack_bytes", "spilled_registers") if result.facts.get(name)]
        wrong[unit.name] += local
        if target.startswith("sm"):
            ptx = count(result.files["ptx"].decode(), "ptx")
            wrong[unit.name] += [name for name in ("unrounded", *NEVER) if ptx[name]]
            wrong[unit.name] += ["fma in PTX"] * (ptx["fma"] != result.instructions["fma"])
    assert len(wrong) == len(wanted)
    assert {name: what for name, what in wrong.items() if what} == {}


QUICK = [kernel for kernel in kernels("cann")
         if kernel.order == "spec" and kernel.dtype != "float16" and kernel.key.variant in ("K3", "K4")]


@pytest.mark.parametrize("target", TARGETS)
def test_some_kernels(target, triton_compiler):
    check(target, QUICK, "list")


@pytest.mark.exhaustive
@pytest.mark.parametrize(("rule", "form", "target"), list(itertools.product(("cann", "torch"), gpu.ENTRIES, TARGETS)))
def test_every_kernel(rule, form, target, triton_compiler):
    check(target, kernels(rule), form)


MUTANT = Kernel("spec", "float16", TilingKey(0, False, True, True))


def unit(target, kernel=MUTANT):
    return build.unit_of(target, kernel, "list")


@pytest.mark.parametrize("target", ["sm_90", "gfx942", pytest.param("sm_80", marks=pytest.mark.exhaustive)])
class TestMutants:
    def test_fusion(self, target, triton_compiler):
        counts = mutants.counts(mutants.with_options, unit(target), {"enable_fp_fusion": True})
        assert "fma" in faults(MUTANT, target, counts)

    def test_one_more_fusion_in_rule_torch(self, target, triton_compiler):
        kernel = Kernel("", "float32", TilingKey(0, False, False, False), "torch", "float32", "float32")
        assert faults(kernel, target, mutants.counts(mutants.with_options, unit(target, kernel), {})) == []
        decayed = kernel._replace(key=TilingKey(0, False, True, False))
        counts = mutants.counts(mutants.with_options, unit(target, decayed), {})
        assert faults(kernel, target, counts) == ["fma"]

    def test_flush(self, target, triton_compiler):
        if target.startswith("sm"):
            counts = mutants.counts(mutants.assembled, unit(target), r"mul\.rn\.f32", "mul.rn.ftz.f32")
        else:
            counts = mutants.counts(mutants.with_options, unit(target), {"allow_flush_denorm": True})
        assert faults(MUTANT, target, counts) == ["flush"]

    def test_approximation(self, target, triton_compiler):
        if target.startswith("sm"):
            change = (r"mul\.rn\.f32(\s+%r\d+, %r\d+, %r\d+;)", r"div.approx.f32\1")
        else:
            change = (r"\tv_pk_mul_f32 (v)\[(\d+):\d+\].*", r"\tv_rcp_f32_e32 \1\2, \1\2")
        assert "approximate" in faults(MUTANT, target, mutants.counts(mutants.assembled, unit(target), *change))

    def test_narrow_loads(self, target, triton_compiler):
        assert faults(MUTANT, target, mutants.counts(mutants.narrow, unit(target))) == ["narrow"]

    def test_spills(self, target, triton_compiler):
        few = {"maxnreg": 24} if target.startswith("sm") else {"num_warps": 1, "waves_per_eu": 8}
        assert "spill" in faults(MUTANT, target, mutants.counts(mutants.with_options, unit(target), few))

    def test_a_lost_operation(self, target, triton_compiler):
        undecayed = MUTANT._replace(key=TilingKey(0, False, False, True))
        counts = mutants.counts(mutants.with_options, unit(target, undecayed), {})
        assert {"mul", "add"} <= set(faults(MUTANT, target, counts))
