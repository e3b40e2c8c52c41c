"""A GE graph and how one is built: data, constants, variables, SGD nodes, outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from samestep.contract import INPUTS, check_attributes
from samestep.graph.air import DTYPES, AirError, messages, serialize, set_list
from samestep.graph.infer import FORMAT, at_node, fill
from samestep.graph.nodes import Described, Edge, Node, check_edge, read_nodes

VERSION = 1
# type of a node: its inputs, its outputs and its attributes, by the names that GE registers them under
OPERATORS: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "Data": (("x",), ("y",), ("index",)),
    "Const": ((), ("y",), ("value",)),
    "Variable": (("x",), ("y",), ("index", "value", "container", "shared_name")),
    "SGD": (INPUTS, ("parameters",), ("dampening", "weight_decay", "nesterov")),
}
DYNAMIC = 2  # how GE marks an input that stands for any number of them; 0 is a required one
NET_OUTPUT = "Node_Output"


class Graph:
    """A GE graph: `model` is the ``ge.proto.ModelDef`` that its `.air` file holds, `variables` the state of a session.

    ``Graph("train")`` is empty. `data`, `constant`, `variable` and `sgd` add a node and return the edge that its output
    is, which later nodes take as an input; `output` declares what `ge.run` returns. Names of nodes are unique.

    `variables` maps names of variables to the arrays that `ge.run` updates in place. They begin with the values that
    the nodes hold, which stay what they are: `ge.write` writes the graph, not the state of a session.
    """

    def __init__(self, name: str) -> None:
        self.model = messages()["ModelDef"](name=name, version=VERSION)
        self.model.graph.add(name=name)
        self.variables: dict[str, Any] = {}
        self._seen: dict[str, Node] = {}

    @classmethod
    def of(cls, model: Any) -> Graph:
        """The graph that a ModelDef holds; the message is taken, not copied."""
        graph = cls.__new__(cls)
        graph.model, graph.variables, graph._seen = model, {}, {}
        return graph

    def __eq__(self, other: object) -> bool:
        """Whether both are the same file, bit for bit; NaN equals itself, unknown fields count, variables do not."""
        return isinstance(other, Graph) and serialize(self.model) == serialize(other.model)

    __hash__ = None  # type: ignore[assignment]  # a graph changes

    def __repr__(self) -> str:
        return f"<Graph {self.name!r}: {len(self.root.op)} nodes>"

    @property
    def name(self) -> str:
        """The name of the root graph."""
        return str(self.root.name)

    @property
    def root(self) -> Any:
        """The GraphDef that is run; further ones in `model.graph` are its subgraphs."""
        return self.model.graph[0]

    @property
    def nodes(self) -> dict[str, Node]:
        """The nodes of the root graph by name; `AirError` if it does not hang together."""
        return read_nodes(self.root)

    def data(self, name: str, shape: Sequence[int], dtype: str = "float32", *, format: str = FORMAT) -> Edge:
        """A tensor that is fed: `shape` with -1 for an unknown length, ``(-2,)`` for an unknown rank."""
        tensor = _described(name, shape, dtype, format)
        op = self._add(name, "Data")
        op.attr["index"].i = len(self.root.input)
        fill(op.input_desc.add(), tensor, "x")
        fill(op.output_desc.add(), tensor, "y")
        self.root.input.append(f"{name}:0")
        return Edge(name)

    def constant(self, name: str, value: Any) -> Edge:
        """A tensor that never changes: a NumPy array, or what NumPy makes one of; Python floats are float32."""
        array, tensor = _array(name, value)
        op = self._add(name, "Const")
        _store(op, array, tensor)
        fill(op.output_desc.add(), tensor, "y")
        return Edge(name)

    def variable(self, name: str, value: Any) -> Edge:
        """A tensor that begins as `value` and that runs update in place, in `variables`."""
        array, tensor = _array(name, value)
        op = self._add(name, "Variable")
        _store(op, array, tensor)
        op.attr["index"].i = 0
        op.attr["container"].s = op.attr["shared_name"].s = b""
        fill(op.input_desc.add(), tensor, "x")
        fill(op.output_desc.add(), tensor, "y")
        return Edge(name)

    def sgd(
        self, parameters: Edge, gradient: Edge, learning_rate: Edge, accum: Edge, momentum: Edge, stat: Edge, *,
        dampening: float = 0.0, weight_decay: float = 0.0, nesterov: bool = False, name: str = "sgd",
        after: Sequence[Edge] = (),
    ) -> Edge:
        """One update (rules O), and the edge of its one output: the memory of `parameters`, updated.

        accum and stat are updated where they are: in the fed arrays, or in variables. `after` are control edges: nodes
        that have to run before. Attributes are checked and rounded now (rule O4), shapes and dtypes by `ge.infer`.
        """
        given = at_node(name, check_attributes, dampening, weight_decay, nesterov)
        edges = (parameters, gradient, learning_rate, accum, momentum, stat)
        self._check_edges(name, edges, after)
        op = self._add(name, "SGD")
        op.input.extend(map(str, edges))
        op.input.extend(f"{edge.node}:-1" for edge in after)
        op.attr["dampening"].f, op.attr["weight_decay"].f, op.attr["nesterov"].b = given
        for described, names in ((op.input_desc, INPUTS), (op.output_desc, ("parameters",))):
            for place in names:
                described.add(name=place, layout=FORMAT, device_type="NPU")
        return Edge(name)

    def output(self, *edges: Edge, after: Sequence[Edge] = ()) -> None:
        """Declare the outputs of the graph, in this order, and with `after` what has to run besides; once a graph."""
        self._check_edges(NET_OUTPUT, edges, after)
        op = self._add(NET_OUTPUT, "NetOutput", tuple(f"x{k}" for k in range(len(edges))))
        op.input.extend(map(str, edges))
        op.input.extend(f"{edge.node}:-1" for edge in after)
        for k in range(len(edges)):
            op.input_desc.add(name=f"x{k}", layout=FORMAT, device_type="NPU")
        self.root.output.extend(map(str, edges))

    def _add(self, name: str, type: str, dynamic: tuple[str, ...] | None = None) -> Any:
        """A new OpDef with what GE records of the operator's definition."""
        if not isinstance(name, str) or not name:
            raise AirError(f"a node named {name!r}; a name is a string that is not empty")
        if name in self._known():
            raise AirError(f"a second node of the name {name!r}; names of nodes are unique in a graph")
        op = self.root.op.add(name=name, type=type, id=len(self.root.op), has_out_attr=True)
        inputs, outputs, attributes = ((), (), ()) if dynamic is not None else OPERATORS[type]
        _record(op, "_ir_inputs", ("x",) if dynamic is not None else inputs, [DYNAMIC if dynamic is not None else 0])
        _record(op, "_ir_outputs", outputs, [0])
        _record_places(op, "_input_name", inputs if dynamic is None else dynamic)
        _record_places(op, "_output_name", outputs)
        if attributes:
            set_list(op.attr["_ir_attr_names"], list(attributes))
        self._seen[name] = Node(name, type, (), (), op)
        return op

    def _known(self) -> dict[str, Node]:
        """The nodes to check new ones against, remembered so that a graph is built in linear time."""
        if len(self._seen) != len(self.root.op):
            self._seen = self.nodes
        return self._seen

    def _check_edges(self, name: str, edges: Sequence[Edge], after: Sequence[Edge]) -> None:
        nodes = self._known()
        for edge in (*edges, *after):
            if not isinstance(edge, Edge):
                raise AirError(f"node {name!r} takes {type(edge).__name__} {str(edge)[:40]!r}; inputs are what data, "
                               "constant, variable and sgd return")
            check_edge(nodes, edge, f"node {name!r}")


