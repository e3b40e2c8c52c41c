"""Which terms of a rule exist, and a step of that kind: the keys of rule K1, and their like for rule T."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from samestep.tiling import VARIANTS, decode
from samestep.verify.observation import Problem
from samestep.verify.patterns import Words
from samestep.verify.suite.draw import Rng, mixed, ordinary, stats

LEARNING_RATES = (0.1, 1e-3, 1.0, 0.01, 0.5, 3e-5)
MOMENTA = (0.9, 0.0, 0.99, -0.0, 0.5, 1e-8, -0.5, 0.25)
DAMPENINGS = (0.3, 0.5, 0.9, 1.0, 0.1, -0.25)
WEIGHT_DECAYS = (0.01, 1e-4, 0.1, 0.5, 5e-4)


class Variant(NamedTuple):
    """The terms of one step: for rule cann a key of rule K1, for rule torch also what the step's momentum is.

    `momentum` is ``none`` (it is 0), ``first`` (the parameter's first step with momentum), ``later``, or ``any``.
    """

    name: str
    rule: str
    nesterov: bool
    weight_decay: bool
    dampening: bool
    momentum: str = "any"
    maximize: bool = False


def _cann() -> list[Variant]:
    keys = [decode(number << 1) for number in VARIANTS]
    return [Variant(key.variant, "cann", key.nesterov, key.weight_decay, key.dampening) for key in keys]


def _torch() -> list[Variant]:
    found = []
    for maximize in (False, True):
        for momentum in ("later", "first", "none"):
            for ahead in ("", "dampening", "nesterov") if momentum != "none" else ("", "dampening"):
                for decay in (False, True):
                    terms = [momentum, ahead, decay * "weight_decay", maximize * "maximize"]
                    found.append(Variant("+".join(filter(None, terms)), "torch", ahead == "nesterov", decay,
                                         ahead == "dampening", momentum, maximize))
    return found


VARIANTS_OF = {"cann": _cann(), "torch": _torch()}
KEYS = {variant.name: variant for variant in VARIANTS_OF["cann"]}
DTYPES_OF = {
    "cann": ("float32", "float16", "bfloat16"), "torch": ("float32", "float64", "float16", "bfloat16"),
}


def columns(rng: Rng, n: int, dtype: str, mild: bool = False) -> list[Words]:
    """Parameters, gradient, accum and stat: of all kinds, or `mild` ones, normally distributed."""
    three = ordinary(rng, (3, n), dtype) if mild else mixed(rng, (3, n), dtype)
    return [*three, stats(rng, (n,), dtype)]


def step(
    rng: Rng, variant: Variant, dtype: str, tensors: Sequence[Words], shape: tuple[int, ...] | None = None,
    **fixed: Any,
) -> Problem:
    """A step of `variant`; hyperparameters that are not `fixed` are drawn from the usual ones.

    For rule torch a fixed momentum does not make a variant without momentum one with it, nor the other way round.
    """
    drawn: dict[str, Any] = {
        "learning_rate": LEARNING_RATES[rng.integers(len(LEARNING_RATES))],
        "momentum": MOMENTA[rng.integers(len(MOMENTA))],
        "dampening": DAMPENINGS[rng.integers(len(DAMPENINGS))] if variant.dampening else 0.0,
        "weight_decay": WEIGHT_DECAYS[rng.integers(len(WEIGHT_DECAYS))] if variant.weight_decay else 0.0,
        "nesterov": variant.nesterov, "maximize": variant.maximize, **fixed,
    }
    p, g, a, s = tensors
    accum: Words | None = a
    if variant.rule == "torch":
        if variant.momentum == "none":
            drawn["momentum"] = 0.0
        elif drawn["momentum"] == 0:
            drawn["momentum"] = 0.9
        if variant.momentum == "first" or (variant.momentum == "none" and rng.integers(2)):
            accum = None
    return Problem(dtype, shape or p.shape, p, g, accum, None if variant.rule == "torch" else s, rule=variant.rule,
                   **drawn)


def constant(word: int, n: int, like: Words) -> Words:
    """`n` times the same word."""
    return np.full(n, word, like.dtype)
