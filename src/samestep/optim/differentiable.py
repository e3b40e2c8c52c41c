"""The step as part of autograd's graph: gradients reach parameters, gradients, state, learning rate, weight decay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from samestep.optim import plan, torch_path
from samestep.optim.plan import Plan

State = tuple[list[Tensor | None], list[Tensor] | None]


def step(plans: Sequence[Plan], factors: Sequence[tuple[Any, Any]]) -> list[State]:
    """Update the parameters in place and return the new state; `factors` are lr and weight_decay, maybe tensors.

    Nothing is written before everything is computed. Gradients are not written. State is replaced, so that what an
    earlier graph keeps of it stays as it was.
    """
    for parameter in [p for item in plans for p in item.parameters]:
        if torch.is_grad_enabled() and parameter.requires_grad and parameter.is_leaf:
            raise RuntimeError("a leaf Variable that requires grad is being used in an in-place operation.")
    results, copies = [], []
    for item, (lr, weight_decay) in zip(plans, factors, strict=True):
        buffers, stats, outs = _updated(item, lr, weight_decay)
        results.append((buffers, stats))
        copies += list(zip(item.parameters, outs, strict=True))
    for parameter, out in copies:
        parameter.copy_(out)
    return results


def _updated(item: Plan, lr: Any, weight_decay: Any) -> tuple[list[Tensor | None], list[Tensor] | None, list[Tensor]]:
    frame = plan.empty(item)
    buffers: list[Tensor | None] = []
    stats: list[Tensor] = []
    outs = []
    given: Sequence[Tensor | None] = item.stats or [None] * len(item.parameters)
    for p, g, b, s, first in zip(item.parameters, item.gradients, item.buffers, given, item.first, strict=True):
        dense = plan.gradient_of(item, g)
        out, b_out, s_out = torch_path.update(frame, p, dense, b, s, first, lr, weight_decay)
        outs.append(out)
        buffers.append(_stored(b_out, b, dense))
        if s is not None:
            stats.append(s if s_out is None else s_out)
    return buffers, stats if item.stats is not None else None, outs


def _stored(b_out: Tensor | None, b: Tensor | None, gradient: Tensor) -> Tensor | None:
    """The buffer in its own dtype; a first buffer that is the gradient itself must not share its memory."""
    if b_out is None or b is None:
        return b
    b_out = b_out.to(b.dtype)
    return b_out.clone() if b_out is gradient else b_out
