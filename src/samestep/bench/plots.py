"""The pictures of a results file, as SVG and PNG: roofline, ratios, peers, scaling."""

from __future__ import annotations

import importlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

from samestep.bench import plots_ratios, plots_times
from samestep.bench.summary import Results

PICTURES: dict[str, Callable[[Results], Any]] = {
    "roofline": plots_times.roofline, "ratios": plots_ratios.ratios, "peers": plots_ratios.peers,
    "scaling": plots_times.scaling,
}
TITLES = {
    "roofline": "Bytes per second against the size of the step",
    "ratios": "Every case against its fastest correct peer",
    "peers": "All peers, one by one",
    "scaling": "Step time against the number of tensors and of elements",
}


class MissingError(ImportError):
    """matplotlib is not installed; the message says how to get it."""


def write(results: Results, folder: Path) -> list[Path]:
    """Draw all pictures for which `results` has data into `folder`, as ``.svg`` and ``.png`` (1600 pixels wide).

    Returns what was written. Raises `MissingError` without matplotlib and OSError where `folder` cannot be written.
    """
    check()
    written = []
    for name, draw in PICTURES.items():
        figure = draw(results)
        if figure is not None:
            (folder / f"{name}.svg").write_text(as_svg(figure), encoding="utf-8")
            figure.savefig(folder / f"{name}.png", dpi=160)
            written += [folder / f"{name}.svg", folder / f"{name}.png"]
    return written


def check() -> None:
    """Raise `MissingError` without matplotlib."""
    try:
        importlib.import_module("matplotlib")
    except ImportError as error:
        raise MissingError(f"pictures need matplotlib ({error}); install it with: pip install matplotlib") from None


def as_svg(figure: Any) -> str:
    """The figure as an SVG file; text stays text, and the same figure gives the same file."""
    import matplotlib

    file = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "samestep"}):
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    return file.getvalue()
