"""The picture of a graph."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from samestep.graph import draw as drawing
from samestep.graph import extra, ge
from samestep.graph.nodes import in_order


def network(layers: int) -> ge.Graph:
    """Updates of `layers` tensors that share their scalars; each runs after the one before it."""
    graph = ge.Graph("network")
    rate, momentum = graph.data("rate", ()), graph.constant("momentum", [0.9])
    last: tuple[ge.Edge, ...] = ()
    for k in range(layers):
        w, a, s = (graph.variable(f"{name}{k}", np.ones((3, 4), np.float32)) for name in "was")
        last = (graph.sgd(w, graph.data(f"g{k}", (-1, 4)), rate, a, momentum, s, name=f"sgd{k}", after=last),)
    graph.output(*last)
    ge.infer(graph)
    return graph


def nodes(graph: ge.Graph) -> list[ge.Node]:
    return list(in_order(graph.nodes))


@pytest.mark.parametrize("suffix", [".svg", ".png", ".pdf"])
def test_a_picture_is_written(suffix, tmp_path):
    path = tmp_path / f"graph{suffix}"
    ge.draw(network(2), path)
    data = path.read_bytes()
    assert data.startswith({".svg": b"<?xml", ".png": b"\x89PNG", ".pdf": b"%PDF"}[suffix])
    assert len(data) > 5000
    ge.draw(network(2), path)
    assert path.read_bytes() == data  # the same file for the same graph


def test_the_picture_shows_every_node_and_edge(tmp_path):
    path = tmp_path / "graph.svg"
    graph = network(2)
    ge.draw(graph, path)
    tree = ET.parse(path)
    texts = ["".join(part.itertext()) for part in tree.iter("{http://www.w3.org/2000/svg}text")]
    assert {"network", *graph.nodes} <= set(texts)
    assert {"Data  float32 (?, 4)", "Data  float32 ()", "Const  float32 (1,)", "SGD  float32 (3, 4)"} <= set(texts)
    assert texts.count("gradient") == 2
    styles = [part.get("style", "") for part in tree.iter("{http://www.w3.org/2000/svg}path")]
    assert sum("stroke-dasharray" in style for style in styles) == 1  # one control edge
    assert sum("#b44d12" in style and "fill: none" in style for style in styles) == 6  # three of each update


def test_columns_follow_the_edges():
    columns = drawing.layers(nodes(network(3)))
    place = {node.name: k for k, column in enumerate(columns) for node in column}
    assert len(columns) == 5
    assert [place[f"sgd{k}"] for k in range(3)] == [1, 2, 3]
    assert [place[f"w{k}"] for k in range(3)] == [0, 1, 2]  # right before who uses them
    assert place["rate"] == 0
    assert place["Node_Output"] == 4
    first = [node.name for node in columns[0]]
    assert first.index("w0") < first.index("g0") < first.index("a0") < first.index("s0")  # in the order of the inputs


def test_boxes_do_not_overlap():
    boxes = list(drawing.place(drawing.layers(nodes(network(4)))).values())
    for k, one in enumerate(boxes):
        for other in boxes[:k]:
            assert one.left != other.left or one.top >= other.top + other.height or other.top >= one.top + one.height


def test_a_large_graph_is_drawn_as_its_updates_and_their_neighbours(tmp_path):
    graph = network(2)
    for k in range(drawing.LARGEST):
        graph.data(f"elsewhere{k}", (2,))
    chosen = {node.name for node in drawing.choose(nodes(graph))}
    assert chosen == {name for name in graph.nodes if not name.startswith("elsewhere")}
    ge.draw(graph, tmp_path / "large.svg")
    assert len(drawing.choose(nodes(network(2)))) == len(network(2).nodes)


def test_a_graph_that_is_too_large(tmp_path):
    with pytest.raises(ge.AirError, match=r"a picture holds at most 150\. `lint` lists them"):
        ge.draw(network(40), tmp_path / "large.svg")
    graph = ge.Graph("no updates")
    for k in range(drawing.LARGEST + 1):
        graph.data(f"x{k}", (2,))
    with pytest.raises(ge.AirError, match="151 nodes, 0 of them SGD nodes"):
        ge.draw(graph, tmp_path / "large.svg")


def test_strange_names_and_empty_graphs(tmp_path):
    graph = ge.Graph("$x_1$ \\alpha {")
    graph.data("a\x00b\n$", (1,))
    graph.data("long" * 40, (2,) * 40)
    graph.root.op.add(name="", type="")
    ge.draw(graph, tmp_path / "strange.svg")
    ET.parse(tmp_path / "strange.svg")
    ge.draw(ge.Graph(""), tmp_path / "empty.png")


def test_what_cannot_be_drawn(tmp_path, monkeypatch):
    with pytest.raises(ge.AirError, match=r"its name ends in \.svg, \.png, \.pdf"):
        ge.draw(network(1), tmp_path / "graph.gif")
    graph = network(1)
    graph.nodes["sgd0"].op.input[0] = "nobody:0"
    with pytest.raises(ge.AirError, match="there is no node 'nobody'"):
        ge.draw(graph, tmp_path / "graph.svg")
    with pytest.raises(FileNotFoundError):
        ge.draw(network(1), tmp_path / "none" / "graph.svg")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(extra.MissingExtraError, match=r"graphs need matplotlib.*pip install 'samestep\[graph\]'"):
        ge.draw(network(1), tmp_path / "graph.svg")
