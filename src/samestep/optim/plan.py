"""From parameters and gradients to work: check everything, make new state, write nothing (rule O11)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from samestep.contract import DTYPES, refuse
from samestep.engine import gpu
from samestep.optim import sharded, sparse
from samestep.optim.hyperparameters import Settings
from samestep.optim.work import Work

REAL = frozenset({torch.float32, torch.float64, torch.bfloat16, torch.float16})
_COMPLEX = (torch.complex64, torch.complex128, torch.complex32)

Name = Callable[[int], str]


class Plan(NamedTuple):
    """A checked step of one group: the tensors as the user knows them, with state that is not stored yet."""

    settings: Settings
    parameters: list[Tensor]
    gradients: list[Tensor]
    buffers: list[Tensor | None]
    first: list[bool]
    stats: list[Tensor] | None


def make(
    settings: Settings, parameters: list[Tensor], gradients: list[Tensor], buffers: Sequence[Tensor | None],
    stats: Sequence[Tensor | None], name: Name, was: Callable[[Tensor], torch.dtype | None],
) -> Plan:
    """Check one group and give every parameter the state that its step needs.

    `name` gives a parameter's name by its position, `was` the dtype a parameter had at its last step. State that lies
    on another device than its parameter, or that had the dtype the parameter has left, follows it.
    Raises RuntimeError, in dialect cann `ContractError` for dtypes; no tensor given has been written then.
    """
    for index, (parameter, gradient) in enumerate(zip(parameters, gradients, strict=True)):
        _check(parameter, gradient, settings.dialect, name, index)
    first = [False] * len(parameters)
    if settings.dialect == "cann":
        accum = [torch.zeros_like(p) if a is None else _follow(a, p, was(p), name, k)
                 for k, (p, a) in enumerate(zip(parameters, buffers, strict=True))]
        stat = [torch.ones_like(p) if s is None else _follow(s, p, was(p), name, k)
                for k, (p, s) in enumerate(zip(parameters, stats, strict=True))]
        return Plan(settings, parameters, gradients, list(accum), first, stat)
    if settings.momentum == 0:
        return Plan(settings, parameters, gradients, [None] * len(parameters), first, None)
    first = [b is None for b in buffers]
    velocity: list[Tensor | None] = [
        torch.empty_like(p, memory_format=torch.preserve_format) if b is None else _follow(b, p, was(p), name, k)
        for k, (p, b) in enumerate(zip(parameters, buffers, strict=True))]
    return Plan(settings, parameters, gradients, velocity, first, None)


def _check(p: Tensor, g: Tensor, dialect: str, name: Name, index: int) -> None:
    if dialect == "cann":
        dtype, grad_dtype = (str(x.dtype).removeprefix("torch.") for x in (p, g))
        if dtype not in DTYPES:
            refuse("unsupported_dtype", name(index), f"dtype {dtype}", ", ".join(DTYPES))
        if grad_dtype != dtype:
            refuse("dtype_mismatch", f"gradient of {name(index)}", f"dtype {grad_dtype}", f"{dtype}, the parameter's")
    if p.dtype not in REAL and p.dtype not in _COMPLEX:
        raise RuntimeError(f"{name(index)} has dtype {p.dtype}, which SGD does not update")
    if g.dtype not in REAL and (g.dtype not in _COMPLEX or p.dtype not in _COMPLEX):
        raise RuntimeError(f"the gradient of {name(index)} has dtype {g.dtype}, the parameter {p.dtype}")
    if g.shape != p.shape:
        raise RuntimeError(f"the gradient of {name(index)} has shape {tuple(g.shape)}, the parameter {tuple(p.shape)}")
    if not p.is_contiguous() and any(n > 1 and s == 0 for n, s in zip(p.shape, p.stride(), strict=True)):
        raise RuntimeError(f"{name(index)} is expanded: more than one element of it lies in one place in memory")
    if g.device != p.device:
        raise RuntimeError(f"the gradient of {name(index)} is on {g.device}, the parameter on {p.device}")
    if sharded.is_sharded(g) != sharded.is_sharded(p):
        raise RuntimeError(f"the gradient of {name(index)} and the parameter are not both DTensors")


def _follow(state: Tensor, p: Tensor, was: torch.dtype | None, name: Name, index: int) -> Tensor:
    """State as its parameter needs it: on its device, of its dtype or a wider one that was chosen on purpose."""
    if not isinstance(state, Tensor):
        raise RuntimeError(f"the state of {name(index)} is no tensor but {type(state).__name__}")
    if state.layout is not torch.strided:  # torch keeps the momentum of sparse gradients sparse
        state = state.to_dense()
    if state.is_complex() and not p.is_complex():
        raise RuntimeError(f"the state of {name(index)} has dtype {state.dtype}, the parameter {p.dtype}")
    if any(size > 1 and stride == 0 for size, stride in zip(state.shape, state.stride(), strict=True)):
        raise RuntimeError(f"the state of {name(index)} is expanded: several of its elements share memory")
    if state.shape != p.shape:
        raise RuntimeError(f"the state of {name(index)} has shape {tuple(state.shape)}, the parameter {tuple(p.shape)}")
    if sharded.is_sharded(state) != sharded.is_sharded(p):
        raise RuntimeError(f"the state of {name(index)} and the parameter are not both DTensors")
    dtype = p.dtype if state.dtype == was else torch.promote_types(state.dtype, p.dtype)
    if state.device != p.device or state.dtype != dtype:
        state = state.detach().to(p.device, dtype)
    return sharded.like(state, p)


def works(plan: Plan, gradients: Sequence[Tensor]) -> tuple[list[Work], list[Work], list[sparse.Rows]]:
    """The plan as work for the engines and for torch's operations; and rows to be put back afterwards."""
    found: dict[Any, Work] = {}
    scattered = []
    cann = plan.settings.dialect == "cann"
    stats: Sequence[Tensor | None] = plan.stats or [None] * len(plan.parameters)
    for parameter, given, buffer, stat, first in zip(
            plan.parameters, gradients, plan.buffers, stats, plan.first, strict=True):
        p, g = sharded.local(parameter), sharded.local(sharded.like(given, parameter))
        b = None if buffer is None else sharded.local(buffer)
        s = None if stat is None else sharded.local(stat)
        if sparse.touches_rows_only(g, plan.settings):
            scattered.append(sparse.rows(p, g))
            p, g = scattered[-1].rows, scattered[-1].gradient
        if p.numel():
            engine = engine_of(p)
            key = (engine, p.device, p.dtype if cann else None)
            _append(found.setdefault(key, empty(plan, engine)), p, gradient_of(plan, g), b, s, first)
    return [w for w in found.values() if w.engine], [w for w in found.values() if not w.engine], scattered


