"""Record Chainer's MomentumSGD and NesterovAG on the CPU, float32.

    pip install "numpy<1.24" chainer; python make_chainer.py
"""

import chainer
from recording import Recording, as_float32, as_words


def recorder(kind, momentum=0.9):
    def step(k, p, g, v, s):
        parameter = chainer.Parameter(as_float32(p))
        parameter.grad = as_float32(g)
        rule = kind(0.1, momentum).create_update_rule()
        if v.any():  # the state is made, as zeros, by the first update
            gradient, parameter.grad = parameter.grad, as_float32(0 * g)
            rule.update(parameter)
            rule.state["v"][:], parameter.grad, parameter.array[:] = as_float32(v), gradient, as_float32(p)
        rule.update(parameter)
        return as_words(parameter.array), as_words(rule.state["v"]), None

    return step


recording = Recording("chainer", chainer=chainer.__version__)
recording.add("momentum_sgd", recorder(chainer.optimizers.MomentumSGD))
recording.add("nesterov_ag", recorder(chainer.optimizers.NesterovAG), nesterov=True)
recording.save()
