"""How the nodes of a GE graph hang together: edges as they are written in the file, and an order to run them in."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from samestep.contract import UNKNOWN_DIM, UNKNOWN_RANK, Shape, refuse
from samestep.graph.air import AirError, dtype_name

CONSTANTS = ("Const", "Constant")
SOURCES = ("Data", *CONSTANTS, "Variable")  # what holds a tensor instead of computing one
_INDEX = re.compile(r"-?[0-9]{1,9}")


class Edge(NamedTuple):
    """Output number `output` of node `node`; a negative one is a control edge: run after that node."""

    node: str
    output: int = 0

    def __str__(self) -> str:
        return f"{self.node}:{self.output}"


class Node(NamedTuple):
    """A node and where its inputs come from: one entry per data input, None where nothing is connected."""

    name: str
    type: str
    inputs: tuple[Edge | None, ...]
    controls: tuple[str, ...]
    op: Any  # the OpDef


class Described(NamedTuple):
    """What a TensorDescriptor says."""

    shape: Shape
    dtype: str
    format: str


def parse_edge(text: str) -> Edge | None:
    """The edge written as ``node:index``, split at the last colon; None for ``""``, an input that is not connected."""
    if not text:
        return None
    node, colon, index = text.rpartition(":")
    if not colon or not node or not _INDEX.fullmatch(index):
        raise AirError(f"the edge {text[:80]!r}; an edge is 'node:output', where a negative output is a control edge")
    return Edge(node, int(index))


def read_nodes(graph: Any) -> dict[str, Node]:
    """The nodes of a GraphDef by name, in the order of the file.

    Raises `AirError` for two nodes of one name, an edge that is none, and one that comes from nowhere.
    """
    nodes: dict[str, Node] = {}
    for op in graph.op:
        if op.name in nodes:
            raise AirError(f"two nodes of the name {op.name!r}; names of nodes are unique in a graph")
        nodes[op.name] = read_node(op)
    for node in nodes.values():
        for edge in (*node.inputs, *(Edge(name, -1) for name in node.controls)):
            check_edge(nodes, edge, f"node {node.name!r}")
    return nodes


def read_node(op: Any) -> Node:
    """One OpDef with its edges; `AirError` for an edge that is none."""
    try:
        edges = [parse_edge(text) for text in op.input]
    except AirError as error:
        raise AirError(f"node {op.name!r} has {error}") from None
    data = tuple(edge for edge in edges if edge is None or edge.output >= 0)
    return Node(op.name, op.type, data, tuple(edge.node for edge in edges if edge and edge.output < 0), op)


def check_edge(nodes: dict[str, Node], edge: Edge | None, where: str) -> None:
    """Raise `AirError` if `edge` comes from a node, or an output of it, that is not there."""
    if edge is None:
        return
    if edge.node not in nodes:
        raise AirError(f"{where} takes {str(edge)!r}, but there is no node {edge.node!r}")
    outputs = output_count(nodes[edge.node])
    if edge.output >= outputs:
        raise AirError(f"{where} takes {str(edge)!r}, but node {edge.node!r} has {outputs} outputs")


def output_count(node: Node) -> int:
    """How many outputs a node has: as it has to be for the kinds that are known, else as many as it declares."""
    if node.type == "NetOutput":
        return 0
    return 1 if node.type in SOURCES or node.type == "SGD" else len(node.op.output_desc)


def in_order(nodes: dict[str, Node]) -> Iterator[Node]:
    """The nodes, each after all that it takes data from or waits for; in the order of the file where there is a choice.

    Raises `AirError` where nodes wait for each other in a circle, and names one such circle.
    """
    names = list(nodes)
    place = {name: k for k, name in enumerate(names)}
    waiting = {name: len(_before(node)) for name, node in nodes.items()}
    after: dict[str, list[str]] = {name: [] for name in nodes}
    for name, node in nodes.items():
        for before in _before(node):
            after[before].append(name)
    ready = [place[name] for name, count in waiting.items() if count == 0]  # sorted, and so a heap
    done = 0
    while ready:
        name = names[heapq.heappop(ready)]
        done += 1
        yield nodes[name]
        for then in after[name]:
            waiting[then] -= 1
            if waiting[then] == 0:
                heapq.heappush(ready, place[then])
    if done < len(nodes):
        raise AirError(f"nodes that wait for each other: {' <- '.join(_circle(nodes, waiting))}")


def _before(node: Node) -> set[str]:
    return {edge.node for edge in node.inputs if edge} | set(node.controls)


def _circle(nodes: dict[str, Node], waiting: dict[str, int]) -> list[str]:
    """Names around one circle: from a node that waits go back to one it waits for, until a node comes again."""
    path: list[str] = []
    seen: dict[str, int] = {}
    name = next(name for name, count in waiting.items() if count)
    while name not in seen:
        seen[name] = len(path)
        path.append(name)
        name = min(before for before in _before(nodes[name]) if waiting[before])
    circle = [*path[seen[name]:], name]
    return circle if len(circle) <= 12 else [*circle[:11], "...", name]


def describe(desc: Any, node: str) -> Described:
    """What a TensorDescriptor of node `node` says of its tensor.

    One that GE has not inferred yet has no lengths and says so in an attribute: its rank is unknown. `AirError` for
    more dimensions than any framework has.
    """
    if len(desc.shape.dim) > 64:
        raise AirError(f"node {node!r} has a tensor of {len(desc.shape.dim):,} dimensions")
    waits = "origin_shape_initialized" in desc.attr and not desc.attr["origin_shape_initialized"].b
    shape = tuple(desc.shape.dim) or (UNKNOWN_RANK if waits else ())
    return Described(shape, dtype_name(desc.dtype), desc.layout or "undefined")


def shown(shape: Shape) -> str:
    """A shape for people: unknown lengths and ranks in words."""
    if shape == UNKNOWN_RANK:
        return "unknown rank"
    return f"({', '.join('?' if dim == UNKNOWN_DIM else str(dim) for dim in shape)}{',' * (len(shape) == 1)})"


def attribute(op: Any, name: str, kind: str, default: Any) -> Any:
    """Attribute `name` of an OpDef, or `default` if it is not given; refuses one of another kind (``wrong_type``).

    `kind` is the field of AttrDef that holds it: ``f``, ``b``, ``i``, ``s``, ``t``, ...
    """
    if name not in op.attr:
        return default
    found = op.attr[name].WhichOneof("value")
    if found != kind:
        refuse("wrong_type", name, f"an attribute of kind {found or 'none'}", f"one of kind {kind}")
    return getattr(op.attr[name], kind)
