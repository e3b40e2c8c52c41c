"""The kernels' own conversion to bfloat16, alone."""

# ruff: noqa: N803

import triton
import triton.language as tl

from samestep.engine.triton_kernels import _stored


@triton.jit
def to_bfloat16(words, out, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, _stored(tl.load(words + at).to(tl.float32, bitcast=True), tl.bfloat16, False))
