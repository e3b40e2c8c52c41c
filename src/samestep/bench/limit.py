"""How fast the machine can do a step's reads and writes: plain in-place loops over the very same memory.

A loop adds to every tensor that a step reads and writes the tensors that it only reads, and clears those that it only
writes. It works on integers of the elements' width, so that it converts nothing and its time depends on no value. What
is added is masked with a zero that no compiler knows of: the loop leaves values as they are, since peers work on the
same memory between its calls, and sums of patterns would soon give them subnormal numbers, which are slow.

numba and, where there is one, the C compiler compile it, for one thread and for all; the fastest is the limit.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from samestep.bench.peer import Array
from samestep.engine import threads

_GRAIN = 64  # threads part at multiples of so many elements, so that no two write one cache line
_FEW = 1 << 13  # fewer elements are not worth waking a second thread
_C = """
#include <stddef.h>
#include <stdint.h>
void walk(const int64_t *row, int64_t rows)
{{
    for (; rows > 0; rows--, row += {width}) {{
        {pointers}
        const int64_t n = row[{last}];
        const {word} mask = ({word})row[{last} + 1];
        for (int64_t i = 0; i < n; i++) {{ {body}; }}
    }}
}}
void region(const int64_t *job)
{{
    const int64_t team = ((int (*)(void))job[1])();
    for (int64_t part = ((int (*)(void))job[0])(); part < job[2]; part += team)
        walk((const int64_t *)job[3 + 2 * part], job[4 + 2 * part]);
}}
"""
_NUMBA = """
def walk(table, rows):
    for row in range(rows):
        at = {width} * row
        n = load_int(table, at + {last})
        mask = word(load_int(table, at + {last} + 1))
        {pointers}
        for i in range(n):
            {body}
"""
_WALK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)
_PARALLEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)


class Loop(NamedTuple):
    """Addresses of `walk(table, rows)`, one thread, and `region(job)`, what each thread of an OpenMP team does."""

    walk: int
    region: int
    owner: Any  # what keeps the code loaded


def fastest(
    updated: Sequence[Sequence[Array]], read: Sequence[Sequence[Array]], cleared: Sequence[Sequence[Array]] = (),
) -> Callable[[], object]:
    """A function that goes once over the memory: the fastest loop found for it on this machine, now.

    Each of the lists of tensors has one tensor for every tensor set, all of a set with as many elements: `updated`
    ones are read and written, `read` ones read, `cleared` ones written. All have elements of one width, are
    C-contiguous, and stay where they are. `cleared` ones become zero, also by calling this; all others keep their bits.
    """
    tensors = [*updated, *read, *cleared]
    shape = (tensors[0][0].itemsize, len(updated), len(read), len(cleared))
    loops = [loop for loop in (_numba(*shape), _c(*shape)) if loop is not None]
    counts = {1, threads.get_num_threads()} if sum(array.size for array in tensors[0]) > _FEW else {1}
    steps = [_step(loop, tensors, count) for loop in loops for count in sorted(counts)]
    return min(steps, key=_seconds) if len(steps) > 1 else steps[0]


def _seconds(step: Callable[[], object]) -> float:
    """The least time of a call, of five batches of calls of at least a millisecond."""
    step()
    calls, best, batches = 1, float("inf"), 0
    while batches < 5:
        start = time.perf_counter()
        for _ in range(calls):
            step()
        took = time.perf_counter() - start
        if took < 1e-3:
            calls *= 4
            continue
        best, batches = min(best, took / calls), batches + 1
    return best


def _step(loop: Loop, tensors: Sequence[Sequence[Array]], count: int, mask: int = 0) -> Callable[[], object]:
    """The loop over all tensor sets on `count` threads: torch's team where torch is loaded, as samestep does it."""
    walk = _WALK(loop.walk)
    tables = _tables(tensors, count, mask)
    kept = (loop, tables, tensors)
    if len(tables) == 1:
        return functools.partial(_call, walk, tables[0].ctypes.data, len(tables[0]), kept)
    team = threads.team()
    if team is None:
        parts = [functools.partial(walk, table.ctypes.data, len(table)) for table in tables]
        return functools.partial(_call, threads.run_on_pool, lambda part: parts[part](), len(parts), kept)
    rows = [number for table in tables for number in (table.ctypes.data, len(table))]
    job = np.array([team.thread_num, team.num_threads, len(tables), *rows], np.int64)
    return functools.partial(_call, _PARALLEL(team.parallel), loop.region, job.ctypes.data, len(tables), 0, (job, kept))


def _call(function: Any, *arguments: Any) -> None:
    """Call it with all but the last argument, which is kept alive here."""
    function(*arguments[:-1])


