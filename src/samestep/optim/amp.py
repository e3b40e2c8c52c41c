"""Gradient scaling: `torch.amp.GradScaler` sets `grad_scale` and `found_inf` on the optimizer for one step.

A skipped step leaves no trace. A step that gets `grad_scale` leaves the unscaled gradients in `p.grad`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from samestep.optim import sharded

_HALVES = (torch.float16, torch.bfloat16)

Done = dict[int, tuple[torch.Tensor, torch.Tensor, torch.Tensor]]  # by id: the gradient, what is kept, what is used


def is_skipped(found_inf: torch.Tensor | None) -> bool:
    """Was an infinity or NaN found? The sum over devices may be any number but 0."""
    return found_inf is not None and found_inf.item() != 0


def unscale(
    parameters: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor], grad_scale: torch.Tensor, done: Done,
) -> list[torch.Tensor]:
    """Divide the gradients by the scale, in place, and return what the step computes with.

    For float16 and bfloat16 that is the float32 quotient: it may be too small for the 16 bits kept in `p.grad`.
    `done` is what was divided in this step so far: a gradient that several parameters share is divided once.
    """
    scale = float(grad_scale.item())
    results = []
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if id(gradient) not in done:
            done[id(gradient)] = (gradient, *_unscaled(gradient, scale))
        _, kept, result = done[id(gradient)]
        if kept is not gradient and parameter.grad is gradient:
            parameter.grad = kept
        results.append(result)
    return results


def _unscaled(gradient: torch.Tensor, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
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
