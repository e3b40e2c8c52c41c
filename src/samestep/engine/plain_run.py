"""How a recognised call of `sgd_` runs: on the calling thread, or on as many of torch's team as the engine takes."""

from __future__ import annotations

import numba

from samestep import tiling
from samestep.engine import cpu, quick, walk
from samestep.engine.calls import call_i32, call_i64
from samestep.engine.cpu import BLOCK_ALIGN, BLOCK_LEAST, ONE_BLOCK
from samestep.engine.llvm import call, load_int, on_stack

_inner = numba.njit(error_model="numpy")
_block, _are_past, _piece_of, _run_of = (_inner(function) for function in (
    tiling.block, cpu.are_past, cpu.piece_of, cpu.run_of))


@_inner
def _cores(known: int) -> int:
    """How many threads may be used? The number that was set, else torch's, which each thread may have its own of."""
    fixed = load_int(load_int(known, quick.FIXED_THREADS), 0)
    if fixed != 0:
        return fixed
    answer = call_i64(load_int(known, quick.ASK), (load_int(known, quick.CORES),))
    if answer == 0:
        call(load_int(known, quick.CLEAR_ERROR), ())
        return 1
    number = call_i64(load_int(known, quick.INTEGER), (answer,))
    call(load_int(known, quick.DROP), (answer,))
    return max(1, number)


@_inner
def block_of(known: int, n: int) -> int:
    """The elements that are a thread's at first, `n` for a single one; 0 where that is for the ordinary way to say."""
    if n < ONE_BLOCK:
        return n
    if load_int(known, quick.PARALLEL) == 0 or call_i32(load_int(known, quick.PROCESS), ()) != load_int(
            known, quick.HOME):  # a fork has no team
        return 0
    return min(n, _block(n, _cores(known), BLOCK_LEAST, BLOCK_ALIGN))


@_inner
def run(known: int, block: int, kernel: int, p: int, g: int, a: int, s: int, n: int, item: int, lr: int, m: int,
        d: float, wd: float) -> None:
    """Run the kernel over tensors at these addresses, in blocks."""
    table, sizes = on_stack((p, g, a, s, n)), item * 0x01010101
    if n < ONE_BLOCK:  # the size of the cache may not be known yet, which comes with the team
        walk.blocks(kernel, table, 1, sizes, lr, m, d, wd, 0, n, n, n, 0, 1, 0)
        return
    size, cache = 4 * n * item, load_int(known, quick.CACHE)
    # With a number of dampening that float32 makes 0 this may choose other stores: that is all a stream is.
    stream, length = int(_are_past(size, cache, d != 0)), _run_of(n, size)
    if block == n:
        walk.blocks(kernel, table, 1, sizes, lr, m, d, wd, stream, n, n, length, 0, 1, 0)
        return
    walk.on_team(load_int(known, quick.PARALLEL), load_int(known, quick.THREAD_NUM), load_int(known, quick.NUM_THREADS),
                 load_int(known, quick.REGION), kernel, table, 1, sizes, lr, m, d, wd, stream, n,
                 _piece_of(block, size, cache), length, (n + block - 1) // block)
