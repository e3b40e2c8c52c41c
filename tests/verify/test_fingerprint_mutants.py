"""Kernels that go wrong on purpose: the suite fails each, and the fingerprint says what each does instead.

What a step can tell is worked out without the fingerprint: a dump tells a deviation if no other kernel of the list, and
not the right one, would have written the same bits.
"""

from __future__ import annotations

import functools
import zlib

import numpy as np
import pytest

from samestep.verify import fingerprint
from samestep.verify.fingerprint.evaluate import Case
from samestep.verify.fingerprint.hypotheses import Hypothesis
from samestep.verify.observation import Problem, observe
from samestep.verify.patterns import differs
from samestep.verify.suite import cases, draw
from samestep.verify.suite.judge import judge
from verify.deviations import DTYPES, PAIRS, SINGLE, Deviation, Step
from verify.mutants import MASKS, Kernel, Split

ELEMENTS = 4096
RIGHT = Deviation("right", Kernel())
EVERY = [(deviation, dtype) for deviation in SINGLE + PAIRS for dtype in deviation.dtypes]


def problem(step: Step, dtype: str, elements: int = ELEMENTS) -> Problem:
    """A step of random elements: any patterns, ordinary numbers, special ones."""
    rng = np.random.default_rng(zlib.crc32(f"{dtype}{step}".encode()))
    tensors = [*(draw.mixed(rng, (elements,), dtype) for _ in range(3)), draw.stats(rng, (elements,), dtype)]
    return Problem(dtype, (elements,), *tensors, step.learning_rate, step.momentum, step.dampening, step.weight_decay,
                   step.nesterov)


def same(one, other):
    """Whether two observations hold the same bits (O9)."""
    return (one.gradient == other.gradient).all() and not any(
        differs(getattr(one, name), getattr(other, name), one.problem.dtype).any()
        for name in ("parameters", "accum", "stat"))


@functools.lru_cache(maxsize=2048)
def recorded(kernel, step, dtype, elements):
    return observe(kernel, problem(step, dtype, elements))


def dump(deviation, dtype, kernel=None):
    """One recorded step of a mutant, or of another kernel; of one that has a tail, of a length that leaves one."""
    elements = ELEMENTS - isinstance(deviation.kernel, Split)
    return recorded(kernel or deviation.kernel, deviation.step, dtype, elements)


def tells(deviation, dtype):
    """Whether the right kernel, every single deviation and those next to this one would have written something else.

    Next to it are kernels in which one part of a tensor, or one thing of those that vary, is as in another deviation.
    """
    seen = dump(deviation, dtype)
    own, whole = deviation.kernel, [Kernel(), *(one.kernel for one in SINGLE if isinstance(one.kernel, Kernel))]
    if isinstance(own, Split):
        other = [Kernel(), *(own._replace(**{part: kernel}) for part in ("body", "tail") for kernel in whole)]
    else:
        other = whole + [own._replace(**{field: getattr(kernel, field)}) for kernel in whole if kernel.rule == own.rule
                         for field in own._fields if getattr(own, field) != getattr(Kernel(), field)]
    return not any(same(dump(deviation, dtype, kernel), seen)
                   for kernel in dict.fromkeys(other) if kernel not in (own, *deviation.same))


def truths(deviation, dtype):
    """What may be named, each as a set: for a mutant of parts what both parts do."""
    if isinstance(deviation.kernel, Split):
        return [{Hypothesis(**kernel._asdict()) for kernel in deviation.kernel[:2]}]
    found = [Hypothesis(**kernel._asdict()) for kernel in (deviation.kernel, *deviation.same)]
    if dtype == "float16":
        names = [(h, name) for h in found for name in (f"float16-{h.mask}", h.mask.removeprefix("float16-"))]
        found += [h._replace(mask=name) for h, name in names if name in MASKS]
        # The product of two float16 is exact in float32: fused or not is the same.
        for site, exact_where in (("velocity/accum", lambda h: True),
                                  ("nesterov/grad", lambda h: "weight decay ignored" in h.faults),
                                  ("step", lambda h: h.order == "spec" and "p from the stored accum" in h.faults)):
            found += [h._replace(fused=h.fused ^ {site}) for h in found
                      if h.rule == "cann" and h.inner == "float32" and exact_where(h)]
    return [{h} for h in found]


def exact(verdict, deviation, dtype):
    """The verdict's first hypothesis (of each part) is the truth."""
    first = verdict.hypotheses[:2 if isinstance(deviation.kernel, Split) else 1]
    return {h._replace(where="all") for h in first} in truths(deviation, dtype)


def wrong(verdict, deviation, dtype):
    """The verdict is certain, and the truth, or the width of a body's vectors, is not among what it names."""
    if isinstance(deviation.kernel, Split) and verdict.certain:
        body = f"body of vectors of {deviation.kernel.width}"
        if verdict.hypotheses[0].where != body:
            return True
    named = {h._replace(where="all") for h in verdict.hypotheses}
    return verdict.certain and not any(truth <= named for truth in truths(deviation, dtype))


