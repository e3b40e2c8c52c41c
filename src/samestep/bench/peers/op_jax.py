"""The operator as a jitted JAX function, for suite "op": the formula of rules O with the mask of rule O6.

XLA fuses multiply-adds and computes 16-bit operations as it likes, so it claims the formula in real arithmetic. The
three written tensors are donated, so that XLA may write into them. JAX arrays cannot lie over foreign memory that is
written: they are copies, made anew when the peer is reset.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from samestep.bench.peer import Case, Memory, Peer, Prepared, Settings, Written
from samestep.bench.peers import not_installed

TENSORS = 1000

Columns = list[Any]


def step_of(settings: Settings) -> Any:
    """What is compiled: (parameters, gradient, learning_rate, accum, momentum, stat, write) -> the three written."""
    import jax

    _, d, wd, nesterov, _, _ = settings

    def one(p: Any, g: Any, lr: Any, a: Any, m: Any, s: Any, write: bool) -> tuple[Any, Any, Any]:
        grad = g + wd * p if wd != 0 else g
        velocity = m * a + grad
        if d != 0:
            velocity = velocity - grad * (1 - s) * d
        moved = p - ((grad + m * velocity) if nesterov else velocity) * lr
        return (moved, velocity, jax.numpy.zeros_like(s)) if write else (moved, a, s)

    def step(p: Columns, g: Columns, lr: Any, a: Columns, m: Any, s: Columns, write: bool) -> tuple[Any, ...]:
        sets = [one(p[k], g[k], lr, a[k], m, s[k], write) for k in range(len(p))]
        return tuple(map(list, zip(*sets, strict=True)))

    return step


def _prepare(case: Case, memory: Memory) -> Prepared:
    import jax

    step_all = jax.jit(step_of(case.settings), donate_argnums=(0, 3, 5), static_argnums=6)
    cpu = jax.devices("cpu")[0]
    state: dict[str, Any] = {}

    def reset() -> None:
        with jax.default_device(cpu):
            for name, arrays in memory._asdict().items():
                if name != "fill":
                    state[name] = jax.tree.map(functools.partial(jax.numpy.array, copy=True), arrays)
            jax.block_until_ready(state)

    def step() -> None:
        m = state["momentum"]
        state["parameters"], state["accum"], state["stat"] = jax.block_until_ready(step_all(
            state["parameters"], state["gradient"], state["learning_rate"], state["accum"], m, state["stat"],
            bool(m[0] != 0)))

    def written() -> Written:
        return Written(*([np.asarray(array) for array in state[name]] for name in ("parameters", "accum", "stat")))

    reset()
    step()
    return Prepared(step, written, reset)


def _cannot(case: Case) -> str | None:
    count = len(case.shapes)
    if count <= TENSORS:
        return None
    return f"{count} tensor sets: a function of more than {TENSORS} takes minutes to compile"


PEERS = {"JAX": Peer("JAX", "jax.jit with donated buffers", "real", functools.partial(not_installed, "jax"), _cannot,
                     _prepare)}
