"""The kernel for an NPU: one tensor set, its blocks (rule K2) through the unified buffer, one run after another.

The gpu engine's kernels take addresses as integers, which the compilers for Ascend do not; here every tensor is an
argument. The body is the engine's. Importing this module imports Triton.
"""

# ruff: noqa: N803  # as in the engine's kernels, constants are in capitals
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from samestep.engine.triton_kernels import cann_block


@triton.jit
def sgd(
    parameters, gradient, learning_rate, accum, momentum, stat, d, wd, length, block_former,
    NESTEROV: tl.constexpr, WEIGHT_DECAY: tl.constexpr, DAMPENING: tl.constexpr, ASCEND950: tl.constexpr,
    SEVERAL: tl.constexpr, UB_FORMER: tl.constexpr,
):
    """Rules O5, O6 for `length` elements; with SEVERAL, program k takes block k of `block_former` elements.

    `learning_rate` and `momentum` point to one element, `d` and `wd` are float32. UB_FORMER elements are in the
    unified buffer at a time. Without dampening `stat` is not read; with momentum 0 `accum` and `stat` are not written.
    """
    lr = tl.load(learning_rate).to(tl.float32)
    m = tl.load(momentum).to(tl.float32)
    if SEVERAL:
        first = tl.program_id(0).to(tl.int64) * block_former
        end = tl.minimum(length, first + block_former)
    else:
        first = tl.zeros((), tl.int64)
        end = length
    for at in range(first, end, UB_FORMER):
        cann_block(parameters + at, gradient + at, accum + at, stat + at, lr, m, d, wd, end - at, NESTEROV,
                    WEIGHT_DECAY, DAMPENING, ASCEND950, False, True, UB_FORMER)
