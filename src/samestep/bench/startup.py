"""What it costs to begin: imports, first calls and first steps, each in fresh processes, ours beside the peers'."""

from __future__ import annotations

import importlib.util
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

PROCESSES = 5
TIMEOUT = 600.0  # seconds; the longest here, compiling a step for the first time, takes tens

_IMPORT = """
import time
start = time.perf_counter()
import {modules}
print(time.perf_counter() - start)
"""
_TENSORS = """
import time
import numpy as np
rng = np.random.default_rng(0)
p, g, a, s = (rng.standard_normal(64).astype(np.float32) for _ in range(4))
"""
FIRST_CALL = _TENSORS + """
before = [x.view(np.uint32).copy() for x in (p, g, a, s)]
start = time.perf_counter()
import samestep
samestep.sgd_(p, g, 0.05, a, 0.9, s, weight_decay=1e-4)
seconds = time.perf_counter() - start
from samestep.verify import patterns, vectorised
lr, m = (patterns.word_of(number, "float32") for number in (0.05, 0.9))
expected = vectorised.cann(before[0], before[1], lr, before[2], m, before[3], dtype="float32", weight_decay=1e-4)
if any(x.view(np.uint32).tolist() != words.tolist() for x, words in zip((p, a, s), expected)):
    raise SystemExit("sgd_ computed wrong bits, so its first call has no time")
print(seconds)
"""
_STEADY = """
import timeit
print(statistics.median(timeit.repeat(step, number=1000, repeat=21)) / 1000 * 1e6)
"""
STEADY_CALL = _TENSORS + """
import statistics
import samestep
lr, m = np.full(1, 0.05, np.float32), np.full(1, 0.9, np.float32)
def step():
    samestep.sgd_(p, g, lr, a, m, s, weight_decay=1e-4)
step()
""" + _STEADY
_LAYERS = """
import time
import torch
torch.manual_seed(0)
parameters = [p for _ in range({layers}) for p in torch.nn.Linear({width}, {width}, bias={bias}).parameters()]
for p in parameters:
    p.grad = torch.randn_like(p)
before = [p.detach().clone() for p in parameters]
start = time.perf_counter()
"""
_MODEL = {"layers": 8, "width": 256, "bias": True}  # 16 tensors, half a million elements
_OURS = """
from samestep.optim import SGD
step = SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-4).step
"""
FIRST_STEP = _LAYERS.format(**_MODEL) + _OURS + """
step()
seconds = time.perf_counter() - start
from samestep.verify import vectorised
def words(tensor):
    return tensor.detach().numpy().reshape(-1).view("uint32")
for p, was in zip(parameters, before):
    after, _ = vectorised.torch(words(was), words(p.grad), None, lr=0.05, first=True, momentum=0.9, weight_decay=1e-4)
    if words(p).tolist() != after.tolist():
        raise SystemExit("samestep.optim.SGD computed wrong bits, so its first step has no time")
print(seconds)
"""
STEADY_STEP = _LAYERS.format(layers=1, width=8, bias=False) + "import statistics" + _OURS + "step()" + _STEADY
_TORCH = _LAYERS.format(**_MODEL) + """
optimizer = torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-4, {flags})
{step}
seconds = time.perf_counter() - start
if any(torch.equal(p, was) for p, was in zip(parameters, before)):
    raise SystemExit("the step left a parameter as it was")
print(seconds)
"""
_OPTAX = """
import time
import jax, numpy as np, optax
rng = np.random.default_rng(0)
shapes = [(256, 256), (256,)] * 8
before = [rng.standard_normal(shape, np.float32) for shape in shapes]
parameters, gradients = (
    [jax.device_put(x) for x in before], [jax.device_put(rng.standard_normal(shape, np.float32)) for shape in shapes])
jax.block_until_ready([parameters, gradients])
start = time.perf_counter()
optimizer = optax.chain(optax.add_decayed_weights(1e-4), optax.sgd(0.05, momentum=0.9))
def step(parameters, gradients, state):
    updates, state = optimizer.update(gradients, state, parameters)
    return optax.apply_updates(parameters, updates), state
after = jax.block_until_ready(jax.jit(step, donate_argnums=(0, 2))(parameters, gradients, optimizer.init(parameters)))
seconds = time.perf_counter() - start
if any(np.array_equal(x, was) for x, was in zip(after[0], before)):
    raise SystemExit("the step left a parameter as it was")
print(seconds)
"""


class Cost(NamedTuple):
    """One cost: a script whose last line is the time, and what that time counts, in words.

    `needs` are packages without which it is left out. With `caches` it is measured twice, with nothing in the
    caches of compiled code and with what a process before left there.
    """

    name: str
    counted: str
    script: str
    needs: tuple[str, ...] = ()
    ours: bool = False
    unit: str = "s"
    caches: bool = False


