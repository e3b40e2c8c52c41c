"""`samestep verify`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from samestep.cli.refused import Refused
from samestep.cli.verify_print import print_results

if TYPE_CHECKING:
    from samestep.verify.suite.results import Results
    from samestep.verify.suite.target import Subject


@click.command(context_settings={"show_default": True}, short_help="Judge an engine or a kernel to the bit.")
@click.option("--engine", metavar="NAME", show_default="cpu", help="Engine to judge; `samestep info` lists them.")
@click.option("--target", metavar="MODULE:FUNCTION",
              help="Python callable to judge instead; also path/to/file.py:function. docs/verify.md says how it is "
              "called.")
@click.option("--rule", type=click.Choice(["cann", "torch"]), default="cann",
              help="The operator's rules O, or rule T of torch.optim.SGD.")
@click.option("--order", type=click.Choice(["spec", "ascend950"]), default="spec",
              help="Evaluation order of rule cann.")
@click.option("--level", type=click.Choice(["quick", "full", "exhaustive"]), default="quick",
              help="quick: over 5,000 items; full: over 100,000; exhaustive: every pair of parameters and gradient in "
              "16 bits, 2^32 for each key and dtype.")
@click.option("--dtype", "dtypes", type=click.Choice(["float32", "float64", "float16", "bfloat16"]), multiple=True,
              show_default="all of the rule", help="Only this one; may be given several times.")
@click.option("--seed", type=click.IntRange(min=0), default=0, help="What the values are drawn from.")
@click.option("--refusals", is_flag=True, help="Also ask a --target to refuse what the operator refuses.")
@click.option("--key", "keys", type=click.Choice(["K0", "K1", "K2", "K3", "K4", "K5"]), multiple=True,
              show_default="all", help="exhaustive: only this key; may be given several times.")
@click.option("--limit", type=click.IntRange(1, 65536), show_default="all 65,536",
              help="exhaustive: only so many patterns of parameters for each key and dtype.")
@click.option("--resume", type=click.Path(file_okay=False, path_type=Path), default=Path("out/verify"),
              help="exhaustive: folder that keeps what is done; a run that was killed goes on from there.")
@click.option("--report", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="Write a report too: .html, .json or .csv.")
def verify(**chosen: Any) -> None:
    """Run the conformance suite on an engine or on any Python callable, and judge every bit.

    Where bits differ, the smallest input found is shown as numbers and as hex patterns, and what the target computes
    instead is named. Exit status: 0 if everything passed, 1 if an item failed, 2 if the suite could not be run.
    """
    from samestep.verify import report as reports
    from samestep.verify.suite.exhaustive import StoppedError
    from samestep.verify.suite.target import LoadError

    _check(chosen)
    is_exhaustive = chosen["level"] == "exhaustive"
    try:
        results = _exhaustive(chosen) if is_exhaustive else _suite(chosen)
    except (LoadError, StoppedError) as error:
        raise Refused(str(error)) from None
    print_results(results, asked=chosen["target"] is None or chosen["refusals"] or is_exhaustive)
    path: Path | None = chosen["report"]
    if path is not None:
        try:
            reports.write(results, path)
        except OSError as error:
            raise Refused(f"cannot write {path}: {error.strerror or error}") from None
    if results.failed:
        raise SystemExit(1)


def _check(chosen: dict[str, Any]) -> None:
    """Refuse options that do not go together, before anything runs."""
    from samestep.verify import report as reports
    from samestep.verify.suite.exhaustive import DTYPES
    from samestep.verify.suite.variants import DTYPES_OF

    if chosen["engine"] is not None and chosen["target"] is not None:
        raise Refused("--engine and --target exclude each other")
    if chosen["order"] != "spec" and chosen["rule"] != "cann":
        raise Refused("--order is a choice of rule cann; rule torch has one evaluation order")
    is_exhaustive = chosen["level"] == "exhaustive"
    if is_exhaustive and chosen["rule"] != "cann":
        raise Refused("--level exhaustive goes by the keys of rule cann; rule torch has the levels quick and full")
    if not is_exhaustive and (chosen["keys"] or chosen["limit"]):
        raise Refused("--key and --limit choose a part of --level exhaustive")
    known = DTYPES if is_exhaustive else DTYPES_OF[chosen["rule"]]
    for dtype in chosen["dtypes"]:
        if dtype not in known:
            what = "--level exhaustive" if is_exhaustive else f"rule {chosen['rule']}"
            raise Refused(f"--dtype {dtype}: {what} has {', '.join(known)}")
    if chosen["report"] is not None:
        try:
            reports.check_suffix(chosen["report"])
        except ValueError as error:
            raise Refused(str(error)) from None
        if not chosen["report"].absolute().parent.is_dir():
            raise Refused(f"cannot write {chosen['report']}: there is no folder {chosen['report'].parent}")


def _maker(chosen: dict[str, Any]) -> Callable[[], Subject]:
    """How to make what is judged, here and in other processes."""
    from samestep.verify.suite import target

    if chosen["target"] is not None:
        return functools.partial(target.load, chosen["target"])
    return functools.partial(target.of_engine, chosen["engine"] or "cpu", chosen["rule"], chosen["order"])


def _suite(chosen: dict[str, Any]) -> Results:
    from samestep.verify import suite

    subject = _maker(chosen)()
    with _bar(f"Judging {subject.name}", "items") as watch:
        return suite.run(
            subject, rule=chosen["rule"], order=chosen["order"], level=chosen["level"],
            dtypes=list(dict.fromkeys(chosen["dtypes"])) or None, seed=chosen["seed"],
            with_refusals=chosen["refusals"] or None, watch=watch)


def _exhaustive(chosen: dict[str, Any]) -> Results:
    from samestep.verify.suite import exhaustive
    from samestep.verify.suite.variants import KEYS

    parts = [exhaustive.Part(key, dtype) for dtype in dict.fromkeys(chosen["dtypes"] or exhaustive.DTYPES)
             for key in dict.fromkeys(chosen["keys"] or KEYS)]
    plan = exhaustive.Run(_maker(chosen), chosen["order"], chosen["seed"], chosen["resume"],
                          chosen["limit"] or exhaustive.PATTERNS)
    try:
        with _bar("Judging every pair", "patterns of parameters") as watch:
            return exhaustive.run(plan, parts, watch=watch)
    except OSError as error:
        raise Refused(f"cannot use {error.filename or chosen['resume']}: {error.strerror or error}") from None
    except KeyboardInterrupt:
        raise Refused(f"interrupted; the same command goes on from what {chosen['resume']} holds") from None


@contextmanager
def _bar(title: str, unit: str) -> Iterator[Callable[[int, int, int], None]]:
    """Progress and the time left on stderr; yield what is called with done, total and failed."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(title), BarColumn(24), TextColumn("{task.completed:,} of {task.total:,} " + unit),
               TextColumn("[red]{task.fields[failed]}"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=1, failed="")

        def watch(done: int, total: int, failed: int) -> None:
            if done % 64 == 0 or unit != "items":
                bar.update(task, total=total, completed=done, failed=f"{failed:,} failed" if failed else "")

        yield watch
