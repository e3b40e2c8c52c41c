"""Tensors in .bin, .npy, .npz, .safetensors and .pt files, read as data and never as code.

Every size that a header declares is compared with the bytes that are there, and charged to the folder's limit, before
memory for it is taken. Pickles are read by torch's restricted unpickler only (`weights_only`), NumPy's object arrays
not at all.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from samestep.verify.dumps import archives
from samestep.verify.dumps.files import DumpError, Folder, reason
from samestep.verify.patterns import TYPES, WORDS

HEADER = 100_000  # bytes that the header of a .safetensors file, or the pickle in a .pt file, may have
_RAW = ("V2", "u2", "u4", "u8", "i2", "i4", "i8")
_SAFETENSORS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "F64": "float64"}


class Found(NamedTuple):
    """A tensor in a file: its array (native byte order) and the name of its dtype.

    The dtype is None for raw words, 2, 4 or 8 bytes wide, of which the file does not say what they are (unsigned
    integers, or NumPy's void, which is how it stores bfloat16).
    """

    array: NDArray[Any]
    dtype: str | None


class Tensors(NamedTuple):
    """The tensors of a file by name; one that has no name of its own goes by "" (.npy, a tensor alone in a .pt)."""

    names: list[str]
    get: Callable[[str], Found]


def open_tensors(folder: Folder, name: str) -> Tensors:
    """The tensors of the file `name` by its suffix; raw .bin files, which need a dtype and a shape, are not among them.

    Raises `DumpError` for an unknown suffix, a damaged or lying file, and whatever would have to be executed.
    """
    suffix = name[name.rfind("."):].lower()
    if suffix not in READERS:
        raise DumpError(f"{name!r} is of no known format; accepted: .bin (with dtype and shape), {', '.join(READERS)}")
    return READERS[suffix](folder, name)


def read_bin(folder: Folder, name: str, dtype: str, shape: tuple[int, ...], offset: int | None) -> Found:
    """The raw words of one tensor, little-endian in C order, from `offset` (bytes) on; exactly the file without one."""
    needed = math.prod(shape) * np.dtype(TYPES[dtype]).itemsize
    if offset is None:
        file, size = folder.open(name)
        file.close()
        if size != needed:
            raise DumpError(f"{name!r} has {size} bytes, but {dtype} of shape {list(shape)} has {needed}; an 'offset' "
                            "says where in a longer file the tensor begins")
    data = folder.read(name, offset or 0, needed)
    return _little_endian(data, dtype, shape)


def _little_endian(data: Any, dtype: str, shape: Any) -> Found:
    words = np.frombuffer(data, np.dtype(WORDS[dtype]).newbyteorder("<")).astype(WORDS[dtype], copy=False)
    return Found(words.view(TYPES[dtype]).reshape(shape), dtype)


def _npy(folder: Folder, name: str) -> Tensors:
    data = folder.read(name)
    return Tensors([""], lambda _: _parse_npy(data, name))


def _parse_npy(data: bytes | bytearray, name: str) -> Found:
    """A .npy file in memory: its header must describe exactly the bytes that follow it."""
    file = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(file)
        parse = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        shape, fortran, dtype = parse(file)
    except KeyError:
        raise DumpError(f"{name!r} is a .npy file of version {version}; accepted: versions (1, 0) and (2, 0)") from None
    except Exception as error:  # the header is text that NumPy parses as Python literals, so much may be raised
        raise DumpError(f"{name!r} has no readable .npy header: {reason(error)}") from None
    dtype_name = _numpy_dtype(dtype, name)
    if any(isinstance(dim, bool) or dim < 0 for dim in shape):
        raise DumpError(f"{name!r} declares the shape {shape}; accepted: lengths of 0 or more")
    needed, there = math.prod(shape) * dtype.itemsize, len(data) - file.tell()
    if needed != there:
        raise DumpError(f"{name!r} declares {dtype} of shape {shape}, {needed} bytes; {there} follow its header")
    array = np.frombuffer(data, dtype, offset=file.tell()).reshape(shape, order="F" if fortran else "C")
    return Found(array.astype(dtype.newbyteorder("="), copy=False), dtype_name)


def _numpy_dtype(dtype: Any, name: str) -> str | None:
    """The name of a NumPy dtype, None for raw words; nothing else is a tensor of this operator."""
    if dtype.hasobject:
        raise DumpError(f"{name!r} holds Python objects (dtype {dtype}), which are pickled code; they are never loaded")
    known = {"f2": "float16", "f4": "float32", "f8": "float64"}
    kind = dtype.str[1:] if dtype.subdtype is None and dtype.names is None else ""
    if kind in known or kind in _RAW:
        return known.get(kind)
    raise DumpError(f"{name!r} holds {dtype}; accepted: {', '.join(TYPES)}, or their raw words (bfloat16 as 'V2' or "
                    "uint16)")


def _npz(folder: Folder, name: str) -> Tensors:
    with archives.opened(folder, name) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}

    def get(key: str) -> Found:
        with archives.opened(folder, name) as again:
            return _parse_npy(archives.unpacked(folder, again, members[key], name), f"{name}[{key}]")

    return Tensors(list(members), get)


def _safetensors(folder: Folder, name: str) -> Tensors:
    try:
        from safetensors import SafetensorError, deserialize
    except ImportError:
        raise DumpError(f"{name!r} needs safetensors: pip install 'samestep[dumps]'") from None
    data = folder.read(name)
    if int.from_bytes(data[:8], "little") > HEADER:
        raise DumpError(f"{name!r} declares a header of more than {HEADER:,} bytes")
    folder.charge(len(data), name)  # deserialize copies
    try:
        tensors = dict(deserialize(data))  # type: ignore[no-untyped-call]
    except SafetensorError as error:
        raise DumpError(f"{name!r} is no readable .safetensors file: {reason(error)}") from None

    def get(key: str) -> Found:
        found = tensors[key]
        if found["dtype"] not in _SAFETENSORS:
            raise DumpError(f"{name}[{key}] holds {found['dtype']}; accepted: {', '.join(_SAFETENSORS)}")
        dtype = _SAFETENSORS[found["dtype"]]
        return _little_endian(found["data"], dtype, found["shape"])

    return Tensors(list(tensors), get)


def _pt(folder: Folder, name: str) -> Tensors:
    try:
        import torch
    except ImportError:
        raise DumpError(f"{name!r} needs torch: pip install 'samestep[torch]'") from None
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 6):
        raise DumpError(f"{name!r} needs torch 2.6 or later: before, torch.load could be made to run code that is in "
                        f"the file, and this is torch {torch.__version__}; or save .npy or .safetensors")
    clean = archives.copied(folder, name, limits={"data.pkl": HEADER})
    try:
        loaded = torch.load(clean, weights_only=True, map_location="cpu")
    except Exception as error:  # whatever its reader and its restricted unpickler raise
        # What torch says around its reason is advice on how to load the file all the same.
        said = str(error).rpartition("WeightsUnpickler error: ")[2].partition(" Please use")[0]
        raise DumpError(f"{name!r} cannot be loaded as plain tensors; nothing in it was executed. torch says: "
                        f"{reason(RuntimeError(said))}") from None
    tensors = loaded if isinstance(loaded, dict) else {"": loaded}

    def get(key: str) -> Found:
        return _from_torch(folder, tensors[key], f"{name}[{key}]" if key else name)

    return Tensors([key for key in tensors if isinstance(key, str)], get)


def _from_torch(folder: Folder, value: Any, name: str) -> Found:
    """A torch tensor, or a number, as an array; a tensor may be a view that is much larger than its memory."""
    import torch

    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return Found(np.array(value, np.float64), "float64")
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided or value.device.type != "cpu":
        raise DumpError(f"{name!r} holds {type(value).__name__}; accepted: a plain tensor on the CPU")
    dtype = str(value.dtype).removeprefix("torch.")
    raw = dtype.removeprefix("u") in ("int16", "int32", "int64")
    if dtype not in TYPES and not raw:
        raise DumpError(f"{name!r} holds {dtype}; accepted: {', '.join(TYPES)}, or their raw words")
    folder.charge(value.numel() * value.element_size(), name)
    whole = value.detach().resolve_neg().contiguous()
    if raw:
        return Found(whole.numpy(), None)
    if dtype == "bfloat16":
        return Found(whole.view(torch.int16).numpy().view(TYPES[dtype]), dtype)
    return Found(whole.numpy(), dtype)


READERS: dict[str, Callable[[Folder, str], Tensors]] = {
    ".npy": _npy, ".npz": _npz, ".safetensors": _safetensors, ".pt": _pt,
}
