"""NumPy, torch and DLPack objects as plain columns of facts; the only file that looks inside arrays.

Nothing is refused here: an object that cannot be read becomes a row with a `problem`, and contract.py says so.
"""

from __future__ import annotations

import ctypes
import functools
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from samestep import dlpack
from samestep.contract import DTYPES, Inputs, round_number

# problem, device, dtype, contiguous, shape, writable, address, owner: the columns of contract.Inputs
Row = tuple[str | None, str, str, bool, tuple[int, ...], bool, int, Any]

_NUMPY_DTYPES: dict[Any, str] = {np.dtype(np.float32): "float32", np.dtype(np.float16): "float16"}
_TORCH_DTYPES: dict[Any, str] = {}


def _address(x: Any) -> int:
    return int(x.__array_interface__["data"][0])


# The address of an array's data stands right behind the object header in the C struct that NumPy's public macros
# read, so its place is part of NumPy's binary interface; reading it there takes a fifth of the time.
_HEADER = object.__basicsize__
_pointer_at = ctypes.c_void_p.from_address
_probe = np.zeros(1)
if _pointer_at(id(_probe) + _HEADER).value == _address(_probe):

    def _address(x: Any) -> int:
        return _pointer_at(id(x) + _HEADER).value or 0


def _problem(problem: str) -> Row:
    return (problem, "cpu", "", True, (), True, 0, None)


def _numpy(x: Any) -> Row:
    dtype = x.dtype
    name = _NUMPY_DTYPES.get(dtype) or _numpy_dtype(dtype)
    flags = x.flags
    return (None, "cpu", name, flags.c_contiguous, x.shape, flags.writeable, _address(x), x)


def _numpy_dtype(dtype: np.dtype[Any]) -> str:
    """The name of a dtype seen for the first time; only native byte order has a plain name."""
    if dtype.name == "bfloat16" and dtype.kind == "V" and dtype.itemsize == 2:
        return _NUMPY_DTYPES.setdefault(dtype, "bfloat16")
    return dtype.name if dtype.isnative else f"{dtype.name} in foreign byte order ({dtype.str})"


def _numpy_scalar(x: Any) -> Row:
    """A NumPy scalar is a one-element tensor of its own dtype that nobody can write to."""
    array = np.asarray(x)
    array.flags.writeable = False
    return _numpy(array)


@functools.lru_cache(maxsize=64)
def _scalar(value: float, sign: float, dtype: str) -> np.ndarray[Any, Any]:
    bits = round_number(value, dtype)[1]
    return np.array([bits], np.uint32 if DTYPES[dtype] == 4 else np.uint16)


def _number(value: float, dtype: str) -> Row:
    """A Python number, rounded to nearest even to `dtype`."""
    sign = math.copysign(1.0, value) if value == 0 else 0.0  # 0.0 == -0.0, but they are two numbers here
    array = _scalar(value, sign, dtype)
    return (None, "cpu", dtype, True, (), False, _address(array), array)


def _torch(x: Any) -> Row:
    dtype = _TORCH_DTYPES.get(x.dtype) or str(x.dtype).removeprefix("torch.")
    if not x.is_cpu:
        return (None, str(x.device), dtype, True, (), True, 0, x)
    if x.layout is not _strided() or x.is_nested:
        return _problem(f"a torch tensor of layout {'nested' if x.is_nested else x.layout}")
    if x.is_neg():
        return _problem("a lazily negated torch view; call .resolve_neg()")
    return (None, "cpu", dtype, x.is_contiguous(), x.shape, True, x.data_ptr(), x)


@functools.cache
def _strided() -> Any:
    return sys.modules["torch"].strided


def _dlpack(x: Any) -> Row:
    found = dlpack.describe(x)
    return (None, found.device, found.dtype, found.contiguous, found.shape, found.writable, found.address, found)


_READERS: dict[type, Callable[[Any], Row]] = {np.ndarray: _numpy, np.memmap: _numpy}


def _reader(kind: type) -> Callable[[Any], Row]:
    """The reader for objects of a type seen for the first time."""
    torch = sys.modules.get("torch")
    if torch is not None and kind in (torch.Tensor, torch.nn.Parameter):
        if not _TORCH_DTYPES:
            _TORCH_DTYPES.update({getattr(torch, name): name for name in DTYPES})
        return _READERS.setdefault(kind, _torch)
    if issubclass(kind, np.generic):
        return _numpy_scalar
    if issubclass(kind, np.ndarray) or (torch is not None and issubclass(kind, torch.Tensor)):
        return lambda x: _problem(f"a {kind.__module__}.{kind.__qualname__}, a subclass whose memory may mean more")
    if hasattr(kind, "__dlpack__") and hasattr(kind, "__dlpack_device__"):
        return _dlpack
    return lambda x: _problem(f"an object of type {kind.__name__}")


def _row(x: Any) -> Row:
    kind = type(x)
    try:
        return (_READERS.get(kind) or _reader(kind))(x)
    except Exception as error:
        return _problem(f"a {kind.__name__} that cannot be read ({type(error).__name__}: {error})")


def read(columns: Sequence[Sequence[Any]], *, batch: bool) -> Inputs:
    """The facts about all tensors of a call; `columns` are the objects of each input, in the order of INPUTS.

    A Python number for learning_rate or momentum is rounded to the dtype of the first of parameters. The addresses
    are good as long as the result is held.
    """
    rows = [[_row(x) for x in column] for column in columns]
    for k in (2, 4):
        value = columns[k][0]
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            others = (row[2] for row in (*rows[0][:1], *rows[6 - k]) if row[2] in DTYPES)
            rows[k] = [_number(value, next(others, "float32"))]
    facts = zip(*(row for column in rows for row in column), strict=True)
    return Inputs(batch, tuple(map(len, rows)), *facts)


def mark_written(tensors: Iterable[Any]) -> None:
    """Raise the autograd version counter of every torch tensor, as torch's own in-place operations do.

    Tensors made in inference mode have no such counter.
    """
    torch = sys.modules.get("torch")
    if torch is not None:
        for x in tensors:
            if isinstance(x, torch.Tensor) and not x.is_inference():
                torch.autograd.graph.increment_version(x)
