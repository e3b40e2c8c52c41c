"""Record MLX's SGD on the CPU, float32, float16 and bfloat16.

    pip install "mlx[cpu]" numpy; python make_mlx.py
"""

from importlib.metadata import version

import mlx.core as mx
import mlx.optimizers
import numpy as np
from recording import WORDS, Recording


def recorder(dtype, momentum=0.9, **hyperparameters):
    def array(words):
        return mx.array(words).view(getattr(mx, dtype))

    def words(value):
        return np.array(value.view(mx.uint32 if dtype == "float32" else mx.uint16)).astype(WORDS[dtype])

    def step(k, p, g, v, s):
        optimizer = mlx.optimizers.SGD(0.1, momentum, **hyperparameters)
        parameters = {"w": array(p)}
        optimizer.init(parameters)
        optimizer.state["w"]["v"] = array(v)
        after = optimizer.apply_gradients({"w": array(g)}, parameters)
        mx.eval(after, optimizer.state)
        return words(after["w"]), words(optimizer.state["w"]["v"]), None

    return step


CASES = {
    "plain": {}, "dampening": {"dampening": 0.25}, "nesterov": {"nesterov": True},
    "weight_decay": {"weight_decay": 0.01}, "all": {"weight_decay": 0.01, "nesterov": True},
}

mx.set_default_device(mx.cpu)
recording = Recording("mlx", mlx=version("mlx"))
for dtype in ("float32", "float16", "bfloat16"):
    for case, hyperparameters in CASES.items():
        recording.add(f"{dtype}-{case}", recorder(dtype, **hyperparameters), dtype=dtype, steps=2,
                      **hyperparameters)
recording.add("float32-zero", recorder("float32", momentum=0.0), momentum=0.0, start="random", steps=1)
recording.save()
