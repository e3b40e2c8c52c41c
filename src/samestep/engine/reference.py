"""Engine ``reference``: formula.py called with NumPy float32 arrays. Slow, and plain enough to be read as the rule."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from samestep import formula, tiling
from samestep.contract import DTYPES
from samestep.engine import fpenv
from samestep.engine.batch import Batch

_RUN = 1 << 16  # elements at a time, so that the temporaries stay in the cache


def unavailable() -> str | None:
    """None: NumPy is always there."""
    return None


def device_type() -> str:
    """Memory of the host."""
    return "cpu"


def plan(total: int, dtype: str) -> tiling.Split:
    """One block, in runs."""
    return tiling.split(total, 1, block_least=total, block_align=1, ub_former=_RUN)


def run(batch: Batch) -> None:
    """Update every tensor set of the batch in place (rules O5, O6)."""
    dtype = batch.kernel.dtype
    scalars = (batch.learning_rate, batch.momentum)
    with np.errstate(all="ignore"), fpenv.default():
        lr, m = (float32(memory(address, 1, dtype), dtype)[0] for address in scalars)
        begin = 0
        for *addresses, end in batch.table:
            p, g, a, s = (memory(int(address), int(end) - begin, dtype) for address in addresses)
            for start in range(0, len(p), batch.split.ub_former):
                part = slice(start, start + batch.split.ub_former)
                _update(batch, lr, m, p[part], g[part], a[part], s[part])
            begin = int(end)


def _update(batch: Batch, lr: Any, m: Any, p: Any, g: Any, a: Any, s: Any) -> None:
    dtype, key = batch.kernel.dtype, batch.kernel.key
    one, d, wd = np.float32(1), np.float32(batch.dampening), np.float32(batch.weight_decay)
    p_out, accum_t = formula.cann(
        float32(p, dtype), float32(g, dtype), lr, float32(a, dtype), m, float32(s, dtype), d, wd, one,
        key.nesterov, key.weight_decay, key.dampening, batch.kernel.order == "ascend950",
    )
    p[:] = stored(p_out, dtype)
    if m != 0:
        a[:] = stored(accum_t, dtype)
        s[:] = 0


def memory(address: int, length: int, dtype: str) -> Any:
    """The `length` elements at `address` as an array of their bits, at whatever byte they start."""
    size = DTYPES[dtype]
    raw = np.ctypeslib.as_array((ctypes.c_ubyte * (length * size)).from_address(address))
    return raw.view(np.uint32 if size == 4 else np.uint16)


def float32(bits: Any, dtype: str) -> Any:
    """Bits of `dtype` as float32 values, exactly."""
    if dtype == "float32":
        return bits.view(np.float32)
    if dtype == "float16":
        return bits.view(np.float16).astype(np.float32)
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def stored(values: Any, dtype: str) -> Any:
    """The bits of float32 `values` rounded once, to nearest even, to `dtype`."""
    if dtype == "float32":
        return values.view(np.uint32)
    if dtype == "float16":
        return values.astype(np.float16).view(np.uint16)
    bits = values.view(np.uint32)
    rounded = bits + (np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1)))
    return (np.where(np.isnan(values), bits | np.uint32(1 << 22), rounded) >> np.uint32(16)).astype(np.uint16)
