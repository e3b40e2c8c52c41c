"""The compiled loops of the cpu engine: formula.py's rule over a run of elements, in each dtype.

A kernel is a C function made from one of the two factories below with the constants of its key. It updates `n`
elements at the addresses `p`, `g`, `a`, `s`; learning_rate and momentum are read from the addresses `lr` and `m` when
it runs (momentum is a device value, so the mask of rule O6 is a branch here and never a key). `stream` chooses how a
cleared stat reaches memory; it changes no bit:
  0: stored in the loop, best while the tensors fit a cache;
  1: without dampening stat is not read, so it is cleared by stores past the caches; with dampening it is read anyway,
     and a run whose stat is +0 already is not stored again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from samestep import formula
from samestep.engine.llvm import (
    BFLOAT16,
    BFLOAT16_EVEN,
    BFLOAT16_ODD,
    clear_line,
    fence,
    load,
    load_byte,
    store,
    store_byte,
    store_pair,
)

_cann = numba.njit(formula.cann, error_model="numpy", nogil=True)
_one = np.float32(1)
_zero = np.float32(0)


@numba.njit(error_model="numpy", nogil=True)
def _is_clear(address: int, size: int) -> bool:
    """Are all `size` bytes zero (every stat +0)? A stat that is not mostly differs at once, so look there first."""
    for i in range(min(size, 64)):
        if load_byte(address, i) != 0:
            return False
    seen = np.uint8(0)
    for i in range(size):
        seen |= load_byte(address, i)
    return seen == 0


@numba.njit(error_model="numpy", nogil=True)
def _clear(address: int, size: int) -> None:
    """Write zero bytes, whole lines of 64 past the caches."""
    head = min((-address) % 64, size)
    for i in range(head):
        store_byte(address, i, np.uint8(0))
    lines = (size - head) // 64
    for i in range(lines):
        clear_line(address + head + 64 * i)
    for i in range(head + 64 * lines, size):
        store_byte(address, i, np.uint8(0))
    fence()


def plain(
    form: int, itemsize: int, nesterov: bool, weight_decay: bool, dampening: bool, ascend950: bool
) -> Callable[..., None]:
    """The loop for float32 and float16, one element a lane (`form` is that of llvm.load)."""

    def update(p: Any, g: Any, a: Any, s: Any, n: Any, lr_: Any, m_: Any, d_: Any, wd_: Any, stream: Any) -> None:
        d, wd = np.float32(d_), np.float32(wd_)
        lr, m = load(lr_, 0, form), load(m_, 0, form)

        def element(i: Any, stat: Any) -> Any:
            return _cann(load(p, i, form), load(g, i, form), lr, load(a, i, form), m, stat, d, wd, _one,
                         nesterov, weight_decay, dampening, ascend950)

        if m == _zero:
            for i in range(n):
                p_out, accum_t = element(i, load(s, i, form))
                store(p, i, form, p_out)
        elif stream != 0 and (not dampening or _is_clear(s, n * itemsize)):
            for i in range(n):
                p_out, accum_t = element(i, _zero)
                store(p, i, form, p_out)
                store(a, i, form, accum_t)
            if not dampening:
                _clear(s, n * itemsize)
        else:
            for i in range(n):
                p_out, accum_t = element(i, load(s, i, form))
                store(p, i, form, p_out)
                store(a, i, form, accum_t)
                store(s, i, form, _zero)

    return update


def bfloat16(nesterov: bool, weight_decay: bool, dampening: bool, ascend950: bool) -> Callable[..., None]:
    """The loop for bfloat16: two elements a 32-bit word, the even one in its low half, then an odd last element."""

    def update(p: Any, g: Any, a: Any, s: Any, n: Any, lr_: Any, m_: Any, d_: Any, wd_: Any, stream: Any) -> None:
        d, wd = np.float32(d_), np.float32(wd_)
        lr, m = load(lr_, 0, BFLOAT16), load(m_, 0, BFLOAT16)

        def element(i: Any, form: Any, stat: Any) -> Any:
            return _cann(load(p, i, form), load(g, i, form), lr, load(a, i, form), m, stat, d, wd, _one,
                         nesterov, weight_decay, dampening, ascend950)

        if m == _zero:
            for i in range(n >> 1):
                p0, a0 = element(i, BFLOAT16_EVEN, load(s, i, BFLOAT16_EVEN))
                p1, a1 = element(i, BFLOAT16_ODD, load(s, i, BFLOAT16_ODD))
                store_pair(p, i, p0, p1)
        elif stream != 0 and (not dampening or _is_clear(s, n * 2)):
            for i in range(n >> 1):
                p0, a0 = element(i, BFLOAT16_EVEN, _zero)
                p1, a1 = element(i, BFLOAT16_ODD, _zero)
                store_pair(p, i, p0, p1)
                store_pair(a, i, a0, a1)
            if not dampening:
                _clear(s, (n >> 1) * 4)
        else:
            for i in range(n >> 1):
                p0, a0 = element(i, BFLOAT16_EVEN, load(s, i, BFLOAT16_EVEN))
                p1, a1 = element(i, BFLOAT16_ODD, load(s, i, BFLOAT16_ODD))
                store_pair(p, i, p0, p1)
                store_pair(a, i, a0, a1)
                store_pair(s, i, _zero, _zero)
        for i in range(n & ~1, n):
            p_out, accum_t = element(i, BFLOAT16, load(s, i, BFLOAT16))
            store(p, i, BFLOAT16, p_out)
            if m != _zero:
                store(a, i, BFLOAT16, accum_t)
                store(s, i, BFLOAT16, _zero)

    return update
