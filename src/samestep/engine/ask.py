"""Compiled questions to Python's torch tensors: is a whole parameter group what it was, and where are its gradients?

Everything goes through public C functions, whose addresses stand in a table (`FUNCTIONS` names them): those of Python,
and of DLPack's exchange table, which describes a tensor without allocating anything. The GIL is held. A question that
fails sets Python's error indicator, which is cleared: the answer is no then.

A record of `RECORD` words describes each parameter of the group. Records are in the order of the state's dict, so that
one walk through that meets them all. Words 10 .. 15 are addresses seen last time, which are only prefetched (of a large
group every tensor has left the caches since the last step).
"""

from __future__ import annotations

from typing import Any

import numba
from numba import types

from samestep.engine import cache
from samestep.engine.calls import call_i32, call_i64, prefetch, store_int
from samestep.engine.llvm import load_int, on_stack

FUNCTIONS = ("PyList_GetItem", "PyList_SetItem", "PyDict_Next", "PyDict_GetItemWithError", "PyObject_GetAttr",
             "Py_DecRef", "PyErr_Clear")  # then the exchange table's dltensor_from_py_object_no_sync
RECORD = 18
(PARAMETER, TYPE, BUFFER, STAT, P_DTYPE, G_DTYPE, B_DTYPE, S_DTYPE, DIMS, HAS_GRADIENT,
 P_SEEN, G_SEEN, B_SEEN, S_SEEN, G_OBJECT, STATE_OBJECT, PLACE, SET) = range(RECORD)
# PLACE is in the list of parameters, SET in the table. A job's words: ROWS counts all parameters, SETS those with a
# gradient; DEVICE is DLPack's device type and number; START is where in the state's dict the group begins.
JOB = 13
(FUNCTION_TABLE, ROWS, SETS, RECORDS, TABLE, DEVICE, TENSOR_TYPE, NONE, GRAD_NAME, BUFFER_NAME, STAT_NAME, START,
 NEW_GRADIENTS) = range(JOB)
OB_TYPE = object.__basicsize__ - 8  # where an object's type stands in a build with a GIL
_ints = [types.int64]

