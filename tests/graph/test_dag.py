"""`samestep graph dag`: the data flow is the formula's, and the picture shows all of it."""

from __future__ import annotations

import json
import re
import sys

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from samestep.cli import main
from samestep.contract import DTYPES, ORDERS, ContractError
from samestep.graph.dag import SYMBOLS, as_json, dag, dot, text, write
from samestep.graph.extra import MissingExtraError
from samestep.graph.layered import layout
from suite import BITS, KERNELS, KEYS, MOMENTA, NUMPY, attributes, differing, run, scalar, tensors

RULES = {"O2", "O4", "O5", "O6"}


def invoke(*arguments):
    return CliRunner().invoke(main, ["graph", "dag", *map(str, arguments)])


def stored(values, dtype):
    return values.astype(NUMPY[dtype]).view(BITS[dtype])


def walk(graph, columns, lr, m, given):
    """Run the drawing: follow its nodes as somebody would who has nothing else."""
    dtype = graph.dtype
    tensors_of = dict(zip("pgas", (column.view(NUMPY[dtype]).astype(np.float32) for column in columns), strict=True))
    scalars = {"lr": lr.astype(np.float32)[0], "m": m.astype(np.float32)[0], "one": np.float32(1),
               "d": np.float32(given.dampening), "wd": np.float32(given.weight_decay)}
    values = {}
    out = [column.copy() for column in columns]
    functions = {"+": np.add, "-": np.subtract, "*": np.multiply}
    for node in graph.nodes:
        if node.kind in ("read", "scalar"):
            values[node.name] = (tensors_of | scalars)[node.name]
        elif node.kind == "step":
            left, symbol, right = node.operation.split()
            assert node.operands == (left, right)
            values[node.name] = functions[symbol](values[left], values[right])
        elif node.kind == "mask":
            values[node.name] = values[node.operands[0]] != 0
        elif node.name == "parameters_out":
            out[0] = stored(values[node.operands[0]], dtype)
        elif values["m_not_0"]:
            out[{"accum_out": 2, "stat_out": 3}[node.name]] = (
                stored(values[node.operands[0]], dtype) if node.name == "accum_out" else np.zeros_like(out[3]))
    return out


@pytest.mark.parametrize(("dtype", "order", "key"), KERNELS, ids=str)
def test_whoever_follows_the_drawing_gets_the_bits(dtype, order, key):
    rng = np.random.default_rng([*map(ord, dtype + order + key.variant)])
    for momentum in MOMENTA:
        columns = tensors(rng, 300, dtype)
        lr, m = scalar(0.1, dtype), scalar(momentum, dtype)
        want = run("reference", columns, dtype, key, order, lr, m)
        with np.errstate(all="ignore"):
            found = walk(dag(key, order, dtype), columns, lr, m, attributes(key))
        assert differing(want, found, dtype, masked=momentum == 0) == 0


@pytest.mark.parametrize(("dtype", "order", "key"), KERNELS, ids=str)
def test_every_node_is_complete(dtype, order, key):
    graph = dag(key, order, dtype)
    names = [node.name for node in graph.nodes]
    assert len(set(names)) == len(names)
    known: set[str] = set()
    for node in graph.nodes:
        assert set(node.rule.split()) <= RULES
        assert node.rule
        assert node.operation
        assert set(node.operands) <= known
        known.add(node.name)
    assert {node.name for node in graph.nodes if node.kind == "write"} == {"parameters_out", "accum_out", "stat_out"}
    used = {operand for node in graph.nodes for operand in node.operands}
    assert {node.name for node in graph.nodes if node.kind != "write"} == used
    assert ("s" in names) == key.dampening  # stat is not read without dampening
    assert {name for name in ("d", "wd") if name in names} == {
        name for name, term in (("d", key.dampening), ("wd", key.weight_decay)) if term}


def test_the_text_as_documented():
    assert text(dag("K0", dtype="float16")) == """\
K0, order spec, float16

p               read parameters as float32        O5
g               read gradient as float32          O5
lr              read learning_rate[0] as float32  O2 O5
a               read accum as float32             O5
m               read momentum[0] as float32       O2 O5
a_times_m       a * m                             O5
accum_t         a_times_m + g                     O5
step            accum_t * lr                      O5
p_out           p - step                          O5
m_not_0         m != 0 (true for NaN)             O6
parameters_out  round p_out, write                O5 O6
accum_out       round accum_t, write if m != 0    O5 O6
stat_out        write +0 if m != 0                O6
"""


