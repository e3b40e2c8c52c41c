"""The operator against its own limit: `python bench/op.py` (or `make bench-op`).

The limit is a plain in-place loop over the same arrays with the same reads and writes, compiled by numba, and by the C
compiler too where there is one; the faster of the two counts. Every figure is a ratio of times within one process, its
cases interleaved, each on freshly filled arrays; the medians are taken over fresh processes, since where arrays land in
memory moves a whole process. A kernel whose bits are wrong is not timed.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import method

C_SOURCE = """
#include <stddef.h>
#define LIMITS(NAME, T) \\
void NAME##_43(T *restrict p, const T *restrict g, T *restrict a, T *restrict s, size_t n) \\
{ for (size_t i = 0; i < n; i++) { p[i] += g[i]; a[i] += g[i]; s[i] += g[i]; } } \\
void NAME##_33(T *restrict p, const T *restrict g, T *restrict a, T *restrict s, size_t n) \\
{ for (size_t i = 0; i < n; i++) { p[i] += g[i]; a[i] += g[i]; s[i] = 0; } }
LIMITS(f, float)
LIMITS(h, unsigned short)
"""
GOALS = {  # (case, dtype): most of the limit's time, with two threads
    ("d=0 stat 1", "float32"): 1 / 0.95, ("d=0 stat 1", "float16"): 1 / 0.9, ("d=0 stat 1", "bfloat16"): 1 / 0.9,
    ("d=0.1 stat 1", "float32"): 1 / 0.95, ("d=0.1 stat 1", "float16"): 1 / 0.9, ("d=0.1 stat 1", "bfloat16"): 1 / 0.9,
    ("d=0.1 stat 0", "float32"): 0.97, ("d=0 stat 0", "float32"): 0.90,
}
CASES = {"d=0 stat 1": (0.0, 1), "d=0 stat 0": (0.0, 0), "d=0.1 stat 1": (0.1, 1), "d=0.1 stat 0": (0.1, 0)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--elements", type=int, default=1 << 24)
    parser.add_argument("--processes", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--dtypes", nargs="*", default=["float32", "float16", "bfloat16"])
    parser.add_argument("--align", type=int, default=16, help="bytes into a cache line where arrays begin: 16 is what "
                        "NumPy gives large arrays, 0 what torch does")
    parser.add_argument("--torch", action="store_true", help="import torch first: its OpenMP team does the work")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure(options.child[0], int(options.child[1]), options)))
        return
    figures = {"large": large(options), "small": small(options)}
    if options.out:
        options.out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def large(options: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """Ratios of time to the limit's, per dtype, threads and case, one per process."""
    found: dict[str, dict[str, list[float]]] = {}
    print(f"{options.elements:,} elements; time / time of the limit: "
          f"median (least .. most) of {options.processes} processes")
    for threads in options.threads:
        for dtype in options.dtypes:
            arguments = ["--child", dtype, str(threads), "--elements", str(options.elements), "--rounds",
                         str(options.rounds), "--align", str(options.align), *["--torch"] * options.torch]
            rows = found[f"{dtype} {threads}"] = method.of_fresh_processes(options.processes, __file__, arguments)
            print(f"\n{dtype}, {threads} thread{'s' * (threads > 1)}")
            method.show(rows, {case: goal for (case, of), goal in GOALS.items() if of == dtype and threads == 2})
    return found


def measure(dtype: str, threads: int, options: argparse.Namespace) -> dict[str, float]:
    """One process: median ratios of each case to the limit with the same reads and writes."""
    if options.torch:
        import torch

        torch.set_num_threads(threads)
    import numpy as np

    import samestep

    samestep.set_num_threads(threads)
    n = options.elements
    columns, fill = arrays(dtype, n, options.align)
    refuse_wrong_bits(dtype)
    calls = {f"limit {name}": call for name, call in limits(columns, threads).items()}
    lr, m = (column[:1].copy() for column in columns[1:3])
    for case, (d, _) in CASES.items():
        calls[case] = lambda d=d: samestep.sgd_(columns[0], columns[1], lr, columns[2], m, columns[3], dampening=d,
                                                weight_decay=1e-4)
    times = method.interleaved(calls, options.rounds, lambda name: fill(CASES.get(name, (0, 1))[1]))
    best = {kind: np.minimum.reduce([times[name] for name in times if name.endswith(kind)]) for kind in ("43", "33")}
    ratios = {case: float(np.median(times[case] / best["33" if d == 0 else "43"])) for case, (d, _) in CASES.items()}
    both = {name: float(np.median(times[name] / best[name[-2:]])) for name in times if name.startswith("limit")}
    return ratios | both


def arrays(dtype: str, n: int, offset: int = 16):
    """Parameters, gradient, accum, stat, and a function that fills them anew with stat 1 or 0."""
    import ml_dtypes
    import numpy as np

    kind = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}[dtype]
    size = n * np.dtype(kind).itemsize
    raw = [np.empty(size + 128, np.uint8) for _ in range(4)]
    starts = [-memory.ctypes.data % 64 + offset for memory in raw]
    columns = [memory[start:start + size].view(kind) for memory, start in zip(raw, starts, strict=True)]
    other = np.zeros(n, np.float64)

    def fill(stat: float) -> None:
        for column, value in zip(columns, (0.5, 0.001, 0.9, stat), strict=True):
            column.fill(kind(value))
        other.fill(stat)  # larger than any cache: the tensors come from memory

    fill(1)
    return columns, fill


