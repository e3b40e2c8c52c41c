"""`samestep graph show`."""

from __future__ import annotations

from pathlib import Path

import click

from samestep.cli.graph_lint import read
from samestep.cli.refused import Refused


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), show_default="FILE with the suffix .svg",
              help="Picture to write: .svg, .png or .pdf.")
@click.option("--text", is_flag=True, help="Print the graph in protobuf's text format instead of drawing it.")
def show(file: Path, out: Path | None, text: bool) -> None:
    """Draw the graph in a GE .air FILE.

    Layers go from left to right; what is updated in place is coloured, control edges are dashed. Exit status: 2 if FILE
    cannot be read as a graph, or the picture cannot be made.
    """
    from samestep.graph import ge
    from samestep.graph.extra import MissingExtraError

    if text and out:
        raise click.UsageError("--text and --out exclude each other")
    graph = read(file)
    if text:
        click.echo(ge.dump(graph), nl=False)
        return
    picture = out or file.with_suffix(".svg")
    try:
        ge.draw(graph, picture)
    except (ge.AirError, MissingExtraError) as error:
        raise Refused(str(error)) from None
    except OSError as error:
        raise Refused(f"cannot write {picture}: {error.strerror or error}") from None
    click.echo(str(picture))