def test_dot_and_json_hold_the_same_nodes_and_edges():
    graph = dag("K3", "ascend950")
    lines = dot(graph)
    assert re.findall(r'^  "(\w+)" \[', lines, re.MULTILINE) == [node.name for node in graph.nodes]
    assert tuple(re.findall(r'^  "(\w+)" -> "(\w+)";', lines, re.MULTILINE)) == graph.edges
    found = json.loads(as_json(graph))
    assert [tuple(node["operands"]) for node in found["nodes"]] == [node.operands for node in graph.nodes]
    assert (found["variant"], found["order"], found["dtype"]) == ("K3", "ascend950", "float32")


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.variant)
def test_the_picture_names_every_node_with_operation_and_rule(tmp_path, key, order):
    graph = dag(key, order, "bfloat16")
    write(graph, tmp_path / "k.svg")
    # matplotlib writes each text of an SVG into a comment beside its outlines
    shown = re.findall(r"<!-- (.*?) -->", (tmp_path / "k.svg").read_text(encoding="utf-8"))
    for node in graph.nodes:
        for label in (node.name, node.operation, node.rule):
            assert label in shown, label
    assert f"SGD {key.variant}, order {order}, bfloat16" in shown


@pytest.mark.parametrize(("suffix", "start"), [(".png", b"\x89PNG"), (".pdf", b"%PDF"), (".SVG", b"<?xml"),
                                               (".dot", b"digraph"), (".json", b"{"), (".txt", b"K1, order")])
def test_files(tmp_path, suffix, start):
    path = tmp_path / f"kernel{suffix}"
    found = invoke("--key", "K1", "-o", path)
    assert found.exit_code == 0, found.output
    assert path.read_bytes().startswith(start)
    assert str(path) in found.output


# --- the layout ------------------------------------------------------------------------------------------------------

@st.composite
def graphs(draw):
    count = draw(st.integers(1, 14))
    pairs = [(a, b) for a in range(count) for b in range(a + 1, count)]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=24)) if pairs else []
    return [f"n{k}" for k in range(count)], [(f"n{a}", f"n{b}") for a, b in chosen]


@settings(max_examples=150, deadline=None)
@given(graph=graphs())
def test_no_boxes_overlap_and_all_edges_go_down(graph):
    names, edges = graph
    found = layout(names, edges, apart=3.0, edge_apart=0.5)
    assert set(found.places) == set(names)
    points = [(place, 3.0) for place in found.places.values()]
    points += [(point, 0.5) for route in found.routes.values() for point in route[1:-1]]
    assert min(x for (x, _), _ in points) > -1e-9
    for k, ((x, layer), width) in enumerate(points):
        for (other, other_layer), other_width in points[:k]:
            if layer == other_layer:
                assert abs(x - other) > (width + other_width) / 2 - 1e-6
    for (start, stop), route in found.routes.items():
        assert (route[0], route[-1]) == (found.places[start], found.places[stop])
        assert [layer for _, layer in route] == list(range(route[0][1], route[-1][1] + 1))
        assert len(route) >= 2
    for name in {start for start, _ in edges} - {stop for _, stop in edges}:  # a source stands right above its users
        assert found.places[name][1] == min(found.places[stop][1] for start, stop in edges if start == name) - 1


def test_a_long_edge_bends_around_what_it_passes():
    graph = dag("K3")
    found = layout([node.name for node in graph.nodes], graph.edges, apart=3.0, edge_apart=0.5)
    assert len(found.routes["p", "p_out"]) > 4
    assert len(found.routes["p", "p_times_wd"]) == 2


# --- refusals and the command ----------------------------------------------------------------------------------------

def test_the_command_prints_the_text():
    for order in ORDERS:
        for dtype in DTYPES:
            assert invoke("--key", "K3", "--order", order, "--dtype", dtype).output == text(dag("K3", order, dtype))
    assert invoke("--key", 13).output == invoke("--key", "k3").output == text(dag("K3"))
    assert set(SYMBOLS.values()) == {"+", "-", "*"}


@pytest.mark.parametrize(("arguments", "message"), [
    (("--key", "K9"), "there are K0, K1, K2, K3, K4, K5"),
    (("--key", "10"), "no legal key"),
    (("--key", "K0", "--order", "x"), "[unknown_order]"),
    (("--key", "K0", "--dtype", "float64"), "[unsupported_dtype]"),
    (("--key", "K0", "-o", "kernel.jpg"), ".svg, .png, .pdf, .dot, .json or .txt"),
    (("--key", "K0", "-o", "/nonexistent/kernel.dot"), "cannot write /nonexistent/kernel.dot: No such file"),
    ((), "--key"),
])
def test_the_command_says_what_is_wrong(arguments, message):
    found = invoke(*arguments)
    assert found.exit_code == 2
    assert message in found.output


def test_refusals():
    with pytest.raises(ValueError, match="no business variant"):
        dag("K7")
    with pytest.raises(ContractError) as caught:
        dag("K0", dtype="float64")
    assert caught.value.code == "unsupported_dtype"


def test_without_matplotlib_the_message_says_what_to_install(monkeypatch, tmp_path):
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtraError, match=r"pip install 'samestep\[graph\]'"):
        write(dag("K0"), tmp_path / "k.svg")
    assert "pip install" in invoke("--key", "K0", "-o", tmp_path / "k.svg").output
    assert invoke("--key", "K0", "-o", tmp_path / "k.dot").exit_code == 0
