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
from samestep.contract import DTYPES, Inputs, Unusual
from samestep.rounding import round_number

# unusual, dtype, shape, address, size, owner: the columns of contract.Inputs
Row = tuple[Unusual | None, str, tuple[int, ...], int, int, Any]

_NUMPY_DTYPES: dict[Any, str] = {np.dtype(np.float32): "float32", np.dtype(np.float16): "float16"}
# Their addresses in the order of DTYPES; that of bfloat16, which other packages define, once an array has come with it.
NATIVE_DTYPES = np.array([*map(id, _NUMPY_DTYPES), 0], np.int64)
_TORCH_DTYPES: dict[Any, str] = {}
_IMMUTABLE = {"jax", "jaxlib", "tensorflow"}  # their arrays may not change, which their old-style capsules cannot say
_NUMBER = Unusual("a Python number")  # until it is rounded to the tensors' dtype

# The address of an array's data stands right behind the object header in the C struct that NumPy's public macros
# read, so its place is part of NumPy's binary interface; reading it there takes a tenth of the time of `.ctypes.data`.
# `_words[k]` is the k-th machine word of memory, counted from address 8 (ctypes takes address 0 for "no pointer").
_words = ctypes.cast(ctypes.c_void_p(8), ctypes.POINTER(ctypes.c_size_t))
_HEADER = object.__basicsize__ - 8
_probe = np.zeros(1)
if ctypes.sizeof(ctypes.c_size_t) != 8 or _words[id(_probe) + _HEADER >> 3] != _probe.ctypes.data:
    raise ImportError("samestep does not know how this Python build lays out NumPy arrays")


def word(x: object, k: int) -> int:
    """The k-th machine word, counted from 0, of the object `x`."""
    return int(_words[(id(x) >> 3) - 1 + k])


def _problem(problem: str) -> Row:
    return (Unusual(problem), "", (), 0, 0, None)


def _numpy(x: Any) -> Row:
    dtype = x.dtype
    flags = x.flags
    return (
        None if flags.carray else Unusual(None, "cpu", flags.c_contiguous, flags.writeable),
        _NUMPY_DTYPES.get(dtype) or _numpy_dtype(dtype), x.shape, _words[id(x) + _HEADER >> 3], x.nbytes, x,
    )


def _numpy_dtype(dtype: np.dtype[Any]) -> str:
    """The name of a dtype seen for the first time; only native byte order has a plain name."""
    if dtype.name == "bfloat16" and dtype.kind == "V" and dtype.itemsize == 2 and dtype.isnative:
        _NUMPY_DTYPES.setdefault(dtype, "bfloat16")
        NATIVE_DTYPES[:] = list(map(id, _NUMPY_DTYPES))[:3]
        return "bfloat16"
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


def _number(value: float) -> Row:
    return (_NUMBER, "", (), 0, 0, value)


def _rounded(value: float, dtype: str) -> Row:
    """A Python number, rounded to nearest even to `dtype`."""
    sign = math.copysign(1.0, value) if value == 0 else 0.0  # 0.0 == -0.0, but they are two numbers here
    array = _scalar(value, sign, dtype)
    return (None, dtype, (), _words[id(array) + _HEADER >> 3], DTYPES[dtype], array)


def _torch(x: Any) -> Row:
    dtype = _TORCH_DTYPES.get(x.dtype) or str(x.dtype).removeprefix("torch.")
    device = None if x.is_cpu else x.device
    if device is not None and device.type != "cuda":
        return (Unusual(device=str(device)), dtype, (), 0, 0, x)
    if x.layout is not _strided() or x.is_nested:
        return _problem(f"a torch tensor of layout {'nested' if x.is_nested else x.layout}")
    if x.is_neg():
        return _problem("a lazily negated torch view; call .resolve_neg()")
    address, item, whole = x.data_ptr(), x.itemsize, x.is_contiguous()
    size = x.numel() * item
    # A functional or efficient-zero tensor has no memory; a storage that was resized may have too little.
    if size and (not address or (whole and x.storage_offset() * item + size > x.untyped_storage().nbytes())):
        return _problem("a torch tensor without memory of its own, or with less than its shape needs")
    if _forward_ad()._current_level >= 0 and _forward_ad().unpack_dual(x).tangent is not None:
        return _problem("a dual tensor of forward-mode differentiation, whose tangent would not follow")
    unusual = None if whole and device is None else Unusual(None, str(device or "cpu"), whole)
    return (unusual, dtype, x.shape, address, size, x)


