"""Pictures of ratios: every case against its fastest correct peer, and against each peer."""

from __future__ import annotations

import random
from typing import Any

from samestep.bench import drawing
from samestep.bench.drawing import INK, OURS, THEIRS, VERDICTS
from samestep.bench.summary import (
    TITLES,
    CaseResult,
    Results,
    counted,
    geometric_mean,
    is_wrong,
    median,
    shown_ratio,
    suites,
    threads,
)

_MARKS = {"op": "o", "optim": "s"}
_NAMED = 3  # of the slowest cases


def ratios(results: Results) -> Any:
    """A mark with its 95 % interval for every case, sorted, a panel for each thread count; None without cases."""
    runs = [run for run in results["runs"] if run["cases"]]
    if not runs:
        return None
    height = 1.2 + 3.3 * len(runs)
    made = drawing.figure(height, "Every case against its fastest correct peer",
                          "samestep's time / the peer's, median of paired rounds with its 95 % interval; below 1 "
                          "samestep is faster.")
    ends = [case[end] for run in runs for case in run["cases"] for end in ("low", "high")]
    for axes, run in zip(drawing.panels(made, len(runs), 1, hspace=0.6, bottom=0.85), runs, strict=True):
        cases = sorted(run["cases"], key=lambda case: case["ratio"])
        _strip(axes, cases)
        faster, ties, slower = (sum(case["verdict"] == verdict for case in cases) for verdict in VERDICTS)
        mean = geometric_mean(case["ratio"] for case in cases)
        drawing.quiet(axes, f"{threads(run['threads'])}: {counted(len(cases), 'case')}, {faster} faster, "
                            f"{counted(ties, 'tie')}, {slower} slower; geometric mean {shown_ratio(mean)}",
                      y="time / peer's time")
        _ratio_axis(axes, "y", min(ends), max(ends))
        axes.set_xlim(-2, len(cases) + 1)
        axes.set_xticks([])
        axes.grid(False, axis="x")
    named = suites([case for run in runs for case in run["cases"]])
    keys = [drawing.key(verdict, color, markersize=6) for verdict, color in VERDICTS.items()]
    keys += [drawing.key(TITLES.get(suite, suite), INK, marker=_MARKS.get(suite, "^"), markersize=6,
                         markerfacecolor="none") for suite in named]
    drawing.legend(made, keys, height)
    return made


def _strip(axes: Any, cases: list[CaseResult]) -> None:
    """The marks of one panel; the slowest few are named beneath it."""
    axes.axhline(1, color=INK, linewidth=1.2, zorder=1)
    for verdict, color in VERDICTS.items():
        for suite in suites(cases):
            chosen = [(place, case) for place, case in enumerate(cases)
                      if case["verdict"] == verdict and case["suite"] == suite]
            y = [case["ratio"] for _, case in chosen]
            error = [[max(0.0, case["ratio"] - case["low"]) for _, case in chosen],
                     [max(0.0, case["high"] - case["ratio"]) for _, case in chosen]]
            axes.errorbar([place for place, _ in chosen], y, error, fmt=_MARKS.get(suite, "^"), color=color,
                          markersize=3.6, elinewidth=0.9, markeredgewidth=0)
    slowest = [*reversed(cases[-_NAMED:])]
    for line, case in enumerate(slowest):
        text = f"{case['name']}: {shown_ratio(case['ratio'])} of {case['best']}'s time"
        axes.annotate(f"the slowest, from the right: {text}" if line == 0 else text, (1, 0), (0, -8 - 15 * line),
                      xycoords="axes fraction", textcoords="offset points", ha="right", va="top", size=10,
                      color=VERDICTS[case["verdict"]], parse_math=False)


def _ratio_axis(axes: Any, which: str, low: float, high: float) -> None:
    """Logarithmic, round numbers as ticks, room around what is drawn and around 1."""
    low, high = min(low, 0.9), max(high, 1.1)
    steps = (1, 2, 5) if high < 20 * low else (1, 3)
    ticks = [step * 10.0**power for power in range(-5, 4) for step in steps]
    ticks = [tick for tick in ticks if low / 1.15 <= tick <= high * 1.25]
    drawing.logarithmic(axes, which, ticks, [f"{tick:g}" for tick in ticks])
    getattr(axes, f"set_{which}lim")(low / 1.15, high * 1.25)


def peers(results: Results) -> Any:
    """The ratios to each peer, all cases of the largest thread count, a panel for each suite; None without cases."""
    runs = [run for run in results["runs"] if run["cases"]]
    if not runs:
        return None
    run = max(runs, key=lambda run: run["threads"])
    named = suites(run["cases"])
    lists = [_by_peer([case for case in run["cases"] if case["suite"] == suite]) for suite in named]
    height = 2.1 + 0.42 * max(map(len, lists))
    made = drawing.figure(height, f"Against each peer, {threads(run['threads'])}",
                          "A mark for each case: samestep's time / the peer's; below 1 samestep is faster. "
                          "Bars: medians.")
    every = [number for peers in lists for marks in peers.values() for number, _ in marks]
    for axes, suite, found in zip(drawing.panels(made, 1, len(named), left=2.0, wspace=0.62), named, lists,
                                  strict=True):
        for place, marks in enumerate(found.values()):
            _peer(axes, place, marks)
        axes.axvline(1, color=INK, linewidth=1.2, zorder=1)
        drawing.quiet(axes, TITLES.get(suite, suite), "time / peer's time")
        axes.set_yticks(range(len(found)), labels=[_peer_name(peer, marks) for peer, marks in found.items()])
        axes.set_ylim(len(found) - 0.45, -0.55)
        axes.grid(False, axis="y")
        _ratio_axis(axes, "x", min(every), max(every))
    drawing.legend(made, [drawing.key("right, or rounded a little otherwise", OURS, markersize=6),
                          drawing.key("wrong results", THEIRS, marker="x", markersize=6, markeredgewidth=1.5)], height)
    return made


def _by_peer(cases: list[CaseResult]) -> dict[str, list[tuple[float, bool]]]:
    """For each peer its ratios and whether its results are wrong there; nearest to samestep's time first."""
    found: dict[str, list[tuple[float, bool]]] = {}
    for case in cases:
        for peer, ratio in case["ratios"].items():
            if peer != "limit":
                found.setdefault(peer, []).append((ratio["median"], is_wrong(case, peer)))
    return dict(sorted(found.items(), key=lambda each: -(median(number for number, _ in each[1]) or 0)))


def _peer_name(peer: str, marks: list[tuple[float, bool]]) -> str:
    wrong = sum(bad for _, bad in marks)
    return f"{peer}\n{wrong} of {len(marks)} wrong" if wrong else peer


def _peer(axes: Any, place: int, marks: list[tuple[float, bool]]) -> None:
    """The marks of one peer, spread a little up and down, the same way in every run, so that they show."""
    spread = random.Random(place)
    for wrong, style in ((False, {"marker": "o", "color": OURS, "alpha": 0.4, "linewidths": 0, "s": 15}),
                         (True, {"marker": "x", "color": THEIRS, "alpha": 0.8, "linewidths": 1.1, "s": 18})):
        x = [number for number, bad in marks if bad == wrong]
        axes.scatter(x, [place + spread.uniform(-0.24, 0.24) for _ in x], zorder=2, **style)
    middle = median(number for number, _ in marks)
    axes.plot([middle, middle], [place - 0.36, place + 0.36], color=INK, linewidth=2.2, zorder=3)
