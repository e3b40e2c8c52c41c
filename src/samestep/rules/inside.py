"""Rules whose velocity holds the learning rate: after a change of it the old one still acts for a while.

Each function evaluates in its framework's own order; ``*`` and ``+`` commute bit for bit, so only the grouping counts.
"""

from __future__ import annotations

from samestep.rules.terms import Number, Terms, decayed_gradient


def keras(t: Terms) -> tuple[Number, Number]:
    """Keras 3's SGD: parameters decay first, then the signed velocity is added."""
    p = t.p - (t.p * t.wd) * t.lr if t.weight_decay else t.p
    if not t.momentum:
        return p - t.g * t.lr, t.v
    return _keras_step(t, p)


def tf_keras(t: Terms) -> tuple[Number, Number]:
    """TensorFlow's ResourceApplyKerasMomentum and tf-keras' SGD: Keras' step also without momentum."""
    p = t.p - (t.p * t.wd) * t.lr if t.weight_decay else t.p
    return _keras_step(t, p)


def _keras_step(t: Terms, p: Number) -> tuple[Number, Number]:
    v = t.v * t.m - t.g * t.lr
    return p + (v * t.m - t.g * t.lr if t.nesterov else v), v


def mxnet(t: Terms) -> tuple[Number, Number]:
    """MXNet's SGD: weight decay goes into the velocity by itself; without momentum the velocity starts from nothing."""
    if t.nesterov:
        return _mxnet_nag(t)
    decay = (t.lr * t.wd) * t.p if t.weight_decay else None
    if not t.momentum:
        return t.p - (t.lr * t.g if decay is None else decay + t.lr * t.g), t.v
    v = t.m * t.v if decay is None else t.m * t.v - decay
    v = v - t.lr * t.g
    return t.p + v, v


def _mxnet_nag(t: Terms) -> tuple[Number, Number]:
    """MXNet's NAG steps back and then further; in place, its velocity reads the parameters already written."""
    if not t.momentum:
        kept = (t.one - t.lr * t.wd) * t.p if t.weight_decay else t.p
        return kept - t.lr * t.g, t.v
    back = t.m * t.v
    grad = t.g + t.wd * t.p if t.weight_decay else t.g
    p = (t.p - back) + (t.m + t.one) * (back - t.lr * grad)
    again = t.g + t.wd * p if t.weight_decay else t.g
    return p, back - t.lr * again


def caffe(t: Terms) -> tuple[Number, Number]:
    """Caffe's SGD and Nesterov solvers: the history is subtracted; Nesterov steps back, then over."""
    grad = decayed_gradient(t)
    v = t.lr * grad + t.m * t.v
    step = (t.one + t.m) * v + (-t.m) * t.v if t.nesterov else v
    return t.p - step, v
