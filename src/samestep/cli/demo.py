"""`samestep demo`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from samestep.cli.refused import Refused

if TYPE_CHECKING:
    from samestep.demo import Options, Progress, Result


@click.command(context_settings={"show_default": True})
@click.option("--dtype", type=click.Choice(["float32", "float16", "bfloat16"]), default="float32",
              help="What parameters, gradient, accum and stat are stored in.")
@click.option("--lr", "learning_rate", type=float, default=0.1, help="Learning rate.")
@click.option("--momentum", type=float, default=0.9, help="Momentum.")
@click.option("--dampening", type=float, default=0.0, help="Dampening; 0 with --nesterov.")
@click.option("--weight-decay", type=float, default=0.0001, help="Weight decay (L2), 0 or more.")
@click.option("--nesterov/--no-nesterov", default=False, help="Look ahead along accum.")
@click.option("--order", default="spec", metavar="[spec|ascend950]", help="Evaluation order; differs in rounding only.")
@click.option("--engine", metavar="NAME", show_default="cpu", help="Engine that trains; `samestep info` lists them.")
@click.option("--epochs", type=click.IntRange(min=1), default=30, help="Passes over the 1,437 training digits.")
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Split, initial weights and minibatches.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=Path("out/demo"),
              help="Folder for the picture and the figures.")
def demo(**chosen: Any) -> None:
    """Train a classifier of handwritten digits, then prove its updates bit by bit.

    Every update of the network is one call of samestep.sgd_batch_. Recorded steps are then done again by the
    reference engine and by exact rational arithmetic. Exit status: 0 if no bit differs, 1 if one does, 2 if the
    options are refused or something is not installed.
    """
    from samestep.contract import ContractError
    from samestep.demo import MissingExtraError, Options, run

    options = Options(**chosen)
    try:
        with _training_bar(options) as watch:
            result = run(options, watch)
    except (ContractError, MissingExtraError) as error:
        raise Refused(str(error)) from None
    except OSError as error:
        raise Refused(f"cannot use {error.filename or options.out}: {error.strerror or error}") from None
    _print_result(result, options)
    if not result.same:
        raise click.ClickException("the replayed steps are NOT the same as those of training")


@contextmanager
def _training_bar(options: Options) -> Iterator[Callable[[Progress], None]]:
    """Show a progress bar on stderr from the first step on; yield what `demo.run` calls after every step.

    It is drawn by the training thread: a thread of its own would take the interpreter from the updates that are timed.
    """
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    bar = Bar(TextColumn("Training"), BarColumn(24), TextColumn("{task.description}"), console=Console(stderr=True),
              auto_refresh=False)
    task = bar.add_task("", total=None)
    drawn = 0.0

    def watch(progress: Progress) -> None:
        nonlocal drawn
        if not drawn:
            bar.start()
        if time.perf_counter() - drawn > 0.1 or progress.step == progress.steps:
            drawn = time.perf_counter()
            accuracy = "" if progress.accuracy is None else f"  test accuracy {100 * progress.accuracy:.1f} %"
            bar.update(task, total=progress.steps, completed=progress.step, refresh=True, description=(
                f"epoch {progress.epoch}/{options.epochs}  loss {progress.loss:.3g}{accuracy}"))

    try:
        yield watch
    finally:
        if drawn:
            bar.stop()


def _print_result(result: Result, options: Options) -> None:
    training, replay = result.training, result.replay
    tested = len(training.predictions)
    right = round(result.accuracy * tested)
    _print_line("Test accuracy", f"{100 * result.accuracy:.1f} % ({right} of {tested} digits) in {options.dtype}")
    _print_line("Element updates", f"{result.element_updates:,} ({training.steps:,} calls of sgd_batch_, "
                f"{training.parameters:,} parameters each)")
    _print_line("Speed", f"{result.nanoseconds_per_element:.2f} ns per element inside sgd_batch_")
    _print_line("", f"(the first call, {training.seconds_in_first_call:.2f} s with any compiling, is not counted)")
    _print_line("Replay", f"{replay.bits_differing:,} of {replay.bits:,} bits differ ({replay.steps} steps, engine "
                f"{replay.engine})", replay.bits_differing == 0)
    _print_line("Exact oracle", f"{replay.elements_differing:,} of {replay.elements:,} elements differ (rational "
                "arithmetic)", replay.elements_differing == 0)
    _print_line("Parameters", f"sha256 {training.fingerprint[:16]}")
    _print_line("Picture", str(result.picture))
    _print_line("Figures", str(result.figures))


def _print_line(label: str, text: str, good: bool | None = None) -> None:
    color = None if good is None else "green" if good else "red"
    click.echo(f"{click.style(f'{label:<17}', bold=True)}{click.style(text, fg=color)}")
