"""Engine ``cpu``: formula.py compiled by numba, one kernel per key, order and dtype, built when first used."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np

from samestep import tiling
from samestep.contract import DTYPES
from samestep.engines import threads
from samestep.engines.batch import Batch, Kernel

_BLOCK_LEAST = 1 << 15  # elements; a smaller block is not worth waking a thread
_POOL_LEAST = 1 << 17  # the same where waking goes through Python
_BLOCK_ALIGN = 1 << 10
_RUN = 1 << 12  # elements whose stat is stored or left together
_CACHE_BYTES = 1 << 21  # per thread; beyond it stores past the cache pay


def unavailable() -> str | None:
    """Why the engine cannot run here, or None."""
    missing = [name for name in ("numba", "llvmlite", "platformdirs") if importlib.util.find_spec(name) is None]
    return f"{' and '.join(missing)} not installed (pip install numba platformdirs)" if missing else None


def plan(total: int, dtype: str, dampening: bool) -> tiling.Split:
    """Blocks for the threads there are, runs short enough for a cache."""
    least = _BLOCK_LEAST if threads.team() else _POOL_LEAST
    return tiling.split(total, threads.get_num_threads() if total >= 2 * least else 1, block_least=least,
                        block_align=_BLOCK_ALIGN, ub_former=_RUN if streams(total, dtype) else total)


def streams(total: int, dtype: str) -> bool:
    """Are the four tensors too large for the cache, so that saved stores are saved time?"""
    return 4 * total * DTYPES[dtype] > _CACHE_BYTES


def run(batch: Batch) -> None:
    """Update every tensor set of the batch in place (rules O5, O6)."""
    from samestep.engines import walk

    split, dtype = batch.split, batch.kernel.dtype
    table = _table(batch)
    shared = (kernel_address(batch.kernel._replace(key=batch.kernel.key._replace(sch_mode=0))), table, DTYPES[dtype],
              batch.learning_rate, batch.momentum, batch.dampening, batch.weight_decay,
              int(streams(split.dim0, dtype)), split.dim0, split.block_former, split.ub_former)
    team = threads.team() if split.block_num > 1 and not threads.forked() else None
    if team:
        walk.run_team(*team, walk.REGION, *shared, split.block_num)
    elif split.block_num > 1:
        threads.run_on_pool(lambda k: walk.run_blocks(*shared, k, split.block_num), split.block_num)
    else:
        walk.run_blocks(*shared, 0, 1)


def _table(batch: Batch) -> np.ndarray[Any, np.dtype[np.int64]]:
    columns = (batch.parameters, batch.gradient, batch.accum, batch.stat)
    if len(batch.lengths) == 1:
        return np.array([[*(column[0] for column in columns), batch.lengths[0]]], np.int64)
    table = np.empty((len(batch.lengths), 5), np.int64)
    for k, column in enumerate(columns):
        table[:, k] = column
    np.cumsum(batch.lengths, out=table[:, 4])
    return table


@functools.cache
def kernel_address(kernel: Kernel) -> int:
    """The address of the compiled kernel (for either schMode)."""
    return int(build(kernel).address)


def build(kernel: Kernel, cached: bool = True) -> Any:
    """Compile `kernel`, or load it from the cache folder: a numba CFunc of walk.KERNEL's type."""
    import numba

    from samestep.engines import cache, walk

    with cache.cached(kernel_name(kernel)) as writable:
        options: dict[str, Any] = {"nopython": True, "error_model": "numpy", "cache": cached and writable}
        return numba.cfunc(walk.KERNEL, **options)(_source(kernel))


def kernel_name(kernel: Kernel) -> str:
    """A name for people and folders: samestep_spec_float32_K3_0 (order, dtype, variant, schMode)."""
    return f"samestep_{kernel.order}_{kernel.dtype}_{kernel.key.variant}_{kernel.key.sch_mode}"


def _source(kernel: Kernel) -> Callable[..., None]:
    from samestep.engines import kernels, llvm

    flags = (kernel.key.nesterov, kernel.key.weight_decay, kernel.key.dampening, kernel.order == "ascend950")
    if kernel.dtype == "bfloat16":
        return kernels.bfloat16(*flags)
    return kernels.plain(llvm.FLOAT32 if kernel.dtype == "float32" else llvm.FLOAT16, DTYPES[kernel.dtype], *flags)
