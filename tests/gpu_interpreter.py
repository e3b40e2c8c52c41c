"""Triton's interpreter where it has no fused multiply-add that rounds once (before 3.9): an exact one."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import torch

from samestep.verify import vectorised


@contextmanager
def exact_fma():
    """Within it, tl.fma rounds once, whatever the interpreter's own does."""
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    def fma(self, x, y, z):
        dtype = z.data.dtype
        of_doubles = vectorised.fma64 if dtype == np.float64 else vectorised.fma32
        x, y, z_ = (part.data.astype(np.float64) for part in (x, y, z))
        return TensorHandle(of_doubles(x, y, z_).astype(dtype), z.dtype.scalar)

    own = InterpreterBuilder.create_fma
    InterpreterBuilder.create_fma = fma
    try:
        yield
    finally:
        InterpreterBuilder.create_fma = own


def rounds_once():
    """Is the interpreter's own fused multiply-add exact? Asked of three numbers that two roundings get wrong."""
    import triton
    import triton.language as tl

    @triton.jit
    def kernel(x, out):
        value = tl.load(x)
        tl.store(out, tl.fma(value, value, -tl.load(x + 1)))

    for real in (torch.float32, torch.float64):
        bits = 23 if real is torch.float32 else 52
        x = torch.tensor([1 + 2.0**-bits, 1 + 2.0 ** (1 - bits)], dtype=real)
        out = torch.zeros(1, dtype=real)
        kernel[(1,)](x, out)
        if out.item() != 2.0 ** (-2 * bits):
            return False
    return True
