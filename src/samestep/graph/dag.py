"""The data flow of a kernel: what it reads, every rounded operation, what it writes, each with the rule it keeps.

The operations are formula.cann as `samestep.graph.trace` saw it; reading and writing are rules O4 to O6 around it.
"""

from __future__ import annotations

import json
from os import PathLike
from pathlib import Path
from typing import NamedTuple

from samestep import tiling
from samestep.contract import check_dtypes
from samestep.graph.trace import ATTRIBUTES, SCALARS, TENSORS, Trace, trace, variant_key

SYMBOLS = {"add": "+", "sub": "-", "mul": "*"}
MASK = "m_not_0"


class Node(NamedTuple):
    """One value of a kernel.

    ``kind``: ``read`` (a tensor), ``scalar`` (one element, an attribute or a constant), ``step`` (one rounding),
    ``mask``, or ``write``. ``operands`` are names of other nodes; ``rule`` holds ids of rules, with blanks between.
    """

    name: str
    kind: str
    operation: str
    operands: tuple[str, ...]
    rule: str


class Dag(NamedTuple):
    """The data flow of one variant in one order and dtype: its nodes, each after its operands."""

    variant: str
    order: str
    dtype: str
    nodes: tuple[Node, ...]

    @property
    def edges(self) -> tuple[tuple[str, str], ...]:
        """Pairs of names: a value, and the one made from it."""
        return tuple((operand, node.name) for node in self.nodes for operand in dict.fromkeys(node.operands))


def dag(variant: str | tiling.TilingKey, order: str = "spec", dtype: str = "float32") -> Dag:
    """The data flow of a kernel: a variant, K0 .. K5 or a key, an evaluation order and a dtype.

    ValueError for a variant that does not exist; `ContractError` ``unknown_order``, ``unsupported_dtype``.
    """
    steps = trace(variant, order)
    check_dtypes(("dtype",), (dtype,))
    nodes = (*_reads(steps, dtype), *_steps(steps), *_writes(steps, dtype))
    return Dag(variant_key(variant).variant, order, dtype, nodes)


def _reads(steps: Trace, dtype: str) -> list[Node]:
    nodes = []
    widened = " as float32" if dtype != "float32" else ""
    for name in steps.reads:
        if name in TENSORS:
            nodes.append(Node(name, "read", f"read {TENSORS[name]}{widened}", (), "O5"))
        elif name in SCALARS:
            nodes.append(Node(name, "scalar", f"read {SCALARS[name]}[0]{widened}", (), "O2 O5"))
        elif name in ATTRIBUTES:
            nodes.append(Node(name, "scalar", f"{ATTRIBUTES[name]} as float32", (), "O4"))
        else:
            nodes.append(Node(name, "scalar", "1 in float32", (), "O5"))
    return nodes


def _steps(steps: Trace) -> list[Node]:
    return [Node(name, "step", f"{left} {SYMBOLS[operation]} {right}", (left, right), "O5")
            for name, operation, left, right in steps.steps]


def _writes(steps: Trace, dtype: str) -> list[Node]:
    written = "write {}" if dtype == "float32" else "round {}, write"
    return [
        Node(MASK, "mask", "m != 0 (true for NaN)", ("m",), "O6"),
        Node("parameters_out", "write", written.format(steps.p_out), (steps.p_out,), "O5 O6"),
        Node("accum_out", "write", f"{written.format(steps.accum_t)} if m != 0", (steps.accum_t, MASK), "O5 O6"),
        Node("stat_out", "write", "write +0 if m != 0", (MASK,), "O6"),
    ]


def text(graph: Dag) -> str:
    """The nodes as a table: name, operation, rule."""
    names, operations = (max(len(getattr(node, field)) for node in graph.nodes) for field in ("name", "operation"))
    lines = [f"{graph.variant}, order {graph.order}, {graph.dtype}", ""]
    lines += [f"{node.name:<{names}}  {node.operation:<{operations}}  {node.rule}" for node in graph.nodes]
    return "\n".join(lines) + "\n"


def dot(graph: Dag) -> str:
    """The data flow in the language of Graphviz."""
    lines = [f'digraph "{graph.variant} {graph.order} {graph.dtype}" {{', '  node [shape=box, fontname="sans-serif"];']
    lines += [f'  "{node.name}" [label="{node.name}\\n{node.operation}\\n{node.rule}"];' for node in graph.nodes]
    lines += [f'  "{start}" -> "{stop}";' for start, stop in graph.edges]
    return "\n".join([*lines, "}"]) + "\n"


def as_json(graph: Dag) -> str:
    """The data flow as a JSON object: variant, order, dtype, nodes."""
    return json.dumps({**graph._asdict(), "nodes": [node._asdict() for node in graph.nodes]}, indent=2,
                      ensure_ascii=False) + "\n"


def write(graph: Dag, path: str | PathLike[str]) -> None:
    """Write the data flow to `path`, as its suffix says: a picture (.svg, .png, .pdf), .dot, .json or .txt.

    ValueError for another suffix; OSError where `path` cannot be written; ImportError without matplotlib.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    forms = {".dot": dot, ".json": as_json, ".txt": text}
    if suffix in forms:
        path.write_text(forms[suffix](graph), encoding="utf-8")
    elif suffix in (".svg", ".png", ".pdf"):
        from samestep.graph.dag_draw import draw

        draw(graph, path)
    else:
        raise ValueError(f"a file called {path.name!r}; its name ends in .svg, .png, .pdf, .dot, .json or .txt")
