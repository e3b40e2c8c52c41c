"""A Python number rounded to one of the operator's dtypes."""

from __future__ import annotations

import math

# Bits in all, bits of the significand, exponent of the smallest subnormal.
_FORMATS = {"float32": (32, 24, -149), "float16": (16, 11, -24), "bfloat16": (16, 8, -133)}


def round_number(value: float, dtype: str) -> tuple[float, int]:
    """A Python number rounded once, to nearest even, to `dtype`: its value and its bit pattern.

    Integer arithmetic on purpose: a conversion by the processor would obey the calling thread's rounding mode and
    flush subnormals where the caller asked for that (rule O7).
    """
    width, precision, least = _FORMATS[dtype]
    infinity = ((1 << width - 1) - 1) >> (precision - 1) << (precision - 1)
    sign = 1 << width - 1 if math.copysign(1.0, _clamp(value)) < 0 else 0
    if isinstance(value, float) and math.isnan(value):
        return math.nan, infinity | 1 << (precision - 2)
    if abs(value) == math.inf:
        return float(value), sign | infinity
    # Of a long int keep 50 bits and whether anything was below them: enough to round rightly afterwards.
    long = max(0, value.bit_length() - 50) if isinstance(value, int) else 0
    top = abs(value) if not long else (abs(int(value)) >> long) | (int(value) & ((1 << long) - 1) != 0)
    fraction, exponent = math.frexp(top)
    unit = max(exponent + long - precision, least)
    count = round(math.ldexp(fraction, exponent + long - unit))
    bits = count + (unit - least << precision - 1) if count else 0
    if bits >= infinity:
        return math.copysign(math.inf, _clamp(value)), sign | infinity
    return math.copysign(math.ldexp(count, unit), _clamp(value)), sign | bits


def _clamp(value: float) -> float:
    """The sign of a number that may be an int too long for a float."""
    return value if isinstance(value, float) else float((value > 0) - (value < 0))
