"""What `samestep verify` prints: a table by rule and dtype, the first failures, what the target does instead."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import click

from samestep.verify.titles import TITLES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from samestep.verify.observation import Problem
    from samestep.verify.patterns import Words
    from samestep.verify.suite.judge import Found
    from samestep.verify.suite.results import Check, Failure, Results

SHOWN = 5  # failures in full
ELEMENTS = 4  # of an input


def print_results(results: Results, asked: bool) -> None:
    """The whole of it, on stdout; `asked` says whether refusals were asked for."""
    _print_table(results, asked)
    failed = results.failed
    shown = _first(failed)
    for check in shown:
        _print_failure(check, results)
    if len(failed) > len(shown):
        click.echo(f"... and {len(failed) - len(shown):,} more failed; --report FILE.html lists them\n")
    for dtype, sentence in results.sentences.items():
        click.echo(f"{click.style(f'Fingerprint, {dtype}:', bold=True)} {sentence}\n")
    elements = sum(check.elements for check in results.checks)
    counts = f"{len(results.checks):,} items, {elements:,} elements, {results.seconds:.1f} s"
    if failed:
        click.secho(f"{results.subject} FAILS {len(failed):,} of {counts}", fg="red", bold=True)
    else:
        click.secho(f"{results.subject} passes: {counts}", fg="green", bold=True)


def _print_table(results: Results, asked: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    order = f", order {results.order}" if results.rule == "cann" else ""
    about = f"rule {results.rule}{order}, level {results.level}, seed {results.seed}"
    click.secho(f"{results.subject}: {about}\n", bold=True)
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column("rule")
    table.add_column("dtype")
    for name in ("items", "passed", "failed", "elements", "max ULP"):
        table.add_column(name, justify="right")
    for rule, dtype, checks in _groups(results.checks):
        bad = sum(not check.passed for check in checks)
        worst, elements = max(check.ulps for check in checks), sum(check.elements for check in checks)
        style = "red" if bad else "green"
        table.add_row(f"{rule} {TITLES.get(rule, '')}", dtype, f"{len(checks):,}", f"[{style}]{len(checks) - bad:,}",
                      f"[{style}]{bad:,}", *((f"{elements:,}", _ulps(worst)) if elements else ("", "")))
    console = Console(highlight=False)
    console.print(table)
    if not asked:
        console.print("Refusals (dtypes, shapes, layout, ...) were not asked for; --refusals does.")
    console.print()


def _groups(checks: Sequence[Check]) -> list[tuple[str, str, list[Check]]]:
    """The checks by rule and dtype, in the order of the rules' numbers."""
    found: dict[tuple[str, str], list[Check]] = {}
    for check in checks:
        found.setdefault((check.rule, check.dtype), []).append(check)
    rules = list(TITLES)
    return [(*key, found[key]) for key in sorted(found, key=lambda key: rules.index(key[0]))]


def _ulps(distance: float) -> str:
    return "NaN" if math.isinf(distance) else f"{distance:,.0f}"


def _first(failed: Sequence[Check]) -> list[Check]:
    """The failures to show, each dtype in turn: the shrunk ones, of equal inputs only one; without such any."""
    shrunk = [check for check in failed if check.failure is not None and check.failure.problem is not None]
    seen: set[str] = set()
    by_dtype: dict[str, list[Check]] = {}
    for check in shrunk or failed:
        shown = by_dtype.setdefault(check.dtype, [])
        text = f"{check.dtype}: {check.message}" if check.failure is None else str(check.failure.problem)
        if text not in seen and len(shown) < SHOWN:
            seen.add(text)
            shown.append(check)
    turns = [(place, check) for checks in by_dtype.values() for place, check in enumerate(checks)]
    return [check for _, check in sorted(turns, key=lambda turn: turn[0])][:SHOWN]


def _print_failure(check: Check, results: Results) -> None:
    click.echo(f"{click.style('FAILED', fg='red', bold=True)} {click.style(check.name, bold=True)}  "
               f"rule {check.rule} {TITLES.get(check.rule, '')}")
    click.echo(f"  {check.message}")
    if check.failure is not None and check.failure.observed is not None:
        _print_smallest(check.failure, results.order)
    click.echo()


def _print_smallest(failure: Failure, order: str) -> None:
    """The shrunk input, and for each tensor what went in, what had to come and what came, around the wrong element."""
    from samestep.engine import fpenv
    from samestep.verify.suite.judge import judge

    assert failure.observed is not None
    problem = failure.observed.problem
    n = problem.parameters.size
    click.echo(f"  smallest input found: {n:,} element{'s' * (n != 1)}; {_settings(problem)}")
    with fpenv.default():
        outcome = judge(failure.observed, order)
        judged = {found.tensor: found for found in outcome} if isinstance(outcome, list) else {}
        start = max(0, min(failure.position - ELEMENTS // 2, n - ELEMENTS))
        click.echo(f"    {'':<20}{'in':<28}{'expected':<28}got")
        state = "accum" if problem.rule == "cann" else "momentum_buffer"
        given = {"parameters": problem.parameters, "gradient": problem.gradient, state: problem.accum,
                 "stat": problem.stat}
        for name, words in given.items():
            for place in range(start, min(n, start + ELEMENTS)):
                _print_element(name + f"[{place}]" * (n > 1), words, judged.get(name), place, problem.dtype)


def _print_element(title: str, words: Words | None, found: Found | None, place: int, dtype: str) -> None:
    """One line: the element of one tensor before, as it should be, and as it is; nothing where no tensor is."""
    from samestep.verify.notation import decimal, hexadecimal

    def shown(column: Words | None) -> str:
        if column is None:
            return "-"
        word = int(column[place])
        return f"{hexadecimal(word, dtype)} ({decimal(word, dtype)})"

    if words is None and found is None:
        return
    line = f"    {title:<20}{shown(words):<28}"
    if found is None:
        click.echo(line.rstrip())
    else:
        wrong = found.wrong is not None and bool(found.wrong[place])
        click.echo(f"{line}{shown(found.expected):<28}{click.style(shown(found.got), fg='red' if wrong else 'green')}")


def _settings(problem: Problem) -> str:
    names = ["learning_rate", "momentum", "dampening", "weight_decay"]
    shown = [f"{name}={getattr(problem, name)!r}" for name in names]
    flags = [name for name in ("nesterov", "maximize") if getattr(problem, name)]
    return ", ".join([problem.dtype, *shown, *flags])
