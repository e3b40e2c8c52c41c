"""The judge: rules O5 and O6 computed exactly for one element, and compared by rule O9.

Numbers are Python integers times powers of two, so nothing here depends on a processor, a compiler or a
numeric library (O7, O8). Every operation is exact first and then rounded once by `round_to`; a fused
multiply-add is therefore `round_to(exact_sum(exact_product(x, y), z), FLOAT32)`.

What rules O2 to O4 refuse is not refused here: the formula is computed for whatever values come.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import index
from typing import NamedTuple, TypeAlias

# (integer, exponent) is the non-zero number integer * 2**exponent. With integer 0 the second item is no
# exponent: the pair is then one of the five constants below. A plain tuple is the fastest thing to build.
Value: TypeAlias = tuple[int, int]

ZERO: Value = (0, 0)
NEGATIVE_ZERO: Value = (0, 1)
INFINITY: Value = (0, 2)
NEGATIVE_INFINITY: Value = (0, 3)
NAN: Value = (0, 4)

ONE: Value = (1, 0)
MINUS_ONE: Value = (-1, 0)
_ZEROS = (ZERO, NEGATIVE_ZERO)
_INFINITIES = (INFINITY, NEGATIVE_INFINITY)
_NEGATIVES = (NEGATIVE_ZERO, NEGATIVE_INFINITY)


class Format(NamedTuple):
    """An IEEE 754 binary format.

    `bits` is its width; `precision` counts the implicit leading bit; 2**emin is the smallest subnormal and
    2**limit the first power of two beyond the format; `infinity` and `nan` (the canonical one) are patterns.
    """

    name: str
    bits: int
    precision: int
    emin: int
    limit: int
    infinity: int
    nan: int


FLOAT64 = Format("float64", 64, 53, -1074, 1024, 0x7FF0000000000000, 0x7FF8000000000000)
FLOAT32 = Format("float32", 32, 24, -149, 128, 0x7F800000, 0x7FC00000)
FLOAT16 = Format("float16", 16, 11, -24, 16, 0x7C00, 0x7E00)
BFLOAT16 = Format("bfloat16", 16, 8, -133, 128, 0x7F80, 0x7FC0)

FORMATS: dict[str, Format] = {f.name: f for f in (FLOAT64, FLOAT32, FLOAT16, BFLOAT16)}
CANN_DTYPES = ("float32", "float16", "bfloat16")
CANN_ORDERS = ("spec", "ascend950")


def decode(bits: int, fmt: Format) -> Value:
    """The exact value of the pattern `bits`, an unsigned integer, in `fmt` (O5: widening is exact)."""
    # index: a numpy integer would wrap around in the exact arithmetic below.
    bits = index(bits)
    if bits >> fmt.bits:
        raise ValueError(f"{bits:#x} is no {fmt.bits}-bit pattern of {fmt.name}")
    negative = bits >> (fmt.bits - 1)
    magnitude = bits ^ (negative << (fmt.bits - 1))
    if magnitude > fmt.infinity:
        return NAN
    if magnitude == fmt.infinity:
        return NEGATIVE_INFINITY if negative else INFINITY
    if not magnitude:
        return NEGATIVE_ZERO if negative else ZERO
    leading = fmt.precision - 1
    field = magnitude >> leading
    integer = magnitude & ((1 << leading) - 1)
    if field:
        integer |= 1 << leading
        field -= 1
    return (-integer if negative else integer), field + fmt.emin


def round_to(value: Value, fmt: Format) -> Value:
    """The value of `fmt` nearest to the exact `value`, ties to even, overflow to infinity (O5, O7)."""
    integer, exponent = value
    if not integer:
        return value
    drop = max(integer.bit_length() - fmt.precision, fmt.emin - exponent)
    if drop > 0:
        # The shift rounds down, for negative integers too, so the remainder is never negative.
        kept = integer >> drop
        remainder = integer - (kept << drop)
        half = 1 << (drop - 1)
        if remainder > half or (remainder == half and kept & 1):
            kept += 1
        if not kept:
            return ZERO if integer > 0 else NEGATIVE_ZERO
        integer = kept
        exponent += drop
    if integer.bit_length() + exponent > fmt.limit:
        return INFINITY if integer > 0 else NEGATIVE_INFINITY
    return integer, exponent


def encode(value: Value, fmt: Format) -> int:
    """The bit pattern of `value` rounded once to `fmt` (O5); a NaN becomes the canonical quiet NaN (O9)."""
    rounded = round_to(value, fmt)
    integer, exponent = rounded
    if not integer:
        if rounded == NAN:
            return fmt.nan
        magnitude = fmt.infinity if rounded in _INFINITIES else 0
        return magnitude | (int(rounded in _NEGATIVES) << (fmt.bits - 1))
    magnitude = abs(integer)
    shift = min(fmt.precision - magnitude.bit_length(), exponent - fmt.emin)
    if shift > 0:
        magnitude <<= shift
        exponent -= shift
    # Adding, not or-ing: a normal number's implicit bit and a carry out of rounding raise the exponent field.
    pattern = ((exponent - fmt.emin) << (fmt.precision - 1)) + magnitude
    return pattern | (int(integer < 0) << (fmt.bits - 1))


def float32_of(number: float) -> Value:
    """A Python `number` (float or int) rounded once to float32: what an attribute means (O4)."""
    if not isinstance(number, int):
        if math.isnan(number):
            return NAN
        negative = math.copysign(1.0, number) < 0
        if math.isinf(number):
            return NEGATIVE_INFINITY if negative else INFINITY
        if number == 0:
            return NEGATIVE_ZERO if negative else ZERO
    numerator, denominator = number.as_integer_ratio()
    # The denominator is a power of two. Only an int can be 0 here, and it has no sign.
    return round_to((numerator, 1 - denominator.bit_length()), FLOAT32) if numerator else ZERO


def _is_negative(value: Value) -> bool:
    return value[0] < 0 or value in _NEGATIVES


def exact_product(x: Value, y: Value) -> Value:
    """x * y, not rounded; signs, 0 * infinity and NaN as in IEEE 754 (O7)."""
    integer = x[0] * y[0]
    if integer:
        return integer, x[1] + y[1]
    if NAN in (x, y):
        return NAN
    negative = _is_negative(x) != _is_negative(y)
    if x in _INFINITIES or y in _INFINITIES:
        if x in _ZEROS or y in _ZEROS:
            return NAN
        return NEGATIVE_INFINITY if negative else INFINITY
    return NEGATIVE_ZERO if negative else ZERO


def exact_sum(x: Value, y: Value) -> Value:
    """x + y, not rounded; an exact cancellation is +0, and infinity - infinity is NaN (O7)."""
    a, i = x
    b, j = y
    if a and b:
        total, exponent = ((a << (i - j)) + b, j) if i > j else (a + (b << (j - i)), i)
        return (total, exponent) if total else ZERO
    if NAN in (x, y):
        return NAN
    if x in _INFINITIES:
        return NAN if y in _INFINITIES and y != x else x
    if y in _INFINITIES:
        return y
    if not a and not b:
        return x if x == y else ZERO
    return y if b else x


def negated(value: Value) -> Value:
    """-value, which is always exact."""
    integer, exponent = value
    if integer or value == NAN:
        return -integer, exponent
    return 0, exponent ^ 1


def mul(x: Value, y: Value) -> Value:
    """x * y rounded to float32 on its own (O5)."""
    return round_to(exact_product(x, y), FLOAT32)


def add(x: Value, y: Value) -> Value:
    """x + y rounded to float32 on its own (O5)."""
    return round_to(exact_sum(x, y), FLOAT32)


def sub(x: Value, y: Value) -> Value:
    """x - y rounded to float32 on its own (O5)."""
    return round_to(exact_sum(x, negated(y)), FLOAT32)


class CannRule(NamedTuple):
    """Rules O4 to O6 with all decoded that elements share; `keeps_state` is "momentum is zero" (O6)."""

    fmt: Format
    learning_rate: Value
    momentum: Value
    keeps_state: bool
    dampening: Value
    weight_decay: Value
    nesterov: bool
    order: str

    def update(self, parameters: int, gradient: int, accum: int, stat: int) -> tuple[int, int, int]:
        """The bit patterns of (parameters, accum, stat) after one element's update (O5, O6)."""
        p = decode(parameters, self.fmt)
        grad = decode(gradient, self.fmt)
        if self.weight_decay not in _ZEROS:
            grad = add(grad, mul(p, self.weight_decay))
        accum_t = add(mul(decode(accum, self.fmt), self.momentum), grad)
        if self.dampening not in _ZEROS:
            accum_t = sub(accum_t, self._dampened(grad, decode(stat, self.fmt)))
        p_out = encode(sub(p, self._step(grad, accum_t)), self.fmt)
        if self.keeps_state:
            return p_out, index(accum), index(stat)
        return p_out, encode(accum_t, self.fmt), encode(ZERO, self.fmt)

    def _dampened(self, grad: Value, stat: Value) -> Value:
        if self.order == "ascend950":
            return mul(grad, mul(add(mul(stat, MINUS_ONE), ONE), self.dampening))
        return mul(mul(grad, sub(ONE, stat)), self.dampening)

    def _step(self, grad: Value, accum_t: Value) -> Value:
        if not self.nesterov:
            return mul(accum_t, self.learning_rate)
        ahead = mul(accum_t, self.momentum)
        if self.order == "ascend950":
            return mul(add(grad, ahead), self.learning_rate)
        return add(mul(grad, self.learning_rate), mul(ahead, self.learning_rate))


