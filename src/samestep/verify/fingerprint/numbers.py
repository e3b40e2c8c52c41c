"""Number types that do the arithmetic another way, put in the place of a rule's numbers.

A rule of `formula` or `rules` runs over them unchanged; what varies is how each ``*``, ``+`` and ``-`` is rounded
(`inner`), whether subnormals are flushed, and which sums take their product unrounded (a fused multiply-add). Values
are held in float64. A product remembers its factors, so that the sum after it may be fused; sums that could be are
called sites and named by what they compute (`role`).
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from samestep.verify.patterns import TYPES, WORDS, Words, is_nan
from samestep.verify.vectorised import Wide, fma32, fma64, to_float32

TINY = {"float32": 2.0**-126, "bfloat16": 2.0**-126, "float16": 2.0**-14, "float64": 2.0**-1022}  # smallest normals
_NAMES = ("parameters", "grad", "accum", "stat", "lr", "m", "d", "wd")


class Label(NamedTuple):
    """What a number is: its text, the names it was computed from, and the factors if it is a product."""

    text: str
    about: frozenset[str]
    factors: frozenset[str] = frozenset()


class Site(NamedTuple):
    """What a sum computes: its `role`, the label of the result, and the names of the ways to fuse it, with their texts.

    `left` and `right` name the choice to fuse that operand's product; "" where the operand is no product.
    """

    role: str
    result: Label
    left: str
    right: str
    texts: tuple[tuple[str, str], ...]


@functools.lru_cache(maxsize=64)
def leaf(name: str) -> Label:
    """The label of an input."""
    return Label(name, frozenset([name]))


@functools.lru_cache(maxsize=4096)
def _product_label(x: Label, y: Label) -> Label:
    factors = frozenset().union(*(label.factors or (label.text,) for label in (x, y)))
    first, second = (y, x) if "*" not in x.text and x.text in ("lr", "m", "d", "wd", "-lr", "-m", "(1-d)") else (x, y)
    return Label(f"{first.text}*{second.text}", x.about | y.about, factors)


@functools.lru_cache(maxsize=4096)
def _site(x: Label, y: Label, minus: bool) -> Site:
    role = _role(x, y)
    operator = "-" if minus else "+"
    results = {"step": "parameters", "decay": "parameters", "velocity": "accum_t", "dampening": "accum_t",
               "weight decay": "grad", "nesterov": "step"}
    text = results.get(role, f"({x.text}{operator}{y.text})")
    both = bool(x.factors and y.factors)
    sided = both or role in ("velocity", "nesterov")
    left, right = (role + ("" if not sided else "/accum" if label.factors & {"m", "-m"} else "/grad")
                   if label.factors else "" for label in (x, y))
    texts = (
        (left, f"{x.text}{operator}({y.text})" if both else f"{x.text}{operator}{y.text}"),
        (right, f"({x.text}){operator}{y.text}" if both else f"{x.text}{operator}{y.text}"),
    )
    return Site(role, Label(text, x.about | y.about), left, right, tuple(_tidy(*pair) for pair in texts if pair[0]))


def _tidy(name: str, text: str) -> tuple[str, str]:
    """``a*-lr+p`` reads better as ``p-a*lr``."""
    head, minus, tail = text.partition("*-lr+")
    return name, f"{tail}-{head}*lr" if minus else text


def _role(x: Label, y: Label) -> str:
    """What a sum computes, told from its operands; a rule may have several sums of one role."""
    factors = x.factors | y.factors
    if "parameters" in (x.text, y.text):
        other = y if x.text == "parameters" else x
        return "step" if other.about & {"grad", "accum"} else "decay"
    for role, names in (("velocity", {"accum"}), ("weight decay", {"wd"}), ("dampening", {"d", "(1-d)"}),
                        ("nesterov", {"m", "-m"})):
        if factors & names:
            return role
    return "other"


class Arithmetic:
    """How every operation of one evaluation is done.

    Arguments:
        inner: the type each operation is rounded to: "float32", "float64", "float16" or "bfloat16". The 16-bit types
            are computed in float32 and then rounded, as hardware and libraries do it; for their own numbers that is one
            rounding.
        flush: "" or which subnormals of `inner` each operation takes as zeros: "inputs", "outputs" or "both".
        fused: names of the sites that are one fused multiply-add.
        scales: dtype to which the first factor of `fma` is rounded, "" for not at all.
        rounded: dtype to which the new velocity is rounded as soon as it is there, with the role of its last sum.

    `sites` collects the names of all choices met, with their texts.
    """

    def __init__(self, inner: str, flush: str = "", fused: frozenset[str] = frozenset(),
                 rounded: tuple[str, str] = ("", ""), scales: str = "") -> None:
        self.scales = scales
        self.inner, self.fused, self.rounded = inner, fused, rounded
        self.flush_inputs, self.flush_outputs = flush in ("inputs", "both"), flush in ("outputs", "both")
        self.sites: dict[str, str] = {}
        self._met: dict[str, int] = {}

    def number(self, values: Any, name: str) -> Number:
        """An input: float64 values that `inner` need not hold exactly."""
        held = values if isinstance(values, np.ndarray) else np.array([values], np.float64)
        return Number(self, held, leaf(name))

    def fma(self, x: Number, y: Number, z: Number) -> Number:
        """x*y + z, fused where this arithmetic says so: what rule torch's sums are."""
        if self.scales:
            x = Number(self, wide(stored(x.values, self.scales), self.scales), x.label)
        return x * y + z

    def round(self, exact: Wide) -> Wide:
        """The values rounded to `inner`."""
        if self.inner == "float64":
            return exact
        rounded = to_float32(exact)
        return rounded if self.inner == "float32" else rounded.astype(TYPES[self.inner]).astype(np.float64)

    def read(self, values: Wide) -> Wide:
        """An operation's operand."""
        return flushed(values, TINY[self.inner]) if self.flush_inputs else values

    def result(self, exact: Wide) -> Wide:
        """An operation's result, of its exact or (in float64, harmlessly) once rounded value."""
        values = self.round(exact)
        return flushed(values, TINY[self.inner]) if self.flush_outputs else values

    def multiply(self, x: Wide, y: Wide, z: Wide) -> Wide:
        """The fused multiply-add x*y + z."""
        if self.inner == "float64":
            finite = np.isfinite(x) & np.isfinite(y) & np.isfinite(z)  # others need no care
            exact = fma64(*(np.where(finite, values, 1.0) for values in (x, y, z)))
            return self.result(np.where(finite, exact, x * y + z))
        return self.result(fma32(x, y, z))

    def choose(self, x: Number, y: Number, minus: bool) -> tuple[Site, str, str]:
        """The site of a sum and the names of its choices, which are numbered where a role comes again."""
        site = _site(x.label, y.label, minus)
        left, right = site.left, site.right
        if left or right:
            count = self._met[site.role] = self._met.get(site.role, 0) + 1
            again = "" if count == 1 else f" {count}"
            for name, text in site.texts:
                self.sites.setdefault(name + again, text)
            left, right = left and left + again, right and right + again
        return site, left, right


