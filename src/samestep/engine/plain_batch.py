"""The compiled half of bulk.py: lists of plain NumPy arrays as the kernel's table."""

from __future__ import annotations

import numba
from numba import types

from samestep.contract import MAX_RANK
from samestep.engine import cache, quick
from samestep.engine.calls import call_i64, store_int
from samestep.engine.llvm import call, load_int, on_stack
from samestep.engine.plain_call import alike, describe_array

# The words of the table: functions of Python, what quick.py knows of it, and the answers.
FUNCTIONS = ("PyList_GetItem", "Py_IncRef")
GET, KEEP, KNOWN, TRUE, FALSE, WORDS = range(6)
_COLUMNS = 4  # the arguments: lists of parameters, gradients, accum and stat, then the table as an array of int64
_TENSOR = 64  # bytes of a described tensor; its words are those of plain_call.py
_ADDRESS, _KIND, _LENGTHS = 0, 2, 3
_READ = quick.C_CONTIGUOUS | quick.ALIGNED
_WRITTEN = _READ | quick.WRITEABLE
_MOST = 1 << 48
_inner = numba.njit(error_model="numpy")


@_inner
def _elements(tensor: int) -> int:
    """How many elements has a described tensor of rank 1 to 8? 0 for other ranks and sizes beyond any memory."""
    rank, total = load_int(tensor, _KIND) & 0xFFFFFFFF, 1
    if rank == 0 or rank > MAX_RANK:
        return 0
    for axis in range(rank):
        length = load_int(load_int(tensor, _LENGTHS), axis)
        total = total * length if length < _MOST and total < _MOST // max(length, 1) else 0
    return total


@_inner
def _read(plan: int, args: int, rows: int, count: int) -> int:
    """Fill `count` rows; the kind of parameters, or 0 where a set is not plain or of another dtype than the first."""
    known, get, kind, total = load_int(plan, KNOWN), load_int(plan, GET), 0, 0
    tensors = on_stack((0,) * 32)
    for i in range(count):
        for k in range(_COLUMNS):
            x = call_i64(get, (load_int(args, k), i))
            if not describe_array(x, known, _READ if k == 1 else _WRITTEN, tensors + k * _TENSOR):
                return 0
            if not alike(tensors, tensors + k * _TENSOR):
                return 0
            store_int(rows, 5 * i + k, load_int(tensors + k * _TENSOR, _ADDRESS))
        elements, kind_here = _elements(tensors), load_int(tensors, _KIND) >> 32
        if elements == 0 or (i != 0 and kind_here != kind):
            return 0
        kind, total = kind_here, total + elements
        store_int(rows, 5 * i + 4, total)
    return kind


with cache.cached("plain_batch") as _cache:

    @numba.cfunc(types.int64(types.int64, types.int64, types.int64), nopython=True, error_model="numpy", cache=_cache)
    def _step(table: int, args: int, count: int) -> int:
        """As C has it: PyObject *read(PyObject *table, PyObject *const *(lists..., rows), 5); True if all is plain."""
        plan, rows = load_int(table, quick.DATA), load_int(args, _COLUMNS)
        sets = load_int(load_int(rows, quick.SHAPE), 0)
        kind = _read(plan, args, load_int(rows, quick.DATA), sets) if count == _COLUMNS + 1 else 0
        result = load_int(plan, TRUE if kind != 0 else FALSE)
        call(load_int(plan, KEEP), (result,))
        return result

ADDRESS = _step.address
