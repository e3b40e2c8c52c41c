"""A recorded step against the rule: bits, ULPs, places, the update itself, and today's acceptance rules beside them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from samestep.engine import fpenv
from samestep.verify.compare import metrics, places
from samestep.verify.compare.metrics import Metric
from samestep.verify.compare.places import Places
from samestep.verify.observation import Observation, Problem
from samestep.verify.patterns import Words, differs, ranks, ulps
from samestep.verify.suite import judge
from samestep.verify.suite.results import BINS

PIECE = 1 << 20  # elements measured at a time: distances are float64, and must not take more memory than the tensors


class TensorComparison(NamedTuple):
    """One written tensor: parameters, accum or stat; for rule torch parameters or momentum_buffer.

    `expected` and `got` are the patterns at `first`, the first differing index (None where the bits are the same).
    ULPs are over all elements; `max_ulp` is infinite where one of the two is a NaN, `mean_ulp` leaves those out and
    `nan_against_number` counts them. `histogram` counts elements by distance: one for each of `results.BINS`, and one
    for what lies beyond. Bits may differ at 0 ULP: +0 and -0, or NaN payloads in memory that must not be written.
    """

    name: str
    elements: int
    differing: int
    max_ulp: float
    mean_ulp: float
    nan_against_number: int
    first: int | None
    expected: int | None
    got: int | None
    places: Places
    histogram: list[int]
    metrics: list[Metric]


class Update(NamedTuple):
    """p_in - p_out in units of the parameter's last place: what should have moved, and what did.

    `expected_moved` and `got_moved` count parameters whose value changes, `still` those that should and do not,
    `backwards` those that move to the other side. The means and maxima are of |p_in - p_out| in ULPs, over all
    elements that are numbers before and after.
    """

    elements: int
    expected_moved: int
    got_moved: int
    still: int
    backwards: int
    expected_mean: float
    got_mean: float
    expected_max: float
    got_max: float


class Comparison(NamedTuple):
    """One step of a dump judged by rule `problem.rule` in `order` (rule torch knows no order: None).

    `tensors` holds those that were recorded, `missing` names those that were not, `unexpected` a momentum buffer that
    was recorded although the step makes none. `gradient_differing` counts elements of the gradient, which is only
    read, whose bits changed (0 if it was not recorded again).
    """

    step: int
    problem: Problem
    order: str | None
    tensors: list[TensorComparison]
    missing: list[str]
    unexpected: list[str]
    gradient_differing: int
    update: Update

    @property
    def same(self) -> bool:
        """Whether everything that was recorded has the rule's bits."""
        changed = self.gradient_differing or self.unexpected
        return not changed and not any(tensor.differing for tensor in self.tensors)

    @property
    def passing(self) -> list[str]:
        """Those of today's rules that pass every recorded tensor."""
        return [name for name in metrics.NAMES
                if all(metric.passed for tensor in self.tensors for metric in tensor.metrics if metric.name == name)]


def compare(observation: Observation, order: str = "spec", step: int = 0) -> Comparison:
    """Judge one recorded step by its rule; `order` is the evaluation order of rule cann, `step` its number.

    What was expected is computed from the inputs as they were recorded, so one wrong step does not make the next wrong.
    """
    problem = observation.problem
    computed = not judge.keeps_state(problem)
    with fpenv.default(), np.errstate(all="ignore"):
        right = judge.expected(problem, order)
        compared, missing, unexpected = [], [], []
        for name, expected, got, is_computed in (
            ("parameters", right.parameters, observation.parameters, True),
            ("accum" if problem.rule == "cann" else "momentum_buffer", right.accum, observation.accum, computed),
            ("stat", right.stat, observation.stat, computed),
        ):
            if expected is not None and got is not None:
                compared.append(_tensor(name, expected, got, problem.dtype, is_computed))
            elif expected is not None:
                missing.append(name)
            elif got is not None:
                unexpected.append(name)
        again = observation.gradient
        changed = 0 if again is None else int(np.count_nonzero(problem.gradient != again))
        update = _update(problem, right.parameters, observation.parameters)
    return Comparison(step, problem, order if problem.rule == "cann" else None, compared, missing, unexpected, changed,
                      update)


