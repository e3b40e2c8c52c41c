"""How a recognised call of `sgd_` runs: on the calling thread, or on as many of torch's team as the engine takes."""

from __future__ import annotations

import numba

from samestep import tiling
from samestep.engine import quick, walk
from samestep.engine.calls import call_i32
from samestep.engine.cpu import BLOCK_ALIGN, BLOCK_LEAST, ONE_BLOCK
from samestep.engine.llvm import load_int, on_stack

_inner = numba.njit(error_model="numpy")
_block = _inner(tiling.block)


@_inner
def _cores(known: int) -> int:
    """How many threads may be used? As threads.get_num_threads has it, which knows more of forked processes."""
    fixed = load_int(load_int(known, quick.FIXED_THREADS), 0)
    return fixed if fixed != 0 else call_i32(load_int(known, quick.MAX_THREADS), ())


@_inner
def block_of(known: int, n: int, item: int) -> int:
    """The elements that each thread takes of `n` of so many bytes; 0 where that is for the ordinary way to say."""
    if n < ONE_BLOCK:
        return n
    if load_int(known, quick.PARALLEL) == 0 or 4 * n * item > load_int(known, quick.CACHE):
        return 0
    if call_i32(load_int(known, quick.PROCESS), ()) != load_int(known, quick.HOME):  # a fork has no team
        return 0
    return min(n, _block(n, _cores(known), BLOCK_LEAST, BLOCK_ALIGN))


@_inner
def run(known: int, block: int, kernel: int, p: int, g: int, a: int, s: int, n: int, item: int, lr: int, m: int,
        d: float, wd: float) -> None:
    """Run the kernel over tensors at these addresses, in blocks."""
    sizes = item * 0x01010101
    if block == n:
        walk.run_one(kernel, p, g, a, s, n, sizes, lr, m, d, wd, 0, n)
        return
    walk.on_team(load_int(known, quick.PARALLEL), load_int(known, quick.THREAD_NUM), load_int(known, quick.NUM_THREADS),
                 load_int(known, quick.REGION), kernel, on_stack((p, g, a, s, n)), 1, sizes, lr, m, d, wd, 0, n, block,
                 n, (n + block - 1) // block)
