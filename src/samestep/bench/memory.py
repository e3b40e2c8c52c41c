"""The tensors of a case: every array begins on a cache line, and filling a quarter of a billion elements is quick."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from samestep.bench.cases import ITEMSIZE
from samestep.bench.peer import Array, Case, Memory
from samestep.engine import cpu

LINE = 64  # bytes
BLOCK = 100_003  # random numbers, repeated; a prime, so that no stretch of a tensor meets the same ones again
REFILLED = 1 << 22  # elements from which stat is filled again before each call
COLD = 1 << 20  # bytes of tensors from which caches are left cold


def allocate(case: Case, seed: int = 0) -> Memory:
    """Newly allocated and filled tensors of a case; `Memory` says what is in them."""
    dtype = numpy_type(case.dtype)
    lists: list[list[Array]] = [[_aligned(shape, dtype) for shape in case.shapes] if used else []
                                for used in (True, True, case.suite == "op", case.suite == "op")]
    rng = np.random.default_rng(seed)
    blocks = [rng.standard_normal(BLOCK, np.float32).astype(dtype) for _ in lists[:3]]
    learning_rate, momentum = _aligned((1,), dtype), _aligned((1,), dtype)

    def fill() -> None:
        learning_rate.fill(case.settings.lr)
        momentum.fill(case.settings.momentum)
        for arrays, block in zip(lists[:3], blocks, strict=True):
            _repeat(block, arrays)
        _fill_with_ones(lists[3])
        if case.elements * dtype.itemsize >= COLD:
            _cool()

    memory = Memory(lists[0], lists[1], lists[2], lists[3], learning_rate, momentum, fill)
    fill()
    return memory


def refill(case: Case, memory: Memory) -> Callable[[], None] | None:
    """What has to be done, untimed, before each call; None where there is nothing.

    A large step of the operator finds stat 1, since a step that finds it 0 already may have less to write; and, as
    after a real gradient was computed, none of its tensors in a cache.
    """
    if case.suite != "op" or case.elements < REFILLED:
        return None

    def again() -> None:
        _fill_with_ones(memory.stat)
        _cool()

    return again


def numpy_type(dtype: str) -> np.dtype[Any]:
    """NumPy's type of a dtype's name."""
    if dtype == "bfloat16":
        import ml_dtypes

        found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return found
    return np.dtype(dtype)


def lacking(case: Case) -> str | None:
    """Why there is not enough free memory for one more peer of a case; None if there is, or the system does not say.

    A peer may need a state of its own, copies of all tensors, and as much again while it works.
    """
    needed = 6 * case.elements * ITEMSIZE[case.dtype]
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return None
    return None if needed <= free else (f"it may need {needed / 1e9:.1f} GB of memory beside what is in use, and "
                                        f"{free / 1e9:.1f} GB are free")


def _aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    size = math.prod(shape) * dtype.itemsize
    raw = np.empty(size + LINE, np.uint8)
    start = -raw.ctypes.data % LINE
    return raw[start:start + size].view(dtype).reshape(shape)


def _repeat(block: Array, arrays: list[Array]) -> None:
    """Fill the arrays one after the other with the block, over and over: each goes on where the last one ended."""
    place = 0
    for array in arrays:
        flat = array.reshape(-1)
        done = 0
        while done < flat.size:
            count = min(flat.size - done, block.size - place)
            flat[done:done + count] = block[place:place + count]
            done, place = done + count, (place + count) % block.size


def _fill_with_ones(arrays: list[Array]) -> None:
    for array in arrays:
        array.fill(1)


def _cool() -> None:
    """Write more than the caches hold, so that nothing else is left in them."""
    _other().fill(0)


@functools.cache
def _other() -> Array:
    return np.ones(max(2 * max(cpu.caches().values(), default=0), 32 << 20), np.uint8)
