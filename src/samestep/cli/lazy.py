"""Groups of commands whose modules are imported when a command is run, or when help lists it."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click


class LazyGroup(click.Group):
    """A group over a table: name of the command -> its module in `samestep.cli`, which holds a command `name`.

    The table's order is that of help.
    """

    def __init__(self, *args: Any, modules: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.modules = modules

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names in the order of the table."""
        return list(self.modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported now; None if there is none of that name."""
        if cmd_name not in self.modules:
            return None
        module = importlib.import_module(f"samestep.cli.{self.modules[cmd_name]}")
        command: click.Command = getattr(module, cmd_name)
        return command
