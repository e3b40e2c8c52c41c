"""Record PaddlePaddle's Momentum on the CPU, float32.

    pip install paddlepaddle numpy; python make_paddle.py
"""

import paddle
from recording import Recording, as_float32, as_words


def recorder(momentum=0.9, nesterov=False, weight_decay=0.0):
    def step(k, p, g, v, s):
        parameter = paddle.create_parameter([len(p)], "float32",
                                            default_initializer=paddle.nn.initializer.Assign(as_float32(p)))
        parameter.grad = paddle.to_tensor(as_float32(g))
        optimizer = paddle.optimizer.Momentum(0.1, momentum, parameters=[parameter], use_nesterov=nesterov,
                                              weight_decay=weight_decay or None)
        optimizer._create_accumulators(paddle.base.framework.default_main_program().global_block(), [parameter])
        velocity = optimizer._accumulators["velocity"][parameter.name]
        velocity.set_value(as_float32(v))
        optimizer.step()
        return as_words(parameter.numpy()), as_words(velocity.numpy()), None

    return step


recording = Recording("paddle", paddle=paddle.__version__)
for case, hyperparameters in {"plain": {}, "nesterov": {"nesterov": True}, "weight_decay": {"weight_decay": 0.01},
                              "all": {"weight_decay": 0.01, "nesterov": True}}.items():
    recording.add(f"float32-{case}", recorder(**hyperparameters), **hyperparameters)
recording.add("float32-zero", recorder(0.0), momentum=0.0, start="random", steps=1)
recording.save()
