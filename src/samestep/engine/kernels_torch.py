"""The compiled loops of the cpu engine for rule T, the optimizer's.

The C function is of the same type as for the operator (kernels.py), with other meanings: `a` is the momentum buffer,
`s` is not 0 on a tensor set's first momentum step, `lr` and `m` are the addresses of two float64, `d` is 1 - dampening.
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
    FLOAT16,
    FLOAT32,
    FLOAT64,
    fma,
    load,
    load_float,
    store,
    store_pair,
    vector_bits,
)

_torch = numba.njit(formula.torch, error_model="numpy", nogil=True)
FORMS = {"float32": FLOAT32, "float16": FLOAT16, "bfloat16": BFLOAT16, "float64": FLOAT64}


def plain(
    dtypes: tuple[str, str, str], maximize: bool, weight_decay: bool, momentum: bool, nesterov: bool, bits: int
) -> Callable[..., None]:
    """The loop for parameters, gradient and momentum buffer of any three dtypes, one element a lane.

    Vectors have at most `bits` bits, as many as the processor has where that is 0.
    """
    p_form, g_form, b_form = (FORMS[dtype] for dtype in dtypes)
    real = np.float64 if dtypes[0] == "float64" else np.float32

    def update(p: Any, g: Any, b: Any, first: Any, n: Any, lr_: Any, m_: Any, d_: Any, wd_: Any, stream: Any) -> None:
        vector_bits(bits)
        neg_lr, m, d, wd = -real(load_float(lr_, 0)), real(load_float(m_, 0)), real(d_), real(wd_)

        def element(i: Any, buffer: Any, is_first: Any) -> Any:
            return _torch(real(load(p, i, p_form)), real(load(g, i, g_form)), buffer, neg_lr, m, d, wd, fma,
                          maximize, weight_decay, momentum, nesterov, is_first)

        if not momentum:
            for i in range(n):
                p_out, b_out = element(i, neg_lr, False)
                store(p, i, p_form, p_out)
        elif first != 0:
            for i in range(n):
                p_out, b_out = element(i, neg_lr, True)
                store(p, i, p_form, p_out)
                store(b, i, b_form, b_out)
        else:
            for i in range(n):
                p_out, b_out = element(i, real(load(b, i, b_form)), False)
                store(p, i, p_form, p_out)
                store(b, i, b_form, b_out)

    return update


def bfloat16(maximize: bool, weight_decay: bool, momentum: bool, nesterov: bool) -> Callable[..., None]:
    """The loop where all three are bfloat16: two elements a 32-bit word, as in kernels.py."""

    def update(p: Any, g: Any, b: Any, first: Any, n: Any, lr_: Any, m_: Any, d_: Any, wd_: Any, stream: Any) -> None:
        neg_lr, m = -np.float32(load_float(lr_, 0)), np.float32(load_float(m_, 0))
        d, wd = np.float32(d_), np.float32(wd_)

        def element(i: Any, form: Any, buffer: Any, is_first: Any) -> Any:
            return _torch(load(p, i, form), load(g, i, form), buffer, neg_lr, m, d, wd, fma,
                          maximize, weight_decay, momentum, nesterov, is_first)

        if not momentum:
            for i in range(n >> 1):
                p0, b0 = element(i, BFLOAT16_EVEN, neg_lr, False)
                p1, b1 = element(i, BFLOAT16_ODD, neg_lr, False)
                store_pair(p, i, p0, p1)
        elif first != 0:
            for i in range(n >> 1):
                p0, b0 = element(i, BFLOAT16_EVEN, neg_lr, True)
                p1, b1 = element(i, BFLOAT16_ODD, neg_lr, True)
                store_pair(p, i, p0, p1)
                store_pair(b, i, b0, b1)
        else:
            for i in range(n >> 1):
                p0, b0 = element(i, BFLOAT16_EVEN, load(b, i, BFLOAT16_EVEN), False)
                p1, b1 = element(i, BFLOAT16_ODD, load(b, i, BFLOAT16_ODD), False)
                store_pair(p, i, p0, p1)
                store_pair(b, i, b0, b1)
        for i in range(n & ~1, n):
            if momentum and first == 0:
                p_out, b_out = element(i, BFLOAT16, load(b, i, BFLOAT16), False)
            else:
                p_out, b_out = element(i, BFLOAT16, neg_lr, True)
            store(p, i, BFLOAT16, p_out)
            if momentum:
                store(b, i, BFLOAT16, b_out)

    return update
