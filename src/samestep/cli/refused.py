"""How a command ends that could not do what was asked."""

from __future__ import annotations

import click


class Refused(click.ClickException):
    """What was asked for cannot be done; nothing is wrong with the program. Exit status 2."""

    exit_code = 2
