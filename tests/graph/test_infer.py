"""Inference at graph time (rules S1, S2, O12, O13): one table of cases, by itself and through nodes of GE graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import samestep
from graph.host_cases import ACCEPTED, CASES, DTYPES, EMPTY, IDS, INPUTS, REFUSED, SCALARS, TENSORS, VARIANTS, Case
from samestep.contract import check_attributes
from samestep.graph import ge
from samestep.graph.air import DTYPES as GE_DTYPES
from samestep.tiling import encode, select

NUMBERS = {number: name for name, (number, _, _) in GE_DTYPES.items()}


def built(case: Case, node: str = "train/sgd") -> ge.Graph:
    """The case as a graph of six data nodes and one SGD node, whose attributes are set as a file may have them."""
    graph = ge.Graph("host")
    edges = [graph.data(*facts) for facts in zip(INPUTS, case.shapes, case.dtypes, strict=True)]
    graph.output(graph.sgd(*edges, name=node))
    op = graph.nodes[node].op
    for name in ("dampening", "weight_decay", "nesterov"):
        del op.attr[name]
        if name in case.attributes:
            setattr(op.attr[name], "b" if name == "nesterov" else "f", case.attributes[name])
    return graph


def filled(desc: Any) -> tuple[Any, ...]:
    return tuple(desc.shape.dim), NUMBERS.get(desc.dtype), desc.layout


# --- the table -------------------------------------------------------------------------------------------------------

def test_the_table_holds_every_case_that_is_asked_for():
    of_kernels = {(case.variant, case.output[1]) for case in ACCEPTED}
    assert of_kernels == {(variant, dtype) for variant in VARIANTS for dtype in DTYPES}
    assert {(), (1,), (1, 1)} <= {case.shapes[2] for case in ACCEPTED}
    assert {(-2,), (-1, 3), (33, 2), (7, 7, 33, 2)} <= {case.shapes[0] for case in ACCEPTED}
    assert any(not case.attributes for case in ACCEPTED)
    refused = {(case.code, case.input) for case in REFUSED}
    assert refused >= {("shape_mismatch", name) for name in TENSORS[1:]}
    assert refused >= {("dtype_mismatch", name) for name in INPUTS[1:]}
    assert refused >= {("scalar_shape", name) for name in SCALARS}
    assert refused >= {("attribute_value_out_of_range", "dampening"), ("attribute_value_out_of_range", "weight_decay")}
    assert {case.shapes[0] for case in REFUSED if case.code == "null_input"} >= set(EMPTY)
    assert {len(case.shapes[0]) for case in REFUSED if case.code == "rank_out_of_range"} == {0, 9}
    assert {sum(dim == 0 for dim in shape) for shape in EMPTY if len(shape) == 3} == {1, 2, 3}


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_inference(case):
    if case.accepted:
        assert samestep.infer(*case.shapes, dtype=case.dtypes, **case.attributes) == case.output
        key = select(0, check_attributes(**{"dampening": 0.0, "weight_decay": 0.0, "nesterov": False}
                                         | case.attributes))
        assert key.variant == case.variant
        assert encode(key) >> 1 == VARIANTS[case.variant][0]
    else:
        with pytest.raises(samestep.ContractError) as caught:
            samestep.infer(*case.shapes, dtype=case.dtypes, **case.attributes)
        assert (caught.value.code, caught.value.input) == (case.code, case.input)


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_a_node_of_a_graph(case, tmp_path):
    """Through a file, as GE would read it; lint says the same."""
    ge.write(built(case), tmp_path / "case.air")
    graph = ge.read(tmp_path / "case.air")
    (report,) = ge.lint(graph).reports
    if case.accepted:
        ge.infer(graph)
        op = graph.nodes["train/sgd"].op
        assert [filled(desc) for desc in op.output_desc] == [(*case.output, "ND")]
        assert [filled(desc) for desc in op.input_desc] == [
            (*facts, "ND") for facts in zip(case.shapes, case.dtypes, strict=True)]
        assert [filled(desc) for desc in graph.nodes["Node_Output"].op.input_desc] == [(*case.output, "ND")]
        assert report.variant == case.variant
        assert ge.lint(graph).clean
    else:
        before = ge.to_bytes(graph)
        with pytest.raises(samestep.ContractError) as caught:
            ge.infer(graph)
        assert (caught.value.code, caught.value.input) == (case.code, f"train/sgd.{case.input}")
        assert str(caught.value).startswith(f"train/sgd.{case.input}: got ")
        assert caught.value.__context__ is None
        assert ge.to_bytes(graph) == before
        assert any(finding.code == case.code and finding.text.startswith(f"{case.input}: got ")
                   for finding in report.findings)


@pytest.mark.parametrize("case", [case for case in REFUSED if case.code == "attribute_value_out_of_range"],
                         ids=lambda case: case.name)
def test_attributes_are_refused_already_when_a_graph_is_built(case):
    graph = ge.Graph("host")
    edges = [graph.data(*facts) for facts in zip(INPUTS, case.shapes, case.dtypes, strict=True)]
    with pytest.raises(samestep.ContractError) as caught:
        graph.sgd(*edges, name="train/sgd", **case.attributes)
    assert (caught.value.code, caught.value.input) == (case.code, f"train/sgd.{case.input}")
    assert "train/sgd" not in graph.nodes


# --- formats, attributes of another kind, other nodes ----------------------------------------------------------------

GOOD = ACCEPTED[0]


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("found", ["NCHW", "FRACTAL_NZ", ""])
def test_any_format_but_nd_is_refused(name, found):
    graph = built(GOOD)
    graph.nodes[name].op.output_desc[0].layout = found
    with pytest.raises(samestep.ContractError) as caught:
        ge.infer(graph)
    assert (caught.value.code, caught.value.input) == ("unsupported_format", f"train/sgd.{name}")
    assert f"format {found or 'undefined'}" in str(caught.value)
    assert [finding.rule for finding in ge.lint(graph).reports[0].findings] == ["O13"]


def test_dtypes_come_before_formats_and_formats_before_shapes():
    graph = built(GOOD)
    graph.nodes["stat"].op.output_desc[0].layout = "NCHW"
    graph.nodes["gradient"].op.output_desc[0].shape.dim[0] = 7
    with pytest.raises(samestep.ContractError, match="unsupported_format"):
        ge.infer(graph)
    graph.nodes["stat"].op.output_desc[0].dtype = GE_DTYPES["float64"][0]
    with pytest.raises(samestep.ContractError, match="unsupported_dtype"):
        ge.infer(graph)


@pytest.mark.parametrize(("name", "kind", "value"), [
    ("dampening", "i", 1), ("weight_decay", "s", b"0.1"), ("nesterov", "f", 1.0), ("nesterov", "i", 1)])
def test_attributes_of_another_kind_are_refused(name, kind, value):
    graph = built(GOOD)
    setattr(graph.nodes["train/sgd"].op.attr[name], kind, value)
    for act in (ge.infer, lambda graph: ge.run(graph, {})):
        with pytest.raises(samestep.ContractError) as caught:
            act(graph)
        assert (caught.value.code, caught.value.input) == ("wrong_type", f"train/sgd.{name}")
        assert f"an attribute of kind {kind}" in str(caught.value)
    assert [finding.code for finding in ge.lint(graph).reports[0].findings] == ["wrong_type"]
    assert ge.lint(graph).reports[0].variant is None


def test_impossible_lengths_are_refused():
    graph = built(GOOD)
    graph.nodes["accum"].op.output_desc[0].shape.dim[0] = -5
    with pytest.raises(samestep.ContractError, match=r"train/sgd\.accum: got shape \(-5, 3\).*\[wrong_type\]"):
        ge.infer(graph)
    graph.nodes["accum"].op.output_desc[0].shape.dim.extend([1] * 100)
    with pytest.raises(ge.AirError, match="102 dimensions"):
        ge.infer(graph)


def test_an_update_of_an_update():
    """The second node takes what the first gives: its shape, its dtype, its faults."""
    graph = ge.Graph("two")
    w, g, a, s = (graph.data(name, (4, -1), "bfloat16") for name in "wgas")
    g2, a2, s2 = (graph.data(f"{name}2", (-1, 5), "bfloat16") for name in "gas")
    rate, momentum = graph.data("rate", (), "bfloat16"), graph.data("momentum", (-1,), "bfloat16")
    first = graph.sgd(w, g, rate, a, momentum, s, name="first")
    graph.output(graph.sgd(first, g2, rate, a2, momentum, s2, name="second"))
    ge.infer(graph)
    assert filled(graph.nodes["second"].op.output_desc[0]) == ((4, -1), "bfloat16", "ND")
    assert filled(graph.nodes["second"].op.input_desc[1]) == ((-1, 5), "bfloat16", "ND")
    graph.nodes["w"].op.output_desc[0].dtype = 1
    with pytest.raises(samestep.ContractError, match=r"^first\.gradient: .*dtype_mismatch"):
        ge.infer(graph)


def test_constants_give_what_they_hold():
    graph = ge.Graph("constant")
    edges = [graph.constant(name, np.ones((2, 2), np.float16)) if name not in SCALARS
             else graph.constant(name, np.float16(0.5)) for name in INPUTS]
    graph.output(graph.sgd(*edges))
    del graph.nodes["stat"].op.output_desc[:]
    ge.infer(graph)
    assert filled(graph.nodes["stat"].op.output_desc[0]) == ((2, 2), "float16", "ND")
    assert filled(graph.nodes["sgd"].op.input_desc[4]) == ((), "float16", "ND")
    graph.nodes["stat"].op.attr["value"].t.data += b"x"
    with pytest.raises(ge.AirError, match=r"the value of 'stat' has 9 bytes; float16 of shape \(2, 2\) takes 8"):
        ge.infer(graph)
    graph.nodes["stat"].op.attr["value"].t.desc.dtype = 13
    with pytest.raises(ge.AirError, match="the value of 'stat' has dtype GE dtype 13"):
        ge.infer(graph)
    graph.nodes["stat"].op.attr["value"].i = 3
    with pytest.raises(ge.AirError, match="the constant 'stat' has no value"):
        ge.infer(graph)


def test_other_operators_keep_what_they_declare():
    """A backward pass gives the gradient; what it declares goes into the update, what it takes is filled in."""
    graph = built(GOOD)
    op = graph.root.op.add(name="backward", type="MatMul", input=["gradient:0", ""])
    for _ in range(2):
        op.input_desc.add()
    op.output_desc.add(dtype=1, layout="ND").shape.dim.extend([2, 3])
    graph.nodes["train/sgd"].op.input[1] = "backward:0"
    ge.infer(graph)
    assert filled(graph.nodes["train/sgd"].op.input_desc[1]) == ((2, 3), "float32", "ND")
    assert filled(op.input_desc[0]) == ((2, 3), "float32", "ND")
    assert filled(op.input_desc[1]) == ((), None, "")  # nothing is connected
    op.input_desc[0].layout = "NCHW"
    ge.infer(graph)
    assert op.input_desc[0].layout == "NCHW"  # what the node says itself stands
    op.output_desc[0].shape.dim[0] = 9
    with pytest.raises(samestep.ContractError, match=r"^train/sgd\.gradient: .*shape_mismatch"):
        ge.infer(graph)


def test_a_gradient_that_ge_has_not_inferred_yet():
    """GE writes such an output as of rank 0 and of its default dtype, with an attribute that says it is not known."""
    graph = built(GOOD)
    op = graph.root.op.add(name="backward", type="MatMul", input=["gradient:0"])
    op.output_desc.add(dtype=1, layout="ND").attr["origin_shape_initialized"].b = False
    graph.nodes["train/sgd"].op.input[1] = "backward:0"
    ge.infer(graph)
    assert filled(graph.nodes["train/sgd"].op.input_desc[1]) == ((-2,), "float32", "ND")
    assert ge.lint(graph).clean
    op.output_desc[0].attr["origin_shape_initialized"].b = True
    with pytest.raises(samestep.ContractError, match=r"^train/sgd\.gradient: got shape \(\).*shape_mismatch"):
        ge.infer(graph)


def test_a_format_before_ge_changed_it_is_kept():
    graph = built(GOOD)
    desc = graph.nodes["train/sgd"].op.input_desc[0]
    desc.attr["origin_format"].s, desc.attr["origin_format_for_int"].i = b"NCHW", 0
    ge.infer(graph)
    assert desc.attr["origin_format"].s == b"NCHW"
    assert (desc.attr["origin_format_for_int"].i, desc.attr["format_for_int"].i) == (0, 2)


def test_updates_in_subgraphs():
    graph = built(GOOD)
    inner = built(REFUSED[0], node="inner")
    graph.model.graph.add().CopyFrom(inner.root)
    graph.model.graph[1].name = "branch"
    with pytest.raises(samestep.ContractError, match=r"^inner\.dampening"):
        ge.infer(graph)
    assert [(report.graph, report.node) for report in ge.lint(graph).reports] == [
        ("host", "train/sgd"), ("branch", "inner")]
