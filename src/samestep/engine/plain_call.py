"""The compiled half of the quick way through `sgd_` (quick.py): recognise a plain call, and run it.

Objects are addresses here, and `load_int(x, k)` is the k-th word of eight bytes at x. The GIL is held, so nobody
changes them meanwhile. `known` is the table of quick.py, `args` the array of the call's arguments. What is recognised
is a part of what rules O1 to O4 and O10 take; nothing is refused here.

Each tensor is first described in words, and the first six are those of DLPack's DLTensor.
"""

from __future__ import annotations

import numba
from numba import types

from samestep.contract import MAX_RANK
from samestep.engine import cache, plain_run, quick
from samestep.engine.calls import call_i32, call_i64, store_int
from samestep.engine.llvm import call, load_float, load_int, on_stack

_P, _G, _LR, _A, _M, _S, _D, _WD, _NESTEROV, _ORDER, _ENGINE, _COUNT = range(12)  # the arguments
# The words of a described tensor: address, device, rank and dtype, lengths, strides, bytes before it; then, of torch's,
# the bytes of its storage and the elements before it there.
_ADDRESS, _DEVICE, _KIND, _LENGTHS, _STRIDES, _OFFSET, _STORAGE, _BEFORE = range(8)
_TENSOR = 64  # its bytes
_READ = quick.C_CONTIGUOUS | quick.ALIGNED
_WRITTEN = _READ | quick.WRITEABLE
_HOLD_GIL = 4096  # elements; below, whoever waits for the GIL waits no longer than handing it over takes
_MOST = 1 << 31  # elements
_LOW = 0xFFFFFFFF  # the half of a word that holds a C int
_HOST = 1  # kDLCPU, device 0
_RAISED = -(1 << 40)
_FLOAT32, _FLOAT16, _BFLOAT16 = quick.DLPACK_DTYPES.values()
# Compiled into _step, and so not where that comes from the cache. Each literal among arguments would make numba compile
# a function once more, so there are none.
_inner = numba.njit(error_model="numpy")


@_inner
def rounded(number: int, width: int, precision: int, least: int) -> int:
    """The bits of a float64, rounded to nearest even, in a smaller format; see rounding.round_number.

    In integers, since a conversion by the processor would obey the calling thread's rounding mode (rule O7).
    """
    sign = (number >> 63 & 1) << (width - 1)
    infinity = ((1 << (width - 1)) - 1) >> (precision - 1) << (precision - 1)
    exponent, fraction = number >> 52 & 0x7FF, number & ((1 << 52) - 1)
    if exponent == 0x7FF:
        return infinity | 1 << (precision - 2) if fraction != 0 else sign | infinity
    unit = max(exponent - 1022 - precision, least)
    dropped = unit - (exponent - 1075)
    if exponent == 0 or dropped > 54:  # below half of the smallest subnormal
        return sign
    whole = fraction | 1 << 52
    count = (whole + (1 << (dropped - 1)) - 1 + (whole >> dropped & 1)) >> dropped
    return sign | min(count + ((unit - least) << (precision - 1)), infinity) if count != 0 else sign


@_inner
def _is_number(x: int, known: int) -> bool:
    """Is it a float, or the int 0 (of which CPython has one)?"""
    return load_int(x, quick.TYPE) == load_int(known, quick.FLOAT) or x == load_int(known, quick.ZERO)


@_inner
def _number(x: int, known: int) -> int:
    """The bits of such a number as a float64; 0 for what is none."""
    return load_int(x, quick.VALUE) if load_int(x, quick.TYPE) == load_int(known, quick.FLOAT) else 0


@_inner
def _value(x: int, known: int) -> float:
    return 0.0 if x == load_int(known, quick.ZERO) else load_float(x, quick.VALUE)


