"""`samestep compare`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from samestep.cli.refused import Refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from samestep.verify.compare.comparison import Comparison
    from samestep.verify.observation import Observation


def shape_of(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    """Lengths of axes, joined by commas or x."""
    if value is None:
        return None
    parts = value.replace("x", ",").split(",")
    if not all(part.strip().isdecimal() and len(part) < 15 and int(part) > 0 for part in parts):
        raise click.BadParameter(f"{value!r} is no shape; accepted: lengths such as 33,2 or 33x2")
    return tuple(map(int, parts))


def about_dump(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say what a dump does not say itself; they arrive under the names of `dumps.Given`."""
    for option in reversed((
        click.option("--rule", type=click.Choice(["cann", "torch"]), help="Rule of the kernel.  [default: cann]"),
        click.option("--dtype", type=click.Choice(["float32", "float16", "bfloat16", "float64"]),
                     help="What raw words are (.bin, bfloat16 in .npy)."),
        click.option("--shape", metavar="33,2", callback=shape_of, help="Shape of the tensors in .bin files."),
        click.option("--lr", "learning_rate", type=float, help="Learning rate."),
        click.option("--momentum", type=float, help="Momentum."),
        click.option("--dampening", type=float, help="Dampening.  [default: 0]"),
        click.option("--weight-decay", type=float, help="Weight decay.  [default: 0]"),
        click.option("--nesterov/--no-nesterov", default=None, help="Nesterov.  [default: no]"),
        click.option("--maximize/--no-maximize", default=None, help="Rule torch's maximize.  [default: no]"),
    )):
        command = option(command)
    return command


@click.command(short_help="Judge a kernel by its recorded inputs and outputs.")
@click.argument("dump", type=click.Path(path_type=Path))
@about_dump
@click.option("--order", metavar="[spec|ascend950]", help="Evaluation order of rule cann.  [default: the dump's, "
              "else spec]")
@click.option("--memory", type=click.IntRange(min=1), default=4, show_default=True, metavar="GIB",
              help="Most memory that the dump's files may take.")
