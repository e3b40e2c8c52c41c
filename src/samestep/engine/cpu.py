"""Engine ``cpu``: formula.py compiled by numba, one kernel per key, order and dtype, built when first used."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from samestep import tiling
from samestep.contract import DTYPES
from samestep.engine import quick, threads
from samestep.engine.batch import Batch, Kernel

BLOCK_LEAST = 1 << 15  # elements; a smaller block is not worth waking a thread
ONE_BLOCK = 2 * BLOCK_LEAST  # fewer elements are one block
_POOL_LEAST = 1 << 17  # the same where waking goes through Python
BLOCK_ALIGN = 1 << 10
_RUN = 1 << 16  # elements whose stat is stored or left together
_PIECE = 1 << 18  # elements that a thread takes at a time where nothing stays in its caches
SIZES = {**DTYPES, "float64": 8}  # rule T has one dtype more
_LONG = 1 << 21  # bytes of all tensors from which they are walked in runs
_USUAL_CACHE = 32 << 20  # bytes of the last cache where the system does not say


@functools.cache
def unavailable() -> str | None:
    """Why the engine cannot run here, or None."""
    missing = [name for name in ("numba", "llvmlite", "platformdirs") if importlib.util.find_spec(name) is None]
    return f"{' and '.join(missing)} not installed (pip install numba platformdirs)" if missing else None


def device_type() -> str:
    """Memory of the host."""
    return "cpu"


def plan(total: int, dtype: str) -> tiling.Split:
    """Blocks for the threads there are, runs short enough for a cache."""
    if total < ONE_BLOCK:
        return _split(total, dtype, 1, BLOCK_LEAST)
    return _split(total, dtype, threads.get_num_threads(), BLOCK_LEAST if threads.team() else _POOL_LEAST)


def run_of(total: int, size: int) -> int:
    """The elements of a run where all tensors together have `size` bytes."""
    return _RUN if size > _LONG else total


@functools.lru_cache(maxsize=1024)
def _split(total: int, dtype: str, cores: int, least: int) -> tiling.Split:
    return tiling.split(total, cores, block_least=least, block_align=BLOCK_ALIGN,
                        ub_former=run_of(total, 4 * total * SIZES[dtype]))


def streams(total: int, dtype: str, dampening: bool) -> bool:
    """Are the four tensors too large for the last cache, so that stores past it, or left out, are time saved?"""
    return are_past(4 * total * SIZES[dtype], last_cache(), dampening)


def are_past(size: int, cache: int, dampening: bool) -> bool:
    """The same for bytes of all tensors and of the cache.

    Below, plain stores take down to 0.7 of the time. With dampening stat is looked at before it is read, which pays
    later.
    """
    return size > cache * (3 if dampening else 2) // 2


def piece(split: tiling.Split, dtype: str) -> int:
    """The elements that a thread takes at a time.

    A whole block while the tensors fit the last cache: at the next step the thread finds it in its own caches, and
    smaller pieces would take up to 1.2 times as long. Beyond, a thread that is held up leaves its pieces to others.
    """
    return piece_of(split.block_former, 4 * split.dim0 * SIZES[dtype], last_cache())


def piece_of(block: int, size: int, cache: int) -> int:
    """The same for bytes of all tensors and of the cache."""
    return min(block, _PIECE) if size > cache else block


@functools.cache
def last_cache() -> int:
    """Bytes of the last cache of the first processor."""
    return max(caches().values(), default=_USUAL_CACHE)


def caches() -> dict[str, int]:
    """Bytes of the caches of the first processor by name ("L2", "L3"); empty where the system does not say."""
    found = {}
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            level, size, kind = ((folder / name).read_text().strip() for name in ("level", "size", "type"))
        except OSError:
            continue
        unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(size[-1:], 1)
        if kind != "Instruction":
            found[f"L{level}"] = int(size.rstrip("KMG")) * unit
    return found


def sizes_of(kernel: Kernel) -> int:
    """The bytes of an element of each column of the table, a byte each (see walk.py)."""
    size = SIZES[kernel.dtype]
    if kernel.rule == "cann":
        return size * 0x01010101
    return size | SIZES[kernel.grad_dtype] << 8 | SIZES[kernel.state_dtype] << 16


def run(batch: Batch) -> None:
    """Update every tensor set of the batch in place (rules O5, O6, or rule T)."""
    walk = _walk()
    kernel, table, lr, m, d, wd, split, _ = batch
    total, size = split.dim0, sizes_of(kernel)
    past = streams(total, kernel.dtype, kernel.key.dampening)
    address, stream = kernel_address(kernel, is_narrow(kernel, past)), int(past)
    if split.block_num == len(table) == 1:
        walk.run_one(address, *table[0], size, lr, m, d, wd, stream, split.ub_former)
        return
    rows = np.ascontiguousarray(table, np.int64).reshape(-1)
    shared = (address, rows, size, lr, m, d, wd, stream, total, piece(split, kernel.dtype), split.ub_former)
    team = threads.team() if split.block_num > 1 else None
    if split.block_num == 1:
        walk.run_blocks(*shared, 0, 1, 0)
    elif team:
        quick.meet_team(team, walk.REGION, last_cache())
        walk.run_team(*team, walk.REGION, *shared, split.block_num)
    else:
        counter = np.zeros(1, np.int64)
        part = functools.partial(walk.run_blocks, *shared)
        threads.run_on_pool(lambda k: part(k, split.block_num, counter.ctypes.data), split.block_num)


@functools.cache
def _walk() -> Any:
    """The compiled walk; numba is imported no earlier than this."""
    from samestep.engine import cache

    return cache.build("walk", lambda _: importlib.import_module("samestep.engine.walk"))


def is_narrow(kernel: Kernel, stream: bool) -> bool:
    """Are vectors of 256 bits quicker than those of 512? They are in memory, of 32 and 64 bits, without a stat.

    There they take 0.93 of the time; in a cache, and in 16 bits, up to 1.1 times as long.
    """
    return stream and kernel.rule == "torch" and min(map(SIZES.__getitem__, _dtypes(kernel))) > 2


@functools.cache
def kernel_address(kernel: Kernel, narrow: bool = False) -> int:
    """The address of the compiled kernel; the two schModes share it, since a kernel sees one run at a time."""
    if kernel.key.sch_mode:
        return kernel_address(kernel._replace(key=kernel.key._replace(sch_mode=0)), narrow)
    address = int(build(kernel, narrow).address)
    quick.know(kernel, address)
    return address


def build(kernel: Kernel, narrow: bool = False) -> Any:
    """Compile `kernel`, or load it from the cache folder: a numba CFunc of walk.KERNEL's type.

    `narrow` vectors have 256 bits (see `is_narrow`); they change no bit of the results.
    """
    import numba

    from samestep.engine import cache

    def make(writable: bool) -> Any:
        options: dict[str, Any] = {"nopython": True, "error_model": "numpy", "cache": writable}
        return numba.cfunc(_walk().KERNEL, **options)(_source(kernel, narrow))

    return cache.build(kernel_name(kernel) + "_narrow" * narrow, make)


def kernel_name(kernel: Kernel) -> str:
    """A name for people and folders: samestep_spec_float32_K3_0 (order, dtype, variant, schMode)."""
    if kernel.rule == "cann":
        return f"samestep_{kernel.order}_{kernel.dtype}_{kernel.key.variant}_{kernel.key.sch_mode}"
    flags = (kernel.maximize, kernel.key.weight_decay, kernel.momentum, kernel.key.nesterov)
    return "_".join(("samestep_torch", *_dtypes(kernel), *(str(int(flag)) for flag in flags)))


def _dtypes(kernel: Kernel) -> tuple[str, str, str]:
    return kernel.dtype, kernel.grad_dtype, kernel.state_dtype


def _source(kernel: Kernel, narrow: bool = False) -> Callable[..., None]:
    from samestep.engine import kernels, kernels_torch, llvm

    if kernel.rule == "torch":
        terms = (kernel.maximize, kernel.key.weight_decay, kernel.momentum, kernel.key.nesterov)
        pairs = set(_dtypes(kernel)) == {"bfloat16"}
        return kernels_torch.bfloat16(*terms) if pairs else kernels_torch.plain(_dtypes(kernel), *terms, 256 * narrow)
    flags = (kernel.key.nesterov, kernel.key.weight_decay, kernel.key.dampening, kernel.order == "ascend950")
    if kernel.dtype == "bfloat16":
        return kernels.bfloat16(*flags)
    return kernels.plain(llvm.FLOAT32 if kernel.dtype == "float32" else llvm.FLOAT16, DTYPES[kernel.dtype], *flags)
