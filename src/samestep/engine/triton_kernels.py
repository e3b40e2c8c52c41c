"""The kernels of the gpu engine: formula.py's own functions, compiled by Triton, over blocks of elements.

`*_list` updates all tensor sets of a table with one launch, `*_one` a single set; both take addresses as int64.
Everything in capitals is a constant of the kernel; a new learning rate, momentum, length or address compiles nothing.
Compile with `enable_fp_fusion=False`: every operation of the rule is one rounding.

A table has a row of `COLUMNS` int64 for each set: the addresses of parameters, gradient, accum and stat (rule torch:
parameters, gradient, momentum buffer, and not 0 on the first momentum step), the number of elements, and the number of
the set's first block among the blocks of all sets. `rows` has the row of each block. Python floats reach a Triton
kernel as float32, so hyperparameters come as the int64 pattern of a float64.

INTEGER converts bfloat16 by integer operations. Hardware does the same; Triton's interpreter does not (it rounds
halves away from zero and flushes subnormals).
"""

# Capitals mark the constants of a kernel, on which Triton decides a plain `if` when it compiles.
# ruff: noqa: N803, N806, SIM102, SIM300
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, no-redef"

import triton
import triton.language as tl

from samestep import formula

COLUMNS = 6
INTERPRETED = bool(triton.knobs.runtime.interpret)  # TRITON_INTERPRET=1 when this module was imported
# The interpreter runs Python functions as they are.
_cann = formula.cann if INTERPRETED else triton.jit(formula.cann)
_torch = formula.torch if INTERPRETED else triton.jit(formula.torch)
_VALUES = ("table", "rows", "p", "g", "a", "s", "b", "first", "n", "lr", "m", "d", "wd", "found_inf")


@triton.jit
def _fma(x, y, z):
    return tl.fma(x, y, z)


@triton.jit
def _negated(x):
    # Triton 3.6 makes 0 - x of -x, which loses the sign of zero.
    return x * -1


@triton.jit
def _number(bits):
    """The float64 with the pattern `bits`."""
    return bits.to(tl.int64).to(tl.float64, bitcast=True)


