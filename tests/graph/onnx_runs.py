"""ONNX models run on bit patterns, in onnxruntime's CPU provider and in onnx's reference evaluator."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np
import onnxruntime
from onnx.reference import ReferenceEvaluator

from samestep.contract import INPUTS
from samestep.graph.onnx_functions import element_type
from suite import BITS, NUMPY

RUNTIMES = ("onnxruntime", "onnxruntime unoptimised", "reference evaluator")


class OnnxRuntime:
    """A model in onnxruntime; all dtypes go through OrtValue, since NumPy has no bfloat16 that it knows."""

    def __init__(self, model: Any, optimised: bool = True, disabled: list[str] | None = None) -> None:
        levels = onnxruntime.GraphOptimizationLevel
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimised else levels.ORT_DISABLE_ALL
        options.intra_op_num_threads = 1
        options.log_severity_level = 4
        self.session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"], disabled_optimizers=disabled)

    def __call__(self, feeds: dict[str, Any], dtype: str) -> list[Any]:
        value = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type
        found = self.session.run_with_ort_values(
            None, {name: value(words, element_type(dtype)) for name, words in feeds.items()})
        return [_words(output, dtype) for output in found]


def _words(output: Any, dtype: str) -> Any:
    shape = output.shape()
    size = math.prod(shape) * np.dtype(BITS[dtype]).itemsize
    assert element_type(dtype) == output.element_type()
    return np.frombuffer(ctypes.string_at(output.data_ptr(), size), BITS[dtype]).reshape(shape)


class Evaluator:
    """A model in onnx's reference evaluator."""

    def __init__(self, model: Any) -> None:
        self.evaluator = ReferenceEvaluator(model)

    def __call__(self, feeds: dict[str, Any], dtype: str) -> list[Any]:
        with np.errstate(all="ignore"):
            found = self.evaluator.run(None, {name: words.view(NUMPY[dtype]) for name, words in feeds.items()})
        assert all(output.dtype == NUMPY[dtype] for output in found)
        return [np.ascontiguousarray(output).view(BITS[dtype]) for output in found]


def runtimes(model: Any) -> dict[str, Any]:
    """The model in every runtime."""
    return dict(zip(RUNTIMES, (OnnxRuntime(model), OnnxRuntime(model, optimised=False), Evaluator(model)), strict=True))


def feeds_of(columns: list[Any], lr: Any, m: Any, shape: tuple[int, ...], scalar: tuple[int, ...] = (1,)) -> Any:
    """Feeds by name from the words of parameters, gradient, accum and stat, and one-element arrays."""
    p, g, a, s = (column.reshape(shape) for column in columns)
    scalars = [value.view(p.dtype).reshape(scalar) for value in (lr, m)]
    return dict(zip(INPUTS, (p, g, scalars[0], a, scalars[1], s), strict=True))
