"""Ours, and the limit, for suite "op"."""

from __future__ import annotations

from samestep.bench import limit
from samestep.bench.peer import Case, Memory, Peer, Prepared
from samestep.bench.peers import in_place, no_objection


def _samestep(case: Case, memory: Memory) -> Prepared:
    """`sgd_` for one tensor set, `sgd_batch_` for several; keeps rules O, order "spec", bit for bit."""
    import samestep
    from samestep.engine import quick

    settings = case.settings
    p, g, a, s = memory.parameters, memory.gradient, memory.accum, memory.stat
    lr, m, d, wd, nesterov = (memory.learning_rate, memory.momentum, settings.dampening, settings.weight_decay,
                              settings.nesterov)
    if len(p) > 1:
        return in_place(lambda: samestep.sgd_batch_(p, g, lr, a, m, s, dampening=d, weight_decay=wd,
                                                    nesterov=nesterov), memory)
    for _ in range(quick.PATIENCE + 2):  # as in a program that has run for a moment
        few = [x[0].reshape(-1)[:1].copy() for x in (p, g, a, s)]
        samestep.sgd_(few[0], few[1], lr, few[2], m, few[3], dampening=d, weight_decay=wd, nesterov=nesterov)
    p0, g0, a0, s0 = p[0], g[0], a[0], s[0]
    return in_place(lambda: samestep.sgd_(p0, g0, lr, a0, m, s0, dampening=d, weight_decay=wd, nesterov=nesterov),
                    memory)


def _limit(case: Case, memory: Memory) -> Prepared:
    """The reads and writes of a step that keeps rules O: stat is read only with dampening, written only if m != 0."""
    p, g, a, s = memory.parameters, memory.gradient, memory.accum, memory.stat
    damped = case.settings.dampening != 0
    if float(memory.momentum[0]) == 0:
        loop = limit.fastest([p], [g, a, s] if damped else [g, a])
    elif damped:
        loop = limit.fastest([p, a, s], [g])
    else:
        loop = limit.fastest([p, a], [g], [s])
    return in_place(loop, memory)


PEERS = {
    "samestep": Peer("samestep", "samestep.sgd_ on NumPy arrays", "cann", no_objection, no_objection, _samestep),
    "limit": Peer("limit", "a plain loop with the same reads and writes", "", no_objection, no_objection, _limit),
}
