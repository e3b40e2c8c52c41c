"""How many threads, and whose.

Beside torch the blocks run on torch's own OpenMP team (a second pool would fight it for the cores), else on a few
Python threads whose kernels release the GIL. In a forked child there is one thread: neither pool survives a fork.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

_HOME = os.getpid()
_FORKED_WITHOUT_EXEC = 0x40  # PF_FORKNOEXEC in the flags of /proc/self/stat


class Team(NamedTuple):
    """Addresses of the C functions GOMP_parallel, omp_get_thread_num and omp_get_num_threads of one library."""

    parallel: int
    thread_num: int
    num_threads: int


def set_num_threads(count: int | None) -> None:
    """Use `count` threads, or with None again what SAMESTEP_NUM_THREADS, torch or the processor says.

    The number changes speed, never a bit (rule O8).
    """
    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
        raise ValueError(f"the number of threads is a whole number >= 1 or None, not {count!r}")
    _fixed.value = _environment() if count is None else count


def get_num_threads() -> int:
    """The threads a large update uses: what was set, else SAMESTEP_NUM_THREADS, torch's number, or the processors."""
    if forked():
        return 1
    if _fixed.value:
        return _fixed.value
    torch = sys.modules.get("torch")
    return int(torch.get_num_threads()) if torch is not None and hasattr(torch, "get_num_threads") else _processors()


def _environment() -> int:
    """The number in SAMESTEP_NUM_THREADS, 0 if there is none."""
    text = os.environ.get("SAMESTEP_NUM_THREADS", "")
    return max(1, int(text)) if text.isdecimal() else 0


_fixed = ctypes.c_int64(_environment())  # the number that was set, 0 if none was
FIXED = ctypes.addressof(_fixed)  # where compiled code finds it


@functools.cache
def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def forked() -> bool:
    """Is this process a fork of one that went on, so that pools of threads it seems to have are gone?"""
    return os.getpid() != _HOME or _born_forked()


@functools.cache
def _born_forked() -> bool:
    """A fork that imports this module later: only the kernel knows."""
    try:
        with open("/proc/self/stat", "rb") as stat:
            return bool(int(stat.read().rpartition(b")")[2].split()[6]) & _FORKED_WITHOUT_EXEC)
    except (OSError, ValueError, IndexError):
        return False


def team() -> Team | None:
    """torch's OpenMP team, where torch is loaded and brought one that speaks GOMP."""
    return _team() if sys.modules.get("torch") is not None else None


@functools.cache
def _team() -> Team | None:
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            paths = {line.split(maxsplit=5)[5].strip() for line in maps if line.count("/")}
    except OSError:
        return None
    found = sorted(path for path in paths if os.path.basename(path).startswith(("libgomp", "libomp", "libiomp")))
    beside_torch = [path for path in found if os.path.dirname(sys.modules["torch"].__file__ or "?") in path]
    for path in beside_torch or found:
        library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        names = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
        if all(hasattr(library, name) for name in names):
            return Team(*(ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0 for name in names))
    return None


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="samestep")


def run_on_pool(part: Callable[[int], None], parts: int) -> None:
    """part(0), ..., part(parts - 1), the first on this thread and the others on the pool; all are done on return."""
    futures: list[Future[None]] = []
    try:
        for k in range(1, parts):
            futures.append(_pool(parts - 1).submit(part, k))
    except RuntimeError:  # the interpreter is shutting down and takes no more work: do it here
        for k in range(len(futures) + 1, parts):
            part(k)
    try:
        part(0)
    finally:
        _finish(futures)


def _finish(futures: list[Future[None]]) -> None:
    """Wait for all, also through an interrupt: the caller must not let go of memory that is still written to."""
    interrupt: KeyboardInterrupt | None = None
    for future in futures:
        while not future.done():
            try:
                future.exception()
            except KeyboardInterrupt as caught:
                interrupt = caught
    if interrupt is not None:
        raise interrupt
    for future in futures:
        future.result()
