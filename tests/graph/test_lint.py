"""Lint: every SGD node, and every rule that it breaks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import samestep
from graph.host_cases import INPUTS, SCALARS
from samestep.contract import CODES
from samestep.graph import ge
from samestep.graph.lint import RULES


def built(**change: Any) -> ge.Graph:
    """One update of float32 (2, 3) tensors; `change` gives other (shape, dtype) to inputs."""
    graph = ge.Graph("train")
    edges = [graph.data(name, *change.get(name, ((1,) if name in SCALARS else (2, 3), "float32"))) for name in INPUTS]
    graph.output(graph.sgd(*edges))
    return graph


def rules(graph: ge.Graph) -> list[tuple[str, str]]:
    (report,) = ge.lint(graph).reports
    return [(finding.rule, finding.code) for finding in report.findings]


def test_a_node_that_breaks_nothing():
    graph = built(stat=((-1, 3), "float32"))
    before = ge.to_bytes(graph)
    found = ge.lint(graph)
    assert found.clean
    (report,) = found.reports
    assert (report.graph, report.node, report.variant) == ("train", "sgd", "K0")
    assert report.attributes == {"dampening": 0.0, "weight_decay": 0.0, "nesterov": False}
    assert [(place.name, place.source) for place in report.inputs] == [(name, f"{name}:0") for name in INPUTS]
    assert report.inputs[5].tensor == ((-1, 3), "float32", "ND")
    assert ge.to_bytes(graph) == before


def test_all_faults_are_listed_not_only_the_first():
    graph = built(parameters=((2, 0), "float32"), gradient=((2, 3, 4), "float16"), learning_rate=((2,), "float32"),
                  accum=((0,), "float64"), momentum=((1,), "bfloat16"))
    op = graph.nodes["sgd"].op
    op.attr["weight_decay"].f, op.attr["dampening"].f, op.attr["nesterov"].b = -1.0, 0.5, True
    graph.nodes["stat"].op.output_desc[0].layout = "NCHW"
    assert set(rules(graph)) == {
        ("O13", "unsupported_format"), ("O1", "dtype_mismatch"), ("O1", "unsupported_dtype"), ("O2", "null_input"),
        ("O2", "scalar_shape"), ("O2", "shape_mismatch"), ("O4", "attribute_value_out_of_range")}
    (report,) = ge.lint(graph).reports
    told = [finding.text.partition(":")[0] for finding in report.findings]
    assert sorted(told) == sorted(["stat", "gradient", "accum", "momentum", "parameters", "learning_rate", "accum",
                                   "dampening", "weight_decay"])
    assert report.variant is None


def test_shapes_that_agree_with_parameters_but_not_with_each_other():
    graph = built(parameters=((-1, 3), "float32"), gradient=((2, 3), "float32"), stat=((4, 3), "float32"),
                  accum=((-2,), "float32"))
    assert rules(graph) == [("O2", "shape_mismatch")]
    assert ge.lint(graph).reports[0].findings[0].text.startswith("stat: got shape (4, 3)")


def test_a_node_that_declares_what_cannot_be():
    graph = built()
    ge.infer(graph)
    op = graph.nodes["sgd"].op
    op.input_desc[1].shape.dim[0] = 7
    op.input_desc[3].dtype = 2
    op.output_desc[0].shape.dim[:] = [6]
    assert rules(graph) == [("S2", "shape_mismatch"), ("S2", "dtype_mismatch"), ("S1", "shape_mismatch")]
    texts = [finding.text for finding in ge.lint(graph).reports[0].findings]
    assert texts[0] == "gradient: declared as (7, 3), but gradient:0 is (2, 3)"
    assert texts[1] == "accum: declared as float16, but accum:0 is float32"
    assert texts[2] == "output: declared as (6,), but parameters is (2, 3)"
    ge.infer(graph)
    assert ge.lint(graph).clean


def test_declared_unknowns_agree_with_anything():
    graph = built()
    ge.infer(graph)
    graph.nodes["sgd"].op.input_desc[1].shape.dim[0] = -1
    graph.nodes["sgd"].op.output_desc[0].shape.dim[:] = [-2]
    assert ge.lint(graph).clean


def test_memory_is_followed_through_updates():
    """The output of an update is its parameters, and so is that of the next."""
    graph = built()
    rate, momentum = ge.Edge("learning_rate"), ge.Edge("momentum")
    g, a, s = (graph.data(f"{name}2", (2, 3)) for name in "gas")
    second = graph.sgd(ge.Edge("sgd"), g, rate, a, momentum, s, name="second")
    graph.sgd(second, ge.Edge("parameters"), rate, a, momentum, s, name="third")
    reports = {report.node: report for report in ge.lint(graph).reports}
    assert not reports["second"].findings
    (finding,) = reports["third"].findings
    assert (finding.rule, finding.code) == ("O10", "overlap")
    assert finding.text.startswith("gradient: got 'parameters:0', which is also parameters")
    assert reports["third"].inputs[0].tensor == ((2, 3), "float32", "ND")


def test_edges_that_lead_nowhere():
    graph = built()
    op = graph.nodes["sgd"].op
    op.input[1] = "nobody:0"
    op.input[2] = "gradient"
    found = ge.lint(graph)
    assert [finding.rule for finding in found.reports[0].findings] == ["graph"]
    op.input[2] = "learning_rate:0"
    texts = [finding.text for finding in ge.lint(graph).reports[0].findings]
    assert texts == ["node 'sgd' takes 'nobody:0', but there is no node 'nobody'"]
    op.input[1] = "gradient:0"
    op.input.append("sgd:-1")
    found = ge.lint(graph)
    assert not found.reports[0].findings
    assert found.problems == ("graph 'train': nodes that wait for each other: sgd <- sgd",)
    del op.input[3:]
    assert "has 3 inputs; it takes 6" in ge.lint(graph).reports[0].findings[0].text


@pytest.mark.parametrize("length", [1, 2, 3])
def test_circles_of_updates_end(length):
    graph = ge.Graph("circle")
    graph.data("x", (2,))
    for k in range(length):
        names = [f"sgd{(k + 1) % length}:0", *["x:0"] * 5]
        graph.root.op.add(name=f"sgd{k}", type="SGD", input=names)
    found = ge.lint(graph)
    assert "wait for each other" in found.problems[0]
    assert len(found.reports) == length


def test_a_broken_edge_is_told_once():
    """Three updates in a row; what the first takes is not there."""
    graph = built()
    rate, momentum = ge.Edge("learning_rate"), ge.Edge("momentum")
    last = ge.Edge("sgd")
    for k in (1, 2):
        g, a, s = (graph.data(f"{name}{k}", (2, 3)) for name in "gas")
        last = graph.sgd(last, g, rate, a, momentum, s, name=f"sgd{k}")
    graph.nodes["sgd"].op.input[0] = "nobody:0"
    found = ge.lint(graph)
    assert [len(report.findings) for report in found.reports] == [1, 0, 0]
    assert not found.problems
    assert found.reports[2].inputs[0].tensor is None


def test_nodes_of_other_types_are_not_listed():
    graph = ge.Graph("other")
    graph.root.op.add(name="a", type="ApplyMomentum", input=["nobody:0"])
    found = ge.lint(graph)
    assert not found.reports
    assert found.problems == ("graph 'other': node 'a' takes 'nobody:0', but there is no node 'nobody'",)


def test_a_constant_that_holds_too_little_is_a_problem_of_the_graph():
    graph = built()
    graph.constant("unused", np.ones(3, np.float32))
    graph.nodes["unused"].op.attr["value"].t.data = b""
    assert ge.lint(graph).problems == (
        "graph 'train': the value of 'unused' has 0 bytes; float32 of shape (3,) takes 12",)


def test_updates_inside_attributes_are_found():
    graph = built()
    op = graph.root.op.add(name="if", type="If")
    op.attr["a then"].g.CopyFrom(built().root)
    op.attr["others"].list.g.add().CopyFrom(built(gradient=((3,), "float32")).root)
    found = ge.lint(graph)
    assert [len(report.findings) for report in found.reports] == [0, 0, 1]


def test_every_code_that_a_graph_can_show_has_a_rule():
    runtime = {"not_contiguous", "unsupported_device", "unknown_order", "engine_unavailable", "batch_length"}
    assert set(RULES) == set(CODES) - runtime


def test_what_lint_calls_clean_is_what_infer_accepts():
    graph = built(stat=((2, 4), "float32"))
    assert not ge.lint(graph).clean
    with pytest.raises(samestep.ContractError):
        ge.infer(graph)