class Number:
    """An array of numbers of an `Arithmetic`."""

    __slots__ = ("arithmetic", "factors", "inverted", "label", "values")

    def __init__(self, arithmetic: Arithmetic, values: Wide, label: Label,
                 factors: tuple[Wide, Wide] | None = None) -> None:
        self.arithmetic, self.values, self.label, self.factors = arithmetic, values, label, factors
        self.inverted = False  # stands for one minus itself when it is taken from one

    def __mul__(self, other: Number) -> Number:
        """The product, rounded; it remembers its factors."""
        how = self.arithmetic
        x, y = how.read(self.values), how.read(other.values)
        return Number(how, how.result(x * y), _product_label(self.label, other.label), (x, y))

    def __neg__(self) -> Number:
        """Exact."""
        label = Label(f"-{self.label.text}", self.label.about, self.label.factors)
        factors = None if self.factors is None else (-self.factors[0], self.factors[1])
        return Number(self.arithmetic, -self.values, label, factors)

    def __add__(self, other: Number) -> Number:
        """The sum, rounded once; with one product not rounded before where that is fused."""
        return self._sum(other, False)

    def __sub__(self, other: Number) -> Number:
        """The difference, as `__add__`."""
        return other if other.inverted else self._sum(other, True)

    def _sum(self, other: Number, minus: bool) -> Number:
        how = self.arithmetic
        site, left, right = how.choose(self, other, minus)
        addend = -other.values if minus else other.values
        if left in how.fused and self.factors:
            values = how.multiply(*self.factors, how.read(addend))
        elif right in how.fused and other.factors:
            x, y = other.factors
            values = how.multiply(-x if minus else x, y, how.read(self.values))
        else:
            values = how.result(how.read(self.values) + how.read(addend))
        dtype, role = how.rounded
        if role and site.role == role:
            values = wide(stored(values, dtype), dtype)
        return Number(how, values, site.result)


def flushed(values: Wide, tiny: float) -> Wide:
    """Numbers smaller than `tiny` become zeros of their sign."""
    return np.where(np.abs(values) < tiny, np.copysign(0.0, values), values)


def wide(words: Words, dtype: str) -> Wide:
    """Patterns as float64 values, which hold them exactly."""
    with np.errstate(all="ignore"):  # a signalling NaN
        numbers: Wide = words.view(TYPES[dtype]).astype(np.float64)
    return numbers


STORES = ("nearest-even", "truncate", "half-away", "through float32")


def stored(values: Wide, dtype: str, store: str = "nearest-even") -> Words:
    """Patterns of `dtype`: each value rounded as `store` says, one of `STORES`.

    "truncate" rounds towards zero; "half-away" rounds ties away from zero; "through float32" rounds to nearest even
    twice.
    """
    through = dtype == "bfloat16" or store == "through float32"
    narrow: Any = to_float32(values) if through else values
    if dtype == "bfloat16":
        narrow = narrow.astype(np.float32)
    words: Words = narrow.astype(TYPES[dtype]).view(WORDS[dtype])
    if store in ("truncate", "half-away"):
        held = np.abs(wide(words, dtype))
        size = np.abs(values)
        lower = words - (held > size).astype(words.dtype)  # towards zero the pattern is one less, also from infinity
        if store == "truncate":
            return np.where(is_nan(words, dtype), words, lower)
        upper = lower + WORDS[dtype](1)
        tie = (held != size) & (np.abs(wide(upper, dtype)) - size == size - np.abs(wide(lower, dtype)))
        return np.where(tie, upper, words)
    return words
