"""`samestep bench`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from samestep.cli.refused import Refused

if TYPE_CHECKING:
    from rich.console import Console

WIDTH = 150  # columns where no terminal sets a width: a line with everything about a case


def _counts(_context: click.Context, _option: click.Parameter, text: str | None) -> list[int] | None:
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() and 0 < len(part) < 6 and int(part) > 0 for part in parts):
        raise click.BadParameter(f"{text!r}; accepted: numbers above 0 with commas between, such as 1,2")
    return list(dict.fromkeys(map(int, parts)))


@click.command(context_settings={"show_default": True}, short_help="Time a step against all peers and the limit.")
@click.option("--suite", type=click.Choice(["op", "optim", "all"]), default="all",
              help="The operator, the optimizer, or both.")
@click.option("--quick", is_flag=True, help="21 of the 200 cases, and few rounds.")
@click.option("--peers", "peers", metavar="NAME", multiple=True, show_default="all that are installed",
              help="Compare with this one; may be given several times.")
@click.option("--threads", metavar="1,2", callback=_counts, show_default="1 and all processors; the latter if --quick",
              help="Numbers of threads, each in a process of its own.")
@click.option("--seconds", type=click.FloatRange(min=0.0), show_default="3; 0.25 if --quick",
              help="Rounds of each case go on for so long; there are at least nine.")
@click.option("--case", metavar="TEXT", help="Only cases whose name holds this, such as 'float32 K3'.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=Path("out/bench"),
              help="Folder for results.json, index.html and the pictures.")
@click.option("--all", "every", is_flag=True, help="Print every case, not only groups of them.")
@click.option("--compare", nargs=2, metavar="A.json B.json", type=click.Path(dir_okay=False, path_type=Path),
              help="Measure nothing; show what moved from one results.json to another beyond noise.")
def bench(compare: tuple[Path, Path] | None, every: bool, **chosen: Any) -> None:
    """Time the operator and the optimizer against everything a user could pick instead, and against the machine.

    Every peer's results are checked first: one whose results are wrong is timed and marked, and if samestep's are not
    the rule's own bits nothing is timed. Exit status: 0 if it was measured or compared, 1 if verification failed, 2 if
    it could not be run.
    """
    if compare is not None:
        _check_alone()
        _compare(*compare, every)
        return
    results = _measure(**chosen)
    from samestep.bench import page, table

    table.show(_console(), results, every)
    out: Path = chosen["out"]
    try:
        written = page.write(results, out)
    except OSError as error:
        raise Refused(f"cannot write to {out}: {error.strerror or error}") from None
    click.echo(f"\n{results['seconds']:.0f} s in all. Written:")
    for path in (out / "results.json", *written):
        click.echo(f"  {path}")


def _check_alone() -> None:
    """Refuse options of a measurement beside --compare."""
    context = click.get_current_context()
    given = [parameter.opts[0] for parameter in context.command.params if parameter.name not in ("compare", "every")
             and context.get_parameter_source(parameter.name or "") is click.core.ParameterSource.COMMANDLINE]
    if given:
        raise Refused(f"--compare measures nothing, so {given[0]} has no meaning beside it; --all has")


def _compare(before: Path, after: Path, every: bool) -> None:
    from samestep.bench import compare, reading

    try:
        files = reading.read(before), reading.read(after)
    except reading.ReadingError as error:
        raise Refused(str(error)) from None
    compare.show(_console(), *files, every)


def _measure(
    suite: str, quick: bool, peers: tuple[str, ...], threads: list[int] | None, seconds: float | None,
    case: str | None, out: Path,
) -> dict[str, Any]:
    """Run it; ends the command with status 1 where verification is red."""
    from samestep.bench import method, plots, run
    from samestep.bench.one_case import RefusedError

    suites = ("op", "optim") if suite == "all" else (suite,)
    plan = method.QUICK if quick else method.FULL
    plan = plan if seconds is None else plan._replace(seconds=seconds)
    if threads is None:
        most = len(method.usable() or ()) or 1
        threads = [most] if quick else list(dict.fromkeys((1, most)))
    try:
        plots.check()
    except plots.MissingError as error:
        click.echo(f"There will be no pictures: {error}", err=True)
    try:
        out.mkdir(parents=True, exist_ok=True)  # before the minutes that it takes, not after them
        with _bar() as watch:
            return run.run(suites, quick, list(dict.fromkeys(peers)) or None, threads, out, watch,
                           _names(suites, quick, case), plan=plan)
    except RefusedError as error:
        click.secho("Nothing is timed, since samestep's results are not right:", fg="red", bold=True, err=True)
        click.echo(f"  {error}\n`samestep verify` shows the smallest input that goes wrong.", err=True)
        raise SystemExit(1) from None
    except (ValueError, RuntimeError) as error:
        raise Refused(str(error)) from None
    except OSError as error:
        raise Refused(f"cannot write to {out}: {error.strerror or error}") from None
    except KeyboardInterrupt:
        raise Refused("interrupted; nothing was written") from None


def _names(suites: tuple[str, ...], quick: bool, text: str | None) -> list[str] | None:
    """The cases whose names hold `text`; None for all. ValueError if there are none."""
    from samestep.bench import cases

    if text is None:
        return None
    there = [case for case in (cases.quick() if quick else cases.CASES) if case.suite in suites]
    names = [case.name for case in there if text.lower() in case.name.lower()]
    if not names:
        shown = ", ".join(repr(case.name) for case in (there[0], there[len(there) // 2], there[-1]))
        raise ValueError(f"no case has {text!r} in its name; there are {len(there)}, such as {shown}")
    return names


def _console() -> Console:
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = max(WIDTH, console.width)
    return console


@contextmanager
def _bar() -> Iterator[Callable[[int, int, str], None]]:
    """Progress and the time left on stderr; yield what is called with done, total and what is being done."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(24), TextColumn("{task.completed:,} of {task.total:,} cases"), TimeRemainingColumn(),
               TextColumn("{task.fields[doing]}", markup=False))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=1, doing="")

        def watch(done: int, total: int, doing: str) -> None:
            bar.update(task, total=total, completed=done, doing=doing)

        yield watch
