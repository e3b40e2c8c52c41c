"""The command line: it parses, calls and prints. What a command needs is imported inside it, so that help is quick."""

from __future__ import annotations

import click

import samestep


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(samestep.__version__, prog_name="samestep")
def main() -> None:
    """SGD with momentum, the same bits on every device; and where bits differ, it says why."""