@_inner
def _rounded(number: int, kind: int) -> int:
    """`rounded` to the dtype of a described tensor."""
    dtype = kind >> 32
    width, precision = 32 if dtype == _FLOAT32 else 16, 24 if dtype == _FLOAT32 else 11 if dtype == _FLOAT16 else 8
    return rounded(number, width, precision, -24 if dtype == _FLOAT16 else -125 - precision)


@_inner
def describe_array(x: int, known: int, wanted: int, to: int) -> bool:
    """Describe a NumPy array whose memory has the `wanted` flags; is it one?"""
    if load_int(x, quick.TYPE) != load_int(known, quick.ARRAY):
        return False
    dtype, dtypes = load_int(x, quick.DTYPE), load_int(known, quick.NATIVE_DTYPES)
    name = (_FLOAT32 if dtype == load_int(dtypes, 0) else _FLOAT16 if dtype == load_int(dtypes, 1) else
            _BFLOAT16 if dtype == load_int(dtypes, 2) else 0)
    store_int(to, _ADDRESS, load_int(x, quick.DATA))
    store_int(to, _KIND, load_int(x, quick.RANK) & _LOW | name << 32)
    store_int(to, _LENGTHS, load_int(x, quick.SHAPE))
    return name != 0 and load_int(x, quick.FLAGS) & (wanted | quick.UNSURE) == wanted


@_inner
def _is_tensor(x: int, known: int) -> bool:
    """Is it a torch.Tensor or Parameter, and no subclass of them?"""
    kind = load_int(x, quick.TYPE)
    return kind == load_int(known, quick.TENSOR) or kind == load_int(known, quick.PARAMETER)


@_inner
def _describe_tensor(x: int, known: int, to: int) -> bool:
    """Describe a torch tensor by torch's own C function; is it a contiguous one of the host, of a known dtype?"""
    if call_i32(load_int(known, quick.EXCHANGE), (x, to)) != 0:
        call(load_int(known, quick.CLEAR_ERROR), ())
        return False
    if load_int(to, _KIND) >> 32 not in (_FLOAT32, _FLOAT16, _BFLOAT16):
        return False
    expected, axis = 1, load_int(to, _KIND) & _LOW
    while axis > 0:
        axis -= 1
        length = load_int(load_int(to, _LENGTHS), axis)
        if length != 1 and load_int(load_int(to, _STRIDES), axis) != expected:
            return False
        expected *= length
    return load_int(to, _DEVICE) == _HOST and load_int(to, _OFFSET) == 0 and load_int(to, _ADDRESS) != 0


@_inner
def _method(method: int, x: int, known: int) -> int:
    """What `method(x)` returns, an int or bool; _RAISED where it raises."""
    result = call_i64(load_int(known, quick.CALL), (load_int(known, method), x))
    if result == 0:
        call(load_int(known, quick.CLEAR_ERROR), ())
        return _RAISED
    number = call_i64(load_int(known, quick.INTEGER), (result,))
    call(load_int(known, quick.DROP), (result,))
    return number


@_inner
def _interview(x: int, known: int, to: int) -> bool:
    """Ask a torch tensor what the C function does not tell: is it not lazily negated, and how large its storage?

    These methods may let go of the GIL, so the tensor is described only after all were asked.
    """
    if _method(quick.IS_NEG, x, known) != 0:
        return False
    storage = call_i64(load_int(known, quick.CALL), (load_int(known, quick.UNTYPED_STORAGE), x))
    if storage == 0:
        call(load_int(known, quick.CLEAR_ERROR), ())
        return False
    store_int(to, _STORAGE, _method(quick.NBYTES, storage, known))
    call(load_int(known, quick.DROP), (storage,))
    store_int(to, _BEFORE, _method(quick.STORAGE_OFFSET, x, known))
    return load_int(to, _STORAGE) >= 0 and load_int(to, _BEFORE) >= 0


