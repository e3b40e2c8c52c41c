"""How the time of a step grows with the number of tensors and with the number of elements.

Measured in a process of its own, on float32 with momentum and weight decay. Every point is checked before any is timed.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from samestep.bench import method
from samestep.bench.child import Events

if TYPE_CHECKING:
    from samestep.bench.scaling_points import Point

TENSORS = (1, 10, 100, 1_000, 10_000, 100_000)
TENSORS_QUICK = TENSORS[:-1]
ELEMENTS = tuple(1 << power for power in range(20, 30))
ELEMENTS_QUICK = ELEMENTS[:5]
ROUNDS, ROUNDS_QUICK = 15, 3
SPARE = 1 << 30  # bytes of memory that are left alone
Step = Callable[[], object]


def measure(threads: int, quick: bool, watch: Callable[[str], object]) -> list[dict[str, Any]]:
    """Three rows, measured in a new process on the first `threads` processors; `watch(name)` is called before each.

    A row: {"threads", "kind", "unit": "s", "rounds", "points": [{"tensors", "elements", "median", "p10", "p90"}],
    "fit": see `fit`}. Kind "tensors" has "most per tensor" also, the largest of all points' (time - time of one
    tensor) / (tensors - 1); the kinds "elements of the optimizer" and "elements of the operator" have "left out", the
    reason by point. Raises RefusedError where bits are wrong, ValueError for more threads than processors, and
    RuntimeError where the process fails.
    """
    processors = method.usable()
    if processors is not None and threads > len(processors):
        raise ValueError(f"{threads} threads have no {threads} processors: this process may use {len(processors)}")
    command = [sys.executable, "-m", "samestep.bench.scaling", str(threads), "quick" if quick else "full"]
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryFile("w+") as errors:
        with subprocess.Popen(command, env=method.environment(threads, os.environ), stdout=subprocess.PIPE,
                              stderr=errors, text=True) as child:
            try:
                for line in child.stdout or ():
                    _hear(json.loads(line), rows, watch)
            except BaseException:
                child.kill()
                raise
        if child.returncode:
            errors.seek(0)
            last = (errors.read().strip().splitlines() or ["no word of why"])[-1]
            raise RuntimeError(f"scaling, {_threads(threads)}: the process ended with {child.returncode}: {last}")
    return rows


def _hear(event: dict[str, Any], rows: list[dict[str, Any]], watch: Callable[[str], object]) -> None:
    from samestep.bench.one_case import RefusedError

    if event["event"] == "refused":
        raise RefusedError(event["reason"])
    if event["event"] == "row":
        rows.append(event["row"])
    else:
        watch(event["name"])


def _threads(count: int) -> str:
    return f"{count} thread{'s' * (count > 1)}"


def main(threads: int, quick: bool) -> int:
    """The new process: an event as each row begins and as it is done; exit status 1 where bits are wrong."""
    events = Events()
    method.pin(threads)  # before NumPy and torch start threads
    from samestep.bench import scaling_points
    from samestep.bench.one_case import RefusedError

    rounds = ROUNDS_QUICK if quick else ROUNDS
    counts, sizes = (TENSORS_QUICK, ELEMENTS_QUICK) if quick else (TENSORS, ELEMENTS)
    rows = {
        "tensors": functools.partial(over_tensors, counts, rounds),
        "elements of the optimizer": functools.partial(over_elements, scaling_points.of_optimizer, sizes, rounds),
        "elements of the operator": functools.partial(over_elements, scaling_points.of_operator, sizes, rounds),
    }
    try:
        for kind, row in rows.items():
            events.tell("begins", name=f"scaling over {kind}, {_threads(threads)}")
            events.tell("row", row={"threads": threads, "kind": kind, **row()})
    except RefusedError as error:
        events.tell("refused", reason=str(error))
        return 1
    return 0


def over_tensors(counts: Sequence[int], rounds: int) -> dict[str, Any]:
    """Steps of the optimizer on so many tensors of 16 elements, ascending."""
    from samestep.bench import scaling_points

    row = _row(scaling_points.of_tensors(counts), rounds, counts, sweep=None)
    one, *others = row["points"]
    return {**row, "most per tensor": max((point["median"] - one["median"]) / (point["tensors"] - one["tensors"])
                                          for point in others)}


def over_elements(make: Callable[[Sequence[int]], list[Point]], sizes: Sequence[int], rounds: int) -> dict[str, Any]:
    """Steps on one tensor of so many elements, ascending, which come from memory.

    Caches could hold the smallest tensors and none of the others. So each timed step comes after one, not timed, on
    other tensors sixteen times as large as the caches, which leaves in them what a step on a large model leaves there.
    Thrice is too little: the least recently used lines are not always replaced, and a guest may have more than it sees.
    """
    from samestep.bench.scaling_points import BYTES, SWEPT
    from samestep.engine import cpu

    swept = max(SWEPT, 16 * max(cpu.caches().values(), default=0) // BYTES)
    available = available_memory()
    most = sizes[-1] if available is None else max(sizes[0], (available - SPARE) // BYTES - swept)
    fitting = [size for size in sizes if size <= most]
    row = _row(make(fitting), rounds, fitting, sweep=make([swept])[0].step)
    left = {f"{size} elements": f"it needs {size * BYTES / 2**30:.1f} GiB of memory, and "
            f"{max(0, most * BYTES) / 2**30:.1f} GiB are free for it" for size in sizes if size > most}
    return {**row, "left out": left}


def _row(points: Sequence[Point], rounds: int, x: Sequence[int], sweep: Step | None) -> dict[str, Any]:
    import numpy as np

    for point in points:
        point.check()
    found = []
    times = _times(points, rounds, sweep)
    for point, seconds in zip(points, times, strict=True):
        p10, median, p90 = np.percentile(seconds, (10, 50, 90)).tolist()
        found.append({"tensors": point.tensors, "elements": point.elements, "median": median, "p10": p10, "p90": p90})
    return {"unit": "s", "rounds": rounds, "points": found, "fit": fit(x, levelled(times, rounds))}


def levelled(times: Sequence[Sequence[float]], rounds: int) -> list[float]:
    """Each point's median over the rounds, all scaled to one level; a point has as many times in each round.

    Memory is a third faster for minutes on end, and where that changes midway, some points' medians would be of one
    kind and some of the other. A round's level is the geometric mean, over the points, of its time through the median.
    """
    import numpy as np

    by_round = np.array([np.median(np.reshape(seconds, (rounds, -1)), axis=1) for seconds in times])
    middle = np.median(by_round, axis=1, keepdims=True)
    level = np.exp(np.mean(np.log(by_round / middle), axis=0))
    found: list[float] = np.median(by_round / level, axis=1).tolist()
    return found


def _times(points: Sequence[Point], rounds: int, sweep: Step | None) -> list[list[float]]:
    """Seconds of single steps; before each is a step that is not timed, `sweep` or the point's own.

    Every round visits all points, every other one backwards: a machine that slows down for a while slows all of them,
    which a fit of points measured one after the other would take for a bend.
    """
    times: list[list[float]] = [[] for _ in points]
    with _without_garbage_collection():
        for turn in range(rounds):
            for point, seconds in list(zip(points, times, strict=True))[::-1 if turn % 2 else 1]:
                for _ in range(point.visit):
                    (sweep or point.step)()
                    start = time.perf_counter()
                    point.step()
                    seconds.append(time.perf_counter() - start)
    return times


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """As timeit does."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def fit(x: Sequence[float], seconds: Sequence[float]) -> dict[str, float]:
    """The line fixed + slope*x nearest to two or more points: {"fixed": s, "slope": s, "residual": largest deviation}.

    Nearest means least squares of the relative errors: the times span three to five orders of magnitude, and in a fit
    of absolute errors the largest point would hide what the others do. fixed >= 0, since no cost is negative. The
    residual is the largest |time - line| / line over all points, none left out: an average would hide a bend, which
    moves a few points only.
    """
    import numpy as np

    at, y = np.asarray(x, np.float64), np.asarray(seconds, np.float64)
    scale = float(at.max())
    columns = np.stack([1 / y, at / scale / y], axis=1)
    fixed, slope = np.linalg.lstsq(columns, np.ones(len(y)), rcond=None)[0].tolist()
    if fixed < 0:
        fixed, slope = 0.0, float(columns[:, 1].sum() / (columns[:, 1] ** 2).sum())
    line = fixed + slope * at / scale
    return {"fixed": fixed, "slope": slope / scale, "residual": float(np.max(np.abs(y / line - 1)))}


def available_memory() -> int | None:
    """Bytes that this process can have without swapping, or None where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return None
    try:  # a container may have less
        limit, used = (int(Path(f"/sys/fs/cgroup/memory.{name}").read_text(encoding="ascii"))
                       for name in ("max", "current"))
    except (OSError, ValueError):
        return free
    return min(free, limit - used)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2] == "quick"))
