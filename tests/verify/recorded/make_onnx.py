"""Record the Momentum operator of ONNX as its reference evaluator computes it, float32.

A stat of 1 stands for T == 0, the first step, and comes back as 0 for those after it.

    pip install onnx numpy; python make_onnx.py
"""

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from recording import LENGTH, Recording, as_float32, as_words

DOMAIN = "ai.onnx.preview.training"


def recorder(momentum=0.9, dampening=0.0, weight_decay=0.0, nesterov=False):
    node = helper.make_node("Momentum", ["R", "T", "X", "G", "V"], ["X_new", "V_new"], domain=DOMAIN, alpha=momentum,
                            beta=1 - dampening, mode="nesterov" if nesterov else "standard",
                            norm_coefficient=weight_decay)
    shapes = {"R": [], "T": [], "X": [LENGTH], "G": [LENGTH], "V": [LENGTH], "X_new": [LENGTH], "V_new": [LENGTH]}
    values = {name: helper.make_tensor_value_info(name, TensorProto.INT64 if name == "T" else TensorProto.FLOAT, shape)
              for name, shape in shapes.items()}
    inputs, outputs = ([values[name] for name in names] for names in (node.input, node.output))
    graph = helper.make_graph([node], "step", inputs, outputs)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    session = ReferenceEvaluator(helper.make_model(graph, opset_imports=opsets))

    def step(k, p, g, v, s):
        feeds = {"R": np.array(0.1, np.float32), "T": np.array(int(not s.any())), "X": as_float32(p),
                 "G": as_float32(g), "V": as_float32(v)}
        x, velocity = session.run(None, feeds)
        return as_words(x), as_words(velocity), 0 * s

    return step


CASES = {
    "plain": {}, "dampening": {"dampening": 0.25}, "nesterov": {"nesterov": True},
    "weight_decay": {"weight_decay": 0.01}, "all": {"weight_decay": 0.01, "nesterov": True, "dampening": 0.25},
}

recording = Recording("onnx", onnx=onnx.__version__)
first = as_words(np.ones(LENGTH))
for case, hyperparameters in CASES.items():
    recording.add(f"float32-{case}", recorder(**hyperparameters), form="cann", stat=first, start="random",
                  **hyperparameters)
recording.add("float32-zero", recorder(0.0), form="cann", stat=0 * first, momentum=0.0, start="random", steps=1)
recording.save()
