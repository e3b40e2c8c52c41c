"""The functional form of the step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from samestep.optim import amp, differentiable, hyperparameters, plan, run


def sgd(
    params: list[Tensor],
    d_p_list: list[Tensor],
    momentum_buffer_list: list[Tensor | None],
    has_sparse_grad: bool = False,
    foreach: bool | None = None,
    fused: bool | None = None,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
    *,
    weight_decay: float,
    momentum: float,
    lr: float,
    dampening: float,
    nesterov: bool,
    maximize: bool,
) -> None:
    """Update `params` by one step with the gradients `d_p_list` (rule T); signature as `torch.optim.sgd.sgd`.

    Arguments:
        params, d_p_list: tensors of equal shapes; of any real or complex floating dtype, layout and device, gradients
            also sparse.
        momentum_buffer_list: momentum buffers; a None means that parameter's first momentum step, and is replaced by
            its new buffer. Without momentum it is neither read nor written and may be empty.
        has_sparse_grad, foreach, fused: accepted; they choose nothing.
        grad_scale, found_inf: one-element tensors or None. When found_inf is not 0 nothing is done; else the gradients
            are divided by grad_scale, also in `d_p_list`.
        lr, weight_decay: numbers, or one-element tensors.

    If autograd records and one of the tensors requires gradients, the step becomes part of the graph.
    Raises ValueError for NaN hyperparameters and RuntimeError for tensors that do not fit; nothing is written then.
    """
    if amp.is_skipped(found_inf):
        return
    settings = hyperparameters.settings({
        "lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay, "nesterov": nesterov,
        "maximize": maximize, "dialect": "torch", "order": "spec",
    })
    buffers: list[Tensor | None] = [None] * len(params) if momentum == 0 else momentum_buffer_list
    checked = plan.make(settings, params, d_p_list, buffers, [None] * len(params), "parameter {}".format, _unknown)
    if torch.is_grad_enabled() and _requires_grad(*params, *d_p_list, *buffers, lr, weight_decay):
        if grad_scale is not None:
            checked = checked._replace(gradients=amp.unscale(params, d_p_list, grad_scale, {}))
        ((new, _),) = differentiable.step([checked], [(lr, weight_decay)])
    else:
        with torch.no_grad():
            run.run([checked], grad_scale)
        new = checked.buffers
    if momentum != 0:
        momentum_buffer_list[:] = new


def _unknown(parameter: Tensor) -> None:
    return None


def _requires_grad(*values: Any) -> bool:
    return any(isinstance(value, Tensor) and value.requires_grad for value in values)
