"""Compiled code as a function of Python's, called without a word of Python in between."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

_FASTCALL = 0x80
_kept: list[Any] = []  # method definitions, which have to outlive their functions


class _Method(ctypes.Structure):
    """PyMethodDef."""

    _fields_ = [("name", ctypes.c_char_p), ("address", ctypes.c_void_p), ("flags", ctypes.c_int),
                ("doc", ctypes.c_char_p)]


def method_of(name: str, address: int) -> int:
    """The address of a definition of PyObject *f(PyObject *table, PyObject *const *arguments, Py_ssize_t count)."""
    method = _Method(name.encode(), address, _FASTCALL, None)
    _kept.append(method)
    return ctypes.addressof(method)


def function_of(method: int, table: np.ndarray[Any, np.dtype[np.int64]]) -> Callable[..., Any]:
    """A function that hands `table`, which it keeps alive, and its arguments to the compiled code."""
    new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
    made: Callable[..., Any] = new(("PyCFunction_NewEx", ctypes.pythonapi))(method, table, None)
    return made


def addresses_of(names: tuple[str, ...]) -> list[int]:
    """Where functions of Python's C interface are."""
    return [ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0 for name in names]
