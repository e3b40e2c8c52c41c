"""The judge of rule T against torch itself, libm's fused multiply-add, exact fractions and cases worked by hand."""

from __future__ import annotations

import ast
import ctypes
import ctypes.util
import itertools
import math
import platform
import random
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
import torch

from samestep.verify import oracle, oracle_torch
from samestep.verify.oracle import FORMATS, decode, encode, same
from samestep.verify.oracle_torch import fma, number_of, torch_differing, torch_rule

NUMPY: dict[str, Any] = {
    "float64": np.float64, "float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16,
}
UNSIGNED: dict[str, Any] = {
    "float64": np.uint64, "float32": np.uint32, "float16": np.uint16, "bfloat16": np.uint16,
}
DTYPES = list(NUMPY)
WIDE = ["float32", "float64"]
NAN32 = 0x7FC00000
NAN32_PAYLOAD = 0xFFA00123
LIBM = ctypes.CDLL(ctypes.util.find_library("m") or "libm.so.6")
LIBM.fma.argtypes, LIBM.fma.restype = [ctypes.c_double] * 3, ctypes.c_double
LIBM.fmaf.argtypes, LIBM.fmaf.restype = [ctypes.c_float] * 3, ctypes.c_float
LIBM_FMA: dict[str, Callable[[float, float, float], float]] = {"float64": LIBM.fma, "float32": LIBM.fmaf}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Overflow and invalid operations are part of the cases."""
    with np.errstate(all="ignore"):
        yield


def bits(number: float, dtype: str = "float32") -> int:
    """The pattern of `number` in `dtype`, rounded by numpy or ml_dtypes."""
    return int(np.array([number], NUMPY[dtype]).view(UNSIGNED[dtype])[0])


def numbers(patterns: list[int], dtype: str) -> list[float]:
    """Patterns of `dtype` as Python floats, which hold every value of the four formats."""
    return [float(x) for x in np.array(patterns, UNSIGNED[dtype]).view(NUMPY[dtype])]


class Limits(NamedTuple):
    """A format as numpy or ml_dtypes describes it, not as the oracle does."""

    precision: int
    emin: int
    limit: int


def limits(dtype: str) -> Limits:
    info = (ml_dtypes.finfo if dtype == "bfloat16" else np.finfo)(NUMPY[dtype])
    return Limits(info.nmant + 1, int(info.minexp) - info.nmant, int(info.maxexp))


def nearest(exact: Fraction, dtype: str) -> float:
    """`exact` rounded once to `dtype`, by fractions alone: a multiple of the quantum, ties to even."""
    precision, emin, limit = limits(dtype)
    size = abs(exact)
    if not size:
        return 0.0
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if Fraction(2) ** exponent > size:
        exponent -= 1
    quantum = Fraction(2) ** max(exponent - precision + 1, emin)
    rounded = round(size / quantum) * quantum
    number = math.inf if rounded >= Fraction(2) ** limit else float(rounded)
    return number if exact > 0 else -number


def specials(dtype: str) -> list[int]:
    """Zeros, ones, subnormals and normals at every edge, infinities, quiet and signalling NaN, near-ties."""
    precision, emin, limit = limits(dtype)
    half = precision // 2
    positive = [
        0.0, 1.0, 1 + 2.0 ** (1 - precision), 1 + 2.0**-half, 1 + 2.0 ** (half - precision), 2.0**-precision,
        2.0**emin, 2.0 ** (emin + precision - 1), 2.0 ** (limit - 1), math.inf, math.nan,
    ]
    patterns = [bits(x, dtype) for x in positive]
    infinity, smallest_normal = bits(math.inf, dtype), bits(2.0 ** (emin + precision - 1), dtype)
    patterns += [infinity - 1, infinity + 1, smallest_normal - 1, smallest_normal + 1]
    sign = bits(-0.0, dtype)
    return patterns + [x | sign for x in patterns]


def column(rng: np.random.Generator, count: int, dtype: str) -> np.ndarray[Any, Any]:
    """Random bit patterns, special values and numbers near one another, in any order."""
    unsigned, third = UNSIGNED[dtype], count // 3
    any_bits = rng.integers(0, np.iinfo(unsigned).max, third, dtype=unsigned, endpoint=True)
    special = rng.choice(np.array(specials(dtype), unsigned), third)
    near = rng.normal(0.0, 2.0, count - 2 * third).astype(NUMPY[dtype]).view(unsigned)
    return rng.permutation(np.concatenate([any_bits, special, near]))


def columns(seed: int, count: int, *dtypes: str) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [column(rng, count, dtype).tolist() for dtype in dtypes]


# The fused multiply-add.


def fused(patterns: Iterable[int], dtype: str) -> int:
    """The oracle's fma on three patterns."""
    fmt = FORMATS[dtype]
    x, y, z = (decode(pattern, fmt) for pattern in patterns)
    return encode(fma(x, y, z, fmt), fmt)


