"""Places for the nodes of a small directed graph: layers from top to bottom, edges that bend around what they pass."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

Edge = tuple[str, str]
_SWEEPS = 60
_STRAIGHT = 8


class Layout(NamedTuple):
    """``places`` holds for each node its x and its layer, counted from the top; ``routes`` the points of each edge."""

    places: dict[str, tuple[float, int]]
    routes: dict[Edge, list[tuple[float, int]]]


def layout(names: Sequence[str], edges: Sequence[Edge], *, apart: float, edge_apart: float) -> Layout:
    """Lay out `names`, each after those that edges come from; `apart` is the least distance of nodes in a layer.

    A node stands one layer below the lowest node it comes from, a node without any right above its users. An edge over
    several layers gets a point in each, at least `edge_apart` from its neighbours.
    """
    depth = _depths(names, edges)
    routes = {edge: _route(edge, depth) for edge in edges}
    layers: list[list[str]] = [[] for _ in range(max(depth.values()) + 1)]
    for name in names:
        layers[depth[name]].append(name)
    links: dict[str, list[str]] = {}
    for route in routes.values():
        for k, (point, below) in enumerate(itertools.pairwise(route)):
            pull = _STRAIGHT if point not in depth and below not in depth else 1  # long edges run straight down
            links.setdefault(point, []).extend([below] * pull)
            links.setdefault(below, []).extend([point] * pull)
            if k + 2 < len(route):
                layers[depth[route[0]] + k + 1].append(below)
    width = {point: apart if point in depth else edge_apart for layer in layers for point in layer}
    x = _spread(layers, links, width)
    level = {point: k for k, layer in enumerate(layers) for point in layer}
    return Layout({name: (x[name], level[name]) for name in names},
                  {edge: [(x[point], level[point]) for point in route] for edge, route in routes.items()})


def _depths(names: Sequence[str], edges: Sequence[Edge]) -> dict[str, int]:
    depth = dict.fromkeys(names, 0)
    for name in names:
        depth[name] = max((depth[start] + 1 for start, stop in edges if stop == name), default=0)
    for name in names:
        users = [depth[stop] for start, stop in edges if start == name]
        if users and not any(stop == name for _, stop in edges):
            depth[name] = min(users) - 1
    return depth


def _route(edge: Edge, depth: dict[str, int]) -> list[str]:
    """The names of an edge's ends, and of its points between them."""
    start, stop = edge
    between = [f"{start} -> {stop} @{k}" for k in range(depth[start] + 1, depth[stop])]
    return [start, *between, stop]


def _spread(layers: list[list[str]], links: dict[str, list[str]], width: dict[str, float]) -> dict[str, float]:
    """Order and place each layer by the middle of its neighbours, downwards and upwards in turn."""
    x = {point: float(k) for layer in layers for k, point in enumerate(layer)}
    level = {point: k for k, layer in enumerate(layers) for point in layer}
    for sweep in range(2 * _SWEEPS):
        down = sweep % 2 == 0
        for k, layer in enumerate(layers) if down else reversed(list(enumerate(layers))):
            wish = {}
            for point in layer:
                near = [x[other] for other in links.get(point, ()) if sweep >= _SWEEPS or (level[other] < k) == down]
                wish[point] = sum(near) / len(near) if near else x[point]
            layer.sort(key=wish.__getitem__)
            weight = {point: len(links.get(point, (0,))) for point in layer}
            x.update(_fit(layer, wish, weight, width))
    least = min(x.values())
    return {point: place - least for point, place in x.items()}


def _fit(
    layer: Sequence[str], wish: dict[str, float], weight: dict[str, int], width: dict[str, float]
) -> dict[str, float]:
    """Places near the wishes, in order and far enough apart: neighbours that collide move as one group."""
    groups: list[tuple[list[str], float]] = []  # members, and where the first one stands
    for point in layer:
        members, start = [point], wish[point]
        while groups and groups[-1][1] + sum(_gaps([*groups[-1][0], members[0]], width)) > start:
            members = groups.pop()[0] + members
            offset, total = 0.0, 0.0
            for member, gap in zip(members, [0.0, *_gaps(members, width)], strict=True):
                offset += gap
                total += weight[member] * (wish[member] - offset)
            start = total / sum(weight[member] for member in members)
        groups.append((members, start))
    places = {}
    for members, start in groups:
        place = start
        for member, gap in zip(members, [0.0, *_gaps(members, width)], strict=True):
            place += gap
            places[member] = place
    return places


def _gaps(members: Sequence[str], width: dict[str, float]) -> list[float]:
    return [(width[one] + width[other]) / 2 for one, other in itertools.pairwise(members)]
