"""One kernel for Ascend 950: Triton's TTIR, then linalg, then HIVM, and the binary where hivmc-a5 is installed."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

from samestep.engine.batch import Kernel
from samestep.lowering import instructions, tools
from samestep.lowering.compiled import Compiled

SOC = "Ascend950PR_9589"
UB_FORMER = 4096  # elements a run: with two buffers of each tensor that is copied, all kernels fit the unified buffer
ARGUMENTS = ("parameters", "gradient", "learning_rate", "accum", "momentum", "stat", "dampening", "weight_decay",
             "length", "block_former")
_POINTERS = 6
_ALIGNED = (0, 1, 3, 5)  # the four tensors begin on 16 bytes or more, as every allocation on the device does
TYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float64": "fp64"}

_MIX_MODE = re.compile(r', mix_mode = "(\w*)"')  # the kind of core, which the runtime is told beside the name

_TO_LINALG = (
    "--discrete-mask-access-conversion=compile-on-910-95=True force-simt-template=False",
    "--triton-to-annotation",
    "--triton-to-unstructure=compile-on-910-95=True force-simt-template=False",
    "--triton-to-hivm", "--triton-to-hfusion", "--triton-to-llvm", "--bubble-up-operation",
    "--triton-to-linalg=global-kernel=false named-ops=True enable-nd2nz-on-vector=False "
    "enable-select-analysis=True compile-on-910-95=True",
)
# disable-fma reaches hivmc-a5, which could fuse after the last form that is seen here.
_TO_HIVM = (
    f"--target={SOC}", "--enable-hfusion-compile=true", "--enable-triton-kernel-compile=true",
    "--enable-auto-multi-buffer=true", "--disable-fma=true",
)


def lower(kernel: Kernel, found: tools.Ascend) -> Compiled:
    """Lower a kernel of rule cann; raises `tools.CompilerError`, and `tools.MissingToolError` without Triton."""
    ttir = to_ttir(kernel)
    linalg = to_linalg(ttir, found)
    hivm, binary = to_hivm(linalg, found)
    files = {"ttir": ttir.encode(), "linalg": linalg.encode(), "hivm": hivm.encode()}
    if binary is not None:
        files["npu"] = binary
    facts = {"ub_former": UB_FORMER, "arguments": list(ARGUMENTS), "mix_mode": _MIX_MODE.findall(linalg)[0],
             "branches_on_momentum": instructions.branches_on_momentum(hivm)}
    return Compiled("sgd", files, facts, instructions.count(hivm, "hivm"), "hivm")


def to_ttir(kernel: Kernel) -> str:
    """Triton's own form, which no target has touched yet."""
    if kernel.rule != "cann":
        raise ValueError(f"rule {kernel.rule} is not lowered for Ascend 950; accepted: rule cann")
    triton = tools.triton()
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from samestep.lowering.ascend_kernel import sgd

    key = kernel.key
    constants = {
        "NESTEROV": key.nesterov, "WEIGHT_DECAY": key.weight_decay, "DAMPENING": key.dampening,
        "ASCEND950": kernel.order == "ascend950", "SEVERAL": bool(key.sch_mode), "UB_FORMER": UB_FORMER,
    }
    types = [f"*{TYPES[kernel.dtype]}"] * _POINTERS + ["fp32", "fp32", "i64", "i64"]
    signature = dict(zip(sgd.arg_names, types + ["constexpr"] * len(constants), strict=True))
    source = ASTSource(sgd, signature, constants, {(k,): [["tt.divisibility", 16]] for k in _ALIGNED})
    with triton.knobs.compilation.scope():
        triton.knobs.compilation.disable_line_info = True  # paths of this machine
        # Triton wants a GPU; the form is taken before it becomes the GPU's.
        options = {"num_warps": 32, "enable_fp_fusion": False}
        compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    return without_names(compiled.asm["ttir"])


def without_names(ttir: str) -> str:
    """The text without the names that Triton keeps as locations."""
    text = re.sub(r"^#loc.*\n", "", ttir, flags=re.MULTILINE)
    return re.sub(r" loc\((?:[^()\"]|\"[^\"]*\"|\([^()]*\))*\)", "", text)


def to_linalg(ttir: str, found: tools.Ascend) -> str:
    """Tensors, and loops over them; the last form that says nothing of the device."""
    with tempfile.TemporaryDirectory() as folder:
        source, result = Path(folder) / "kernel.ttir", Path(folder) / "kernel.linalg"
        source.write_text(ttir)
        tools.run(found.adapter, source, *_TO_LINALG, "-o", result)
        return result.read_text()


def to_hivm(linalg: str, found: tools.Ascend) -> tuple[str, bytes | None]:
    """The last form before machine code, and the machine code or None.

    bishengir-compile hands HIVM to the program hivmc-a5 on PATH. The one that it finds here keeps a copy, and then
    calls the real one if there is one.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source, kept, result = folder / "kernel.linalg", folder / "kernel.hivm", folder / "kernel.npu"
        source.write_text(_MIX_MODE.sub("", linalg))
        stand_in = folder / "hivmc-a5"
        then = f'exec "{found.hivmc}" "$@"\n' if found.hivmc else ""
        stand_in.write_text(f'#!/bin/sh\ncp "$1" "{kept}" || exit 1\n{then}')
        stand_in.chmod(0o755)
        env = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}
        tools.run(found.compile, source, *_TO_HIVM, "-o", result, env=env)
        if not kept.exists():
            raise tools.CompilerError(f"{found.compile.name} ended well, but handed no HIVM to hivmc-a5")
        # The compiler may add a suffix of its own.
        binaries = sorted(path for path in folder.iterdir() if path.name.startswith(result.name))
        return _without_folders(kept.read_text()), binaries[0].read_bytes() if binaries else None


def _without_folders(hivm: str) -> str:
    """The text with names of files in place of their paths, which are of this machine."""
    return re.sub(r'<"/[^"]*/([^"/]+)">', r'<"\1">', hivm)