def cann_rule(learning_rate: int, momentum: int, *, dtype: str, dampening: float = 0.0,
              weight_decay: float = 0.0, nesterov: bool = False, order: str = "spec") -> CannRule:
    """The rule for many elements: the arguments of `cann` that do not change from element to element."""
    if dtype not in CANN_DTYPES:
        raise ValueError(f"dtype {dtype!r} is not one of {', '.join(CANN_DTYPES)} (O1)")
    if order not in CANN_ORDERS:
        raise ValueError(f"order {order!r} is not one of {', '.join(CANN_ORDERS)}")
    fmt = FORMATS[dtype]
    m = decode(momentum, fmt)
    return CannRule(fmt, decode(learning_rate, fmt), m, m in _ZEROS, float32_of(dampening),
                    float32_of(weight_decay), nesterov, order)


def cann(parameters: int, gradient: int, learning_rate: int, accum: int, momentum: int, stat: int, *,
         dtype: str, dampening: float = 0.0, weight_decay: float = 0.0, nesterov: bool = False,
         order: str = "spec") -> tuple[int, int, int]:
    """The bit patterns of (parameters, accum, stat) after the update of one element (O4, O5, O6).

    The six positional arguments are bit patterns of `dtype`, in the operator's input order. `dampening` and
    `weight_decay` are Python numbers. `order` names the evaluation order, "spec" or "ascend950".
    """
    rule = cann_rule(learning_rate, momentum, dtype=dtype, dampening=dampening, weight_decay=weight_decay,
                     nesterov=nesterov, order=order)
    return rule.update(parameters, gradient, accum, stat)


