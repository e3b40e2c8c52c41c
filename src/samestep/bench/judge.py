"""Does a peer do the step it claims? Three steps are compared with the exact rule before a peer is timed.

"same bits": no compared element differs from the rule (O9). "rounding": elements differ, but each by no more than two
evaluations of the same formula can differ that round differently. "wrong": anything else.

How far two right evaluations can be apart is not guessed but carried along, element by element. Let u be half a unit in
the last place of the case's dtype, relative to the number (2**-24 for float32, 2**-11 for float16, 2**-9 for bfloat16).
A peer may round every intermediate to the dtype, may round hyperparameters to it, and may expand or fuse terms; then
at most so many roundings lie between a term and what it goes into:

    weight decay      grad = g + wd*p               3 on wd*p (wd, the product, the sum), 1 on g
    velocity          a' = m*a + k*grad             5 (a hyperparameter, up to two products, two sums); k = 1 - d*(1-s)
    step              lr*a', lr*(grad + m*a')       5 (lr, another hyperparameter, two products, one sum)
    parameters        p' = p - step                 2 of the size of p: nesterov may come off in two parts

The rule itself rounds in float32 (float64 for float64) and once more where it stores. Both sides' errors add up, and so
do those of earlier steps, multiplied by what the formula multiplies them by. In float32 the bound on a parameter comes
to some ten units in the last place of the largest term after three steps, far less than what a missing term of 1e-4
makes in the velocity; in 16 bits a weight decay of 1e-4 is itself below one rounding and cannot be seen in three
steps. Lost updates, a missing mask or a wrong velocity are far outside in every dtype: the learning rate is large.

Errors of rounding also have no common direction. So the errors of all parameters together, projected on the update,
may come to no more than 8 u of it (hyperparameters rounded to the dtype shift all elements alike: lr, momentum and
1 - dampening by u each, which three steps at most double) plus four standard deviations of independent errors, taken
to be as large as their bounds. That finds a dampening of 0.1 left out in bfloat16 where no velocity can be compared.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from samestep.bench.peer import Array, Case, Memory, Peer, Prepared, Settings, Written
from samestep.verify import patterns, vectorised
from samestep.verify.patterns import WORDS, Words

STEPS = 3  # the second step sees what the first one wrote, the third also what was kept of it
ALL = 1 << 16  # up to so many elements, all are compared
EDGE = 64  # always the first and the last of a set: vector tails
DRAWN = 8192  # and so many more of all sets together

Numbers = NDArray[np.float64]
_BITS = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}  # of the significand
_LEAST = {"float64": 2.0**-1074, "float32": 2.0**-149, "float16": 2.0**-24, "bfloat16": 2.0**-133}  # subnormal


class Grade(NamedTuple):
    """How a peer's results compare: ``differing`` of ``checked`` elements differ from the exact rule.

    Elements of all compared tensors count, also of the gradient, which no step may change.

    ``ulps`` is the largest error in units in the last place of the largest term that went into the element, since
    against the result itself any error is large where terms cancel. Infinite where a NaN stands against a number.
    """

    grade: str
    differing: int
    checked: int
    ulps: float


class _Sample(NamedTuple):
    """Patterns of the sampled elements of all sets, one after the other; accum and stat None where there are none."""

    parameters: Words
    gradient: Words
    accum: Words | None
    stat: Words | None


class _Expected(NamedTuple):
    """A tensor's right patterns, how far another evaluation may be from them, the largest term, and what was added."""

    words: Words
    bound: Numbers | None  # None: every bit counts
    scale: Numbers
    update: Numbers | None = None


def check(case: Case, peer: Peer, prepared: Prepared, memory: Memory) -> Grade:
    """Fill the memory, let the peer do three steps, and compare every tensor it keeps with the rule it claims.

    Small cases are compared whole; of others the first and last 64 elements of every set and 8192 drawn ones. In suite
    "op" a peer has to keep parameters, accum and stat; in "optim" momentum buffers are compared where it has some. The
    gradient may not have changed. The memory holds the peer's results afterwards. ValueError for the limit, which
    claims nothing.
    """
    if not peer.claims:
        raise ValueError(f"{peer.name!r} claims no rule, so there is nothing to check")
    memory.fill()
    places = _places([array.size for array in memory.parameters])
    start = _sample(case, places, memory.parameters, memory.gradient, memory.accum, memory.stat)
    scalars = [int(array.reshape(-1).view(WORDS[case.dtype])[0]) for array in (memory.learning_rate, memory.momentum)]
    prepared.reset()
    for _ in range(STEPS):
        prepared.step()
    written = prepared.written()
    _complete(case, peer, written)
    after = _sample(case, places, written.parameters, memory.gradient, written.accum, written.stat)
    expected = _op(case, start, *scalars) if case.suite == "op" else _optim(case, start)
    expected["gradient"] = _Expected(start.gradient, None, np.abs(_numbers(start.gradient, case.dtype)))
    return _grade(case.dtype, expected, after)


