"""How the benchmarks measure: fresh processes, interleaved calls, ratios, medians."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping


def interleaved(calls: Mapping[str, Callable[[], object]], rounds: int, before: Callable[[str], None] | None = None):
    """Seconds of every call in each of `rounds` rounds, all calls in turn; a first round more is not kept."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(rounds + 1):
        for name, call in calls.items():
            if before is not None:
                before(name)
            start = time.perf_counter()
            call()
            if turn:
                times[name].append(time.perf_counter() - start)
    return times


def of_fresh_processes(count: int, script: str, arguments: list[str]) -> dict[str, list[float]]:
    """What `count` new processes report, each a JSON object of ratios on its last line: name -> one value a process."""
    runs = []
    for _ in range(count):
        done = subprocess.run([sys.executable, script, *arguments], stdout=subprocess.PIPE, text=True, check=True)
        runs.append(json.loads(done.stdout.splitlines()[-1]))
    return {name: [run[name] for run in runs] for name in runs[0]}


def show(rows: Mapping[str, list[float]], goals: Mapping[str, float]) -> None:
    """One line a case: median (least .. most), and whether its goal was met."""
    for name, values in rows.items():
        median = statistics.median(values)
        goal = goals.get(name)
        verdict = "" if goal is None else f"   goal {goal:.2f}: {'met' if median <= goal else 'MISSED'}"
        print(f"  {name:40s} {median:6.3f}  ({min(values):.3f} .. {max(values):.3f}){verdict}", flush=True)