def traps(dtype: str) -> list[tuple[float, float, float]]:
    """Finite operands where rounding twice, flushing or overflowing early would show."""
    p, emin, limit = limits(dtype)
    ulp, tiny, half = 2.0 ** (1 - p), 2.0**emin, p // 2
    greatest = (2.0 - ulp) * 2.0 ** (limit - 1)
    tie = 1 + 2.0**-half, 1 + 2.0 ** (half - p)
    below_seven = 7 * (1 + 2.0 ** (4 - p)), 1 - 2.0 ** (4 - p)
    triples = [(*tie, z) for z in (0.0, tiny, -tiny, 2.0 ** (2 - 2 * p), -(2.0 ** (2 - 2 * p)))]
    triples += [(1 + ulp, 1 + ulp, -(1 + 2 * ulp)), (1 + ulp, 1 - ulp, -1.0), (1 - ulp / 2, 1 - ulp / 2, -1 + ulp)]
    # 3.5 quanta less a little: 3, but 4 where the product is first rounded to the full precision.
    below = below_seven[0] * 2.0 ** (-p - 1), below_seven[1] * 2.0 ** (emin + p)
    triples += [(*below, z * tiny) for z in (0, 1, -4)]
    triples += [(n * 0.5, tiny, z * tiny) for n in (1, 3, 5) for z in (-3, -1, 0, 1, 2)]
    triples += [(tiny, tiny, z) for z in (0.0, tiny, 1.0)]
    triples += [(greatest, 1.0, 2.0 ** (limit - p - 1)), (greatest, 1.0, (1 - ulp / 2) * 2.0 ** (limit - p - 1))]
    triples += [(2.0 ** (limit - 1), 2.0, -greatest), (greatest, 2.0, 0.0), (greatest, greatest, -greatest)]
    return triples + [(-x, y, -z) for x, y, z in triples]


@pytest.mark.parametrize("dtype", DTYPES)
def test_fma_rounds_the_exact_fraction_once(dtype: str) -> None:
    drawn = columns(31, 3000, dtype, dtype, dtype)
    triples = traps(dtype) + list(zip(*(numbers(x, dtype) for x in drawn), strict=True))
    precision, emin, _ = limits(dtype)
    smallest_normal = 2.0 ** (emin + precision - 1)
    subnormal = compared = 0
    for x, y, z in triples:
        if not all(map(math.isfinite, (x, y, z))) or (z == 0 and 0 in (x, y)):
            continue
        expected = nearest(Fraction(x) * Fraction(y) + Fraction(z), dtype)
        got = fused((bits(v, dtype) for v in (x, y, z)), dtype)
        assert got == bits(expected, dtype), (x, y, z)
        compared += 1
        subnormal += 0 < abs(expected) < smallest_normal
    assert compared > 1500 and subnormal > 10


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_traps_are_traps(dtype: str) -> None:
    assert all(nearest(Fraction(x), dtype) == x for triple in traps(dtype) for x in triple)
    unfused = sum(
        nearest(Fraction(nearest(product, dtype)) + Fraction(z), dtype) != nearest(product + Fraction(z), dtype)
        for x, y, z in traps(dtype)
        if math.isfinite(nearest(product := Fraction(x) * Fraction(y), dtype))
    )
    assert unfused >= 10