def _described(name: str, shape: Sequence[int], dtype: str, format: str) -> Described:
    if dtype not in DTYPES:
        raise AirError(f"node {name!r} of dtype {dtype!r}; a graph holds {', '.join(DTYPES)}")
    dims = tuple(shape)
    if not all(isinstance(dim, int) and -(2**63) <= dim < 2**63 for dim in dims):
        raise AirError(f"node {name!r} of shape {dims!r}; a shape holds lengths, -1 for an unknown one, or is (-2,)")
    return Described(dims, dtype, format)


def _array(name: str, value: Any) -> tuple[Any, Described]:
    """`value` as a C-contiguous array, Python floats as float32, and its description."""
    array = np.asarray(value, order="C")
    if array.dtype == np.float64 and not hasattr(value, "dtype"):
        array = array.astype(np.float32)
    return array, _described(name, array.shape, array.dtype.name, FORMAT)


def _store(op: Any, array: Any, tensor: Described) -> None:
    """Put an array into the attribute `value`, little-endian."""
    held = op.attr["value"].t
    fill(held.desc, tensor)
    held.data = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def _record(op: Any, key: str, names: Sequence[str], kind: list[int]) -> None:
    """Names of inputs or outputs of the operator's definition, in its order, and of what kind each is."""
    if names:
        set_list(op.attr[f"{key}_key"], list(names))
        set_list(op.attr[f"{key}_value"], kind * len(names))


def _record_places(op: Any, key: str, names: Sequence[str]) -> None:
    """Names of the node's own inputs or outputs with their places, in the order of names, as GE keeps them."""
    if names:
        set_list(op.attr[f"{key}_key"], sorted(names))
        set_list(op.attr[f"{key}_value"], [names.index(name) for name in sorted(names)])
