"""The staged search: which hypotheses explain a set of observations.

Stage by stage a beam of hypotheses is widened in a few respects only, judged by the tensor that shows them, and cut
again: first what the velocity shows on ordinary elements, then its fused sums, then what the parameters show, then
subnormals and overflows, at last the write-back of accum and stat. No walk through the full product.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

from samestep.verify.fingerprint.evaluate import WRITTEN, Case
from samestep.verify.fingerprint.hypotheses import (
    DAMPENING_FAULTS,
    INNERS,
    MASKS,
    ORDERS,
    RULE_NAMES,
    STATS,
    Hypothesis,
    complexity,
    plain,
    stem,
)
from samestep.verify.fingerprint.numbers import STORES
from samestep.verify.fingerprint.scoring import Facts, Score, informative, ordinary, sample, scoring

BEAM = 48

NARROW = 12  # where few can be left
SOME = 5  # of so many cases one is looked at before the others
PERFECT = 160  # of those that explain everything so far, more are kept
AT_ZERO = ("dampening inside the momentum test", "accum not read at momentum 0")
_VELOCITY = ("weight decay", "velocity", "dampening", "other")


class Search:
    """One search over `cases`, all of one dtype and convention; `reference` is the simplest hypothesis."""

    def __init__(self, cases: Sequence[Case], reference: Hypothesis) -> None:
        self.cases, self.reference = list(cases), reference
        self.facts = Facts(cases)
        sampled = [sample(case) for case in self.cases]
        active = [case for case in sampled if case.momentum != 0] or sampled
        shown = [case for case in active if informative(case)]
        self.velocity_shown = bool(shown)
        # On a first step some rules don't show their velocity's arithmetic.
        self.lead = [max(shown or active, key=_terms)]
        self.step_leads = [max(group, key=_terms) for group in (
            [case for case in active if not case.problem.nesterov],
            [case for case in active if case.problem.nesterov]) if group]
        self.sampled = sampled

    def run(self) -> list[Hypothesis]:
        """The hypotheses that explain most, best first."""
        velocity = ("accum",) if self.velocity_shown else ("parameters",)
        both = ("parameters", *(("accum",) if self.velocity_shown else ()))
        lead = self.lead if self.velocity_shown else self.step_leads
        beam = self.cut(self.bases(), scoring(lead, velocity, True))
        beam = self.cut(self.widened(beam, self.fused_velocity), scoring(lead, velocity, True))
        beam = self.cut(self.widened(beam, self.flushes), scoring(lead, velocity))
        beam = self.cut(self.widened(beam, self.steps), scoring(self.step_leads, ("parameters",), True))
        beam = self.cut(self.widened(beam, self.fused_step), scoring(self.step_leads, ("parameters",), True))
        beam = self.cut(self.widened(beam, self.ends), scoring([*lead, *self.step_leads], both))
        if len(self.sampled) > SOME:
            beam = self.cut(beam, scoring(self.sampled[::SOME], both), 2 * NARROW)
        beam = self.cut(beam, scoring(self.sampled, both), NARROW)
        shown = ("accum",) if self.velocity_shown else ("accum", "stat")
        beam = self.cut(self.widened(beam, self.masks), scoring(_telling(self.sampled), shown), NARROW)
        beam = self.cut(self.widened(beam, self.at_zero), scoring(self.sampled, ("parameters", "accum")), NARROW)
        return self.cut(self.widened(beam, self.stats), scoring(self.sampled, WRITTEN), NARROW)

    def cut(self, candidates: Iterable[Hypothesis], score: Score, width: int = BEAM) -> list[Hypothesis]:
        """The best of the candidates: `width` of them, and more that explain everything so far."""
        scored = [(score(h), h) for h in dict.fromkeys(candidates)]
        scored.sort(key=lambda pair: (-pair[0][0], complexity(pair[1], self.reference)))
        perfect = [h for (good, total), h in scored if good == total]
        return [h for _, h in scored][:width] if len(perfect) < width else perfect[:PERFECT]

    def widened(self, beam: Sequence[Hypothesis],
                ways: Callable[[Hypothesis], Iterable[Hypothesis]]) -> Iterator[Hypothesis]:
        """Every hypothesis and its variants."""
        for h in beam:
            yield h
            yield from ways(h)

    def bases(self) -> Iterator[Hypothesis]:
        """Every rule, with the inner type, rounded hyperparameters, stores and faults that the velocity shows."""
        facts = self.facts
        for rule in RULE_NAMES:
            orders = ("",) if rule != "cann" else ORDERS[:2] if facts.dampening else (self.reference.order or "spec",)
            own = rule in ("cann", "torch")
            names = ["dampening", "weight_decay", "momentum"] + ([] if own else ["lr"])
            for order, inner in itertools.product(orders, INNERS):
                base = plain(rule, order, facts.dtype)._replace(inner=inner)
                if self.velocity_shown and not MASKS[base.mask](self.lead[0].momentum):
                    base = base._replace(mask="always")  # it was written, as seen; which mask it is comes later
                if not facts.other_inner(inner):
                    continue
                stores = STORES if facts.narrow else STORES[:3] if inner == "float64" != facts.dtype else STORES[:1]
                fusings = dict.fromkeys((base.fused, frozenset[str]()))
                for hyper, faults, store, fused in itertools.product(
                        facts.hyperparameters(rule, inner, names), self.velocity_faults(rule, inner), stores, fusings):
                    if store == "through float32" and inner != "float64":
                        continue
                    h = base._replace(hyperparameters=hyper, faults=faults, store=store, fused=fused)
                    yield h
                    if len(stores) > 1 and store == "nearest-even":
                        yield h.with_fault("accum truncated" if self.velocity_shown else "parameters truncated")

    def velocity_faults(self, rule: str, inner: str) -> list[frozenset[str]]:
        """Up to two of the faults that act on the velocity."""
        shown = [*DAMPENING_FAULTS[:4], "weight decay ignored", "accum not read", "maximize ignored"]
        if self.lead[0].momentum == 0:
            shown += AT_ZERO
        if rule not in ("cann", "torch"):  # some keep another state with nesterov
            shown.append("nesterov ignored")
        faults = [fault for fault in self.facts.faults(rule, inner) if fault in shown]
        return list(_subsets(faults, 2 if rule in ("cann", "torch") else 1))

    def fused_velocity(self, h: Hypothesis) -> Iterator[Hypothesis]:
        """The sums before the velocity, fused or not; all sums where only parameters show them."""
        sites = self.facts.sites(h)
        yield from _fusings(h, [name for name in sites if name.startswith(_VELOCITY) or not self.velocity_shown])

    def fused_step(self, h: Hypothesis) -> Iterator[Hypothesis]:
        """The sums after the velocity, fused or not."""
        yield from _fusings(h, [name for name in self.facts.sites(h) if not name.startswith(_VELOCITY)])

    def flushes(self, h: Hypothesis) -> Iterator[Hypothesis]:
        """The ways to flush subnormals."""
        for flush in self.facts.flushes(h.inner):
            yield h._replace(flush=flush)

    def ends(self, h: Hypothesis) -> Iterator[Hypothesis]:
        """What the ends of the range show in all tensors."""
        overflow = [fault for fault in self.facts.faults(h.rule, h.inner) if fault == "overflow saturated"]
        for flush, faults in itertools.product(self.facts.flushes(h.inner), _subsets(overflow, 1)):
            yield h._replace(flush=flush, faults=h.faults | faults)

    def steps(self, h: Hypothesis) -> Iterator[Hypothesis]:
        """Orders, faults and roundings that only the parameters show."""
        facts = self.facts
        orders = [h.order]
        if h.rule == "cann" and facts.nesterov:
            mixed = {"spec": "ascend950 nesterov", "ascend950": "ascend950 dampening"}
            orders = list(ORDERS[:2]) if not facts.dampening else [h.order, mixed.get(h.order, h.order)]
        shown = ["parameters not updated", "p from the stored accum", "nesterov ignored", "maximize after weight decay"]
        shown += ["parameters truncated"] * (h.store == "nearest-even")
        faults = [fault for fault in facts.faults(h.rule, h.inner) if fault in shown]
        for order, some, hyper in itertools.product(
                orders, _subsets(faults, 2), facts.hyperparameters(h.rule, h.inner, ["lr"], h)):
            yield h._replace(order=order, faults=h.faults | some, hyperparameters=hyper)

    def masks(self, h: Hypothesis) -> Iterator[Hypothesis]:
        """When accum and stat are written, and whether accum is at all."""
        lost = h.with_fault("accum not written")
        for mask in self.facts.masks():
            yield h._replace(mask=mask)
            if not self.velocity_shown:
                yield from (lost._replace(mask=mask, stat=stat) for stat in STATS)

    def at_zero(self, h: Hypothesis) -> Iterator[Hypothesis]:
        """What depends on a momentum of zero in the arithmetic."""
        zero = [fault for fault in self.facts.faults(h.rule, h.inner) if fault in AT_ZERO]
        for faults in _subsets(zero, 2):
            yield h._replace(faults=h.faults | faults)

    def stats(self, h: Hypothesis) -> Iterator[Hypothesis]:
        """What is written into stat; whether the gradient is left alone."""
        for stat in STATS if self.facts.rule == "cann" else STATS[:1]:
            changed = h._replace(stat=stat)
            yield changed.with_fault("gradient overwritten") if self.facts.touched else changed


def _terms(case: Case) -> tuple[bool, int, bool, int]:
    """How much a step can show: for choosing the one that shows most."""
    q = case.problem
    count = int(ordinary(case, case.observation.parameters).sum())
    usual = 0.3 < abs(case.momentum) < 0.99
    return count > 0, (q.dampening != 0) + (q.weight_decay != 0), usual, count


def _telling(cases: Sequence[Case]) -> list[Case]:
    """The cases whose momentum tells masks apart, and one besides."""
    odd = [case for case in cases if not 0.3 < case.momentum < 1]
    return odd + [case for case in cases if 0.3 < case.momentum < 1][:1]


def _subsets(items: Sequence[str], most: int) -> Iterator[frozenset[str]]:
    for count in range(min(most, len(items)) + 1):
        yield from map(frozenset, itertools.combinations(items, count))


def _fusings(h: Hypothesis, sites: Sequence[str]) -> Iterator[Hypothesis]:
    """Every way to fuse the sums `sites`, each sum at most once; the others stay as they are."""
    groups: dict[str, list[str]] = {}
    for name in sites:
        groups.setdefault(stem(name), [""]).append(name)
    kept = frozenset(name for name in h.fused if name not in sites)
    for picked in itertools.product(*groups.values()):
        yield h._replace(fused=kept | (frozenset(picked) - {""}))
