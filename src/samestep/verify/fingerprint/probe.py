"""Inputs that tell hypotheses apart: hyperparameters of every kind, and tensors rich in hard cases."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from samestep.verify.fingerprint.evaluate import Case
from samestep.verify.fingerprint.hypotheses import Hypothesis
from samestep.verify.fingerprint.numbers import TINY, stored, wide
from samestep.verify.observation import Observation, Problem
from samestep.verify.patterns import INFINITY, TYPES, WORDS, Words, is_nan
from samestep.verify.vectorised import Wide

STATS = (0.0, 0.0, 1.0, 1.0, 0.5, 0.7, 0.1, 2.0, -1.0, -0.0, math.nan, math.inf)
SPECIALS = (0.0, -0.0, 1.0, -1.0, 3.0, math.inf, -math.inf, math.nan, 1e-3, -65504.0, 6e-8, 1.0009765625)


class Setting(NamedTuple):
    """The hyperparameters of a probe; `first` makes it a parameter's first step (rule torch)."""

    lr: float
    momentum: float
    dampening: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    maximize: bool = False
    first: bool = False


# (dampening, weight decay, nesterov) for the six keys; the fullest ones first
KEYS = ((0.3, 0.01, False), (0.0, 0.01, True), (0.3, 0.0, False), (0.0, 0.01, False), (0.0, 0.0, True),
        (0.0, 0.0, False))
MAIN = tuple(Setting(0.1, 0.9, *key) for key in KEYS)
MOMENTA = (-0.0, 1e-8, -1e-8, 1e-30, 1e-40, 6e-8, 3e-5, 5e-7, 1e-3, -0.5, 1.0, 1.5, math.nan, math.inf)


def settings(rule: str) -> list[Setting]:
    """The hyperparameters that a callable of the convention `rule` is probed with, the main ones first."""
    chosen = list(MAIN)
    chosen += [Setting(0.5, 0.5, d and 0.5, wd and 0.5, nesterov) for d, wd, nesterov in KEYS]
    chosen += [Setting(0.1, 0.0, *key) for key in KEYS]
    chosen += [Setting(0.1, m, *KEYS[(0, 5)[k % 2]]) for k, m in enumerate(MOMENTA)]
    chosen += [Setting(0.1, m, *KEYS[1]) for m in (-0.5, 1e-8, math.nan)]
    chosen += [Setting(1e-3, 0.95, 0.9, 1e-4), Setting(3.0, 0.99, 1.0, 2.5), Setting(1e-3, 0.9, 0.0, 1e-4, True),
               Setting(-0.1, 0.9, -0.5, 0.3), Setting(1e-8, 0.7, 1.7, 0.0), Setting(1.0, 1.0, 0.5, 1.0),
               Setting(0.1, 0.9, 1e-9, 1e-9)]
    # Large inexact products, whose roundings show in float16 parameters alone.
    chosen += [Setting(3.0, 0.99, 0.0, 2.7), Setting(3.0, 0.99, 0.7, 2.7), Setting(3.0, 0.99, 0.0, 2.7, True)]
    if rule == "torch":
        chosen += [s._replace(maximize=True) for s in MAIN]
        chosen += [s._replace(first=True) for s in (*MAIN, chosen[12], chosen[14])]
    return chosen


def problem(setting: Setting, dtype: str, rule: str, tensors: Sequence[Words]) -> Problem:
    """The problem of a setting and the words of parameters, gradient, accum and stat."""
    p, g, a, s = tensors
    torch = rule == "torch"
    return Problem(dtype, (p.size,), p, g, None if torch and setting.first else a, None if torch else s, setting.lr,
                   setting.momentum, setting.dampening, setting.weight_decay, setting.nesterov, setting.maximize, rule)


def setting_of(q: Problem) -> Setting:
    """The hyperparameters of a problem."""
    return Setting(q.learning_rate, q.momentum, q.dampening, q.weight_decay, q.nesterov, q.maximize,
                   q.rule == "torch" and q.accum is None)


def unobserved(q: Problem) -> Case:
    """A case for predictions alone."""
    return Case(Observation(q, q.parameters, None, None))


def _words(values: Any, dtype: str) -> Words:
    with np.errstate(all="ignore"):
        return stored(np.asarray(values, np.float64), dtype)


