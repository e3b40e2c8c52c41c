"""A GE graph as a picture: layers from left to right, control edges dashed, what is written in place in colour."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from samestep.contract import INPUTS
from samestep.graph.air import AirError
from samestep.graph.extra import module
from samestep.graph.memory import WRITTEN
from samestep.graph.nodes import SOURCES, Node, describe, in_order, read_nodes, shown

if TYPE_CHECKING:
    from samestep.graph.build import Graph

LARGEST = 150  # nodes; a larger graph is drawn as its SGD nodes and what is next to them
SUFFIXES = (".svg", ".png", ".pdf")
_INK, _SOFT, _EDGE, _WRITTEN = "#1f2933", "#52606d", "#9aa5b1", "#b44d12"
_FILLS = {"SGD": "#fff4e6", "NetOutput": "#e9ecef", **dict.fromkeys(SOURCES, "#e7f5ff")}
_WIDTH, _GAP, _LINE = 2.9, 1.5, 0.22  # inches: of a box, between layers, of a line of text


class Box(NamedTuple):
    """Where a node is drawn: its left edge, its top, its height, in inches; y goes down."""

    left: float
    top: float
    height: float


def draw(graph: Graph, path: str | PathLike[str]) -> None:
    """Draw the root graph and write the picture to `path`, whose suffix says how: .svg, .png or .pdf.

    A graph of more than `LARGEST` nodes is drawn as its SGD nodes with their direct neighbours. Raises `AirError` if
    the graph does not hang together, or is too large even so; OSError where `path` cannot be written.
    """
    if Path(path).suffix.lower() not in SUFFIXES:
        raise AirError(f"a picture called {str(path)!r}; its name ends in {', '.join(SUFFIXES)}")
    figure_of = module("matplotlib.figure", "matplotlib").Figure
    everything = read_nodes(graph.root)
    nodes = choose(list(in_order(everything)))
    columns = layers(nodes)
    boxes = place(columns)
    width = max((box.left for box in boxes.values()), default=0) + _WIDTH + 0.5
    height = max((box.top + box.height for box in boxes.values()), default=0) + 0.4
    figure = figure_of(figsize=(max(width, 5), height), facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, max(width, 5)), ylim=(height, 0))
    axes.axis("off")
    part = "" if len(nodes) == len(everything) else f" (drawn: {len(nodes):,} of {len(everything):,} nodes)"
    axes.text(0.5, 0.45, f"{_cut(graph.name, 60)}{part}", size=15, weight="bold", color=_INK, va="center",
              parse_math=False)
    axes.text(0.5, 0.75, "coloured: updated in place; dashed: control edge", size=9, color=_SOFT, va="center")
    for node in nodes:
        _draw_edges(axes, node, boxes)
    for node in nodes:
        _draw_box(axes, node, boxes[node.name])
    # Text stays text in an SVG, and neither dates nor random ids get into it: the same graph gives the same file.
    dates = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    with module("matplotlib", "matplotlib").rc_context({"svg.fonttype": "none", "svg.hashsalt": "samestep"}):
        figure.savefig(path, dpi=110, metadata=dates.get(Path(path).suffix.lower()))


def choose(sequence: Sequence[Node]) -> list[Node]:
    """The nodes to draw, in order: all, or the SGD nodes and their neighbours."""
    if len(sequence) <= LARGEST:
        return list(sequence)
    chosen = {node.name for node in sequence if node.type == "SGD"}
    near = set(chosen)
    for node in sequence:
        before = {edge.node for edge in node.inputs if edge} | set(node.controls)
        near |= before if node.name in chosen else {node.name} if before & chosen else set()
    if not 0 < len(near) <= LARGEST:
        raise AirError(f"a graph of {len(sequence):,} nodes, {len(near):,} of them SGD nodes and their neighbours; a "
                       f"picture holds at most {LARGEST}. `lint` lists them instead")
    return [node for node in sequence if node.name in near]


def layers(nodes: Sequence[Node]) -> list[list[Node]]:
    """Columns of nodes: each as far left as what it waits for lets it, sources right before who uses them first."""
    depth: dict[str, int] = {}
    users: dict[str, list[tuple[str, float]]] = {node.name: [] for node in nodes}
    for node in nodes:
        before = [name for name in _before(node) if name in users]
        depth[node.name] = max((depth[name] + 1 for name in before), default=0)
        for k, name in enumerate(before):
            users[name].append((node.name, k / len(before)))
    for node in nodes:
        if not _before(node) and users[node.name]:
            depth[node.name] = min(depth[name] for name, _ in users[node.name]) - 1
    columns: list[list[Node]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for node in nodes:
        columns[depth[node.name]].append(node)
    return _untangle([column for column in columns if column], users)


def _before(node: Node) -> list[str]:
    return [edge.node for edge in node.inputs if edge] + list(node.controls)


def _untangle(columns: list[list[Node]], users: dict[str, list[tuple[str, float]]]) -> list[list[Node]]:
    """Order each column by the middle of the neighbours, forwards and back, so that few edges cross."""
    rank = {node.name: float(k) for column in columns for k, node in enumerate(column)}
    for backwards in (True, False, True):
        for column in reversed(columns) if backwards else columns:
            middle = {}
            for node in column:
                after = [rank[name] + part for name, part in users[node.name]]
                near = after if backwards else [rank[name] for name in _before(node) if name in rank]
                middle[node.name] = sum(near) / len(near) if near else rank[node.name]
            column.sort(key=lambda node: middle[node.name])
            rank.update({node.name: float(k) for k, node in enumerate(column)})
    return columns


def place(columns: Sequence[Sequence[Node]]) -> dict[str, Box]:
    """The boxes of all nodes by name; columns stand side by side, each centred."""
    heights = [[_height(node) for node in column] for column in columns]
    tallest = max((sum(column) + 0.25 * (len(column) - 1) for column in heights), default=0)
    boxes = {}
    for k, (column, sizes) in enumerate(zip(columns, heights, strict=True)):
        top = 1.1 + (tallest - sum(sizes) - 0.25 * (len(sizes) - 1)) / 2
        for node, height in zip(column, sizes, strict=True):
            boxes[node.name] = Box(0.5 + k * (_WIDTH + _GAP), top, height)
            top += height + 0.25
    return boxes


def _height(node: Node) -> float:
    return (3 + (len(INPUTS) if node.type == "SGD" else 0)) * _LINE


def _port(node: Node, box: Box, k: int, count: int) -> float:
    """How far down input `k` of `count` enters a box: at its name on an SGD node, evenly spread on others."""
    if node.type == "SGD" and k < len(INPUTS):
        return box.top + (2.9 + k) * _LINE
    return box.top + box.height * (k + 1) / (count + 1)


def _draw_edges(axes: Any, node: Node, boxes: dict[str, Box]) -> None:
    ends = [(edge.node, k, False) for k, edge in enumerate(node.inputs) if edge]
    ends += [(name, len(node.inputs) + k, True) for k, name in enumerate(node.controls)]
    box = boxes[node.name]
    for name, k, control in ends:
        if name in boxes:
            start = (boxes[name].left + _WIDTH, boxes[name].top + boxes[name].height / 2)
            count = len(node.inputs) + len(node.controls)
            stop = (box.left, box.top + box.height - 0.1 if control else _port(node, box, k, count))
            middle = (start[0] + stop[0]) / 2
            path = module("matplotlib.path", "matplotlib").Path
            curve = path([start, (middle, start[1]), (middle, stop[1]), stop], [path.MOVETO] + [path.CURVE4] * 3)
            written = node.type == "SGD" and not control and INPUTS[k:k + 1] and INPUTS[k] in WRITTEN
            axes.add_patch(module("matplotlib.patches", "matplotlib").PathPatch(
                curve, fill=False, edgecolor=_WRITTEN if written else _EDGE, linewidth=1.5 if written else 1.1,
                linestyle=(0, (4, 3)) if control else "solid"))


def _draw_box(axes: Any, node: Node, box: Box) -> None:
    axes.add_patch(module("matplotlib.patches", "matplotlib").FancyBboxPatch(
        (box.left, box.top), _WIDTH, box.height, boxstyle="round,pad=0,rounding_size=0.08",
        facecolor=_FILLS.get(node.type, "white"), edgecolor=_SOFT, linewidth=0.9))
    left = box.left + 0.12
    for line, (text, size, color, weight) in enumerate(_lines(node)):
        axes.text(left, box.top + (line + 0.9) * _LINE, text, size=size, color=color, weight=weight, va="center",
                  parse_math=False)


def _lines(node: Node) -> Iterable[tuple[str, float, str, str]]:
    """Text, size, colour and weight of the lines in a box: name; type and tensor; an SGD node's inputs."""
    outputs = [describe(desc, node.name) for desc in node.op.output_desc]
    tensor = f"  {outputs[0].dtype} {shown(outputs[0].shape)}" if outputs and outputs[0].dtype != "undefined" else ""
    yield _cut(node.name, 30), 11, _INK, "bold"
    yield _cut(f"{node.type}{tensor}", 42), 9, _SOFT, "normal"
    if node.type == "SGD":
        for name in INPUTS:
            yield name, 9, _WRITTEN if name in WRITTEN else _INK, "normal"


def _cut(text: str, length: int) -> str:
    """`text` on one line, of at most `length` characters that can be printed."""
    clean = "".join(letter if letter.isprintable() else "?" for letter in text)
    return clean if len(clean) <= length else clean[:length - 1] + "…"
