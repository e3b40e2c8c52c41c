"""The quick way through `sgd_` for the plainest of calls: one compiled function that recognises them and runs them.

What `sgd_` does in Python around its kernel takes as long as a kernel of some ten thousand elements. The compiled
function (plain_call.py) reads its arguments as C code would, and where all is plain it updates them: NumPy arrays, or
torch tensors, of one known dtype, C-contiguous, of one shape, apart from each other. It refuses nothing: whatever it
does not recognise it leaves as it is for the ordinary way, which does it or says what is wrong.

It knows no kernels but those that the ordinary way built before. Where words of arrays, numbers or tensors are not
where the public C structs of NumPy, Python and DLPack have them, it stays off, which changes no bit either.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import operator
import os
import struct
import sys
import sysconfig
from collections.abc import Callable
from typing import Any

import numpy as np

from samestep import arrays, dlpack, tiling
from samestep.contract import DTYPES, ORDERS
from samestep.engine import python_function, threads
from samestep.engine.batch import Kernel

# Words of eight bytes of an object. After the reference count and the type comes the value of a float, or what
# PyArrayObject_fields has (numpy/ndarraytypes.h, the same in NumPy 1.26 and 2).
TYPE, VALUE = 1, 2
DATA, RANK, SHAPE, STRIDES, BASE, DTYPE, FLAGS = range(2, 9)
C_CONTIGUOUS, ALIGNED, WRITEABLE = 0x1, 0x100, 0x400
UNSURE = 0x2000 | 0x80000000  # written back to another array later; warns at the first write

# The words of the table that tells the compiled function of this process: objects, C functions, addresses of kernels.
(ARRAY, FLOAT, ZERO, TRUE, FALSE, NONE, CPU, SPEC, ASCEND950, KEEP, DROP, CALL, INTEGER, CLEAR_ERROR,
 RELEASE_GIL, TAKE_GIL, NATIVE_DTYPES, TENSOR, PARAMETER, EXCHANGE, IS_NEG, UNTYPED_STORAGE, NBYTES, STORAGE_OFFSET,
 LEVEL, FORWARD_AD, ASK, CORES, PARALLEL, THREAD_NUM, NUM_THREADS, REGION, FIXED_THREADS, CACHE, PROCESS, HOME,
 KERNELS) = range(37)
VARIANTS = 8  # places for one order and dtype: nesterov | weight_decay << 1 | dampening << 2
_OBJECTS = {ARRAY: np.ndarray, FLOAT: float, ZERO: 0, TRUE: True, FALSE: False, NONE: None,
            CPU: sys.intern("cpu"), SPEC: sys.intern("spec"), ASCEND950: sys.intern("ascend950")}
_FUNCTIONS = {KEEP: "Py_IncRef", DROP: "Py_DecRef", CALL: "PyObject_CallOneArg", ASK: "PyObject_CallNoArgs",
              INTEGER: "PyLong_AsSsize_t", CLEAR_ERROR: "PyErr_Clear", RELEASE_GIL: "PyEval_SaveThread",
              TAKE_GIL: "PyEval_RestoreThread"}
DLPACK_DTYPES = {"float32": 0x00012002, "float16": 0x00011002, "bfloat16": 0x00011004}  # lanes, bits, kind

_known = np.zeros(KERNELS + len(ORDERS) * len(DTYPES) * VARIANTS, np.int64)
_kept: list[Any] = []  # as long as the process lives
PATIENCE = 10  # calls; compiling takes seconds, once an installation, and a script that calls less does without
_calls = itertools.count(1)


def _nothing(*arguments: Any) -> bool | None:
    """`step` as long as there is no compiled one."""
    return False


def count_call() -> None:
    """A call has gone the ordinary way: after some of these `step` is compiled."""
    global step  # noqa: PLW0603  (one per process)
    if step is _nothing and _known[KERNELS:].any() and next(_calls) >= PATIENCE and layout_is_known():
        step = _compiled()


# step(parameters, gradient, learning_rate, accum, momentum, stat, dampening, weight_decay, nesterov, order, engine):
# True if that update is done, None if it is and mark_written has to know of it, False if nothing is done.
step: Callable[..., bool | None] = _nothing


def _unknown(tensors: Any) -> None:
    """`mark_written` as long as torch is not known."""


mark_written: Callable[[Any], None] = _unknown  # torch tensors, of which those of inference mode have no version


def know(kernel: Kernel, address: int) -> None:
    """From now on `step` may run this kernel, if it is one of the operator's."""
    if kernel.rule == "cann":
        place = ORDERS.index(kernel.order) * len(DTYPES) + list(DTYPES).index(kernel.dtype)
        _known[KERNELS + VARIANTS * place + (tiling.encode(kernel.key) >> 1)] = address


def _compiled() -> Callable[..., bool | None]:
    """The compiled function as one of Python's; its `self` is the table."""
    from samestep.engine import cache

    def load(_: bool) -> int:
        from samestep.engine import plain_call

        return int(plain_call.ADDRESS)

    return python_function.function_of(python_function.method_of("step", cache.build("plain_call", load)), known())


@functools.cache
def known() -> np.ndarray[Any, np.dtype[np.int64]]:
    """The table of what the compiled functions know, filled in but for kernels and torch."""
    for place, value in _OBJECTS.items():
        _known[place] = id(value)
    _known[list(_FUNCTIONS)] = python_function.addresses_of(tuple(_FUNCTIONS.values()))
    _known[NATIVE_DTYPES] = arrays.NATIVE_DTYPES.ctypes.data
    return _known


