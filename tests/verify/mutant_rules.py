"""Other frameworks' rules for the mutants of mutants.py, in plain NumPy: one float32 rounding for each operation.

Every function takes the float32 tensors, which elements take their first step, and the hyperparameters; `undamped` is
1-d taken before it is rounded, `written` says that the momentum counts.
"""

from __future__ import annotations

import numpy as np

from samestep.verify.vectorised import fma32


def single(function):
    """A rule of another framework over float32 arrays, one rounding for each operation."""
    def rule(p, g, a, s, numbers, written):
        p, g, a = (values.astype(np.float32) for values in (p, g, a))
        lr, m, d, wd, undamped = (np.float32(value) for value in (
            numbers.lr, numbers.m, numbers.d, numbers.wd, numbers.undamped))
        moved, velocity = function(p, g, a, s > 0, lr, m, d, wd, undamped, numbers.nesterov, written)
        return moved.astype(np.float64), velocity.astype(np.float64)

    return rule


def single_fma(x, y, z):
    return fma32(*np.broadcast_arrays(*(np.asarray(v, np.float64) for v in (x, y, z)))).astype(np.float32)


def torch(p, g, b, first, lr, m, d, wd, undamped, nesterov, written):
    g = single_fma(wd, p, g) if wd != 0 else g
    if not written:
        return single_fma(-lr, g, p), b
    b = np.where(first, g, single_fma(undamped if d != 0 else np.float32(1), g, m * b))
    return single_fma(-lr, single_fma(m, b, g) if nesterov else b, p), b


def mindspore_cpu(p, g, b, first, lr, m, d, wd, undamped, nesterov, written):
    g = g + p * wd if wd != 0 else g
    if not written:
        return p - lr * g, b
    b = np.where(first, g, b * m + (np.float32(1) - d) * g)
    return p - lr * (g + b * m if nesterov else b), b


def onnx(p, g, v, first, lr, m, d, wd, undamped, nesterov, written):
    g = wd * p + g if wd != 0 else g
    v = m * v + np.where(first, np.float32(1), np.float32(1) - d) * g
    return p - lr * (g + m * v if nesterov else v), v


def trace(p, g, v, first, lr, m, d, wd, undamped, nesterov, written):
    g = g + wd * p if wd != 0 else g
    v = g + m * v
    return p + (-lr) * (g + m * v if nesterov else v), v


def tf1(p, g, v, first, lr, m, d, wd, undamped, nesterov, written):
    v = v * m + g
    return p - (g * lr + v * m * lr if nesterov else v * lr), v


def keras(p, g, v, first, lr, m, d, wd, undamped, nesterov, written):
    p = p - p * wd * lr if wd != 0 else p
    if not written:
        return p - g * lr, v
    v = v * m - g * lr
    return p + (v * m - g * lr if nesterov else v), v


def mxnet(p, g, v, first, lr, m, d, wd, undamped, nesterov, written):
    """Without Nesterov, which is another optimizer there."""
    if not written:
        return p - (lr * wd * p + lr * g if wd != 0 else lr * g), v
    v = m * v - lr * wd * p - lr * g if wd != 0 else m * v - lr * g
    return p + v, v


def mlx(p, g, v, first, lr, m, d, wd, undamped, nesterov, written):
    g = g + wd * p if wd != 0 else g
    if not written:
        return p - lr * g, v
    v = m * v + ((np.float32(1) - d) * g if d != 0 else g)
    return p - lr * (g + m * v if nesterov else v), v


def caffe(p, g, h, first, lr, m, d, wd, undamped, nesterov, written):
    g = wd * p + g if wd != 0 else g
    new = lr * g + m * h
    return p - ((np.float32(1) + m) * new - m * h if nesterov else new), new


def ema(p, g, v, first, lr, m, d, wd, undamped, nesterov, written):
    v = m * v - (np.float32(1) - m) * g
    return p + lr * v, v


OTHERS = {
    "torch": single(torch), "mindspore-cpu": single(mindspore_cpu), "onnx": single(onnx), "trace": single(trace),
    "tf1": single(tf1), "keras": single(keras), "tf-keras": single(keras), "mxnet": single(mxnet),
    "mlx": single(mlx), "caffe": single(caffe), "ema": single(ema),
}
