"""Shape and dtype inference over a whole GE graph (rules S1, S2, O13)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from samestep.contract import INPUTS, ContractError, check_dtypes, refuse
from samestep.graph.air import DTYPES, AirError
from samestep.graph.nodes import CONSTANTS, Described, Node, attribute, describe, in_order, read_nodes
from samestep.shapes import infer as infer_shape

if TYPE_CHECKING:
    from samestep.graph.build import Graph

ATTRIBUTES: dict[str, tuple[str, Any]] = {  # name: the field of AttrDef that holds it, and the default
    "dampening": ("f", 0.0), "weight_decay": ("f", 0.0), "nesterov": ("b", False),
}
_ALL = ", ".join(INPUTS)
FORMAT = "ND"
FORMAT_NUMBER = 2  # ge::FORMAT_ND


class Tensors(NamedTuple):
    """What is known of a node's inputs (None where nothing is connected, or known) and of its outputs."""

    inputs: tuple[Described | None, ...]
    outputs: tuple[Described, ...]


def infer(graph: Graph) -> None:
    """Fill the TensorDescriptors of every node of `graph`, subgraphs included, from its data, constants and variables.

    An SGD node's output gets the shape and dtype of its parameters (rule S1). Unknown lengths (-1) and ranks ([-2])
    pass where the rules let them (rule S2). Nodes of other types keep what they declare; an output
    that GE has not inferred yet is of unknown rank.

    Raises `ContractError` with the node's name before the input's, as in ``sgd.gradient``, and the codes of
    `samestep.infer` or ``unsupported_format``; `AirError` if the graph does not hang together. The graph is unchanged
    then.
    """
    found = []
    for part in graph.model.graph:
        nodes = read_nodes(part)
        found.append((nodes, infer_nodes(nodes)))
    for nodes, tensors in found:
        for name, node in nodes.items():
            _fill_node(node, tensors[name])


def infer_nodes(nodes: dict[str, Node]) -> dict[str, Tensors]:
    """What `infer` finds for the nodes of one graph, by name."""
    tensors: dict[str, Tensors] = {}
    for node in in_order(nodes):
        inputs = tuple(tensors[edge.node].outputs[edge.output] if edge else None for edge in node.inputs)
        if node.type == "SGD":
            outputs: tuple[Described, ...] = (infer_sgd(node, inputs),)
        elif node.type in CONSTANTS:
            outputs = (describe_constant(node),)
        else:
            outputs = tuple(describe(desc, node.name) for desc in node.op.output_desc) or _nothing_declared(node)
        tensors[node.name] = Tensors(inputs, outputs)
    return tensors


def _nothing_declared(node: Node) -> tuple[Described, ...]:
    """The outputs of a node without output descriptors: none, but for data and variables, which have one."""
    return (Described((), "undefined", "undefined"),) if node.type in ("Data", "Variable") else ()


def infer_sgd(node: Node, inputs: Sequence[Described | None]) -> Described:
    """The output of an SGD node; refuses what the operator refuses, in the order of rule O12, formats after dtypes."""
    known = connected(node, inputs)
    given = at_node(node.name, attributes, node.op)
    at_node(node.name, check_dtypes, INPUTS, tuple(tensor.dtype for tensor in known))
    for name, tensor in zip(INPUTS, known, strict=True):
        at_node(node.name, check_format, name, tensor.format)
    spec = at_node(node.name, infer_shape, *(tensor.shape for tensor in known),
                   dtype=tuple(tensor.dtype for tensor in known), **given)
    return Described(spec.shape, spec.dtype, FORMAT)


def connected(node: Node, inputs: Sequence[Described | None]) -> list[Described]:
    """The six inputs of an SGD node; `AirError` if it has another number of them, or one is not connected."""
    if len(inputs) != len(INPUTS):
        raise AirError(f"node {node.name!r} of type SGD has {len(inputs)} inputs; it takes {len(INPUTS)}: {_ALL}")
    for name, tensor in zip(INPUTS, inputs, strict=True):
        if tensor is None:
            raise AirError(f"node {node.name!r} of type SGD has nothing connected to {name}; it takes all of {_ALL}")
    return [tensor for tensor in inputs if tensor is not None]


