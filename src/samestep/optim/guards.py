"""A whole parameter group asked in Python whether it is what it was, where exchange.py cannot.

Asking a tensor costs 50 ns a question, and a model has thousands of them. torch has a guard for compiled code that
asks a whole list for type, device, dtype, layout, sizes and strides at once, in 50 ns a tensor; where these are as they
were, only the addresses are read. Nothing here keeps a gradient alive that the user let go.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain
from operator import attrgetter, is_, itemgetter
from typing import Any

from torch import Tensor

_facts = attrgetter("__class__", "shape", "dtype", "device", "layout", "requires_grad")


class Group:
    """The tensors of one group, all contiguous, and the kernel's table of their addresses."""

    def __init__(
        self, everything: Sequence[Tensor], columns: Sequence[Sequence[Tensor]], names: Sequence[str], table: Any,
        state: Mapping[Tensor, Any],
    ) -> None:
        """As exchange.Group."""
        self._everything, self._columns, self._table = list(everything), [columns[0], *columns[2:]], table
        self._of_state = list(map(itemgetter, names))
        self._absent = [k for k, p in enumerate(everything) if p.grad is None]
        self._are_alike = guard(list(chain.from_iterable([*self._columns, columns[1]])))

    def gradients(self, params: Sequence[Tensor], state: Mapping[Tensor, Any]) -> list[Tensor] | None:
        """As exchange.Group: the gradients of now, their addresses in the table, or None."""
        if not same(params, self._everything):
            return None
        gradients: list[Any] = [p.grad for p in params]
        if self._absent:
            if self._absent != [k for k, g in enumerate(gradients) if g is None]:
                return None
            gradients = [g for g in gradients if g is not None]
        if not self._has_state(state) or not self._are_alike(list(chain.from_iterable([*self._columns, gradients]))):
            return None
        places = (0, *range(2, 1 + len(self._columns)))
        if any(_addresses(column) != self._table[:, k].tolist()
               for k, column in zip(places, self._columns, strict=True)):
            return None  # what is written is not where it was; gradients may be elsewhere
        addresses = _addresses(gradients)
        if 0 in addresses:
            return None
        self._table[:, 1] = addresses
        return gradients

    def _has_state(self, state: Mapping[Tensor, Any]) -> bool:
        """Is the state that is stored now still what it was?"""
        parameters, *columns = self._columns
        if not columns:
            return True
        states: Iterable[Any] = state.values() if same(state, parameters) else list(map(state.get, parameters))
        states = list(states)
        try:
            return all(all(map(is_, map(item, states), column))
                       for item, column in zip(self._of_state, columns, strict=True))
        except (KeyError, TypeError):
            return False


def _addresses(column: Sequence[Tensor]) -> list[int]:
    return list(map(Tensor.data_ptr, column))


def same(some: Collection[Any], others: Collection[Any]) -> bool:
    """Are they the very same objects? (Comparing tensors compares their elements.)"""
    return len(some) == len(others) and all(map(is_, some, others))


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
