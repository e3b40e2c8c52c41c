"""What everything that is timed looks like: a case, its tensors, and a peer that can do the case's step."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from numpy.typing import NDArray

Array = NDArray[Any]
LR = 0.05  # large enough that an update that gets lost shows in every dtype


class Settings(NamedTuple):
    """The hyperparameters of a case, for the operator (rules O) and the optimizer (rule T) alike."""

    momentum: float = 0.0
    dampening: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    maximize: bool = False
    lr: float = LR


class Case(NamedTuple):
    """One row of the benchmark: which step, of which dtype, with which hyperparameters, on which tensors.

    ``suite`` is "op" (the operator: parameters, gradient, learning_rate, accum, momentum, stat) or "optim" (a whole
    `step()` of an optimizer). ``setting`` names ``settings``: "K0" .. "K5" for the operator, a word for the optimizer.
    ``shape`` names ``shapes``, the shapes of all tensor sets.
    """

    suite: str
    dtype: str
    setting: str
    shape: str
    settings: Settings
    shapes: tuple[tuple[int, ...], ...]

    @property
    def name(self) -> str:
        """How people name the case: "op float32 K3 ResNet-50"."""
        return f"{self.suite} {self.dtype} {self.setting} {self.shape}"

    @property
    def elements(self) -> int:
        """Elements of all parameters together."""
        return sum(map(math.prod, self.shapes))


class Memory(NamedTuple):
    """The tensors of a case, one NumPy array per tensor set in each list, C-contiguous, beginning on a cache line.

    Peers that work in place work on this very memory (a torch tensor over it, where they need one), so that none has a
    better place than another. Peers that cannot (JAX) copy it when they are prepared and when they are reset.
    ``fill`` writes the values of the start into all of it again: parameters, gradient and accum standard normal
    numbers, stat 1. In suite "optim" ``accum`` and ``stat`` are empty lists: the optimizers make their own state.
    ``learning_rate`` and ``momentum`` are one-element arrays of the case's dtype.
    """

    parameters: list[Array]
    gradient: list[Array]
    accum: list[Array]
    stat: list[Array]
    learning_rate: Array
    momentum: Array
    fill: Callable[[], None]


class Written(NamedTuple):
    """What a step wrote, as NumPy arrays of the case's dtype, one per tensor set; None for state a peer does not keep.

    In suite "optim" ``accum`` holds the momentum buffers in torch's meaning (velocity before the learning rate), None
    for a peer whose buffers mean something else.
    """

    parameters: list[Array]
    accum: list[Array] | None
    stat: list[Array] | None


class Prepared(NamedTuple):
    """A peer made ready for a case.

    ``step`` does one whole step and returns when it is done. ``written`` returns what is there now. ``reset`` takes the
    peer back to before its first step; it is called after `Memory.fill`, and whenever another peer may have used the
    memory.
    """

    step: Callable[[], object]
    written: Callable[[], Written]
    reset: Callable[[], None]


class Peer(NamedTuple):
    """Something that can be timed.

    ``unavailable`` returns why it cannot run here at all (a package that is missing, with the pip command), else None.
    ``cannot`` returns why it is left out of one case (a dtype it has not, a list that takes minutes to compile), else
    None. ``prepare`` makes it ready. ``claims`` is the rule its results are checked against: "cann" (rules O, exact
    bits), "torch" (rule T, exact bits), or "real" for the same formula in real arithmetic, each stored tensor within a
    few units in the last place; "" for the limit, which does no step. ``threads`` is for people: whose threads it uses.
    """

    name: str
    title: str
    claims: str
    unavailable: Callable[[], str | None]
    cannot: Callable[[Case], str | None]
    prepare: Callable[[Case, Memory], Prepared]