def refuse_wrong_bits(dtype: str) -> None:
    """Compare the cases' kernels with the reference engine before anything is timed."""
    import numpy as np

    import samestep

    rng = np.random.default_rng(0)
    kind = arrays(dtype, 1)[0][0].dtype
    for d, _ in CASES.values():
        columns = [rng.standard_normal(5000).astype(kind) for _ in range(4)]
        results = []
        for engine in ("cpu", "reference"):
            p, g, a, s = (column.copy() for column in columns)
            samestep.sgd_(p, g, 0.01, a, 0.9, s, dampening=d, weight_decay=1e-4, engine=engine)
            results.append([x.tobytes() for x in (p, a, s)])
        if results[0] != results[1]:
            raise SystemExit(f"{dtype}, dampening {d}: the bits are wrong, so no time is printed")


def limits(columns, threads: int):
    """The limit loops by name, in numba and in C, on as many threads."""
    import numba
    import numpy as np

    views = [c if c.dtype == np.float32 else c.view(np.uint16) for c in columns]
    cuts = np.linspace(0, len(views[0]), threads + 1).astype(int) // 64 * 64
    parts = [[view[low:high] for view in views] for low, high in itertools.pairwise(cuts)]

    @numba.njit(nogil=True)
    def reads4_writes3(p, g, a, s):
        for i in range(len(p)):
            p[i] += g[i]
            a[i] += g[i]
            s[i] += g[i]

    @numba.njit(nogil=True)
    def reads3_writes3(p, g, a, s):
        for i in range(len(p)):
            p[i] += g[i]
            a[i] += g[i]
            s[i] = 0

    loops = {"numba 43": reads4_writes3, "numba 33": reads3_writes3, **in_c(views[0].dtype)}
    pool = ThreadPoolExecutor(max(1, threads - 1))

    def on_threads(loop):
        waiting = [pool.submit(loop, *part) for part in parts[1:]]
        loop(*parts[0])
        for future in waiting:
            future.result()

    return {name: (lambda loop=loop: on_threads(loop)) for name, loop in loops.items()}


def in_c(dtype):
    """The same loops by the C compiler, where there is one."""
    import numpy as np

    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return {}
    folder = Path(tempfile.mkdtemp())
    (folder / "limit.c").write_text(C_SOURCE)
    # Without -fno-tree-loop-distribute-patterns `s[i] = 0` becomes a memset, and the loop is no plain loop any more.
    subprocess.run([compiler, "-O3", "-march=native", "-fno-tree-loop-distribute-patterns", "-shared", "-fPIC", "-o",
                    str(folder / "limit.so"), str(folder / "limit.c")], check=True)
    library = ctypes.CDLL(str(folder / "limit.so"))
    shutil.rmtree(folder)
    letter = "f" if dtype == np.float32 else "h"

    def caller(function):
        function.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_size_t]
        function.restype = None
        return lambda p, g, a, s: function(p.ctypes.data, g.ctypes.data, a.ctypes.data, s.ctypes.data, len(p))

    return {f"C {kind}": caller(getattr(library, f"{letter}_{kind}")) for kind in ("43", "33")}


def small(options: argparse.Namespace) -> dict[str, float]:
    """The fixed costs: a call, an import, a first call cold and cached. Medians of fresh processes, absolute times."""
    call = (
        "import timeit, numpy as np, samestep\n"
        "x = [np.ones(64, np.float32) for _ in range(4)]; lr, m = np.full(1, .1, 'f'), np.full(1, .9, 'f')\n"
        "f = lambda: samestep.sgd_(x[0], x[1], lr, x[2], m, x[3])\n"
        "f(); print(min(timeit.repeat(f, number=2000, repeat=20)) / 2000 * 1e6)"
    )
    imported = "import time; t = time.perf_counter(); import samestep; print((time.perf_counter() - t) * 1e3)"
    first = (
        "import time; t = time.perf_counter()\nimport numpy as np, samestep\n"
        "x = [np.ones(64, np.float32) for _ in range(4)]\nsamestep.sgd_(x[0], x[1], .1, x[2], .9, x[3])\n"
        "print(time.perf_counter() - t)"
    )
    found = {}
    with tempfile.TemporaryDirectory() as warm:
        run(first, warm)
        for name, script in (("one call, 64 float32 elements in NumPy arrays (us)", call),
                             ("import samestep (ms)", imported),
                             ("first call in a new process, kernels cached (s)", first)):
            found[name] = [run(script, warm) for _ in range(options.processes)]
    cold = []
    for _ in range(options.processes):
        with tempfile.TemporaryDirectory() as empty:
            cold.append(run(first, empty))
    found["first call in a new process, nothing cached (s)"] = cold
    print("\nfixed costs, medians of fresh processes")
    for name, values in found.items():
        print(f"  {name:52s} {statistics.median(values):7.2f}  ({min(values):.2f} .. {max(values):.2f})")
    return found


def run(script: str, cache: str) -> float:
    environment = {**os.environ, "SAMESTEP_CACHE_DIR": cache}
    return float(subprocess.run([sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, text=True,
                                check=True).stdout)


if __name__ == "__main__":
    main()
