"""A whole run: a process per thread count that measures, what outlives its crashes, and the results file."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from samestep.bench import method, results
from samestep.bench.cases import CASES, named
from samestep.bench.cases import quick as quick_cases
from samestep.bench.child import Job
from samestep.bench.one_case import LIMIT, OURS, RefusedError

Watch = Callable[[int, int, str], None]  # cases done, cases in all, what is being done
PEERS = "samestep.bench.peers"
SUITES = ("op", "optim")


def run(
    suites: Sequence[str] = SUITES, quick: bool = False, peers: Sequence[str] | None = None,
    threads: Sequence[int] = (1,), out: Path | None = None, watch: Watch = lambda done, total, doing: None,
    cases: Sequence[str] | None = None, *, plan: method.Plan | None = None, module: str = PEERS,
) -> results.Results:
    """Measure, and return the results, which docs/benchmark.md describes; also write ``out/results.json``.

    `peers` are compared (all unless given; samestep and the limit always run), `cases` are names of `cases.CASES` (all
    of the suites, or 21 of them with `quick`). Scaling and start-up are measured too, unless `cases` are given.
    `module` has the peers. Raises `RefusedError` where samestep is not right, so that no time can be told, and
    ValueError, before anything runs, for what does not exist.
    """
    started = time.monotonic()
    chosen = named(cases) if cases is not None else quick_cases() if quick else CASES
    chosen = tuple(case for case in chosen if case.suite in suites)
    _check(suites, peers, threads, len(chosen), module)
    plan = plan or (method.QUICK if quick else method.FULL)
    total = len(chosen) * len(threads)
    runs = []
    for place, count in enumerate(threads):
        names = [case.name for case in chosen]
        job: Job = {"threads": count, "cases": names, "peers": None if peers is None else list(peers), "module": module,
                    # Bits do not depend on threads (O8); a full run still looks.
                    "verify": place == 0 or not quick, "plan": plan._asdict(), "left": {}}
        runs.append(_Child(job, place * len(chosen), total, watch).run())
    found = results.of(runs, quick)
    if cases is None:
        found |= _extras(threads, quick, lambda doing: watch(total, total, doing))
    found["seconds"] = round(time.monotonic() - started, 1)
    if out is not None:
        results.save(found, out / "results.json")
    return found


def _check(suites: Sequence[str], peers: Sequence[str] | None, threads: Sequence[int], cases: int, module: str) -> None:
    there: dict[str, tuple[str, ...]] = importlib.import_module(module).PEERS
    for suite in suites:
        if suite not in SUITES:
            raise ValueError(f"there is no suite {suite!r}; the suites are {' and '.join(SUITES)}")
    if not suites or not threads or not cases:
        raise ValueError("there is nothing to measure: no suite, no case of the suites, or no number of threads")
    known = list(dict.fromkeys(name for suite in suites for name in there.get(suite, ()) if name not in (OURS, LIMIT)))
    for name in peers or ():
        if name not in (*known, OURS, LIMIT):
            raise ValueError(f"there is no peer {name!r}; the peers are {', '.join(known)}")
    most = len(method.usable() or ()) or None
    for count in threads:
        if count < 1 or (most is not None and count > most):
            raise ValueError(f"{count} threads: this process may use {most or 'some'} processors, and every thread is "
                             "to have its own")
    if len(set(threads)) < len(threads):
        raise ValueError(f"the thread counts {', '.join(map(str, threads))} name one twice")


def _extras(threads: Sequence[int], quick: bool, watch: Callable[[str], None]) -> dict[str, Any]:
    """Scaling and start-up; where the process of the former fails, "left out" says why."""
    from samestep.bench import scaling, startup

    rows: list[dict[str, Any]] = []
    left = {}
    for count in threads:
        try:
            rows += scaling.measure(count, quick, watch)
        except RuntimeError as error:
            left[f"scaling, {count} threads"] = str(error)
    try:
        return {"scaling": rows, "startup": startup.measure(quick, watch), "left out": left}
    except RuntimeError as error:  # a script of ours failed or computed wrong bits
        raise RefusedError(str(error)) from error


class _Child:
    """The processes of one thread count: another one goes on where one died."""

    def __init__(self, job: Job, done: int, total: int, watch: Watch) -> None:
        self.job, self.done, self.total, self.watch = job, done, total, watch
        self.pinned: list[int] | None = None
        self.rows: list[dict[str, Any]] = []
        self.skipped: dict[str, str] = {}
        self.case = self.peer = ""  # at work; the peer is "" while all are timed
        self.died_timed: set[str] = set()  # cases
        self.timer: threading.Timer | None = None

    def run(self) -> dict[str, Any]:
        while self.job["cases"]:
            died = self._process()
            if died is None:
                break
            self._after_death(died)
        return {"threads": self.job["threads"], "pinned": self.pinned, "cases": self.rows, "skipped": self.skipped}

    def _process(self) -> str | None:
        """One process until its end; how it died, None if it did not."""
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors, _started(
                self.job["threads"], errors) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                process.stdin.write(json.dumps(self.job))
                process.stdin.close()
            except BrokenPipeError:
                pass  # it died at once; what it said comes below
            ended = any(self._event(json.loads(line), process) for line in process.stdout)
            self._stop_timer()
            status = process.wait()
            return None if ended else _death(status, errors)

    def _event(self, event: dict[str, Any], process: subprocess.Popen[str]) -> bool:
        """Take in one event; is it the last one?"""
        kind = event["event"]
        self._stop_timer()
        if kind == "started":
            self.pinned = event["pinned"]
        elif kind == "verifying":
            self._show(f"conformance suite, {event['suite']}: {event['done']:,} of {event['items']:,} items")
        elif kind == "verified":
            self.job["verify"] = False
        elif kind == "peer":
            self.case, self.peer = event["case"], event["peer"]
            self._show(f"{self.case}: {self.peer}")
            # What hangs outside Python cannot be interrupted in there.
            self.timer = threading.Timer(2 * self.job["plan"]["ready"] + 10, process.kill)
            self.timer.start()
        elif kind == "timing":
            self.case, self.peer = event["case"], ""
            self._show(f"{self.case}: rounds")
        elif kind == "result":
            self.rows.append(event["row"])
            self._finished(event["row"]["name"])
        elif kind == "skipped":
            self.skipped[event["case"]] = event["reason"]
            self._finished(event["case"])
        elif kind == "refused":
            raise RefusedError(event["reason"])
        return bool(kind == "done")

    def _finished(self, name: str) -> None:
        self.job["cases"].remove(name)
        self.done += 1
        self.case = self.peer = ""
        self._show(name)

    def _show(self, doing: str) -> None:
        count = self.job["threads"]
        self.watch(self.done, self.total, f"{count} thread{'s' * (count > 1)}: {doing}")

    def _stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def _after_death(self, died: str) -> None:
        """Leave out the peer at work; if all were, all of them, for that case. Ours must not die."""
        if not self.case:
            raise RuntimeError(f"the process that measures died before the first peer or between cases: {died}")
        left = self.job["left"].setdefault(self.case, {})
        if self.peer == OURS or self.case in self.died_timed:
            raise RefusedError(f"{self.case}: the process died with samestep at work: {died}")
        if self.peer:
            left[self.peer] = f"the process died: {died}"
            return
        there = importlib.import_module(self.job["module"]).PEERS
        suite = self.case.split()[0]
        left |= {name: f"the process died while the case was timed: {died}"
                 for name in there[suite] if name not in (OURS, LIMIT) and name not in left}
        self.died_timed.add(self.case)


@contextmanager
def _started(threads: int, errors: IO[str]) -> Iterator[subprocess.Popen[str]]:
    """The process, killed at the end if it still runs."""
    process = subprocess.Popen(
        [sys.executable, "-m", "samestep.bench.child"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
        text=True, encoding="utf-8", env=method.environment(threads, os.environ))
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def _death(status: int, errors: IO[str]) -> str:
    """How a process died, and the last line it wrote to stderr."""
    how = f"exit status {status}"
    if status < 0:
        number = -status
        how = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    errors.seek(0)
    lines = [line.strip() for line in errors if line.strip()]
    return f"{how}{f' ({lines[-1][:300]})' if lines else ''}"
