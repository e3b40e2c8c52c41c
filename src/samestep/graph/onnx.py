"""The operator in ONNX graphs: a model of one update, or of a whole GE graph.

The operator is a function of the domain ``samestep``, version 1, whose body is standard operators, so that any ONNX
runtime can run it: see `samestep.graph.onnx_functions`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from samestep import tiling
from samestep.contract import INPUTS, UNKNOWN_RANK, check_attributes, check_order, refuse
from samestep.graph.onnx_functions import (
    DOMAIN,
    OPSET,
    OUTPUTS,
    SAME_SHAPE,
    VERSION,
    call,
    checked_inputs,
    element_type,
    function,
    package,
    same_shape,
)
from samestep.shapes import TensorSpec, infer

if TYPE_CHECKING:
    from onnx import FunctionProto, ModelProto, NodeProto, ValueInfoProto

    from samestep.graph.ge import Graph

__all__ = ["OUTPUTS", "finished", "function", "model", "to_onnx", "value_info"]

IR_VERSION = 8  # the first with functions


def model(
    shape: Sequence[int], dtype: str = "float32", *, dampening: float = 0.0, weight_decay: float = 0.0,
    nesterov: bool = False, order: str = "spec", learning_rate: Sequence[int] = (1,), momentum: Sequence[int] = (1,),
) -> ModelProto:
    """A checked model of one update: the operator's six inputs by name, and `OUTPUTS`.

    Arguments:
        shape: of parameters, gradient, accum and stat; -1 for an unknown dimension. What is unknown is checked when
            the model runs: shapes that differ fail there instead of being broadcast.
        dtype: float32, float16 or bfloat16, of all tensors.
        dampening, weight_decay, nesterov, order: as for `samestep.sgd_`.
        learning_rate, momentum: their shapes, one element of any rank.

    Raises `ContractError` as `samestep.infer` does, ``unknown_order``, or ``rank_out_of_range`` for an unknown rank,
    which a graph of ONNX may not have; ImportError without the package onnx.
    """
    check_order(order)
    spec = infer(shape, shape, learning_rate, shape, momentum, shape, dtype=dtype, dampening=dampening,
                 weight_decay=weight_decay, nesterov=nesterov)
    attributes = check_attributes(dampening, weight_decay, nesterov)
    specs = dict.fromkeys(INPUTS, spec)
    specs |= {"learning_rate": TensorSpec(tuple(learning_rate), dtype), "momentum": TensorSpec(tuple(momentum), dtype)}
    inputs = [value_info(name, specs[name]) for name in INPUTS]
    outputs = [value_info(name, spec) for name in OUTPUTS]
    functions = [function(tiling.select(0, attributes), order)]
    nodes, passed = checked_inputs("", INPUTS, list(specs.values()))
    nodes.append(call("SGD", passed, OUTPUTS, attributes, order))
    return finished("sgd", nodes, inputs, outputs, functions)


def value_info(name: str, spec: TensorSpec, of: str = "") -> ValueInfoProto:
    """The declaration of a graph's input or output; unknown lengths have names, the same ones for the same `of`.

    `ContractError` ``rank_out_of_range`` for an unknown rank.
    """
    if spec.shape == UNKNOWN_RANK:
        refuse("rank_out_of_range", name, "the unknown rank (-2,)",
               "a known rank, -1 for each unknown dimension: ONNX wants the rank of every input and output of a graph")
    dims = [f"{of}dim{k}" if dim < 0 else dim for k, dim in enumerate(spec.shape)]
    made: ValueInfoProto = package("onnx.helper").make_tensor_value_info(name, element_type(spec.dtype), dims)
    return made


def finished(
    name: str, nodes: Sequence[NodeProto], inputs: Sequence[ValueInfoProto], outputs: Sequence[ValueInfoProto],
    functions: Iterable[FunctionProto] = (), initializers: Sequence[Any] = (),
    domain: tuple[str, int] = (DOMAIN, VERSION),
) -> ModelProto:
    """A model of these parts, checked by onnx, shapes and types inferred.

    `functions` are those of the nodes' own operators; the one that compares shapes is added where a node needs it.
    """
    helper = package("onnx.helper")
    graph = helper.make_graph(list(nodes), name, list(inputs), list(outputs), list(initializers))
    needed = [*functions, *([same_shape()] if any(node.op_type == SAME_SHAPE for node in nodes) else [])]
    made: ModelProto = helper.make_model(
        graph, functions=needed, ir_version=IR_VERSION, producer_name="samestep",
        opset_imports=[helper.make_opsetid("", OPSET), helper.make_opsetid(*domain)],
    )
    package("onnx.checker").check_model(made, full_check=True)
    return made


def to_onnx(graph: Graph, order: str = "spec") -> ModelProto:
    """A GE graph as an ONNX model that gives the same bits as `samestep.graph.ge.run` with that order.

    Data nodes become inputs, constants initializers, variables inputs whose default is the variable's value, SGD nodes
    calls of the functions. ONNX has no memory that is written in place: what a run leaves in ``w`` is the output
    ``w_out``. Outputs are those that the graph declares, in their order, then all other written memory; one that
    nothing writes, or that is declared a second time, is ``output_0``, by its place.

    Raises what `samestep.graph.ge.run` raises: `ContractError` with the node's name before the input's, and `AirError`
    for nodes of other types and for writes without an order; ``rank_out_of_range`` for an unknown rank.
    """
    from samestep.graph.onnx_from_ge import convert

    check_order(order)
    return convert(graph, order)
