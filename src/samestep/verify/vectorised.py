"""The judge for volume: rules O5, O6 and T on whole arrays of bit patterns.

Written from the rules, like the oracle, and not from the formula. Each operation is computed in float64 and rounded
once to float32: 53 bits are at least 2*24 + 2, so the second rounding changes nothing. A fused multiply-add is the
exact product and a sum rounded to odd, which keeps what the last rounding needs. The caller's floating-point
environment must be the IEEE default.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from samestep.verify import oracle
from samestep.verify.patterns import TYPES, WORDS, Words, values_of

Wide = NDArray[np.float64]  # numbers of the arithmetic's type, held in float64


def to_float32(exact: Wide) -> Wide:
    """Each number rounded to float32, to nearest even."""
    return exact.astype(np.float32).astype(np.float64)


def _wide(words: Words, dtype: str) -> Wide:
    return values_of(words, dtype).astype(np.float64)


def _stored(values: Wide, dtype: str) -> Words:
    """Patterns of values rounded once to `dtype`."""
    narrow: Any = values.astype(np.float32) if dtype == "bfloat16" else values
    stored: Words = narrow.astype(TYPES[dtype]).view(WORDS[dtype])
    return stored


def cann(
    parameters: Words, gradient: Words, learning_rate: int, accum: Words, momentum: int, stat: Words, *, dtype: str,
    dampening: float = 0.0, weight_decay: float = 0.0, nesterov: bool = False, order: str = "spec",
) -> tuple[Words, Words, Words]:
    """The patterns of (parameters, accum, stat) after one step of rule O (O4, O5, O6); the arguments stay as they are.

    Tensors are flat arrays of patterns of `dtype`, `learning_rate` and `momentum` one pattern each.
    """
    with np.errstate(all="ignore"):
        lr, m = (_wide(np.array([word], WORDS[dtype]), dtype) for word in (learning_rate, momentum))
        d, wd = (to_float32(np.array([float(number)])) for number in (dampening, weight_decay))
        p, grad = _wide(parameters, dtype), _wide(gradient, dtype)
        if wd[0] != 0:
            grad = to_float32(grad + to_float32(p * wd))
        velocity = to_float32(to_float32(_wide(accum, dtype) * m) + grad)
        if d[0] != 0:
            unseen = to_float32(1.0 - _wide(stat, dtype))
            if order == "ascend950":
                damped = to_float32(grad * to_float32(unseen * d))
            else:
                damped = to_float32(to_float32(grad * unseen) * d)
            velocity = to_float32(velocity - damped)
        if not nesterov:
            step = to_float32(velocity * lr)
        elif order == "ascend950":
            step = to_float32(to_float32(grad + to_float32(velocity * m)) * lr)
        else:
            step = to_float32(to_float32(grad * lr) + to_float32(to_float32(velocity * m) * lr))
        moved = _stored(to_float32(p - step), dtype)
        if m[0] == 0:
            return moved, accum.copy(), stat.copy()
        return moved, _stored(velocity, dtype), np.zeros_like(stat)


def torch(
    parameters: Words, gradient: Words, momentum_buffer: Words | None, *, lr: float, first: bool, momentum: float = 0.0,
    dampening: float = 0.0, weight_decay: float = 0.0, nesterov: bool = False, maximize: bool = False,
    dtype: str = "float32", grad_dtype: str | None = None, state_dtype: str | None = None,
) -> tuple[Words, Words | None]:
    """The patterns of (parameters, momentum buffer) after one step of rule T; the arguments stay as they are.

    Hyperparameters are Python numbers. On the `first` step with momentum the buffer is not read and may be None;
    without momentum it comes back as it came. Gradient and buffer are of `dtype` unless told otherwise.
    """
    double = dtype == "float64"
    rounded = np.array if double else to_float32
    fma = fma64 if double else fma32
    with np.errstate(all="ignore"):
        wd, m, lr_, undampened = (rounded(np.array([float(number)]))
                                  for number in (weight_decay, momentum, lr, 1.0 - float(dampening)))
        p, g = (rounded(_wide(words, name)) for words, name in ((parameters, dtype), (gradient, grad_dtype or dtype)))
        if maximize:
            g = -g
        if weight_decay != 0:
            g = fma(wd, p, g)
        if momentum == 0:
            after = None if momentum_buffer is None else momentum_buffer.copy()
            return _stored(fma(-lr_, g, p), dtype), after
        state = state_dtype or dtype
        if first:
            b = g
        else:
            assert momentum_buffer is not None
            b = fma(undampened, g, rounded(m * rounded(_wide(momentum_buffer, state))))
        u = fma(m, b, g) if nesterov else b
        return _stored(fma(-lr_, u, p), dtype), _stored(b, state)


def fma32(x: Wide, y: Wide, z: Wide) -> Wide:
    """x*y + z rounded once to float32, for float32 numbers held in float64."""
    return to_float32(_odd_sum(x * y, z))


def _two_sum(x: Wide, y: Wide) -> tuple[Wide, Wide]:
    """The rounded sum and what it lost, exactly."""
    total = x + y
    part = total - x
    return total, (x - (total - part)) + (y - part)


def _odd_sum(x: Wide, y: Wide) -> Wide:
    """x + y rounded to odd: where the sum is not exact, to the neighbour whose last bit is set."""
    total, lost = _two_sum(x, y)
    even = (total.view(np.uint64) & np.uint64(1)) == 0
    inexact = np.isfinite(total) & (lost != 0) & even
    return np.where(inexact, np.nextafter(total, np.where(lost > 0, np.inf, -np.inf)), total)


def fma64(x: Wide, y: Wide, z: Wide) -> Wide:
    """x*y + z rounded once to float64; elements with extreme exponents through the exact oracle."""
    x, y, z = np.broadcast_arrays(x, y, z)
    high, low = _two_product(x, y)
    first, rest = _two_sum(z, low)
    total, other = _two_sum(high, first)
    result = total + _odd_sum(rest, other)
    plain = x * y + z
    result = np.where(result == 0, plain, result)
    product, addend = np.isfinite(x) & np.isfinite(y), np.isfinite(z)
    # The exact product of two finite numbers is finite, also where the rounded one is not.
    result = np.where(product, np.where(addend, result, z), plain)
    places = np.flatnonzero(product & addend & ~(_moderate(x) & _moderate(y) & _moderate(z)))
    words = [column.view(np.uint64)[places].tolist() for column in (x, y, z)]
    result[places] = np.array([_exact_fma64(*three) for three in zip(*words, strict=True)], np.uint64).view(np.float64)
    return result


def _two_product(x: Wide, y: Wide) -> tuple[Wide, Wide]:
    """The rounded product and what it lost, exactly, for moderate exponents."""
    product = x * y
    (a, b), (c, d) = _split(x), _split(y)
    return product, ((a * c - product) + a * d + b * c) + b * d


def _split(x: Wide) -> tuple[Wide, Wide]:
    scaled = x * 134217729.0  # 2**27 + 1
    high = scaled - (scaled - x)
    return high, x - high


def _moderate(x: Wide) -> NDArray[np.bool_]:
    magnitude = np.abs(x)
    moderate: NDArray[np.bool_] = (x == 0) | ((magnitude > 2.0**-200) & (magnitude < 2.0**200))
    return moderate


def _exact_fma64(*words: int) -> int:
    x, y, z = (oracle.decode(word, oracle.FLOAT64) for word in words)
    return oracle.encode(oracle.exact_sum(oracle.exact_product(x, y), z), oracle.FLOAT64)
