"""From an input that breaks a rule to the smallest one found that still breaks it: fewest elements, simplest values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from samestep.verify.observation import Problem
from samestep.verify.patterns import Words, is_nan, word_of
from samestep.verify.suite.judge import TENSORS, part

SIMPLE = (0.0, 1.0, -1.0, 2.0, 0.5)
HYPERPARAMETERS = {
    "nesterov": (False,), "maximize": (False,), "weight_decay": (0.0, 1.0, 0.5), "dampening": (0.0, 1.0, 0.5),
    "momentum": (0.0, 1.0, 0.5), "learning_rate": (1.0, 0.5),
}


def shrink(problem: Problem, position: int, fails: Callable[[Problem], bool], attempts: int = 400) -> Problem:
    """Simplify `problem` as long as it `fails`; `position` is an element that does. At most so many attempts."""
    left = attempts

    def still(candidate: Problem) -> bool:
        nonlocal left
        left -= 1
        return left >= 0 and fails(candidate)

    problem = _fewest(problem, position, still)
    if still(plain := _first_step(problem)):
        problem = plain
    while left > 0:
        before = problem
        for name in (*HYPERPARAMETERS, *TENSORS):
            for value in _simpler(problem, name):
                if still(simpler := problem._replace(**{name: value})):
                    problem = simpler
                    break
        if problem is before:
            break
    return problem


def _fewest(problem: Problem, position: int, still: Callable[[Problem], bool]) -> Problem:
    """One element where that fails; else a run, cut from both ends in ever smaller pieces."""
    n = problem.parameters.size
    for start, stop in ((position, position + 1), (0, n)):
        if still(cut := part(problem, start, stop)):
            problem = cut
            break
    else:
        return problem  # it fails in its own shape only
    piece = problem.parameters.size // 2
    while piece:
        n = problem.parameters.size
        for start, stop in ((0, n - piece), (piece, n)):
            if stop - start >= 1 and still(cut := part(problem, start, stop)):
                problem = cut
                break
        else:
            piece //= 2
        piece = min(piece, problem.parameters.size - 1)
    return problem


def _first_step(problem: Problem) -> Problem:
    """The tensors of a step that everybody can do in the head: everything 0, the gradient 1."""
    simple = {name: np.full_like(words, word_of(float(name == "gradient"), problem.dtype))
              for name in TENSORS if (words := getattr(problem, name)) is not None}
    return problem._replace(**simple)


def _simpler(problem: Problem, name: str) -> Iterator[Any]:
    """What may stand in the place of `name` that is simpler than what does, the simplest first."""
    present = getattr(problem, name)
    if name in TENSORS:
        if present is not None:
            yield from _simpler_words(present, problem.dtype)
        return
    for value in HYPERPARAMETERS[name]:
        if repr(value) == repr(present):
            return
        yield value


def _simpler_words(words: Words, dtype: str) -> Iterator[Words]:
    for value in SIMPLE:
        simple = np.full_like(words, word_of(value, dtype))
        if np.array_equal(simple, words):
            return
        yield simple
    if words.size == 1 and not is_nan(words, dtype)[0]:
        yield from _rounder(words)


def _rounder(words: Words) -> Iterator[Words]:
    """The one word with ever fewer of its last bits cleared."""
    word = int(words[0])
    for width in range(word.bit_length() - 1, -1, -1):
        cleared = word >> width << width
        if cleared != word and cleared:
            yield np.full_like(words, cleared)
