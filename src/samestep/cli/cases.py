"""`samestep cases`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from samestep.cli.refused import Refused

NEXT = {
    "npz": "each .npz holds the inputs, the attributes and golden_parameters, golden_accum, golden_stat",
    "bin": "put your kernel's outputs into CASE/outputs/, named as in CASE.json, then: samestep compare CASE",
    "json": "cases.json holds everything; tensors are hex words",
    "ttk": "run the kit on sgd_cases.csv with the plugin sgd_golden.py, from this folder",
}


@click.command(context_settings={"show_default": True})
@click.option("--format", "form", type=click.Choice(list(NEXT)), required=True, help="What to write.")
@click.option("-o", "--out", type=click.Path(file_okay=False, path_type=Path), required=True,
              help="New or empty folder.")
@click.option("--rule", type=click.Choice(["cann", "torch"]), default="cann",
              help="The operator's, or the optimizer's.")
@click.option("--order", type=click.Choice(["spec", "ascend950"]), default="spec",
              help="Evaluation order of rule cann.")
@click.option("--dtype", "dtypes", type=click.Choice(["float32", "float16", "bfloat16", "float64"]), multiple=True,
              show_default="all of the rule", help="Only this one; may be given several times.")
@click.option("--level", type=click.Choice(["quick", "full"]), default="quick", help="The suite's level.")
@click.option("--count", type=click.IntRange(min=1), show_default="all",
              help="At most so many, spread over dtypes and families.")
@click.option("--max-elements", type=click.IntRange(min=1), show_default="no limit",
              help="Leave out cases with larger tensors.")
@click.option("--seed", type=click.IntRange(min=0), default=0, help="What the values are drawn from.")
def cases(
    form: str, out: Path, rule: str, order: str, dtypes: tuple[str, ...], level: str, count: int | None,
    max_elements: int | None, seed: int,
) -> None:
    """Write the suite's cases with golden outputs, for use on a device or in another language.

    The same options write the same bytes; manifest.json holds their hashes. Exit status: 0, or 2 if the options are
    refused or the folder cannot be written.
    """
    from samestep.verify import export
    from samestep.verify.suite.variants import DTYPES_OF

    for dtype in dtypes:
        if dtype not in DTYPES_OF[rule]:
            raise Refused(f"--dtype {dtype}: rule {rule} has {', '.join(DTYPES_OF[rule])}")
    choice = export.Choice(rule, order, level, tuple(dict.fromkeys(dtypes)), seed, count, max_elements)
    try:
        with _bar() as watch:
            manifest = export.write(form, out, choice, watch)
    except export.ExportError as error:
        raise Refused(str(error)) from None
    except OSError as error:
        raise Refused(f"cannot write {error.filename or out}: {error.strerror or error}") from None
    click.echo(f"{manifest['cases']:,} cases, {len(manifest['sha256']):,} files, {manifest['bytes'] / 1e6:,.1f} MB in "
               f"{out}")
    if manifest["left_out"]:
        click.echo(f"{manifest['left_out']:,} cases with more than {max_elements:,} elements were left out")
    click.echo(NEXT[form])


@contextmanager
def _bar() -> Iterator[Callable[[int, int], None]]:
    """A progress bar on stderr, where that is a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("Writing cases", total=None)
        yield lambda written, total: bar.update(task, total=total, completed=written)
