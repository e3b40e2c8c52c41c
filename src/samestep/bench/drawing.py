"""How all pictures look: colours that colour-blind people tell apart, axes, and how sizes and times are written."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from samestep.bench.summary import shown_time

INK, SOFT, GRID, PAPER = "#1f2933", "#52606d", "#e4e7eb", "#ffffff"  # the page gives these its own, light or dark
OURS, THEIRS, DEFAULT, LIMIT = "#0072b2", "#d55e00", "#009e73", "#7b8794"  # Okabe and Ito's palette, and a grey
VERDICTS = {"faster": OURS, "tie": LIMIT, "slower": THEIRS}
WIDTH = 10.0  # inches: at 800 pixels text of 10 points is 11 pixels high


def figure(height: float, title: str, below: str) -> Any:
    """An empty figure with its heading and a line beneath that says how to read it; `height` in inches."""
    from matplotlib.figure import Figure

    made = Figure(figsize=(WIDTH, height), facecolor=PAPER)
    made.text(0.012, 1 - 0.32 / height, title, size=15, weight="bold", color=INK, va="center")
    made.text(0.012, 1 - 0.62 / height, below, size=10.5, color=SOFT, va="center")
    return made


def panels(made: Any, rows: int, columns: int, **spaces: Any) -> list[Any]:
    """Axes in a grid, row by row; margins in inches: left, right, top, bottom."""
    height = made.get_size_inches()[1]
    margins = {"left": 0.85, "right": 0.15, "top": 1.42, "bottom": 0.6} | {
        name: spaces.pop(name) for name in ("left", "right", "top", "bottom") if name in spaces}
    grid = made.add_gridspec(rows, columns, left=margins["left"] / WIDTH, right=1 - margins["right"] / WIDTH,
                             top=1 - margins["top"] / height, bottom=margins["bottom"] / height, **spaces)
    return [made.add_subplot(grid[row, column]) for row in range(rows) for column in range(columns)]


def quiet(axes: Any, title: str, x: str = "", y: str = "") -> None:
    """No frame, a soft grid, and names for both axes with their units."""
    axes.set_facecolor(PAPER)
    axes.set_title(title, loc="left", size=11.5, color=INK, pad=8)
    axes.set_xlabel(x, size=10.5, color=SOFT)
    axes.set_ylabel(y, size=10.5, color=SOFT)
    axes.tick_params(which="both", length=0, labelsize=10, labelcolor=SOFT)
    axes.grid(True, which="major", color=GRID, linewidth=0.9)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(SOFT)


def legend(made: Any, handles: Sequence[Any], height: float) -> None:
    """One row of keys beneath the heading, so that it never covers data; `height` of the figure in inches."""
    made.legend(handles=handles, loc="center left", bbox_to_anchor=(0.0, 1 - 0.93 / height), ncols=len(handles),
                frameon=False, fontsize=10.5, labelcolor=INK, handletextpad=0.5, columnspacing=1.6, borderaxespad=0.3)


def key(label: str, color: str, **style: Any) -> Any:
    """A key of the legend: a marker, or a line where `linestyle` is given."""
    from matplotlib.lines import Line2D

    return Line2D([], [], label=label, color=color, **({"linestyle": "none", "marker": "o"} | style))


def logarithmic(axes: Any, which: str, ticks: Sequence[float], names: Sequence[str]) -> None:
    """A logarithmic axis ("x" or "y") with these ticks and no others."""
    getattr(axes, f"set_{which}scale")("log")
    axis = getattr(axes, f"{which}axis")
    axis.set_ticks(list(ticks), labels=list(names))
    axis.set_ticks([], minor=True)


def shown_bytes(size: float) -> str:
    """In the binary unit that suits: ``64 KiB``."""
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size >= 1 << power:
            return f"{size / (1 << power):.3g} {unit}"
    return f"{size:.0f} B"


def powers(low: float, high: float, base: int, most: int = 9) -> list[float]:
    """Powers of `base` from below `low` to above `high`, at most about so many, evenly spaced."""
    first, last = (math.floor(math.log(low, base) + 1e-9), math.ceil(math.log(high, base) - 1e-9))
    step = max(1, -(-(last - first) // most))
    return [float(base) ** power for power in range(first, last + step, step)]


def time_axis(axes: Any, low: float, high: float) -> None:
    """A logarithmic y axis of seconds, each tick in its unit."""
    ticks = powers(low, high, 10)
    logarithmic(axes, "y", ticks, [shown_time(tick).replace(".00", "").replace(".0", "") for tick in ticks])
    axes.set_ylim(low / 1.5, high * 1.5)
