"""Optimizers on JAX, for suite "optim": optax, and Keras with JAX as its backend.

Both steps are jitted and may write into the parameters and state they are given (donation). Those are copies, made when
the peer is reset; gradients, which are only read, lie where the other peers' do. XLA fuses multiply-adds as it likes,
so they claim the formula in real arithmetic.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from samestep.bench.peer import Array, Case, Memory, Peer, Prepared, Settings, Written
from samestep.bench.peers import not_installed

MOST_COMPILED = 2000  # tensors; XLA takes 2 s for 1000 and a minute for 10,000
Trees = tuple[Any, Any]  # parameters, state
_NO_DAMPENING = "it has no dampening"


def _wide(case: Case) -> AbstractContextManager[Any]:
    """Within it JAX has float64, if the case needs it: switched on for good, it would change what others compute in."""
    import jax

    return jax.enable_x64(True) if case.dtype == "float64" else nullcontext()


def _put(arrays: list[Array], shared: bool) -> list[Any]:
    """JAX arrays over these on the CPU, or copies of them."""
    import jax

    cpu = jax.devices("cpu")[0]
    placed: list[Any] = jax.block_until_ready(jax.device_put(arrays, cpu, may_alias=shared))
    return placed


def _prepared(case: Case, memory: Memory, update: Callable[[Any, Any, Any], Trees], start: Callable[[list[Any]], Any],
              buffers_of: Callable[[Any], list[Any] | None]) -> Prepared:
    """Jit `update(parameters, state, gradient)`; `start(parameters)` is the state before the first step."""
    import jax

    jitted = jax.jit(update, donate_argnums=(0, 1))
    with _wide(case):
        gradient = _put(memory.gradient, shared=True)
    parameters: Any = None
    state: Any = None

    def reset() -> None:
        nonlocal parameters, state
        parameters = state = None  # before there are new ones
        with _wide(case):
            parameters = _put(memory.parameters, shared=False)
            state = jax.block_until_ready(start(parameters))

    def step() -> None:
        nonlocal parameters, state
        parameters, state = jitted(parameters, state, gradient)
        jax.block_until_ready((parameters, state))

    def wide_step() -> None:
        with _wide(case):
            step()

    def written() -> Written:
        buffers = buffers_of(state) if case.settings.momentum != 0 else None
        return Written([np.asarray(array) for array in parameters],
                       None if buffers is None else [np.asarray(array) for array in buffers], None)

    prepared = Prepared(wide_step if case.dtype == "float64" else step, written, reset)
    prepared.reset()
    prepared.step()
    return prepared


def _too_many(case: Case) -> str | None:
    if len(case.shapes) <= MOST_COMPILED:
        return None
    return f"XLA takes minutes to compile a step for {len(case.shapes):,} tensors; up to {MOST_COMPILED:,} are compiled"


def optax_rule(settings: Settings) -> Any:
    """The settings as a chain of optax's transformations: `optax.sgd`, and before it what that has not."""
    import optax

    before = [optax.scale(-1.0)] if settings.maximize else []
    if settings.weight_decay != 0:
        before.append(optax.add_decayed_weights(settings.weight_decay))
    return optax.chain(*before, optax.sgd(settings.lr, settings.momentum or None, settings.nesterov))


def _optax_cannot(case: Case) -> str | None:
    return _NO_DAMPENING if case.settings.dampening != 0 else _too_many(case)


def _optax(case: Case, memory: Memory) -> Prepared:
    import optax

    rule = optax_rule(case.settings)

    def update(parameters: Any, state: Any, gradient: Any) -> Trees:
        updates, state = rule.update(gradient, state, parameters)
        return optax.apply_updates(parameters, updates), state

    def buffers_of(state: Any) -> list[Any]:
        buffers: list[Any] = optax.tree.get(state, "trace")
        return buffers

    return _prepared(case, memory, update, rule.init, buffers_of)


def _keras_unavailable() -> str | None:
    backend = os.environ.get("KERAS_BACKEND", "jax")
    if backend != "jax":
        return f"it is run on JAX, and KERAS_BACKEND is {backend!r}: unset it"
    return not_installed("keras", "jax")


def _keras_cannot(case: Case) -> str | None:
    settings = case.settings
    if settings.dampening != 0:
        return _NO_DAMPENING
    if settings.weight_decay != 0 and settings.momentum != 0:
        return "its weight decay is decoupled: with momentum that is another rule"
    return _too_many(case)


def _keras(case: Case, memory: Memory) -> Prepared:
    """`keras.optimizers.SGD`, by its `stateless_apply`. Its buffers are -lr times torch's."""
    os.environ.setdefault("KERAS_BACKEND", "jax")
    import jax

    settings = case.settings
    with _wide(case):
        optimizer, scalars = _keras_optimizer(case)

    def start(parameters: list[Any]) -> list[Any]:
        buffers = parameters if settings.momentum != 0 else []
        return [*map(jax.numpy.array, scalars), *map(jax.numpy.zeros_like, buffers)]

    def update(parameters: Any, state: Any, gradient: Any) -> Trees:
        gradient = [-array for array in gradient] if settings.maximize else gradient
        parameters, state = optimizer.stateless_apply(state, gradient, parameters)
        return parameters, state

    return _prepared(case, memory, update, start, lambda state: None)


def _keras_optimizer(case: Case) -> tuple[Any, list[Array]]:
    """The optimizer, built for the shapes, and its variables that are not momentum: steps done and learning rate."""
    import jax
    import keras

    settings = case.settings
    floatx = keras.config.floatx()
    if case.dtype == "float64":
        keras.config.set_floatx("float64")  # the learning rate is kept in it
    try:
        optimizer = keras.optimizers.SGD(settings.lr, momentum=settings.momentum, nesterov=settings.nesterov,
                                         weight_decay=settings.weight_decay or None)
    finally:
        keras.config.set_floatx(floatx)
    variables = [keras.Variable(jax.numpy.zeros(shape, case.dtype), dtype=case.dtype) for shape in case.shapes]
    optimizer.build(variables)
    scalars = [np.array(variable.value) for variable in optimizer.variables[:2]]
    for variable in [*variables, *optimizer.variables[2:]]:  # a stateless step reads their shapes, so free their memory
        variable.value.delete()
    return optimizer, scalars


PEERS: dict[str, Peer] = {
    "optax": Peer("optax", "optax.sgd, jitted with donation", "real",
                  functools.partial(not_installed, "optax", "jax"), _optax_cannot, _optax),
    "Keras": Peer("Keras", "keras.optimizers.SGD on JAX, jitted with donation", "real", _keras_unavailable,
                  _keras_cannot, _keras),
}