def gradient_of(plan: Plan, gradient: Tensor) -> Tensor:
    """The gradient as a dense tensor; negated for `maximize` in dialect cann, whose rule does not know that."""
    dense = gradient if gradient.layout is torch.strided else gradient.to_dense()
    return -dense if plan.settings.maximize and plan.settings.dialect == "cann" else dense


def engine_of(p: Tensor) -> str:
    """The engine that updates `p`, or nothing where torch's operations have to."""
    if type(p) not in sharded.PLAIN or p.is_conj() or p.is_neg():
        return ""
    if p.is_cpu:
        return "cpu"
    return "gpu" if p.is_cuda and gpu.unavailable() is None else ""


def empty(plan: Plan, engine: str = "") -> Work:
    """Work for `engine` without tensors, with the hyperparameters of the plan."""
    s = plan.settings
    return Work([], [], [], [], s.lr, s.momentum, s.dampening, s.weight_decay, s.nesterov,
                s.maximize and s.dialect == "torch", None if plan.stats is None else [], s.dialect, s.order,
                engine=engine)


def _append(item: Work, p: Tensor, g: Tensor, b: Tensor | None, s: Tensor | None, first: bool) -> None:
    if p.is_complex() and not p.is_conj():
        p, g = torch.view_as_real(p), torch.view_as_real(g.to(torch.promote_types(g.dtype, p.dtype)).resolve_conj())
        b = None if b is None else torch.view_as_real(b.resolve_conj())
    if item.engine == "cpu" and not all(x.data_ptr() for x in (p, g, b, s) if x is not None):
        raise RuntimeError(f"a parameter of shape {tuple(p.shape)}, its gradient or its state has no memory: its "
                           "storage was resized to nothing")
    item.parameters.append(p)
    item.gradients.append(g.resolve_neg())
    item.buffers.append(b)
    item.first.append(first)
    if item.stats is not None and s is not None:
        item.stats.append(s)
