"""The update as operators of torch: `torch.ops.samestep.step_` for one tensor set, `step_list_` for a list of sets.

Importing this module registers them. They are opaque to `torch.compile` and `torch.export`, return nothing, and declare
what they write. Registered by a `Library`: a call costs a tenth of what one through `torch.library.custom_op` does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from samestep.optim import hyperparameters, plan, run

_NUMBERS = ("bool first_step, float lr, float momentum=0., float dampening=0., float weight_decay=0., "
            "bool nesterov=False, bool maximize=False")
_LIBRARY = torch.library.Library("samestep", "FRAGMENT")
_LIBRARY.define(f"step_(Tensor(a!) parameters, Tensor gradient, Tensor(b!)? momentum_buffer, {_NUMBERS}) -> ()")
_LIBRARY.define("step_list_(Tensor(a!)[] parameters, Tensor[] gradients, Tensor(b!)[] momentum_buffers, "
                f"{_NUMBERS.replace('bool first_step', 'bool[] first_step')}) -> ()")


def step_(
    parameters: Tensor, gradient: Tensor, momentum_buffer: Tensor | None, first_step: bool, lr: float,
    momentum: float = 0.0, dampening: float = 0.0, weight_decay: float = 0.0, nesterov: bool = False,
    maximize: bool = False,
) -> None:
    """Update `parameters` and, with momentum, `momentum_buffer` in place by one step of rule T; there is no derivative.

    Arguments:
        parameters, gradient, momentum_buffer: tensors of one shape, any layout, real or complex floating dtypes; the
            gradient's may differ. A first step writes the buffer without reading it; without momentum it is neither
            read nor written and may be None. The buffer's dtype is the parameters' or a wider one.
        first_step: is it the first step with momentum?
        lr, momentum, dampening, weight_decay: numbers, kept as float64 until the rule rounds them.
        nesterov, maximize: as `samestep.optim.SGD`.

    Raises RuntimeError for tensors that do not fit and ValueError for NaN; nothing has been written then.
    """
    buffers = [] if momentum_buffer is None else [momentum_buffer]
    step_list_([parameters], [gradient], buffers, [first_step], lr, momentum, dampening, weight_decay, nesterov,
               maximize)


def step_list_(
    parameters: Sequence[Tensor], gradients: Sequence[Tensor], momentum_buffers: Sequence[Tensor],
    first_step: Sequence[bool], lr: float, momentum: float = 0.0, dampening: float = 0.0, weight_decay: float = 0.0,
    nesterov: bool = False, maximize: bool = False,
) -> None:
    """`step_` for lists of equal length, in one call of the engine, all or nothing.

    Without momentum `momentum_buffers` may be empty. Raises as `step_`, and RuntimeError for unequal lengths.
    """
    settings = hyperparameters.settings({
        "lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay, "nesterov": nesterov,
        "maximize": maximize, "dialect": "torch", "order": "spec",
    })
    n = len(parameters)
    if not len(gradients) == len(first_step) == n or (momentum != 0 and len(momentum_buffers) != n):
        raise RuntimeError(f"step_list_ needs lists of one length, not {n} parameters, {len(gradients)} gradients, "
                           f"{len(momentum_buffers)} momentum buffers and {len(first_step)} flags")
    buffers: Sequence[Tensor | None] = momentum_buffers if momentum != 0 else [None] * n
    checked = plan.make(settings, list(parameters), list(gradients), buffers, [None] * n, "parameter {}".format,
                        lambda parameter: None)
    for index, (made, given) in enumerate(zip(checked.buffers, buffers, strict=True)):
        if made is not given:  # an operator cannot put another tensor in the buffer's place
            raise RuntimeError(f"the momentum buffer of parameter {index} has another device than the parameter or "
                               "a narrower dtype")
    with torch.no_grad():
        run.run([checked._replace(first=list(first_step) if momentum != 0 else checked.first)])


def _nothing(*arguments: Any, **more: Any) -> None:
    """What the operators return; all a graph's compiler has to know."""


def _register(name: str, implementation: Callable[..., None]) -> None:
    # One implementation for every device: which engine it is for is decided tensor by tensor. Where a graph breaks,
    # dynamo would trace into it.
    _LIBRARY.impl(name, torch.compiler.disable(implementation), "CompositeExplicitAutograd")
    torch.library.register_fake(f"samestep::{name}", _nothing, lib=_LIBRARY)


_register("step_", step_)
_register("step_list_", step_list_)
