"""GE graphs and their `.air` files: build, read, write, infer, run, check and draw them.

    graph = Graph("train")
    w = graph.data("parameters", (2, 30))
    ...
    graph.output(graph.sgd(w, gradient, learning_rate, accum, momentum, stat))
    infer(graph)
    write(graph, "train.air")
    run(graph, {"parameters": array, ...})

A graph is the message of its file (`Graph.model`), so whatever a file holds beyond what is known here stays in it.
Files are read and written with protobuf: ``pip install 'samestep[graph]'``.
"""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from samestep.graph import air
from samestep.graph.air import AirError
from samestep.graph.build import Graph
from samestep.graph.draw import draw
from samestep.graph.infer import infer
from samestep.graph.lint import Lint, lint
from samestep.graph.nodes import Edge, Node
from samestep.graph.run import run

__all__ = [
    "AirError", "Edge", "Graph", "Lint", "Node", "draw", "dump", "from_bytes", "infer", "lint", "read", "run",
    "to_bytes", "write",
]


def from_bytes(data: bytes) -> Graph:
    """The graph whose `.air` file holds `data`; `AirError` if that is none."""
    return Graph.of(air.parse(data))


def to_bytes(graph: Graph) -> bytes:
    """What the `.air` file of `graph` holds; the same bytes for the same graph."""
    return air.serialize(graph.model)


def read(path: str | PathLike[str]) -> Graph:
    """The graph in the `.air` file at `path`, with any operators; `AirError` if it holds none, OSError as of `open`."""
    try:
        return from_bytes(Path(path).read_bytes())
    except AirError as error:
        raise AirError(f"{path}: {error}") from None


def write(graph: Graph, path: str | PathLike[str]) -> None:
    """Write `graph` as an `.air` file, as GE's loader and ``atc --framework=1`` read it."""
    Path(path).write_bytes(to_bytes(graph))


def dump(graph: Graph) -> str:
    """`graph` in protobuf's text format, as GE dumps graphs: all of it, values of constants and unknown fields too."""
    return air.text(graph.model)
