"""GE graphs: building them, and running them in place as a session on the device does."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import samestep
from graph.host_cases import DTYPES, INPUTS, VARIANTS
from samestep.graph import ge
from samestep.verify import oracle

NUMPY: dict[str, Any] = {"bfloat16": ml_dtypes.bfloat16}
SHAPE = (2, 30)


def one_update(dtype: str = "float32", shape: tuple[int, ...] = SHAPE, **attributes: Any) -> ge.Graph:
    graph = ge.Graph("train")
    edges = [graph.data(name, (1,) if name in ("learning_rate", "momentum") else shape, dtype) for name in INPUTS]
    graph.output(graph.sgd(*edges, **attributes))
    return graph


def feeds(dtype: str = "float32", momentum: float = 0.9, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    kind = NUMPY.get(dtype, dtype)
    found = {name: rng.standard_normal(SHAPE).astype(np.float32).astype(kind) for name in INPUTS}
    found["stat"] = rng.integers(0, 2, SHAPE).astype(kind)
    found["learning_rate"], found["momentum"] = np.array([0.1], kind), np.array([momentum], kind)
    return found


def raw(arrays: dict[str, Any]) -> dict[str, bytes]:
    return {name: np.asarray(array).tobytes() for name, array in arrays.items()}


# --- the reference sample --------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("momentum", "parameters", "accum", "stat"), [(0.9, 0.635, 3.65, 0), (0.0, 0.95, 3.5, 1)])
def test_the_reference_sample(momentum, parameters, accum, stat):
    graph = one_update()
    values = {"parameters": 1.0, "gradient": 0.5, "accum": 3.5, "stat": 1.0}
    fed = {name: np.full(SHAPE, value, np.float32) for name, value in values.items()}
    fed |= {"learning_rate": np.array([0.1], np.float32), "momentum": np.array([momentum], np.float32)}
    before = {name: array.copy() for name, array in fed.items()}
    (output,) = ge.run(graph, fed)
    assert output is fed["parameters"]
    for name, value in (("parameters", parameters), ("accum", accum), ("stat", stat)):
        np.testing.assert_allclose(fed[name], value, rtol=2**-23)
    bits = {name: array.reshape(-1).view(np.uint32) for name, array in before.items()}
    assert not oracle.differing(
        [bits[name].tolist() for name in ("parameters", "gradient", "accum", "stat")],
        [fed[name].reshape(-1).view(np.uint32).tolist() for name in ("parameters", "accum", "stat")],
        dtype="float32", learning_rate=int(bits["learning_rate"][0]), momentum=int(bits["momentum"][0]), order="spec",
        dampening=0.0, weight_decay=0.0, nesterov=False)
    assert all(np.array_equal(fed[name], before[name]) for name in ("gradient", "learning_rate", "momentum"))


# --- the same bits as the operator -----------------------------------------------------------------------------------

@pytest.mark.parametrize("order", ["spec", "ascend950"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_node_gives_the_bits_of_the_operator(variant, dtype, order):
    """Through a file, so attributes are what a float field keeps of them."""
    attributes = VARIANTS[variant][1]
    graph = ge.from_bytes(ge.to_bytes(one_update(dtype, **attributes)))
    fed, expected = feeds(dtype), feeds(dtype)
    (output,) = ge.run(graph, fed, engine="reference", order=order)
    samestep.sgd_(*(expected[name] for name in INPUTS), **attributes, engine="reference", order=order)
    assert output is fed["parameters"]
    assert raw(fed) == raw(expected)
    assert fed["accum"].tobytes() != feeds(dtype)["accum"].tobytes()


def test_the_default_engine_is_that_of_the_operator():
    fed, expected = feeds(), feeds()
    ge.run(one_update(weight_decay=0.1), fed)
    samestep.sgd_(*(expected[name] for name in INPUTS), weight_decay=0.1)
    assert raw(fed) == raw(expected)


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_without_momentum_accum_and_stat_keep_every_byte(zero):
    fed = feeds(momentum=zero)
    fed["accum"].view(np.uint32)[0, :3] = (0x7FC12345, 0xFF800000, 0x80000000)  # a NaN's payload, -inf, -0.0
    before = raw(fed)
    ge.run(one_update(dampening=0.5), fed)
    assert {name for name, data in raw(fed).items() if data != before[name]} == {"parameters"}


def test_it_takes_torch_tensors_and_what_has_dlpack():
    fed, expected = feeds(), feeds()
    mixed = {name: torch.from_numpy(array) if name != "accum" else array for name, array in fed.items()}
    (output,) = ge.run(one_update(), mixed)
    ge.run(one_update(), expected)
    assert output is mixed["parameters"]
    assert raw(fed) == raw(expected)
    assert mixed["parameters"]._version == 1


def test_unknown_lengths_take_any():
    fed, expected = feeds(), feeds()
    ge.run(one_update(shape=(-1, 30)), fed)
    ge.run(one_update(shape=(-2,)), expected)
    assert raw(fed) == raw(expected) != raw(feeds())


# --- variables and constants -----------------------------------------------------------------------------------------

def session() -> ge.Graph:
    graph = ge.Graph("train")
    start = {"w": np.full((3, 2), 1, np.float32), "a": np.zeros((3, 2), np.float32), "s": np.ones((3, 2), np.float32)}
    w, a, s = (graph.variable(name, value) for name, value in start.items())
    rate, momentum = graph.constant("rate", 0.5), graph.constant("momentum", [0.5])
    graph.output(graph.sgd(w, graph.data("g", (3, 2)), rate, a, momentum, s))
    return graph


def test_variables_are_the_state_of_a_session():
    graph = session()
    file = ge.to_bytes(graph)
    gradient = np.ones((3, 2), np.float32)
    (output,) = ge.run(graph, {"g": gradient})
    assert output is graph.variables["w"]
    assert (output == 0.5).all()
    ge.run(graph, {"g": gradient})
    assert (graph.variables["w"] == 0.5 - 0.75).all()
    assert (graph.variables["a"] == 1.5).all()
    assert (graph.variables["s"] == 0).all()
    assert ge.to_bytes(graph) == file  # the file is the graph, not the state
    again = ge.from_bytes(file)
    assert (ge.run(again, {"g": gradient})[0] == 0.5).all()


def test_variables_can_be_set_and_fed():
    graph = session()
    w = np.full((3, 2), 2, np.float32)
    ge.run(graph, {"g": np.ones((3, 2), np.float32), "w": w})
    assert (w == 1.5).all()
    assert set(graph.variables) == {"a", "s"}
    graph.variables["w"] = torch.full((3, 2), 4.0)
    ge.run(graph, {"g": np.ones((3, 2), np.float32)})
    assert (graph.variables["w"] == 4 - 0.75).all()
    graph.variables["w"] = np.ones((2, 2), np.float32)
    with pytest.raises(samestep.ContractError, match=r"^w: got shape \(2, 2\); accepted: \(3, 2\)"):
        ge.run(graph, {"g": np.ones((3, 2), np.float32)})


def test_a_variable_without_a_value_has_to_be_given_one():
    graph = session()
    del graph.nodes["w"].op.attr["value"]
    g = np.ones((3, 2), np.float32)
    with pytest.raises(ge.AirError, match=r"the variable 'w' has no value: feed it, or set graph\.variables\['w'\]"):
        ge.run(graph, {"g": g})
    assert (ge.run(graph, {"g": g, "w": np.ones((3, 2), np.float32)})[0] == 0.5).all()


@pytest.mark.parametrize("name", ["parameters", "accum", "stat"])
def test_a_constant_is_not_written(name):
    graph = ge.Graph("train")
    lengths = {place: 1 if place in ("learning_rate", "momentum") else 2 for place in INPUTS}
    edges = [graph.constant(place, np.ones(2, np.float32)) if place == name else graph.data(place, (length,))
             for place, length in lengths.items()]
    graph.output(graph.sgd(*edges, name="update"))
    fed = {place: np.ones(length, np.float32) for place, length in lengths.items() if place != name}
    with pytest.raises(samestep.ContractError) as caught:
        ge.run(graph, fed)
    assert (caught.value.code, caught.value.input) == ("read_only", f"update.{name}")
    assert [(finding.rule, finding.code) for finding in ge.lint(graph).reports[0].findings] == [("O10", "read_only")]


@pytest.mark.parametrize("value", [
    np.arange(6, dtype=">f4").reshape(2, 3), np.arange(12, dtype=np.float32).reshape(2, 6)[:, ::2],
    np.asfortranarray(np.arange(6, dtype=np.float16).reshape(2, 3)), np.arange(6).astype(ml_dtypes.bfloat16),
    np.array(7, np.int64), np.array([True, False]), [[1.5, 2.0]], 0.1, np.zeros((0, 3), np.float32)],
    ids=lambda value: f"{type(value).__name__} {getattr(value, 'dtype', '')}")
def test_constants_come_back_as_they_were(value):
    graph = ge.Graph("constants")
    graph.output(graph.constant("c", value))
    ge.infer(graph)
    (output,) = ge.run(ge.from_bytes(ge.to_bytes(graph)), {})
    expected = np.asarray(value, None if hasattr(value, "dtype") else np.float32)
    assert output.dtype == expected.dtype.newbyteorder("=")
    assert output.shape == expected.shape
    assert (output == expected).all()
    assert not output.flags.writeable


# --- many nodes: order, shared memory, all or nothing ----------------------------------------------------------------

def chain(reverse: bool = False, control: bool = False) -> ge.Graph:
    """Two updates of one tensor, the second of the output of the first or after it, in either order in the file."""
    graph = ge.Graph("chain")
    w, rate, momentum = graph.data("w", (2,)), graph.data("rate", (1,)), graph.data("momentum", (1,))
    tensors = [[graph.data(f"{name}{k}", (2,)) for name in "gas"] for k in (0, 1)]
    first = graph.sgd(w, tensors[0][0], rate, tensors[0][1], momentum, tensors[0][2], name="first")
    second = graph.sgd(w if control else first, tensors[1][0], rate, tensors[1][1], momentum, tensors[1][2],
                       weight_decay=0.5, name="second", after=[first] if control else [])
    graph.output(second)
    if reverse:
        ops = list(graph.root.op)
        del graph.root.op[:]
        graph.root.op.extend(reversed(ops))
    return graph


def chain_feeds() -> dict[str, Any]:
    rng = np.random.default_rng(1)
    names = ["w", *(f"{name}{k}" for name in "gas" for k in (0, 1))]
    return {name: rng.standard_normal(2).astype(np.float32) for name in names} | {
        "rate": np.array([0.1], np.float32), "momentum": np.array([0.9], np.float32)}


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("control", [False, True])
def test_nodes_run_in_the_order_of_their_edges(reverse, control):
    fed, expected = chain_feeds(), chain_feeds()
    (output,) = ge.run(chain(reverse, control), fed, engine="reference")
    for k, decay in ((0, 0.0), (1, 0.5)):
        samestep.sgd_(expected["w"], expected[f"g{k}"], expected["rate"], expected[f"a{k}"], expected["momentum"],
                      expected[f"s{k}"], weight_decay=decay, engine="reference")
    assert output is fed["w"]
    assert raw(fed) == raw(expected)


def test_without_an_order_the_result_would_be_chance():
    graph = chain(control=True)
    del graph.nodes["second"].op.input[-1]
    fed = chain_feeds()
    before = raw(fed)
    said = ("node 'first' writes the memory of its parameters while node 'second' uses it as parameters, and no edge "
            r"says which runs first; add a control edge \(after=\)")
    with pytest.raises(ge.AirError, match=said):
        ge.run(graph, fed)
    assert raw(fed) == before
    (problem,) = ge.lint(graph).problems
    assert "uses it as parameters" in problem


def test_memory_counts_not_names():
    """One array fed to two nodes: the first writes what the second reads."""
    graph = ge.Graph("two")
    shared = {name: graph.data(name, (1,)) for name in ("rate", "momentum")}
    for k in (0, 1):
        w, g, a, s = (graph.data(f"{name}{k}", (2,)) for name in "wgas")
        graph.sgd(w, g, shared["rate"], a, shared["momentum"], s, name=f"sgd{k}")
    fed = {name: value for name, value in chain_feeds().items() if name != "w"}
    memory = np.ones(3, np.float32)
    fed |= {"w0": memory[:2], "w1": np.ones(2, np.float32)}
    assert ge.run(graph, fed) == []
    fed["g1"] = memory[1:]
    with pytest.raises(ge.AirError, match="'sgd0' writes the memory of its parameters while node 'sgd1' uses it as "
                                          "gradient"):
        ge.run(graph, fed)
    assert ge.lint(graph).clean  # only the feeds say so
    graph.nodes["sgd1"].op.input.append("sgd0:-1")
    ge.run(graph, fed)


def test_one_tensor_in_two_places_of_a_node():
    graph = ge.Graph("shared")
    w, g, rate, s = graph.data("w", (2,)), graph.data("g", (2,)), graph.data("rate", (1,)), graph.data("s", (2,))
    graph.output(graph.sgd(w, g, rate, w, rate, s))  # one tensor for rate and momentum is allowed
    fed = {"w": np.ones(2, np.float32), "g": np.ones(2, np.float32), "rate": np.ones(1, np.float32),
           "s": np.ones(2, np.float32)}
    with pytest.raises(samestep.ContractError, match=r"^sgd\.accum: got memory that is also parameters's.*overlap"):
        ge.run(graph, fed)
    (finding,) = ge.lint(graph).reports[0].findings
    assert (finding.rule, finding.code) == ("O10", "overlap")


def test_all_or_nothing_over_all_nodes():
    graph = chain()
    fed = chain_feeds()
    fed["a1"].flags.writeable = False
    before = raw(fed)
    with pytest.raises(samestep.ContractError, match=r"^second\.accum: .*read_only"):
        ge.run(graph, fed)
    assert raw(fed) == before


def test_every_update_runs_whether_its_output_is_declared_or_not():
    graph = one_update()
    del graph.root.op[-1]
    del graph.root.output[:]
    fed = feeds()
    assert ge.run(graph, fed) == []
    assert raw(fed) != raw(feeds())
    graph.root.output.append("sgd:0")
    assert ge.run(graph, fed)[0] is fed["parameters"]


# --- what does not run -----------------------------------------------------------------------------------------------

def test_operators_that_cannot_run_are_named():
    graph = one_update()
    for k in range(10):
        graph.root.op.add(name=f"cast{k}", type="Cast", input=["sgd:0"])
    with pytest.raises(ge.AirError, match=r"because of 'cast0' of type Cast, .*'cast7' of type Cast and 2 more; what "
                                          r"runs is Data, Const, Constant, Variable, SGD, NetOutput"):
        ge.run(graph, feeds())
    ge.infer(graph)
    assert ge.lint(graph).clean


def changed(**change: Any) -> dict[str, Any]:
    return {name: value for name, value in (feeds() | change).items() if value is not None}


@pytest.mark.parametrize(("fed", "error", "said"), [
    (changed(gradient=None), ge.AirError, "no feed for 'gradient'; every data node needs an array"),
    (changed(sgd=1), ge.AirError, "feeds for 'sgd'; this graph takes 'parameters', 'gradient', "),
    (changed(gradient=np.ones((30, 2), np.float32)), samestep.ContractError,
     r"^gradient: got shape \(30, 2\); accepted: \(2, 30\), as the node declares \[shape_mismatch\]"),
    (changed(gradient=np.ones(SHAPE)), samestep.ContractError, r"^gradient: got dtype float64; .*\[dtype_mismatch\]"),
    (changed(momentum=0.9), samestep.ContractError, r"^momentum: got the number 0\.9; .*\[wrong_type\]"),
    (changed(stat="ones"), samestep.ContractError, r"^stat: .*\[wrong_type\]"),
    (changed(stat=torch.ones(SHAPE, device="meta")), samestep.ContractError, r"^stat: .*\[unsupported_device\]"),
    (changed(gradient=np.ones((30, 2), np.float32).T), samestep.ContractError, r"^sgd\.gradient: .*not_contiguous"),
])
def test_feeds_that_do_not_fit(fed, error, said):
    before = raw({name: value for name, value in fed.items() if isinstance(value, np.ndarray)})
    with pytest.raises(error, match=said):
        ge.run(one_update(), fed)
    assert raw({name: value for name, value in fed.items() if isinstance(value, np.ndarray)}) == before


def test_engine_and_order_are_checked_first():
    with pytest.raises(samestep.ContractError, match=r"^order: got 'random'"):
        ge.run(one_update(), {}, order="random")
    with pytest.raises(samestep.ContractError, match=r"^engine: got 'abacus'"):
        ge.run(one_update(), {}, engine="abacus")


def edit(node: str, place: int, text: str | None) -> Any:
    def change(graph: ge.Graph) -> None:
        op = next(op for op in graph.root.op if op.name == node)
        if text is None:
            del op.input[place]
        elif place == len(op.input):
            op.input.append(text)
        else:
            op.input[place] = text
    return change


def take_the_end(graph: ge.Graph) -> None:
    graph.root.op[-1].output_desc.add(dtype=1, layout="ND")  # GE may write one
    edit("sgd", 0, "Node_Output:0")(graph)


def twice(graph: ge.Graph) -> None:
    graph.root.op.add(name="sgd", type="SGD")


@pytest.mark.parametrize(("change", "said"), [
    (edit("sgd", 0, "nobody:0"), "node 'sgd' takes 'nobody:0', but there is no node 'nobody'"),
    (edit("sgd", 0, "parameters:1"), "node 'sgd' takes 'parameters:1', but node 'parameters' has 1 outputs"),
    (take_the_end, "node 'sgd' takes 'Node_Output:0', but node 'Node_Output' has 0 outputs"),
    (edit("sgd", 0, "parameters"), "node 'sgd' has the edge 'parameters'; an edge is 'node:output'"),
    (edit("sgd", 0, ":0"), "the edge ':0'"),
    (edit("sgd", 0, "parameters:0x0"), "the edge 'parameters:0x0'"),
    (edit("sgd", 0, "parameters:99999999999"), "the edge 'parameters:99999999999'"),
    (edit("sgd", 0, ""), "node 'sgd' of type SGD has nothing connected to parameters"),
    (edit("sgd", 5, None), "node 'sgd' of type SGD has 5 inputs; it takes 6: parameters, gradient, "),
    (edit("sgd", 6, "gradient:0"), "node 'sgd' of type SGD has 7 inputs; it takes 6"),
    (edit("sgd", 6, "nobody:-1"), "node 'sgd' takes 'nobody:-1', but there is no node 'nobody'"),
    (edit("sgd", 6, "sgd:-1"), "nodes that wait for each other: sgd <- sgd"),
    (edit("sgd", 1, "sgd:0"), "nodes that wait for each other: sgd <- sgd"),
    (edit("gradient", 0, "sgd:-7"), "nodes that wait for each other: gradient <- sgd <- gradient"),
    (edit("Node_Output", 0, ""), "an output of the graph that is no tensor: 'None'"),
    (twice, "two nodes of the name 'sgd'"),
])
def test_graphs_that_do_not_hang_together(change, said):
    graph = one_update()
    change(graph)
    fed = feeds()
    with pytest.raises(ge.AirError, match=said):
        ge.run(graph, fed)
    assert raw(fed) == raw(feeds())
    if "output of the graph" not in said:
        with pytest.raises(ge.AirError, match=said):
            ge.infer(graph)
        assert not ge.lint(graph).clean


def test_a_long_circle_is_told_in_short():
    graph = ge.Graph("circle")
    for k in range(50):
        graph.root.op.add(name=f"n{k}", type="Cast", input=[f"n{(k + 1) % 50}:-1"])
    with pytest.raises(ge.AirError, match=r"n0 <- n1 <- .* <- n10 <- \.\.\. <- n0$"):
        ge.infer(graph)


def test_two_ends():
    graph = one_update()
    graph.root.op.add(name="end", type="NetOutput")
    with pytest.raises(ge.AirError, match="2 nodes of type NetOutput: 'Node_Output', 'end'"):
        ge.run(graph, feeds())
    graph = one_update()
    del graph.root.op[-1]
    graph.root.output[:] = ["stat:3"]
    with pytest.raises(ge.AirError, match="the graph's list of outputs takes 'stat:3'"):
        ge.run(graph, feeds())


def test_a_name_may_hold_a_colon():
    graph = ge.Graph("colon")
    graph.output(graph.data("scope:w", (2,)))
    w = np.ones(2, np.float32)
    assert ge.run(ge.from_bytes(ge.to_bytes(graph)), {"scope:w": w})[0] is w


# --- building --------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("build", "said"), [
    (lambda graph: graph.data("w", (2,)), "a second node of the name 'w'; names of nodes are unique"),
    (lambda graph: graph.data("", (2,)), "a node named ''"),
    (lambda graph: graph.data("x", (2.0,)), r"node 'x' of shape \(2\.0,\)"),
    (lambda graph: graph.data("x", (2**63,)), "node 'x' of shape"),
    (lambda graph: graph.data("x", (2,), "double"), "node 'x' of dtype 'double'; a graph holds float32, "),
    (lambda graph: graph.constant("x", "text"), "node 'x' of dtype 'str"),
    (lambda graph: graph.variable("x", np.array([object()])), "node 'x' of dtype 'object'"),
    (lambda graph: graph.sgd(*["w:0"] * 6), "node 'sgd' takes str 'w:0'; inputs are what data, constant"),
    (lambda graph: graph.sgd(*[ge.Edge("w", 1)] * 6), "node 'sgd' takes 'w:1', but node 'w' has 1 outputs"),
    (lambda graph: graph.sgd(*[ge.Edge("w")] * 6, after=[ge.Edge("x")]), "there is no node 'x'"),
    (lambda graph: graph.sgd(*[ge.Edge("w")] * 6, name="w"), "a second node of the name 'w'"),
    (lambda graph: graph.output(ge.Edge("x")), "there is no node 'x'"),
])
def test_what_cannot_be_built(build, said):
    graph = ge.Graph("train")
    graph.data("w", (2,))
    before = ge.to_bytes(graph)
    with pytest.raises(ge.AirError, match=said):
        build(graph)
    assert ge.to_bytes(graph) == before


def test_a_graph_has_one_list_of_outputs():
    graph = one_update()
    with pytest.raises(ge.AirError, match="a second node of the name 'Node_Output'"):
        graph.output(ge.Edge("sgd"))


def test_a_graph_that_was_read_can_be_added_to():
    graph = ge.from_bytes(ge.to_bytes(one_update()))
    edges = [graph.data(f"{name}2", (1,) if name in ("learning_rate", "momentum") else SHAPE) for name in INPUTS]
    graph.sgd(*edges, name="sgd2", after=[ge.Edge("sgd")])
    assert graph.nodes["sgd2"].controls == ("sgd",)
    assert graph.nodes["gradient2"].op.attr["index"].i == 7
    assert list(graph.root.input)[-1] == "stat2:0"
