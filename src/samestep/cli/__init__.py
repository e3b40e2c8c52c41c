"""The command line: it parses, calls and prints.

One module a command. What a command needs beyond click is imported inside its function, so that help is quick.
"""

from __future__ import annotations

import click

import samestep
from samestep.cli.lazy import LazyGroup

COMMANDS = ("demo", "verify", "fingerprint", "compare", "cases", "graph", "lower", "bench", "info")  # and their modules


@click.group(cls=LazyGroup, modules=dict(zip(COMMANDS, COMMANDS, strict=True)),
             context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(samestep.__version__, prog_name="samestep")
def main() -> None:
    """SGD with momentum, the same bits on every device; and where bits differ, it says why."""
