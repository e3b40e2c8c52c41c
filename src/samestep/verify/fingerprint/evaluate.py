"""What a hypothesis predicts for a step, and which elements of an observation it explains."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from samestep import formula
from samestep.rules import RULES, Terms
from samestep.verify.fingerprint.hypotheses import DAMPENING_FAULTS, IN_SUMS, MASKS, ORDERS, Hypothesis
from samestep.verify.fingerprint.numbers import TINY, Arithmetic, flushed, stored, wide
from samestep.verify.fingerprint.scalars import Scalars, float32_of, momentum_of, scalars_of
from samestep.verify.observation import Observation, Problem
from samestep.verify.patterns import INFINITY, SIGN, TYPES, WORDS, Words, differs
from samestep.verify.vectorised import Wide

Flags = NDArray[np.bool_]
_cann: Any = formula.cann
_torch: Any = formula.torch

WRITTEN = ("parameters", "accum", "stat", "gradient")
_CACHED_NUMBERS = 4_000_000  # per case
_WRITING = frozenset(("accum not written", "overflow saturated", "accum truncated", "parameters truncated",
                      "parameters not updated", "gradient overwritten"))


class Prediction(NamedTuple):
    """What a hypothesis expects of the written tensors; `written` says that accum and stat were."""

    parameters: Words
    accum: Words | None
    stat: Words | None
    written: bool


class Case:
    """An observation prepared for many hypotheses: its inputs as numbers, and results that were computed before."""

    def __init__(self, observation: Observation) -> None:
        self.observation = observation
        problem = self.problem = observation.problem
        self.size = problem.parameters.size
        self.p, self.g = (wide(words, problem.dtype) for words in (problem.parameters, problem.gradient))
        self.a = np.zeros(self.size) if problem.accum is None else wide(problem.accum, problem.dtype)
        if problem.stat is not None:
            self.s = wide(problem.stat, problem.dtype)
        else:
            self.s = np.full(self.size, 1.0 if problem.accum is None else 0.0)
        self.momentum = momentum_of(problem)
        self._scalars: dict[str, Scalars] = {}
        self._cores: dict[Any, tuple[Wide, Wide]] = {}
        self._flags: dict[Any, Flags] = {}
        absent = {"dampening": not problem.dampening, "weight decay": not problem.weight_decay,
                  "nesterov": not problem.nesterov}
        self._absent = tuple(term for term, lacking in absent.items() if lacking)
        silent = {*_WRITING, *(f"{term} ignored" for term in self._absent)}
        silent |= set() if problem.maximize else {"maximize ignored", "maximize after weight decay"}
        silent |= {"accum not read at momentum 0"} if self.momentum != 0 else set()
        self._silent = frozenset(silent | (set() if problem.dampening else set(DAMPENING_FAULTS)))

    def part(self, rows: Any) -> Case:
        """The same step, of some elements only; `rows` indexes them."""
        return part_of(self.observation, rows)

    def core(self, h: Hypothesis, written: bool) -> tuple[Wide, Wide]:
        """(parameters, velocity) in the type of the arithmetic, before anything is stored."""
        key = self._core_key(h, written)
        if key not in self._cores:
            if len(self._cores) * self.size > _CACHED_NUMBERS:
                self._cores.clear()
            with np.errstate(all="ignore"):
                self._cores[key] = _evaluate(h, self, written)
        return self._cores[key]

    def _core_key(self, h: Hypothesis, written: bool) -> tuple[Any, ...]:
        """What the results depend on in this step, before they are stored: what acts on absent terms does not."""
        q, fused, faults = self.problem, h.fused, h.faults - self._silent
        if h.rule != "cann":
            return h.rule, fused, h.inner, h.flush, h.hyperparameters, faults, written
        inside = "dampening inside the momentum test"
        faults = faults - {inside} if written else faults
        fused = frozenset(site for site in fused if not site.startswith(self._absent))
        ascend = (bool(q.dampening) and h.order in ORDERS[1:3], q.nesterov and h.order in (ORDERS[1], ORDERS[3]))
        return (h.rule, ascend, fused, h.inner, h.flush, h.hyperparameters == IN_SUMS, self.scalars(h)[:4], faults,
                written or inside not in faults)

    def scalars(self, h: Hypothesis) -> Scalars:
        """The hyperparameters as `h` takes them."""
        if h.hyperparameters not in self._scalars:
            self._scalars[h.hyperparameters] = scalars_of(h, self.problem)
        return self._scalars[h.hyperparameters]

    def predict(self, h: Hypothesis) -> Prediction:
        """The patterns that `h` expects."""
        moved = self.expected(h, "parameters")
        assert moved is not None
        return Prediction(moved, self.expected(h, "accum"), self.expected(h, "stat"), MASKS[h.mask](self.momentum))

    def expected(self, h: Hypothesis, name: str) -> Words | None:
        """The patterns that `h` expects of one tensor."""
        written, q = MASKS[h.mask](self.momentum), self.problem
        before: Words | None = getattr(q, name)
        if name == "parameters":
            kept = "parameters not updated" in h.faults
            return before if kept else _store(self.core(h, written)[0], q.dtype, h, "parameters truncated")
        if not written or (name == "accum" and "accum not written" in h.faults):
            return before
        if name == "accum":
            return _store(self.core(h, written)[1], q.dtype, h, "accum truncated")
        return None if before is None else _stat(h, self)

    def explained(self, h: Hypothesis, names: tuple[str, ...] = WRITTEN) -> dict[str, Flags]:
        """For each recorded tensor of `names`, which elements are as `h` expects (rule O9)."""
        written = MASKS[h.mask](self.momentum)
        recorded = [name for name in names if getattr(self.observation, name) is not None]
        return {name: self._explained(h, name, written) for name in recorded}

    def _explained(self, h: Hypothesis, name: str, written: bool) -> Flags:
        if name == "gradient":
            left: Flags = np.asarray(self.observation.gradient == self.problem.gradient)
            return left | ("gradient overwritten" in h.faults)
        key = ((name, h.stat, h.hyperparameters, written) if name == "stat" else
               (name, h.store, h.faults & _WRITING, name == "accum" and written, *self._core_key(h, written)))
        if key not in self._flags:
            if len(self._flags) * self.size > _CACHED_NUMBERS:
                self._flags.clear()
            lost = {"parameters": "parameters not updated", "accum": "accum not written"}.get(name)
            kept = lost in h.faults or (name != "parameters" and not written)
            want, got = self.expected(h, name), getattr(self.observation, name)
            self._flags[key] = np.zeros(self.size, bool) if want is None else ~differs(
                want, got, self.problem.dtype, computed=not kept)
        return self._flags[key]

    def after(self) -> list[tuple[str, Words]]:
        """The recorded tensors, with their names."""
        recorded = ((name, getattr(self.observation, name)) for name in WRITTEN)
        return [(name, words) for name, words in recorded if words is not None]

    def matches(self, h: Hypothesis) -> bool:
        """Whether `h` explains every element of every recorded tensor."""
        return all(bool(flags.all()) for flags in self.explained(h).values())


def part_of(o: Observation, rows: Any) -> Case:
    """The case of some elements of a step; `rows` indexes them."""
    q = o.problem

    def cut(words: Words | None) -> Words | None:
        return None if words is None else words[rows]

    p = q.parameters[rows]
    problem = q._replace(shape=p.shape, parameters=p, gradient=q.gradient[rows], accum=cut(q.accum), stat=cut(q.stat))
    return Case(Observation(problem, o.parameters[rows], cut(o.accum), cut(o.stat), cut(o.gradient)))


def _store(values: Wide, dtype: str, h: Hypothesis, truncating: str) -> Words:
    with np.errstate(all="ignore"):
        words = stored(values, dtype, "truncate" if truncating in h.faults else h.store)
        if "overflow saturated" in h.faults:
            word = WORDS[dtype]
            infinite = (words & word(SIGN[dtype] - 1)) == word(INFINITY[dtype])
            words = np.where(infinite & np.isfinite(values), words - word(1), words)
        if h.flush in ("stores", "loads and stores"):
            numbers = flushed(wide(words, dtype), TINY[dtype])
            words = np.where(numbers == 0, numbers.astype(TYPES[dtype]).view(WORDS[dtype]), words)
    return words


def _stat(h: Hypothesis, case: Case) -> Words:
    q = case.problem
    assert q.stat is not None
    if h.stat == "kept" or (h.stat == "with dampening" and case.scalars(h).d == 0):
        return q.stat
    if h.stat in ("zero", "with dampening"):
        return np.zeros_like(q.stat)
    with np.errstate(all="ignore"):
        return stored((case.s if h.stat == "stat*0" else 1.0 - case.s) * 0.0, q.dtype)


class _Terms(NamedTuple):
    """Which terms a step has, after the faults."""

    nesterov: bool
    weight_decay: bool
    dampening: bool
    maximize: bool


def _terms(h: Hypothesis, problem: Problem, scalars: Scalars, written: bool) -> _Terms:
    # Rule cann compares with zero what it uses (O4); the others compare the numbers that they were given.
    d, wd = (scalars.d, scalars.wd) if h.rule == "cann" else map(float32_of, (problem.dampening, problem.weight_decay))
    damped = d != 0 and "dampening ignored" not in h.faults
    return _Terms(
        problem.nesterov and "nesterov ignored" not in h.faults,
        wd != 0 and "weight decay ignored" not in h.faults,
        damped and (written or "dampening inside the momentum test" not in h.faults),
        problem.maximize and "maximize ignored" not in h.faults,
    )


def _evaluate(h: Hypothesis, case: Case, written: bool) -> tuple[Wide, Wide]:
    """Run the rule of `h` once, or twice where the elements' first steps differ."""
    if h.rule == "cann":
        return _run(h, case, written, False)[1:]
    first = case.s > 0
    if h.rule == "onnx" and case.problem.rule == "torch" and not case.a.any():
        first = np.ones(case.size, bool)  # a velocity of zeros is what onnx starts from
    if first.all() or not first.any() or (h.rule != "torch" and RULES[h.rule].start == "zeros" and h.rule != "onnx"):
        return _run(h, case, written, bool(first.all()))[1:]
    one, other = _run(h, case, written, True), _run(h, case, written, False)
    return np.where(first, one[1], other[1]), np.where(first, one[2], other[2])


