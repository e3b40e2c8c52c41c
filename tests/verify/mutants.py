"""Kernels of rule cann in plain NumPy that go wrong on purpose, each with the truth about itself.

The kernel is written from rules O4 to O6 and knows nothing of the package's formula. What it does instead of the rule
is said in the words of the fingerprint's `Hypothesis` (its fields' values are names, not code), so that a kernel and
the truth about it are the same thing said twice: once computed here, once expected there. deviations.py lists them.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from samestep.verify.vectorised import fma32
from verify.mutant_rules import OTHERS

KINDS = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
WORDS = {"float32": np.uint32, "float16": np.uint16, "bfloat16": np.uint16}
NORMAL = {"float32": 2.0**-126, "float64": 2.0**-1022, "float16": 2.0**-14, "bfloat16": 2.0**-126}
LARGEST = {"float32": 3.4028234663852886e38, "float16": 65504.0, "bfloat16": 3.3895313892515355e38}


class Kernel(NamedTuple):
    """A kernel of rule cann and what it does otherwise; without arguments it is right.

    The fields are those of `samestep.verify.fingerprint.hypotheses.Hypothesis`.
    """

    rule: str = "cann"
    order: str = "spec"
    fused: frozenset[str] = frozenset()
    inner: str = "float32"
    flush: str = ""
    hyperparameters: str = "given"
    mask: str = "ieee"
    stat: str = "zero"
    store: str = "nearest-even"
    faults: frozenset[str] = frozenset()

    def __call__(self, parameters, gradient, learning_rate, accum, momentum, stat, *, dampening, weight_decay,
                 nesterov):
        """The operator's call: NumPy arrays of any shape, written in place."""
        dtype = next(name for name, kind in KINDS.items() if parameters.dtype == kind)
        d, wd = (self.attribute(value, name, dtype) for value, name in (
            (dampening, "dampening"), (weight_decay, "weight_decay")))
        numbers = Attributes(float(learning_rate[0]), float(momentum[0]), d, wd, nesterov,
                             self.attribute(1.0 - dampening, "dampening", dtype))
        with np.errstate(all="ignore"):
            self.step(parameters, gradient, accum, stat, numbers, dtype)

    def step(self, parameters, gradient, accum, stat, numbers, dtype):
        """Compute, and write what is to be written (O6)."""
        p, g, a, s = (self.loaded(tensor, dtype) for tensor in (parameters, gradient, accum, stat))
        written = MASKS[self.mask](numbers.m)
        if self.rule == "cann":
            moved, velocity = self.cann(p, g, a, s, numbers, written, dtype)
        else:
            moved, velocity = OTHERS[self.rule](p, g, a, s, numbers, written)
        if "parameters not updated" not in self.faults:
            self.keep(parameters, moved, dtype, "parameters truncated")
        if written:
            if "accum not written" not in self.faults:
                self.keep(accum, velocity, dtype, "accum truncated")
            self.clear(stat, s, numbers)
        if "gradient overwritten" in self.faults:
            gradient += 1

    def attribute(self, value, name, dtype):
        """An attribute as the kernel takes it: float32 first (O4)."""
        if self.hyperparameters == "float64":
            return value
        value = float(np.float32(value))
        chosen = self.hyperparameters.split()
        rounded = chosen[0] == "rounded" and (len(chosen) == 1 or name in chosen)
        return float(KINDS[dtype](value)) if rounded else value

    def loaded(self, tensor, dtype):
        """A tensor as float64 numbers, which hold all of them."""
        values = tensor.astype(np.float64)
        return zeroed(values, NORMAL[dtype]) if self.flush.startswith("loads") else values

    def cann(self, p, g, a, s, numbers, written, dtype):
        """Rule O5, one operation after the other; what the rule does differently stands in each line."""
        lr, m, d, wd, nesterov, _ = numbers
        do, faults = Operations(self, dtype), self.faults
        dampened = d != 0 and "dampening ignored" not in faults
        if "dampening inside the momentum test" in faults:
            dampened = dampened and written
        if "accum not read" in faults or ("accum not read at momentum 0" in faults and m == 0):
            a = np.zeros_like(a)
        if "stat not read" in faults:
            s = np.zeros_like(s)
        if "stat read as a flag" in faults:
            s = np.where(s != 0, 1.0, 0.0)

        grad = do.multiply_add("weight decay", p, wd, g) if wd != 0 and "weight decay ignored" not in faults else g
        velocity = do.multiply_add("velocity/accum", a, m, grad)
        if dampened:
            unseen = s if "stat inverted" in faults else do.add(1.0, -s)
            if self.order in ("ascend950", "ascend950 dampening"):
                velocity = do.multiply_add("dampening", -grad, do.times(unseen, d), velocity)
            else:
                velocity = do.multiply_add("dampening", -do.times(grad, unseen), d, velocity)
        if "p from the stored accum" in faults:
            velocity = velocity.astype(np.float32).astype(KINDS[dtype]).astype(np.float64)
        if not nesterov or "nesterov ignored" in faults:
            return do.multiply_add("step", -velocity, lr, p), velocity
        if self.order in ("ascend950", "ascend950 nesterov"):
            return do.multiply_add("step", -do.multiply_add("nesterov/accum", velocity, m, grad), lr, p), velocity
        ahead = do.times(velocity, m)
        if "nesterov/grad" in self.fused:
            step = do.multiply_add("nesterov/grad", grad, lr, do.times(ahead, lr))
        else:
            step = do.multiply_add("nesterov/accum", ahead, lr, do.times(grad, lr))
        return do.add(p, -step), velocity

    def keep(self, tensor, values, dtype, truncating):
        """Write numbers into a tensor, rounded once to its dtype."""
        store = "truncate" if truncating in self.faults else self.store
        rounded = rounded_to(values, dtype, store)
        if "overflow saturated" in self.faults:
            over = np.isinf(rounded) & np.isfinite(values)
            rounded = np.where(over, np.copysign(LARGEST[dtype], values), rounded)
        if self.flush.endswith("stores"):
            rounded = zeroed(rounded, NORMAL[dtype])
        tensor[...] = rounded.reshape(tensor.shape).astype(np.float32).astype(KINDS[dtype])

    def clear(self, stat, s, numbers):
        """What happens to stat where accum is written (O6: +0)."""
        if self.stat == "zero" or (self.stat == "with dampening" and numbers.d != 0):
            stat[...] = 0
        elif self.stat == "product":
            stat[...] = ((1.0 - s) * 0.0).reshape(stat.shape).astype(stat.dtype)
        elif self.stat == "stat*0":
            stat[...] = (s * 0.0).reshape(stat.shape).astype(stat.dtype)


