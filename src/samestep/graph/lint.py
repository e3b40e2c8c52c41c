"""Every SGD node of a GE graph, and every rule that it breaks."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from samestep.contract import DTYPES, INPUTS, UNKNOWN_RANK, ContractError, Shape, check_attributes, check_dtypes
from samestep.graph.air import AirError
from samestep.graph.infer import ATTRIBUTES, check_format, connected, describe_constant, infer_nodes
from samestep.graph.memory import WRITTEN, Use, conflicts
from samestep.graph.nodes import (
    CONSTANTS,
    Described,
    Edge,
    Node,
    attribute,
    check_edge,
    describe,
    in_order,
    read_node,
    read_nodes,
)
from samestep.shapes import infer as infer_shape
from samestep.tiling import select

if TYPE_CHECKING:
    from samestep.graph.build import Graph

RULES = {  # code: the rule that such a refusal keeps
    "unsupported_dtype": "O1", "dtype_mismatch": "O1", "rank_out_of_range": "O2", "null_input": "O2",
    "shape_mismatch": "O2", "scalar_shape": "O2", "wrong_type": "O12", "attribute_value_out_of_range": "O4",
    "read_only": "O10", "overlap": "O10", "unsupported_format": "O13",
}


class Finding(NamedTuple):
    """One rule that a node breaks: the rule's id, the error's code, and a sentence.

    ``graph`` is no rule of the operator: the node does not hang together with the rest.
    """

    rule: str
    code: str
    text: str


class Input(NamedTuple):
    """One input of a node: where it comes from (``node:output``, or empty) and what is known of it."""

    name: str
    source: str
    tensor: Described | None


class Report(NamedTuple):
    """What there is to say of one SGD node. Of a node in a subgraph, `graph` is the subgraph's name.

    `variant` is K0 .. K5, None where the attributes select no kernel.
    """

    graph: str
    node: str
    inputs: tuple[Input, ...]
    attributes: dict[str, Any]
    variant: str | None
    findings: tuple[Finding, ...]


class Lint(NamedTuple):
    """All SGD nodes, and what is wrong with the graphs around them."""

    reports: tuple[Report, ...]
    problems: tuple[str, ...]

    @property
    def clean(self) -> bool:
        """Whether no rule is broken, and all hangs together."""
        return not self.problems and not any(report.findings for report in self.reports)


def lint(graph: Graph) -> Lint:
    """Look at every SGD node of `graph`, subgraphs included, without running or changing anything; never refuses.

    Where `infer` stops at the first refusal, all are listed: dtypes (O1), shapes (O2, S1, S2), attributes (O4), memory
    that is written and shared, or constant (O10), formats (O13).
    """
    reports: list[Report] = []
    problems: list[str] = []
    for part in graphs(graph.model):
        ops: dict[str, Any] = {}
        for op in part.op:
            ops.setdefault(op.name, op)
        origins: dict[str, Edge | None] = {}
        looked = [_Look(part.name, op, ops, origins) for op in part.op if op.type == "SGD"]
        reports += [look.report() for look in looked]
        problems += [f"graph {part.name!r}: {problem}" for problem in _problems(part, looked)]
    return Lint(tuple(reports), tuple(problems))


def graphs(model: Any) -> Iterator[Any]:
    """The GraphDefs of a model: its own, and those that attributes hold."""
    todo = list(reversed(model.graph))
    while todo:
        part = todo.pop()
        yield part
        inner = []
        for holder in (part, *part.op):
            for name in sorted(holder.attr):
                attr = holder.attr[name]
                kind = attr.WhichOneof("value")
                inner += [attr.g] if kind == "g" else list(attr.list.g) if kind == "list" else []
        todo += reversed(inner)


def _problems(part: Any, looked: list[_Look]) -> Iterator[str]:
    try:
        nodes = read_nodes(part)
        sequence = list(in_order(nodes))
        infer_nodes(nodes)
    except AirError as error:
        if not any(finding.text == str(error) for look in looked for finding in look.findings):
            yield str(error)
        return
    except ContractError:
        pass  # is a finding of its node
    numbers: dict[str, int] = {}
    uses = [Use(number, number + 1, look.name, name) for look in looked for name, root in look.roots.items()
            for number in [numbers.setdefault(root, len(numbers))]]
    yield from conflicts(sequence, uses)


class _Look:
    """One SGD node, what its edges lead to as far as they can be followed, and what is wrong with it."""

    def __init__(self, graph: str, op: Any, ops: dict[str, Any], origins: dict[str, Edge | None]) -> None:
        self.graph, self.op, self.ops, self.name = graph, op, ops, op.name
        self.origins = origins  # name of an SGD node: where its parameters are held, as far as that was asked before
        self.findings: list[Finding] = []
        self.roots: dict[str, str] = {}  # name of an input: the tensor whose memory it is
        self.constant: list[str] = []
        node = self._try(read_node, op)
        edges = node.inputs if node else ()
        self.inputs = [self._input(k, edge) for k, edge in enumerate(edges[:len(INPUTS)])]
        if node and (len(edges) != len(INPUTS) or None in edges):
            self._try(connected, node, edges)

    def _try(self, look: Callable[..., Any], *args: Any) -> Any:
        """What `look` gives; what it refuses is a finding, and gives None."""
        try:
            return look(*args)
        except ContractError as error:
            self._add(RULES[error.code], error.code, str(error).removesuffix(f" [{error.code}]"))
        except AirError as error:
            self._add("graph", "graph", str(error))
        return None

    def _add(self, rule: str, code: str, text: str) -> None:
        finding = Finding(rule, code, text)
        if finding not in self.findings:
            self.findings.append(finding)

    def _input(self, k: int, edge: Edge | None) -> Input:
        """Input number `k`: what comes along its edge, or else what the node itself declares."""
        descs = self.op.input_desc
        declared = self._declared(descs[k]) if k < len(descs) else None
        tensor = self._try(self._follow, INPUTS[k], edge) if edge else None
        if tensor and declared:
            self._compare("S2", INPUTS[k], declared, tensor, str(edge))
        return Input(INPUTS[k], str(edge) if edge else "", tensor or declared)

    def _follow(self, name: str, edge: Edge) -> Described | None:
        """What comes along an edge: through SGD nodes, whose output is their parameters (S1), from where it is held."""
        seen: dict[str, None] = {}
        held: Edge | None = edge
        while held:
            try:
                node = self._producer(held)
            except AirError:
                if held is edge:
                    raise
                held = None  # told where it stands
                break
            if node.type != "SGD":
                break
            if node.name in self.origins or node.name in seen:  # known, or a circle
                held = self.origins.get(node.name)
                break
            seen[node.name] = None
            held = node.inputs[0] if node.inputs else None
        self.origins.update(dict.fromkeys(seen, held))
        if held is None:
            return None
        self.roots[name] = str(held)
        node = self._producer(held)
        if node.type in CONSTANTS:
            self.constant.append(name)
            return describe_constant(node)
        descs = node.op.output_desc
        return describe(descs[held.output], node.name) if descs else Described((), "undefined", "undefined")

    def _producer(self, edge: Edge) -> Node:
        known = {edge.node: read_node(self.ops[edge.node])} if edge.node in self.ops else {}
        check_edge(known, edge, f"node {self.name!r}")
        return known[edge.node]

    def _declared(self, desc: Any) -> Described | None:
        """What the node says itself; a descriptor without a dtype says nothing."""
        found: Described | None = self._try(describe, desc, self.name)
        return found if found and found.dtype != "undefined" else None

    def _compare(self, rule: str, name: str, declared: Described, tensor: Described, source: str) -> None:
        """A node that declares what cannot be."""
        if declared.dtype != tensor.dtype:
            self._add(rule, "dtype_mismatch", f"{name}: declared as {declared.dtype}, but {source} is {tensor.dtype}")
        elif not _agree(declared.shape, tensor.shape):
            self._add(rule, "shape_mismatch", f"{name}: declared as {declared.shape}, but {source} is {tensor.shape}")

    def report(self) -> Report:
        """The node with all findings."""
        tensors = {given.name: given.tensor for given in self.inputs if given.tensor}
        given = {name: self._try(attribute, self.op, name, *kind) for name, kind in ATTRIBUTES.items()}
        for name, tensor in tensors.items():
            self._try(check_format, name, tensor.format)
        self._check_dtypes({name: tensor.dtype for name, tensor in tensors.items()})
        self._check_shapes({name: tensor.shape for name, tensor in tensors.items()})
        self._check_memory()
        if self.op.output_desc and "parameters" in tensors:
            declared = self._declared(self.op.output_desc[0])
            if declared:
                self._compare("S1", "output", declared, tensors["parameters"], "parameters")
        return Report(self.graph, self.name, tuple(self.inputs), given, self._variant(**given), tuple(self.findings))

    def _check_dtypes(self, dtypes: dict[str, str]) -> None:
        first = dtypes.get("parameters")
        for name, dtype in dtypes.items():
            pair = {"parameters": first, name: dtype} if first in DTYPES else {name: dtype}
            self._try(check_dtypes, tuple(pair), tuple(pair.values()))

    def _check_shapes(self, shapes: dict[str, Shape]) -> None:
        """Each shape beside those of parameters, where these are possible, and then all together."""
        unknown = dict.fromkeys(INPUTS, UNKNOWN_RANK)
        first = {}
        if "parameters" in shapes and self._try(_shape_of, unknown | {"parameters": shapes["parameters"]}):
            first = {"parameters": shapes["parameters"]}
        alone = [name for name in shapes if name != "parameters"]
        possible = [self._try(_shape_of, unknown | first | {name: shapes[name]}) for name in alone]
        if first and None not in possible:
            self._try(_shape_of, unknown | shapes)

    def _check_memory(self) -> None:
        for name in self.constant:
            if name in WRITTEN:
                self._add("O10", "read_only", f"{name}: got the constant {self.roots[name]!r}; accepted: data or a "
                          "variable: it is updated in place")
        for one, other in itertools.combinations(self.roots, 2):
            if self.roots[one] == self.roots[other] and (one in WRITTEN or other in WRITTEN):
                self._add("O10", "overlap", f"{other}: got {self.roots[other]!r}, which is also {one}; accepted: no "
                          "shared memory between tensors of which one is written")

    def _variant(self, dampening: Any, weight_decay: Any, nesterov: Any) -> str | None:
        """K0 .. K5, after both checks of the attributes."""
        if None in (dampening, weight_decay, nesterov):
            return None
        checked = [self._try(check_attributes, dampening, 0.0, nesterov),
                   self._try(check_attributes, 0.0, weight_decay, False)]
        return None if None in checked else select(0, check_attributes(dampening, weight_decay, nesterov)).variant


def _shape_of(shapes: dict[str, Shape]) -> Any:
    return infer_shape(*(shapes[name] for name in INPUTS))


def _agree(one: Shape, other: Shape) -> bool:
    """Whether two shapes can be the same (rule S2)."""
    if UNKNOWN_RANK in (one, other):
        return True
    return len(one) == len(other) and all(a == b or -1 in (a, b) for a, b in zip(one, other, strict=True))
