"""The compiled step of an optimizer with one group of which nothing but gradients and learning rate has changed.

Python's part of a step takes longer than a kernel of some ten thousand elements. The compiled function asks the group
(ask.py) and its hyperparameters whether they are what they were, and if so updates everything; else it does nothing,
and Python goes the ordinary way. What is to be known of the step stands in a table of words.
"""

from __future__ import annotations

import numba
from numba import types

from samestep.engine import ask, cache, walk
from samestep.engine.calls import call_i64, store_int
from samestep.engine.llvm import call, load_float, load_int

FUNCTIONS = ("PyDict_GetItemWithError", "PyList_Size", "PyList_New", "Py_DecRef", "Py_IncRef", "PyErr_Clear",
             "PyEval_SaveThread", "PyEval_RestoreThread", "PyObject_CallOneArg")
(_GET, _SIZE, _NEW, _DROP, _KEEP, _CLEAR, _RELEASE, _TAKE, _CALL) = range(len(FUNCTIONS))
# NAMES and VALUES are of the group's dict: first the parameters, second the learning rate, then what has to be the same
# object as before.
_KEYS = 9
# SINGLE are rows of single elements, HELD what is held of them: an array's address each, and before it how many.
(FUNCTION_TABLE, JOB, NAMES, VALUES, FLOAT, TRUE, FALSE, STATE, IS_NEG, SINGLE_COUNT, SINGLE, HELD_COUNT, HELD, SCALARS,
 MOMENTUM, KERNEL, SIZES, UNDAMPED, DECAY, STREAM, RUN, TOTAL, LR_SAME, PIECE, THREADS, PARALLEL, THREAD_NUM,
 NUM_THREADS, REGION) = range(29)  # from PARALLEL on: if there are several THREADS, as in threads.Team and walk.py
WORDS = 29
_VALUE = 2  # the word of a float object that holds its value
_HOLD_GIL = 4096  # elements; below, whoever waits for the GIL waits no longer than handing it over takes
_inner = numba.njit(error_model="numpy")


@_inner
def _function(plan: int, k: int) -> int:
    return load_int(load_int(plan, FUNCTION_TABLE), k)


@_inner
def _entry(plan: int, group: int, k: int) -> int:
    """What the group has for a key; 0 for nothing."""
    found = call_i64(_function(plan, _GET), (group, load_int(load_int(plan, NAMES), k)))
    if found == 0:
        call(_function(plan, _CLEAR), ())
    return found


@_inner
def _hyperparameters_are(plan: int, group: int) -> bool:
    """Are they the objects they were, but for a learning rate that is a float and no NaN? That is read."""
    for k in range(1 if load_int(plan, LR_SAME) != 0 else 2, _KEYS):
        if _entry(plan, group, k) != load_int(load_int(plan, VALUES), k):
            return False
    if load_int(plan, LR_SAME) == 0:
        lr = _entry(plan, group, 1)
        if lr == 0 or load_int(lr + ask.OB_TYPE, 0) != load_int(plan, FLOAT):
            return False
        if load_float(lr, _VALUE) != load_float(lr, _VALUE):
            return False
        store_int(load_int(plan, SCALARS), 0, load_int(lr, _VALUE))
    return True


@_inner
def _is_negated(plan: int, x: int) -> bool:
    """Does x.is_neg() say so, or raise?"""
    answer = call_i64(_function(plan, _CALL), (load_int(plan, IS_NEG), x))
    if answer == 0:
        call(_function(plan, _CLEAR), ())
        return True
    call(_function(plan, _DROP), (answer,))
    return answer != load_int(plan, FALSE)


@_inner
def _one_is_negated(plan: int, gradients: int, count: int) -> bool:
    """See exchange.Group: gradients that are new, and of single elements all that is held."""
    job, single = load_int(plan, JOB), load_int(plan, SINGLE)
    get = load_int(load_int(job, ask.FUNCTION_TABLE), 0)
    every = load_int(job, ask.NEW_GRADIENTS) != 0
    for k in range(count if every else load_int(plan, SINGLE_COUNT)):
        if _is_negated(plan, call_i64(get, (gradients, k if every else load_int(single, k)))):
            return True
    found, held = False, load_int(plan, HELD)
    for k in range(load_int(plan, HELD_COUNT)):
        found = found or _is_negated(plan, load_int(held, k))
    return found


@_inner
def _do(plan: int) -> None:
    job, total = load_int(plan, JOB), load_int(plan, TOTAL)
    thread = call_i64(_function(plan, _RELEASE), ()) if total > _HOLD_GIL else 0
    kernel, table, sets, sizes = (load_int(plan, KERNEL), load_int(job, ask.TABLE), load_int(job, ask.SETS),
                                  load_int(plan, SIZES))
    lr, momentum, undamped, decay = (load_int(plan, SCALARS), load_int(plan, MOMENTUM), load_float(plan, UNDAMPED),
                                     load_float(plan, DECAY))
    stream, piece, run, threads = (load_int(plan, STREAM), load_int(plan, PIECE), load_int(plan, RUN),
                                   load_int(plan, THREADS))
    if threads == 1:
        walk.blocks(kernel, table, sets, sizes, lr, momentum, undamped, decay, stream, total, piece, run, 0, 1, 0)
    else:
        walk.on_team(load_int(plan, PARALLEL), load_int(plan, THREAD_NUM), load_int(plan, NUM_THREADS),
                     load_int(plan, REGION), kernel, table, sets, sizes, lr, momentum, undamped, decay, stream, total,
                     piece, run, threads)
    if total > _HOLD_GIL:
        call(_function(plan, _TAKE), (thread,))


@_inner
def _step_group(plan: int, group: int, state: int) -> bool:
    job = load_int(plan, JOB)
    if not _hyperparameters_are(plan, group):
        return False
    params = _entry(plan, group, 0)
    if params == 0 or call_i64(_function(plan, _SIZE), (params,)) != load_int(job, ask.ROWS):
        call(_function(plan, _CLEAR), ())
        return False
    count = load_int(job, ask.SETS)
    gradients = call_i64(_function(plan, _NEW), (count,))
    if gradients == 0:
        call(_function(plan, _CLEAR), ())
        return False
    asked = ask.is_as_it_was(job, params, gradients, state if load_int(plan, STATE) != 0 else 0)
    done = asked and not _one_is_negated(plan, gradients, count)
    if done:
        _do(plan)
    call(_function(plan, _DROP), (gradients,))
    return done


with cache.cached("plain_step") as _cache:

    @numba.cfunc(types.int64(types.int64, types.int64, types.int64), nopython=True, error_model="numpy", cache=_cache)
    def _step(table: int, args: int, count: int) -> int:
        """As C has it: PyObject *step(PyObject *table, PyObject *const *(group, state), 2); True if it is done."""
        plan = load_int(table, 2)  # the data of the NumPy array
        done = count == 2 and _step_group(plan, load_int(args, 0), load_int(args, 1))
        result = load_int(plan, TRUE if done else FALSE)
        call(_function(plan, _KEEP), (result,))
        return result

ADDRESS = _step.address
