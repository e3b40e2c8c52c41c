"""A GE graph as an ONNX model: the same bits as a run of the graph, the same refusals."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from graph.host_cases import ACCEPTED, REFUSED, UNKNOWN_RANK
from graph.onnx_runs import runtimes
from samestep.contract import INPUTS, ORDERS, ContractError
from samestep.graph import ge
from samestep.graph.onnx import to_onnx
from suite import BITS, KEYS, NUMPY, attributes, differing, scalar, tensors


def sample(momentum=0.9, **given):
    """The graph of the operator's own sample, and its feeds."""
    graph = ge.Graph("train")
    edges = [graph.data(name, (1,) if name in ("learning_rate", "momentum") else (2, 30)) for name in INPUTS]
    graph.output(graph.sgd(*edges, **given))
    values = dict(zip(INPUTS, (1.0, 0.5, 0.1, 3.5, momentum, 1.0), strict=True))
    return graph, {name: np.full((1,) if name in ("learning_rate", "momentum") else (2, 30), value, np.float32)
                   for name, value in values.items()}


def in_all(model, feeds, dtype="float32"):
    """The outputs by name, the same in every runtime."""
    words = {name: array.view(BITS[dtype]) for name, array in feeds.items()}
    first, *others = [runtime(words, dtype) for runtime in runtimes(model).values()]
    for other in others:
        assert all((one == two).all() for one, two in zip(first, other, strict=True))
    names = [value.name for value in model.graph.output]
    return dict(zip(names, (output.view(NUMPY[dtype]) for output in first), strict=True))


@pytest.mark.parametrize(("momentum", "want"), [(0.9, ("0.635", "3.65", "0")), (0.0, ("0.95", "3.5", "1"))])
def test_the_sample(momentum, want):
    graph, feeds = sample(momentum)
    found = in_all(to_onnx(graph), feeds)
    for name, value in zip(("parameters_out", "accum_out", "stat_out"), want, strict=True):
        assert found[name].shape == (2, 30)
        assert {f"{number:.6g}" for number in found[name].reshape(-1)} == {value}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", NUMPY)
@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.variant)
def test_the_bits_are_those_of_a_run(key, dtype, order):
    """Two updates one after the other, with a variable, a constant and shared scalars."""
    rng = np.random.default_rng([*map(ord, key.variant + dtype)])
    columns = [column.view(NUMPY[dtype]).reshape(5, 40) for column in tensors(rng, 200, dtype)]
    graph = ge.Graph("train")
    p, g = graph.data("w", (-1, 40), dtype), graph.constant("g", columns[1])
    a, s = graph.variable("a", columns[2]), graph.data("s", (5, -1), dtype)
    lr, m = graph.data("lr", (), dtype), graph.constant("m", scalar(0.9, dtype))
    once = graph.sgd(p, g, lr, a, m, s, name="one", **attributes(key)._asdict())
    graph.output(graph.sgd(once, g, lr, a, m, s, name="two"))
    feeds = {"w": columns[0].copy(), "s": columns[3].copy(), "lr": scalar(0.1, dtype).reshape(())}
    found = in_all(to_onnx(graph, order), feeds, dtype)
    ge.run(graph, feeds, engine="reference", order=order)
    want = {"w_out": feeds["w"], "a_out": graph.variables["a"], "s_out": feeds["s"]}
    assert found.keys() == want.keys()
    words = [[arrays[name].reshape(-1).view(BITS[dtype]) for name in ("w_out", "g", "a_out", "s_out")]
             for arrays in (want | {"g": columns[1]}, found | {"g": columns[1]})]
    assert differing(*words, dtype, masked=False) == 0


def test_a_variable_begins_with_its_state():
    graph, feeds = sample()
    graph = ge.Graph("train")
    edges = [graph.variable(name, feeds[name]) for name in INPUTS]
    graph.output(graph.sgd(*edges))
    once = in_all(to_onnx(graph), {})["accum_out"]
    ge.run(graph, {}, engine="reference")
    assert (once == graph.variables["accum"]).all()
    twice = in_all(to_onnx(graph), {})["accum_out"]
    ge.run(graph, {}, engine="reference")
    assert (twice == graph.variables["accum"]).all()
    assert (in_all(to_onnx(graph), {"accum": np.zeros((2, 30), np.float32)})["accum_out"] == np.float32(0.5)).all()


def test_outputs_are_those_declared_then_other_written_memory():
    graph = ge.Graph("train")
    edges = [graph.data(name, (1,)) for name in INPUTS]
    other = graph.data("w_out", (1,))
    done = graph.sgd(graph.data("w", (1,)), *edges[1:])
    graph.output(other, done, done, edges[1])
    model = to_onnx(graph)
    assert [value.name for value in model.graph.output] == ["output_0", "w_out_2", "output_2", "output_3", "accum_out",
                                                            "stat_out"]
    assert [value.name for value in model.graph.input][:2] == ["parameters", "gradient"]


