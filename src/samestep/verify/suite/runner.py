"""Running the conformance suite: every item on a target, judged to the bit."""

from __future__ import annotations

import itertools
import platform
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from importlib import metadata
from typing import Any

import numpy as np

import samestep
from samestep.verify.observation import Observation, Problem, Target, observe
from samestep.verify.patterns import ulps
from samestep.verify.suite import cases, refusals
from samestep.verify.suite.draw import Item
from samestep.verify.suite.guard import JudgesEnvironment, call_guarded
from samestep.verify.suite.judge import Found, judge
from samestep.verify.suite.results import BINS, Check, Failure, Results
from samestep.verify.suite.shrink import shrink
from samestep.verify.suite.target import Subject

Watch = Callable[[int, int, int], None]  # items done, items in all, items failed


def run(
    subject: Subject, *, rule: str = "cann", order: str = "spec", level: str = "quick",
    dtypes: Sequence[str] | None = None, seed: int = 0, with_refusals: bool | None = None,
    watch: Watch = lambda done, total, failed: None,
) -> Results:
    """Judge `subject` by every item of `level` (``quick`` or ``full``) and name the rule where it fails.

    `rule` is ``cann`` or ``torch``, `order` the evaluation order of rule cann. Refusals are asked of engines, and of
    other targets if `with_refusals`. What the target raises on a legal input is a failed item.
    """
    started = time.perf_counter()
    asked = subject.engine if with_refusals is None else with_refusals
    kept = [case for case in refusals.refusals(rule, dtypes) if subject.engine or not case.engines_only] * asked
    drawn = partial(cases.items, rule, level=level, order=order, dtypes=dtypes, seed=seed)
    total = sum(1 for _ in drawn()) + len(kept)
    checks: list[Check] = []
    failed = 0
    with JudgesEnvironment() as environment, np.errstate(all="ignore"):
        judging = Judging(partial(environment.call, subject.run), order)
        asking = (refused(judging.target, case, subject.engine) for case in kept)
        for check in itertools.chain(asking, map(judging.check, drawn())):
            checks.append(check)
            failed += not check.passed
            watch(len(checks), total, failed)
        sentences = named(judging.target, checks, rule, order, seed)
    return Results(subject.name, rule, order, level, seed, time.perf_counter() - started, versions(), checks,
                   judging.histogram, sentences)


class Judging:
    """Items judged one after the other, and what is counted over all of them.

    Of the first `shrunk` failures of a rule and dtype the smallest input is looked for.
    """

    def __init__(self, target: Target, order: str, shrunk: int = 2) -> None:
        self.target = target
        self.order = order
        self.histogram: dict[tuple[str, str], list[int]] = {}
        self._most = shrunk
        self._shrunk: Counter[tuple[str, str]] = Counter()

    def check(self, item: Item) -> Check:
        """Run the target on one item and compare."""
        problem = item.problem()
        seen = self._observed(problem, item)
        outcome = seen if isinstance(seen, str) else judge(seen, self.order)
        if not isinstance(outcome, list):
            return Check(item.name, item.family, item.rule, item.dtype, False, 0, str(outcome))
        elements, worst, failure = 0, 0.0, None
        for found in outcome:
            elements += found.got.size * (found.tensor != "gradient")
            worst = max(worst, self._count(found, item.dtype))
            if found.wrong is not None and failure is None:
                failure = failure_of(found, item.dtype)
        if failure is None:
            return Check(item.name, item.family, item.rule, item.dtype, True, elements)
        failure = self._smallest(item, problem, failure)
        wrong = sum(int(found.wrong.sum()) for found in outcome if found.wrong is not None)
        message = ", ".join(f"{int(found.wrong.sum()):,} of {found.got.size:,} elements of {found.tensor} differ"
                            for found in outcome if found.wrong is not None)
        return Check(item.name, item.family, item.rule, item.dtype, False, elements, message,
                     failure._replace(found=wrong), worst)

    def _observed(self, problem: Problem, item: Item) -> Observation | str:
        """What the target did, or why that cannot be judged."""
        target = partial(call_guarded, self.target) if item.guarded else self.target
        try:
            return observe(target, problem, offset=item.offset)
        except (Exception, SystemExit) as error:
            return f"{type(error).__name__}: {error}"

    def _count(self, found: Found, dtype: str) -> float:
        """Put the elements into the histogram; the largest distance."""
        if found.tensor == "gradient" and found.wrong is None:
            return 0.0
        bins = self.histogram.setdefault((dtype, found.tensor), [0] * (len(BINS) + 1))
        if found.wrong is None:
            bins[0] += found.got.size
            return 0.0
        apart = np.where(found.wrong, ulps(found.expected, found.got, dtype), 0.0)
        for place, count in enumerate(np.bincount(np.searchsorted(BINS, apart), minlength=len(bins)).tolist()):
            bins[place] += count
        return float(apart.max())

    def _smallest(self, item: Item, problem: Problem, failure: Failure) -> Failure:
        """The failure of the smallest input that the same tensor is wrong for, for the first few failures."""
        if self._shrunk[item.rule, item.dtype] >= self._most:
            return failure
        self._shrunk[item.rule, item.dtype] += 1
        best: list[Failure] = []

        def fails(candidate: Problem) -> bool:
            seen = self._observed(candidate, item)
            if isinstance(seen, str) or isinstance(outcome := judge(seen, self.order), str):
                return False
            for found in outcome:
                if found.wrong is not None and found.tensor == failure.tensor:
                    best[:] = [failure_of(found, item.dtype)._replace(problem=candidate, observed=seen)]
                    return True
            return False

        shrink(problem, failure.position, fails)
        return best[0] if best else failure._replace(problem=problem)


