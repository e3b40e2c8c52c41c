"""What one update reads and what a rule is: the vocabulary of `samestep.rules`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

Number: TypeAlias = Any  # anything with +, -, * and unary minus: a Fraction, a NumPy array, a traced value


class Terms(NamedTuple):
    """The letters of one update and which of its terms exist at all.

    ``p`` parameters, ``g`` gradient, ``v`` velocity (momentum buffer, accum, trace: the rule's one state), ``s`` stat
    (None where a rule has none), ``lr`` learning rate, ``m`` momentum, ``d`` dampening, ``wd`` weight decay, ``one``
    the 1 of the arithmetic. All are numbers of one type, no literal stands in a rule.

    A flag that is False removes its term: it is not multiplied by zero. ``first`` is a parameter's first step; for a
    rule that starts from "stat" the caller takes the first step's result where ``s > 0`` and the other's elsewhere.
    ``momentum`` is False where the framework's test on the momentum fails (``m == 0``; for mindspore-cpu and mlx
    ``m <= 0``); a rule that overwrites its state there ignores the flag.

    ``undamped`` is 1-d where it is taken before rounding (Python takes it in float64, ONNX gives it as ``beta``); when
    None, it is ``one - d`` in the type of the arithmetic.
    """

    p: Number
    g: Number
    v: Number
    s: Number
    lr: Number
    m: Number
    d: Number
    wd: Number
    one: Number
    nesterov: bool
    weight_decay: bool
    dampening: bool
    first: bool
    momentum: bool = True
    undamped: Number = None


class Rule(NamedTuple):
    """One framework's update.

    ``function`` maps `Terms` to (parameters, velocity) after the step, in the type of the numbers given.
    ``start`` is what a parameter's first step reads instead of a velocity: "zeros", "gradient" or "stat" (per element).
    ``at_zero`` is what becomes of the velocity when the momentum is 0: "kept", "overwritten" or "none" (there is none).
    ``lr`` says whether the velocity holds the learning rate: "outside" or "inside".
    ``weight_decay`` is "L2" (added to the gradient), "decoupled" (taken off the parameters first) or "none".
    ``nesterov`` and ``dampening`` say whether the rule knows these terms; it ignores the flags it doesn't know.
    """

    name: str
    title: str
    used_by: str
    function: Callable[[Terms], tuple[Number, Number]]
    start: str
    at_zero: str
    lr: str
    weight_decay: str
    nesterov: bool = True
    dampening: bool = False


def undamped(t: Terms) -> Number:
    """The factor of the gradient in a damped velocity."""
    return t.one - t.d if t.undamped is None else t.undamped


def decayed_gradient(t: Terms) -> Number:
    """L2 weight decay: the gradient with the decay's added."""
    return t.g + t.wd * t.p if t.weight_decay else t.g