def asked(deviation, dtype):
    return fingerprint.of_callable(deviation.kernel, dtype=dtype), True


def told(deviation, dtype):
    """The verdict on one recorded step, and whether the step can tell.

    None for a tail of few elements that come out right: the tensor is right then.
    """
    seen = dump(deviation, dtype)
    if isinstance(deviation.kernel, Split) and same(dump(deviation, dtype, Kernel()), seen):
        return None
    return fingerprint.of_dump([seen]), tells(deviation, dtype)


def check(mutants, judged, rate):
    """The fingerprint `judged` names at least `rate` of what can be told exactly, and nothing wrong as certain."""
    missed, found = [], 0
    for deviation, dtype in mutants:
        answer = judged(deviation, dtype)
        if answer is None:
            continue
        verdict, told_apart = answer
        assert not wrong(verdict, deviation, dtype), (deviation.name, dtype, verdict.sentence)
        if exact(verdict, deviation, dtype):
            found += told_apart
        elif told_apart:
            missed.append(f"{deviation.name} {dtype}: {verdict.sentence}")
    assert found
    assert found >= rate * (found + len(missed)), "\n".join(missed)


def failing(deviation, dtype, level):
    """Whether the suite of a level has an item that the mutant fails."""
    with np.errstate(all="ignore"):
        for item in cases.items(level=level, dtypes=(dtype,)):
            found = judge(observe(deviation.kernel, item.problem(), offset=item.offset), "spec")
            if isinstance(found, str) or any(tensor.wrong is not None for tensor in found):
                return True
    return False


def picked(names):
    return [(deviation, dtype) for name, dtype in names for deviation in SINGLE + PAIRS if deviation.name == name]


# One mutant of every kind: what is asked of it takes seconds.
ASKED = (("step fused", "float32"), ("parameters truncated", "float16"), ("mask above 1e-6", "float32"),
         ("truncated when stored", "bfloat16"), ("tail of 32 without dampening", "float32"),
         ("weight decay fused + stat kept", "float32"))
TURNING = [(deviation, deviation.dtypes[k % len(deviation.dtypes)])
           for k, deviation in enumerate([*SINGLE, *PAIRS[::6]])]
DUMPED = [(deviation, dtype) for deviation in [*SINGLE, *PAIRS[::4]] for dtype in deviation.dtypes]


def test_there_are_many_deviations_and_each_says_something_else():
    assert len(SINGLE) >= 80
    assert len(PAIRS) >= 60
    names = [deviation.name for deviation in SINGLE + PAIRS]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_suite_passes_the_kernel_without_deviations(dtype):
    assert not failing(RIGHT, dtype, "quick")


@pytest.mark.parametrize("dtype", ["bfloat16", *(pytest.param(dtype, marks=pytest.mark.exhaustive)
                                                 for dtype in ("float32", "float16"))])
def test_the_kernel_without_deviations_is_named(dtype):
    verdict, _ = asked(RIGHT, dtype)
    assert verdict.certain
    assert verdict.hypotheses[0] == Hypothesis()


@pytest.mark.parametrize("dtype", DTYPES)
def test_mutants_do_what_they_say(dtype):
    """What the fingerprint's evaluation expects of the truth is what the mutant computes."""
    for deviation, kind in EVERY:
        if kind == dtype and not isinstance(deviation.kernel, Split):
            case = Case(dump(deviation, dtype))
            for truth in truths(deviation, dtype):
                assert case.matches(*truth), (deviation.name, truth)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_suite_fails_mutants(dtype):
    for deviation in SINGLE[::3]:
        assert dtype not in deviation.dtypes or failing(deviation, dtype, "quick"), deviation.name


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_suite_fails_every_mutant(dtype):
    """Quick finds nearly all; what fused sums do to 16-bit tensors takes the full level."""
    left = [one for one, kind in EVERY if kind == dtype and not failing(one, dtype, "quick")]
    assert len(left) <= 3, [one.name for one in left]
    for deviation in left:
        assert failing(deviation, dtype, "full"), deviation.name


@pytest.mark.parametrize(("name", "dtype"), ASKED)
def test_a_callable_is_named(name, dtype):
    check(picked([(name, dtype)]), asked, 1.0)


def test_some_dumps_are_named():
    check(EVERY[::60], told, 0.9)


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", DTYPES)
def test_callables_of_every_kind_are_named(dtype):
    """Every single deviation in one dtype, in turn, and some pairs."""
    check([(deviation, kind) for deviation, kind in TURNING if kind == dtype], asked, 0.95)


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", DTYPES)
def test_dumps_of_every_kind_are_named(dtype):
    """Every single deviation in all its dtypes, and some pairs."""
    check([(deviation, kind) for deviation, kind in DUMPED if kind == dtype], told, 0.9)
