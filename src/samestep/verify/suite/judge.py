"""The judge for volume as verify uses it: what had to come out of a step, and where something else did."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from samestep.verify import vectorised
from samestep.verify.observation import Observation, Problem
from samestep.verify.patterns import Words, differs, word_of

TENSORS = ("parameters", "gradient", "accum", "stat")
BLOCK = 8192  # elements: the judge's temporaries, of 8 bytes an element, then stay in the second-level cache


class Found(NamedTuple):
    """One tensor after a step: `wrong` says which elements break its rule; None where none does."""

    tensor: str
    expected: Words
    got: Words
    wrong: NDArray[np.bool_] | None


def part(problem: Problem, start: int, stop: int) -> Problem:
    """The problem of the elements from `start` up to `stop` alone, in one dimension; views of the same memory."""
    tensors: dict[str, Any] = {name: words[start:stop] for name in TENSORS
                               if (words := getattr(problem, name)) is not None}
    return problem._replace(shape=(stop - start,), **tensors)


def expected(problem: Problem, order: str = "spec") -> Problem:
    """The problem with its tensors as they have to stand afterwards (rules O5, O6 or T)."""
    n = problem.parameters.size
    if n <= BLOCK:
        return _expected(problem, order)
    blocks = [_expected(part(problem, start, min(start + BLOCK, n)), order) for start in range(0, n, BLOCK)]
    tensors: dict[str, Any] = {name: np.concatenate([getattr(block, name) for block in blocks]) for name in TENSORS
                               if getattr(blocks[0], name) is not None}
    return blocks[0]._replace(shape=problem.shape, **tensors)


def _expected(problem: Problem, order: str) -> Problem:
    dtype, decay = problem.dtype, problem.weight_decay
    if problem.rule == "torch":
        p, b = vectorised.torch(
            problem.parameters, problem.gradient, problem.accum, lr=problem.learning_rate,
            first=problem.accum is None, momentum=problem.momentum, dampening=problem.dampening, weight_decay=decay,
            nesterov=problem.nesterov, maximize=problem.maximize, dtype=dtype)
        return problem._replace(parameters=p, accum=b)
    assert problem.accum is not None
    assert problem.stat is not None
    lr, m = (word_of(number, dtype) for number in (problem.learning_rate, problem.momentum))
    p, a, s = vectorised.cann(
        problem.parameters, problem.gradient, lr, problem.accum, m, problem.stat, dtype=dtype,
        dampening=problem.dampening, weight_decay=decay, nesterov=problem.nesterov, order=order)
    return problem._replace(parameters=p, accum=a, stat=s)


def keeps_state(problem: Problem) -> bool:
    """Is momentum zero (O6: in the tensor's dtype; T: as a number), so that no byte of the state may be written?"""
    return problem.momentum == 0 or (problem.rule == "cann"
                                     and word_of(abs(problem.momentum), problem.dtype) == 0)


def judge(seen: Observation, order: str = "spec") -> list[Found] | str:
    """Compare every tensor that was written, and the gradient, which must not be, with the rule (O9).

    In words where a momentum buffer should exist after the step and does not, or the other way round.
    """
    problem = seen.problem
    right = expected(problem, order)
    if (right.accum is None) != (seen.accum is None):
        return ("no momentum buffer came back" if seen.accum is None
                else "a momentum buffer came back from a step without momentum that got none")
    computed = not keeps_state(problem)
    state = "accum" if problem.rule == "cann" else "momentum_buffer"
    tensors = [("parameters", right.parameters, seen.parameters, True), (state, right.accum, seen.accum, computed),
               ("stat", right.stat, seen.stat, computed)]
    if seen.gradient is not None:
        tensors.append(("gradient", problem.gradient, seen.gradient, False))
    found = []
    for name, one, other, is_computed in tensors:
        if one is not None and other is not None:
            wrong = differs(one, other, problem.dtype, computed=is_computed)
            found.append(Found(name, one, other, wrong if wrong.any() else None))
    return found