def _run(h: Hypothesis, case: Case, written: bool, first: bool) -> tuple[Arithmetic, Wide, Wide]:
    problem, scalars = case.problem, case.scalars(h)
    terms = _terms(h, problem, scalars, written)
    inner = problem.dtype if h.inner == "tensor" else h.inner
    last = "weight decay" if first else "dampening" if terms.dampening and h.rule == "cann" else "velocity"
    how = Arithmetic(inner, h.flush, h.fused,
                     (problem.dtype, last) if "p from the stored accum" in h.faults else ("", ""),
                     problem.dtype if h.hyperparameters == IN_SUMS else "")
    number = how.number
    p, g, a, s = (number(values, name) for values, name in zip(
        _tensors(h, case), ("parameters", "grad", "accum", "stat"), strict=True))
    s.inverted = "stat inverted" in h.faults
    lr, m, d, wd, undamped = (number(value, name) for value, name in zip(
        scalars, ("lr", "m", "d", "wd", "(1-d)"), strict=True))
    turned = "maximize after weight decay" in h.faults and problem.maximize
    if turned:  # -(g + wd*p), which rounds as g + wd*p does
        g, wd = -g, number(-scalars.wd, "wd")
    if h.rule == "torch":
        if not terms.dampening:
            undamped = number(1.0, "(1-d)")
        out = _torch(p, g, a, number(-scalars.lr, "-lr"), m, undamped, wd, how.fma,
                            terms.maximize and not turned, terms.weight_decay, written, terms.nesterov, first)
    elif h.rule == "cann":
        g = -g if terms.maximize and not turned else g
        chosen = "dampening" if terms.dampening else "nesterov"
        out = _cann(p, g, lr, a, m, s, d, wd, number(1.0, "1"), terms.nesterov, terms.weight_decay,
                           terms.dampening, h.order in ("ascend950", f"ascend950 {chosen}"))
    else:
        g = -g if terms.maximize and not turned else g
        out = RULES[h.rule].function(Terms(
            p, g, a, s, lr, m, d, wd, number(1.0, "1"), terms.nesterov, terms.weight_decay, terms.dampening, first,
            written, undamped if problem.rule == "torch" else None))
    p_out, v_out = (np.broadcast_to(how.round(one.values), (case.size,)) for one in out)
    return how, p_out, v_out


