"""The demo's picture: the learning curves, and test digits that the network misread (or read, if it misread none)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

if TYPE_CHECKING:
    from samestep.demo import Options, Result
    from samestep.demo_network import Digits

_INK, _SOFT, _GRID = "#1f2933", "#616e7c", "#e4e7eb"
_LOSS, _ACCURACY, _WRONG = "#b44d12", "#1864ab", "#c92a2a"
_DPI = 160
_SHOWN = 6  # digits, in three columns


def draw(result: Result, digits: Digits, options: Options) -> None:
    """Draw the picture of a finished demo and write it to `result.picture`, 1760 x 720 pixels."""
    figure = Figure(figsize=(11, 4.5), dpi=_DPI, facecolor="white")
    grid = figure.add_gridspec(1, 3, left=0.055, right=0.975, top=0.72, bottom=0.135, wspace=0.24,
                               width_ratios=(1, 1, 0.72))
    _draw_heading(figure, result, options)
    _draw_loss(figure.add_subplot(grid[0]), result.training.losses)
    _draw_accuracy(figure.add_subplot(grid[1]), result.training.accuracies)
    _draw_digits(figure, grid[2], digits, result.training.predictions)
    figure.savefig(result.picture)


def _draw_heading(figure: Figure, result: Result, options: Options) -> None:
    replay = result.replay
    figure.text(0.055, 0.925, f"1,797 handwritten digits, learned in {options.dtype}", size=17, weight="bold", color=_INK)
    bits = f"{replay.bits_differing:,} of {replay.bits:,} replayed bits differ"
    figure.text(0.055, 0.862, f"{result.element_updates:,} element updates, {_recipe(options)}; {bits}", size=11.5,
                color=_SOFT if result.same else _WRONG)


def _recipe(options: Options) -> str:
    terms = [f"learning rate {options.learning_rate:g}", f"momentum {options.momentum:g}"]
    terms += [f"dampening {options.dampening:g}"] if options.dampening else []
    terms += [f"weight decay {options.weight_decay:g}"] if options.weight_decay else []
    terms += ["Nesterov"] if options.nesterov else []
    return ", ".join(terms)


def _draw_axes(axes: Any, title: str, epochs: int) -> None:
    axes.set_title(title, loc="left", size=13, color=_INK, pad=10)
    axes.set_xlabel("epoch", size=11, color=_SOFT)
    axes.set_xlim(min(1, epochs - 0.5), epochs * 1.005 + 0.05)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))
    axes.tick_params(labelsize=11, labelcolor=_SOFT, color=_GRID, which="both", length=0)
    axes.grid(True, color=_GRID, linewidth=0.9)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(_SOFT)


def _draw_curve(axes: Any, values: Sequence[float], color: str, label: str, above: bool) -> None:
    """Draw the curve with its last value written beside the last point."""
    epochs = range(1, len(values) + 1)
    axes.plot(epochs, values, color=color, linewidth=2.2, solid_capstyle="round")
    axes.plot(epochs[-1:], values[-1:], "o", color=color, markersize=6.5, clip_on=False)
    if math.isfinite(values[-1]):
        axes.annotate(label, (len(values), values[-1]), (0, 12 if above else -12), textcoords="offset points",
                      ha="right", va="bottom" if above else "top", size=13, weight="bold", color=color)


def _draw_loss(axes: Any, losses: Sequence[float]) -> None:
    _draw_axes(axes, "Training loss (cross entropy)", len(losses))
    _draw_curve(axes, losses, _LOSS, f"{losses[-1]:.2g}", above=True)
    shown = [loss for loss in losses if math.isfinite(loss)]
    if not shown:
        axes.text(0.5, 0.5, "no finite loss: training diverged", transform=axes.transAxes, ha="center", color=_WRONG)
    elif min(shown) > 0:
        axes.set_yscale("log")
        axes.set_ylim(10 ** math.floor(math.log10(min(shown))), 10 ** math.ceil(math.log10(max(shown)) + 1e-9))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, position: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())


def _draw_accuracy(axes: Any, accuracies: Sequence[float]) -> None:
    _draw_axes(axes, "Test accuracy (360 digits not trained on)", len(accuracies))
    percent = [100 * accuracy for accuracy in accuracies]
    _draw_curve(axes, percent, _ACCURACY, f"{percent[-1]:.1f} %", above=False)
    axes.set_ylim(5 * math.floor(min(percent) / 5 - 0.2), 100)
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, position: f"{value:g} %"))


def _draw_digits(figure: Figure, place: Any, digits: Digits, predictions: Any) -> None:
    wrong = np.flatnonzero(predictions != digits.test_labels)
    chosen = wrong if len(wrong) else np.arange(len(predictions))
    title = f"Misread: {len(wrong)} of {len(predictions)}" if len(wrong) else f"All {len(predictions)} read rightly"
    cells = place.subgridspec(2, 3, hspace=0.42, wspace=0.12)
    for cell, index in enumerate(chosen[:_SHOWN]):
        axes = figure.add_subplot(cells[cell // 3, cell % 3])
        axes.imshow(digits.test_images[index].reshape(8, 8), cmap="gray_r", vmin=0, vmax=1)
        axes.set_xticks([])
        axes.set_yticks([])
        for spine in axes.spines.values():
            spine.set_color(_GRID)
        axes.set_xlabel(f"{digits.test_labels[index]} read as {predictions[index]}", size=11, labelpad=4, color=_INK)
        if cell == 0:
            axes.set_title(title, loc="left", size=13, color=_INK, pad=10)
