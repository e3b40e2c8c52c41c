"""Pictures of times: bytes per second against the size of a step, and how a step grows."""

from __future__ import annotations

import math
import statistics
from typing import Any

from samestep.bench import drawing
from samestep.bench.drawing import DEFAULT, INK, LIMIT, OURS, THEIRS
from samestep.bench.summary import DEFAULTS, TITLES, CaseResult, Results, growth, suites, threads

_SERIES = (("torch's default", DEFAULT), ("fastest correct peer", THEIRS), ("samestep", OURS))  # the last one on top


def roofline(results: Results) -> Any:
    """Bytes per second against bytes of the step, a panel for each suite and thread count; None without cases."""
    runs = [run for run in results["runs"] if run["cases"]]
    if not runs:
        return None
    named = suites([case for run in runs for case in run["cases"]])
    height = 1.4 + 3.0 * len(runs)
    made = drawing.figure(height, "How near to the machine's limit a step comes",
                          "Bytes that a right step has to move, per second, against those bytes. Higher is faster.")
    panels = drawing.panels(made, len(runs), len(named), wspace=0.16, hspace=0.32)
    drawn = []
    for place, axes in enumerate(panels):
        run, suite = runs[place // len(named)], named[place % len(named)]
        cases = [case for case in run["cases"] if case["suite"] == suite]
        rates = _rates(axes, cases)
        drawn += rates
        drawing.quiet(axes, f"{TITLES.get(suite, suite)}, {threads(run['threads'])}",
                      "bytes of the step" * (place >= len(panels) - len(named)), "GB/s" * (place % len(named) == 0))
    _same_axes(panels, runs, drawn)
    keys = [drawing.key(name, color) for name, color in reversed(_SERIES)]
    keys.append(drawing.key("in-run limit", LIMIT, linestyle="--", marker="", linewidth=2))
    keys.append(drawing.key("hollow: lists of tensors", INK, markerfacecolor="none"))
    drawing.legend(made, keys, height)
    return made


def _rates(axes: Any, cases: list[CaseResult]) -> list[float]:
    """Draw all series of one panel; return the rates in GB/s."""
    single = [case for case in cases if case["tensors"] == 1]
    limit = _points(single, "limit")
    axes.plot(*_middles(limit), color=LIMIT, linestyle="--", linewidth=2, zorder=4)
    found = [y for _, y in limit]
    for which, color in (("limit", LIMIT), *_SERIES):
        alone = _points(single, which) if which != "limit" else []
        lists = _points([case for case in cases if case["tensors"] > 1], which)
        axes.plot([x for x, _ in alone], [y for _, y in alone], "o", color=color, markersize=3.5, alpha=0.35,
                  markeredgewidth=0)
        axes.plot([x for x, _ in lists], [y for _, y in lists], "o", color=color, markersize=4, alpha=0.7,
                  markerfacecolor="none", markeredgewidth=0.9)
        axes.plot(*_middles(alone), color=color, linewidth=2, zorder=3)
        found += [y for _, y in alone + lists]
    return found


def _points(cases: list[CaseResult], which: str) -> list[tuple[float, float]]:
    """Bytes and GB/s of each case in which the series `which` has a time."""
    found = []
    for case in cases:
        peer = {"torch's default": DEFAULTS.get(case["suite"], ""), "fastest correct peer": case["best"]}.get(
            which, which)
        if peer in case["times"]:
            found.append((float(case["bytes"]), case["bytes"] / case["times"][peer]["median"] / 1e9))
    return found


def _middles(points: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """A line through the points: the medians of those whose bytes share a power of four."""
    bins: dict[int, list[tuple[float, float]]] = {}
    for x, y in points:
        bins.setdefault(round(math.log(x, 4)), []).append((x, y))
    middles = [[statistics.median(column) for column in zip(*bins[number], strict=True)] for number in sorted(bins)]
    return [x for x, _ in middles], [y for _, y in middles]


def _same_axes(panels: list[Any], runs: list[dict[str, Any]], rates: list[float]) -> None:
    sizes = [case["bytes"] for run in runs for case in run["cases"]]
    x_ticks = drawing.powers(min(sizes), max(sizes), 64)
    y_ticks = drawing.powers(min(rates), max(rates), 10)
    for axes in panels:
        drawing.logarithmic(axes, "x", x_ticks, [drawing.shown_bytes(tick) for tick in x_ticks])
        drawing.logarithmic(axes, "y", y_ticks, [f"{tick:,g}" for tick in y_ticks])
        axes.set_xlim(min(sizes) / 2, max(sizes) * 2)
        axes.set_ylim(min(rates) / 2, max(rates) * 2)


def scaling(results: Results) -> Any:
    """Step time against the number of tensors and of elements, with the fitted lines; None without such data."""
    lines = [line for line in results["scaling"] if line["points"]]
    if not lines:
        return None
    kinds = list(dict.fromkeys(line["kind"] for line in lines))
    counts = sorted({line["threads"] for line in lines})
    colors = dict(zip(counts, (THEIRS, OURS, DEFAULT), strict=False))
    rows = (len(kinds) + 2) // 2  # and a place for the costs in words
    height = 1.4 + 3.2 * rows
    made = drawing.figure(height, "How a step grows",
                          "Medians with their 10th to 90th percentile; lines: a fixed cost and one for each more.")
    panels = drawing.panels(made, rows, 2, wspace=0.26, hspace=0.45)
    for axes, kind in zip(panels, kinds, strict=False):
        chosen = sorted((line for line in lines if line["kind"] == kind), key=lambda line: line["threads"])
        for place, line in enumerate(chosen):
            _growth(axes, line, colors.get(line["threads"], INK), 7 if place == 0 else 4.5)  # they may coincide
        _growth_axes(axes, kind, chosen)
    _costs(panels[len(kinds)], lines, colors)
    for axes in panels[len(kinds):]:
        axes.axis("off")
    drawing.legend(made, [drawing.key(threads(count), colors.get(count, INK)) for count in counts], height)
    return made


def _growth(axes: Any, line: dict[str, Any], color: str, size: float) -> None:
    points, fit = line["points"], line["fit"]
    x = [point[_along(line["kind"])] for point in points]
    y = [point["median"] for point in points]
    error = [[max(0.0, point["median"] - point["p10"]) for point in points],
             [max(0.0, point["p90"] - point["median"]) for point in points]]
    axes.errorbar(x, y, error, fmt="o", color=color, markersize=size, elinewidth=1.4)
    ends = math.log(min(x)), math.log(max(x))
    along = [math.exp(ends[0] + (ends[1] - ends[0]) * step / 60) for step in range(61)]
    axes.plot(along, [fit["fixed"] + fit["slope"] * each for each in along], color=color, linewidth=1.4)


def _along(kind: str) -> str:
    """The field of a point that the kind of a line counts."""
    return "tensors" if kind == "tensors" else "elements"


def _growth_axes(axes: Any, kind: str, lines: list[dict[str, Any]]) -> None:
    counts = [point[_along(kind)] for line in lines for point in line["points"]]
    times = [point[at] for line in lines for point in line["points"] for at in ("p10", "p90")]
    base = 10 if kind == "tensors" else 2
    drawing.quiet(axes, kind.capitalize(), f"number of {_along(kind)}", "time of a step")
    ticks = drawing.powers(min(counts), max(counts), base, most=6)
    names = [f"{tick:,.0f}" if base == 10 else f"2{_raised(tick)}" for tick in ticks]
    drawing.logarithmic(axes, "x", ticks, names)
    axes.set_xlim(min(counts) / 1.6, max(counts) * 1.6)
    drawing.time_axis(axes, min(times), max(times))


def _raised(power_of_two: float) -> str:
    return str(round(math.log2(power_of_two))).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))


def _costs(axes: Any, lines: list[dict[str, Any]], colors: dict[int, str]) -> None:
    """The fits in words: what one more costs, what any step costs, how far points lie off."""
    top = 1.0
    for kind in dict.fromkeys(line["kind"] for line in lines):
        axes.text(0, top, kind, size=10.5, weight="bold", color=INK, va="top", transform=axes.transAxes)
        for line in sorted((line for line in lines if line["kind"] == kind), key=lambda line: line["threads"]):
            top -= 0.085
            each, fixed, off = growth(line)
            axes.text(0, top, f"{each} + {fixed}; off by ≤ {off}", size=10, va="top",
                      color=colors.get(line["threads"], INK), transform=axes.transAxes)
        top -= 0.13
