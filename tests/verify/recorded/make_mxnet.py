"""Record MXNet's SGD and NAG, float32.

    pip install "numpy<1.24" mxnet; python make_mxnet.py
"""

import mxnet as mx
from recording import Recording, as_float32, as_words


def recorder(momentum=0.9, nesterov=False, weight_decay=0.0):
    def step(k, p, g, v, s):
        optimizer = mx.optimizer.create("NAG" if nesterov else "SGD", learning_rate=0.1, momentum=momentum,
                                        wd=weight_decay)
        weight, gradient, velocity = (mx.nd.array(as_float32(words)) for words in (p, g, v))
        optimizer.update(0, weight, gradient, velocity if momentum else None)
        return as_words(weight.asnumpy()), as_words(velocity.asnumpy()), None

    return step


recording = Recording("mxnet", mxnet=mx.__version__)
for case, hyperparameters in {"plain": {}, "nesterov": {"nesterov": True}, "weight_decay": {"weight_decay": 0.01},
                              "all": {"weight_decay": 0.01, "nesterov": True}}.items():
    recording.add(f"float32-{case}", recorder(**hyperparameters), **hyperparameters)
for nesterov in (False, True):
    for case, decay in (("zero", 0.0), ("zero-weight_decay", 0.01)):
        facts = {"weight_decay": decay, "nesterov": nesterov}
        recording.add(f"float32-{'nag-' * nesterov}{case}", recorder(0.0, **facts), momentum=0.0, start="random",
                      steps=1, **facts)
recording.save()