with cache.cached("ask") as _cache:
    _jit: dict[str, Any] = {"error_model": "numpy", "cache": _cache}

    @numba.njit(types.boolean(*_ints * 6), **_jit)
    def _is(functions: int, x: int, dtype: int, device: int, dims: int, told: int) -> bool:
        """Is `x` a dense contiguous tensor of that device and dtype (with its rank), and of the sizes at `dims`?

        `told` is a DLTensor to be filled in: data, device, rank and dtype, shape, strides, byte offset.
        """
        if call_i32(load_int(functions, 7), (x, told)) != 0:
            call_i64(load_int(functions, 6), ())
            return False
        if load_int(told, 1) != device or load_int(told, 2) != dtype or load_int(told, 5) != 0:
            return False
        shape, strides, whole = load_int(told, 3), load_int(told, 4), 1
        for k in range((dtype & 0xFFFFFFFF) - 1, -1, -1):
            size = load_int(shape, k)
            if size != load_int(dims, k) or (size != 1 and load_int(strides, k) != whole):
                return False
            whole *= size
        return load_int(told, 0) != 0

    @numba.njit(types.boolean(*_ints * 5), **_jit)
    def _state_is(job: int, record: int, found: int, row: int, told: int) -> bool:
        """Does the parameter's state, the dict `found`, hold the tensors it held, where they were?"""
        functions, device = load_int(job, FUNCTION_TABLE), load_int(job, DEVICE)
        for k in range(2):
            known = load_int(record, BUFFER + k)
            if known != 0:
                x = call_i64(load_int(functions, 3), (found, load_int(job, BUFFER_NAME + k)))
                if x != known:
                    call_i64(load_int(functions, 6), ())
                    return False
                if not _is(functions, x, load_int(record, B_DTYPE + k), device, load_int(record, DIMS), told):
                    return False
                if load_int(told, 0) != load_int(row, 2 + k):
                    return False
                store_int(record, B_SEEN + k, load_int(told, 3))
        return True

    @numba.njit(types.int64(*_ints * 3), **_jit)
    def _next_state(job: int, cursor: int, p: int) -> int:
        """The state of parameter `p`, further on in the dict; 0 if there is none."""
        functions, state = load_int(job, FUNCTION_TABLE), load_int(cursor, 3)
        before = load_int(cursor, 0)
        while call_i32(load_int(functions, 2), (state, cursor, cursor + 8, cursor + 16)) != 0:
            if load_int(cursor, 1) == p:
                store_int(cursor, 4, before)
                return load_int(cursor, 2)
            before = load_int(cursor, 0)
        return 0

    @numba.njit(types.boolean(*_ints * 6), **_jit)
    def _gradient_is(job: int, record: int, p: int, row: int, gradients: int, told: int) -> bool:
        """Put p.grad into the list `gradients` and its address into the table, if it is of the kind it was."""
        functions = load_int(job, FUNCTION_TABLE)
        g = call_i64(load_int(functions, 4), (p, load_int(job, GRAD_NAME)))
        if g == 0:
            call_i64(load_int(functions, 6), ())
            return False
        has_gradient = load_int(record, HAS_GRADIENT) != 0
        if not has_gradient or load_int(g + OB_TYPE, 0) != load_int(job, TENSOR_TYPE):
            call_i64(load_int(functions, 5), (g,))
            return g == load_int(job, NONE) and not has_gradient
        call_i32(load_int(functions, 1), (gradients, load_int(record, SET), g))  # the list holds the reference now
        if not _is(functions, g, load_int(record, G_DTYPE), load_int(job, DEVICE), load_int(record, DIMS), told):
            return False
        if load_int(record, G_OBJECT) != g or load_int(row, 1) != load_int(told, 0):
            store_int(job, NEW_GRADIENTS, 1)
        store_int(record, G_OBJECT, g)
        store_int(record, G_SEEN, load_int(told, 3))
        store_int(row, 1, load_int(told, 0))
        return True

    @numba.njit(types.boolean(*_ints * 4), **_jit)
    def is_as_it_was(job: int, parameters: int, gradients: int, state: int) -> bool:
        """Are the parameters in that list, their state in that dict and the kinds of their gradients as recorded?

        The list `gradients` is filled with those there are, the table with their addresses; NEW_GRADIENTS says whether
        any is another object or elsewhere than last time. `state` is 0 for a group without state.
        """
        functions, records, is_first = load_int(job, FUNCTION_TABLE), load_int(job, RECORDS), True
        told = on_stack((0, 0, 0, 0, 0, 0))
        cursor = on_stack((load_int(job, START), 0, 0, state, 0))  # place, key, value, dict, the place before
        store_int(job, NEW_GRADIENTS, 0)
        for i in range(load_int(job, ROWS)):
            record = records + 8 * RECORD * i
            for k in range(P_SEEN, STATE_OBJECT + 1):
                prefetch(load_int(record, k))
            p, row = load_int(record, PARAMETER), load_int(job, TABLE) + 40 * load_int(record, SET)
            if call_i64(load_int(functions, 0), (parameters, load_int(record, PLACE))) != p:
                return False
            if load_int(p + OB_TYPE, 0) != load_int(record, TYPE):
                return False
            if not _gradient_is(job, record, p, row, gradients, told):
                return False
            if load_int(record, HAS_GRADIENT) == 0:
                continue
            if not _is(functions, p, load_int(record, P_DTYPE), load_int(job, DEVICE), load_int(record, DIMS), told):
                return False
            if load_int(told, 0) != load_int(row, 0):
                return False
            store_int(record, P_SEEN, load_int(told, 3))
            if state != 0:
                found = _next_state(job, cursor, p)
                if found == 0 or not _state_is(job, record, found, row, told):
                    return False
                if is_first:
                    store_int(job, START, load_int(cursor, 4))
                    is_first = False
                store_int(record, STATE_OBJECT, found)
        return True
