"""Record Keras 3's SGD on the TensorFlow backend, eagerly and compiled by XLA, float32.

    pip install tensorflow-cpu keras numpy; KERAS_BACKEND=tensorflow python make_keras.py
"""

import keras
import tensorflow as tf
from recording import Recording, as_float32, as_words


def recorder(compiled, learning_rate=0.1, momentum=0.9, **hyperparameters):
    def step(k, p, g, v, s):
        variable = keras.Variable(as_float32(p))
        optimizer = keras.optimizers.SGD(learning_rate, momentum, **hyperparameters)
        optimizer.build([variable])
        for velocity in optimizer.momentums:
            velocity.assign(as_float32(v))

        def apply(gradient):
            optimizer.apply([gradient])

        (tf.function(apply, jit_compile=True) if compiled else apply)(tf.constant(as_float32(g)))
        after = optimizer.momentums[0].numpy() if optimizer.momentums else as_float32(v)
        return as_words(variable.numpy()), as_words(after), None

    return step


CASES = {
    "plain": {}, "nesterov": {"nesterov": True}, "weight_decay": {"weight_decay": 0.01},
    "all": {"weight_decay": 0.01, "nesterov": True},
}

recording = Recording("keras", keras=keras.__version__, backend=keras.backend.backend(), tensorflow=tf.__version__)
for how, compiled in (("eager", False), ("xla", True)):
    for case, hyperparameters in CASES.items():
        recording.add(f"{how}-{case}", recorder(compiled, **hyperparameters), **hyperparameters)
recording.add("eager-zero", recorder(False, momentum=0.0), momentum=0.0, start="random", steps=1)
recording.save()