@pytest.mark.parametrize("dtype", WIDE)
def test_fma_is_libms(dtype: str) -> None:
    grid = itertools.product(specials(dtype)[::2], specials(dtype), specials(dtype))
    drawn = zip(*columns(32, 6000, dtype, dtype, dtype), strict=True)
    trapped = [tuple(bits(x, dtype) for x in triple) for triple in traps(dtype)]
    triples = [*grid, *drawn, *trapped]
    operands = zip(*(numbers([t[i] for t in triples], dtype) for i in range(3)), strict=True)
    libm = np.array(list(itertools.starmap(LIBM_FMA[dtype], operands)), NUMPY[dtype]).view(UNSIGNED[dtype]).tolist()
    for triple, expected in zip(triples, libm, strict=True):
        assert same(expected, fused(triple, dtype), dtype), [hex(x) for x in triple]


# Hyperparameters.


@pytest.mark.parametrize("dtype", WIDE)
def test_a_number_is_rounded_once(dtype: str) -> None:
    fmt = FORMATS[dtype]
    doubles = numbers(columns(33, 3000, "float64")[0], "float64")
    for x in (*doubles, 0.1, 1e-50, -1e-50, 1e39, 1e-45, 3.4028235678e38):
        assert same(bits(x, dtype), encode(number_of(x, fmt), fmt), dtype), x
        if dtype == "float32":
            assert encode(number_of(x, fmt), fmt) == encode(oracle.float32_of(x), fmt)
    for n in (0, 1, -3, True, False, 2**24 + 1, 2**24 + 3, 2**53 + 1, 10**400, -(2**200) - 1):
        assert encode(number_of(n, fmt), fmt) == bits(nearest(Fraction(n), dtype), dtype), n
    # Through float64 this would be a tie, and 2**54.
    assert encode(number_of(2**54 + 2**30 + 1, FORMATS["float32"]), FORMATS["float32"]) == bits(2.0**54 + 2.0**31)


def test_one_minus_dampening_is_taken_in_float64() -> None:
    # With d rounded to float32 first, 1 - (1 - 2**-30) would be 0.
    for dampening, factor in [(1e-9, 1.0), (1 - 2.0**-30, 2.0**-30), (0.9, 1 - 0.9), (1, 0.0), (1e-17, 1.0)]:
        undampened = torch_rule(0.1, dampening=dampening).undampened
        assert encode(undampened, FORMATS["float32"]) == bits(factor)
    assert bits(1 - 0.9) != bits(float(np.float32(1) - np.float32(0.9)))


# torch itself. Its scalar build for x86 has no fused multiply-add, and is not what rule T speaks of.


FUSES = torch.backends.cpu.get_cpu_capability() != "DEFAULT" or platform.machine() not in ("x86_64", "AMD64")
SHAPES: list[tuple[int, ...]] = [(), (1,), (2,), (7,), (15,), (16,), (31,), (33,), (63,), (64,), (4, 17)]
TORCH: dict[str, Any] = {"float32": torch.float32, "float64": torch.float64}

Options = dict[str, Any]


def drawn_options() -> list[Options]:
    """Every combination of the five switches with drawn numbers, and numbers at the edges."""
    draw = random.Random(41)
    found: list[Options] = []
    for momentum, dampening, decay, nesterov, maximize in itertools.product((False, True), repeat=5):
        options: Options = {"lr": draw.choice([0.1, 1e-3, 1.0, draw.uniform(0, 2), 10 ** draw.uniform(-9, 3)])}
        if momentum:
            options["momentum"] = draw.choice([0.9, 0.5, 1.0, draw.random(), 1e-8])
        if dampening:
            options["dampening"] = draw.choice([0.1, 0.9, draw.random(), -0.5])
        if decay:
            options["weight_decay"] = draw.choice([0.01, 5e-4, draw.random(), 1e-30])
        found.append(options | {"nesterov": nesterov, "maximize": maximize})
    every = {"momentum": 0.9, "weight_decay": 0.01, "nesterov": True}
    edges: list[Options] = [
        {"lr": 0.0, **every}, {"lr": -0.1, **every, "momentum": -0.9, "weight_decay": -0.01},
        {"lr": 1e-50, "momentum": 1e-50, "weight_decay": 1e-50}, {"lr": 1, "momentum": 1, "weight_decay": 2},
        {"lr": math.inf, **every, "dampening": math.inf}, {"lr": 0.1, "momentum": math.nan, "weight_decay": math.nan},
        {"lr": 0.1, "momentum": 0.9, "dampening": 1}, {"lr": 1e-42, "momentum": 1e-42, "weight_decay": 1e-42},
        {"lr": 0.1, "momentum": -0.0, "weight_decay": -0.0}, {"lr": 2**54 + 2**30 + 1, "momentum": 2**54 + 2**30 + 1},
    ]
    return found + edges


