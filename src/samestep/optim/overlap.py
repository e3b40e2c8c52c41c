"""Tensors that share memory: their sets are updated one after the other, as a loop over the parameters would."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from samestep.optim.work import Work


def in_turn(work: Work) -> list[Work]:
    """The work itself; or the work of each set, if what one set writes is another's too."""
    if len(work.parameters) == 1 or not _is_shared(work):
        return [work]
    return [
        work._replace(
            parameters=[p], gradients=[work.gradients[k]], buffers=[work.buffers[k]], first=[work.first[k]],
            stats=None if work.stats is None else [work.stats[k]],
        )
        for k, p in enumerate(work.parameters)
    ]


def _is_shared(work: Work) -> bool:
    """Does any memory that is written belong to two tensors?"""
    written = [*work.parameters, *(b for b in work.buffers if b is not None), *(work.stats or ())]
    starts, ends = _ranges(written)
    order = np.argsort(starts)
    starts, ends = starts[order], ends[order]
    if (ends[:-1] > starts[1:]).any():
        return True
    first, last = _ranges(work.gradients)
    before = np.searchsorted(ends, first, side="right")  # written ranges that end before
    return bool((np.searchsorted(starts, last, side="left") > before).any())


def _ranges(tensors: Sequence[Tensor]) -> tuple[Any, Any]:
    """Addresses of the first byte of each tensor and of the one after its last."""
    starts = np.fromiter(map(Tensor.data_ptr, tensors), np.int64, len(tensors))
    return starts, starts + np.fromiter(map(_extent, tensors), np.int64, len(tensors))


def _extent(tensor: Tensor) -> int:
    if tensor.is_contiguous():
        return int(tensor.nbytes)
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return int((last + 1) * tensor.itemsize)
