"""Record optax.sgd, compiled by XLA for the CPU and eagerly, float32 and bfloat16.

    pip install optax numpy; python make_optax.py
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from recording import WORDS, Recording


def recorder(compiled, dtype, lr=0.1, momentum=0.9, nesterov=False, weight_decay=0.0):
    optimizer = optax.sgd(lr, momentum, nesterov)
    if weight_decay:
        optimizer = optax.chain(optax.add_decayed_weights(weight_decay), optimizer)

    def update(gradient, state, parameters):
        updates, state = optimizer.update(gradient, state, parameters)
        return optax.apply_updates(parameters, updates), state

    if compiled:
        update = jax.jit(update)

    def array(words):
        return jax.lax.bitcast_convert_type(jnp.asarray(words), getattr(jnp, dtype))

    def words(value):
        return np.asarray(jax.lax.bitcast_convert_type(value, WORDS[dtype]))

    def step(k, p, g, v, s):
        state = jax.tree.map(lambda _: array(v), optimizer.init(array(p)))
        parameters, state = update(array(g), state, array(p))
        return words(parameters), words(jax.tree.leaves(state)[0]), None

    return step


CASES = {
    "plain": {}, "nesterov": {"nesterov": True}, "weight_decay": {"weight_decay": 0.01},
    "all": {"weight_decay": 0.01, "nesterov": True},
}

for name, compiled in (("optax_jit", True), ("optax_eager", False)):
    recording = Recording(name, optax=optax.__version__, jax=jax.__version__)
    for dtype in ("float32", "bfloat16"):
        for case, hyperparameters in CASES.items():
            recording.add(f"{dtype}-{case}", recorder(compiled, dtype, **hyperparameters), dtype=dtype,
                          **hyperparameters)
    recording.add("float32-zero", recorder(compiled, "float32", momentum=0.0), momentum=0.0, start="random", steps=1)
    recording.save()
