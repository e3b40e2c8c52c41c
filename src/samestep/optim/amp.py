"""Gradient scaling: `torch.amp.GradScaler` sets `grad_scale` and `found_inf` on the optimizer for one step.

A skipped step leaves no trace. A step that gets `grad_scale` leaves the unscaled gradients in `p.grad`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from samestep.optim import sharded
from samestep.optim.work import Work

_HALVES = (torch.float16, torch.bfloat16)

Done = dict[int, tuple[torch.Tensor, torch.Tensor, torch.Tensor]]  # by id: the gradient, what is kept, what is used


def is_skipped(found_inf: torch.Tensor | None) -> bool:
    """Was an infinity or NaN found? The sum over devices may be any number but 0."""
    return found_inf is not None and found_inf.item() != 0


def can_skip_on_device(work: Sequence[Work]) -> bool:
    """Can the engine itself leave everything as it is, so that the host need not wait to learn what was found?

    Not at a first step: the state made for it would have to be unmade.
    """
    return all(item.engine == "gpu" and item.dialect == "torch" and True not in item.first for item in work)


def unscale(
    parameters: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor], grad_scale: torch.Tensor, done: Done,
    found_inf: torch.Tensor | None = None,
) -> list[torch.Tensor]:
    """Divide the gradients by the scale, in place, and return what the step computes with.

    For float16 and bfloat16 that is the float32 quotient: it may be too small for the 16 bits kept in `p.grad`.
    `done` is what was divided in this step so far: a gradient that several parameters share is divided once.
    On CUDA devices the host reads neither the scale nor `found_inf`; where that is not 0, the scale is 1.
    """
    scales: dict[torch.device, Any] = {}
    results = []
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if id(gradient) not in done:
            device = gradient.device
            if device not in scales:
                scales[device] = _scale(grad_scale, found_inf, device)
            done[id(gradient)] = (gradient, *_unscaled(gradient, scales[device]))
        _, kept, result = done[id(gradient)]
        if kept is not gradient and parameter.grad is gradient:
            parameter.grad = kept
        results.append(result)
    return results


def _scale(grad_scale: torch.Tensor, found_inf: torch.Tensor | None, device: torch.device) -> Any:
    """The divisor for gradients on `device`: a number, or a tensor there."""
    if device.type != "cuda":
        return float(grad_scale.item())
    scale = grad_scale.to(device, non_blocking=True).reshape(())
    if found_inf is None:
        return scale
    return torch.where(found_inf.to(device, non_blocking=True).reshape(()) != 0, 1.0, scale)


def _unscaled(gradient: torch.Tensor, scale: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """What to keep as the gradient, and what to compute with."""
    part = sharded.local(gradient)
    if part.layout is torch.strided and any(n > 1 and s == 0 for n, s in zip(part.shape, part.stride(), strict=True)):
        gradient = gradient.clone(memory_format=torch.contiguous_format)  # expanded: no element has its own memory
        part = sharded.local(gradient)
    if part.dtype not in _HALVES:
        part.div_(scale)
        return gradient, gradient
    wide = gradient.to(torch.float32)
    sharded.local(wide).div_(scale)
    gradient.copy_(wide)
    return gradient, wide