@_inner
def _are_tensors(args: int, known: int, tensors: int) -> bool:
    """Are all of torch, with learning_rate and momentum maybe numbers? Ask them all."""
    for k in range(_D):
        x = load_int(args, k)
        if not (_is_tensor(x, known) or (k in (_LR, _M) and _is_number(x, known))):
            return False
    for k in range(_D):
        x = load_int(args, k)
        if _is_tensor(x, known) and not _interview(x, known, tensors + k * _TENSOR):
            return False
    return _method(quick.LEVEL, load_int(known, quick.FORWARD_AD), known) == -1  # no level


@_inner
def _describe(x: int, known: int, torch: bool, wanted: int, to: int) -> bool:
    return _describe_tensor(x, known, to) if torch else describe_array(x, known, wanted, to)


@_inner
def _describe_scalar(x: int, known: int, torch: bool, wanted: int, kind: int, to: int) -> bool:
    """Describe a one-element tensor of dtype `kind` >> 32, or a number rounded to it; is it one?"""
    if _is_number(x, known):
        store_int(to, _OFFSET, _rounded(_number(x, known), kind))
        store_int(to, _ADDRESS, to + 8 * _OFFSET)
        store_int(to, _STORAGE, 8)
        return True
    if not _describe(x, known, torch, wanted, to) or load_int(to, _KIND) >> 32 != kind >> 32:
        return False
    elements = 1
    for axis in range(load_int(to, _KIND) & _LOW):
        elements = elements if load_int(load_int(to, _LENGTHS), axis) == 1 else 0
    return elements == 1


@_inner
def _elements(tensor: int) -> int:
    """How many elements has a tensor of rank 1 to 8? 0 where there are other ranks or too many elements."""
    rank, total = load_int(tensor, _KIND) & _LOW, 1
    if rank == 0 or rank > MAX_RANK:
        return 0
    for axis in range(rank):
        length = load_int(load_int(tensor, _LENGTHS), axis)
        total = total * length if max(total, length) < _MOST else 0
    return total


@_inner
def alike(one: int, other: int) -> bool:
    """Have two tensors one dtype and one shape?"""
    same = load_int(one, _KIND) == load_int(other, _KIND)
    for axis in range(load_int(one, _KIND) & _LOW if same else 0):
        same = same and load_int(load_int(one, _LENGTHS), axis) == load_int(load_int(other, _LENGTHS), axis)
    return same


@_inner
def _apart(one: int, size: int, other: int, other_size: int) -> bool:
    """Do tensors of so many bytes share none?"""
    x, y = load_int(one, _ADDRESS), load_int(other, _ADDRESS)
    return x + size <= y or y + other_size <= x


@_inner
def _may_be_written(p: int, g: int, lr: int, a: int, m: int, s: int, size: int, item: int) -> bool:
    """Rule O10: is what is written apart from all else?"""
    return (_apart(p, size, a, size) and _apart(p, size, s, size) and _apart(a, size, s, size)
            and _apart(p, size, g, size) and _apart(a, size, g, size) and _apart(s, size, g, size)
            and _apart(p, size, lr, item) and _apart(a, size, lr, item) and _apart(s, size, lr, item)
            and _apart(p, size, m, item) and _apart(a, size, m, item) and _apart(s, size, m, item))


@_inner
def _have_memory(tensors: int, size: int, item: int) -> bool:
    """Is each storage of torch as large as its tensor needs?"""
    for k in range(_D):
        to = tensors + k * _TENSOR
        needed = item if k in (_LR, _M) else size
        if load_int(to, _BEFORE) * item + needed > load_int(to, _STORAGE):
            return False
    return True


