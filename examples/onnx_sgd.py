"""The operator in an ONNX model: built, saved, run, and compared bit for bit with `samestep.sgd_`.

Run it with `python examples/onnx_sgd.py [FILE.onnx]`; it needs `pip install 'samestep[graph]'`, and runs the model in
onnxruntime, too, where that is installed. 20 steps of momentum descend the sum of (parameters - target)^2 / 2.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

import samestep
from samestep.graph import ge
from samestep.graph.momentum import MomentumDiffersError, momentum_model
from samestep.graph.onnx import model, to_onnx

SHAPE, STEPS = (64, 10), 20
ATTRIBUTES = {"dampening": 0.1, "weight_decay": 1e-4}
Run = Callable[[dict[str, Any]], list[Any]]


def runtimes(path: Path) -> dict[str, Run]:
    evaluator = ReferenceEvaluator(str(path))
    found: dict[str, Run] = {"onnx's reference evaluator": lambda feeds: evaluator.run(None, feeds)}
    if importlib.util.find_spec("onnxruntime"):
        import onnxruntime

        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        found["onnxruntime"] = lambda feeds: session.run(None, feeds)
    return found


def train(step: Run, dtype: Any) -> list[Any]:
    """Parameters, accum and stat after `STEPS` steps, each a function of those before."""
    rng = np.random.default_rng(0)
    target, parameters = (rng.standard_normal(SHAPE).astype(dtype) for _ in range(2))
    state = [parameters, np.zeros(SHAPE, dtype), np.ones(SHAPE, dtype)]
    for _ in range(STEPS):
        state = step({"parameters": state[0], "gradient": state[0] - target, "learning_rate": np.array([0.1], dtype),
                      "accum": state[1], "momentum": np.array([0.9], dtype), "stat": state[2]})
    return state


def in_place(feeds: dict[str, Any]) -> list[Any]:
    tensors = {name: array.copy() for name, array in feeds.items()}
    samestep.sgd_(**tensors, **ATTRIBUTES)
    return [tensors["parameters"], tensors["accum"], tensors["stat"]]


def main(path: Path) -> None:
    for dtype in ("float32", "float16"):
        onnx.save(model(SHAPE, dtype, **ATTRIBUTES), path)
        want = np.concatenate(train(in_place, dtype))
        for name, run in runtimes(path).items():
            got = np.concatenate(train(run, dtype))
            differ = np.count_nonzero(want.view(np.uint8) != got.view(np.uint8))
            print(f"{dtype}, {STEPS} steps in {name}: {differ} of {want.nbytes:,} bytes differ")

    graph = ge.Graph("train")
    edges = [graph.data(name, (1,) if name in ("learning_rate", "momentum") else (2, 30))
             for name in ("parameters", "gradient", "learning_rate", "accum", "momentum", "stat")]
    graph.output(graph.sgd(*edges))
    values = {"parameters": 1.0, "gradient": 0.5, "learning_rate": 0.1, "accum": 3.5, "momentum": 0.9, "stat": 1.0}
    onnx.save(to_onnx(graph), path)
    feeds = {edge.node: np.full((1,) if edge in (edges[2], edges[4]) else (2, 30), values[edge.node], np.float32)
             for edge in edges}
    for name, run in runtimes(path).items():
        print(f"the GE sample in {name}:", *(f"{output.max():g}" for output in run(feeds)))

    try:
        momentum_model(SHAPE, momentum=0.9, stat=0.0, **ATTRIBUTES)
    except MomentumDiffersError as error:
        print(error)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(Path(folder) / "sgd.onnx")
