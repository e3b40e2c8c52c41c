"""Kernels compiled wrongly, to show that the tests of compiled code notice. Run in processes of their own."""

from __future__ import annotations

import multiprocessing
import re
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from samestep.lowering import build, gpu, instructions, tools


def counts(mutant, *arguments):
    """The instruction counts that `mutant` gives, from a new process."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn, initializer=build._without_interpreter) as pool:
        return pool.submit(mutant, *arguments).result()


def with_options(unit, options):
    """With other options of Triton's."""
    return _count(unit, gpu.compiled(gpu.source(unit.kernel, unit.entry), gpu.GPUS[unit.target], **options))


def narrow(unit):
    """Without the promise that addresses are multiples of 16."""
    tools.triton()
    from samestep.engine import triton_kernels

    pointer = triton_kernels._pointer
    pointer._unsafe_update_src(pointer.src.replace("if ALIGNED:", "if not ALIGNED:"))
    return with_options(unit, {})


def assembled(unit, pattern, replacement):
    """With PTX or AMDGCN changed by hand; what NVIDIA's assembler makes of PTX is what is counted."""
    asm = dict(gpu.compiled(gpu.source(unit.kernel, unit.entry), gpu.GPUS[unit.target]))
    form = gpu.GPUS[unit.target].forms[0]
    text, made = re.subn(pattern, replacement, asm[form])
    assert made, pattern
    if form == "ptx":
        with tempfile.TemporaryDirectory() as folder:
            source, cubin = Path(folder) / "kernel.ptx", Path(folder) / "kernel.cubin"
            source.write_text(text)
            arch = re.search(r"^\.target (\w+)", text, re.MULTILINE)[1]
            tools.run(_ptxas(gpu.GPUS[unit.target].arch), f"-arch={arch}", source, "-o", cubin)
            asm["cubin"] = cubin.read_bytes()
    return _count(unit, {**asm, form: text})


def _ptxas(arch):
    from triton.backends.nvidia.compiler import get_ptxas  # newer devices have an assembler of their own

    return get_ptxas(arch).path


def _count(unit, asm):
    if "cubin" in asm:
        return instructions.count(gpu.disassemble(asm["cubin"]), "sass")
    return instructions.count(asm["amdgcn"], "amdgcn")