_STEP = "the optimizer's construction and its first step of 16 float32 tensors, 526,336 elements"
COSTS = (
    Cost("import samestep", "the import alone", _IMPORT.format(modules="samestep"), ours=True),
    Cost("import torch", "the import alone", _IMPORT.format(modules="torch"), ("torch",)),
    Cost("import jax, optax", "the imports alone", _IMPORT.format(modules="jax, optax"), ("jax", "optax")),
    Cost("first call: samestep.sgd_", "importing samestep and numba, then the first call on 64 float32 elements; "
         "NumPy is loaded before", FIRST_CALL, ours=True, caches=True),
    Cost("first step: samestep.optim.SGD", f"importing samestep and numba, {_STEP}; torch is loaded before", FIRST_STEP,
         ("torch",), ours=True, caches=True),
    Cost("first step: torch.optim.SGD, for-loop", f"{_STEP}; torch is loaded before",
         _TORCH.format(flags="foreach=False", step="optimizer.step()"), ("torch",)),
    Cost("first step: torch.optim.SGD, fused", f"{_STEP}; torch is loaded before",
         _TORCH.format(flags="fused=True", step="optimizer.step()"), ("torch",)),
    Cost("first step: torch.compile(torch.optim.SGD.step)", f"{_STEP}, compiled; torch is loaded before",
         _TORCH.format(flags="", step="torch.compile(optimizer.step)()"), ("torch",), caches=True),
    Cost("first step: optax.sgd, jitted", f"{_STEP}, jitted; JAX and optax are loaded and the tensors on JAX's device "
         "before", _OPTAX, ("jax", "optax"), caches=True),
    Cost("one call: samestep.sgd_", "one call on 64 float32 elements, of a thousand in a row", STEADY_CALL, ours=True,
         unit="us"),
    Cost("one step: samestep.optim.SGD", "one step of one tensor of 64 float32 elements, of a thousand in a row",
         STEADY_STEP, ("torch",), ours=True, unit="us"),
)


def measure(quick: bool, watch: Callable[[str], object]) -> list[dict[str, Any]]:
    """Rows {"name", "unit", "values", "median", "counted", "ours"}, one value a process; `watch(name)` is called first.

    A peer that is not installed or fails here has no values, median None and the reason under "left out". Raises
    RuntimeError where a script of ours fails or computes wrong bits.
    """
    rows = []
    for cost in COSTS:
        count = 1 if quick else PROCESSES
        with tempfile.TemporaryDirectory() as folder:
            empty = [Path(folder, str(k)) for k in range(count)]
            kinds: dict[str, list[Path] | list[None]] = {"": [None]}
            if cost.caches:
                kinds = {", nothing cached": empty, ", cached": empty[-1:]}
            for kind, folders in kinds.items():
                watch(cost.name + kind)
                rows.append(_row(cost, cost.name + kind, [folders[k % len(folders)] for k in range(count)]))
    return rows


def _row(cost: Cost, name: str, folders: list[Path | None]) -> dict[str, Any]:
    """A row of as many processes as there are folders for their caches; None are the user's."""
    row = {"name": name, "unit": cost.unit, "counted": cost.counted, "ours": cost.ours, "values": [], "median": None}
    missing = [package for package in cost.needs if importlib.util.find_spec(package) is None]
    if missing:
        return {**row, "left out": f"{' and '.join(missing)} not installed (pip install {' '.join(missing)})"}
    try:
        values = [_run(cost, folder) for folder in folders]
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        if cost.ours:
            raise RuntimeError(f"{name}: {error}") from error
        reason = f"it took more than {TIMEOUT:g} s" if isinstance(error, subprocess.TimeoutExpired) else str(error)
        return {**row, "left out": reason}
    return {**row, "values": values, "median": statistics.median(values)}


def _run(cost: Cost, cache: Path | None) -> float:
    """What the script prints at last, in a process whose compiled code is kept in `cache` only, if that is given."""
    caches = {} if cache is None else {
        "SAMESTEP_CACHE_DIR": str(cache / "samestep"), "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
        "JAX_COMPILATION_CACHE_DIR": str(cache / "jax"), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    environment = {**os.environ, **caches, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", cost.script], env=environment, capture_output=True, text=True,
                          check=False, timeout=TIMEOUT)
    if done.returncode != 0 or not done.stdout.strip():
        lines = done.stderr.strip().splitlines() or ["no word of why"]
        raise RuntimeError(f"the process ended with status {done.returncode}: {lines[-1]}")
    return float(done.stdout.split()[-1])
