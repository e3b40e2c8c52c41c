"""One step of somebody's kernel: what went in, what came out. What compare and fingerprint look at.

A target is any Python callable that takes NumPy arrays and either writes them in place or returns new ones:

- rule cann: ``target(parameters, gradient, learning_rate, accum, momentum, stat, *, dampening, weight_decay,
  nesterov)``, learning_rate and momentum of shape (1,) and the tensors' dtype; returns None or (parameters, accum,
  stat);
- rule torch: ``target(parameters, gradient, momentum_buffer, *, lr, momentum, dampening, weight_decay, nesterov,
  maximize)``, momentum_buffer None before a parameter's first step with momentum; returns None or (parameters,
  momentum_buffer), and must return the buffer where it made one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from samestep.verify.patterns import TYPES, WORDS, Words, values_of, word_of

Target: TypeAlias = Callable[..., Any]


class TargetError(Exception):
    """A target returned something that cannot be judged: a wrong count, dtype or shape, or no array at all."""


class Problem(NamedTuple):
    """The inputs of one step, for rule ``cann`` or ``torch``.

    Tensors are flat words of `dtype`, to be given the shape `shape`. For rule torch `accum` is the momentum buffer, or
    None before the first step with momentum, and `stat` is None. `learning_rate` and `momentum` are the numbers given;
    rule cann rounds them to `dtype` when it makes tensors of them.
    """

    dtype: str
    shape: tuple[int, ...]
    parameters: Words
    gradient: Words
    accum: Words | None
    stat: Words | None
    learning_rate: float
    momentum: float
    dampening: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    maximize: bool = False
    rule: str = "cann"


class Observation(NamedTuple):
    """A step that was made: the problem, and flat words of what stood in the written tensors afterwards.

    A tensor that does not exist, or was not recorded, is None. `gradient` is None where it was not looked at again.
    """

    problem: Problem
    parameters: Words
    accum: Words | None
    stat: Words | None
    gradient: Words | None = None


def observe(target: Target, problem: Problem, *, offset: int = 0) -> Observation:
    """Run `target` on fresh copies of the problem's tensors, each beginning `offset` elements into its allocation.

    What the target raises passes through; `TargetError` says that what it returned cannot be judged.
    """
    p, g, a, s = (_placed(words, problem, offset)
                  for words in (problem.parameters, problem.gradient, problem.accum, problem.stat))
    attributes = {"dampening": problem.dampening, "weight_decay": problem.weight_decay, "nesterov": problem.nesterov}
    if problem.rule == "torch":
        returned = target(p, g, a, lr=problem.learning_rate, momentum=problem.momentum, maximize=problem.maximize,
                          **attributes)
        after = _after(returned, {"parameters": p, "momentum_buffer": a}, problem)
        return Observation(problem, after[0], after[1], None, _words(g, "gradient", problem))
    lr, m = (np.array([word_of(number, problem.dtype)], WORDS[problem.dtype]).view(TYPES[problem.dtype])
             for number in (problem.learning_rate, problem.momentum))
    returned = target(p, g, lr, a, m, s, **attributes)
    after = _after(returned, {"parameters": p, "accum": a, "stat": s}, problem)
    return Observation(problem, after[0], after[1], after[2], _words(g, "gradient", problem))


def _placed(words: Words | None, problem: Problem, offset: int) -> Any:
    if words is None:
        return None
    memory = np.empty(words.size + offset, words.dtype)
    memory[offset:] = words
    return values_of(memory[offset:], problem.dtype).reshape(problem.shape)


def _after(returned: Any, given: dict[str, Any], problem: Problem) -> list[Any]:
    """The words of the written tensors: those returned, or those given where None came back."""
    if returned is None:
        arrays = tuple(given.values())
    elif isinstance(returned, (tuple, list)) and len(returned) == len(given):
        arrays = tuple(returned)
    else:
        raise TargetError(f"the target returned {type(returned).__name__}; it must return None, after writing in "
                          f"place, or a tuple of {len(given)}: {', '.join(given)}")
    return [None if array is None else _words(array, name, problem)
            for name, array in zip(given, arrays, strict=True)]


def _words(array: Any, name: str, problem: Problem) -> Words:
    size = problem.parameters.size
    if not isinstance(array, np.ndarray) or array.dtype != TYPES[problem.dtype] or array.size != size:
        came = f"{array.dtype} of shape {array.shape}" if isinstance(array, np.ndarray) else type(array).__name__
        raise TargetError(f"{name}: the target gave {came}; expected a NumPy array of {problem.dtype} and shape "
                          f"{problem.shape}")
    return np.ascontiguousarray(array).reshape(-1).view(WORDS[problem.dtype])
