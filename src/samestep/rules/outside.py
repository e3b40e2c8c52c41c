"""Rules whose velocity is free of the learning rate: a change of the learning rate acts at once.

Each function evaluates in its framework's own order; ``*`` and ``+`` commute bit for bit, so only the grouping counts.
"""

from __future__ import annotations

from samestep.rules.terms import Number, Terms, decayed_gradient, undamped


def mindspore_cpu(t: Terms) -> tuple[Number, Number]:
    """ops.SGD on the CPU: torch's rule, whose first step is chosen by ``s > 0``, element by element."""
    grad = decayed_gradient(t)
    if not t.momentum:
        return t.p - t.lr * grad, t.v
    if t.first:
        v = grad
    else:
        v = t.v * t.m + ((t.one - t.d) * grad if t.dampening else grad)
    step = grad + v * t.m if t.nesterov else v
    return t.p - t.lr * step, v


def onnx(t: Terms) -> tuple[Number, Number]:
    """ai.onnx.preview.training Momentum: the first step is undamped, and still reads the velocity."""
    grad = t.wd * t.p + t.g if t.weight_decay else t.g
    beta = undamped(t) if t.dampening and not t.first else t.one
    v = t.m * t.v + beta * grad
    step = grad + t.m * v if t.nesterov else v
    return t.p - t.lr * step, v


def trace(t: Terms) -> tuple[Number, Number]:
    """optax.trace, Paddle's Momentum, tinygrad's SGD: Nesterov's step is grouped."""
    grad = decayed_gradient(t)
    v = t.m * t.v + grad
    step = grad + t.m * v if t.nesterov else v
    return t.p - t.lr * step, v


def tf1(t: Terms) -> tuple[Number, Number]:
    """TensorFlow's ApplyMomentum: Nesterov's step is expanded."""
    v = t.v * t.m + t.g
    step = t.g * t.lr + (v * t.m) * t.lr if t.nesterov else v * t.lr
    return t.p - step, v


def mlx(t: Terms) -> tuple[Number, Number]:
    """MLX's SGD: dampening acts from the first step on."""
    grad = decayed_gradient(t)
    if not t.momentum:
        return t.p - t.lr * grad, t.v
    v = t.m * t.v + (undamped(t) * grad if t.dampening else grad)
    step = grad + t.m * v if t.nesterov else v
    return t.p - t.lr * step, v


def ema(t: Terms) -> tuple[Number, Number]:
    """The velocity is minus the mean of past gradients: gradient and velocity share one weight."""
    v = t.m * t.v - (t.one - t.m) * t.g
    return t.p + t.lr * v, v
