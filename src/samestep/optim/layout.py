"""Tensors of any layout as runs of memory in one common order.

An element's update does not depend on its place, so tensors that lie densely in memory in the same order are updated
where they are. Of others, pieces are copied to a small contiguous scratch and, if written, back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

PIECE = 1 << 15  # elements; four scratch tensors of this size stay below 1 MiB in any dtype


class Piece(NamedTuple):
    """Corresponding contiguous parts of the tensors of one set, and for each part where it has to be copied back to."""

    parts: list[torch.Tensor]
    homes: list[torch.Tensor | None]


def in_one_order(tensors: Sequence[torch.Tensor]) -> bool:
    """Do all lie densely in memory, element for element in the same order?"""
    first, *others = tensors
    if all(x.is_contiguous() for x in tensors):
        return True
    strides = first.stride()
    return all(x.stride() == strides for x in others) and memory_order(first).is_contiguous()


def memory_order(tensor: torch.Tensor) -> torch.Tensor:
    """A view with the axes sorted by stride, the largest first: contiguous if the tensor is dense."""
    return tensor.permute(_axes(tensor))


def _axes(tensor: torch.Tensor) -> list[int]:
    return sorted(range(tensor.dim()), key=lambda axis: (-tensor.stride(axis), -tensor.size(axis)))


def pieces(tensors: Sequence[torch.Tensor], written: Sequence[bool]) -> Iterator[Piece]:
    """Walk over a set of tensors of one shape in the memory order of the first."""
    axes = _axes(tensors[0])
    for views in _split([x.permute(axes) for x in tensors]):
        parts, homes = [], []
        for view, is_written in zip(views, written, strict=True):
            part = view if view.is_contiguous() else view.clone(memory_format=torch.contiguous_format)
            parts.append(part)
            homes.append(view if is_written and part is not view else None)
        yield Piece(parts, homes)


def _split(views: list[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Halve along the outermost axis that can be halved until a piece is small."""
    if views[0].numel() <= PIECE:
        yield views
        return
    axis = next(axis for axis, size in enumerate(views[0].shape) if size > 1)
    half = views[0].size(axis) // 2
    for start, length in ((0, half), (half, views[0].size(axis) - half)):
        yield from _split([view.narrow(axis, start, length) for view in views])
