"""The demo's network and its data: back-propagation through a small classifier, written out in NumPy.

Everything is computed in float32, whatever dtype the parameters are stored in.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

LAYERS = (64, 256, 128, 10)  # 8 x 8 pixels, two hidden layers, ten digits
TRAINING_IMAGES = 1437  # of 1,797; the other 360 are the test set


class Digits(NamedTuple):
    """Images, one a row of 64 float32 pixels in 0..1, and what each shows."""

    training_images: Array
    training_labels: Array
    test_images: Array
    test_labels: Array


def load_digits(seed: int) -> Digits:
    """Load the digits of scikit-learn, shuffled by `seed` and split into training and test set."""
    from sklearn.datasets import load_digits as load

    pixels, labels = load(return_X_y=True)
    images = (pixels / 16).astype(np.float32)
    order = np.random.default_rng(seed).permutation(len(images))
    training, test = order[:TRAINING_IMAGES], order[TRAINING_IMAGES:]
    return Digits(images[training], labels[training], images[test], labels[test])


def one_thread() -> AbstractContextManager[Any]:
    """Keep NumPy's matrix products on the calling thread: these are too small to share, and waiting threads spin."""
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # scikit-learn brings it

    limits: AbstractContextManager[Any] = threadpool_limits(1, user_api="blas")
    return limits


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the NumPy dtype called `name`; bfloat16 is not NumPy's own."""
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def initial_parameters(rng: np.random.Generator, dtype: str) -> list[Array]:
    """Draw weights and biases, in turn; weights of variance 2 / inputs, which keeps the scale through ReLU."""
    parameters = []
    for inputs, outputs in itertools.pairwise(LAYERS):
        weights = rng.normal(0, np.sqrt(2 / inputs), (inputs, outputs)).astype(np.float32)
        parameters += [x.astype(numpy_dtype(dtype)) for x in (weights, np.zeros(outputs))]
    return parameters


def _forward(parameters: Sequence[Array], images: Array) -> list[Array]:
    """Compute the values of every layer, the images first and the logits last; ReLU between layers."""
    values = [images]
    for k in range(0, len(parameters), 2):
        inputs = values[-1] if k == 0 else np.maximum(values[-1], 0)
        values.append(inputs @ parameters[k] + parameters[k + 1])
    return values


def predict(parameters: Sequence[Array], images: Array) -> Array:
    """Read the digit in each image."""
    with np.errstate(over="ignore", invalid="ignore"):
        digits: Array = _forward([p.astype(np.float32) for p in parameters], images)[-1].argmax(axis=1)
        return digits


def back_propagate(parameters: Sequence[Array], images: Array, labels: Array) -> tuple[float, list[Array]]:
    """Compute the mean cross entropy of the softmax, and its gradient by every parameter.

    Overflow is no error here: what a learning rate that is too large leads to is computed like everything else.
    """
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        wide = [p.astype(np.float32) for p in parameters]
        values = _forward(wide, images)
        logits = values[-1] - values[-1].max(axis=1, keepdims=True)
        log_softmax = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        rows = np.arange(len(labels))
        delta = np.exp(log_softmax)
        delta[rows, labels] -= 1
        delta /= np.float32(len(labels))
        gradient: list[Array] = []
        for k in range(len(LAYERS) - 2, -1, -1):
            inputs = values[k] if k == 0 else np.maximum(values[k], 0)
            gradient[:0] = [inputs.T @ delta, delta.sum(axis=0)]
            if k:
                delta = (delta @ wide[2 * k].T) * (values[k] > 0)
        return -float(log_softmax[rows, labels].mean()), gradient
