"""A whole parameter group asked in one compiled call whether it is what it was; see engine/ask.py.

torch from 2.10 on describes a tensor through DLPack's exchange table of C functions, without a call of Python's for
every question. Where there is no such table, guards.py asks in Python.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import sysconfig
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from samestep import dlpack
from samestep.engine import cpu
from samestep.engine.python_function import addresses_of

_NAMES = ("momentum_buffer", "accum", "stat", "grad")


@functools.cache
def functions() -> Any | None:
    """The addresses of ask.FUNCTIONS and of the table's function, or None where something is missing or unknown."""
    function = dlpack.describer(Tensor)
    if not function or sysconfig.get_config_var("Py_GIL_DISABLED") or cpu.unavailable() is not None:
        return None  # no table, another layout of objects, or no numba
    return np.array([*addresses_of(_ask().FUNCTIONS), function], np.int64)


@functools.cache
def _ask() -> Any:
    from samestep.engine import cache

    return cache.build("ask", lambda _: importlib.import_module("samestep.engine.ask"))


class Group:
    """Tensors of one group, all dense and contiguous on one device, and the kernel's table of their addresses.

    `job` is the address of what ask.is_as_it_was is given.
    """

    def __init__(
        self, everything: Sequence[Tensor], columns: Sequence[Sequence[Tensor]], names: Sequence[str], table: Any,
        state: Mapping[Tensor, Any],
    ) -> None:
        """`everything` is the group's list of parameters; `columns` are those with a gradient, gradients and state.

        `names` are the keys of the tensors in `state`. `table` is the kernel's; gradients' addresses are put into it.
        """
        ask = _ask()
        self._table = table
        self._columns = [columns[0], *columns[2:]]  # what is held, and known to be where it is: no gradients
        self._single = [k for k, p in enumerate(columns[0]) if p.numel() == 1]
        self._dims = np.array([size for p in columns[0] for size in p.shape], np.int64)
        self._records = np.zeros((len(everything), ask.RECORD), np.int64)
        self._describe(everything, columns, state)
        known = functions()
        assert known is not None
        words: dict[int, int] = {
            ask.FUNCTION_TABLE: known.ctypes.data, ask.ROWS: len(everything),
            ask.SETS: len(table), ask.RECORDS: self._records.ctypes.data,
            ask.TABLE: table.ctypes.data, ask.DEVICE: told(columns[0][0])[1], ask.TENSOR_TYPE: id(Tensor),
            ask.NONE: id(None), ask.GRAD_NAME: id(_NAMES[-1]),
        }
        # The keys' addresses are of this module's strings, which live as long as it does.
        words |= {ask.BUFFER_NAME + k: id(_NAMES[_NAMES.index(name)]) for k, name in enumerate(names)}
        self._job = np.zeros(ask.JOB, np.int64)
        self._job[list(words)] = list(words.values())
        self.job = self._job.ctypes.data
        self._is_as_it_was, self._start, self._new = ask.is_as_it_was, ask.START, ask.NEW_GRADIENTS

    def _describe(self, everything: Sequence[Tensor], columns: Sequence[Sequence[Tensor]],
                  state: Mapping[Tensor, Any]) -> None:
        ask, records = _ask(), self._records
        records[:, ask.PARAMETER] = list(map(id, everything))
        records[:, ask.TYPE] = [id(type(p)) for p in everything]
        records[:, ask.PLACE] = range(len(everything))
        present = [k for k, p in enumerate(everything) if p.grad is not None]
        ranks = np.fromiter(map(Tensor.dim, columns[0]), np.int64, len(present))
        records[present, ask.HAS_GRADIENT], records[present, ask.SET] = 1, range(len(present))
        records[present, ask.DIMS] = self._dims.ctypes.data + 8 * (np.cumsum(ranks) - ranks)
        for k, column in enumerate(columns):
            codes = {dtype: told(x)[2] >> 32 << 32 for dtype, x in {x.dtype: x for x in column}.items()}
            records[present, ask.P_DTYPE + k] = ranks | np.array([codes[x.dtype] for x in column])
            if k >= 2:  # state, after parameters and gradients
                records[present, ask.BUFFER + k - 2] = list(map(id, column))
        turns = {id(p): turn for turn, p in enumerate(state)}
        self._records[:] = records[np.argsort([turns.get(id(p), -1) for p in everything], kind="stable")]

    def gradients(self, params: list[Tensor], state: Mapping[Tensor, Any]) -> list[Tensor] | None:
        """The gradients of now, if nothing but they can have changed, and they not in kind; else None.

        Their addresses are in the table then. They may be new objects, elsewhere in memory.
        """
        if type(params) is not list or len(params) != len(self._records) or not isinstance(state, dict):
            return None
        found: list[Any] = [None] * len(self._table)
        owner = id(state) if len(self._columns) > 1 else 0
        if not self._is_as_it_was(self.job, id(params), id(found), owner):
            if not self._job[self._start]:
                return None
            self._job[self._start] = 0  # the state's dict may have changed: look from its beginning
            if not self._is_as_it_was(self.job, id(params), id(found), owner):
                return None
        return None if self._is_negated(found) else found

    def single_elements(self) -> tuple[list[Tensor], list[int]]:
        """The tensors that are held of parameters with one element, and those parameters' places."""
        return [column[k] for k in self._single for column in self._columns], self._single

    def _is_negated(self, gradients: Sequence[Tensor]) -> bool:
        """Is any tensor a lazily negated view, of which the exchange table says nothing?

        One that is where it was, contiguous as it was, can have become one only if it has a single element (for its
        stride is free, so it may be the imaginary part of a conjugate), or by torch's own internals.
        """
        if self._job[self._new] and any(map(Tensor.is_neg, gradients)):
            return True
        return any(x.is_neg() for x in (*self.single_elements()[0], *(gradients[k] for k in self._single)))


def told(tensor: Tensor) -> Any:
    """A DLTensor as six words: address, device, rank and dtype, shape, strides, byte offset."""
    words = (ctypes.c_uint64 * 6)()
    known = functions()
    assert known is not None
    describe = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)(int(known[-1]))
    describe(tensor, ctypes.addressof(words))
    return words
