"""`samestep graph`: a group of commands, one module each."""

from __future__ import annotations

import click

from samestep.cli.lazy import LazyGroup

MODULES = {"lint": "graph_lint", "show": "graph_show", "plan": "graph_plan", "dag": "graph_dag"}


@click.group(cls=LazyGroup, modules=MODULES)
def graph() -> None:
    """Graphs that hold the operator: GE `.air` files, and the kernel behind a node."""
