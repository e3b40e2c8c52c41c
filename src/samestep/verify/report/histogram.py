"""A histogram of distances in ULPs as inline SVG: one bar for each bin of `results.BINS`, its height the logarithm."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from xml.etree.ElementTree import Element

from samestep.verify.report.markup import node
from samestep.verify.suite.results import BINS

WIDTH, HEIGHT = 320, 150
_LEFT, _RIGHT, _TOP, _BOTTOM = 30, 4, 16, 30


def bin_names() -> list[str]:
    """What each bin holds, in ULPs: ``0``, ``1``, ``2``, ``≤4``, ``≤16``, ..., the open one last."""
    names = [str(BINS[0])]
    for below, end in itertools.pairwise(BINS):
        names.append(str(end) if end == below + 1 else f"≤{end}")
    return [*names, "more"]


def histogram(title: str, counts: Sequence[int]) -> Element:
    """The figure of `counts`, one for each bin, under the caption `title`."""
    names = bin_names()
    described = ", ".join(f"{count:,} at {name} ULP" for name, count in zip(names, counts, strict=True) if count)
    decades = max(1, math.ceil(math.log10(max(10, *counts))))
    svg = node("svg", *_axis(decades), *_bars(names, counts, decades), viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img",
               aria_label=f"{title}: {described or 'no elements'}")
    return node("figure", node("figcaption", title), svg)


def _y(decade: float, decades: int) -> float:
    """The height of 10**decade; the bar of a single element is half a decade high."""
    return HEIGHT - _BOTTOM - (HEIGHT - _BOTTOM - _TOP) * (decade + 0.5) / (decades + 0.5)


def _axis(decades: int) -> list[Element]:
    parts = []
    for decade in range(0, decades + 1, max(1, math.ceil(decades / 5))):
        y = f"{_y(decade, decades):.1f}"
        parts.append(node("line", class_="line", x1=str(_LEFT), x2=str(WIDTH - _RIGHT), y1=y, y2=y))
        parts.append(_text(_LEFT - 3, float(y) + 3, _short(10**decade), anchor="end"))
    base = str(HEIGHT - _BOTTOM)
    parts.append(node("line", class_="line", x1=str(_LEFT), x2=str(WIDTH - _RIGHT), y1=base, y2=base))
    parts.append(_text((_LEFT + WIDTH) / 2, HEIGHT - 4, "distance in ULPs (elements, logarithmic)"))
    return parts


def _bars(names: Sequence[str], counts: Sequence[int], decades: int) -> list[Element]:
    parts = []
    step = (WIDTH - _LEFT - _RIGHT) / len(names)
    for k, (name, count) in enumerate(zip(names, counts, strict=True)):
        left = _LEFT + k * step
        parts.append(_text(left + step / 2, HEIGHT - _BOTTOM + 11, name))
        if count:
            y = _y(math.log10(count), decades)
            height = HEIGHT - _BOTTOM - y
            parts.append(node("rect", node("title", f"{count:,} elements at {name} ULP"),
                              class_="apart" if k else "same", x=f"{left + 2:.1f}", width=f"{step - 4:.1f}",
                              y=f"{y:.1f}", height=f"{height:.1f}"))
            parts.append(_text(left + step / 2, y - 3, _short(count), class_="count"))
    return parts


def _text(x: float, y: float, text: str, *, anchor: str = "middle", class_: str = "label") -> Element:
    return node("text", text, class_=class_, x=f"{x:.1f}", y=f"{y:.1f}", text_anchor=anchor)


def _short(count: int) -> str:
    """The count in at most six characters: exact below 10,000, else rounded down to three digits or so."""
    for size, letter in ((10**9, "G"), (10**6, "M"), (10**4, "k")):
        if count >= size:
            return f"{count // (size // 10) / 10:g}{letter}" if size > 10**4 else f"{count // 1000}k"
    return f"{count:,}"
