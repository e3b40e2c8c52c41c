"""One case from beginning to end: every peer made ready and graded, then rounds, then the case's row of the results."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

from samestep.bench import intervals, judge, memory, method
from samestep.bench.cases import bytes_of
from samestep.bench.judge import Grade
from samestep.bench.peer import Case, Memory, Peer, Prepared

OURS, LIMIT = "samestep", "limit"
Tell = Callable[..., None]  # an event's name and its fields


class RefusedError(Exception):
    """samestep is not right, so there is no time to be told; the text says in what."""


class SkippedError(Exception):
    """The case has no result, and why."""


class _FailedError(Exception):
    """A peer raised while it was timed; `args` are its name and what it raised."""


class Trial:
    """A case, its peers by name with samestep first, and what is known of them so far.

    `left` says of every peer that is not timed why; what it holds at first was left out before.
    """

    def __init__(self, case: Case, peers: Mapping[str, Peer], plan: method.Plan, left: Mapping[str, str],
                 tell: Tell) -> None:
        self.case, self.peers, self.plan, self.tell = case, peers, plan, tell
        self.left = dict(left)
        self.grades: dict[str, Grade] = {}
        self.calls: dict[str, int] = {}
        self.rounds = method.Rounds()
        # Of a long list some tensors lie well and some do not, however often it is allocated.
        single = case.elements >= method.PLACED_ANEW and len(case.shapes) == 1
        self.placements = plan.placements if single else 1

    def run(self) -> dict[str, Any]:
        """Grade and time the case; return its row. Raises `RefusedError` and `SkippedError`."""
        for _ in range(self.placements):
            self._placement()
            gc.collect()  # before the next tensors are allocated
        return self._row()

    def _placement(self) -> None:
        """Allocate the tensors anew, make every peer ready on them, and take a share of the rounds."""
        lacking = memory.lacking(self.case)
        if lacking is not None:
            raise SkippedError(lacking)
        tensors = memory.allocate(self.case)
        ready: dict[str, Prepared] = {}
        ours = 0.0
        for name, peer in self.peers.items():
            if name in self.left:
                continue
            self.tell("peer", case=self.case.name, peer=name)
            prepared, seconds = self._prepared(name, peer, tensors, ours)
            if prepared is not None:
                ready[name] = prepared
            ours = seconds if name == OURS else ours
        if set(ready) - {OURS, LIMIT}:
            self._time(ready, tensors)

    def _prepared(self, name: str, peer: Peer, tensors: Memory, ours: float) -> tuple[Prepared | None, float]:
        """A peer, graded and warm, and the seconds of a step; None if it is left out from here on."""
        try:
            reason = peer.unavailable() or peer.cannot(self.case) or (
                None if name == OURS else memory.lacking(self.case))
            if reason is None:
                with nullcontext() if name == OURS else method.at_most(self.plan.ready):
                    prepared = self._graded(name, peer, tensors)
                    seconds = self._warm(name, prepared, tensors)
                if name == OURS:
                    return prepared, seconds
                reason = method.too_slow(seconds, ours)
                if reason is None:
                    return prepared, seconds
        except method.TookTooLong:
            reason = f"not ready after {self.plan.ready:.0f} s"
        except (Exception, SystemExit) as error:
            if isinstance(error, RefusedError):
                raise
            reason = f"{type(error).__name__}: {error}"[:500]
        self._leave_out(name, reason)
        return None, 0.0

    def _leave_out(self, name: str, reason: str) -> None:
        """Leave a peer out from here on, also the rounds that it took part in."""
        if name == OURS:
            raise RefusedError(f"{self.case.name}: samestep cannot do the case: {reason}")
        self.left[name] = reason
        self.rounds.times.pop(name, None)

    def _graded(self, name: str, peer: Peer, tensors: Memory) -> Prepared:
        prepared = peer.prepare(self.case, tensors)
        if peer.claims and name not in self.grades:
            grade = judge.check(self.case, peer, prepared, tensors)
            if name == OURS and grade.grade != "same bits":
                raise RefusedError(
                    f"{self.case.name}: {grade.differing:,} of {grade.checked:,} compared elements of samestep differ "
                    f"from the exact rule, by up to {grade.ulps:.3g} ulps; `samestep verify` and `samestep "
                    "fingerprint` find out why")
            self.grades[name] = grade
        return prepared

    def _warm(self, name: str, prepared: Prepared, tensors: Memory) -> float:
        """Three steps from the start; seconds of the last, since compilers may look at both others."""
        tensors.fill()
        prepared.reset()
        prepared.step()
        prepared.step()
        start = time.perf_counter()
        prepared.step()
        seconds = time.perf_counter() - start
        if name not in self.calls:
            once = seconds >= method.SAMPLE or memory.refill(self.case, tensors) is not None
            self.calls[name] = 1 if once else method.calibrate(prepared.step)
        return seconds

    def _time(self, ready: dict[str, Prepared], tensors: Memory) -> None:
        """Take this placement's share of the rounds; once more, without it, where a peer fails."""
        before = memory.refill(self.case, tensors)
        self.tell("timing", case=self.case.name)
        warm = bytes_of(self.case) < method.WARM  # for every peer or for none
        samplers = {name: _naming(name, method.sampler(prepared.step, self.calls[name], before, warm))
                    for name, prepared in ready.items()}
        least = -(-self.plan.rounds // self.placements)
        while True:
            try:
                self.rounds.measure(samplers, self.plan.seconds / self.placements, least)
                return
            except _FailedError as error:
                name, reason = error.args
                self._leave_out(name, f"while it was timed, {reason}")
                del samplers[name]

    def _row(self) -> dict[str, Any]:
        case, times = self.case, self.rounds.times
        ratios = {name: intervals.ratio(times[OURS], theirs) for name, theirs in times.items() if name != OURS}
        quantiles = {name: intervals.quantiles([value for placement in found for value in placement])
                     for name, found in times.items()}
        grades = {name: grade for name, grade in self.grades.items() if name in times}
        wrong = {name for name, grade in grades.items() if grade.grade == "wrong"}
        best = intervals.judged({name: row["median"] for name, row in quantiles.items()}, ratios, wrong)
        if best["best"] is None:
            reasons = [*(f"{name} is wrong" for name in wrong), *(f"{name}: {why}" for name, why in self.left.items())]
            raise SkippedError(f"there is no peer to compare with ({'; '.join(reasons) or 'none was chosen'})")
        return {
            "name": case.name, "suite": case.suite, "dtype": case.dtype, "setting": case.setting, "shape": case.shape,
            "tensors": len(case.shapes), "elements": case.elements, "bytes": bytes_of(case),
            "rounds": self.rounds.kept, "repeated": self.rounds.repeated, "calls": self.calls[OURS],
            "placements": self.placements, "times": quantiles, "ratios": ratios,
            "grades": {name: grade._asdict() for name, grade in grades.items()}, "left out": self.left, **best,
        }


def _naming(name: str, sample: Callable[[], float]) -> Callable[[], float]:
    """The same, where what it raises says who raised it."""
    def named() -> float:
        try:
            return sample()
        except Exception as error:
            raise _FailedError(name, f"{type(error).__name__}: {error}"[:500]) from error

    return named
