"""What a set of observations shows: its terms, its ordinary elements, and how much of them a hypothesis explains."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from samestep.verify.fingerprint.evaluate import Case, Flags, sites_of
from samestep.verify.fingerprint.hypotheses import FLUSHES, IN_SUMS, MASKS, Hypothesis
from samestep.verify.fingerprint.numbers import TINY, wide
from samestep.verify.patterns import INFINITY, SIGN, WORDS, Words

SAMPLE = 512


class Facts:
    """What a set of cases has at all: which terms, which roundings; so that only what can show is tried."""

    def __init__(self, cases: Sequence[Case]) -> None:
        problems = [case.problem for case in cases]
        self.dtype, self.rule = problems[0].dtype, problems[0].rule
        self.keys = frozenset((q.dampening != 0, q.weight_decay != 0, q.nesterov) for q in problems)
        self.dampening = any(q.dampening != 0 for q in problems)
        self.weight_decay = any(q.weight_decay != 0 for q in problems)
        self.nesterov = any(q.nesterov for q in problems)
        self.maximize = any(q.maximize for q in problems)
        self.zero = any(case.momentum == 0 for case in cases)
        self.touched = any(case.observation.gradient is not None
                           and bool((case.observation.gradient != case.problem.gradient).any()) for case in cases)
        self.narrow = self.dtype in ("float16", "bfloat16")
        self.names = [name for name, there in (
            ("lr", self.rule == "torch"), ("momentum", self.rule == "torch"), ("dampening", self.dampening),
            ("weight_decay", self.weight_decay)) if there]

    def hyperparameters(self, rule: str, inner: str, names: Iterable[str], h: Hypothesis | None = None) -> list[str]:
        """The ways to take the hyperparameters: those `names` rounded or not, beside those rounded in `h`."""
        wide_too = inner == "float64" and self.dtype != "float64"
        options = ["given", "float64"] if wide_too else ["given"]
        if not self.narrow:
            return options
        if rule == "torch" and self.rule == "torch" and h is None:
            options.append(IN_SUMS)
        if h is not None and h.hyperparameters == IN_SUMS:
            return [IN_SUMS]
        if h is not None and not h.hyperparameters.startswith("rounded"):
            kept: set[str] = set()
            options = [h.hyperparameters]
        else:
            kept = set() if h is None else set(h.hyperparameters.split()[1:] or self.names) - set(names)
            options = [] if kept else options
        if options == ["float64"]:
            return options
        names = [name for name in self.names if name in set(names)]
        for count in range(len(names) + 1):
            for some in itertools.combinations(names, count):
                rounded = kept | set(some)
                if rounded:
                    options.append(self.rounding(rounded))
        return options

    def masks(self) -> list[str]:
        """The masks that can differ: a momentum in float16 is not rounded again, and no float32 subnormal."""
        same = ("float16", "float16-floor", "float16-ceil", "normal") if self.dtype == "float16" else ()
        return [mask for mask in MASKS if mask not in same]

    def flushes(self, inner: str) -> tuple[str, ...]:
        """The ways to flush that can show: no operation of float32 on float16 numbers meets a subnormal that counts."""
        return FLUSHES if inner == "tensor" or self.dtype != "float16" else ("", *FLUSHES[4:])

    def sites(self, h: Hypothesis) -> list[str]:
        """The sums of these steps that can be fused, without those whose product is exact anyway."""
        exact = (h.rule, self.rule, self.dtype, h.inner) == ("cann", "cann", "float16", "float32")
        names = sites_of(h.rule, h.order, h.faults, self.keys)
        return [name for name in names if not (exact and name == "velocity/accum")]

    def other_inner(self, inner: str) -> bool:
        """Whether `inner` is a type of its own here."""
        return {"float32": True, "tensor": self.narrow, "float64": True}[inner]

    def faults(self, rule: str, inner: str) -> list[str]:
        """The faults that can show in `rule` with these cases."""
        cann, own = rule == "cann", rule in ("cann", "torch")
        rounds = self.narrow or (inner == "float64" != self.dtype)
        there = {
            "dampening ignored": own and self.dampening, "stat not read": cann and self.dampening,
            "stat read as a flag": cann and self.dampening, "stat inverted": cann and self.dampening,
            "dampening inside the momentum test": cann and self.dampening,
            "weight decay ignored": own and self.weight_decay, "accum not read": own,
            "accum not read at momentum 0": cann and self.zero, "nesterov ignored": self.nesterov,
            "parameters not updated": True, "p from the stored accum": own and rounds,
            "maximize ignored": self.maximize, "maximize after weight decay": self.maximize and self.weight_decay,
            "accum not written": True, "overflow saturated": rounds, "accum truncated": rounds,
            "parameters truncated": rounds, "gradient overwritten": self.touched,
        }
        return [fault for fault, shows in there.items() if shows]

    def rounding(self, names: Iterable[str]) -> str:
        """How "these are rounded" is spelt: without names where it is all that there are."""
        chosen = [name for name in self.names if name in set(names)]
        return "rounded" if chosen == self.names else " ".join(["rounded", *chosen])


def ordinary(case: Case, after: Words) -> Flags:
    """Elements whose inputs and output are ordinary numbers: neither zero nor subnormal, nor infinite, nor NaN."""
    dtype, q = case.problem.dtype, case.problem
    inputs = [words for words in (q.parameters, q.gradient, q.accum) if words is not None]
    flags = np.isfinite(case.s) & (np.abs(case.s) < 4)
    for words in (*inputs, after):
        magnitude = words & WORDS[dtype](SIGN[dtype] - 1)
        flags &= (magnitude < WORDS[dtype](INFINITY[dtype])) & (np.abs(wide(words, dtype)) >= TINY[dtype])
    return flags


def informative(case: Case) -> bool:
    """Whether accum was recorded and written: it shows the velocity."""
    after = case.observation.accum
    return after is not None and (case.problem.accum is None or bool((after != case.problem.accum).any()))


def _judged(case: Case, after: Words, only_ordinary: bool) -> Flags:
    """The ordinary elements, or all where there is none."""
    flags = ordinary(case, after) if only_ordinary else np.ones(case.size, bool)
    return flags if flags.any() else ~flags


Score = Callable[[Hypothesis], tuple[int, int]]


def scoring(cases: Sequence[Case], names: Sequence[str], only_ordinary: bool = False) -> Score:
    """A function that counts the elements of the tensors `names` that a hypothesis explains, and all of them."""
    rows = []
    for case in cases:
        rows.append({name: _judged(case, words, only_ordinary) for name, words in case.after() if name in names})

    def score(h: Hypothesis) -> tuple[int, int]:
        good = total = 0
        for case, chosen in zip(cases, rows, strict=True):
            explained = case.explained(h, tuple(chosen))
            for name, flags in chosen.items():
                good += int((explained[name] & flags).sum())
                total += int(flags.sum())
        return good, total

    return score


def sample(case: Case) -> Case:
    """At most `SAMPLE` elements, evenly from the whole."""
    if case.size <= SAMPLE:
        return case
    return case.part(np.linspace(0, case.size - 1, SAMPLE).astype(np.int64))
