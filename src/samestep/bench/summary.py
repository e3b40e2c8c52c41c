"""What the cases of a results file say together, for the table, the page and the pictures.

Every ratio is samestep's time through another's: less than 1 is faster.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

Results = dict[str, Any]  # a results file as docs/benchmark.md describes it
CaseResult = dict[str, Any]
DEFAULTS = {"op": "torch eager", "optim": "torch for-loop"}  # what a torch user who chooses nothing gets
TITLES = {"op": "operator", "optim": "optimizer"}
SIZES = ((1 << 16, "< 64 KiB"), (1 << 26, "< 64 MiB"))  # bytes of a step: mostly the call itself, caches at work
LARGE, LISTS = "≥ 64 MiB", "lists"
CLASSES = (*(name for _, name in SIZES), LARGE, LISTS)


class Means(NamedTuple):
    """Geometric means of ratios over the cases of a suite, None where there is no ratio; how the cases ended.

    That to the limit is over steps of 64 MiB and more: a small one is far from any limit of memory, and a list of small
    tensors further still.
    """

    threads: int
    suite: str
    best: float | None
    default: float | None
    limit: float | None
    verdicts: Counter[str]


class Wrong(NamedTuple):
    """A peer whose bits are wrong in `cases` of the `of` cases of a suite that it ran, all of them of `dtypes`."""

    suite: str
    peer: str
    cases: int
    of: int
    dtypes: tuple[str, ...]


def ratio(case: CaseResult, peer: str) -> float | None:
    """The median ratio to a peer, None if it did not run."""
    found = case["ratios"].get(peer)
    return None if found is None else float(found["median"])


def to_default(case: CaseResult) -> float | None:
    """The median ratio to what torch does by default."""
    return ratio(case, DEFAULTS.get(case["suite"], ""))


def is_wrong(case: CaseResult, peer: str) -> bool:
    """Whether the peer's results were graded wrong in this case."""
    return bool(case["grades"].get(peer, {}).get("grade") == "wrong")


def geometric_mean(ratios: Iterable[float | None]) -> float | None:
    """Of those that are there; None of none."""
    logarithms = [math.log(each) for each in ratios if each is not None]
    return math.exp(statistics.fmean(logarithms)) if logarithms else None


def median(ratios: Iterable[float | None]) -> float | None:
    """Of those that are there; None of none."""
    there = [each for each in ratios if each is not None]
    return statistics.median(there) if there else None


def suites(cases: Sequence[CaseResult]) -> list[str]:
    """The suites that the cases are of, the known ones first."""
    found = {case["suite"] for case in cases}
    return [*(suite for suite in TITLES if suite in found), *sorted(found - set(TITLES))]


def means(results: Results) -> Iterator[Means]:
    """For each thread count and suite."""
    for run in results["runs"]:
        for suite in suites(run["cases"]):
            cases = [case for case in run["cases"] if case["suite"] == suite]
            yield Means(run["threads"], suite, geometric_mean(case["ratio"] for case in cases),
                        geometric_mean(map(to_default, cases)),
                        geometric_mean(ratio(case, "limit") for case in cases if case["bytes"] >= SIZES[-1][0]),
                        Counter(case["verdict"] for case in cases))


def ended(results: Results, verdict: str) -> list[tuple[int, CaseResult]]:
    """The cases that ended so ("faster", "tie", "slower") with their thread counts, the largest ratio first."""
    found = [(run["threads"], case) for run in results["runs"] for case in run["cases"] if case["verdict"] == verdict]
    return sorted(found, key=lambda each: -each[1]["ratio"])


def size_class(case: CaseResult) -> str:
    """Of `CLASSES`, by the bytes of a step; lists of tensors are a class of their own."""
    if case["tensors"] > 1:
        return LISTS
    return next((name for most, name in SIZES if case["bytes"] < most), LARGE)


def wrong_peers(results: Results) -> list[Wrong]:
    """Every peer that is wrong in any case; a case counts once for all thread counts."""
    ran: dict[tuple[str, str], dict[str, CaseResult]] = {}
    for run in results["runs"]:
        for case in run["cases"]:
            for peer in case["grades"]:
                kept = ran.setdefault((case["suite"], peer), {})
                if case["name"] not in kept or is_wrong(case, peer):
                    kept[case["name"]] = case
    found = []
    for (suite, peer), cases in ran.items():
        bad = [case for case in cases.values() if is_wrong(case, peer)]
        if bad:
            found.append(Wrong(suite, peer, len(bad), len(cases), tuple(sorted({case["dtype"] for case in bad}))))
    return found


def left_out(results: Results) -> list[tuple[str, str, str, int]]:
    """Suite, peer, reason, and in how many cases the peer was left out for it, with any number of threads."""
    names: dict[tuple[str, str, str], set[str]] = {}
    for run in results["runs"]:
        for case in run["cases"]:
            for peer, reason in case.get("left out", {}).items():
                names.setdefault((case["suite"], peer, reason), set()).add(case["name"])
    return [(*key, len(cases)) for key, cases in names.items()]


def skipped(results: Results) -> list[tuple[int, str, str]]:
    """Thread count, case and reason of each case that has no result."""
    return [(run["threads"], name, reason) for run in results["runs"]
            for name, reason in run.get("skipped", {}).items()]


def counted(count: int, what: str) -> str:
    """``1 case``, ``2 cases``."""
    return f"{count:,} {what}{'s' * (count != 1)}"


def threads(count: int) -> str:
    """``1 thread``, ``2 threads``."""
    return counted(count, "thread")


def shown_cost(cost: dict[str, Any]) -> str:
    """The median of a fixed cost, whose unit is s or us; a dash if it could not be measured."""
    if cost["median"] is None:
        return "-"
    return shown_time(cost["median"] * {"s": 1, "us": 1e-6}[cost["unit"]])


def growth(line: dict[str, Any]) -> tuple[str, str, str]:
    """A fitted line: what one more costs, what any step costs, and how far the points lie off."""
    fit = line["fit"]
    slope = max(0.0, fit["slope"])
    if line["kind"] == "tensors":
        each = f"{shown_time(slope)} a tensor"
    else:
        each = f"{shown_time(slope * 2**20)} for 2²⁰ elements"
    return each, shown_time(max(0.0, fit["fixed"])), f"{100 * fit['residual']:.1f} %"


def shown_time(seconds: float) -> str:
    """Three digits and the unit that suits: ``1.24 µs``, ``203 ms``."""
    for scale, unit in ((1, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= 0.9995 * scale:
            return f"{_three(seconds / scale)} {unit}"
    return f"{_three(seconds / 1e-9)} ns"


def shown_ratio(number: float | None) -> str:
    """Two places below 10, none from 100 on; a dash for None."""
    if number is None:
        return "-"
    return f"{number:.3f}" if number < 0.0995 else f"{number:.2f}" if number < 9.995 else f"{number:,.1f}"


def _three(number: float) -> str:
    places = 2 if number < 9.995 else 1 if number < 99.95 else 0
    return f"{number:,.{places}f}"
