"""A results file as a run would write it, made up: the 200 cases, two thread counts, times from a model with noise."""

from __future__ import annotations

import functools
import math

import numpy as np

from samestep.bench.cases import CASES, bytes_of

MIB = 1 << 20
# Seconds of a call, seconds more for each tensor, and times the limit's traffic.
PEERS = {
    "op": {"samestep": (5e-6, 0.25e-6, 1.0), "NumPy": (7e-6, 6.5e-6, 2.9), "torch eager": (22e-6, 20e-6, 2.6),
           "torch compiled": (18e-6, 2.5e-6, 1.08), "JAX": (35e-6, 3e-6, 1.3), "limit": (0.3e-6, 0.15e-6, 1.02)},
    "optim": {"samestep": (6e-6, 0.3e-6, 1.0), "torch for-loop": (30e-6, 9e-6, 1.9),
              "torch foreach": (40e-6, 3e-6, 1.7), "torch fused": (30e-6, 1.2e-6, 1.04),
              "torch compiled": (25e-6, 2e-6, 1.1), "optax": (45e-6, 4e-6, 1.35), "Keras": (250e-6, 40e-6, 2.2),
              "pytorch_optimizer": (60e-6, 20e-6, 2.4), "tinygrad": (900e-6, 60e-6, 1.6),
              "limit": (0.3e-6, 0.15e-6, 1.02)},
}
CACHES = {"L1": 32 << 10, "L2": MIB, "L3": 32 * MIB}
ROUNDS, PLACEMENTS = 33, 3
MINDSPORE = "not installed: pip install mindspore"


def results(seed=0, quick=False, slower=1.0):
    """The whole file as data; `slower` times all of samestep's times, as another version might be."""
    rng = np.random.default_rng(seed)
    return {
        "schema": 1, "created": "2026-11-30T05:00:00Z", "seconds": 812.3, "quick": quick,
        "machine": {"processor": "AMD EPYC 9R14", "cores": 2, "system": "Linux 6.8 x86_64", "caches": dict(CACHES)},
        "versions": {"samestep": "0.1.0", "python": "3.11.9", "torch": "2.13.0", "numpy": "2.4.6", "numba": "0.68.1",
                     "jax": "0.10.2"},
        "runs": [{"threads": threads, "pinned": list(range(threads)), "skipped": {},
                  "cases": [_case(case, threads, slower, rng) for case in CASES]} for threads in (1, 2)],
        "scaling": [line for threads in (1, 2) for line in _scaling(threads, slower, rng)],
        "startup": [_startup("import samestep", 0.0082, rng, ours=True),
                    _startup("first call: samestep.sgd_, nothing cached", 1.43, rng, ours=True),
                    _startup("first call: samestep.sgd_, cached", 0.44, rng, ours=True),
                    _startup("first step: torch.compile(torch.optim.SGD.step), nothing cached", 9.8, rng),
                    _startup("one call: samestep.sgd_", 9.1, rng, "us", ours=True),
                    {"name": "import jax, optax", "unit": "s", "counted": "the imports alone", "ours": False,
                     "values": [], "median": None, "left out": "jax and optax not installed"}],
    }


@functools.cache
def _measures(case):
    """Tensors, elements and bytes of a step."""
    return len(case.shapes), case.elements, bytes_of(case)


def _bandwidth(size, threads):
    """Bytes a second at this size: the caches by one core, memory by all."""
    if size < CACHES["L2"]:
        return 90e9 * threads**0.8
    if size < CACHES["L3"]:
        return 55e9 * threads**0.8
    return 21e9 * threads**0.6


