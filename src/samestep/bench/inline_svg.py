"""A picture as part of a page: its tree, in the page's colours, light or dark."""

from __future__ import annotations

import re
from xml.etree.ElementTree import Element, fromstring

from samestep.bench.drawing import GRID, INK, PAPER, SOFT

_VARIABLES = {INK: "var(--ink)", SOFT: "var(--soft)", GRID: "var(--line)", PAPER: "var(--panel)"}
_COLOURS = re.compile("|".join(_VARIABLES))
_REFERENCE = re.compile(r"#(?=[\w.-]+\)?$)")


def inline(svg: str, name: str, described: str) -> Element:
    """The SVG file `svg` that `plots` wrote, as an element for an HTML page.

    `name` keeps its ids apart from those of other pictures on the page; `described` is what a screen reader says.
    """
    root = fromstring(svg)
    for metadata in root.findall("{*}metadata"):
        root.remove(metadata)
    for part in root.iter():
        part.tag = part.tag.rpartition("}")[2]
        for key in list(part.attrib):
            value = part.attrib.pop(key)
            part.set(key.rpartition("}")[2], _in_page(key.rpartition("}")[2], value, name))
    width, height = root.attrib.pop("width"), root.attrib.pop("height")
    root.set("style", f"min-width: min({width}, 44rem); aspect-ratio: {width[:-2]} / {height[:-2]}")
    root.set("role", "img")
    root.set("aria-label", described)
    return root


def _in_page(key: str, value: str, name: str) -> str:
    """An attribute's value with the page's colours, and ids that no other picture has."""
    if key == "id":
        return f"{name}-{value}"
    if key == "style":
        return _COLOURS.sub(lambda found: _VARIABLES[found[0]], value)
    return _REFERENCE.sub(f"#{name}-", value) if key in ("href", "clip-path") else value
