"""The operator in plain NumPy, for suite "op": rules O in the order "spec", every operation rounded on its own.

16-bit tensors are computed in float32 and rounded once when stored, as ml_dtypes or NumPy rounds.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from samestep.bench.peer import Array, Case, Memory, Peer, Prepared, Settings
from samestep.bench.peers import in_place, no_objection


def update(
    p: Array, g: Array, learning_rate: Array, accum: Array, momentum: Array, s: Array, settings: Settings
) -> None:
    """One step on float32 arrays, in place."""
    grad = g
    if settings.weight_decay != 0:
        grad = p * settings.weight_decay
        grad += g
    masked = momentum[0] == 0
    velocity = np.multiply(momentum, accum, out=None if masked else accum)
    velocity += grad
    if settings.dampening != 0:
        damped = 1 - s
        damped *= grad
        damped *= settings.dampening
        velocity -= damped
    if settings.nesterov:
        step = velocity * momentum
        step *= learning_rate
        step += grad * learning_rate
    else:
        step = velocity * learning_rate
    p -= step
    if not masked:
        s.fill(0)


def update_narrow(
    p: Array, g: Array, learning_rate: Array, accum: Array, momentum: Array, s: Array, settings: Settings
) -> None:
    """One step on 16-bit arrays, in place, through float32."""
    p32, g32, lr, accum32, m, s32 = (array.astype(np.float32) for array in (p, g, learning_rate, accum, momentum, s))
    update(p32, g32, lr, accum32, m, s32, settings)
    p[...] = p32
    if m[0] != 0:
        accum[...] = accum32
        s.fill(0)


def _prepare(case: Case, memory: Memory) -> Prepared:
    one: Any = update if case.dtype == "float32" else update_narrow
    sets = [functools.partial(one, p, g, memory.learning_rate, a, memory.momentum, s, case.settings)
            for p, g, a, s in zip(memory.parameters, memory.gradient, memory.accum, memory.stat, strict=True)]

    def step() -> None:
        for update_set in sets:
            update_set()

    return in_place(step, memory)


PEERS = {"NumPy": Peer("NumPy", "NumPy, in place where it can", "real", no_objection, no_objection, _prepare)}
