"""One kernel of the gpu engine for an NVIDIA or AMD GPU, compiled as the engine compiles it, without the GPU."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from samestep.engine import gpu as engine
from samestep.engine.batch import Kernel
from samestep.lowering import instructions, tools
from samestep.lowering.compiled import Compiled

ENTRIES = ("list", "one")  # a launch for all tensor sets of a table, and for a single one


class Gpu(NamedTuple):
    """What Triton calls a target, and the forms that it makes for it: text, then machine code."""

    backend: str
    arch: int | str
    warp_size: int
    forms: tuple[str, str]


GPUS = {
    "sm_80": Gpu("cuda", 80, 32, ("ptx", "cubin")),
    "sm_90": Gpu("cuda", 90, 32, ("ptx", "cubin")),
    "gfx942": Gpu("hip", "gfx942", 64, ("amdgcn", "hsaco")),
}


def lower(kernel: Kernel, gpu: Gpu, entry: str) -> Compiled:
    """Compile one entry of a kernel; `tools.MissingToolError` without Triton."""
    asm = compiled(source(kernel, entry), gpu)
    text, code = asm[gpu.forms[0]], asm[gpu.forms[1]]
    name = f"{kernel.rule}_{entry}"
    files = {gpu.forms[0]: text.encode(), gpu.forms[1]: code}
    facts = {"threads": engine.launch_options()["num_warps"] * gpu.warp_size, "block": engine.BLOCKS[kernel.dtype]}
    if gpu.backend == "hip":
        return Compiled(name, files, {**facts, **_amd_resources(text)}, instructions.count(text, "amdgcn"), "amdgcn")
    sass = disassemble(code)
    files["sass"] = sass.encode()
    return Compiled(name, files, {**facts, **_nvidia_resources(code)}, instructions.count(sass, "sass"), "sass")


def source(kernel: Kernel, entry: str) -> Any:
    """The engine's kernel with its constants, as Triton's compiler takes it."""
    tools.triton()
    from triton.compiler import ASTSource

    from samestep.engine import triton_kernels

    function = getattr(triton_kernels, f"{kernel.rule}_{entry}")
    constants = {**engine.constants_of(kernel), "INTEGER": False}
    if kernel.rule == "torch":
        constants |= {"LR": None, "FOUND_INF": False}
    types = {"table": "*i64", "rows": "*i32"}
    signature = {name: "constexpr" if name in constants else types.get(name, "i64") for name in function.arg_names}
    return ASTSource(function, signature, constants, {})


def compiled(source: Any, gpu: Gpu, **options: Any) -> Any:
    """The forms of a kernel by name. `options` of Triton's beside the engine's are for tests."""
    triton = tools.triton()
    from triton.backends.compiler import GPUTarget

    options = {**engine.launch_options(), **options}
    with triton.knobs.compilation.scope():
        triton.knobs.compilation.disable_line_info = True  # paths of this machine
        return triton.compile(source, target=GPUTarget(gpu.backend, gpu.arch, gpu.warp_size), options=options).asm


def nvidia_tool(name: str) -> Path:
    """A program of NVIDIA's that Triton's wheel brings: ptxas, nvdisasm, cuobjdump."""
    return Path(getattr(tools.triton().knobs.nvidia, name).path)


def disassemble(cubin: bytes) -> str:
    """The instructions of a cubin."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return tools.run(nvidia_tool("nvdisasm"), "-c", file.name)


def _nvidia_resources(cubin: bytes) -> dict[str, int]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        said = tools.run(nvidia_tool("cuobjdump"), "-res-usage", file.name)
    names = {"registers": "REG", "shared_bytes": "SHARED", "stack_bytes": "STACK", "local_bytes": "LOCAL"}
    return {name: int(re.findall(rf"\b{field}:(\d+)", said)[-1]) for name, field in names.items()}


def _amd_resources(amdgcn: str) -> dict[str, int]:
    names = {"registers": "vgpr_count", "scalar_registers": "sgpr_count", "shared_bytes": "group_segment_fixed_size",
             "local_bytes": "private_segment_fixed_size", "spilled_registers": "vgpr_spill_count",
             "spilled_scalar_registers": "sgpr_spill_count"}
    return {name: int(re.findall(rf"\.{field}:\s*(\d+)", amdgcn)[-1]) for name, field in names.items()}