@click.option("--report", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="Write a report too: .html, .json or .csv.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
def compare(dump: Path, order: str | None, memory: int, report: Path | None, as_json: bool, **told: Any) -> None:
    """Judge a kernel by tensors recorded on its device: the inputs and the outputs of one step or several.

    DUMP is a folder or a CASE.json; docs/dumps.md describes both. Every tensor is compared to the bit with what the
    rule makes of the inputs, and shown beside what the acceptance rules in use today say. Exit status: 0 if the bits
    are the same, 1 if they differ, 2 if the dump cannot be read or judged.
    """
    from samestep.verify import report as reports
    from samestep.verify.compare.comparison import verdict

    try:
        if report is not None:
            reports.check_suffix(report)
    except ValueError as error:
        raise Refused(str(error)) from None
    observations, comparisons = _compared(dump, order, memory, told)
    same = all(comparison.same for comparison in comparisons)
    sentences = [] if same else [_explained(observations, comparisons[0].order or "spec")]
    if report is not None:
        try:
            reports.write_comparison(comparisons, report, subject=str(dump), sentences=sentences)
        except OSError as error:
            raise Refused(f"cannot write {report}: {error.strerror or error}") from None
    if as_json:
        click.echo(reports.comparison_json(comparisons, str(dump), sentences), nl=False)
    else:
        _print(comparisons)
        for sentence in sentences:
            click.echo(f"{click.style('Fingerprint', bold=True)}  {sentence}\n")
        click.secho(verdict(comparisons), fg="green" if same else "red")
    if not same:
        raise SystemExit(1)


def _explained(observations: list[Observation], order: str) -> str:
    """What the kernel seems to do instead."""
    from samestep.verify import fingerprint

    return fingerprint.of_dump(observations, order=order).sentence


def _compared(dump: Path, order: str | None, memory: int, told: dict[str, Any],
              ) -> tuple[list[Observation], list[Comparison]]:
    from samestep import contract
    from samestep.verify import dumps
    from samestep.verify.compare.comparison import compare as compare_step

    try:
        if order is not None:
            contract.check_order(order)
        read = dumps.read(dump, dumps.Given(**told), memory << 30)
        if order is not None and read.observations[0].problem.rule == "torch":
            raise Refused("rule torch has no evaluation order; --order is for rule cann")
        chosen = order or read.order or "spec"
        return read.observations, [compare_step(observation, chosen, step)
                                   for step, observation in enumerate(read.observations)]
    except (dumps.DumpError, contract.ContractError) as error:
        raise Refused(str(error)) from None
    except MemoryError:
        raise Refused(f"{dump}: there is not enough memory to judge it") from None


def _print(comparisons: list[Comparison]) -> None:
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = max(console.width, 140)  # a file or a pipe has no edge to fold at
    _print_problem(console, comparisons)
    _print_bits(console, comparisons)
    shown = next((comparison for comparison in comparisons if not comparison.same), comparisons[0])
    _print_first(console, shown, len(comparisons) > 1)
    _print_updates(console, comparisons)
    _print_rules(console, shown, len(comparisons) > 1)


def _print_problem(console: Console, comparisons: list[Comparison]) -> None:
    first = comparisons[0]
    steps = f", {len(comparisons)} steps" if len(comparisons) > 1 else ""
    order = f", order {first.order}" if first.order else ""
    console.print(f"Rule {first.problem.rule}{order}, {first.problem.dtype} {list(first.problem.shape)}{steps}")
    for described in dict.fromkeys(_hyperparameters(comparison) for comparison in comparisons):
        console.print(described)
    console.print()


def _hyperparameters(comparison: Comparison) -> str:
    from samestep.verify.patterns import number_of, word_of

    problem = comparison.problem
    numbers = {"learning_rate": problem.learning_rate, "momentum": problem.momentum}
    if problem.rule == "cann":
        numbers = {name: number_of(word_of(number, problem.dtype), problem.dtype) for name, number in numbers.items()}
    numbers |= {"dampening": problem.dampening, "weight_decay": problem.weight_decay}
    flags = [name for name in ("nesterov", "maximize") if getattr(problem, name)]
    return ", ".join([*(f"{name} {number:.9g}" for name, number in numbers.items()), *flags])


def _print_bits(console: Console, comparisons: list[Comparison]) -> None:
    several = len(comparisons) > 1
    table = _table(*(["step"] if several else []), "tensor", "elements", "bits differ", "max ULP", "mean ULP",
                   "where they differ")
    for comparison in comparisons:
        steps = [str(comparison.step)] if several else []
        for tensor in comparison.tensors:
            share = f" ({100 * tensor.differing / tensor.elements:.3g} %)" if tensor.differing else ""
            table.add_row(*steps, tensor.name, f"{tensor.elements:,}", f"{tensor.differing:,}{share}",
                          f"{tensor.max_ulp:,.0f}", f"{tensor.mean_ulp:.4g}",
                          tensor.places.text if tensor.differing else "-", style="red" if tensor.differing else "")
        for name in comparison.missing:
            table.add_row(*steps, name, "not recorded")
        for name in comparison.unexpected:
            table.add_row(*steps, name, "recorded, but this step makes none", style="red")
    console.print(table)
    console.print()


def _print_first(console: Console, comparison: Comparison, several: bool) -> None:
    from samestep.verify.notation import decimal, hexadecimal

    dtype = comparison.problem.dtype
    title = f"first difference, step {comparison.step}" if several else "first difference"
    table = _table(title, "expected", "", "got", "")
    for tensor in comparison.tensors:
        if tensor.expected is not None and tensor.got is not None:
            words = (tensor.expected, tensor.got)
            table.add_row(f"{tensor.name}[{tensor.first}]",
                          *(show(word, dtype) for word in words for show in (hexadecimal, decimal)))
    if table.row_count:
        console.print(table)
        console.print()


def _print_updates(console: Console, comparisons: list[Comparison]) -> None:
    table = _table("update p_in - p_out", "moved", "mean ULP", "max ULP", "wrongly still", "backwards")
    for comparison in comparisons:
        update, step = comparison.update, f" of step {comparison.step}" if len(comparisons) > 1 else ""
        table.add_row(f"expected{step}", f"{update.expected_moved:,}", f"{update.expected_mean:.4g}",
                      f"{update.expected_max:,.0f}", "-", "-")
        table.add_row(f"got{step}", f"{update.got_moved:,}", f"{update.got_mean:.4g}", f"{update.got_max:,.0f}",
                      f"{update.still:,}", f"{update.backwards:,}",
                      style="red" if update.still or update.backwards else "")
    console.print(table)
    console.print()


def _print_rules(console: Console, comparison: Comparison, several: bool) -> None:
    title = f"today's rules, step {comparison.step}" if several else "today's rules"
    table = _table(title, "passes if", *(tensor.name for tensor in comparison.tensors))
    for row in zip(*(tensor.metrics for tensor in comparison.tensors), strict=True):
        cells = [f"{'pass' if metric.passed else 'FAIL'}  {metric.value:.4g}" for metric in row]
        table.add_row(row[0].name, row[0].limit, *cells)
    console.print(table)
    console.print()


def _table(*columns: str) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for k, column in enumerate(columns):
        table.add_column(column, no_wrap=k < len(columns) - 1, overflow="fold")
    return table
