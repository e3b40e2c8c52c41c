"""The judge for dialect `torch`: rule T computed exactly for one element, and compared by rule O9.

Only the exact core of the oracle is used; what that says about numbers holds here too. The rule is computed for
whatever values come, also for those that torch refuses (nesterov with dampening, a negative lr).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from operator import index
from typing import NamedTuple, TypeAlias

from samestep.verify.oracle import (
    FLOAT32,
    FLOAT64,
    FORMATS,
    ZERO,
    Difference,
    Format,
    Value,
    decode,
    encode,
    exact_product,
    exact_sum,
    negated,
    round_to,
    same,
)

Column: TypeAlias = Sequence[int]


def fma(x: Value, y: Value, z: Value, fmt: Format) -> Value:
    """x * y + z rounded once to `fmt`."""
    return round_to(exact_sum(exact_product(x, y), z), fmt)


def number_of(number: float, fmt: Format) -> Value:
    """A Python `number` (float or int) rounded once to `fmt`: what a hyperparameter means."""
    if isinstance(number, int):
        exact = (int(number), 0) if number else ZERO
    else:
        exact = decode(struct.unpack("<Q", struct.pack("<d", number))[0], FLOAT64)
    return round_to(exact, fmt)


class TorchRule(NamedTuple):
    """Rule T with all decoded that elements share.

    `arithmetic` is the format of every operation. `weight_decay` and `momentum` are None where the Python number
    is zero, which says that the term is absent; a number that only rounds to zero is the value ZERO.
    """

    arithmetic: Format
    parameter: Format
    gradient: Format
    state: Format
    minus_lr: Value
    momentum: Value | None
    undampened: Value
    weight_decay: Value | None
    nesterov: bool
    maximize: bool

    def update(self, parameter_bits: int, gradient_bits: int, buffer_bits: int | None,
               first: bool) -> tuple[int, int | None]:
        """The bit patterns of (parameter, momentum buffer) after one element's update.

        `first` is the parameter's first step with momentum: the buffer is then not read, and may be None. With
        momentum zero it is neither read nor written, and comes back as it came.
        """
        p = self._read(parameter_bits, self.parameter)
        g = self._read(gradient_bits, self.gradient)
        if self.maximize:
            g = negated(g)
        if self.weight_decay is not None:
            g = fma(self.weight_decay, p, g, self.arithmetic)
        u = g
        stored = None if buffer_bits is None else index(buffer_bits)
        if self.momentum is not None:
            b = g if first else self._moved(self.momentum, g, stored)
            u = fma(self.momentum, b, g, self.arithmetic) if self.nesterov else b
            stored = encode(b, self.state)
        return encode(fma(self.minus_lr, u, p, self.arithmetic), self.parameter), stored

    def _read(self, bits: int, fmt: Format) -> Value:
        """A stored value widened exactly, or rounded once where `fmt` is wider than the arithmetic."""
        return round_to(decode(bits, fmt), self.arithmetic)

    def _moved(self, momentum: Value, g: Value, buffer_bits: int | None) -> Value:
        if buffer_bits is None:
            raise ValueError("the momentum buffer is missing, and this is not the first step")
        kept = round_to(exact_product(momentum, self._read(buffer_bits, self.state)), self.arithmetic)
        return fma(self.undampened, g, kept, self.arithmetic)


def _format(name: str, role: str) -> Format:
    if name not in FORMATS:
        raise ValueError(f"{role} {name!r} is not one of {', '.join(FORMATS)}")
    return FORMATS[name]


def torch_rule(lr: float, *, momentum: float = 0.0, dampening: float = 0.0, weight_decay: float = 0.0,
               nesterov: bool = False, maximize: bool = False, dtype: str = "float32",
               grad_dtype: str | None = None, state_dtype: str | None = None) -> TorchRule:
    """The rule for many elements: the arguments of `torch` that do not change from element to element.

    Hyperparameters are Python numbers. The gradient and the momentum buffer are of `dtype`, the parameter's,
    unless `grad_dtype` or `state_dtype` says otherwise.
    """
    parameter = _format(dtype, "dtype")
    arithmetic = FLOAT64 if parameter == FLOAT64 else FLOAT32
    return TorchRule(
        arithmetic,
        parameter,
        parameter if grad_dtype is None else _format(grad_dtype, "grad_dtype"),
        parameter if state_dtype is None else _format(state_dtype, "state_dtype"),
        negated(number_of(lr, arithmetic)),
        number_of(momentum, arithmetic) if momentum != 0 else None,
        number_of(1.0 - float(dampening), arithmetic),
        number_of(weight_decay, arithmetic) if weight_decay != 0 else None,
        nesterov,
        maximize,
    )


def torch(parameter_bits: int, gradient_bits: int, buffer_bits: int | None, *, lr: float, first: bool,
          momentum: float = 0.0, dampening: float = 0.0, weight_decay: float = 0.0, nesterov: bool = False,
          maximize: bool = False, dtype: str = "float32", grad_dtype: str | None = None,
          state_dtype: str | None = None) -> tuple[int, int | None]:
    """The bit patterns of (parameter, momentum buffer) after the update of one element (rule T)."""
    rule = torch_rule(lr, momentum=momentum, dampening=dampening, weight_decay=weight_decay, nesterov=nesterov,
                      maximize=maximize, dtype=dtype, grad_dtype=grad_dtype, state_dtype=state_dtype)
    return rule.update(parameter_bits, gradient_bits, buffer_bits, first)


def torch_differing(before: tuple[Column, Column, Column | None], after: tuple[Column, Column | None], *,
                    lr: float, first: bool, momentum: float = 0.0, dampening: float = 0.0,
                    weight_decay: float = 0.0, nesterov: bool = False, maximize: bool = False,
                    dtype: str = "float32", grad_dtype: str | None = None,
                    state_dtype: str | None = None) -> list[Difference]:
    """Every pattern of `after` that breaks rule T, in order of position; an empty list means none does.

    `before` is (parameters, gradient, momentum buffer) and `after` is (parameters, momentum buffer): flat
    sequences of patterns, all of one length, with None for a buffer that does not exist. Computed values are
    compared by `same`; with momentum zero the buffer must not have been written, so every bit counts (O9). The
    other arguments are those of `torch`.
    """
    rule = torch_rule(lr, momentum=momentum, dampening=dampening, weight_decay=weight_decay, nesterov=nesterov,
                      maximize=maximize, dtype=dtype, grad_dtype=grad_dtype, state_dtype=state_dtype)
    parameters, gradient, buffer = before
    new_parameters, new_buffer = after
    kept = rule.momentum is None
    if (new_buffer is None) != (kept and buffer is None):
        raise ValueError("a momentum buffer exists after the step if it did before or momentum is not zero")
    count = len(parameters)
    old_column = [None] * count if buffer is None else buffer
    new_column = [None] * count if new_buffer is None else new_buffer
    found: list[Difference] = []
    columns = zip(parameters, gradient, old_column, new_parameters, new_column, strict=True)
    for i, (p, g, b, new_p, new_b) in enumerate(columns):
        expected_p, expected_b = rule.update(p, g, b, first)
        if not same(expected_p, new_p, rule.parameter.name):
            found.append(Difference("parameters", i, expected_p, index(new_p)))
        if expected_b is None or new_b is None or expected_b == new_b:
            continue
        if kept or not same(expected_b, new_b, rule.state.name):
            found.append(Difference("momentum_buffer", i, expected_b, index(new_b)))
    return found