def attributes(op: Any) -> dict[str, Any]:
    """The operator's three attributes as an OpDef gives them, with the defaults of those that it leaves out.

    Refuses one that is of another kind; values are for `contract.check_attributes`.
    """
    return {name: attribute(op, name, kind, default) for name, (kind, default) in ATTRIBUTES.items()}


def check_format(name: str, found: str) -> None:
    """Refuse any format but ND (rule O13)."""
    if found != FORMAT:
        refuse("unsupported_format", name, f"format {found[:40]}", f"{FORMAT}, the only one of the operator")


def at_node(node: str, check: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What `check` gives; what it refuses is refused in the name of the node, as in ``sgd.gradient``."""
    try:
        return check(*args, **kwargs)
    except ContractError as error:
        refused = error
    refuse(refused.code, f"{node}.{refused.input}", refused.got, refused.accepted)


def describe_constant(node: Node) -> Described:
    """What a constant holds; `AirError` if it has no value, or its bytes are not what its shape and dtype need."""
    if "value" not in node.op.attr or node.op.attr["value"].WhichOneof("value") != "t":
        raise AirError(f"the constant {node.name!r} has no value: the attribute 'value' holds a tensor")
    value = node.op.attr["value"].t
    found = describe(value.desc, node.name)
    check_size(node.name, found, len(value.data))
    declared = [desc.layout for desc in (*node.op.output_desc[:1], value.desc) if desc.layout]
    return found._replace(format=declared[0] if declared else FORMAT)


def check_size(name: str, tensor: Described, size: int) -> None:
    """Raise `AirError` if `size` bytes are not what a tensor of a known shape and dtype takes."""
    if tensor.dtype not in DTYPES or any(dim < 0 for dim in tensor.shape):
        raise AirError(f"the value of {name!r} has dtype {tensor.dtype} and shape {tensor.shape}; a value has a known "
                       f"shape and one of {', '.join(DTYPES)}")
    wanted = math.prod(tensor.shape) * DTYPES[tensor.dtype][2]
    if size != wanted:
        raise AirError(f"the value of {name!r} has {size:,} bytes; {tensor.dtype} of shape {tensor.shape} takes "
                       f"{wanted:,}")


def _fill_node(node: Node, tensors: Tensors) -> None:
    """Write down what was found; of a node of another type only what it leaves open."""
    known = node.type in ("SGD", "NetOutput")
    descs = node.op.input_desc
    while known and len(descs) < len(tensors.inputs):
        descs.add()
    if len(descs) == len(tensors.inputs):
        for desc, tensor in zip(descs, tensors.inputs, strict=True):
            if tensor is not None and tensor.dtype in DTYPES and (known or desc.dtype == 0):
                fill(desc, tensor)
    if node.type in ("SGD", *CONSTANTS):
        if not node.op.output_desc:
            node.op.output_desc.add()
        fill(node.op.output_desc[0], tensors.outputs[0])


def fill(desc: Any, tensor: Described, name: str = "") -> None:
    """Write what is known of a tensor into its TensorDescriptor, as GE writes it; other fields are kept."""
    desc.name = name or desc.name
    desc.dtype = DTYPES[tensor.dtype][0]
    desc.shape.SetInParent()
    del desc.shape.dim[:]
    desc.shape.dim.extend(tensor.shape)
    desc.layout = tensor.format
    desc.device_type = desc.device_type or "NPU"
    if tensor.format == FORMAT:
        desc.attr["format_for_int"].i = FORMAT_NUMBER
        if "origin_format" not in desc.attr:
            desc.attr["origin_format"].s = FORMAT.encode()
            desc.attr["origin_format_for_int"].i = FORMAT_NUMBER