def _tables(tensors: Sequence[Sequence[Array]], count: int, mask: int) -> list[NDArray[np.int64]]:
    """For each of at most `count` threads, a row per tensor set or part of one: addresses, number of elements, mask."""
    size = tensors[0][0].itemsize
    lengths = np.array([array.size for array in tensors[0]], np.int64)
    addresses = np.array([[array.ctypes.data for array in arrays] for arrays in tensors], np.int64).T
    ends = np.cumsum(lengths)
    begins = ends - lengths
    cuts = np.linspace(0, int(ends[-1]), count + 1).astype(np.int64) // _GRAIN * _GRAIN
    cuts[-1] = ends[-1]
    tables = []
    for low, high in itertools.pairwise(cuts):
        rows = np.flatnonzero((ends > low) & (begins < high))
        first = np.maximum(begins[rows], low) - begins[rows]
        length = np.minimum(ends[rows], high) - begins[rows] - first
        tables.append(np.column_stack([addresses[rows] + (first * size)[:, None], length, np.full_like(length, mask)]))
    return [np.ascontiguousarray(table) for table in tables if len(table)]


def _body(updated: int, read: int, cleared: int, separator: str) -> tuple[list[str], str]:
    """The names of the tensors, and what is done to element i, in words that C and Python share."""
    names = [*(f"u{k}" for k in range(updated)), *(f"r{k}" for k in range(read)), *(f"c{k}" for k in range(cleared))]
    added = " + ".join(f"r{k}[i]" for k in range(read))
    return names, separator.join([f"u{k}[i] += ({added}) & mask" for k in range(updated)]
                                 + [f"c{k}[i] = 0" for k in range(cleared)])


@functools.cache
def _numba(itemsize: int, updated: int, read: int, cleared: int) -> Loop:
    """The loop compiled by numba."""
    import numba
    from numba import types

    from samestep.engine.calls import call_i32
    from samestep.engine.llvm import load_int

    names, body = _body(updated, read, cleared, "\n            ")
    pointers = "\n        ".join(f"{name} = carray(pointer(load_int(table, at + {k})), n, word)"
                                 for k, name in enumerate(names))
    scope: dict[str, Any] = {"load_int": load_int, "carray": numba.carray, "pointer": _pointer(),
                             "word": np.dtype(f"uint{8 * itemsize}").type}
    exec(_NUMBA.format(width=len(names) + 2, last=len(names), pointers=pointers, body=body), scope)
    walk = numba.njit(types.void(types.int64, types.int64), nogil=True)(scope["walk"])

    def outer(table: int, rows: int) -> None:
        walk(table, rows)

    def region(job: int) -> None:
        part, team = call_i32(load_int(job, 0), ()), call_i32(load_int(job, 1), ())
        while part < load_int(job, 2):
            walk(load_int(job, 3 + 2 * part), load_int(job, 4 + 2 * part))
            part += team

    alone = numba.cfunc(types.void(types.int64, types.int64))(outer)
    shared = numba.cfunc(types.void(types.int64))(region)
    return Loop(alone.address, shared.address, (alone, shared))


@functools.cache
def _pointer() -> Any:
    """An intrinsic: pointer(address) -> void*."""
    from numba import types
    from numba.extending import intrinsic

    def pointer(typingctx: Any, address: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.inttoptr(args[0], context.get_value_type(types.voidptr))

        return types.voidptr(types.int64), codegen

    return intrinsic(pointer)


@functools.cache
def _c(itemsize: int, updated: int, read: int, cleared: int) -> Loop | None:
    """The same loop by the C compiler; None where there is none that works."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None
    names, body = _body(updated, read, cleared, "; ")
    word = f"uint{8 * itemsize}_t"
    pointers = " ".join(f"{word} *restrict {name} = ({word} *)row[{k}];" for k, name in enumerate(names))
    # Otherwise GCC makes a memset of `c0[i] = 0`, and the loop is no plain loop any more.
    plain = [] if "clang" in compiler else ["-fno-tree-loop-distribute-patterns"]
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "limit.c"), Path(folder, "limit.so")
        source.write_text(_C.format(width=len(names) + 2, last=len(names), word=word, pointers=pointers, body=body))
        command = [compiler, "-O3", "-march=native", *plain, "-shared", "-fPIC", "-o", str(library), str(source)]
        if subprocess.run(command, capture_output=True, check=False).returncode != 0:
            return None
        loaded = ctypes.CDLL(str(library))
    walk, region = (ctypes.cast(function, ctypes.c_void_p).value or 0 for function in (loaded.walk, loaded.region))
    return Loop(walk, region, loaded)
