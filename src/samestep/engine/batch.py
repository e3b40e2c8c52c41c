"""What an engine runs: many tensor sets that share one kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from samestep.tiling import Split, TilingKey


class Kernel(NamedTuple):
    """What is compiled. ``order`` is the evaluation order, ``key`` names the terms that exist (rule K1).

    ``rule`` is ``cann`` (rules O) or ``torch`` (rule T). The rest is for rule T alone, where gradient and momentum
    buffer may have dtypes of their own and momentum 0 is known on the host; there ``order`` means nothing, and neither
    does the key's dampening.
    """

    order: str
    dtype: str
    key: TilingKey
    rule: str = "cann"
    grad_dtype: str = ""
    state_dtype: str = ""
    momentum: bool = True
    maximize: bool = False


class Batch(NamedTuple):
    """The tensor sets of one call, as addresses.

    ``table`` has a row per tensor set: the addresses (bytes, C-contiguous, any alignment) of parameters, gradient,
    accum and stat, and the number of elements up to and including this set. ``learning_rate`` and ``momentum`` are
    addresses of one element of the kernel's dtype, read when the kernel runs; ``dampening`` and ``weight_decay`` are
    float32 values, NaN the plain one. ``split`` divides the elements of all sets, one after another. ``device`` is the
    torch device that all addresses belong to, as a string.
    """

    kernel: Kernel
    table: Sequence[Sequence[int]] | np.ndarray[Any, np.dtype[np.int64]]
    learning_rate: int
    momentum: int
    dampening: float
    weight_decay: float
    split: Split
    device: str = "cpu"


def table_of(*columns: Sequence[int]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The table for columns of addresses and a last one of lengths."""
    table = np.empty((len(columns[0]), 5), np.int64)
    for k, column in enumerate(columns):
        table[:, k] = column
    np.cumsum(table[:, 4], out=table[:, 4])
    return table
