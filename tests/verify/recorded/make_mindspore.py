"""Record MindSpore's operator SGD on the CPU, float32 and float16.

    pip install mindspore numpy; python make_mindspore.py
"""

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, ops
from recording import LENGTH, Recording, as_float32, as_words, random_words


def recorder(dtype, momentum=0.9, **hyperparameters):
    kind = {"float32": np.float32, "float16": np.float16}[dtype]

    def step(k, p, g, v, s):
        parameters, accum, stat = (Parameter(Tensor(as_float32(words, dtype).astype(kind))) for words in (p, v, s))
        ops.SGD(**hyperparameters)(parameters, Tensor(as_float32(g, dtype).astype(kind)), Tensor(kind(0.1)), accum,
                                   Tensor(kind(momentum)), stat)
        return tuple(as_words(value.asnumpy().astype(np.float32), dtype) for value in (parameters, accum, stat))

    return step


CASES = {
    "plain": {}, "dampening": {"dampening": 0.25}, "nesterov": {"nesterov": True},
    "weight_decay": {"weight_decay": 0.01}, "all": {"weight_decay": 0.01, "nesterov": True},
}

ms.set_context(device_target="CPU")
recording = Recording("mindspore", mindspore=ms.__version__)
rng = np.random.default_rng(4)
for dtype in ("float32", "float16"):
    word = np.uint32 if dtype == "float32" else np.uint16
    ones = as_words(np.ones(LENGTH), dtype)
    mixed = np.where(random_words(rng, LENGTH, dtype) & 1, ones, 0).astype(word)
    for case, hyperparameters in CASES.items():
        recording.add(f"{dtype}-{case}", recorder(dtype, **hyperparameters), dtype=dtype, form="cann", stat=mixed,
                      start="random", steps=2, **hyperparameters)
    for case, momentum in (("zero", 0.0), ("negative", -0.5)):
        recording.add(f"{dtype}-{case}", recorder(dtype, momentum=momentum), dtype=dtype, momentum=momentum,
                      form="cann", stat=mixed, start="random", steps=1)
recording.save()