def _complete(case: Case, peer: Peer, written: Written) -> None:
    """Refuse results that cannot be compared: the adapter of the peer is wrong then, not its step."""
    for name, arrays in written._asdict().items():
        if arrays is None and case.suite == "op":
            raise TypeError(f"{peer.name}: suite 'op' compares parameters, accum and stat; written().{name} is None")
        if arrays is None:
            continue
        if len(arrays) != len(case.shapes):
            raise TypeError(f"{peer.name}: written().{name} has {len(arrays)} tensors, the case {len(case.shapes)}")
        for k, (array, shape) in enumerate(zip(arrays, case.shapes, strict=True)):
            if str(array.dtype) != case.dtype or array.size != math.prod(shape):
                raise TypeError(f"{peer.name}: written().{name}[{k}] is {array.dtype} {array.shape}, the case's tensor "
                                f"{case.dtype} {shape}")


def _places(sizes: list[int]) -> list[NDArray[np.int64]]:
    """Which elements of every set are compared."""
    if sum(sizes) <= ALL:
        return [np.arange(size) for size in sizes]
    rng = np.random.default_rng(0)
    shares = np.ceil(np.array(sizes) * (DRAWN / sum(sizes))).astype(np.int64)
    return [
        np.arange(size) if size <= 2 * EDGE + share
        else np.concatenate([np.arange(EDGE), rng.integers(EDGE, size - EDGE, share), np.arange(size - EDGE, size)])
        for size, share in zip(sizes, shares.tolist(), strict=True)
    ]


def _sample(
    case: Case, places: list[NDArray[np.int64]], parameters: list[Array], gradient: list[Array],
    accum: list[Array] | None, stat: list[Array] | None,
) -> _Sample:
    def taken(arrays: list[Array]) -> Words:
        return np.concatenate([array.reshape(-1).view(WORDS[case.dtype])[place]
                               for array, place in zip(arrays, places, strict=True)])

    return _Sample(taken(parameters), taken(gradient), taken(accum) if accum else None, taken(stat) if stat else None)


def _numbers(words: Words, dtype: str) -> Numbers:
    with np.errstate(invalid="ignore"):  # a signalling NaN
        return patterns.values_of(words, dtype).astype(np.float64)


def _op(case: Case, start: _Sample, lr: int, m: int) -> dict[str, _Expected]:
    """Three steps of rules O5 and O6."""
    settings, dtype = case.settings, case.dtype
    assert start.accum is not None
    assert start.stat is not None
    p, a, s = start.parameters, start.accum, start.stat
    known = settings._replace(lr=patterns.number_of(lr, dtype), momentum=patterns.number_of(m, dtype))
    drift = _Drift(dtype, known, len(p))
    for _ in range(STEPS):
        moved = vectorised.cann(p, start.gradient, lr, a, m, s, dtype=dtype, dampening=settings.dampening,
                                weight_decay=settings.weight_decay, nesterov=settings.nesterov)
        kept = 1.0 - settings.dampening * (1.0 - _numbers(s, dtype))
        drift.step(_numbers(p, dtype), _numbers(start.gradient, dtype), _numbers(a, dtype), _numbers(moved[0], dtype),
                   _numbers(moved[1], dtype), known.momentum, kept)
        p, a, s = moved
    computed = known.momentum != 0
    return {
        "parameters": _Expected(p, drift.p, drift.p_scale, _numbers(p, dtype) - _numbers(start.parameters, dtype)),
        "accum": _Expected(a, drift.a if computed else None, drift.a_scale),
        "stat": _Expected(s, np.zeros(len(s)) if computed else None, np.ones(len(s))),
    }


def _optim(case: Case, start: _Sample) -> dict[str, _Expected]:
    """Three steps of rule T, the first of them with no momentum buffer yet."""
    settings, dtype = case.settings, case.dtype
    m = settings.momentum
    p, b = start.parameters, np.zeros_like(start.parameters)
    drift = _Drift(dtype, settings, len(p))
    for turn in range(STEPS):
        moved, buffer = vectorised.torch(
            p, start.gradient, b, first=turn == 0, dtype=dtype, **settings._asdict())
        assert buffer is not None
        gradient = _numbers(start.gradient, dtype) * (-1 if settings.maximize else 1)
        kept = np.float64(1.0 if turn == 0 or m == 0 else 1.0 - settings.dampening)
        drift.step(_numbers(p, dtype), gradient, _numbers(b, dtype), _numbers(moved, dtype), _numbers(buffer, dtype),
                   m if turn else 0.0, kept)
        p, b = moved, buffer
    update = _numbers(p, dtype) - _numbers(start.parameters, dtype)
    expected = {"parameters": _Expected(p, drift.p, drift.p_scale, update)}
    return expected if m == 0 else {**expected, "accum": _Expected(b, drift.a, drift.a_scale)}


