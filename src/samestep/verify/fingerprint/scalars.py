"""The hyperparameters as an arithmetic takes them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from samestep.verify.fingerprint.hypotheses import Hypothesis, rounded_names
from samestep.verify.observation import Problem
from samestep.verify.patterns import number_of, word_of


class Scalars(NamedTuple):
    """The hyperparameters as the arithmetic takes them; `undamped` is 1-d."""

    lr: float
    m: float
    d: float
    wd: float
    undamped: float


def momentum_of(problem: Problem) -> float:
    """The momentum as the step's test for zero sees it."""
    if problem.rule == "torch":
        return problem.momentum
    return number_of(word_of(problem.momentum, problem.dtype), problem.dtype)


def float32_of(value: float) -> float:
    """The nearest float32."""
    with np.errstate(all="ignore"):
        return float(np.float32(value))


def scalars_of(h: Hypothesis, problem: Problem) -> Scalars:
    """The hyperparameters of a problem as `h` takes them."""
    exact = {"lr": problem.learning_rate, "momentum": momentum_of(problem), "dampening": problem.dampening,
             "weight_decay": problem.weight_decay}
    if problem.rule == "cann":
        exact["lr"] = number_of(word_of(problem.learning_rate, problem.dtype), problem.dtype)
    rounded = rounded_names(h)
    wide_given = h.hyperparameters == "float64" or problem.dtype == "float64"

    def taken(name: str, value: float) -> float:
        if name in rounded:
            return number_of(word_of(float32_of(value), problem.dtype), problem.dtype)
        return value if wide_given else float32_of(value)

    lr, m, d, wd = (taken(name, value) for name, value in exact.items())
    return Scalars(lr, m, d, wd, taken("dampening", 1.0 - problem.dampening))
