"""formula.cann as a list of steps: what a graph is made from, so that nobody types the arithmetic again.

The formula is run over numbers that only remember how they were made. Values get the names that formula.py gives them;
a name that is assigned a second time becomes ``accum_t_2``, and what has no name is called by what it is, such as
``p_times_wd``.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple

from samestep import formula
from samestep.contract import check_order
from samestep.tiling import VARIANTS, TilingKey, decode, encode

# the formula's letters: what they stand for
TENSORS = {"p": "parameters", "g": "gradient", "a": "accum", "s": "stat"}
SCALARS = {"lr": "learning_rate", "m": "momentum"}
ATTRIBUTES = {"d": "dampening", "wd": "weight_decay"}
ARGUMENTS = ("p", "g", "lr", "a", "m", "s", "d", "wd", "one")
WORDS = {"add": "plus", "sub": "minus", "mul": "times"}


class Step(NamedTuple):
    """One rounded operation: ``name = left (operation) right``, the operation one of `WORDS`."""

    name: str
    operation: str
    left: str
    right: str


class Trace(NamedTuple):
    """The formula of one variant and order: its steps as it takes them, and the names of its two results."""

    steps: tuple[Step, ...]
    p_out: str
    accum_t: str

    @property
    def reads(self) -> tuple[str, ...]:
        """The arguments the steps read, in the order of `ARGUMENTS`."""
        read = {operand for step in self.steps for operand in (step.left, step.right)}
        return tuple(name for name in ARGUMENTS if name in read)


def variant_key(variant: str | TilingKey) -> TilingKey:
    """The key of ``"K0"`` .. ``"K5"`` (rule K1); a `TilingKey` is checked and comes back. ValueError for others."""
    if isinstance(variant, TilingKey):
        return decode(encode(variant))
    for number, name in VARIANTS.items():
        if name == variant:
            return decode(number << 1)
    raise ValueError(f"{variant!r} is no business variant; there are {', '.join(sorted(VARIANTS.values()))}")


def trace(variant: str | TilingKey, order: str = "spec") -> Trace:
    """The steps of rule O5 for a variant, K0 .. K5 or a key, in an evaluation order.

    ValueError for a variant that does not exist, `ContractError` ``unknown_order`` for an order.
    """
    check_order(order)
    return _trace(variant_key(variant)._replace(sch_mode=0), order)


@functools.cache
def _trace(key: TilingKey, order: str) -> Trace:
    recorder = _Recorder()
    rule: Callable[..., tuple[Any, Any]] = formula.cann
    p_out, accum_t = rule(*(_Number(recorder, name) for name in ARGUMENTS), key.nesterov, key.weight_decay,
                          key.dampening, order == "ascend950")
    # The frame outlives the call, and with it the last names; a result that has none is what it stands for.
    recorder.name_locals()
    p_out.rename("p_out")
    accum_t.rename("accum_t")
    steps = tuple(Step(step.name, step.operation, *(operand.name for operand in step.operands))
                  for step in recorder.steps)
    return Trace(steps, p_out.name, accum_t.name)


class _Recorder:
    """The operations made so far, and the frame of the function that makes them."""

    def __init__(self) -> None:
        self.steps: list[_Number] = []
        self.frame: FrameType | None = None

    def record(self, operation: str, left: _Number, right: _Number, frame: FrameType) -> _Number:
        """Note an operation, after the names that the function gave to earlier ones."""
        self.frame = frame
        self.name_locals()
        made = _Number(self, f"{left.name}_{WORDS[operation]}_{right.name}", operation, (left, right))
        self.steps.append(made)
        return made

    def name_locals(self) -> None:
        """Give every number that a local variable holds the variable's name."""
        for name, value in (self.frame.f_locals if self.frame else {}).items():
            if isinstance(value, _Number):
                value.rename(name)

    def free(self, name: str) -> str:
        """The name, or one with a number where an earlier value has it."""
        taken = {step.name for step in self.steps}
        count = 2
        while name in taken or name in ARGUMENTS:
            stem = name if count == 2 else name.rpartition("_")[0]
            name, count = f"{stem}_{count}", count + 1
        return name


class _Number:
    """A number that remembers how it was made: an argument, or an operation on two others."""

    def __init__(self, recorder: _Recorder, name: str, operation: str = "", operands: tuple[_Number, ...] = ()) -> None:
        self.recorder, self.name, self.operation, self.operands = recorder, name, operation, operands
        self.named = not operation

    def rename(self, name: str) -> None:
        """Call it by the name of a variable, the first one that holds it."""
        if not self.named:
            self.name, self.named = self.recorder.free(name), True

    def __add__(self, other: _Number) -> _Number:
        return self.recorder.record("add", self, other, sys._getframe(1))

    def __sub__(self, other: _Number) -> _Number:
        return self.recorder.record("sub", self, other, sys._getframe(1))

    def __mul__(self, other: _Number) -> _Number:
        return self.recorder.record("mul", self, other, sys._getframe(1))