class Split(NamedTuple):
    """A kernel whose whole vectors of `width` elements are computed by `body`, and what is left by `tail`."""

    body: Kernel
    tail: Kernel
    width: int

    def __call__(self, parameters, gradient, learning_rate, accum, momentum, stat, **attributes):
        """The operator's call, of C-contiguous arrays."""
        tensors = [tensor.reshape(-1) for tensor in (parameters, gradient, accum, stat)]
        end = parameters.size - parameters.size % self.width
        for kernel, part in ((self.body, slice(0, end)), (self.tail, slice(end, None))):
            p, g, a, s = (tensor[part] for tensor in tensors)
            kernel(p, g, learning_rate, a, momentum, s, **attributes)


class Attributes(NamedTuple):
    """The hyperparameters as numbers."""

    lr: float
    m: float
    d: float
    wd: float
    nesterov: bool
    undamped: float  # 1-d, taken before it is rounded


class Operations:
    """One rounding for each operation, in the type and with the flushing of a kernel."""

    def __init__(self, kernel, dtype):
        self.kind = dtype if kernel.inner == "tensor" else kernel.inner
        self.flush, self.fused = kernel.flush, kernel.fused

    def taken(self, values):
        return zeroed(values, NORMAL[self.kind]) if self.flush in ("inputs", "both") else values

    def given(self, values):
        values = np.asarray(values, np.float64)
        if self.kind != "float64":
            values = values.astype(np.float32).astype(KINDS[self.kind]).astype(np.float64)
        return zeroed(values, NORMAL[self.kind]) if self.flush in ("outputs", "both") else values

    def times(self, x, y):
        return self.given(self.taken(x) * self.taken(y))

    def add(self, x, y):
        return self.given(self.taken(x) + self.taken(y))

    def multiply_add(self, site, x, y, z):
        """x*y + z, rounded once where `site` is fused."""
        if site in self.fused:
            return self.given(fma32(*np.broadcast_arrays(*(self.taken(values) for values in (x, y, z)))))
        return self.add(self.times(x, y), z)


def zeroed(values, normal):
    """Subnormal numbers as zeros of their sign."""
    return np.where(np.abs(values) < normal, np.copysign(0.0, values), values)


def rounded_to(values, dtype, store):
    """float64 values rounded to numbers of `dtype`."""
    if store == "through float32":
        values = values.astype(np.float32).astype(np.float64)
    if store in ("nearest-even", "through float32"):
        if dtype == "bfloat16":
            values = values.astype(np.float32)
        return values.astype(KINDS[dtype]).astype(np.float64)
    # Integers in units of the last place: exact, since a power of two only shifts.
    digits, least = {"float32": (24, -149), "float16": (11, -24), "bfloat16": (8, -133)}[dtype]
    finite = np.where(np.isfinite(values), values, 0.0)
    unit = np.ldexp(1.0, np.maximum(np.frexp(finite)[1] - digits, least))
    magnitude = np.abs(finite) / unit
    whole = np.floor(magnitude) if store == "truncate" else np.floor(magnitude + 0.5)
    result = np.copysign(whole * unit, finite)
    if store == "half-away":
        result = np.where(np.abs(result) > LARGEST[dtype], np.copysign(np.inf, result), result)
    else:
        result = np.where(np.abs(result) > LARGEST[dtype], np.copysign(LARGEST[dtype], result), result)
    return np.where(np.isfinite(values), result, values)


def through_float16(m):
    with np.errstate(all="ignore"):
        return float(np.float16(np.clip(m, -65504, 65504))) if math.isfinite(m) else m


def integer_mask(function, narrowed):
    def mask(m):
        m = through_float16(m) if narrowed else m
        return not math.isfinite(m) or function(m) != 0

    return mask


MASKS: dict[str, Any] = {
    "ieee": lambda m: m != 0,
    "always": lambda m: True,
    "positive": lambda m: m > 0,
    "ordered": lambda m: m > 0 or m < 0,
    "bits": lambda m: m != 0 or math.copysign(1, m) == -1,
    "normal": lambda m: not abs(m) < NORMAL["float32"],
    "above 1e-8": lambda m: abs(m) > 1e-8,
    "above 1e-6": lambda m: abs(m) > 1e-6,
    "float16": lambda m: through_float16(m) != 0,
    "float16 normal": lambda m: not abs(through_float16(m)) < NORMAL["float16"],
    "floor": integer_mask(math.floor, False), "ceil": integer_mask(math.ceil, False),
    "truncated": integer_mask(math.trunc, False),
    "float16-floor": integer_mask(math.floor, True), "float16-ceil": integer_mask(math.ceil, True),
}
