"""The demo's picture: the learning curves, and some test digits, the misread ones first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from samestep.demo_network import LAYERS, TRAINING_IMAGES

if TYPE_CHECKING:
    from samestep.demo import Options, Result
    from samestep.demo_network import Digits

_INK, _SOFT, _GRID = "#1f2933", "#52606d", "#e4e7eb"
_LOSS, _ACCURACY, _WRONG = "#b44d12", "#1864ab", "#c92a2a"
_LEFT = 0.062
_CELLS = 3  # digits a row and a column


def draw(result: Result, digits: Digits, options: Options) -> None:
    """Draw the picture of a finished demo, 1760 x 784 pixels, and write it to `result.picture`."""
    figure = Figure(figsize=(11, 4.9), dpi=160, facecolor="white")
    grid = figure.add_gridspec(1, 3, left=_LEFT, right=0.982, top=0.7, bottom=0.125, wspace=0.56,
                               width_ratios=(1, 1, 0.9))
    _draw_heading(figure, result, options)
    _draw_loss(figure.add_subplot(grid[0]), result.training.losses)
    _draw_accuracy(figure.add_subplot(grid[1]), result.training.accuracies)
    _draw_digits(figure, grid[2], digits, result.training.predictions)
    figure.savefig(result.picture)


def _draw_heading(figure: Figure, result: Result, options: Options) -> None:
    tested = len(result.training.predictions)
    lines = (
        f"{_recipe(options)}, {options.epochs} epoch{'s' * (options.epochs > 1)} of {TRAINING_IMAGES:,} digits",
        f"{'-'.join(map(str, LAYERS))} network, {result.element_updates:,} element updates; "
        f"{result.replay.bits_differing:,} of {result.replay.bits:,} replayed bits differ",
    )
    figure.text(_LEFT, 0.922, f"{TRAINING_IMAGES + tested:,} handwritten digits, learned in {options.dtype}", size=17,
                weight="bold", color=_INK)
    figure.text(_LEFT, 0.867, lines[0], size=11, color=_SOFT)
    figure.text(_LEFT, 0.815, lines[1], size=11, color=_SOFT if result.same else _WRONG)


def _recipe(options: Options) -> str:
    terms = [f"learning rate {options.learning_rate:g}", f"momentum {options.momentum:g}"]
    terms += [f"dampening {options.dampening:g}"] if options.dampening else []
    terms += [f"weight decay {options.weight_decay:g}"] if options.weight_decay else []
    terms += ["Nesterov"] if options.nesterov else []
    return ", ".join(terms)


def _draw_curve(axes: Any, title: str, values: Sequence[float], color: str, label: str) -> None:
    """Draw one value per epoch, the last one written beside its point."""
    epochs = len(values)
    axes.plot(range(1, epochs + 1), values, color=color, linewidth=2.2, solid_capstyle="round", clip_on=False)
    if math.isfinite(values[-1]):
        axes.plot([epochs], values[-1:], "o", color=color, markersize=6.5, clip_on=False)
        axes.annotate(label, (epochs, values[-1]), (9, 0), textcoords="offset points", va="center", size=12.5,
                      weight="bold", color=color, annotation_clip=False)
    axes.set_title(title, loc="left", size=13, color=_INK, pad=11)
    axes.set_xlabel("epoch", size=11, color=_SOFT)
    axes.set_xlim((1, epochs) if epochs > 1 else (0.5, 1))
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))
    axes.tick_params(which="both", length=0, labelsize=11, labelcolor=_SOFT)
    axes.grid(True, color=_GRID, linewidth=0.9)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(_SOFT)


def _draw_loss(axes: Any, losses: Sequence[float]) -> None:
    shown = [loss for loss in losses if math.isfinite(loss)]
    _draw_curve(axes, "Training loss", losses, _LOSS, f"{losses[-1]:.2g}")
    if not shown:
        axes.text(0.5, 0.5, "no finite loss: diverged", transform=axes.transAxes, ha="center", size=12, color=_WRONG)
        axes.set_yticks([])
    elif min(shown) > 0:
        low, high = min(shown) / 1.6, max(shown) * 1.2
        axes.set_yscale("log")
        axes.set_ylim(low, high)
        axes.yaxis.set_major_locator(LogLocator(subs=(1,) if high > 50 * low else (1, 2, 5)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, position: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())


def _draw_accuracy(axes: Any, accuracies: Sequence[float]) -> None:
    percent = [100 * accuracy for accuracy in accuracies]
    _draw_curve(axes, "Test accuracy", percent, _ACCURACY, f"{percent[-1]:.1f} %")
    axes.set_ylim(min(90, 5 * math.floor(min(percent) / 5)), 100)
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, position: f"{value:g} %"))


def _draw_digits(figure: Figure, place: Any, digits: Digits, predictions: Any) -> None:
    right = predictions == digits.test_labels
    chosen = np.argsort(right, kind="stable")[:_CELLS**2]
    cells = place.subgridspec(_CELLS, _CELLS, hspace=0.36, wspace=0.1)
    for cell, index in enumerate(chosen):
        axes = figure.add_subplot(cells[cell // _CELLS, cell % _CELLS])
        axes.imshow(digits.test_images[index].reshape(8, 8), cmap="gray_r", vmin=0, vmax=1, aspect="auto")
        axes.set(xticks=[], yticks=[])
        for spine in axes.spines.values():
            spine.set_color(_GRID)
        true, read = digits.test_labels[index], predictions[index]
        caption, color, weight = (f"{true}", _SOFT, "normal") if true == read else (f"{true} → {read}", _WRONG, "bold")
        axes.set_xlabel(caption, size=10.5, labelpad=3, color=color, weight=weight)
        if cell == 0:
            axes.set_title(f"Misread: {np.sum(~right)} of {len(right)}", loc="left", size=13, color=_INK, pad=11)