def failure_of(found: Found, dtype: str) -> Failure:
    """The first wrong element of a tensor."""
    assert found.wrong is not None
    at = int(np.argmax(found.wrong))
    one, other = found.expected[at:at + 1], found.got[at:at + 1]
    return Failure(found.tensor, at, int(one[0]), int(other[0]), dtype, float(ulps(one, other, dtype)[0]),
                   int(found.wrong.sum()), None)


def refused(target: Target, case: refusals.Refusal, engine: bool) -> Check:
    """Ask for a refusal: an exception has to come, of an engine the right one, and nothing may be written."""
    call = case.make()
    before = [memory_of(argument) for argument in call.arguments]
    message = ""
    try:
        target(*call.arguments, **call.attributes)
    except (Exception, SystemExit) as error:
        code = getattr(error, "code", None)
        if engine and case.code and code != case.code:
            message = f"expected the code {case.code}, came {type(error).__name__}: {error}"
    else:
        message = f"expected an error{f' with code {case.code}' if case.code else ''}, none came"
    if before != [memory_of(argument) for argument in call.arguments]:
        message = f"{message}{'; ' if message else ''}memory was written"
    return Check(case.name, "refusals", case.rule, case.dtype, not message, 0, message)


def memory_of(array: Any) -> bytes:
    """All bytes of the array that owns the memory of `array`."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    content: bytes = array.tobytes()
    return content


def named(target: Target, checks: Sequence[Check], rule: str, order: str, seed: int) -> dict[str, str]:
    """For every dtype with a wrong element, what the target does instead, in a sentence."""
    wrong = dict.fromkeys(check.dtype for check in checks if check.failure is not None)
    if not wrong:
        return {}
    from samestep.verify import fingerprint  # heavy, and needed only where something failed

    sentences = {}
    for dtype in wrong:
        try:
            verdict = fingerprint.of_callable(target, dtype=dtype, rule=rule, order=order, seed=seed)
            sentences[dtype] = verdict.sentence
        except Exception as error:  # the target's own, on inputs that no item had; the results are worth more
            sentences[dtype] = f"not found, because asking raised {type(error).__name__}: {error}"
    return sentences


def versions() -> dict[str, str]:
    """What the judging depends on."""
    return {"samestep": samestep.__version__, "python": platform.python_version(),
            **{name: metadata.version(name) for name in ("numpy", "numba", "ml_dtypes")}}
