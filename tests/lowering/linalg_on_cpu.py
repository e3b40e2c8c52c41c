"""The linalg form of an Ascend kernel as a function of this CPU, by LLVM's own tools.

What the NPU's compiler is given, run with IEEE arithmetic: its bits are those that the NPU must give if its own
operations are IEEE's. Attributes that only the NPU's dialects know are dropped, nothing else is changed.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

TOOLS = ("mlir-opt-19", "mlir-translate-19", "llc-19", "cc")
# Operations are joined into one loop, as the NPU's compiler joins them: only then could a multiply and an add be fused.
_BUFFERIZE = ("--convert-elementwise-to-linalg", "--linalg-fuse-elementwise-ops", "--canonicalize", "--cse",
              "--one-shot-bufferize=allow-return-allocs-from-loops=true",
              "--buffer-deallocation-pipeline")
# bfloat16 is rounded by integer operations, to nearest even: the CPU has no instruction for it that keeps subnormals.
_TO_LLVM = ("--convert-linalg-to-loops", "--arith-expand=include-bf16=true", "--expand-strided-metadata",
            "--lower-affine", "--convert-scf-to-cf", "--convert-arith-to-llvm", "--finalize-memref-to-llvm",
            "--convert-func-to-llvm", "--convert-cf-to-llvm", "--reconcile-unrealized-casts")
_SPARE = 2  # arguments before the tensors, for the NPU's runtime: unused here


def missing() -> list[str]:
    """The tools that are not installed; the first three are in the Debian packages mlir-19-tools and llvm-19."""
    return [tool for tool in TOOLS if shutil.which(tool) is None]


def compiled(linalg: str, folder: Path, *llc: str) -> Any:
    """The kernel as a C function; `llc` are options beside the usual, for mutants."""
    text = re.sub(r" attributes \{[^}]*\} \{", " {", linalg, count=1)
    (folder / "kernel.mlir").write_text(re.sub(r" \{tt\.[^}]*\}", "", text))
    run(folder, "mlir-opt-19", "kernel.mlir", *_BUFFERIZE, "-o", "buffers.mlir")
    # A copy would become a call into a runtime library; a copy of linalg becomes a loop.
    buffers = (folder / "buffers.mlir").read_text()
    loops = re.sub(r"memref\.copy (%\w+), (%\w+) : (.+) to (.+)", r"linalg.copy ins(\1 : \3) outs(\2 : \4)", buffers)
    (folder / "buffers.mlir").write_text(loops)
    run(folder, "mlir-opt-19", "buffers.mlir", *_TO_LLVM, "-o", "llvm.mlir")
    run(folder, "mlir-translate-19", "--mlir-to-llvmir", "llvm.mlir", "-o", "kernel.ll")
    run(folder, "llc-19", "-O2", "-fp-contract=off", "-relocation-model=pic", "-filetype=obj", *llc, "kernel.ll",
        "-o", "kernel.o")
    run(folder, "cc", "-shared", "kernel.o", "-o", "kernel.so")
    return ctypes.CDLL(str(folder / "kernel.so")).sgd


def run(folder: Path, *command: str) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr}"


def call(
    function: Any, tensors: list[Any], dampening: float, weight_decay: float, length: int, block_former: int,
    programs: int,
) -> None:
    """Run all programs of a launch; `tensors` in the operator's order, arrays that are written in place."""
    arguments: list[Any] = []
    for address in [0] * _SPARE + [tensor.ctypes.data for tensor in tensors]:
        pointer = ctypes.c_void_p(address)  # a descriptor: allocated, aligned, offset, size, stride
        arguments += [pointer, pointer, *(ctypes.c_int64(number) for number in (0, length, 1))]
    arguments += [ctypes.c_float(dampening), ctypes.c_float(weight_decay)]
    arguments += [ctypes.c_int64(length), ctypes.c_int64(block_former)]
    for program in range(programs):
        function(*arguments, *(ctypes.c_int32(number) for number in (programs, 1, 1, program, 0, 0)))
