"""A target with guards around its memory, and the floating-point environment it was called in."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import Any

import numpy as np

from samestep.engine import fpenv
from samestep.verify.observation import Target, TargetError

GUARD = 256  # bytes on either side
FILL = 0xA5


class JudgesEnvironment:
    """The IEEE default floating-point environment for everything but what is called through `call`.

    A library built with -ffast-math may have changed the thread's environment: the target is to be run in it, the
    judge is not.
    """

    def __enter__(self) -> JudgesEnvironment:
        self._entered = ExitStack()
        self._entered.enter_context(fpenv.default())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._entered.close()

    def call(self, target: Target, *arguments: Any, **attributes: Any) -> Any:
        """Call `target` in the environment that was left."""
        self._entered.close()
        try:
            return target(*arguments, **attributes)
        finally:
            self._entered.enter_context(fpenv.default())


def call_guarded(target: Target, *arguments: Any, **attributes: Any) -> Any:
    """Call `target` on copies between guards, then copy back what it wrote.

    `TargetError` if it wrote outside a tensor, or into one of one element's inputs, learning_rate and momentum.
    """
    placed = [None if array is None else _Placed(array) for array in arguments]
    scalars = {2: "learning_rate", 4: "momentum"} if len(arguments) == 6 else {}
    returned = target(*(None if one is None else one.inside for one in placed), **attributes)
    for place, (one, array) in enumerate(zip(placed, arguments, strict=True)):
        if one is None:
            continue
        if not one.is_whole():
            raise TargetError(f"argument {place}: the target wrote into the memory before or behind the tensor")
        if place in scalars and one.inside.tobytes() != array.tobytes():
            raise TargetError(f"{scalars[place]}: the target changed it; it may only be read")
        array[...] = one.inside
    return returned


class _Placed:
    """A copy of an array, at the same alignment to 64 bytes, between guards."""

    def __init__(self, array: Any) -> None:
        self._memory = np.full(array.nbytes + 2 * GUARD + 64, FILL, np.uint8)
        self._start = GUARD + (array.ctypes.data - self._memory.ctypes.data - GUARD) % 64
        self._stop = self._start + array.nbytes
        self.inside = self._memory[self._start:self._stop].view(array.dtype).reshape(array.shape)
        self.inside[...] = array

    def is_whole(self) -> bool:
        """Are the guards as they were?"""
        return bool((self._memory[:self._start] == FILL).all() and (self._memory[self._stop:] == FILL).all())