def patterns_of(tensor: torch.Tensor, dtype: str) -> list[int]:
    """A tensor's patterns in logical order."""
    patterns: list[int] = tensor.detach().reshape(-1).numpy().view(UNSIGNED[dtype]).tolist()
    return patterns


def fresh(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    """A tensor of drawn values; a matrix comes transposed, so not contiguous."""
    values = column(rng, math.prod(shape), dtype).view(NUMPY[dtype]).reshape(shape)
    return torch.from_numpy(values).t() if len(shape) == 2 else torch.from_numpy(values)


def buffer_of(optimizer: torch.optim.SGD, parameter: torch.Tensor) -> torch.Tensor | None:
    return optimizer.state[parameter].get("momentum_buffer") if parameter in optimizer.state else None


def optional(tensor: torch.Tensor | None, dtype: str) -> list[int] | None:
    return None if tensor is None else patterns_of(tensor, dtype)


@pytest.mark.skipif(not FUSES, reason="this build of torch does not fuse multiply-adds")
@pytest.mark.parametrize("dtype", WIDE)
@pytest.mark.parametrize("options", drawn_options(), ids=str)
def test_torchs_loop_follows_the_rule(options: Options, dtype: str) -> None:
    rng = np.random.default_rng(42)
    parameters = [torch.nn.Parameter(fresh(rng, shape, dtype)) for shape in SHAPES]
    optimizer = torch.optim.SGD(parameters, lr=0.1, foreach=False)
    optimizer.param_groups[0].update(options)  # past the constructor, which refuses some of them
    for step in range(5):
        before: list[tuple[list[int], list[int], list[int] | None]] = []
        for parameter, shape in zip(parameters, SHAPES, strict=True):
            buffer = buffer_of(optimizer, parameter)
            if step in (2, 4):
                parameter.detach().copy_(fresh(rng, shape, dtype))
                if buffer is not None:
                    buffer.copy_(fresh(rng, shape, dtype))
            parameter.grad = fresh(rng, shape, dtype)
            gradient = patterns_of(parameter.grad, dtype)
            before.append((patterns_of(parameter, dtype), gradient, optional(buffer, dtype)))
        optimizer.step()
        for parameter, old in zip(parameters, before, strict=True):
            new = patterns_of(parameter, dtype), optional(buffer_of(optimizer, parameter), dtype)
            found = torch_differing(old, new, first=step == 0, dtype=dtype, **options)
            assert found == [], (step, len(old[0]), found[:3])


@pytest.mark.skipif(not FUSES, reason="this build of torch does not fuse multiply-adds")
def test_torch_keeps_the_buffer_while_momentum_is_zero() -> None:
    parameter = torch.nn.Parameter(torch.tensor([1.0, -2.0, 0.3]))
    optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9, foreach=False)
    for step, momentum in enumerate([0.9, 0.0, 0.9, 0.0]):
        optimizer.param_groups[0]["momentum"] = momentum
        parameter.grad = torch.tensor([0.7, 0.1, -5.0])
        buffer = optional(buffer_of(optimizer, parameter), "float32")
        before = patterns_of(parameter, "float32"), patterns_of(parameter.grad, "float32"), buffer
        optimizer.step()
        after = patterns_of(parameter, "float32"), optional(buffer_of(optimizer, parameter), "float32")
        assert torch_differing(before, after, lr=0.1, momentum=momentum, first=step == 0) == []


# The rule in all dtypes, with libm's fused multiply-add.


def stored(number: float, dtype: str) -> int:
    """The pattern of a float64 `number` rounded once; ml_dtypes would round it to bfloat16 twice."""
    return bits(nearest(Fraction(number), dtype) if math.isfinite(number) and number else number, dtype)


