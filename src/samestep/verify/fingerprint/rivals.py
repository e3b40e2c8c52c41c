"""Hypotheses near others: what a verdict has to exclude before it is certain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from samestep.verify.fingerprint.evaluate import Case
from samestep.verify.fingerprint.hypotheses import (
    INNERS,
    ORDERS,
    RULE_NAMES,
    STATS,
    Hypothesis,
    complexity,
    plain,
    stem,
)
from samestep.verify.fingerprint.numbers import STORES
from samestep.verify.fingerprint.scoring import Facts
from samestep.verify.fingerprint.staged import Search

# Faults that change nothing beside a mask, a way to store or another fault.
_SAME = {"accum not written": ("accum truncated",), "parameters not updated": ("parameters truncated",),
         "always": ("dampening inside the momentum test",),
         "truncate": ("accum truncated", "parameters truncated", "overflow saturated")}


def rivals(h: Hypothesis, facts: Facts) -> Iterator[Hypothesis]:
    """Every hypothesis that differs from `h` in one respect that can show, and every rule without deviation."""
    for rule in RULE_NAMES:
        for order in ORDERS if rule == "cann" else ("",):
            yield plain(rule, order, facts.dtype)
    stores = STORES if h.inner == "float64" != facts.dtype else STORES[:3] if facts.narrow else ()
    changes = {"flush": facts.flushes(h.inner), "mask": facts.masks(), "stat": STATS if facts.rule == "cann" else (),
               "inner": [inner for inner in INNERS if facts.other_inner(inner)], "store": stores,
               "hyperparameters": facts.hyperparameters(h.rule, h.inner, facts.names),
               "order": ORDERS if h.rule == "cann" else ()}
    for field, values in changes.items():
        for value in values:
            changed: Any = {field: value}
            yield h._replace(**changed)
    for name in facts.sites(h):
        rest = frozenset(one for one in h.fused if stem(one) != stem(name))
        yield h._replace(fused=rest)
        yield h._replace(fused=rest | {name})
    yield h._replace(fused=frozenset())
    for fault in facts.faults(h.rule, h.inner):
        if not any(fault in _SAME.get(choice, ()) for choice in (h.mask, h.store, *h.faults)):
            yield h._replace(faults=h.faults ^ {fault})


def alive(candidates: Sequence[Hypothesis], cases: Sequence[Case]) -> list[Hypothesis]:
    """Those that explain every element of every case."""
    left = list(dict.fromkeys(candidates))
    for case in cases:
        left = [h for h in left if case.matches(h)]
    return left


def explaining(cases: Sequence[Case], reference: Hypothesis) -> tuple[list[Hypothesis], Hypothesis]:
    """(all hypotheses found that explain everything, the simplest first; the one that explains most)."""
    facts, beam = Facts(cases), Search(cases, reference).run()
    live = alive([_without_absent_sums(h, facts) for h in beam], cases)
    if not live:  # perhaps one respect was not looked at
        live = alive([rival for h in beam[:4] for rival in rivals(h, facts)], cases)
    live.sort(key=lambda h: complexity(h, reference))
    live = [*live, *others(live[:1], live, cases)]
    live.sort(key=lambda h: complexity(h, reference))
    return live, live[0] if live else beam[0]


def minimal(live: Sequence[Hypothesis]) -> list[Hypothesis]:
    """Without those that deviate as another one does, and then some more: they are no better explained."""
    kept: list[Hypothesis] = []
    sets: list[tuple[str, frozenset[tuple[str, object]]]] = []
    for h in live:
        mine = (h.rule, _choices(h, live[0]))
        if not any(rule == mine[0] and choices < mine[1] and (choices or rule != live[0].rule)
                   for rule, choices in sets):
            kept.append(h)
        sets.append(mine)
    return kept


def _choices(h: Hypothesis, base: Hypothesis) -> frozenset[tuple[str, object]]:
    """What `h` chooses otherwise than `base`, or than its own rule where that is another."""
    usual = base if h.rule == base.rule else plain(h.rule, h.order)
    pairs = {(field, getattr(h, field)) for field in h._fields
             if field not in ("faults", "fused") and getattr(h, field) != getattr(usual, field)}
    pairs |= {("fault", fault) for fault in h.faults ^ usual.faults}
    return frozenset(pairs | {("fused", site) for site in h.fused ^ usual.fused})


def _without_absent_sums(h: Hypothesis, facts: Facts) -> Hypothesis:
    """The same, fusing no sum that a fault takes away."""
    there = frozenset(facts.sites(h)) | plain(h.rule, h.order).fused
    return h._replace(fused=h.fused & there)


def others(near: Sequence[Hypothesis], known: Sequence[Hypothesis], cases: Sequence[Case]) -> list[Hypothesis]:
    """Rivals of `near` that explain everything and are not `known`."""
    facts, old = Facts(cases), set(known)
    return alive([rival for h in near for rival in rivals(h, facts) if rival not in old], cases)
