"""Run a GE graph on an engine, in place, as a session on the device does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import ml_dtypes
import numpy as np

from samestep import arrays, contract
from samestep.engine import DEFAULT, engines
from samestep.graph.air import AirError
from samestep.graph.infer import at_node, attributes, describe_constant, infer_nodes
from samestep.graph.memory import Use, conflicts
from samestep.graph.nodes import CONSTANTS, Described, Edge, Node, check_edge, in_order, parse_edge
from samestep.op import sgd_

if TYPE_CHECKING:
    from samestep.graph.build import Graph

RUNNABLE = ("Data", *CONSTANTS, "Variable", "SGD", "NetOutput")
_COUNTS = (1, 1, 1, 1, 1, 1)


class Update(NamedTuple):
    """One SGD node with the arrays it works on."""

    node: Node
    tensors: tuple[Any, ...]
    inputs: contract.Inputs


def run(graph: Graph, feeds: Mapping[str, Any], *, engine: str | None = None, order: str = "spec") -> list[Any]:
    """Run every SGD node of `graph`, and return the declared outputs in their order.

    `feeds` gives an array to every data node by its name (a variable may be fed, too): NumPy, torch CPU or DLPack, of
    the shape and dtype that the node declares. An SGD node works in place (rules O5, O6): parameters, accum and stat
    are updated in the fed arrays, or in `graph.variables`. Its one output is the array of its parameters itself. Nodes
    run after all that they take data from or wait for; `engine` and `order` are those of `samestep.sgd_`.

    Everything is checked before the first array is written, over all nodes (rule O11). Raises `ContractError` with the
    node's name before the input's, as in ``sgd.gradient``; `AirError` if the graph does not hang together, holds nodes
    that cannot run here, lacks a feed, or updates memory that another node uses without an order between the two.
    """
    contract.check_order(order)
    contract.check_engine(DEFAULT if engine is None else engine, engines())
    nodes = graph.nodes
    check_types(nodes)
    described = infer_nodes(nodes)
    sequence = list(in_order(nodes))
    held = _hold(graph, nodes, feeds, {name: found.outputs for name, found in described.items()})
    updates = []
    for node in sequence:
        if node.type == "SGD":
            tensors = tuple(held[edge.node] for edge in node.inputs if edge)
            held[node.name] = tensors[0]
            updates.append(_check(node, tensors))
    _check_order(sequence, updates)
    outputs = [held[edge.node] for edge in outputs_of(graph, nodes)]
    for update in updates:
        sgd_(*update.tensors, **attributes(update.node.op), order=order, engine=engine)
    return outputs


def check_types(nodes: dict[str, Node]) -> None:
    """Raise `AirError` if there are nodes that this package does not compute; it names them."""
    foreign = [f"{node.name!r} of type {node.type or 'none'}" for node in nodes.values() if node.type not in RUNNABLE]
    if foreign:
        more = f" and {len(foreign) - 8:,} more" if len(foreign) > 8 else ""
        raise AirError(f"this graph cannot run here because of {', '.join(foreign[:8])}{more}; what runs is "
                       f"{', '.join(RUNNABLE)}")


def _hold(
    graph: Graph, nodes: dict[str, Node], feeds: Mapping[str, Any], outputs: dict[str, tuple[Described, ...]]
) -> dict[str, Any]:
    """The array behind every data node, constant and variable, by name."""
    places = [name for name, node in nodes.items() if node.type in ("Data", "Variable")]
    wrong = sorted(set(feeds) - set(places), key=repr)
    if wrong:
        raise AirError(f"feeds for {', '.join(map(repr, wrong[:8]))}; this graph takes {', '.join(map(repr, places))}")
    missing = [name for name in places if nodes[name].type == "Data" and name not in feeds]
    if missing:
        raise AirError(f"no feed for {', '.join(map(repr, missing[:8]))}; every data node needs an array")
    held: dict[str, Any] = {}
    for name, node in nodes.items():
        if node.type in CONSTANTS:
            held[name] = _value(node, outputs[name][0])
        elif name in places:
            held[name] = feeds[name] if name in feeds else _variable(graph, node)
            check_fed(name, held[name], outputs[name][0])
    return held


def check_fed(name: str, fed: Any, declared: Described) -> None:
    """Refuse a fed array that is not what its node declares; unknown lengths and ranks take any."""
    found = arrays.read((fed,) * 6, _COUNTS, batch=False)
    unusual = found.unusual[0]
    if unusual and unusual.problem:
        contract.refuse("wrong_type", name, unusual.problem, "a NumPy array, a torch CPU tensor or one with DLPack")
    if unusual and unusual.device != "cpu":
        contract.refuse("unsupported_device", name, f"a tensor on device {unusual.device!r}", "one on 'cpu'")
    shape = tuple(found.shapes[0])
    if declared.dtype != found.dtypes[0]:
        contract.refuse("dtype_mismatch", name, f"dtype {found.dtypes[0]}", f"{declared.dtype}, as the node declares")
    known = declared.shape
    if known != contract.UNKNOWN_RANK and (
            len(known) != len(shape) or any(dim not in (-1, length) for dim, length in zip(known, shape, strict=True))):
        contract.refuse("shape_mismatch", name, f"shape {shape}", f"{known}, as the node declares")


def _value(node: Node, tensor: Described) -> Any:
    """A read-only array over the bytes of a constant."""
    dtype = np.dtype(getattr(ml_dtypes, tensor.dtype) if tensor.dtype == "bfloat16" else tensor.dtype)
    array = np.frombuffer(node.op.attr["value"].t.data, dtype.newbyteorder("<")).astype(dtype).reshape(tensor.shape)
    array.flags.writeable = False
    return array


def _variable(graph: Graph, node: Node) -> Any:
    """The array of a variable: the state so far, or a writable copy of the value that the node holds."""
    if node.name not in graph.variables:
        if "value" not in node.op.attr or not node.op.attr["value"].t.data:
            raise AirError(f"the variable {node.name!r} has no value: feed it, or set graph.variables[{node.name!r}]")
        value = describe_constant(node)
        graph.variables[node.name] = np.array(_value(node, value))
    return graph.variables[node.name]


def _check(node: Node, tensors: tuple[Any, ...]) -> Update:
    """All that `sgd_` refuses, before anything of the graph has run."""
    inputs = arrays.read(tensors, _COUNTS, batch=False)
    at_node(node.name, contract.check_inputs, inputs)
    at_node(node.name, contract.check_attributes, **attributes(node.op))
    at_node(node.name, contract.check_memory, inputs)
    return Update(node, tensors, inputs)


def _check_order(sequence: list[Node], updates: list[Update]) -> None:
    """Raise `AirError` if two nodes of which one writes use the same memory, and no edges order them."""
    uses = [Use(start, start + size, update.node.name, name) for update in updates for start, size, name in
            zip(update.inputs.addresses, update.inputs.sizes, contract.INPUTS, strict=True)]
    for conflict in conflicts(sequence, uses):
        raise AirError(conflict)


def outputs_of(graph: Graph, nodes: dict[str, Node]) -> list[Edge]:
    """What the graph returns: the inputs of its NetOutput node, or what it lists itself where there is none."""
    ends = [node for node in nodes.values() if node.type == "NetOutput"]
    if len(ends) > 1:
        raise AirError(f"{len(ends)} nodes of type NetOutput: {ends[0].name!r}, {ends[1].name!r}; a graph has one")
    edges = ends[0].inputs if ends else tuple(parse_edge(text) for text in graph.root.output)
    for edge in edges:
        if edge is None or edge.output < 0:
            raise AirError(f"an output of the graph that is no tensor: {str(edge)!r}")
        check_edge(nodes, edge, "the graph's list of outputs")
    return [edge for edge in edges if edge]