@_inner
def _kernel(args: int, known: int, kind: int) -> int:
    """The address of the kernel; 0 where an attribute is not plain (rule O4), or the kernel not known."""
    d, wd, nesterov, order = (load_int(args, _D), load_int(args, _WD), load_int(args, _NESTEROV),
                              load_int(args, _ORDER))
    true, second = load_int(known, quick.TRUE), load_int(known, quick.ASCEND950)
    if not (_is_number(d, known) and _is_number(wd, known)) or (
            nesterov != true and nesterov != load_int(known, quick.FALSE)) or (
            order != second and order != load_int(known, quick.SPEC)):
        return 0
    float32 = _FLOAT32 << 32
    damped, decay = _rounded(_number(d, known), float32) & 0x7FFFFFFF != 0, _rounded(_number(wd, known), float32)
    if decay > 0x7F800000 and decay != 0x80000000:  # NaN, or a sign of more than a zero
        return 0
    dtype = 0 if kind >> 32 == _FLOAT32 else 1 if kind >> 32 == _FLOAT16 else 2
    variant = int(nesterov == true) | int(decay & 0x7FFFFFFF != 0) << 1 | int(damped) << 2
    return load_int(known, quick.KERNELS + quick.VARIANTS * (3 * int(order == second) + dtype) + variant)


@_inner
def _update(args: int, known: int) -> bool:
    """Run the call if it is plain; was it?"""
    p, torch = on_stack((0,) * 48), load_int(load_int(args, _P), quick.TYPE) != load_int(known, quick.ARRAY)
    g, lr, a, m, s = (p + _G * _TENSOR, p + _LR * _TENSOR, p + _A * _TENSOR, p + _M * _TENSOR, p + _S * _TENSOR)
    if torch and not (_describe_tensor(load_int(args, _P), known, p) and _are_tensors(args, known, p)):
        return False
    for k in range(_D):
        x, to, wanted = load_int(args, k), p + k * _TENSOR, _WRITTEN if k in (_P, _A, _S) else _READ
        if k in (_LR, _M):
            if not _describe_scalar(x, known, torch, wanted, load_int(p, _KIND), to):
                return False
        elif not (_describe(x, known, torch, wanted, to) and alike(p, to)):
            return False
    kind, n = load_int(p, _KIND), _elements(p)
    item, kernel = 4 if kind >> 32 == _FLOAT32 else 2, _kernel(args, known, kind)
    block = plain_run.block_of(known, n)
    if n == 0 or kernel == 0 or block == 0 or not (_may_be_written(p, g, lr, a, m, s, n * item, item)
                                     and (not torch or _have_memory(p, n * item, item))):
        return False
    thread = call_i64(load_int(known, quick.RELEASE_GIL), ()) if n > _HOLD_GIL else 0
    # The kernel rounds the attributes, in IEEE's environment.
    plain_run.run(known, block, kernel, load_int(p, _ADDRESS), load_int(g, _ADDRESS), load_int(a, _ADDRESS),
                  load_int(s, _ADDRESS), n, item, load_int(lr, _ADDRESS), load_int(m, _ADDRESS),
                  _value(load_int(args, _D), known), _value(load_int(args, _WD), known))
    if n > _HOLD_GIL:
        call(load_int(known, quick.TAKE_GIL), (thread,))
    return True


with cache.cached("plain_call") as _cache:

    @numba.cfunc(types.int64(types.int64, types.int64, types.int64), nopython=True, error_model="numpy", cache=_cache)
    def _step(table: int, args: int, count: int) -> int:
        """quick.step as C has it: PyObject *step(PyObject *self, PyObject *const *args, Py_ssize_t nargs)."""
        known, answer = load_int(table, quick.DATA), quick.FALSE
        engine = load_int(args, _ENGINE) if count == _COUNT else 0
        if engine == load_int(known, quick.NONE) or engine == load_int(known, quick.CPU):
            is_tensor = _is_tensor(load_int(args, _P), known)
            if (is_tensor or load_int(load_int(args, _P), quick.TYPE) == load_int(known, quick.ARRAY)) and _update(
                    args, known):
                answer = quick.NONE if is_tensor else quick.TRUE
        result = load_int(known, answer)
        call(load_int(known, quick.KEEP), (result,))
        return result

ADDRESS = _step.address
