"""Record TensorFlow's ApplyMomentum and ResourceApplyKerasMomentum, float32, float16 and bfloat16, and tf-keras' SGD.

    pip install tensorflow-cpu tf-keras numpy; python make_tensorflow.py
"""

import tensorflow as tf
import tf_keras
from recording import Recording, as_float32, as_words


def operator(raw, dtype, momentum=0.9, nesterov=False):
    def step(k, p, g, v, s):
        kind = getattr(tf, dtype)
        variable, velocity = (tf.Variable(tf.cast(tf.constant(as_float32(words, dtype)), kind)) for words in (p, v))
        raw(var=variable.handle, accum=velocity.handle, lr=tf.constant(0.1, kind),
            grad=tf.cast(tf.constant(as_float32(g, dtype)), kind), momentum=tf.constant(momentum, kind),
            use_locking=False, use_nesterov=nesterov)
        return (*(as_words(tf.cast(value, tf.float32).numpy(), dtype) for value in (variable, velocity)), None)

    return step


def optimizer(momentum=0.9, **hyperparameters):
    def step(k, p, g, v, s):
        variable = tf.Variable(as_float32(p))
        made = tf_keras.optimizers.SGD(0.1, momentum, jit_compile=False, **hyperparameters)
        made.build([variable])
        made.momentums[0].assign(as_float32(v))
        made.apply_gradients([(tf.constant(as_float32(g)), variable)])
        return as_words(variable.numpy()), as_words(made.momentums[0].numpy()), None

    return step


versions = {"tensorflow": tf.__version__, "tf_keras": tf_keras.__version__}
for name, raw in (("tf1_momentum", tf.raw_ops.ResourceApplyMomentum),
                  ("tf_keras_momentum", tf.raw_ops.ResourceApplyKerasMomentum)):
    recording = Recording(name, **versions)
    for dtype in ("float32", "float16", "bfloat16"):
        for nesterov in (False, True):
            case = f"{dtype}-{'nesterov' if nesterov else 'plain'}"
            recording.add(case, operator(raw, dtype, nesterov=nesterov), dtype=dtype, nesterov=nesterov)
    recording.add("float32-zero", operator(raw, "float32", momentum=0.0), momentum=0.0, start="random", steps=1)
    recording.save()

recording = Recording("tf_keras", **versions)
for case, hyperparameters in {"plain": {}, "nesterov": {"nesterov": True}, "weight_decay": {"weight_decay": 0.01},
                              "all": {"weight_decay": 0.01, "nesterov": True}}.items():
    recording.add(f"float32-{case}", optimizer(**hyperparameters), **hyperparameters)
recording.add("float32-zero", optimizer(momentum=0.0), momentum=0.0, start="random", steps=1)
recording.save()