def by_libm(p: float, g: float, b: float | None, options: Options, dtype: str, state_dtype: str) -> tuple[int, int]:
    """Rule T on numbers; `b` is None on the first step with momentum."""
    arithmetic = "float64" if dtype == "float64" else "float32"
    libm, rounded = LIBM_FMA[arithmetic], NUMPY[arithmetic]
    lr, m, wd = (rounded(options[name]) for name in ("lr", "momentum", "weight_decay"))
    g = float(rounded(g)) * (-1 if options["maximize"] else 1)
    if options["weight_decay"] != 0:
        g = libm(wd, p, g)
    b = g if b is None else libm(rounded(1 - options["dampening"]), g, m * rounded(b))
    u = libm(m, b, g) if options["nesterov"] else b
    return stored(libm(-lr, u, p), dtype), stored(b, state_dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("grad_dtype", DTYPES)
@pytest.mark.parametrize("state_dtype", DTYPES)
def test_the_rule_in_every_mixture_of_dtypes(dtype: str, grad_dtype: str, state_dtype: str) -> None:
    draw = random.Random(f"{dtype} {grad_dtype} {state_dtype}")
    drawn = columns(51, 90, dtype, grad_dtype, state_dtype)
    rows = list(zip(*map(numbers, drawn, (dtype, grad_dtype, state_dtype)), strict=True))
    for first, nesterov, maximize in itertools.product((False, True), repeat=3):
        options: Options = {
            "lr": draw.choice([0.1, 0.3, 1.7]), "momentum": draw.choice([0.9, 0.95]), "nesterov": nesterov,
            "dampening": draw.choice([0.0, 0.1]), "weight_decay": draw.choice([0.0, 0.01]), "maximize": maximize,
        }
        expected = [by_libm(p, g, None if first else b, options, dtype, state_dtype) for p, g, b in rows]
        after = [p for p, _ in expected], [b for _, b in expected]
        dtypes: Options = {"dtype": dtype, "grad_dtype": grad_dtype, "state_dtype": state_dtype}
        assert torch_differing((drawn[0], drawn[1], drawn[2]), after, first=first, **dtypes, **options) == []


# By hand.


def stepped(p: float, g: float, b: float | None, *, first: bool = False, **options: Any) -> tuple[int, int | None]:
    """`torch` on numbers instead of patterns."""
    dtype = options.get("dtype", "float32")
    patterns = bits(p, dtype), bits(g, options.get("grad_dtype") or dtype)
    buffer = None if b is None else bits(b, options.get("state_dtype") or dtype)
    return oracle_torch.torch(*patterns, buffer, first=first, **options)


def test_each_term_by_hand() -> None:
    # g = 1 + 4*0.5 = 3, b = 2*0.5 + 0.75*3 = 3.25, p = 4 - 0.25*3.25.
    options: Options = {"lr": 0.25, "momentum": 0.5, "dampening": 0.25, "weight_decay": 0.5}
    assert stepped(4, 1, 2, **options) == (bits(3.1875), bits(3.25))
    # u = 3 + 0.5*3.25 = 4.625.
    assert stepped(4, 1, 2, nesterov=True, **options) == (bits(2.84375), bits(3.25))
    # g = -1 + 4*0.5 = 1: the gradient is negated first, and weight decay keeps its sign. b = 1 + 0.75.
    assert stepped(4, 1, 2, maximize=True, **options) == (bits(3.5625), bits(1.75))
    # The first step: b = g = 3, undamped.
    assert stepped(4, 1, 2, first=True, **options) == (bits(3.25), bits(3))
    assert stepped(4, 1, 2, first=True, nesterov=True, **options) == (bits(2.875), bits(3))


@pytest.mark.parametrize("buffer", [None, 7.0, math.nan, math.inf])
def test_the_first_step_does_not_read_the_buffer(buffer: float | None) -> None:
    got = stepped(1, 0.5, buffer, first=True, lr=0.5, momentum=0.9, dampening=0.5)
    assert got == (bits(0.75), bits(0.5))


def test_a_missing_buffer_is_refused_after_the_first_step() -> None:
    with pytest.raises(ValueError, match="not the first step"):
        stepped(1, 0.5, None, lr=0.5, momentum=0.9)


@pytest.mark.parametrize("momentum", [0, 0.0, -0.0, False])
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("buffer", [None, NAN32_PAYLOAD, 0x80000000, 0x7F800000, 1])
def test_momentum_zero_leaves_every_bit_of_the_buffer(momentum: float, first: bool, buffer: int | None) -> None:
    got = oracle_torch.torch(bits(1), bits(0.5), buffer, lr=0.5, momentum=momentum, dampening=0.5, nesterov=True,
                             first=first)
    assert got == (bits(0.75), buffer)


@pytest.mark.parametrize("momentum", [1e-50, -1e-50, 1e-30, math.nan])
def test_any_other_momentum_writes_the_buffer(momentum: float) -> None:
    _, buffer = stepped(1, 0.5, 8, lr=0.5, momentum=momentum)
    assert buffer is not None
    assert same(NAN32 if math.isnan(momentum) else bits(0.5), buffer, "float32")
    # One that rounds to zero is still multiplied: 0 * infinity is NaN.
    _, infinite = stepped(1, 0.5, math.inf, lr=0.5, momentum=momentum)
    assert infinite is not None
    assert same(bits(math.inf) if momentum == 1e-30 else NAN32, infinite, "float32")


def test_a_weight_decay_that_rounds_to_zero_is_not_absent() -> None:
    for decay in (1e-50, -1e-50):
        options: Options = {"lr": -math.copysign(0.1, decay), "weight_decay": decay}
        assert same(NAN32, stepped(math.inf, 0.5, None, **options)[0], "float32")
        assert stepped(math.inf, 0.5, None, dtype="float64", **options)[0] == bits(math.inf, "float64")
    assert stepped(math.inf, 0.5, None, lr=0.1, weight_decay=-0.0)[0] == bits(math.inf)
    # Absent: p = -0 - 0.1*-0 is +0. Present and -0: g = -0*-0 + -0 is +0, so p = -0 - 0.1*0 is -0.
    assert stepped(-0.0, -0.0, None, lr=0.1, weight_decay=0.0)[0] == bits(0.0)
    assert stepped(-0.0, -0.0, None, lr=0.1, weight_decay=-1e-50)[0] == bits(-0.0)


def test_the_multiply_adds_are_fused() -> None:
    ulp = 2.0**-23
    # p = (1 + 2u + u*u) - (1 + u)**2 with the parameter 1 + 2u: -u*u, and zero if the product were rounded.
    assert stepped(1 + 2 * ulp, 1 + ulp, None, lr=1 + ulp)[0] == bits(-(ulp**2))
    # m*b is rounded on its own: (1 + u)**2 - (1 + 2u) is 0 here, and u*u if b were one fused operation.
    assert stepped(0, -(1 + 2 * ulp), 1 + ulp, lr=1, momentum=1 + ulp)[1] == bits(0)
    # (1-d)*g is not: 1.5*(1 + u) = 1.5 + 1.5u, which alone would round to 1.5 + 2u.
    assert stepped(0, 1 + ulp, -1.5, lr=1, momentum=1, dampening=-0.5)[1] == bits(1.5 * ulp)


@pytest.mark.parametrize(("dtype", "small"), [("bfloat16", 2.0**-9), ("float16", 2.0**-12), ("float32", 2.0**-24)])
def test_the_step_uses_the_buffer_before_it_is_stored(dtype: str, small: float) -> None:
    # b = 1 + small is stored as 1. Were 1 used, p would be 0. In float32 b is 1 already in the arithmetic.
    options: Options = {"lr": 1.0, "momentum": 1.0, "dtype": dtype}
    one, wide = bits(1, dtype), dtype != "float32"
    assert stepped(1, small, 1, **options) == (bits(-small if wide else 0, dtype), one)
    # u = b + small: 1 + 2*small, and 1 + small if b were stored first.
    assert stepped(1, small, 1, nesterov=True, **options) == (bits(-2 * small if wide else 0, dtype), one)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_lr_is_not_rounded_to_the_parameters_dtype(dtype: str) -> None:
    near = float(np.array(0.1, NUMPY[dtype]))
    remainder = Fraction(near) - Fraction(float(np.float32(0.1)))
    assert remainder != 0
    # p - lr*1 with p = 0.1 in the narrow dtype: zero if lr were that too.
    assert stepped(near, 1, None, lr=0.1, dtype=dtype)[0] == bits(nearest(remainder, dtype), dtype)
    if dtype == "bfloat16":
        # 0x3DCD0000 - 0x3DCCCCCD is 13107 * 2**-27, and 13107 / 64 rounds to 205.
        assert stepped(near, 1, None, lr=0.1, dtype=dtype)[0] == bits(205 * 2.0**-21, dtype)


def test_momentum_and_weight_decay_are_not_rounded_to_the_parameters_dtype() -> None:
    dtypes: Options = {"dtype": "bfloat16", "state_dtype": "float32"}
    assert stepped(0, 0, 1, lr=1.0, momentum=0.9, **dtypes)[1] == bits(0.9)
    assert stepped(1, 0, 0, lr=1.0, momentum=0.9, weight_decay=0.01, **dtypes)[1] == bits(0.01)
    assert bits(0.9) != bits(float(ml_dtypes.bfloat16(0.9)))


def test_a_narrow_parameter_is_rounded_to_float32_and_then_stored() -> None:
    # 1 + 2**-8 + 2**-25 is 1 + 2**-8 in float32, a tie of bfloat16. Rounded straight it would be 1 + 2**-7.
    assert stepped(1, -1, None, lr=2.0**-8 + 2.0**-25, dtype="bfloat16")[0] == bits(1, "bfloat16")
    assert stepped(1, -1, None, lr=2.0**-8 + 2.0**-23, dtype="bfloat16")[0] == bits(1 + 2.0**-7, "bfloat16")


def test_a_buffer_beyond_its_dtype_is_stored_as_infinity_and_used_as_it_is() -> None:
    got = stepped(40000, 40000, 40000, lr=0.5, momentum=0.75, dtype="float16")
    assert got == (bits(5000, "float16"), bits(math.inf, "float16"))


def test_wide_gradients_and_buffers_are_rounded_when_they_are_read() -> None:
    just_above_tie, tie = 1 + 2.0**-24 + 2.0**-50, 1 + 2.0**-24
    for g, read in [(just_above_tie, 1 + 2.0**-23), (tie, 1.0), (1e300, math.inf), (5e-324, 0.0)]:
        assert stepped(0, g, None, lr=-1, grad_dtype="float64")[0] == bits(read)
        _, buffer = stepped(0, 0, g, lr=1, momentum=1, grad_dtype="float64", state_dtype="float64")
        assert buffer == bits(read, "float64")
    # Beside a float64 parameter nothing is rounded.
    assert stepped(0, just_above_tie, None, lr=-1, dtype="float64")[0] == bits(just_above_tie, "float64")
    widened = float(np.float32(0.1))
    assert stepped(0, 0.1, None, lr=-1, dtype="float64", grad_dtype="float32")[0] == bits(widened, "float64")


def test_numpy_integers_do_not_wrap_around() -> None:
    p, g, b = np.array([bits(1), bits(0.5), bits(3.5)], np.uint32)
    got = oracle_torch.torch(p, g, b, lr=0.1, momentum=0.9, first=False)
    assert got == stepped(1, 0.5, 3.5, lr=0.1, momentum=0.9)
    assert oracle_torch.torch(p, g, b, lr=0.1, first=False) == stepped(1, 0.5, 3.5, lr=0.1)


@pytest.mark.parametrize("role", ["dtype", "grad_dtype", "state_dtype"])
def test_unknown_dtypes_are_refused(role: str) -> None:
    with pytest.raises(ValueError, match=f"^{role} 'int8' is not one of"):
        torch_rule(0.1, **{role: "int8"})  # type: ignore[arg-type]


# Comparing.


Before = tuple[list[int], list[int], list[int] | None]
After = tuple[list[int], list[int]]


def updated(momentum: float, **options: Any) -> tuple[Before, After, Options]:
    """Four float32 elements before and after a right update, and the arguments for `torch_differing`.

    Element 1 computes NaN; element 2 has NaN in the buffer, with a payload; element 3 computes zeros.
    """
    arguments: Options = {"lr": 0.1, "momentum": momentum, "first": False, **options}
    rows = ([1.0, math.nan, 2.0, 0.0], [0.5, 1.0, 1.0, 0.0], [3.5, 1.0, 1.0, 0.0])
    p, g, b = ([bits(x) for x in row] for row in rows)
    b[2] = NAN32_PAYLOAD
    pairs = [oracle_torch.torch(*row, **arguments) for row in zip(p, g, b, strict=True)]
    return (p, g, b), ([x for x, _ in pairs], [y for _, y in pairs if y is not None]), arguments


@pytest.mark.parametrize("momentum", [0.9, 0.0])
def test_a_right_update_has_no_differences(momentum: float) -> None:
    before, after, arguments = updated(momentum)
    assert torch_differing(before, after, **arguments) == []


@pytest.mark.parametrize("momentum", [0.9, 0.0])
@pytest.mark.parametrize("position", [0, 3])
@pytest.mark.parametrize("flip", [1, 0x80000000])
@pytest.mark.parametrize(("column", "tensor"), [(0, "parameters"), (1, "momentum_buffer")])
def test_one_flipped_bit_is_found(momentum: float, position: int, flip: int, column: int, tensor: str) -> None:
    before, after, arguments = updated(momentum)
    right = after[column][position]
    after[column][position] ^= flip
    assert torch_differing(before, after, **arguments) == [(tensor, position, right, right ^ flip)]


def test_differences_come_in_order_of_position() -> None:
    before, after, arguments = updated(0.9)
    after[0][3] ^= 1
    after[1][0] ^= 1
    after[0][0] ^= 1
    found = torch_differing(before, after, **arguments)
    assert [(x.tensor, x.position) for x in found] == [
        ("parameters", 0), ("momentum_buffer", 0), ("parameters", 3),
    ]


@pytest.mark.parametrize(("momentum", "reported"), [(0.9, False), (0.0, True)])
def test_a_changed_payload_counts_only_where_nothing_is_written(momentum: float, reported: bool) -> None:
    before, after, arguments = updated(momentum)
    after[0][1] ^= 0x80000001
    assert torch_differing(before, after, **arguments) == []
    right = after[1][2]
    after[1][2] ^= 2
    expected = [("momentum_buffer", 2, right, right ^ 2)] if reported else []
    assert torch_differing(before, after, **arguments) == expected


def test_a_buffer_that_does_not_exist() -> None:
    (p, g, b), (new_p, _), arguments = updated(0.0)
    assert torch_differing((p, g, None), (new_p, None), **arguments) == []
    for old, new in [(None, b), (b, None)]:
        with pytest.raises(ValueError, match="exists after the step"):
            torch_differing((p, g, old), (new_p, new), **arguments)
    before, after, arguments = updated(0.9, first=True)
    assert torch_differing((*before[:2], None), after, **arguments) == []
    with pytest.raises(ValueError, match="exists after the step"):
        torch_differing(before, (after[0], None), **arguments)


def test_numpy_columns_are_accepted_and_python_ints_come_back() -> None:
    before, after, arguments = updated(0.9)
    after[1][0] ^= 1
    p, g, b, new_p, new_b = (np.array(x, np.uint32) for x in (*before, *after))
    found = torch_differing((p, g, b), (new_p, new_b), **arguments)  # type: ignore[arg-type]
    assert found == torch_differing(before, after, **arguments) and len(found) == 1
    assert type(found[0].expected) is type(found[0].got) is int


def test_the_arguments_reach_the_comparison() -> None:
    rng = np.random.default_rng(61)
    p, g, b = (rng.normal(0, 2, 60).astype(np.float32).view(np.uint32).tolist() for _ in range(3))
    common: Options = {"lr": 0.1, "momentum": 0.9, "first": False}
    variants: list[Options] = [
        {}, {"lr": 0.2}, {"momentum": 0.8}, {"momentum": 0.0}, {"dampening": 0.3}, {"weight_decay": 0.5},
        {"nesterov": True}, {"maximize": True}, {"first": True},
    ]
    for made in variants:
        pairs = [oracle_torch.torch(*row, **(common | made)) for row in zip(p, g, b, strict=True)]
        after = [x for x, _ in pairs], [y for _, y in pairs if y is not None]
        for judged in variants:
            agrees = torch_differing((p, g, b), after, **(common | judged)) == []
            assert agrees == (made is judged), (made, judged)


@pytest.mark.parametrize("column", [0, 1])
def test_columns_of_unequal_length_are_refused(column: int) -> None:
    before, after, arguments = updated(0.9)
    after[column].pop()
    with pytest.raises(ValueError, match="zip"):
        torch_differing(before, after, **arguments)


def test_the_judge_depends_on_nothing_it_judges() -> None:
    tree = ast.parse(Path(oracle_torch.__file__).read_text(encoding="utf-8"))
    imported: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            imported.add(node.module or "")
    assert imported == {
        "__future__", "struct", "collections.abc", "operator", "typing", "samestep.verify.oracle",
    }
