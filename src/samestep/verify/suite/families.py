"""Families of cases that both rules share, each a function from (variants, dtype, round) to items.

Later rounds draw other values, and where a family does not go through all variants, other ones.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from samestep.verify.observation import Problem
from samestep.verify.patterns import TYPES, WORDS, Words, number_of, word_of
from samestep.verify.suite import draw, judge
from samestep.verify.suite.draw import Item, Rng
from samestep.verify.suite.variants import LEARNING_RATES, MOMENTA, Variant, columns, constant, step

LENGTHS = (*range(1, 71), 127, 128, 129, 251, 257, 509, 1021, 1031, 2053, 4109, 8191)
SHAPES = ((1,), (7,), (3, 5), (2, 1, 4), (1, 1, 1, 1), (2, 3, 2, 5), (2, 2, 3, 1, 2), (1, 2, 1, 3, 1, 2),
          (2, 1, 2, 1, 2, 1, 3), (2, 2, 2, 2, 2, 2, 2, 2), (1, 1, 1, 1, 1, 1, 1, 67))
USUAL = 67  # elements: some vectors and a tail, whatever the vector's width
STEPS = 10


def some(variants: Sequence[Variant], start: int, count: int = 6) -> list[Variant]:
    """`count` of the variants, other ones for another `start`."""
    return [variants[(start * count + k) % len(variants)] for k in range(min(count, len(variants)))]


def _mixed(rng: Rng, variant: Variant, dtype: str, n: int, shape: tuple[int, ...] | None = None,
           **fixed: Any) -> Problem:
    return step(rng, variant, dtype, columns(rng, n, dtype), shape, **fixed)


def kernels(variants: Sequence[Variant], dtype: str, turn: int) -> Iterator[Item]:
    """Every variant with every usual learning rate and momentum, on values of all kinds."""
    for variant, lr in itertools.product(variants, LEARNING_RATES[:4]):
        momenta = MOMENTA if variant.rule == "cann" else (MOMENTA[turn % 3],)
        for m in momenta:
            yield Item(f"kernels/{dtype}/{variant.name}/lr={lr}/m={m}/{turn}", "kernels", _arithmetic(variant), dtype,
                       partial(_mixed, variant=variant, dtype=dtype, n=USUAL, learning_rate=lr, momentum=m))


def _arithmetic(variant: Variant) -> str:
    return "O5" if variant.rule == "cann" else "T"


def training(variants: Sequence[Variant], dtype: str, turn: int) -> Iterator[Item]:
    """Values as in training, where an update is smaller than a parameter, or than its last place."""
    for variant in some(variants, turn, 12):
        for lr in LEARNING_RATES:
            yield Item(f"training/{dtype}/{variant.name}/lr={lr}/{turn}", "training", _arithmetic(variant), dtype,
                       partial(_trained, variant=variant, dtype=dtype, learning_rate=lr))


def _trained(rng: Rng, variant: Variant, dtype: str, **fixed: Any) -> Problem:
    p, g, a, s = columns(rng, 2 * USUAL, dtype, mild=True)
    g, a = (draw.ordinary(rng, p.shape, dtype, 10.0 ** rng.integers(-4, 1)) for _ in range(2))
    return step(rng, variant, dtype, [p, g, a, s], **fixed)


def rounding(variants: Sequence[Variant], dtype: str, turn: int) -> Iterator[Item]:
    """Results that lie halfway between two values, or next to it, when they are stored."""
    for variant in some(variants, turn, 12):
        for m in (0.0, 0.5, 1.0):
            yield Item(f"rounding/{dtype}/{variant.name}/m={m}/{turn}", "rounding", _arithmetic(variant), dtype,
                       partial(_halfway, variant=variant, dtype=dtype, learning_rate=0.5, momentum=m))


def _halfway(rng: Rng, variant: Variant, dtype: str, **fixed: Any) -> Problem:
    """Parameters of all last places near 1, and steps of few halves of one; the same for accum."""
    one, n = word_of(1.0, dtype), 4 * USUAL
    word = WORDS[dtype]
    unit = number_of(one + 1, dtype) - 1.0
    p = one + rng.integers(0, 64, n).astype(word)
    g, a = ((rng.integers(-9, 10, n) * unit * scale).astype(np.float64) for scale in (1.0, 2.0))
    g, a = (np.array(x).astype(TYPES[dtype]).view(word) for x in (g, a))
    a = np.where(rng.integers(0, 2, n) > 0, a, p)
    return step(rng, variant, dtype, [p, g, a, draw.stats(rng, (n,), dtype)], **fixed)


def specials(variants: Sequence[Variant], dtype: str, turn: int) -> Iterator[Item]:
    """All pairs of special values in each two tensors, and each as learning rate and momentum."""
    roles = 4 if variants[0].rule == "cann" else 3
    for variant in variants if turn == 0 else some(variants, turn):
        for one, other in itertools.combinations(range(roles), 2):
            names = "pgas"
            yield Item(f"specials/{dtype}/{variant.name}/{names[one]}{names[other]}/{turn}", "specials", "O7", dtype,
                       partial(_pairs, variant=variant, dtype=dtype, one=one, other=other))
    numbers = [x for x in draw.special_numbers(dtype) if variants[0].rule == "cann" or not math.isnan(x)]
    for k, number in enumerate(numbers):
        for variant, name in itertools.product(some(variants, turn + k), ("learning_rate", "momentum")):
            yield Item(f"specials/{dtype}/{variant.name}/{name}={number!r}/{turn}", "specials", "O7", dtype,
                       partial(_all_special, variant=variant, dtype=dtype, fixed={name: number}))


def _pairs(rng: Rng, variant: Variant, dtype: str, one: int, other: int) -> Problem:
    words = draw.specials(dtype)
    tensors = columns(rng, len(words) ** 2, dtype, mild=True)
    tensors[one], tensors[other] = np.repeat(words, len(words)), np.tile(words, len(words))
    return step(rng, variant, dtype, tensors)


def _all_special(rng: Rng, variant: Variant, dtype: str, fixed: dict[str, Any]) -> Problem:
    words = draw.specials(dtype)
    tensors = [rng.permutation(words) for _ in range(4)]
    return step(rng, variant, dtype, tensors, **fixed)


def patterns(variants: Sequence[Variant], dtype: str, turn: int) -> Iterator[Item]:
    """Any bit patterns; in 16 bits every one of them as gradient."""
    for variant in some(variants, turn):
        yield Item(f"patterns/{dtype}/{variant.name}/{turn}", "patterns", _arithmetic(variant), dtype,
                   partial(_any, variant=variant, dtype=dtype))


def _any(rng: Rng, variant: Variant, dtype: str) -> Problem:
    n = {"float32": 1 << 14, "float64": 1 << 9}.get(dtype, 1 << 16)
    p, g, a = (draw.patterns(rng, (n,), dtype) for _ in range(3))
    if n == 1 << 16:
        g = np.arange(n, dtype=WORDS[dtype])
    return step(rng, variant, dtype, [p, g, a, draw.stats(rng, (n,), dtype)])


def tails(variants: Sequence[Variant], dtype: str, turn: int) -> Iterator[Item]:
    """Lengths around the widths of vectors, and primes (O8: an element's bits do not depend on its place)."""
    for k, n in enumerate(LENGTHS):
        for variant in some(variants, turn + k):
            yield Item(f"tails/{dtype}/{variant.name}/n={n}/{turn}", "tails", "O8", dtype,
                       partial(_mixed, variant=variant, dtype=dtype, n=n))


def alignment(variants: Sequence[Variant], dtype: str, turn: int) -> Iterator[Item]:
    """Tensors that begin at every place of a 64-byte line."""
    places = 64 // np.dtype(WORDS[dtype]).itemsize
    for offset in range(1, places, 1 if turn else max(1, places // 16)):
        for variant in some(variants, turn + offset):
            yield Item(f"alignment/{dtype}/{variant.name}/+{offset}/{turn}", "alignment", "O8", dtype,
                       partial(_mixed, variant=variant, dtype=dtype, n=USUAL + offset), offset=offset)


def determinism(variants: Sequence[Variant], dtype: str, turn: int) -> Iterator[Item]:
    """One element, many times: at every index, in tensors of several lengths and alignments, the same bits."""
    for k, n in enumerate((1, 9, 64, 131, 1000)):
        for variant in some(variants, turn + k, 12):
            stream = f"determinism/{dtype}/{variant.name}/{turn}"  # the same element at every length
            yield Item(f"{stream}/n={n}", "determinism", "O8", dtype,
                       partial(_repeated, variant=variant, dtype=dtype, n=n), offset=n % 5, stream=stream)


def _repeated(rng: Rng, variant: Variant, dtype: str, n: int) -> Problem:
    one = step(rng, variant, dtype, columns(rng, 1, dtype))

    def repeat(words: Words | None) -> Words | None:
        return None if words is None else constant(int(words[0]), n, words)

    p, g = constant(int(one.parameters[0]), n, one.parameters), constant(int(one.gradient[0]), n, one.gradient)
    return one._replace(shape=(n,), parameters=p, gradient=g, accum=repeat(one.accum), stat=repeat(one.stat))


def shapes(variants: Sequence[Variant], dtype: str, turn: int) -> Iterator[Item]:
    """Ranks 1 to 8 (O2)."""
    for k, shape in enumerate(SHAPES):
        for variant in some(variants, turn + k, 3):
            yield Item(f"shapes/{dtype}/{variant.name}/{'x'.join(map(str, shape))}/{turn}", "shapes", "O2", dtype,
                       partial(_mixed, variant=variant, dtype=dtype, n=int(np.prod(shape)), shape=shape))


def bounds(variants: Sequence[Variant], dtype: str, turn: int) -> Iterator[Item]:
    """The memory before and behind every tensor stays as it is, and so do learning_rate and momentum (O6)."""
    for k, n in enumerate((1, 2, 3, 5, 7, 15, 17, 31, 33, 63, 65, 1027)):
        for variant in some(variants, turn + k):
            yield Item(f"bounds/{dtype}/{variant.name}/n={n}/{turn}", "bounds", "O6", dtype,
                       partial(_mixed, variant=variant, dtype=dtype, n=n), offset=(n + turn) % 8, guarded=True)


def steps(variants: Sequence[Variant], dtype: str, turn: int, order: str = "spec") -> Iterator[Item]:
    """Ten steps of one model: state is carried over, lr and momentum change, momentum passes through 0 and -0."""
    kinds = [variant for variant in variants if variant.momentum in ("any", "later")]
    rule = "O6" if kinds[0].rule == "cann" else "T"
    for variant in some(kinds, turn, 12):
        for begin in ("fresh", "drawn"):
            stream = f"steps/{dtype}/{variant.name}/{begin}/{turn}"
            for k in range(STEPS):
                yield Item(f"{stream}/step {k}", "steps", rule, dtype,
                           partial(_later, variant=variant, dtype=dtype, k=k, fresh=begin == "fresh", order=order),
                           stream=stream)


def _later(rng: Rng, variant: Variant, dtype: str, k: int, fresh: bool, order: str) -> Problem:
    """Step `k` from where the judge's own steps before it led."""
    p, g, a, s = columns(rng, USUAL, dtype, mild=True)
    problem = step(rng, variant, dtype, [p, g, a, s])
    if fresh:
        a, s = constant(0, USUAL, a), constant(word_of(1.0, dtype), USUAL, a)
        problem = problem._replace(accum=None if variant.rule == "torch" else a,
                                   stat=None if variant.rule == "torch" else s)
    zeros = rng.permutation(STEPS)[:3]
    schedule = [(LEARNING_RATES[rng.integers(6)], float(rng.uniform(0.5, 1.0))) for _ in range(STEPS)]
    for index, sign in zip(zeros, (0.0, -0.0, 0.0), strict=True):
        schedule[index] = schedule[index][0], sign
    for i, (lr, m) in enumerate(schedule[:k + 1]):
        gradient = draw.ordinary(rng, (USUAL,), dtype)
        problem = problem._replace(gradient=gradient, learning_rate=lr, momentum=m)
        if i < k:
            problem = judge.expected(problem, order)
    return problem
