"""`samestep graph dag`."""

from __future__ import annotations

import click

from samestep.cli.refused import Refused


@click.command()
@click.option("--key", required=True, help="The kernel: K0 .. K5, or the number of a key as `plan` prints it.")
@click.option("--order", default="spec", show_default=True, help="Evaluation order: spec or ascend950.")
@click.option("--dtype", default="float32", show_default=True, help="float32, float16 or bfloat16.")
@click.option("-o", "--out", type=click.Path(dir_okay=False),
              help="Write a file instead of printing: .svg, .png, .pdf, .dot, .json or .txt.")
def dag(key: str, order: str, dtype: str, out: str | None) -> None:
    """Show the data flow of a kernel: each value, how it is made, and the rule it keeps."""
    from samestep.graph import dag as flow
    from samestep.graph.extra import MissingExtraError
    from samestep.tiling import decode

    try:
        graph = flow.dag(decode(int(key)) if key.isdecimal() else key.upper(), order, dtype)
        if out is None:
            click.echo(flow.text(graph), nl=False)
        else:
            flow.write(graph, out)
            click.echo(f"wrote {out}: {len(graph.nodes)} values of {graph.variant}, order {order}, {dtype}")
    except OSError as error:
        raise Refused(f"cannot write {out}: {error.strerror or error}") from None
    except (ValueError, MissingExtraError) as error:  # a ContractError is a ValueError
        raise Refused(str(error)) from None
