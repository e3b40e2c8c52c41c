"""Damaged and absurd `.air` files end in a graph or a clear error: no crash, no hang, no great memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import samestep
from graph import fuzz_worker
from samestep.graph import air, ge

WORKER = Path(fuzz_worker.__file__)
MEBIBYTES = 200
SAMPLE = fuzz_worker.sample()


def fuzz(kind: str, count: int, seed: int, **environment: str) -> dict[str, int]:
    """Run `count` cases in a process of their own; how often each end was seen."""
    done = subprocess.run([sys.executable, "-W", "error", WORKER, kind, str(count), str(seed)], check=False,
                          capture_output=True, text=True, timeout=600, env=os.environ | environment)
    assert done.returncode == 0, done.stderr[-3000:]
    facts = json.loads(done.stdout)
    assert facts["mebibytes"] < MEBIBYTES
    assert facts["seen"]["graph"] + facts["seen"]["no graph"] >= count
    return facts["seen"]


def test_mutations():
    seen = fuzz("mutate", 2000, 1)
    assert min(seen[end] for end in ("graph", "no graph", "infer: ok", "run: ok", "infer: AirError", "run: AirError",
                                     "run: overlap", "lint finds shared or constant memory")) > 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", [2, 3])
def test_many_mutations(seed):
    seen = fuzz("mutate", 10_000, seed)
    assert seen["graph"] > 2000
    assert seen["no graph"] > 2000


@pytest.mark.exhaustive
def test_mutations_in_protobuf_s_plain_python():
    seen = fuzz("mutate", 1000, 4, PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION="python")
    assert min(seen[end] for end in ("graph", "no graph", "infer: ok", "run: ok")) > 0


def test_structured_cases():
    seen = fuzz("structure", 250, 1)
    assert min(seen[end] for end in ("graph", "no graph", "infer: ok", "run: ok", "infer: AirError")) > 0


@pytest.mark.exhaustive
def test_many_structured_cases():
    seen = fuzz("structure", 2000, 2)
    assert min(seen[f"infer: {code}"] for code in ("ok", "unsupported_dtype", "dtype_mismatch", "unsupported_format",
                                                   "attribute_value_out_of_range")) > 0


def failing(*_: Any, **__: Any) -> None:
    raise KeyError("a defect")


@pytest.mark.parametrize("name", ["lint", "infer", "run", "dump"])
def test_a_third_kind_of_error_is_noticed(name, monkeypatch):
    monkeypatch.setattr(ge, name, failing)
    monkeypatch.setitem(fuzz_worker.seen, "graph", 19)
    with pytest.raises(KeyError):
        fuzz_worker.survive(SAMPLE)


@pytest.mark.parametrize("defect", ["infer changes what it refuses", "infer is lax", "lint is blind"])
def test_contradictions_are_noticed(defect, monkeypatch):
    graph = ge.from_bytes(SAMPLE)
    graph.root.op[3].output_desc[0].dtype = 12  # no dtype of the operator's

    def infer(graph):
        if defect == "infer changes what it refuses":
            graph.root.name = "changed"
            raise ge.AirError("refused")

    monkeypatch.setattr(ge, "infer", infer)
    if defect == "lint is blind":
        monkeypatch.undo()
        monkeypatch.setattr(ge, "lint", lambda graph: ge.Lint((), ()))
    with pytest.raises(AssertionError):
        fuzz_worker.survive(ge.to_bytes(graph))


def nested(depth: int) -> bytes:
    """A model whose graph holds a graph in an attribute, and so on."""
    graph = air.messages()["GraphDef"](name="innermost")
    graph.op.add(name="sgd", type="SGD")
    data = graph.SerializeToString()
    for _ in range(depth):  # by hand: protobuf does not write more than it reads
        attr = b"\x6a" + varint(len(data)) + data
        entry = b"\x0a\x01g\x12" + varint(len(attr)) + attr
        data = b"\x5a" + varint(len(entry)) + entry
    return b"\x3a" + varint(len(data)) + data


def varint(value: int) -> bytes:
    found = b""
    while value > 127:
        found += bytes([value & 127 | 128])
        value >>= 7
    return found + bytes([value])


def test_nested_graphs_are_looked_into_and_do_not_exhaust_the_stack():
    graph = ge.from_bytes(nested(20))
    assert [report.node for report in ge.lint(graph).reports] == ["sgd"]
    assert "innermost" in ge.dump(graph)
    with pytest.raises(ge.AirError, match=r"no ge\.proto\.ModelDef"):
        ge.from_bytes(nested(10_000))


def seconds(act: Any) -> float:
    start = time.perf_counter()
    act()
    return time.perf_counter() - start


def test_large_graphs_take_linear_time():
    """A chain of updates, each of which works on the output of the last, and as many that share their rate."""
    graph = ge.Graph("chain")
    rate, momentum = graph.constant("rate", [0.1]), graph.constant("momentum", [0.9])
    last = graph.data("w", (2,))
    for k in range(500):
        tensors = [graph.data(f"{name}{k}", (2,)) for name in ("g", "a", "s")]
        last = graph.sgd(last, tensors[0], rate, tensors[1], momentum, tensors[2], name=f"sgd{k}")
    graph.output(last)
    assert seconds(lambda: ge.infer(graph)) < 10
    assert seconds(lambda: ge.lint(graph)) < 10
    assert ge.lint(graph).clean
    graph.nodes["sgd0"].op.input[0] = "nobody:0"
    assert seconds(lambda: ge.lint(graph)) < 10


def test_many_nodes_without_names_are_refused_soon():
    data = b"\x32\x00" * 100_000
    with pytest.raises(ge.AirError, match="two nodes of the name"):
        ge.infer(ge.from_bytes(b"\x3a" + varint(len(data)) + data))


def test_lengths_beyond_any_memory():
    graph = ge.Graph("huge")
    tensors = [graph.data(name, (2**62, 2**62)) for name in ("w", "g", "a", "s")]
    scalars = [graph.data(name, (1,)) for name in ("rate", "momentum")]
    graph.output(graph.sgd(tensors[0], tensors[1], scalars[0], tensors[2], scalars[1], tensors[3]))
    ge.infer(graph)
    assert list(graph.nodes["sgd"].op.output_desc[0].shape.dim) == [2**62, 2**62]
    with pytest.raises(samestep.ContractError, match="shape_mismatch"):
        ge.run(graph, {name: np.ones(1, np.float32) for name in ("w", "g", "a", "s", "rate", "momentum")})
