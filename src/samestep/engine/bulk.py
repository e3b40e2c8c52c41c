"""Lists of plain NumPy arrays, read by one compiled function (plain_batch.py) that recognises them.

As with a single call (quick.py) nothing is refused here: what is not plain goes the ordinary way.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samestep.engine import quick
from samestep.engine.python_function import addresses_of, function_of, method_of


def table_of(parameters: Sequence[Any], gradient: Sequence[Any], accum: Sequence[Any], stat: Sequence[Any],
             ) -> NDArray[np.int64] | None:
    """The kernel's table (see batch.Batch) of as many arrays each, if all are plain, of one dtype and in their places.

    Plain is an array of NumPy's own type, C-contiguous and aligned, of rank 1 to 8, of the set's one shape and not
    empty, writable where it is written. Memory that overlaps is not looked for. The dtype is that of the first.
    """
    columns = [parameters, gradient, accum, stat]
    count = len(parameters)
    if not all(type(column) is list and len(column) == count for column in columns) or not quick.layout_is_known():
        return None
    table = np.empty((count, 5), np.int64)
    return table if _read()(*columns, table) else None


def are_apart(table: NDArray[np.int64], itemsize: int, scalars: Sequence[int]) -> bool:
    """Rule O10 for a table: does everything that is written share memory with nothing else?

    `scalars` are the addresses of learning_rate and momentum, of one element. A training's next step asks the same.
    """
    return _are_apart(table.tobytes(), itemsize, tuple(scalars))


@functools.lru_cache(maxsize=4)
def _are_apart(words: bytes, itemsize: int, scalars: tuple[int, ...]) -> bool:
    table = np.frombuffer(words, np.int64).reshape(-1, 5)
    sizes = np.diff(table[:, 4], prepend=0) * itemsize
    starts = table[:, (0, 2, 3)].T.reshape(-1)
    order = np.argsort(starts)
    starts, ends = starts[order], (starts + np.tile(sizes, 3))[order]
    if (ends[:-1] > starts[1:]).any():
        return False
    read = np.concatenate((table[:, 1], scalars))
    read_ends = read + np.concatenate((sizes, [itemsize] * len(scalars)))
    before = np.searchsorted(starts, read_ends) - 1  # the last written one that begins before the end
    return not (ends[before] > read)[before >= 0].any()


@functools.cache
def _read() -> Callable[..., bool]:
    from samestep.engine import cache

    def load(_: bool) -> Any:
        from samestep.engine import plain_batch

        return plain_batch

    compiled = cache.build("plain_batch", load)
    known = quick.known()
    words = [*addresses_of(compiled.FUNCTIONS), known.ctypes.data, id(True), id(False)]
    return function_of(method_of("read", compiled.ADDRESS), np.array(words, np.int64))
