"""Tensors sharded over processes (DTensor): the update works on the part that lies here."""

from __future__ import annotations

import sys
from typing import Any

import torch

PLAIN = frozenset({torch.Tensor, torch.nn.Parameter, getattr(torch.nn, "Buffer", torch.nn.Parameter)})


def is_sharded(tensor: torch.Tensor) -> bool:
    """Is it a DTensor? Does not import torch.distributed: where that is not loaded there are none."""
    for name in ("torch.distributed.tensor", "torch.distributed._tensor"):
        kind = getattr(sys.modules.get(name), "DTensor", None)
        if kind is not None:
            return isinstance(tensor, kind)
    return False


def like(tensor: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """`tensor` with the placements of `parameter` if both are sharded, by communication if need be.

    Raises RuntimeError where its part in this process has another shape than the parameter's: placements only say how
    a DTensor should be divided, and one that is put together from parts may be divided otherwise.
    """
    if not is_sharded(parameter):
        return tensor
    result: Any = tensor
    target: Any = parameter
    if result.placements != target.placements or result.device_mesh != target.device_mesh:
        result = result.redistribute(target.device_mesh, target.placements)
    part, wanted = tuple(local(result).shape), tuple(local(parameter).shape)
    if part != wanted:
        raise RuntimeError(f"the part of a gradient or state that lies here has shape {part}, its parameter's {wanted}")
    checked: torch.Tensor = result
    return checked



def local(tensor: torch.Tensor) -> torch.Tensor:
    """The memory that lies in this process."""
    if type(tensor) in PLAIN or not is_sharded(tensor):
        return tensor
    sharded: Any = tensor
    part: Any = sharded._local_tensor
    result: torch.Tensor = part.wait() if hasattr(part, "wait") else part
    return result