def same(expected: int, got: int, dtype: str) -> bool:
    """Whether two computed patterns of `dtype` agree: equal bits, or both NaN whatever the payload (O9)."""
    fmt = FORMATS[dtype]
    return index(expected) == index(got) or decode(expected, fmt) == NAN == decode(got, fmt)


class Difference(NamedTuple):
    """One pattern that breaks the rule: where it is, what the rule gives, and what was found."""

    tensor: str
    position: int
    expected: int
    got: int


def differing(before: Sequence[Sequence[int]], after: Sequence[Sequence[int]], *, dtype: str,
              learning_rate: int, momentum: int, dampening: float = 0.0, weight_decay: float = 0.0,
              nesterov: bool = False, order: str = "spec") -> list[Difference]:
    """Every pattern of `after` that breaks O5 or O6, in order of position; an empty list means none does.

    `before` is (parameters, gradient, accum, stat) and `after` is (parameters, accum, stat): flat sequences
    of patterns, all of one length. Computed values are compared by `same`; with momentum zero, accum and stat
    must not have been written, so every bit counts (O9). The other arguments are those of `cann`.
    """
    rule = cann_rule(learning_rate, momentum, dtype=dtype, dampening=dampening, weight_decay=weight_decay,
                     nesterov=nesterov, order=order)
    names = ("parameters", "accum", "stat")
    found: list[Difference] = []
    for i, (old, new) in enumerate(zip(zip(*before, strict=True), zip(*after, strict=True), strict=True)):
        for tensor, expected, got in zip(names, rule.update(*old), new, strict=True):
            kept = rule.keeps_state and tensor != "parameters"
            if expected != got and (kept or not same(expected, got, dtype)):
                found.append(Difference(tensor, i, expected, index(got)))
    return found