def _case(case, threads, slower, rng):
    tensors, elements, size = _measures(case)
    left_out = {"MindSpore": MINDSPORE} if case.suite == "op" else {}
    if tensors > 5000 and case.suite == "optim":
        left_out["tinygrad"] = "10,000 tensors take minutes to compile"
    together = np.exp(rng.normal(0, 0.02, ROUNDS))  # what all peers of a round share
    rounds = {}
    for name, (call, each, traffic) in PEERS[case.suite].items():
        if name in left_out:
            continue
        seconds = call + each * (tensors - 1) + traffic * size / _bandwidth(size, threads)
        seconds *= slower if name == "samestep" else 1
        if name == "torch compiled" and case.dtype == "float16" and size > CACHES["L3"]:
            seconds *= 0.9  # a case or two that is lost
        landed = np.repeat(np.exp(rng.normal(0, 0.01, PLACEMENTS)), ROUNDS // PLACEMENTS)
        rounds[name] = seconds * together * landed * np.exp(rng.normal(0, 0.03, ROUNDS))
    grades = {name: _grade(name, case.dtype, elements) for name in rounds if name != "limit"}
    times = {name: _percentiles(values) for name, values in rounds.items()}
    ratios = {name: _ratio(rounds["samestep"] / values) for name, values in rounds.items() if name != "samestep"}
    right = [name for name in grades if name != "samestep" and grades[name]["grade"] != "wrong"]
    best = min(right, key=lambda name: times[name]["median"])
    low, high = ratios[best]["low"], ratios[best]["high"]
    return {
        "name": case.name, "suite": case.suite, "dtype": case.dtype, "setting": case.setting, "shape": case.shape,
        "tensors": tensors, "elements": elements, "bytes": size, "rounds": ROUNDS,
        "repeated": int(rng.integers(3)), "calls": 1, "placements": PLACEMENTS, "times": times, "ratios": ratios,
        "grades": grades, "left out": left_out, "best": best, "ratio": ratios[best]["median"], "low": low,
        "high": high, "verdict": "faster" if high < 1 else "slower" if low > 1 else "tie",
    }


def _grade(name, dtype, elements):
    checked = min(elements, 12_345)
    if name == "torch fused" and dtype == "bfloat16":
        return {"grade": "wrong", "differing": (checked + 1) // 2, "checked": checked, "ulps": 44.0}
    if name in ("JAX", "torch compiled", "optax") and dtype != "float64":
        return {"grade": "rounding", "differing": (checked + 4) // 5, "checked": checked, "ulps": 1.0}
    return {"grade": "same bits", "differing": 0, "checked": checked, "ulps": 0.0}


def _percentiles(values):
    ordered = np.sort(values).tolist()
    return {"median": ordered[ROUNDS // 2], "p10": ordered[ROUNDS // 10], "p90": ordered[-1 - ROUNDS // 10]}


def _ratio(values):
    """With the distribution-free 95 % interval of the median, widened by the spread of the placements' medians."""
    ordered = np.sort(values)
    reach = math.ceil(1.96 * math.sqrt(len(values)) / 2)
    middle = len(values) // 2
    medians = np.median(values.reshape(PLACEMENTS, -1), axis=1)
    return {**_percentiles(values), "low": float(min(ordered[middle - reach], *medians)),
            "high": float(max(ordered[middle + reach], *medians))}


def _scaling(threads, slower, rng):
    counts = [10**k for k in range(6)]
    yield {**_line("tensors", threads, [(count, 16 * count) for count in counts], 8e-6 * slower, 0.42e-6 * slower,
                   rng), "most per tensor": 0.45e-6 * slower}
    sizes = [1 << k for k in range(20, 30)]
    for kind, size in (("elements of the optimizer", 20), ("elements of the operator", 28)):
        slope = slower * size / _bandwidth(1 << 40, threads)
        yield {**_line(kind, threads, [(1, count) for count in sizes], 2e-5, slope, rng), "left out": {}}


def _line(kind, threads, places, fixed, slope, rng):
    points = []
    for tensors, elements in places:
        x = tensors if kind == "tensors" else elements
        median = (fixed + slope * x) * math.exp(rng.normal(0, 0.02))
        points.append({"tensors": tensors, "elements": elements, "median": median, "p10": median * 0.97,
                       "p90": median * 1.05})
    return {"threads": threads, "kind": kind, "unit": "s", "rounds": 15, "points": points,
            "fit": {"fixed": fixed, "slope": slope, "residual": 0.04}}


def _startup(name, median, rng, unit="s", ours=False):
    values = [float(value) for value in median * np.exp(rng.normal(0, 0.05, 5))]
    return {"name": name, "unit": unit, "counted": "the import alone" if name[:2] == "im" else "the first call on 64 "
            "float32 elements; NumPy is loaded before", "ours": ours, "values": values,
            "median": float(np.median(values))}
