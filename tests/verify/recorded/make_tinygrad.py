"""Record tinygrad's SGD on its own interpreter, the device PYTHON, float32.

    pip install tinygrad numpy; DEV=PYTHON python make_tinygrad.py
"""

from importlib.metadata import version

from recording import Recording, as_float32, as_words
from tinygrad import Device, Tensor
from tinygrad.helpers import Context
from tinygrad.nn.optim import SGD


def recorder(momentum=0.9, **hyperparameters):
    def step(k, p, g, v, s):
        parameter = Tensor(as_float32(p)).realize()
        parameter.grad = Tensor(as_float32(g)).realize()
        optimizer = SGD([parameter], 0.1, momentum, **hyperparameters)
        optimizer.b[0].assign(Tensor(as_float32(v))).realize()
        with Context(TRAINING=1):
            optimizer.step()
        return as_words(parameter.numpy()), as_words(optimizer.b[0].numpy()), None

    return step


recording = Recording("tinygrad", tinygrad=version("tinygrad"), device=Device.DEFAULT)
for case, hyperparameters in {"plain": {}, "nesterov": {"nesterov": True}, "weight_decay": {"weight_decay": 0.01},
                              "all": {"weight_decay": 0.01, "nesterov": True}}.items():
    recording.add(f"float32-{case}", recorder(**hyperparameters), **hyperparameters)
recording.save()
