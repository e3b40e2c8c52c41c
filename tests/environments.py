"""What rule O8 says must not matter, as functions that return a digest of the result; run with and without torch.

`python environments.py torch|no-torch NAME...` prints the digests; test_independence.py compares them.
Every function computes the same update of the same tensors, in other circumstances.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import json
import multiprocessing
import os
import sys
import threading
import traceback

import numba
import numpy as np

import samestep
import suite
from samestep.engine import llvm, threads

LENGTH = 300_007  # several blocks for every pool, and a tail
CASES = [("float32", suite.KEYS[3]), ("float16", suite.KEYS[4]), ("bfloat16", suite.KEYS[1])]
FE_UPWARD = {"x86_64": 0x800, "aarch64": 0x400000}
FLUSH = {"x86_64": 0x8040, "aarch64": 1 << 24}  # FTZ and DAZ; FZ
STICKY = 0x3F  # the exception flags of MXCSR


@functools.cache
def inputs(dtype):
    """Made once, under the usual rounding: the tensors are to be the same whatever the environment."""
    columns = suite.tensors(np.random.default_rng(0), LENGTH, dtype)
    return columns, suite.scalar(0.1, dtype), suite.scalar(0.9, dtype)


def update(dtype, key, engine="cpu"):
    """The bits of the three written tensors after one step on `LENGTH` random elements, as bytes."""
    columns, lr, m = inputs(dtype)
    after = suite.run(engine, columns, dtype, key, "spec", lr, m)
    for k in (0, 2):  # rule O9: which NaN a computed NaN is depends on the processor
        after[k][suite.is_nan(after[k], dtype)] = 0xFFFF
    return b"".join(column.tobytes() for column in after)


def digest(engine="cpu"):
    return hashlib.sha256(b"".join(update(dtype, key, engine) for dtype, key in CASES)).hexdigest()


def plain():
    return digest()


def reference():
    return digest("reference")


def one_thread():
    return with_threads(1)


def two_threads():
    return with_threads(2)


def three_threads():
    return with_threads(3)


def eight_threads():
    return with_threads(8)


def with_threads(count):
    samestep.set_num_threads(count)
    try:
        return digest()
    finally:
        samestep.set_num_threads(None)


def upward_rounding():
    return in_fp_environment("cpu", rounding=True)


def upward_rounding_reference():
    return in_fp_environment("reference", rounding=True)


def flushing():
    return in_fp_environment("cpu", rounding=False)


def flushing_reference():
    return in_fp_environment("reference", rounding=False)


def in_fp_environment(engine, *, rounding):
    """With another rounding mode, or with subnormals flushed on input and output, in the calling thread."""
    for dtype, _ in CASES:
        inputs(dtype)
    before = read_register()
    if rounding:
        libm().fesetround(FE_UPWARD[os.uname().machine])
        took = np.float64(1.0) + np.float64(2.0**-60) > 1.0
    else:
        write_register(before | FLUSH[os.uname().machine])
        took = np.float64(2.0**-1060) * np.float64(1.0) == 0.0
    inside = read_register() & ~STICKY
    try:
        result = digest(engine)
        assert read_register() & ~STICKY == inside, "the caller's environment was not restored"
    finally:
        write_register(before)
    assert took, "the environment did not take"
    assert inside != before & ~STICKY
    return result


def libm():
    return ctypes.CDLL("libm.so.6")


@numba.njit
def read_register():
    return llvm.fp_control()


@numba.njit
def write_register(value):
    llvm.set_fp_control(value)


def in_a_fork():
    """After a step in the parent, so that its pools exist."""
    digest()
    return run_in_fork(digest)


def in_a_fork_without_a_step_before():
    return run_in_fork(digest)


def run_in_fork(work):
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe()
    child = context.Process(target=lambda: sender.send((work(), threads.get_num_threads())))
    child.start()
    assert receiver.poll(60), "the forked child hangs"
    result, count = receiver.recv()
    child.join()
    assert count == 1
    return result


def from_many_threads():
    """Eight Python threads at once, each on its own tensors."""
    results = [None] * 8

    def work(k):
        results[k] = digest()

    workers = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(set(results)) == 1
    return results[0]


def report(names):
    """The digest of each, or its traceback."""
    for name in names:
        try:
            yield name, globals()[name]()
        except Exception:
            yield name, traceback.format_exc()


if __name__ == "__main__":
    if sys.argv[1] == "no-torch":
        sys.modules["torch"] = None
    else:
        import torch  # noqa: F401
    print(json.dumps(dict(report(sys.argv[2:]))))
