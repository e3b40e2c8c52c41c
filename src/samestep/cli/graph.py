"""`samestep graph`: a group whose commands are one module each, imported when needed."""

from __future__ import annotations

import importlib

import click

# name of the command: its module in this package, and the click command there
COMMANDS = {
    "lint": ("graph_lint", "lint"),
    "show": ("graph_show", "show"),
    "plan": ("graph_plan", "plan"),
    "dag": ("graph_dag", "dag"),
}


class Commands(click.Group):
    """The commands of `COMMANDS`, each imported when it is needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported now; None if there is none of that name."""
        if cmd_name not in COMMANDS:
            return None
        module, name = COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(f"samestep.cli.{module}"), name)
        return command


@click.group(cls=Commands)
def graph() -> None:
    """Graphs that hold the operator: GE `.air` files, and the kernel behind a node."""
