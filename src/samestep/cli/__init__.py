"""The command line: it parses, calls and prints.

One module a command, imported when the command is run or help lists it. What a command needs beyond click is imported
inside its function, so that help is quick.
"""

from __future__ import annotations

import importlib

import click

import samestep

# name of the command: its module in this package, which holds a click command of that name
COMMANDS = {
    "demo": "demo",
    "verify": "verify",
    "fingerprint": "fingerprint",
    "compare": "compare",
    "cases": "cases",
    "graph": "graph",
    "lower": "lower",
    "info": "info",
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
        command: click.Command = getattr(importlib.import_module(f"samestep.cli.{COMMANDS[cmd_name]}"), cmd_name)
        return command


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(samestep.__version__, prog_name="samestep")
def main() -> None:
    """SGD with momentum, the same bits on every device; and where bits differ, it says why."""