@triton.jit
def _real(x, REAL: tl.constexpr, INTEGER: tl.constexpr):
    """`x` in the type of the arithmetic: exactly, or rounded once where that is narrower."""
    if INTEGER:
        if x.dtype == tl.bfloat16:
            x = (x.to(tl.uint16, bitcast=True).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    return x.to(REAL)


@triton.jit
def _stored(x, DTYPE: tl.constexpr, INTEGER: tl.constexpr):
    """`x` rounded once to DTYPE, to nearest even; NaN stays NaN."""
    if INTEGER:
        if DTYPE == tl.bfloat16:
            bits = x.to(tl.uint32, bitcast=True)
            rounded = bits + (((bits >> 16) & 1) + 0x7FFF)
            bits = tl.where(x != x, bits | 0x400000, rounded)  # noqa: PLR0124  # only NaN differs from itself
            return (bits >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    return x.to(DTYPE)


@triton.jit
def _read(pointer, at, mask, REAL: tl.constexpr, INTEGER: tl.constexpr, MASKED: tl.constexpr):
    if MASKED:
        x = tl.load(pointer + at, mask=mask)
    else:
        x = tl.load(pointer + at)
    return _real(x, REAL, INTEGER)


@triton.jit
def _write(pointer, at, mask, x, INTEGER: tl.constexpr, MASKED: tl.constexpr):
    x = _stored(x, pointer.dtype.element_ty, INTEGER)
    if MASKED:
        tl.store(pointer + at, x, mask=mask)
    else:
        tl.store(pointer + at, x)


@triton.jit
def _pointer(address, at, DTYPE: tl.constexpr, ALIGNED: tl.constexpr):
    """The pointer to element `at`; ALIGNED promises a multiple of 16 bytes, so that 128 bits are moved at once."""
    pointer = address.to(tl.int64).to(tl.pointer_type(DTYPE)) + at
    if ALIGNED:
        pointer = tl.multiple_of(pointer, 16)
    return pointer


@triton.jit
def cann_block(
    p, g, a, s, lr, m, d, wd, left, NESTEROV: tl.constexpr, WEIGHT_DECAY: tl.constexpr, DAMPENING: tl.constexpr,
    ASCEND950: tl.constexpr, INTEGER: tl.constexpr, MASKED: tl.constexpr, BLOCK: tl.constexpr,
):
    """One block of rule O from the pointers on; MASKED: only its first `left` elements. `m` is read when it runs."""
    at = tl.arange(0, BLOCK)
    mask = at < left
    one = tl.full((), 1, tl.float32)
    p_in = _read(p, at, mask, tl.float32, INTEGER, MASKED)
    g_in = _read(g, at, mask, tl.float32, INTEGER, MASKED)
    a_in = _read(a, at, mask, tl.float32, INTEGER, MASKED)
    if DAMPENING:
        s_in = _read(s, at, mask, tl.float32, INTEGER, MASKED)
    else:
        s_in = one
    p_out, accum_t = _cann(p_in, g_in, lr, a_in, m, s_in, d, wd, one, NESTEROV, WEIGHT_DECAY, DAMPENING, ASCEND950)
    _write(p, at, mask, p_out, INTEGER, MASKED)
    if m != 0:
        _write(a, at, mask, accum_t, INTEGER, MASKED)
        _write(s, at, mask, tl.zeros((BLOCK,), tl.float32), INTEGER, MASKED)


@triton.jit
def _cann_set(
    p, g, a, s, n, at, lr, m, d, wd, DTYPE: tl.constexpr, NESTEROV: tl.constexpr, WEIGHT_DECAY: tl.constexpr,
    DAMPENING: tl.constexpr, ASCEND950: tl.constexpr, INTEGER: tl.constexpr, BLOCK: tl.constexpr,
):
    """The block that begins at element `at` of a set, by addresses."""
    lr_ = _real(tl.load(_pointer(lr, 0, DTYPE, False)), tl.float32, INTEGER)
    m_ = _real(tl.load(_pointer(m, 0, DTYPE, False)), tl.float32, INTEGER)
    d_ = _number(d).to(tl.float32)
    wd_ = _number(wd).to(tl.float32)
    left = n - at
    if (((p | g | a | s) & 15) == 0) & (left >= BLOCK):
        cann_block(_pointer(p, at, DTYPE, True), _pointer(g, at, DTYPE, True), _pointer(a, at, DTYPE, True),
                    _pointer(s, at, DTYPE, True), lr_, m_, d_, wd_, left, NESTEROV, WEIGHT_DECAY, DAMPENING, ASCEND950,
                    INTEGER, False, BLOCK)
    else:
        cann_block(_pointer(p, at, DTYPE, False), _pointer(g, at, DTYPE, False), _pointer(a, at, DTYPE, False),
                    _pointer(s, at, DTYPE, False), lr_, m_, d_, wd_, left, NESTEROV, WEIGHT_DECAY, DAMPENING, ASCEND950,
                    INTEGER, True, BLOCK)


@triton.jit(do_not_specialize=_VALUES)
def cann_list(
    table, rows, lr: tl.int64, m: tl.int64, d: tl.int64, wd: tl.int64, DTYPE: tl.constexpr, NESTEROV: tl.constexpr,
    WEIGHT_DECAY: tl.constexpr, DAMPENING: tl.constexpr, ASCEND950: tl.constexpr, INTEGER: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Rule O for the sets of a table, a program a block; `lr` and `m` are addresses of one element of DTYPE."""
    block = tl.program_id(0)
    row = table + tl.load(rows + block).to(tl.int64) * 6
    at = (block - tl.load(row + 5)) * BLOCK
    _cann_set(tl.load(row), tl.load(row + 1), tl.load(row + 2), tl.load(row + 3), tl.load(row + 4), at, lr, m, d, wd,
              DTYPE, NESTEROV, WEIGHT_DECAY, DAMPENING, ASCEND950, INTEGER, BLOCK)


@triton.jit(do_not_specialize=_VALUES)
def cann_one(
    p: tl.int64, g: tl.int64, a: tl.int64, s: tl.int64, n: tl.int64, lr: tl.int64, m: tl.int64, d: tl.int64,
    wd: tl.int64, DTYPE: tl.constexpr, NESTEROV: tl.constexpr, WEIGHT_DECAY: tl.constexpr, DAMPENING: tl.constexpr,
    ASCEND950: tl.constexpr, INTEGER: tl.constexpr, BLOCK: tl.constexpr,
):
    """Rule O for one set of `n` elements, a program a block."""
    at = tl.program_id(0).to(tl.int64) * BLOCK
    _cann_set(p, g, a, s, n, at, lr, m, d, wd, DTYPE, NESTEROV, WEIGHT_DECAY, DAMPENING, ASCEND950, INTEGER, BLOCK)


@triton.jit
def _torch_block(
    p, g, b, first, neg_lr, m, one_minus_d, wd, left, MAXIMIZE: tl.constexpr, WEIGHT_DECAY: tl.constexpr,
    MOMENTUM: tl.constexpr, NESTEROV: tl.constexpr, REAL: tl.constexpr, INTEGER: tl.constexpr, MASKED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One block of rule T from the pointers on; the buffer is not read where `first` says so."""
    at = tl.arange(0, BLOCK)
    mask = at < left
    p_in = _read(p, at, mask, REAL, INTEGER, MASKED)
    g_in = _read(g, at, mask, REAL, INTEGER, MASKED)
    if MAXIMIZE:
        g_in = _negated(g_in)
    if MOMENTUM:
        if first:
            b_in = g_in
        else:
            b_in = _read(b, at, mask, REAL, INTEGER, MASKED)
        p_out, b_out = _torch(p_in, g_in, b_in, neg_lr, m, one_minus_d, wd, _fma, False, WEIGHT_DECAY, True, NESTEROV,
                              first)
        _write(b, at, mask, b_out, INTEGER, MASKED)
    else:
        p_out, b_out = _torch(p_in, g_in, g_in, neg_lr, m, one_minus_d, wd, _fma, False, WEIGHT_DECAY, False, False,
                              False)
    _write(p, at, mask, p_out, INTEGER, MASKED)


@triton.jit
def _torch_set(
    p, g, b, first, n, at, lr, m, d, wd, found_inf, DTYPE: tl.constexpr, GRAD: tl.constexpr, STATE: tl.constexpr,
    LR: tl.constexpr, FOUND_INF: tl.constexpr, MAXIMIZE: tl.constexpr, WEIGHT_DECAY: tl.constexpr,
    MOMENTUM: tl.constexpr, NESTEROV: tl.constexpr, INTEGER: tl.constexpr, BLOCK: tl.constexpr,
):
    """The block that begins at element `at` of a set, by addresses."""
    if DTYPE == tl.float64:
        REAL: tl.constexpr = tl.float64
    else:
        REAL: tl.constexpr = tl.float32
    if LR is None:
        neg_lr = _negated(_number(lr).to(REAL))
    else:
        neg_lr = _negated(_real(tl.load(_pointer(lr, 0, LR, False)), tl.float64, INTEGER).to(REAL))
    m_ = _number(m).to(REAL)
    d_ = _number(d).to(REAL)
    wd_ = _number(wd).to(REAL)
    left = n - at
    if FOUND_INF:
        left = tl.where(tl.load(_pointer(found_inf, 0, tl.float32, False)) != 0, 0, left)
    if (((p | g | b) & 15) == 0) & (left >= BLOCK):
        _torch_block(_pointer(p, at, DTYPE, True), _pointer(g, at, GRAD, True), _pointer(b, at, STATE, True),
                     first != 0, neg_lr, m_, d_, wd_, left, MAXIMIZE, WEIGHT_DECAY, MOMENTUM, NESTEROV, REAL, INTEGER,
                     False, BLOCK)
    else:
        _torch_block(_pointer(p, at, DTYPE, False), _pointer(g, at, GRAD, False), _pointer(b, at, STATE, False),
                     first != 0, neg_lr, m_, d_, wd_, left, MAXIMIZE, WEIGHT_DECAY, MOMENTUM, NESTEROV, REAL, INTEGER,
                     True, BLOCK)


@triton.jit(do_not_specialize=_VALUES)
def torch_list(
    table, rows, lr: tl.int64, m: tl.int64, d: tl.int64, wd: tl.int64, found_inf: tl.int64, DTYPE: tl.constexpr,
    GRAD: tl.constexpr, STATE: tl.constexpr, LR: tl.constexpr, FOUND_INF: tl.constexpr, MAXIMIZE: tl.constexpr,
    WEIGHT_DECAY: tl.constexpr, MOMENTUM: tl.constexpr, NESTEROV: tl.constexpr, INTEGER: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Rule T for the sets of a table, a program a block.

    `lr`, `m`, `d` (that is 1 - dampening) and `wd` are patterns of float64. LR is None, or the dtype of the one
    element that `lr` is the address of. With FOUND_INF nothing is written if the float32 at `found_inf` is not 0.
    """
    block = tl.program_id(0)
    row = table + tl.load(rows + block).to(tl.int64) * 6
    at = (block - tl.load(row + 5)) * BLOCK
    _torch_set(tl.load(row), tl.load(row + 1), tl.load(row + 2), tl.load(row + 3), tl.load(row + 4), at, lr, m, d, wd,
               found_inf, DTYPE, GRAD, STATE, LR, FOUND_INF, MAXIMIZE, WEIGHT_DECAY, MOMENTUM, NESTEROV, INTEGER, BLOCK)


@triton.jit(do_not_specialize=_VALUES)
def torch_one(
    p: tl.int64, g: tl.int64, b: tl.int64, first: tl.int64, n: tl.int64, lr: tl.int64, m: tl.int64, d: tl.int64,
    wd: tl.int64, found_inf: tl.int64, DTYPE: tl.constexpr, GRAD: tl.constexpr, STATE: tl.constexpr, LR: tl.constexpr,
    FOUND_INF: tl.constexpr, MAXIMIZE: tl.constexpr, WEIGHT_DECAY: tl.constexpr, MOMENTUM: tl.constexpr,
    NESTEROV: tl.constexpr, INTEGER: tl.constexpr, BLOCK: tl.constexpr,
):
    """Rule T for one set of `n` elements, a program a block."""
    at = tl.program_id(0).to(tl.int64) * BLOCK
    _torch_set(p, g, b, first, n, at, lr, m, d, wd, found_inf, DTYPE, GRAD, STATE, LR, FOUND_INF, MAXIMIZE,
               WEIGHT_DECAY, MOMENTUM, NESTEROV, INTEGER, BLOCK)
