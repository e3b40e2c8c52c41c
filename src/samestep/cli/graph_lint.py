"""`samestep graph lint`."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from samestep.cli.refused import Refused

if TYPE_CHECKING:
    from samestep.graph.lint import Lint, Report


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def lint(file: Path, as_json: bool) -> None:
    """List the SGD nodes of a GE .air FILE and the rules they break.

    All of them: shapes, dtypes, formats, attributes and shared memory of every node, subgraphs included, each with the
    rule's id. Exit status: 0 if no rule is broken, 1 if one is, 2 if FILE cannot be read as a graph.
    """
    from samestep.graph import ge

    found = ge.lint(read(file))
    if as_json:
        click.echo(json.dumps(_facts(found), indent=2))
    else:
        _print(found)
    if not found.clean:
        raise click.exceptions.Exit(1)


def read(file: Path) -> Any:
    """The graph in `file`; `Refused` if there is none, or protobuf is not installed."""
    from samestep.graph import ge
    from samestep.graph.extra import MissingExtraError

    try:
        return ge.read(file)
    except (ge.AirError, MissingExtraError) as error:
        raise Refused(str(error)) from None
    except OSError as error:
        raise Refused(f"cannot read {file}: {error.strerror or error}") from None


def _facts(found: Lint) -> dict[str, Any]:
    nodes = [report._asdict() | {
        "inputs": [given._asdict() | {"tensor": given.tensor and given.tensor._asdict()} for given in report.inputs],
        "attributes": {name: _number(value) for name, value in report.attributes.items()},
        "findings": [finding._asdict() for finding in report.findings],
    } for report in found.reports]
    return {"clean": found.clean, "nodes": nodes, "problems": list(found.problems)}


def _number(value: Any) -> Any:
    """JSON has no NaN and no infinity."""
    return value if value is None or math.isfinite(value) else str(value)


def _print(found: Lint) -> None:
    for report in found.reports:
        _print_node(report)
    for problem in found.problems:
        click.echo(f"{_red('graph')}  {_plain(problem)}")
    broken = sum(len(report.findings) for report in found.reports) + len(found.problems)
    nodes = len(found.reports)
    click.echo(f"{nodes:,} SGD node{'s' * (nodes != 1)}, {broken:,} finding{'s' * (broken != 1)}")


def _print_node(report: Report) -> None:
    from samestep.graph.nodes import shown

    given = ", ".join(f"{name} {_value(value)}" for name, value in report.attributes.items())
    click.echo(f"{click.style(_plain(report.node), bold=True)}  in {_plain(report.graph)}, "
               f"{report.variant or 'no kernel'}: {given}")
    width = max((len(place.source) for place in report.inputs), default=0)
    for place in report.inputs:
        tensor = place.tensor
        known = f"{tensor.dtype:<9} {tensor.format:<3} {shown(tensor.shape)}" if tensor else "nothing known"
        click.echo(f"    {place.name:<14} {_plain(place.source) or '-':<{width}}  {_plain(known)}")
    for finding in report.findings:
        click.echo(f"    {_red(finding.rule)}  {_plain(finding.text)} [{finding.code}]")
    click.echo()


def _value(value: float | bool | None) -> str:
    return "refused" if value is None else str(value).lower() if isinstance(value, bool) else f"{value:g}"


def _red(text: str) -> str:
    return click.style(text, fg="red", bold=True)


def _plain(text: str) -> str:
    """Names from a file may hold anything, also what a terminal would obey."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