def test_a_function_is_there_once_however_many_nodes_call_it():
    graph, _ = sample()
    graph = ge.Graph("train")
    scalars = {name: graph.data(name, (1,)) for name in ("learning_rate", "momentum")}
    for k in range(5):
        tensors_of = {name: graph.data(f"{name}_{k}", (k + 1, -1)) for name in INPUTS if name not in scalars}
        edges = tensors_of | scalars
        graph.sgd(*(edges[name] for name in INPUTS), name=f"sgd_{k}", weight_decay=0.1 * (k % 2))
    graph.output()
    model = to_onnx(graph, "ascend950")
    names = sorted(function.name for function in model.functions)
    assert names == ["SGD_K0_ascend950", "SGD_K2_ascend950", "SameShape"]
    assert len(model.graph.output) == 15
    dims = [value.type.tensor_type.shape.dim[1].dim_param for value in model.graph.output[:2]]
    assert len(set(dims)) == 2  # unknown lengths of two tensors need not be equal


def graph_of(case):
    graph = ge.Graph("case")
    edges = [graph.data(*one) for one in zip(INPUTS, case.shapes, case.dtypes, strict=True)]
    graph.output(graph.sgd(*edges, **case.attributes))
    return graph


RANKED = [case for case in ACCEPTED if UNKNOWN_RANK not in case.shapes]


@pytest.mark.parametrize("case", RANKED, ids=lambda case: case.name)
def test_what_the_operators_host_tests_accept(case):
    model = to_onnx(graph_of(case))
    assert model.graph.node[-1].op_type == f"SGD_{case.variant}"
    onnx.checker.check_model(model, full_check=True)


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
def test_what_the_operators_host_tests_refuse(case):
    with pytest.raises(ContractError) as caught:
        to_onnx(graph_of(case))
    assert (caught.value.code, caught.value.input) == (case.code, f"sgd.{case.input}")


@pytest.mark.parametrize("case", [case for case in ACCEPTED if case not in RANKED], ids=lambda case: case.name)
def test_unknown_ranks_are_refused_besides(case):
    with pytest.raises(ContractError, match="ONNX wants the rank") as caught:
        to_onnx(graph_of(case))
    assert caught.value.code == "rank_out_of_range"
    assert case.shapes[INPUTS.index(caught.value.input)] == UNKNOWN_RANK


def test_what_a_run_refuses_is_refused():
    graph, _ = sample()
    graph.root.op.add(name="conv", type="Conv2D")
    with pytest.raises(ge.AirError, match="'conv' of type Conv2D"):
        to_onnx(graph)
    graph, _ = sample()
    with pytest.raises(ContractError) as caught:
        to_onnx(graph, "sepc")
    assert caught.value.code == "unknown_order"


@pytest.mark.parametrize("name", ["parameters", "accum", "stat"])
def test_a_constant_is_not_updated(name):
    graph = ge.Graph("train")
    edges = [graph.constant(one, np.ones(1, np.float32)) if one == name else graph.data(one, (1,)) for one in INPUTS]
    graph.output(graph.sgd(*edges))
    with pytest.raises(ContractError) as caught:
        to_onnx(graph)
    assert (caught.value.code, caught.value.input) == ("read_only", f"sgd.{name}")


@pytest.mark.parametrize(("one", "other"), [("parameters", "gradient"), ("gradient", "accum"), ("accum", "stat"),
                                            ("accum", "momentum")])
def test_written_memory_is_nobody_elses(one, other):
    graph = ge.Graph("train")
    edges = {name: graph.data(name, (1,)) for name in INPUTS}
    edges[other] = edges[one]
    graph.output(graph.sgd(*edges.values()))
    with pytest.raises(ContractError) as caught:
        to_onnx(graph)
    assert (caught.value.code, caught.value.input) == ("overlap", f"sgd.{other}")


def test_learning_rate_and_momentum_may_be_one_tensor():
    graph = ge.Graph("train")
    edges = {name: graph.data(name, (1,)) for name in INPUTS if name != "momentum"}
    graph.output(graph.sgd(*(edges.get(name, edges["learning_rate"]) for name in INPUTS)))
    assert len(to_onnx(graph).graph.input) == 5


def test_writes_without_an_order_are_refused():
    graph = ge.Graph("train")
    edges = [graph.data(name, (1,)) for name in INPUTS]
    graph.sgd(*edges, name="one")
    two = [graph.data(f"{name}_2", (1,)) for name in INPUTS]
    last = graph.sgd(*two[:3], edges[3], *two[4:], name="two")
    graph.output(last)
    with pytest.raises(ge.AirError, match="no edge says which runs first"):
        to_onnx(graph)


def test_a_variable_whose_state_does_not_fit_is_refused():
    graph = ge.Graph("train")
    edges = [graph.variable(name, np.ones(1, np.float32)) for name in INPUTS]
    graph.output(graph.sgd(*edges))
    graph.variables["accum"] = np.ones(2, np.float32)
    with pytest.raises(ContractError) as caught:
        to_onnx(graph)
    assert (caught.value.code, caught.value.input) == ("shape_mismatch", "accum")
