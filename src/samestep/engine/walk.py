"""From a batch to kernel calls: the walk over a table of tensor sets, block by block.

The table has one row of five int64 per tensor set: the addresses of parameters, gradient, accum and stat, and the
number of elements up to and including this set. `sizes` holds the bytes of an element of each of the four, a byte
each; a size of 0 hands the entry itself to the kernel. A block is a range of the concatenated elements (tiling.Split).
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import types

from samestep.engine import cache
from samestep.engine.calls import call_i32, count, prefetch
from samestep.engine.llvm import (
    call,
    default_fp_control,
    fp_control,
    load_float,
    load_int,
    on_stack,
    set_fp_control,
)

KERNEL = types.void(*[types.int64] * 7, types.float64, types.float64, types.int64)
_IEEE = default_fp_control()
_AHEAD = 8  # rows
_TABLE = types.Array(types.int64, 1, "C")
_ints = [types.int64]
_float = types.float64

with cache.cached("walk") as _cache:
    _jit: dict[str, Any] = {"nogil": True, "error_model": "numpy", "cache": _cache}

    @numba.njit(types.int64(*_ints * 3), **_jit)
    def _first_row(table: int, rows: int, start: int) -> int:
        """The row that holds element `start`."""
        low, high = 0, rows - 1
        while low < high:
            middle = (low + high) >> 1
            if load_int(table, 5 * middle + 4) > start:
                high = middle
            else:
                low = middle + 1
        return low

    @numba.njit(types.int64(*_ints * 2), **_jit)
    def _to_a_line(address: int, itemsize: int) -> int:
        """Elements up to the next cache line, 1 .. 64."""
        rest = 64 - address % 64
        return rest // itemsize if rest % itemsize == 0 else 64 // itemsize

    @numba.njit(types.void(*_ints * 6, _float, _float, *_ints * 4), **_jit)
    def _walk(
        kernel: int, table: int, rows: int, sizes: int, lr: int, m: int, d: float, wd: float, stream: int,
        start: int, stop: int, run: int,
    ) -> None:
        """Call the kernel for elements start .. stop, at most `run` at a time and never across two sets."""
        row = _first_row(table, rows, start)
        p_size, g_size, a_size, s_size = sizes & 255, sizes >> 8 & 255, sizes >> 16 & 255, sizes >> 24
        while start < stop:
            if row + _AHEAD < rows:  # sets too small for the processor to guess where the next one lies
                for k in range(4):
                    prefetch(load_int(table, 5 * (row + _AHEAD) + k))
            end = load_int(table, 5 * row + 4)
            begin = load_int(table, 5 * row - 1) if row > 0 else 0
            p, g, a, s = (load_int(table, 5 * row), load_int(table, 5 * row + 1), load_int(table, 5 * row + 2),
                          load_int(table, 5 * row + 3))
            end = min(end, stop)
            # Vectors that straddle two cache lines cost up to a third of the time, and NumPy's large arrays all
            # begin 16 bytes into a line: a short first run lets the others begin on one.
            n = _to_a_line(p + (start - begin) * p_size, p_size) if end - start > 2048 else run
            while start < end:
                n = min(n, end - start)
                at = start - begin
                call(kernel, (p + at * p_size, g + at * g_size, a + at * a_size, s + at * s_size, n, lr, m, d, wd,
                              stream))
                start += n
                n = run
            row += 1

    @numba.njit(types.void(*_ints * 6, _float, _float, *_ints * 7), **_jit)
    def blocks(
        kernel: int, table: int, rows: int, sizes: int, lr: int, m: int, d: float, wd: float, stream: int,
        total: int, former: int, run: int, thread: int, threads: int, counter: int,
    ) -> None:
        """A thread's blocks under IEEE's default environment, and the thread's own again afterwards.

        They are block `thread`, so that a thread finds in its caches what it had there at the last step, and then
        whichever is left: the word at `counter`, 0 at first, counts those. It is not looked at by a single thread.
        The arithmetic is behind a pointer, so that no compiler can move it across the change of the register.
        """
        before = fp_control()
        set_fp_control(_IEEE)
        start = thread * former
        while start < total:
            _walk(kernel, table, rows, sizes, lr, m, d, wd, stream, start, min(start + former, total), run)
            start = (threads + count(counter)) * former if threads > 1 else start + former
        set_fp_control(before)

    @numba.njit(types.void(_ints[0], _TABLE, *_ints * 3, _float, _float, *_ints * 7), **_jit)
    def run_blocks(
        kernel: int, table: Any, sizes: int, lr: int, m: int, d: float, wd: float, stream: int,
        total: int, former: int, run: int, thread: int, threads: int, counter: int,
    ) -> None:
        """The calling thread's blocks; the GIL is released."""
        blocks(kernel, table.ctypes.data, len(table) // 5, sizes, lr, m, d, wd, stream, total, former, run, thread,
                threads, counter)

    @numba.njit(types.void(*_ints * 6, *_ints * 3, _float, _float, *_ints * 2), **_jit)
    def run_one(
        kernel: int, p: int, g: int, a: int, s: int, length: int, sizes: int, lr: int, m: int, d: float, wd: float,
        stream: int, run: int,
    ) -> None:
        """A single tensor set in one block; a call costs half of what building a table first would."""
        table = on_stack((p, g, a, s, length))
        blocks(kernel, table, 1, sizes, lr, m, d, wd, stream, length, length, run, 0, 1, 0)

    @numba.cfunc(types.void(types.int64), nopython=True, error_model="numpy", cache=_cache)
    def _region(job: int) -> None:
        """What each thread of an OpenMP team does, whatever size the team got."""
        thread, threads = call_i32(load_int(job, 12), ()), call_i32(load_int(job, 13), ())
        blocks(load_int(job, 0), load_int(job, 1), load_int(job, 2), load_int(job, 3), load_int(job, 4),
                load_int(job, 5), load_float(job, 6), load_float(job, 7), load_int(job, 8), load_int(job, 9),
                load_int(job, 10), load_int(job, 11), thread, threads, job + 8 * 14)

    @numba.njit(types.void(*_ints * 10, _float, _float, *_ints * 5), **_jit)
    def on_team(
        parallel: int, thread_num: int, num_threads: int, region: int, kernel: int, table: int, rows: int, sizes: int,
        lr: int, m: int, d: float, wd: float, stream: int, total: int, former: int, run: int, threads: int,
    ) -> None:
        """All blocks on `threads` threads of the OpenMP team behind `parallel` (GOMP_parallel)."""
        job = on_stack((kernel, table, rows, sizes, lr, m, d, wd, stream, total, former, run, thread_num, num_threads,
                        0))
        call(parallel, (region, job, np.uint32(threads), np.uint32(0)))

    @numba.njit(types.void(*_ints * 4, _ints[0], _TABLE, *_ints * 3, _float, _float, *_ints * 5), **_jit)
    def run_team(
        parallel: int, thread_num: int, num_threads: int, region: int, kernel: int, table: Any, sizes: int, lr: int,
        m: int, d: float, wd: float, stream: int, total: int, former: int, run: int, threads: int,
    ) -> None:
        """The same for a table of NumPy; the GIL is released."""
        on_team(parallel, thread_num, num_threads, region, kernel, table.ctypes.data, len(table) // 5, sizes, lr, m, d,
                wd, stream, total, former, run, threads)

REGION = _region.address
