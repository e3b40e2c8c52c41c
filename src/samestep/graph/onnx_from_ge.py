"""From a GE graph, whose nodes write memory in place, to an ONNX graph, whose values never change."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from samestep import tiling
from samestep.contract import INPUTS, check_attributes, refuse
from samestep.graph.air import AirError
from samestep.graph.infer import Tensors, attributes, describe_constant, infer_nodes
from samestep.graph.memory import WRITTEN, Use, conflicts
from samestep.graph.nodes import CONSTANTS, SOURCES, Node, in_order
from samestep.graph.onnx import finished, value_info
from samestep.graph.onnx_functions import call, checked_inputs, element_type, function, function_name, package
from samestep.graph.run import check_fed, check_types, outputs_of
from samestep.shapes import TensorSpec

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

    from samestep.graph.build import Graph


def convert(graph: Graph, order: str) -> ModelProto:
    """`samestep.graph.onnx.to_onnx`, the order checked."""
    nodes = graph.nodes
    check_types(nodes)
    described = infer_nodes(nodes)
    sequence = list(in_order(nodes))
    updates = [node for node in sequence if node.type == "SGD"]
    memory = _memory(sequence)
    _check_uses(sequence, updates, memory, nodes)
    specs = {name: _spec(described[name]) for name, node in nodes.items() if node.type in SOURCES}
    inputs = [value_info(name, specs[name], f"{name}_") for name in specs if nodes[name].type not in CONSTANTS]
    last = {source: node.name for node in updates for source in _written(node, memory)}
    now = {name: name for name in specs}  # the value that stands in each memory
    names = _Names(specs)
    body, keys = [], {}
    for node in updates:
        sources = [memory[edge.node] for edge in node.inputs if edge]
        checks, values = checked_inputs(f"{node.name}_", [now[name] for name in sources], [specs[k] for k in sources])
        for name in _written(node, memory):
            now[name] = names.new(f"{name}_out" if last[name] == node.name else f"{name}_after_{node.name}")
        given = check_attributes(**attributes(node.op))
        body += [*checks, call(node.name, values, [now[name] for name in _written(node, memory)], given, order)]
        keys[function_name(tiling.select(0, given), order)] = tiling.select(0, given)
    declared = [memory[edge.node] for edge in outputs_of(graph, nodes)]
    copies, outputs = _named_outputs(declared, list(last), now, specs, names)
    return finished(graph.name or "ge", [*body, *copies], inputs, outputs,
                    [function(key, order) for key in keys.values()], _values(graph, nodes, described))


class _Names:
    """Names of values, each given once."""

    def __init__(self, taken: Iterable[str]) -> None:
        self.taken = set(taken)

    def new(self, wanted: str) -> str:
        """The name, or with a number behind it where it is taken."""
        name, count = wanted, 2
        while name in self.taken:
            name, count = f"{wanted}_{count}", count + 1
        self.taken.add(name)
        return name


def _memory(sequence: Sequence[Node]) -> dict[str, str]:
    """For each node that has an output, the data node, constant or variable whose memory that output is."""
    memory: dict[str, str] = {}
    for node in sequence:
        if node.type == "SGD" and node.inputs[0]:
            memory[node.name] = memory[node.inputs[0].node]
        elif node.type in SOURCES:
            memory[node.name] = node.name
    return memory


def _written(node: Node, memory: dict[str, str]) -> list[str]:
    """The memory of parameters, accum and stat of an SGD node."""
    return [memory[edge.node] for name, edge in zip(INPUTS, node.inputs, strict=True) if edge and name in WRITTEN]


def _check_uses(
    sequence: Sequence[Node], updates: Sequence[Node], memory: dict[str, str], nodes: dict[str, Node]
) -> None:
    """Refuse what a run refuses: written constants, inputs that share memory, writes without an order (rule O10)."""
    place = {name: k for k, name in enumerate(nodes)}
    uses = []
    for node in updates:
        seen: dict[str, str] = {}
        for name, edge in zip(INPUTS, node.inputs, strict=True):
            source = memory[edge.node] if edge else ""
            if name in WRITTEN and nodes[source].type in CONSTANTS:
                refuse("read_only", f"{node.name}.{name}", f"the constant {source!r}",
                       "data or a variable: it is updated")
            other = seen.setdefault(source, name)
            if other != name and (name in WRITTEN or other in WRITTEN):
                refuse("overlap", f"{node.name}.{name}", f"memory that is also {other}'s",
                       "no shared memory between tensors of which one is written")
            uses.append(Use(place[source], place[source] + 1, node.name, name))
    for conflict in conflicts(sequence, uses):
        raise AirError(conflict)


def _spec(tensors: Tensors) -> TensorSpec:
    return TensorSpec(tensors.outputs[0].shape, tensors.outputs[0].dtype)


def _named_outputs(
    declared: Sequence[str], written: Sequence[str], now: dict[str, str], specs: dict[str, TensorSpec],
    names: _Names,
) -> tuple[list[NodeProto], list[Any]]:
    """Copies for outputs that need a name of their own, and all outputs: those declared, then other written memory."""
    node = package("onnx.helper").make_node
    copies, outputs = [], []
    done: set[str] = set()
    for k, source in enumerate(declared):
        name = now[source]
        if source not in written or source in done:
            name = names.new(f"output_{k}")
            copies.append(node("Identity", [now[source]], [name], name=name))
        done.add(source)
        outputs.append(value_info(name, specs[source], f"{source}_"))
    outputs += [value_info(now[source], specs[source], f"{source}_") for source in written if source not in done]
    return copies, outputs


def _values(graph: Graph, nodes: dict[str, Node], described: dict[str, Tensors]) -> list[Any]:
    """Constants, and the values that variables begin with, or have by now."""
    make = package("onnx.helper").make_tensor
    values = []
    for name, node in nodes.items():
        spec = described[name].outputs[0] if node.type in SOURCES else None
        if spec and name in graph.variables:
            check_fed(name, graph.variables[name], spec)
            array = np.ascontiguousarray(graph.variables[name])
            values.append(make(name, element_type(spec.dtype), array.shape, array.tobytes(), raw=True))
        elif spec and "value" in node.op.attr:
            value = describe_constant(node)
            values.append(make(name, element_type(value.dtype), value.shape, node.op.attr["value"].t.data, raw=True))
    return values
