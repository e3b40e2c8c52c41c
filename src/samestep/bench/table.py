"""The results in the terminal: groups of cases, or every case; means, ties and losses; growth and fixed costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from samestep.bench.summary import (
    CLASSES,
    DEFAULTS,
    TITLES,
    CaseResult,
    Results,
    counted,
    ended,
    growth,
    is_wrong,
    left_out,
    means,
    median,
    ratio,
    shown_cost,
    shown_ratio,
    shown_time,
    size_class,
    skipped,
    suites,
    threads,
    to_default,
    wrong_peers,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

STYLES = {"faster": "green", "tie": "yellow", "slower": "red"}


def show(console: Console, results: Results, every: bool = False) -> None:
    """Print it all: groups of cases by dtype and size, or with `every` one line a case."""
    from rich.text import Text

    for run in results["runs"]:
        for suite in suites(run["cases"]):
            cases = [case for case in run["cases"] if case["suite"] == suite]
            table = _every(cases) if every else _groups(cases)
            console.print(Text(f"{TITLES.get(suite, suite)}, {threads(run['threads'])}: samestep's time / the time of",
                               style="bold"))
            console.print(table)
            console.print()
    _print_means(console, results)
    _print_apart(console, results)
    _print_growth(console, results)
    _print_startup(console, results)
    for verdict in ("tie", "slower"):
        _print_ended(console, results, verdict)


def _table(left: Sequence[str], right: Sequence[str]) -> Table:
    """A table without lines: names to the left, figures to the right."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in left:
        table.add_column(name)
    for name in right:
        table.add_column(name, justify="right")
    return table


def _groups(cases: Sequence[CaseResult]) -> Table:
    """Medians of the ratios by dtype and size class."""
    table = _table(["dtype", "size"], ["cases", "best peer", "most", "default", "limit", "faster", "tie",
                                       "slower"])
    groups: dict[tuple[str, str], list[CaseResult]] = {}
    for case in cases:
        groups.setdefault((case["dtype"], size_class(case)), []).append(case)
    for dtype in dict.fromkeys(case["dtype"] for case in cases):
        for size in CLASSES:
            group = groups.get((dtype, size), [])
            if group:
                counts = [sum(case["verdict"] == verdict for case in group) for verdict in STYLES]
                table.add_row(
                    dtype, size, str(len(group)), shown_ratio(median(case["ratio"] for case in group)),
                    shown_ratio(max(case["ratio"] for case in group)), shown_ratio(median(map(to_default, group))),
                    shown_ratio(median(ratio(case, "limit") for case in group)),
                    *(f"[{STYLES[verdict]}]{count}" if count else "" for verdict, count in
                      zip(STYLES, counts, strict=True)))
    return table


def _every(cases: Sequence[CaseResult]) -> Table:
    """One line a case; after the figures the peers that are wrong in it."""
    from rich.text import Text

    table = _table(["case"], ["time", "best peer"])
    for name, justify in (("95 % interval", "left"), ("", "left"), ("default", "right"), ("limit", "right"),
                          ("verdict", "left"), ("wrong peers", "left")):
        table.add_column(name, justify="right" if justify == "right" else "left")
    for case in cases:
        wrong = ", ".join(peer for peer in case["grades"] if is_wrong(case, peer))
        table.add_row(
            Text(case["name"]), shown_time(case["times"]["samestep"]["median"]), shown_ratio(case["ratio"]),
            f"{shown_ratio(case['low'])} .. {shown_ratio(case['high'])}", Text(case["best"]),
            shown_ratio(to_default(case)), shown_ratio(ratio(case, "limit")),
            Text(case["verdict"], style=STYLES[case["verdict"]]), Text(wrong, style="red"))
    return table


def _print_means(console: Console, results: Results) -> None:
    table = _table(["geometric mean", ""], ["best peer", "default", "limit, large", "faster", "tie", "slower"])
    for each in means(results):
        table.add_row(TITLES.get(each.suite, each.suite), threads(each.threads), *map(shown_ratio, each[2:5]),
                      *(f"[{style}]{each.verdicts[verdict]}" if each.verdicts[verdict] else "0"
                        for verdict, style in STYLES.items()))
    console.print(table)
    console.print("less than 1: samestep is faster; best peer: the fastest whose results are not wrong;\n"
                  f"default: {' or '.join(DEFAULTS.values())}; limit: a plain loop with the same traffic,\n"
                  "large: of steps of 64 MiB and more\n",
                  style="dim", soft_wrap=True)


def _print_apart(console: Console, results: Results) -> None:
    """Peers that are wrong or were left out, and cases without a result."""
    for wrong in wrong_peers(results):
        console.print(f"{wrong.peer} is wrong in {wrong.cases:,} of {counted(wrong.of, 'case')} of the "
                      f"{TITLES.get(wrong.suite, wrong.suite)} ({', '.join(wrong.dtypes)}): timed, but never the best "
                      "peer there", style="red", markup=False, soft_wrap=True)
    for suite, peer, reason, count in left_out(results):
        console.print(f"{peer} was left out of {counted(count, 'case')} of the {TITLES.get(suite, suite)}: {reason}",
                      style="dim", markup=False, soft_wrap=True)
    for name, reason in results.get("left out", {}).items():
        console.print(f"{name} was not measured: {reason}", style="yellow", markup=False, soft_wrap=True)
    for count, name, reason in skipped(results):
        console.print(f"{name}, {threads(count)}: no result, {reason}", style="yellow", markup=False, soft_wrap=True)


def _print_growth(console: Console, results: Results) -> None:
    from rich.text import Text

    if results["scaling"]:
        table = _table(["step time grows with", ""], ["each more", "fixed", "off by"])
        for line in results["scaling"]:
            table.add_row(Text(line["kind"]), threads(line["threads"]), *growth(line))
        console.print()
        console.print(table)


def _print_startup(console: Console, results: Results) -> None:
    from rich.text import Text

    if results["startup"]:
        table = _table(["fixed costs, medians of fresh processes"], [""])
        for cost in results["startup"]:
            table.add_row(Text(cost["name"]), shown_cost(cost))
        console.print()
        console.print(table)
    console.print()


def _print_ended(console: Console, results: Results, verdict: str) -> None:
    """List the cases that ended so by name."""
    found = ended(results, verdict)
    title = counted(len(found), {"tie": "tie", "slower": "slower case"}[verdict])
    about = " (the 95 % interval holds 1)" if verdict == "tie" else ""
    console.print(f"{title}{about}", style="bold")
    for count, case in found:
        console.print(f"  {case['name']}, {threads(count)}: {shown_ratio(case['ratio'])} "
                      f"({shown_ratio(case['low'])} .. {shown_ratio(case['high'])}) of {case['best']}", markup=False,
                      soft_wrap=True, style=STYLES[verdict] if verdict == "slower" else None)