def _tensors(h: Hypothesis, case: Case) -> list[Wide]:
    a, s = case.a, case.s
    unread = "accum not read at momentum 0" in h.faults and case.momentum == 0
    if "accum not read" in h.faults or unread:
        a = np.zeros_like(a)
    if "stat not read" in h.faults:
        s = np.zeros_like(s)
    elif "stat read as a flag" in h.faults:
        s = (s != 0).astype(np.float64)
    tensors = [case.p, case.g, a, s]
    if h.flush in ("loads", "loads and stores"):
        tensors = [flushed(values, TINY[case.problem.dtype]) for values in tensors]
    return tensors


ALL_KEYS = frozenset({(True, True, False), (False, True, True)})


@functools.lru_cache(maxsize=1024)
def sites_of(rule: str, order: str, faults: frozenset[str] = frozenset(),
             keys: frozenset[tuple[bool, bool, bool]] = ALL_KEYS) -> dict[str, str]:
    """The sums that can be fused, with what they look like; a key: dampening, weight decay and nesterov, on or off."""
    found: dict[str, str] = {}
    one = np.array([0x3F800000], np.uint32)
    for damped, decayed, nesterov in sorted(keys, key=lambda key: key[2]):
        stat = np.zeros_like(one)
        problem = Problem("float32", (1,), one, one, one, stat, 0.1, 0.9, 0.5 * damped, 0.01 * decayed, nesterov)
        case = Case(Observation(problem, one, one, stat))
        how = _run(Hypothesis(rule, order, faults=faults), case, True, False)[0]
        found = {**how.sites, **found}
    return found