@functools.cache
def layout_is_known() -> bool:
    """Is every word that the compiled function reads where it is expected, in arrays of all kinds and in floats?"""
    if sys.byteorder != "little" or sysconfig.get_config_var("Py_GIL_DISABLED") or object.__basicsize__ != 16:
        return False
    first = np.arange(24.0, dtype=np.float32).reshape(2, 3, 4)
    frozen = np.zeros((5, 1), np.float16)
    frozen.flags.writeable = False
    unaligned = np.frombuffer(bytearray(33), np.float64, 4, 1)
    probes = [first, first[1:], first.T, first[:, ::2], np.zeros(()), np.zeros((3, 0), np.int32), frozen, unaligned,
              np.ones((2, 3), np.float16, "F"), np.zeros((1,) * 9, np.uint8)]
    return all(map(_is_laid_out, probes)) and all(
        arrays.word(x, VALUE) == struct.unpack("Q", struct.pack("d", x))[0] for x in (0.1, -0.0, 5e-324, 1e308))


def _is_laid_out(x: Any) -> bool:
    words = ctypes.c_int64 * x.ndim
    flags = arrays.word(x, FLAGS)
    return (
        arrays.word(x, TYPE) == id(type(x)) and arrays.word(x, DATA) == x.ctypes.data
        and arrays.word(x, RANK) & 0xFFFFFFFF == x.ndim and arrays.word(x, DTYPE) == id(x.dtype)
        and arrays.word(x, BASE) == (0 if x.base is None else id(x.base))
        and (not x.ndim or (tuple(words.from_address(arrays.word(x, SHAPE))) == x.shape
                            and tuple(words.from_address(arrays.word(x, STRIDES))) == x.strides))
        and bool(flags & C_CONTIGUOUS) == x.flags.c_contiguous and bool(flags & ALIGNED) == x.flags.aligned
        and bool(flags & WRITEABLE) == x.flags.writeable and not flags & UNSURE
    )


@functools.cache
def meet_team(team: threads.Team, region: int, cache: int) -> None:
    """From now on `step` may run large tensors on torch's team of threads, `region` on each; see walk.py.

    `cache` are the bytes of the last cache.
    """
    getpid, cores = ctypes.CDLL(None).getpid, sys.modules["torch"].get_num_threads  # teams are found on Linux only
    _kept.append(cores)
    _known[[THREAD_NUM, NUM_THREADS, REGION]] = team.thread_num, team.num_threads, region
    _known[[CORES, FIXED_THREADS, CACHE]] = id(cores), threads.FIXED, cache
    _known[[PROCESS, HOME]] = ctypes.cast(getpid, ctypes.c_void_p).value or 0, os.getpid()
    _known[PARALLEL] = team.parallel  # last, since other threads may be in `step` already


@functools.cache
def meet(kind: type) -> None:
    """A tensor of this type has been updated: if it is torch's, `step` may from now on know torch's tensors.

    For that torch must have DLPack's table of C functions.
    """
    global mark_written  # noqa: PLW0603  (torch's, once there is one)
    torch = sys.modules.get("torch")
    if torch is None or not kind.__module__.startswith("torch") or kind not in (torch.Tensor, torch.nn.Parameter):
        return
    function = dlpack.describer(torch.Tensor)
    if function and _describes(torch, function):
        objects = {TENSOR: torch.Tensor, PARAMETER: torch.nn.Parameter, IS_NEG: torch.Tensor.is_neg,
                   UNTYPED_STORAGE: torch.Tensor.untyped_storage, NBYTES: torch.UntypedStorage.nbytes,
                   STORAGE_OFFSET: torch.Tensor.storage_offset, LEVEL: operator.attrgetter("_current_level"),
                   FORWARD_AD: torch.autograd.forward_ad}
        _kept.append(objects)
        mark_written = torch.autograd.graph.increment_version
        _known[EXCHANGE] = function
        _known[list(objects)] = list(map(id, objects.values()))  # last, since other threads may be in `step` already


def _describes(torch: Any, function: int) -> bool:
    """Does the C function describe tensors as they are? Not where a mode of torch's gets between, either."""
    try:
        first = torch.ones((2, 3, 4), dtype=torch.float32, device="cpu")
        probes = [first, first[1:], first.mT, first[0, 0, 0].half(), first[0, 0].bfloat16(), torch.nn.Parameter(first)]
        return all(_is_described(function, x) for x in probes)
    except Exception:
        return False


def _is_described(function: int, x: Any) -> bool:
    words = (ctypes.c_int64 * 6)()
    describe = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)(function)
    if describe(x, ctypes.addressof(words)) != 0:
        return False
    address, device, kind, shape, strides, offset = words
    lengths = ctypes.c_int64 * x.dim()
    return (
        (address, device, offset) == (x.data_ptr(), 1, 0)
        and kind == x.dim() | DLPACK_DTYPES[str(x.dtype).removeprefix("torch.")] << 32
        and (not x.dim() or (tuple(lengths.from_address(shape)) == tuple(x.shape)
                             and tuple(lengths.from_address(strides)) == x.stride()))
    )