def tensors(rng: np.random.Generator, dtype: str, size: int) -> list[Words]:
    """Words of parameters, gradient, accum and stat: ordinary numbers, patterns, specials, both ends of the range.

    Three quarters of the elements are ordinary; half the elements of a special kind hold one special value only.
    """
    # Extreme float64 numbers are rare: their fused multiply-add is computed in integers.
    word, kind = WORDS[dtype], rng.integers(0, 96 if dtype == "float64" else 16, size)
    largest = float(wide(np.array([INFINITY[dtype] - 1], word), dtype)[0])
    columns = []
    for _ in range(3):
        normal = rng.standard_normal(size)
        mixed = normal * np.exp2(rng.integers(-5, 5, size))
        tiny = normal * TINY[dtype] * np.exp2(rng.integers(-7, 4, size))
        huge = normal * largest / np.exp2(rng.integers(0, 4, size))
        special = rng.choice(np.array([*SPECIALS, largest, TINY[dtype], -TINY[dtype] / 4]), size)
        some = rng.integers(0, 2, size) == 0
        values = np.select([kind == 1, kind == 2, (kind == 3) & some, kind > 11], [tiny, huge, special, mixed], normal)
        patterns = rng.integers(0, np.iinfo(word).max, size, word, endpoint=True)
        columns.append(np.where((kind == 0) & some, patterns, _words(values, dtype)))
    usual = _words(rng.choice(np.array(STATS), size), dtype)
    fractions = _words(rng.random(size), dtype)
    return [*columns, np.where(rng.integers(0, 4, size) == 0, fractions, usual)]


def cancelling(rng: np.random.Generator, dtype: str, rule: str, setting: Setting, size: int,
               reference: Hypothesis) -> list[Words]:
    """Tensors on which a sum of the reference rule almost cancels, so that its operands' roundings show.

    The first third has such a velocity, the second such parameters, the third such a step from parameters 0.
    """
    columns = [_words(rng.standard_normal(size), dtype) for _ in range(3)]
    stat = _words(rng.choice(np.array([0.0, 0.0, 1.0, 0.5, 0.7, 0.1]), size), dtype)
    third = size // 3
    columns[0][2 * third:] = 0
    columns[2][:third // 2] = 0

    def outcome(which: int, column: int) -> Callable[[Words], Wide]:
        def run(words: Words) -> Wide:
            changed = [*columns[:column], words, *columns[column + 1:], stat]
            return unobserved(problem(setting, dtype, rule, changed)).core(reference, True)[which]
        return run

    velocity, step, moved = outcome(1, 1), outcome(0, 1), outcome(0, 0)
    roots = {name: _root(function, columns[k], dtype) for name, function, k in (
        ("velocity", velocity, 1), ("step", step, 1), ("moved", moved, 0))}
    columns[1] = np.concatenate([roots["velocity"][:third], columns[1][third:2 * third], roots["step"][2 * third:]])
    columns[0] = np.concatenate([columns[0][:third], roots["moved"][third:2 * third], columns[0][2 * third:]])
    return [*columns, stat]


def _root(function: Callable[[Words], Wide], words: Words, dtype: str) -> Words:
    """Where a linear function of one tensor is almost zero, by its secant."""
    one = wide(words, dtype)
    other = one + 1.0
    with np.errstate(all="ignore"):
        first, second = function(words), function(_words(other, dtype))
        root = one - first * (wide(_words(other, dtype), dtype) - one) / (second - first)
        root = np.where(np.isfinite(root), root, one)
    return _words(root, dtype)


def apart(case: Case, hypotheses: Sequence[Hypothesis]) -> tuple[bool, NDArray[np.bool_]]:
    """Whether any two hypotheses expect different things of a case, and of which elements."""
    columns = ([_canonical(words, case.problem.dtype) for words in _expected(case, h)] for h in hypotheses)
    differing = np.zeros(case.size, bool)
    first = next(columns)
    for column in columns:
        for mine, other in zip(column, first, strict=True):
            differing |= mine != other
    return bool(differing.any()), differing


def _expected(case: Case, h: Hypothesis) -> list[Words]:
    """The written tensors as one hypothesis expects them; what does not exist is all ones."""
    expected = case.predict(h)
    absent = np.full(case.size, np.iinfo(WORDS[case.problem.dtype]).max, WORDS[case.problem.dtype])
    return [absent if words is None else words for words in expected[:3]]


def _canonical(words: Words, dtype: str) -> Words:
    """Every NaN as one pattern."""
    nan = np.array([math.nan], TYPES[dtype]).view(WORDS[dtype])
    return np.where(is_nan(words, dtype), nan, words)
