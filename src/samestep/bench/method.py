"""How the benchmark measures; docs/benchmark.md gives the reasons.

Nothing here imports NumPy: a process is pinned before a library starts threads, which keep the processors they began
with.
"""

from __future__ import annotations

import gc
import itertools
import math
import os
import signal
import threading
import time
from bisect import insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

Clock = Callable[[], float]
NOISY = 1.5  # times the running median
JUDGED_FROM = 5  # rounds that make a running median
SAMPLE = 1e-3  # seconds that a sample of a small step lasts
PLACED_ANEW = 1 << 20  # elements from which it matters where arrays lie in memory
WARM = 1 << 28  # bytes of a step, above which nothing of the step before is left in a cache


class Plan(NamedTuple):
    """How long a run takes: seconds of rounds for a case and the fewest rounds, `placements` of large tensors, and the
    seconds that a peer has to become ready.
    """

    seconds: float = 3.0
    rounds: int = 9
    placements: int = 3
    ready: float = 120.0


FULL = Plan()
QUICK = Plan(seconds=0.25, rounds=5, placements=1, ready=60.0)


class TookTooLong(BaseException):
    """A peer was not ready in time; no Exception, since what a peer runs may swallow those."""


def usable() -> list[int] | None:
    """The processors that this process may use, or None where the system does not say."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None


def pin(threads: int) -> list[int] | None:
    """Keep this process on the first `threads` processors it may use; return them, None where that cannot be done."""
    processors = usable()
    if processors is None:
        return None
    os.sched_setaffinity(0, processors[:threads])
    return processors[:threads]


def environment(threads: int, before: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process in which every library uses so many threads, all on the CPU."""
    names = ("OMP", "MKL", "OPENBLAS", "NUMBA", "SAMESTEP")
    found = {**before, **{f"{name}_NUM_THREADS": str(threads) for name in names}}
    found |= {"NUM_CPU_THREADS": str(threads), "NPROC": str(threads), "JAX_PLATFORMS": "cpu"}  # tinygrad; XLA; JAX
    if threads == 1:
        found["XLA_FLAGS"] = f"{before.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false".strip()
    return found


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Within it `TookTooLong` is raised after that long, wherever Python code runs next; again if that was swallowed.

    Only signals of Unix in a main thread can do that; elsewhere there is no limit.
    """
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: Any) -> None:
        raise TookTooLong

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds, 5.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def calibrate(step: Callable[[], object], clock: Clock = time.perf_counter, target: float = SAMPLE) -> int:
    """How many calls of `step` take `target` seconds, at least 1."""
    calls = 1
    while True:
        taken = _seconds(step, calls, clock)
        if taken >= target / 2:
            return max(1, round(calls * target / taken))
        # A clock may stand still during one call.
        calls *= 2 if taken <= 0 else min(10, max(2, math.ceil(target / 2 / taken)))


def sampler(step: Callable[[], object], calls: int, before: Callable[[], object] | None, warm: bool = True,
            clock: Clock = time.perf_counter) -> Callable[[], float]:
    """What takes one sample: seconds per call of `step`.

    With `before`, that is called, untimed, and then `step` once. If `warm`, one more call comes first, untimed: the
    step before was another peer's, and these are to find their own things in the caches.
    """
    def sample() -> float:
        if before is not None:
            before()
            return _seconds(step, 1, clock)
        if warm:
            step()
        return _seconds(step, calls, clock) / calls

    return sample


def _seconds(step: Callable[[], object], calls: int, clock: Clock) -> float:
    repeat = itertools.repeat(None, calls)
    start = clock()
    for _ in repeat:
        step()
    return clock() - start


def order(names: Sequence[str], turn: int) -> list[str]:
    """The order within a round: each name is at every place in turn, and comes after either neighbour."""
    first = turn // 2 % len(names)
    rotated = [*names[first:], *names[:first]]
    return rotated[::-1] if turn % 2 else rotated


class Rounds:
    """Times by name, placement and round, in seconds per call, and how many rounds were repeated as noisy."""

    def __init__(self) -> None:
        self.times: dict[str, list[list[float]]] = {}
        self.kept = self.repeated = 0
        self._sorted: dict[str, list[float]] = {}

    def measure(self, samplers: Mapping[str, Callable[[], float]], seconds: float, least: int,
                clock: Clock = time.perf_counter) -> None:
        """Take rounds of one placement, one sample of each sampler a round: `least` of them, more within `seconds`.

        A round in which one took longer than `NOISY` times its running median is repeated, as long as no more than
        half as many again are. Garbage is not collected meanwhile.
        """
        for name in samplers:
            self.times.setdefault(name, []).append([])
        collected = gc.isenabled()
        gc.disable()
        try:
            started, kept = clock(), 0
            while kept < least or clock() - started < seconds:
                found = {name: samplers[name]() for name in order(list(samplers), self.kept + self.repeated)}
                if self._noisy(found) and self.repeated + 1 <= self.kept / 2:
                    self.repeated += 1
                    continue
                kept += 1
                self._keep(found)
        finally:
            if collected:
                gc.enable()

    def _noisy(self, found: Mapping[str, float]) -> bool:
        if self.kept < JUDGED_FROM:
            return False
        return any(value > NOISY * _middle(self._sorted[name]) for name, value in found.items())

    def _keep(self, found: Mapping[str, float]) -> None:
        self.kept += 1
        for name, value in found.items():
            self.times[name][-1].append(value)
            insort(self._sorted.setdefault(name, []), value)


def _middle(ordered: Sequence[float]) -> float:
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def too_slow(seconds: float, ours: float) -> str | None:
    """Why a peer whose step took so long is not timed, so that a round ends; None if it is."""
    most = max(2.0, 20 * ours)
    return None if seconds <= most else f"a step took {seconds:.1f} s, and a round has {most:.1f} s for it"
