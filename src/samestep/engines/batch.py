"""What an engine runs: many tensor sets that share one kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from samestep.tiling import Split, TilingKey


class Kernel(NamedTuple):
    """What is compiled. ``order`` is the evaluation order, ``key`` names the terms that exist (rule K1)."""

    order: str
    dtype: str
    key: TilingKey


class Batch(NamedTuple):
    """The tensor sets of one call, as addresses.

    Each column holds one address per tensor set (bytes, C-contiguous, any alignment) and ``lengths`` its elements;
    ``learning_rate`` and ``momentum`` are addresses of one element of the kernel's dtype, read when the kernel runs.
    ``dampening`` and ``weight_decay`` are float32 values. ``split`` is the split of all elements, one set after another.
    """

    kernel: Kernel
    parameters: Sequence[int]
    gradient: Sequence[int]
    accum: Sequence[int]
    stat: Sequence[int]
    lengths: Sequence[int]
    learning_rate: int
    momentum: int
    dampening: float
    weight_decay: float
    split: Split