class _Drift:
    """How far another right evaluation may be from the rule by now: the bound of the module's docstring.

    ``p`` and ``a`` are bounds on the absolute difference of parameters and velocity, ``p_scale`` and ``a_scale`` the
    largest terms met.
    """

    def __init__(self, dtype: str, settings: Settings, count: int) -> None:
        self.settings = settings
        self.u = 2.0 ** -_BITS[dtype]
        self.unit = self.u + min(self.u, 2.0**-24)  # a rounding of the peer's and one of the rule's arithmetic
        self.tiny = 8 * _LEAST[dtype]  # where results are subnormal, errors are no longer relative
        self.p, self.a, self.p_scale, self.a_scale = (np.zeros(count) for _ in range(4))

    def step(
        self, p: Numbers, g: Numbers, a: Numbers, p_after: Numbers, a_after: Numbers, momentum: float, kept: Any,
    ) -> None:
        """One step from (p, a) to (p_after, a_after), where the velocity is momentum*a + kept*grad."""
        wd, lr, m = abs(self.settings.weight_decay), abs(self.settings.lr), abs(momentum)
        u, unit = self.u, self.unit
        decay, grad = wd * np.abs(p), np.abs(g) + wd * np.abs(p)
        of_grad = wd * self.p + unit * (3 * decay + (np.abs(g) if wd else 0)) + self.tiny
        # 1 - d*(1-s) may be computed as two terms, so both count.
        terms = m * np.abs(a) + (1 + abs(self.settings.dampening)) * grad
        of_velocity = m * self.a + np.abs(kept) * of_grad + 5 * unit * terms + self.tiny
        moved, of_step = terms, of_velocity
        if self.settings.nesterov:
            ahead = abs(self.settings.momentum)
            moved, of_step = grad + ahead * terms, of_grad + ahead * of_velocity
        largest = np.maximum(np.abs(p), np.abs(p_after))
        self.p = (self.p + lr * (of_step + 5 * unit * moved) + 2 * unit * largest + u * np.abs(p_after) + self.tiny)
        self.p_scale = np.maximum.reduce([self.p_scale, largest, lr * moved])
        if self.settings.momentum != 0:
            self.a = of_velocity + u * np.abs(a_after)
            self.a_scale = np.maximum(self.a_scale, terms)


def _grade(dtype: str, expected: dict[str, _Expected], after: _Sample) -> Grade:
    differing, checked, worst, right = 0, 0, 0.0, True
    for name, tensor in expected.items():
        got: Words | None = getattr(after, name)
        if got is None:
            continue
        checked += len(got)
        count = int(patterns.differs(tensor.words, got, dtype, computed=tensor.bound is not None).sum())
        if not count:
            continue
        differing += count
        with np.errstate(all="ignore"):
            error = _numbers(got, dtype) - _numbers(tensor.words, dtype)
            error[got == tensor.words] = 0  # infinities
            error[np.isnan(error)] = np.inf
            worst = max(worst, float(np.max(np.abs(error) / _last_place(tensor.scale, dtype))))
            right = right and tensor.bound is not None and bool((np.abs(error) <= tensor.bound).all()) and (
                tensor.update is None or _without_direction(error, tensor.bound, tensor.update, dtype))
    return Grade(("rounding" if differing else "same bits") if right else "wrong", differing, checked, worst)


def _without_direction(error: Numbers, bound: Numbers, update: Numbers, dtype: str) -> bool:
    """Is the part of the update that the errors come to, together, what roundings can do?"""
    whole = float(update @ update)
    common, spread = 8 * 2.0 ** -_BITS[dtype] * whole, 4 * float(np.linalg.norm(bound * update))
    return abs(float(error @ update)) <= common + spread


def _last_place(sizes: Numbers, dtype: str) -> Numbers:
    """One unit in the last place of numbers of these sizes."""
    _, exponents = np.frexp(sizes)
    units: Numbers = np.ldexp(np.ones_like(sizes), exponents - _BITS[dtype])
    return np.maximum(units, _LEAST[dtype])
