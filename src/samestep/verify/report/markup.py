"""HTML as a tree, so that nothing reaches a page unescaped; and the one page that all reports share."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from importlib import resources
from typing import TypeAlias
from xml.etree.ElementTree import Element, tostring

from samestep.verify.notation import visible

Child: TypeAlias = Element | str


def node(tag: str, *children: Child, **attributes: str) -> Element:
    """An element; in the names of attributes ``_`` stands for ``-``, a trailing one is dropped (``class_``)."""
    element = Element(tag, {name.rstrip("_").replace("_", "-"): visible(value) for name, value in attributes.items()})
    for child in children:
        if isinstance(child, Element):
            element.append(child)
        elif len(element):
            element[-1].tail = (element[-1].tail or "") + visible(child)
        else:
            element.text = (element.text or "") + visible(child)
    return element


def table(label: str, head: Iterable[Child], bodies: Iterable[Element], **attributes: str) -> Element:
    """A table with one header row, in a box called `label` that scrolls sideways on a narrow screen."""
    header = node("tr", *(cell if isinstance(cell, Element) else node("th", cell, scope="col") for cell in head))
    inner = node("table", node("thead", header), *bodies, **attributes)
    return node("div", inner, class_="scroll", tabindex="0", role="region", aria_label=label)


def page(title: str, *content: Child) -> str:
    """One self-contained HTML file: styles and script inline, and a policy that forbids everything else."""
    style, script = (_data(name) for name in ("report.css", "report.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    head = node(
        "head", node("meta", charset="utf-8"),
        node("meta", http_equiv="Content-Security-Policy", content=policy),
        node("meta", name="viewport", content="width=device-width, initial-scale=1"),
        node("meta", name="color-scheme", content="light dark"),
        node("title", title), node("style", style),
    )
    html = node("html", head, node("body", node("main", *content), node("script", script)), lang="en")
    return "<!DOCTYPE html>\n" + tostring(html, encoding="unicode", method="html") + "\n"


def _data(name: str) -> str:
    return (resources.files("samestep.verify") / "data" / name).read_text(encoding="utf-8")
