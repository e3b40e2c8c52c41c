"""The tensors of a dump by entry: which file, which of its tensors, and as what dtype."""

from __future__ import annotations

import numpy as np

from samestep.verify.dumps import case_file
from samestep.verify.dumps.case_file import Entry
from samestep.verify.dumps.files import DumpError, Folder
from samestep.verify.dumps.formats import Found, Tensors, open_tensors, read_bin
from samestep.verify.patterns import TYPES


class Reader:
    """Reads entries; a file that holds several tensors is opened once."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._open: dict[str, Tensors] = {}

    def tensors(self, file: str) -> Tensors:
        """The tensors of a file of any format but .bin."""
        if file not in self._open:
            self._open[file] = open_tensors(self._folder, file)
        return self._open[file]

    def is_raw(self, entry: Entry, role: str) -> bool:
        """Whether the file of `entry` does not say what dtype its words are."""
        if entry.file.lower().endswith(".bin"):
            return True
        tensors = self.tensors(entry.file)
        return tensors.get(_key(tensors, entry, role)).dtype is None

    def found(self, entry: Entry, role: str, dtype: str | None, shape: tuple[int, ...] | None) -> Found:
        """The tensor of `entry`; `dtype` and `shape` are what raw words are, unless the entry says."""
        dtype, shape = entry.dtype or dtype, entry.shape if entry.shape is not None else shape
        if entry.file.lower().endswith(".bin"):
            if dtype is None or shape is None:
                raise DumpError(f"{entry.file!r} is raw: its dtype and shape must be given (in CASE.json, or --dtype "
                                "and --shape)")
            return read_bin(self._folder, entry.file, dtype, shape, entry.offset)
        if entry.offset is not None:
            raise DumpError(f"{entry.file!r}: an offset is for .bin files")
        tensors = self.tensors(entry.file)
        return _of_dtype(tensors.get(_key(tensors, entry, role)), dtype, entry.file)


def _key(tensors: Tensors, entry: Entry, role: str) -> str:
    """The name in its file of the tensor that is to be `role`."""
    if entry.key is not None:
        wanted = [entry.key]
    elif tensors.names == [""] or len(tensors.names) == 1:
        wanted = tensors.names
    else:
        wanted = [role, *(alias for alias, name in case_file.ALIASES.items() if name == role)]
    for key in wanted:
        if key in tensors.names:
            return key
    raise DumpError(f"{entry.file!r} holds {', '.join(map(repr, tensors.names[:20])) or 'nothing'}; expected "
                    f"{' or '.join(map(repr, wanted))}")


def _of_dtype(found: Found, dtype: str | None, name: str) -> Found:
    """`found` as numbers of `dtype`: its own, or raw words of that width, or wider numbers that all fit exactly.

    Tools that know no bfloat16 store it as float32, which loses nothing.
    """
    array = found.array
    if found.dtype is None:
        if dtype is None:
            raise DumpError(f"{name!r} holds raw words of {array.dtype.itemsize} bytes; say what they are: \"dtype\" "
                            "in CASE.json, or --dtype")
        if array.dtype.itemsize != np.dtype(TYPES[dtype]).itemsize:
            raise DumpError(f"{name!r} holds raw words of {array.dtype.itemsize} bytes, which {dtype} has not")
        return Found(np.ascontiguousarray(array).view(TYPES[dtype]).reshape(array.shape), dtype)
    if dtype is None or dtype == found.dtype:
        return found
    if array.dtype.itemsize <= np.dtype(TYPES[dtype]).itemsize:
        raise DumpError(f"{name!r} holds {found.dtype}; accepted: {dtype}, the dtype of the others or told")
    narrow = array.astype(TYPES[dtype])
    back = narrow.astype(array.dtype)
    if not np.array_equal(back, array, equal_nan=True):
        raise DumpError(f"{name!r} holds {found.dtype} values that are none of {dtype}, the dtype of the others or "
                        "told")
    return Found(narrow, dtype)
