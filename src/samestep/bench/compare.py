"""What moved between two results files beyond what either file's noise explains."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from samestep.bench.summary import CaseResult, Results, shown_ratio, shown_time, threads
from samestep.verify.notation import visible

if TYPE_CHECKING:
    from rich.console import Console

ROWS = 40  # of figures that moved, unless all are asked for
CHANCE = 180  # of so many figures whose 95 % intervals are compared, one moves by chance alone


class Interval(NamedTuple):
    """A median and what lies around it: the 95 % interval of a ratio, the 10th to 90th percentile of a time (s)."""

    median: float
    low: float
    high: float


class Change(NamedTuple):
    """One thing that is otherwise in the second file than in the first.

    ``what`` is "time", "to the limit" or "to the best peer", with the figures `before` and `after`; or "new",
    "missing" or "grade", which have none. ``about`` says more: whose grade, which best peer. Less is faster.
    """

    threads: int
    case: str
    what: str
    before: Interval | None = None
    after: Interval | None = None
    about: str = ""

    @property
    def factor(self) -> float:
        """The figure afterwards through the one before; 1 where there are none."""
        return self.after.median / self.before.median if self.before and self.after else 1.0


def compare(before: Results, after: Results) -> list[Change]:
    """What moved from `before` to `after`: figures whose intervals do not touch, by how much; then grades and cases.

    Compared are, of each case that both files have with the same thread count, samestep's time and its ratios to the
    in-run limit and to the fastest correct peer.
    """
    old, new = _by_key(before), _by_key(after)
    moved = [change for key in old if key in new for change in _moved(*key, old[key], new[key])]
    moved.sort(key=lambda change: -max(change.factor, 1 / change.factor))
    grades = [change for key in old if key in new for change in _graded(*key, old[key], new[key])]
    new_cases = [Change(*key, "new") for key in new if key not in old]
    missing = [Change(*key, "missing") for key in old if key not in new]
    return [*moved, *grades, *new_cases, *missing]


def circumstances(before: Results, after: Results) -> list[str]:
    """In sentences, what else differs: machine, versions, --quick. Such files compare less well."""
    found = []
    for name, old in _circumstances(before).items():
        new = _circumstances(after).get(name)
        if new != old:
            found.append(f"{name}: {_said(old)}, then {_said(new)}")
    found += [f"{name}: not there, then {_said(new)}" for name, new in _circumstances(after).items()
              if name not in _circumstances(before)]
    return found


def _circumstances(results: Results) -> dict[str, Any]:
    machine = results["machine"]
    return {**{name: machine[name] for name in ("processor", "cores", "system")}, "caches": machine["caches"],
            **{f"version of {name}": version for name, version in results["versions"].items()},
            "--quick": results["quick"]}


def _said(value: Any) -> str:
    if value is None:
        return "not there"
    if isinstance(value, dict):
        return ", ".join(f"{name} {part:,}" for name, part in value.items()) or "none"
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _by_key(results: Results) -> dict[tuple[int, str], CaseResult]:
    return {(run["threads"], case["name"]): case for run in results["runs"] for case in run["cases"]}


def _moved(threads: int, name: str, old: CaseResult, new: CaseResult) -> Iterator[Change]:
    figures = (_figures(old), _figures(new))
    about = {"to the best peer": new["best"] if old["best"] == new["best"] else f"{old['best']}, then {new['best']}"}
    for what in figures[0].keys() & figures[1].keys():
        before, after = figures[0][what], figures[1][what]
        if before.high < after.low or after.high < before.low:
            yield Change(threads, name, what, before, after, about.get(what, ""))


def _figures(case: CaseResult) -> dict[str, Interval]:
    time = case["times"]["samestep"]
    found = {"time": Interval(time["median"], time["p10"], time["p90"]),
             "to the best peer": Interval(case["ratio"], case["low"], case["high"])}
    limit = case["ratios"].get("limit")
    if limit is not None:
        found["to the limit"] = Interval(limit["median"], limit["low"], limit["high"])
    return found


def _graded(threads: int, name: str, old: CaseResult, new: CaseResult) -> Iterator[Change]:
    for peer in old["grades"].keys() & new["grades"].keys():
        grades = old["grades"][peer]["grade"], new["grades"][peer]["grade"]
        if grades[0] != grades[1]:
            yield Change(threads, name, "grade", about=f"{peer}: {grades[0]}, then {grades[1]}")


def show(console: Console, before: Results, after: Results, every: bool = False) -> None:
    """Print what differs around the measurement first, then what moved: the `ROWS` largest moves, or `every` one."""
    changes = compare(before, after)
    apart = circumstances(before, after)
    if apart:
        console.print("The two files were not measured under the same circumstances:", style="bold yellow")
        for sentence in apart:
            console.print(f"  {visible(sentence)}", markup=False, soft_wrap=True)
        console.print("Times then move with them; ratios, which are taken within one run, less so.\n")
    moved = [change for change in changes if change.before is not None]
    if moved:
        _print_moved(console, moved if every else moved[:ROWS])
        if len(moved) > ROWS and not every:
            console.print(f"... and {len(moved) - ROWS:,} smaller moves; --all lists them\n")
    for what, title in (("grade", "Graded otherwise"), ("new", "New cases"), ("missing", "Missing cases")):
        _print_listed(console, title, [change for change in changes if change.what == what])
    old, new = _by_key(before), _by_key(after)
    both = old.keys() & new.keys()
    figures = sum(len(_figures(old[key]).keys() & _figures(new[key]).keys()) for key in both)
    for what in ("time", "to the limit", "to the best peer"):
        factors = [change.factor for change in moved if change.what == what]
        if factors:
            less = sum(factor < 1 for factor in factors)
            console.print(f"{what}: {less:,} became less, {len(factors) - less:,} more")
    console.print(f"{len(moved):,} of {figures:,} figures of {len(both):,} cases moved beyond noise: their intervals "
                  f"do not touch. Of ratios alone about 1 in {CHANCE} does so by chance.", style="bold")


def _print_moved(console: Console, moved: list[Change]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for name in ("threads", "case", "samestep's", "before", "after", "change"):
        table.add_column(name, justify="right" if name in ("threads", "change") else "left",
                         overflow="fold" if name == "case" else "ellipsis")
    for change in moved:
        assert change.before is not None
        assert change.after is not None
        what = f"{change.what} ({change.about})" if change.about else change.what
        style = "green" if change.factor < 1 else "red"
        table.add_row(str(change.threads), Text(visible(change.case)), Text(visible(what)),
                      _shown(change.before, change.what), _shown(change.after, change.what),
                      Text(f"{100 * (change.factor - 1):+.1f} %", style=style))
    console.print(table)
    console.print()


def _shown(figure: Interval, what: str) -> str:
    write = shown_time if what == "time" else shown_ratio
    return f"{write(figure.median)} ({write(figure.low)} .. {write(figure.high)})"


def _print_listed(console: Console, title: str, changes: list[Change]) -> None:
    if changes:
        console.print(f"{title}: {len(changes):,}", style="bold")
        for change in changes:
            about = f"; {change.about}" if change.about else ""
            text = visible(f"{change.case}, {threads(change.threads)}{about}")
            console.print(f"  {text}", markup=False, soft_wrap=True)
        console.print()
