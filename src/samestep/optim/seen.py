"""What the last step found out about a group, so that the next one need not ask every tensor again.

Asking a tensor costs 50 ns a question, and a model has thousands of them. torch has a guard for compiled code that
asks a whole list for type, device, dtype, layout, sizes and strides at once, in 50 ns a tensor; where these are as they
were, only the addresses are read. Nothing here keeps a gradient alive that the user let go.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain
from operator import attrgetter, is_, itemgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from samestep.optim.hyperparameters import Settings
from samestep.optim.plan import REAL, Plan
from samestep.optim.work import Work

_FEW = 16
_facts = attrgetter("__class__", "shape", "dtype", "device", "layout", "requires_grad")
_of_state = {key: itemgetter(key) for key in ("momentum_buffer", "accum", "stat")}


class Seen:
    """One group after a step: the parameters' dtypes, and the work to repeat if all of it was of the plain kind."""

    def __init__(self, plan: Plan, params: Sequence[Tensor], work: Work | None) -> None:
        """`work` is the only work that came of `plan`, or None; `params` are all parameters of the group."""
        self.dtypes = {id(p): p.dtype for p in plan.parameters}
        self._params = list(params)  # also keeps alive what `dtypes` knows by id
        self._kind = _kind(plan.settings)
        self._work = None
        if work is not None and _is_plain(plan, work):
            columns = _columns(work, work.gradients)
            self._absent = [k for k, p in enumerate(params) if p.grad is None]
            self._are_alike = guard(list(chain.from_iterable(columns)))
            self._addresses = list(map(_addresses, columns))
            self._memory: dict[str, Any] = {}
            self._work = work._replace(gradients=[], first=[False] * len(work.parameters))

    def dtype_of(self, parameter: Tensor) -> torch.dtype | None:
        """The dtype a parameter had at the last step."""
        return self.dtypes.get(id(parameter))

    def again(self, settings: Settings, params: Sequence[Tensor], state: Mapping[Tensor, Any]) -> Work | None:
        """The work of this step, if it is that of the last with other numbers, or with new gradients of that kind."""
        work = self._work
        if work is None or self._kind != _kind(settings) or not _same(params, self._params):
            return None
        gradients: list[Any] = [p.grad for p in params]
        if self._absent:
            if self._absent != [k for k, g in enumerate(gradients) if g is None]:
                return None
            gradients = [g for g in gradients if g is not None]
        columns = _columns(work, gradients)
        if not _has_state(work, state) or not self._are_alike(list(chain.from_iterable(columns))):
            return None
        addresses = list(map(_addresses, columns))
        for k, (now, before) in enumerate(zip(addresses, self._addresses, strict=True)):
            if k != 1 and not _equal(now, before):  # what is written is where it was; gradients may be elsewhere
                return None
        self._addresses = addresses
        lr, momentum, dampening, weight_decay, nesterov, maximize, _, _ = settings
        return Work(work.parameters, gradients, work.buffers, work.first, lr, momentum, dampening, weight_decay,
                    nesterov, maximize, work.stats, work.dialect, work.order, self._memory, addresses,
                    work.engine)


def guard(tensors: Sequence[Tensor]) -> Callable[[Sequence[Any]], bool]:
    """A function that says of a list of as many whether each is like `tensors` in all but its memory and its values."""
    try:
        from torch._C._dynamo.guards import TensorGuards

        check = TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
        if check(*tensors):
            return lambda others: check(*others)
    except (ImportError, TypeError, RuntimeError):  # a torch whose guard is another
        pass
    return slow_guard(tensors)


def slow_guard(tensors: Sequence[Tensor]) -> Callable[[Sequence[Any]], bool]:
    """The same by asking one after the other."""
    facts, strides = list(map(_facts, tensors)), list(map(Tensor.stride, tensors))

    def check(others: Sequence[Any]) -> bool:
        try:
            return bool(list(map(_facts, others)) == facts and list(map(Tensor.stride, others)) == strides
                        and not any(map(Tensor.is_neg, others)))
        except (AttributeError, TypeError, RuntimeError):  # None, or a layout without strides
            return False

    return check


def _kind(settings: Settings) -> tuple[Any, ...]:
    return settings.dialect, settings.order, settings.maximize, settings.momentum != 0


def _same(some: Collection[Any], others: Collection[Any]) -> bool:
    """Are they the very same objects? (Comparing tensors compares their elements.)"""
    return len(some) == len(others) and all(map(is_, some, others))


def _has_state(work: Work, state: Mapping[Tensor, Any]) -> bool:
    """Is the state that is stored now still what the work has?"""
    if not work.buffers or work.buffers[0] is None:
        return True
    states: Iterable[Any] = state.values() if _same(state, work.parameters) else list(map(state.get, work.parameters))
    try:
        if work.stats is None:
            return all(map(is_, map(_of_state["momentum_buffer"], states), work.buffers))
        return all(map(is_, map(_of_state["accum"], states), work.buffers)) and all(
            map(is_, map(_of_state["stat"], states), work.stats))
    except (KeyError, TypeError):
        return False


def _is_plain(plan: Plan, work: Work) -> bool:
    """Does the work have the user's own tensors, all contiguous, so that asking for them again gives the work?"""
    return (
        _same(plan.parameters, work.parameters) and _same(plan.gradients, work.gradients)
        and REAL.issuperset([p.dtype for p in plan.parameters])
        and all(all(map(Tensor.is_contiguous, column)) for column in _columns(work, work.gradients))
    )


def _columns(work: Work, gradients: Sequence[Tensor]) -> list[Any]:
    columns: list[Any] = [work.parameters, gradients]
    if work.buffers and work.buffers[0] is not None:
        columns.append(work.buffers)
    return columns if work.stats is None else [*columns, work.stats]


def _addresses(column: Sequence[Tensor]) -> Any:
    """As an array; of a few, as a list, which is quicker to make."""
    if len(column) <= _FEW:
        return [x.data_ptr() for x in column]
    return np.fromiter(map(Tensor.data_ptr, column), np.int64, len(column))


def _equal(some: Any, others: Any) -> bool:
    return bool(some == others if type(some) is list else some.tobytes() == others.tobytes())
