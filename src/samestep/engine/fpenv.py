"""The floating-point environment of the calling thread: IEEE 754's default for a while, then the caller's again.

A library built with -ffast-math, torch.set_flush_denormal(True) or fesetround may have changed it (rule O7).
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator
from contextlib import contextmanager

_SIZE = 256  # bytes; larger than fenv_t of any C library


@functools.cache
def _library() -> ctypes.CDLL:
    program = ctypes.CDLL(None)
    return program if hasattr(program, "fesetenv") else ctypes.CDLL("libm.so.6")


@functools.cache
def _ieee() -> ctypes.c_void_p:
    """FE_DFL_ENV: an object of the C library on macOS, the pointer -1 elsewhere."""
    if hasattr(_library(), "_FE_DFL_ENV"):
        return ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(_library(), "_FE_DFL_ENV")))
    return ctypes.c_void_p(-1)


@contextmanager
def default() -> Iterator[None]:
    """Round to nearest even, no flushing of subnormals, no traps; the caller's environment comes back on exit."""
    saved = ctypes.create_string_buffer(_SIZE)
    library = _library()
    library.fegetenv(saved)
    library.fesetenv(_ieee())
    try:
        yield
    finally:
        library.fesetenv(saved)
