"""Every pair of patterns of (parameters, gradient) in 16 bits: 2**32 a key and dtype, each judged to the bit.

A part is one key in one dtype. It is gone through in 65,536 rounds, one pattern of parameters with every pattern of
the gradient; accum, stat, learning rate and momentum follow from the pair. What was found up to a round is kept in a
file of the part, which is replaced as a whole: a run that was killed goes on where the file says, and no pair is
counted twice or left out.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np

from samestep.verify.observation import Problem
from samestep.verify.patterns import Words, word_of
from samestep.verify.suite.draw import Item, Rng
from samestep.verify.suite.guard import JudgesEnvironment
from samestep.verify.suite.results import Check, Results
from samestep.verify.suite.runner import Judging, named, versions
from samestep.verify.suite.target import Subject
from samestep.verify.suite.variants import KEYS

PATTERNS = 1 << 16
DTYPES = ("bfloat16", "float16")
FORMAT = 1  # goes up when rounds or the file change, so that no old state is continued
KEEP_EVERY = 2.0  # seconds
STATS = (0.0, 1.0, 0.0, 1.0, 0.25, 0.7, 0.0, 1.0, 2.0, -0.0, 0.0, -1.0, 1e-3, 1.0, 0.0, float("nan"))
# Cycles of unequal length, so that every momentum meets every learning rate.
MOMENTA = (0.9, 0.5, 0.0, 0.99, -0.5, 0.9, -0.0)
LEARNING_RATES = (0.1, 1e-3, 1.0, 0.01)


class StoppedError(ValueError):
    """A run that cannot go on: a state that cannot be read, or a worker that died."""


class Part(NamedTuple):
    """One key in one dtype."""

    key: str
    dtype: str


class State(NamedTuple):
    """What a part found in its first `rounds` rounds; `first` is the first one with a wrong element, -1 for none."""

    rounds: int = 0
    elements: int = 0
    wrong: int = 0
    worst: float = 0.0
    first: int = -1
    message: str = ""
    histogram: dict[str, list[int]] = {}  # noqa: RUF012  # never changed in place


class Run(NamedTuple):
    """What a worker has to know. `make` makes the subject, in the worker; `limit` is the rounds of a part."""

    make: Callable[[], Subject]
    order: str
    seed: int
    folder: Path
    limit: int = PATTERNS


def run(
    plan: Run, parts: Sequence[Part], *, processes: int = 2, watch: Callable[[int, int, int], None],
) -> Results:
    """Go through the parts in so many processes, from where their files say; judge by rule cann.

    `watch` is called every half second with the rounds done, the rounds in all and the parts with a wrong element.
    Raises `StoppedError`, and OSError where the folder cannot be written.
    """
    started = time.perf_counter()
    subject = plan.make()
    plan.folder.mkdir(parents=True, exist_ok=True)
    paths = [path_of(plan, subject, part) for part in parts]

    def show() -> list[State]:
        states = [read(path) for path in paths]
        done = sum(min(state.rounds, plan.limit) for state in states)
        watch(done, plan.limit * len(parts), sum(state.first >= 0 for state in states))
        return states

    show()
    # A worker that waited for more work would outlive a killed parent.
    with ProcessPoolExecutor(min(processes, len(parts)), get_context("spawn"), max_tasks_per_child=1) as pool:
        waiting = {pool.submit(work, plan, part, path, os.getpid()) for part, path in zip(parts, paths, strict=True)}
        try:
            while waiting:
                done, waiting = wait(waiting, timeout=0.5, return_when=FIRST_EXCEPTION)
                for future in done:
                    future.result()
                show()
        except BrokenProcessPool:
            raise StoppedError("a worker died, perhaps of a crash in the target; what it had done is kept") from None
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return _results(plan, subject, parts, show(), time.perf_counter() - started)


def work(plan: Run, part: Part, path: Path, parent: int | None = None) -> None:
    """Go through the rounds of a part that its file does not hold yet; stop when the `parent` is gone."""
    subject = plan.make()
    state = read(path)
    with JudgesEnvironment() as environment, np.errstate(all="ignore"):
        judging = Judging(partial(environment.call, subject.run), plan.order, shrunk=0)
        judging.histogram = {(part.dtype, tensor): list(bins) for tensor, bins in state.histogram.items()}
        kept = time.monotonic()
        while state.rounds < plan.limit:
            state = _after(state, judging.check(round_of(part, state.rounds, plan.seed)), judging)
            if time.monotonic() - kept > KEEP_EVERY:
                if parent is not None and os.getppid() != parent:
                    return
                keep(path, state)
                kept = time.monotonic()
    keep(path, state)


def _after(state: State, check: Check, judging: Judging) -> State:
    """The state after one more round."""
    found = 0 if check.failure is None else check.failure.found
    first = state.first < 0 and not check.passed
    return State(
        state.rounds + 1, state.elements + check.elements, state.wrong + found, max(state.worst, check.ulps),
        state.rounds if first else state.first, check.message if first else state.message,
        {tensor: bins for (_, tensor), bins in judging.histogram.items()})


def round_of(part: Part, index: int, seed: int = 0) -> Item:
    """One pattern of parameters, another one for every index, with every pattern of the gradient."""
    return Item(f"exhaustive/{part.dtype}/{part.key}/round {index}", "exhaustive", "O5", part.dtype,
                partial(_pairs, part=part, index=index), seed=seed)


def _pairs(rng: Rng, part: Part, index: int) -> Problem:
    # An odd factor makes a permutation, so that few rounds already see patterns from everywhere.
    word = index * 40503 % PATTERNS
    gradient = np.arange(PATTERNS, dtype=np.uint16)
    p = np.full(PATTERNS, word, np.uint16)
    accum = gradient * np.uint16(25173) + np.uint16(word * 13849 % PATTERNS)
    stat = _stats(part.dtype)[gradient * np.uint16(2531) + np.uint16(word) >> np.uint16(12)]
    variant = KEYS[part.key]
    return Problem(part.dtype, (PATTERNS,), p, gradient, accum, stat, LEARNING_RATES[index % len(LEARNING_RATES)],
                   MOMENTA[index % len(MOMENTA)], 0.3 * variant.dampening, 0.01 * variant.weight_decay,
                   variant.nesterov)


@functools.cache
def _stats(dtype: str) -> Words:
    return np.array([word_of(number, dtype) for number in STATS], np.uint16)


def path_of(plan: Run, subject: Subject, part: Part) -> Path:
    """The file of a part: another one for another subject, source, order or seed, so that no state is mixed up."""
    about = [FORMAT, subject.name, subject.identity, plan.order, plan.seed]
    digest = hashlib.sha256(json.dumps(about).encode()).hexdigest()[:12]
    return plan.folder / f"{part.dtype}-{part.key}-{digest}.json"


def read(path: Path) -> State:
    """The state that a file holds; that of no rounds where there is no file."""
    try:
        return State(**json.loads(path.read_text()))
    except FileNotFoundError:
        return State()
    except (ValueError, TypeError) as error:
        raise StoppedError(f"{path} holds no state of a run ({error}); delete it to begin that part again") from None


def keep(path: Path, state: State) -> None:
    """Replace the file as a whole: whenever the process is killed, one state or the other is there."""
    beside = path.with_suffix(f".{os.getpid()}")
    beside.write_text(json.dumps(state._asdict()))
    os.replace(beside, path)


def _results(plan: Run, subject: Subject, parts: Sequence[Part], states: Sequence[State], seconds: float) -> Results:
    """A check for each part; of failed ones the first wrong round is done again, to find its smallest input."""
    checks: list[Check] = []
    histogram: dict[tuple[str, str], list[int]] = {}
    with JudgesEnvironment() as environment, np.errstate(all="ignore"):
        judging = Judging(partial(environment.call, subject.run), plan.order)
        for part, state in zip(parts, states, strict=True):
            assert state.rounds >= plan.limit, part
            check = Check(f"exhaustive/{part.dtype}/{part.key}", "exhaustive", "O5", part.dtype, state.first < 0,
                          state.elements, state.message, None, state.worst)
            if state.first >= 0:
                failure = judging.check(round_of(part, state.first, plan.seed)).failure
                found = None if failure is None else failure._replace(found=state.wrong)
                check = check._replace(failure=found, message=f"round {state.first}: {state.message}")
            checks.append(check)
            for tensor, bins in state.histogram.items():
                old = histogram.get((part.dtype, tensor), [0] * len(bins))
                histogram[part.dtype, tensor] = [one + other for one, other in zip(old, bins, strict=True)]
        sentences = named(judging.target, checks, "cann", plan.order, plan.seed)
    return Results(subject.name, "cann", plan.order, "exhaustive", plan.seed, seconds, versions(), checks, histogram,
                   sentences)
