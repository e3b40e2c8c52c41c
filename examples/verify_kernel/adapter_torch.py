"""A torch operator as a target of samestep: torch's own fused SGD, which follows rule torch."""

import numpy as np
import torch


def tensor(array):
    """The same memory as a torch tensor; NumPy and torch share no bfloat16, so that goes through its bits."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def fused(parameters, gradient, momentum_buffer, *, lr, momentum, dampening, weight_decay, nesterov, maximize):
    first = momentum_buffer is None
    if first and momentum != 0:
        momentum_buffer = np.zeros_like(parameters)
    buffers = [tensor(momentum_buffer)] if momentum != 0 else []
    torch.ops.aten._fused_sgd_(
        [tensor(parameters)], [tensor(gradient)], buffers, lr=lr, momentum=momentum, dampening=dampening,
        weight_decay=weight_decay, nesterov=nesterov, maximize=maximize, is_first_step=first)
    return parameters, momentum_buffer
