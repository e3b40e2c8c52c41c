"""The process that measures, one per thread count: `python -m samestep.bench.child`.

It reads one job as JSON from stdin and writes one event as JSON a line to stdout; what peers print goes to stderr.
The events: started (pinned), verifying (suite, done, items), verified, peer (case, peer), timing (case),
result (row), skipped (case, reason), refused (reason), done. Exit status 1 when it refuses.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from samestep.bench import method

if TYPE_CHECKING:
    from samestep.bench.peer import Case, Peer

RULES = {"op": "cann", "optim": "torch"}  # what the conformance suite judges before cases of a suite


class Job(TypedDict):
    """What a process is to do.

    `peers` are names, None for all; `module` has the peers. `verify` says whether the conformance suite comes first.
    `left` holds by case and peer why a peer is left out from the start.
    """

    threads: int
    cases: list[str]
    peers: list[str] | None
    module: str
    verify: bool
    plan: dict[str, float]
    left: dict[str, dict[str, str]]


class Events:
    """The process's stdout for itself: file descriptor 1 becomes stderr for all others."""

    def __init__(self) -> None:
        sys.stdout.flush()
        self._file = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)

    def tell(self, event: str, **fields: Any) -> None:
        """Write one event; its reader sees it at once."""
        self._file.write(json.dumps({"event": event, **plain(fields)}, allow_nan=False) + "\n")
        self._file.flush()


def plain(value: Any) -> Any:
    """The same, with the word "inf" or "nan" for what JSON has no number for."""
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def main() -> int:
    """Do the job on stdin."""
    events = Events()
    job: Job = json.load(sys.stdin)
    events.tell("started", pinned=method.pin(job["threads"]))
    from samestep.bench.one_case import RefusedError  # NumPy's threads begin here, pinned

    try:
        _do(job, events)
    except RefusedError as error:
        events.tell("refused", reason=str(error))
        return 1
    events.tell("done")
    return 0


def _do(job: Job, events: Events) -> None:
    from samestep.bench import cases
    from samestep.bench.one_case import SkippedError, Trial

    chosen = cases.named(job["cases"])
    module = importlib.import_module(job["module"])
    if job["verify"]:
        _verify(chosen, events)
    plan = method.Plan(**job["plan"])  # type: ignore[arg-type]  # JSON has one type of number
    for case in chosen:
        left = job["left"].get(case.name, {})
        try:
            events.tell("result", row=Trial(case, _peers(module, case, job["peers"]), plan, left, events.tell).run())
        except SkippedError as error:
            events.tell("skipped", case=case.name, reason=str(error))


def _peers(module: Any, case: Case, names: Sequence[str] | None) -> dict[str, Peer]:
    """The peers of a case, samestep first: nothing is measured before it is right."""
    from samestep.bench.one_case import LIMIT, OURS

    there = [name for name in module.PEERS[case.suite] if names is None or name in (OURS, LIMIT, *names)]
    return {name: module.load(case.suite, name) for name in sorted(there, key=lambda name: name != OURS)}


def _verify(chosen: Sequence[Case], events: Events) -> None:
    """Run the conformance suite for what the cases use; raise `RefusedError` where it fails."""
    from samestep.bench.one_case import RefusedError
    from samestep.verify import suite
    from samestep.verify.suite.target import LoadError, of_engine

    for name, rule in RULES.items():
        dtypes = list(dict.fromkeys(case.dtype for case in chosen if case.suite == name))
        if not dtypes:
            continue

        def watch(done: int, total: int, failed: int, name: str = name, rule: str = rule) -> None:
            if failed:  # at once, since going through all of them and naming what is wrong takes minutes
                raise RefusedError(f"item {done:,} of the {total:,} of the conformance suite of rule {rule} fails; "
                                   f"`samestep verify --rule {rule}` says in what, and why")
            if done % 512 == 0:
                events.tell("verifying", suite=name, done=done, items=total)

        try:
            suite.run(of_engine("cpu", rule), rule=rule, dtypes=dtypes, watch=watch)
        except LoadError as error:
            raise RefusedError(str(error)) from None
    events.tell("verified")


if __name__ == "__main__":
    sys.exit(main())