@functools.cache
def _forward_ad() -> Any:
    return sys.modules["torch"].autograd.forward_ad


@functools.cache
def _strided() -> Any:
    return sys.modules["torch"].strided


def _dlpack(x: Any) -> Row:
    found = dlpack.describe(x)
    writable = found.writable and type(x).__module__.partition(".")[0] not in _IMMUTABLE
    device = found.device if found.device == "cpu" else f"{found.device}, by DLPack"  # for no engine
    unusual = Unusual(None, device, found.contiguous, writable)
    size = math.prod(found.shape) * DTYPES.get(found.dtype, 0)
    return (unusual, found.dtype, found.shape, found.address, size, found)


class _Readers(dict[type, Callable[[Any], Row]]):
    """The reader for each type of object, chosen when the type is first seen."""

    def __missing__(self, kind: type) -> Callable[[Any], Row]:
        torch = sys.modules.get("torch")
        if torch is not None and kind in (torch.Tensor, torch.nn.Parameter):
            _TORCH_DTYPES.update({getattr(torch, name): name for name in DTYPES})
            return self.setdefault(kind, _torch)
        return _reader(kind, torch)


_READERS = _Readers({np.ndarray: _numpy, np.memmap: _numpy, float: _number, int: _number})


def _reader(kind: type, torch: Any) -> Callable[[Any], Row]:
    """The reader for objects that are neither plain NumPy arrays nor plain torch tensors."""
    if issubclass(kind, (int, float)) and kind is not bool:
        return _number
    if issubclass(kind, np.generic):
        return _numpy_scalar
    traced = torch is not None and issubclass(kind, torch.Tensor)
    if traced or issubclass(kind, np.ndarray):
        advice = " (in a graph, call samestep.torch_ops.sgd_)" if traced else ""
        name = f"{kind.__module__}.{kind.__qualname__}"
        return lambda x: _problem(f"a {name}, a subclass whose memory may mean more{advice}")
    if hasattr(kind, "__dlpack__") and hasattr(kind, "__dlpack_device__"):
        return _dlpack
    return lambda x: _problem(f"an object of type {kind.__name__}")


def _row(x: Any) -> Row:
    try:
        return _READERS[type(x)](x)
    except Exception as error:
        return _problem(f"a {type(x).__name__} that cannot be read ({type(error).__name__}: {error})")


def read(objects: Sequence[Any], counts: tuple[int, ...], *, batch: bool) -> Inputs:
    """The facts about all tensors of a call: `counts[k]` objects for each of INPUTS in turn.

    A Python number for learning_rate or momentum is rounded to the dtype of the first of parameters. The addresses
    are good as long as the result is held.
    """
    try:
        rows = [_READERS[type(x)](x) for x in objects]
    except Exception:  # some object cannot be read: look at each on its own
        rows = [_row(x) for x in objects]
    inputs = Inputs(batch, counts, *zip(*rows, strict=True))
    if "" in inputs.dtypes:  # numbers, or objects that are no tensors
        _place_numbers(rows, counts)
        inputs = Inputs(batch, counts, *zip(*rows, strict=True))
    return inputs


def _place_numbers(rows: list[Row], counts: tuple[int, ...]) -> None:
    """Give numbers the dtype they are to be rounded to; a number in a tensor's place is a problem."""
    scalars = (counts[0] + counts[1], len(rows) - counts[5] - 1)
    dtypes = [rows[place][1] for place in (0, *scalars)]
    dtype = next((dtype for dtype in dtypes if dtype in DTYPES), "float32")
    for place, row in enumerate(rows):
        if row[0] is _NUMBER:
            rows[place] = _rounded(row[5], dtype) if place in scalars else _problem(f"the number {row[5]!r}")


def with_tensors(inputs: Inputs, tensors: dict[int, Any]) -> Inputs:
    """The facts with those about the torch tensors given in the place of some rows."""
    rows = list(zip(*inputs[2:], strict=True))
    for place, tensor in tensors.items():
        rows[place] = _torch(tensor)
    return Inputs(inputs.batch, inputs.counts, *zip(*rows, strict=True))


def mark_written(tensors: Iterable[Any]) -> None:
    """Raise the autograd version counter of every torch tensor, as torch's own in-place operations do.

    Tensors made in inference mode have no such counter.
    """
    torch = sys.modules.get("torch")
    if torch is not None:
        for x in tensors:
            if isinstance(x, torch.Tensor) and not x.is_inference():
                torch.autograd.graph.increment_version(x)
