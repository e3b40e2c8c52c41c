"""How reports write what they show: patterns as hex digits and as numbers, and text that any reader can take."""

from __future__ import annotations

import math
import re

import numpy as np

from samestep.verify.patterns import TYPES, WORDS

_UNSEEN = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]")


def hexadecimal(word: int, dtype: str) -> str:
    """All hex digits of a pattern: ``0x3f80``."""
    return f"0x{word:0{2 * np.dtype(WORDS[dtype]).itemsize}x}"


def decimal(word: int, dtype: str) -> str:
    """The pattern as a decimal number with digits enough to tell it from its neighbours: ``0.1``, ``-0.0``, ``nan``."""
    return str(np.array([word], WORDS[dtype]).view(TYPES[dtype])[0])


def visible(text: str) -> str:
    """The text with control characters and lone surrogates, which no file format wants, written as escapes."""
    return _UNSEEN.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def json_number(number: float) -> float | str:
    """JSON has no infinities and no NaN: they become the words inf, -inf and nan."""
    return number if math.isfinite(number) else str(float(number))
