"""Reading what a DLPack capsule says of a tensor, without consuming it.

NumPy's own reader knows no bfloat16 and cannot tell a writable old-style capsule, so the C struct is read here. A
capsule that is not consumed frees itself when it is dropped, which is all the ownership an in-place call needs.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

_CPU = 1  # kDLCPU; pinned host memory (3, 11) belongs to its accelerator's streams and is refused with the rest
_DEVICES = {2: "cuda", 3: "cuda_host", 4: "opencl", 7: "vulkan", 8: "metal", 10: "rocm", 11: "rocm_host",
            13: "cuda_managed", 14: "oneapi"}
_DTYPES = {(2, 32): "float32", (2, 16): "float16", (4, 16): "bfloat16"}
_KINDS = {0: "int", 1: "uint", 2: "float", 3: "handle", 4: "bfloat", 5: "complex", 6: "bool"}
_READ_ONLY, _COPIED = 1, 2
EXCHANGE_TABLE, EXCHANGE_MAJOR = "__dlpack_c_exchange_api__", 1
_FUNCTION = 5  # its word in the table, after version, previous table, allocator and two converters


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", _Tensor),
    ]


class Description(NamedTuple):
    """What a capsule says of its tensor; `capsule` keeps the memory alive."""

    device: str
    dtype: str
    contiguous: bool
    shape: tuple[int, ...]
    writable: bool
    address: int
    capsule: Any


def describe(x: Any) -> Description:
    """Read the tensor that `x` exports. Raises what the exporter raises, and BufferError for a copy."""
    device_type, device_id = x.__dlpack_device__()
    if int(device_type) != _CPU:
        device = _DEVICES.get(int(device_type), f"DLPack device {int(device_type)}")
        return Description(f"{device}:{device_id}", "", True, (), True, 0, None)
    try:
        capsule = x.__dlpack__(max_version=(1, 1), copy=False)
    except TypeError:  # an exporter from before DLPack 1.0
        capsule = x.__dlpack__()
    versioned = _pointer(capsule, b"dltensor_versioned")
    if versioned:
        managed = _Versioned.from_address(versioned)
        if managed.major != 1:
            raise BufferError(f"DLPack version {managed.major}.{managed.minor} is not known")
        flags, tensor = int(managed.flags), managed.tensor
    else:
        flags, tensor = 0, _Tensor.from_address(_pointer(capsule, b"dltensor") or _bad(capsule))
    if flags & _COPIED:
        raise BufferError("it exports a copy, so writes would be lost")
    if tensor.ndim and not tensor.shape:
        raise BufferError("it exports no lengths")
    shape = tuple(tensor.shape[: tensor.ndim])
    if not tensor.data and 0 not in shape:
        raise BufferError("it exports no memory")
    dtype = _DTYPES.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if dtype is None:
        dtype = f"{_KINDS.get(tensor.code, tensor.code)}{tensor.bits}" + f"x{tensor.lanes}" * (tensor.lanes != 1)
    address = (tensor.data or 0) + tensor.byte_offset
    return Description("cpu", dtype, _contiguous(shape, tensor), shape, not flags & _READ_ONLY, address, capsule)


def _pointer(capsule: Any, name: bytes) -> int | None:
    api = ctypes.pythonapi
    valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_IsValid", api))
    if not valid(capsule, name):
        return None
    get = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", api))
    return int(get(capsule, name))


def _bad(capsule: Any) -> int:
    raise BufferError(f"__dlpack__ returned {capsule!r}, which is no DLPack capsule")


def _contiguous(shape: tuple[int, ...], tensor: _Tensor) -> bool:
    if not tensor.strides or 0 in shape:
        return True
    expected = 1
    for length, stride in zip(reversed(shape), reversed(tensor.strides[: len(shape)]), strict=True):
        if length != 1 and stride != expected:
            return False
        expected *= length
    return True


def describer(kind: type) -> int:
    """The address of the C function by which objects of a type are described without a capsule; 0 if it has none.

    It is dltensor_from_py_object_no_sync(PyObject *, DLTensor *) of the DLPackExchangeAPI that the type carries. Only a
    table of DLPack 1 is read.
    """
    table = getattr(kind, EXCHANGE_TABLE, None)
    address = _pointer(table, b"dlpack_exchange_api") if type(table).__name__ == "PyCapsule" else None
    if address is None:
        return 0
    words = (ctypes.c_uint64 * (_FUNCTION + 1)).from_address(address)
    return int(words[_FUNCTION]) if words[0] & 0xFFFFFFFF == EXCHANGE_MAJOR else 0