def _slices(size: int) -> Iterator[slice]:
    return (slice(start, start + PIECE) for start in range(0, size, PIECE))


def _tensor(name: str, expected: Words, got: Words, dtype: str, computed: bool) -> TensorComparison:
    wrong = np.zeros(expected.size, np.bool_)
    histogram = np.zeros(len(BINS) + 1, np.int64)
    total, most, numbers = 0.0, 0.0, 0
    for part in _slices(expected.size):
        wrong[part] = differs(expected[part], got[part], dtype, computed=computed)
        apart = ulps(expected[part], got[part], dtype)
        histogram += np.bincount(np.searchsorted(BINS, apart), minlength=len(BINS) + 1)
        finite = apart[np.isfinite(apart)]
        total, numbers, most = total + float(finite.sum()), numbers + finite.size, max(most, float(apart.max()))
    first = int(wrong.argmax()) if wrong.any() else None
    one, other = (None, None) if first is None else (int(expected[first]), int(got[first]))
    return TensorComparison(
        name, expected.size, int(np.count_nonzero(wrong)), most, total / numbers if numbers else 0.0,
        expected.size - numbers, first, one, other, places.places(wrong), histogram.tolist(),
        metrics.judged(expected, got, dtype))


def _update(problem: Problem, expected: Words, got: Words) -> Update:
    dtype = problem.dtype
    counts = np.zeros(4, np.int64)
    sums, most = [0.0, 0.0], [0.0, 0.0]
    numbers = 0
    for part in _slices(expected.size):
        before = problem.parameters[part]
        right, came = (ulps(before, after[part], dtype) for after in (expected, got))
        right_down, came_down = (_below(before, after[part], dtype) for after in (expected, got))
        backwards = (right > 0) & (came > 0) & (right_down != came_down) & np.isfinite(right + came)
        counts += [np.count_nonzero(flags)
                   for flags in (right > 0, came > 0, (right > 0) & (came == 0), backwards)]
        finite = np.isfinite(right + came)
        numbers += int(np.count_nonzero(finite))
        for k, moved in enumerate((right, came)):
            if finite.any():
                sums[k] += float(moved[finite].sum())
                most[k] = max(most[k], float(moved[finite].max()))
    means = [total / numbers if numbers else 0.0 for total in sums]
    return Update(expected.size, *counts.tolist(), *means, *most)


def _below(before: Words, after: Words, dtype: str) -> NDArray[np.bool_]:
    lower: NDArray[np.bool_] = ranks(after, dtype) < ranks(before, dtype)
    return lower


def verdict(comparisons: list[Comparison]) -> str:
    """What was found, in one sentence or two."""
    problem, wrong = comparisons[0].problem, [comparison for comparison in comparisons if not comparison.same]
    by = f"rule {problem.rule}" + (f", order {comparisons[0].order}" if comparisons[0].order else "")
    steps = len(comparisons)
    if not wrong:
        names = _listed([tensor.name for tensor in comparisons[0].tensors])
        where = f" in all {steps} steps" if steps > 1 else ""
        missing = sorted({name for comparison in comparisons for name in comparison.missing})
        unseen = f"; not recorded, so not judged: {_listed(missing)}" if missing else ""
        count = sum(tensor.elements for comparison in comparisons for tensor in comparison.tensors)
        return f"The same bits as {by}{where}: {names}, {count:,} elements{unseen}."
    first = wrong[0]
    parts = [f"{tensor.name} in {tensor.differing:,} of {tensor.elements:,} elements"
             for tensor in first.tensors if tensor.differing]
    parts += [f"the gradient, which is only read, in {first.gradient_differing:,}"] * bool(first.gradient_differing)
    parts += [f"a {name} that this step does not make" for name in first.unexpected]
    where = f" in {len(wrong)} of {steps} steps, first in step {first.step}" if steps > 1 else ""
    text = f"NOT the bits of {by}{where}: {_listed(parts)}."
    if first.update.expected_moved and not first.update.got_moved:
        text += f" No parameter was updated; {first.update.expected_moved:,} should have changed."
    if first.passing:
        text += f" Of today's rules, {_listed(first.passing)} would pass it."
    return text


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
