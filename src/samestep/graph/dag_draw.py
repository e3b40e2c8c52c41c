"""The picture of a kernel's data flow."""

from __future__ import annotations

from os import PathLike
from typing import Any

from samestep.graph.dag import Dag, Node
from samestep.graph.extra import module
from samestep.graph.layered import layout

_INK, _SOFT, _EDGE = "#1f2933", "#52606d", "#7b8794"
_FILLS = {"read": "#e7f5ff", "scalar": "#f1f3f5", "step": "white", "mask": "#fff9db", "write": "#ffe8cc"}
_WORDS = {"read": "tensor read", "scalar": "scalar", "step": "one rounding", "mask": "mask", "write": "tensor written"}
_WIDTH, _HEIGHT, _ROW, _TOP, _MARGIN = 2.6, 0.58, 1.02, 1.35, 0.45  # inches


def draw(graph: Dag, path: str | PathLike[str]) -> None:
    """Draw the data flow from top to bottom and write it to `path`, a name that ends in .svg, .png or .pdf."""
    found = layout([node.name for node in graph.nodes], graph.edges, apart=_WIDTH + 0.25, edge_apart=0.4)
    places = {name: (_MARGIN + _WIDTH / 2 + x, _TOP + _HEIGHT / 2 + row * _ROW)
              for name, (x, row) in found.places.items()}
    points = [x for route in found.routes.values() for x, _ in route]
    width = max(2 * _MARGIN + _WIDTH + max(points), 8.2)
    height = max(y for _, y in places.values()) + _HEIGHT / 2 + _MARGIN
    figure = module("matplotlib.figure", "matplotlib").Figure(figsize=(width, height), facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.axis("off")
    _draw_heading(axes, graph)
    for route in found.routes.values():
        _draw_edge(axes, [(_MARGIN + _WIDTH / 2 + x, _TOP + row * _ROW) for x, row in route])
    for node in graph.nodes:
        _draw_node(axes, node, *places[node.name])
    # The same picture is the same file: no date, no random ids.
    with module("matplotlib", "matplotlib").rc_context({"svg.hashsalt": graph.variant}):
        figure.savefig(path, dpi=110, metadata={"Date": None} if str(path).lower().endswith(".svg") else None)


def _draw_heading(axes: Any, graph: Dag) -> None:
    axes.text(_MARGIN, 0.42, f"SGD {graph.variant}, order {graph.order}, {graph.dtype}", size=16, weight="bold",
              color=_INK, va="center")
    left = _MARGIN
    for kind, words in _WORDS.items():
        _draw_box(axes, left, 0.78, 0.22, 0.18, _FILLS[kind])
        axes.text(left + 0.3, 0.87, words, size=9, color=_SOFT, va="center")
        left += 0.62 + 0.082 * len(words)


def _draw_box(axes: Any, left: float, top: float, width: float, height: float, fill: str) -> None:
    patches = module("matplotlib.patches", "matplotlib")
    axes.add_patch(patches.FancyBboxPatch((left, top), width, height, boxstyle="round,pad=0,rounding_size=0.06",
                                          facecolor=fill, edgecolor=_SOFT, linewidth=0.9, zorder=2))


def _draw_node(axes: Any, node: Node, x: float, y: float) -> None:
    left, right = x - _WIDTH / 2 + 0.11, x + _WIDTH / 2 - 0.11
    _draw_box(axes, x - _WIDTH / 2, y - _HEIGHT / 2, _WIDTH, _HEIGHT, _FILLS[node.kind])
    axes.text(left, y - 0.13, node.name, size=10.5, weight="bold", color=_INK, va="center", zorder=3)
    axes.text(right, y - 0.13, node.rule, size=9, color="#b44d12", va="center", ha="right", zorder=3)
    size = 9 * min(1, 34 / len(node.operation))
    axes.text(left, y + 0.13, node.operation, size=size, color=_SOFT, va="center", zorder=3)


def _draw_edge(axes: Any, tops: list[tuple[float, float]]) -> None:
    """A curve through the layers: `tops` holds x and the top of the row, for both ends and every row between."""
    path = module("matplotlib.path", "matplotlib").Path
    points = [(tops[0][0], tops[0][1] + _HEIGHT)]
    codes = [path.MOVETO]
    for k, (x, top) in enumerate(tops[1:], 1):
        before_x, before_y = points[-1]
        bend = (top - before_y) / 2
        points += [(before_x, before_y + bend), (x, top - bend), (x, top)]
        codes += [path.CURVE4] * 3
        if k + 1 < len(tops):  # straight down past the row
            points.append((x, top + _HEIGHT))
            codes.append(path.LINETO)
    arrow = module("matplotlib.patches", "matplotlib").FancyArrowPatch
    axes.add_patch(arrow(path=path(points, codes), arrowstyle="-|>,head_width=2.6,head_length=5", color=_EDGE,
                         linewidth=1.1, zorder=1))
