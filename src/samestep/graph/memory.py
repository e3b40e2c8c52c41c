"""Nodes that use the same memory, of which one writes it, without an order between them."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from samestep.graph.nodes import Node

WRITTEN = ("parameters", "accum", "stat")


class Use(NamedTuple):
    """Input `input` of an SGD node is the memory from `start` up to `stop`."""

    start: int
    stop: int
    node: str
    input: str


def conflicts(sequence: Sequence[Node], uses: Sequence[Use]) -> Iterator[str]:
    """A sentence for each two uses by different nodes, of which the one that writes need not run before or after.

    Which of them ran first would decide the result. `sequence` holds all nodes, each after those it waits for.
    """
    place = {name: k for k, name in enumerate(dict.fromkeys(use.node for use in uses))}
    before: dict[str, int] = {}  # for each node, which of the users run before it, as bits
    for node in sequence:
        found = 0
        for name in {edge.node for edge in node.inputs if edge} | set(node.controls):
            found |= before[name] | (1 << place[name] if name in place else 0)
        before[node.name] = found
    spans = sorted(uses)
    starts = [use.start for use in spans]
    longest = max((use.stop - use.start for use in spans), default=0)
    for writer in spans:
        if writer.input not in WRITTEN:
            continue
        for user in spans[bisect.bisect_right(starts, writer.start - longest):bisect.bisect_left(starts, writer.stop)]:
            told = user.input in WRITTEN and user < writer  # from the other side
            if user.node == writer.node or user.stop <= writer.start or told:
                continue
            if not (before[user.node] >> place[writer.node] | before[writer.node] >> place[user.node]) & 1:
                yield (f"node {writer.node!r} writes the memory of its {writer.input} while node {user.node!r} uses it "
                       f"as {user.input}, and no edge says which runs first; add a control edge (after=)")
