"""Recorded steps of other implementations: how the scripts beside this file write them, how the tests read them.

Writing needs NumPy alone, since each script runs where its framework is installed: give its name to a new environment's
Python, ``python make_NAME.py``. A file NAME.npz holds patterns, never numbers, and one JSON text: versions and cases.
A case is a chain of steps: parameters and state have one row more than there are steps, the first being the start.
"""

from __future__ import annotations

import json
import platform
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
WORDS = {"float32": np.uint32, "float16": np.uint16, "bfloat16": np.uint16}
LENGTH = 261  # a vector body of any width, and a tail of 5


class Recording:
    """The cases of one file, `name`.npz; `versions` says what was run."""

    def __init__(self, name, **versions):
        self.name = name
        self.about = {"versions": {**versions, "numpy": np.__version__, "machine": platform.machine()}, "cases": {}}
        self.arrays = {}

    def add(self, case, step, *, dtype="float32", start="zeros", stat=None, steps=3, length=LENGTH, lr=0.1,
            momentum=0.9, form="torch", seed=1, **hyperparameters):
        """Run ``step(k, parameters, gradient, velocity, stat) -> (parameters, velocity, stat)`` over patterns.

        `start` is what the velocity is at first: "zeros", "none" (the step is given None) or "random".
        """
        rng = np.random.default_rng([seed, *map(ord, case)])
        parameters, first = random_words(rng, length, dtype), random_words(rng, length, dtype)
        velocity = {"zeros": first * 0, "none": None, "random": first}[start]
        rows = {"parameters": [parameters], "velocity": [velocity], "stat": [stat], "gradient": []}
        for k in range(steps):
            gradient = random_words(rng, length, dtype)
            rows["gradient"].append(gradient)
            given = [None if row is None else row.copy() for row in (parameters, gradient, velocity, stat)]
            parameters, velocity, stat = step(k, *given)
            for name, row in (("parameters", parameters), ("velocity", velocity), ("stat", stat)):
                rows[name].append(row)
        for name, many in rows.items():
            kept = [row for row in many if row is not None]
            if kept:
                # No row of a state that does not exist; it can only be missing at the start.
                assert len(kept) == len(many) or many[0] is None
                self.arrays[f"{case}/{name}"] = np.array(kept, WORDS[dtype])
        self.about["cases"][case] = {"dtype": dtype, "lr": lr, "momentum": momentum, "form": form, **hyperparameters}

    def save(self):
        """Write the file and say how large it is."""
        path = HERE / f"{self.name}.npz"
        np.savez_compressed(path, about=np.array(json.dumps(self.about, indent=1)), **self.arrays)
        print(path.name, path.stat().st_size, "bytes", self.about["versions"])


def random_words(rng, length, dtype):
    """Normal numbers, rounded to `dtype` by truncation, which needs no library: the patterns."""
    numbers = rng.standard_normal(length).astype(np.float32)
    if dtype == "float32":
        return numbers.view(np.uint32)
    if dtype == "float16":
        return numbers.astype(np.float16).view(np.uint16)
    return (numbers.view(np.uint32) >> 16).astype(np.uint16)


def as_float32(words, dtype="float32"):
    """Patterns as numbers that float32 holds exactly, for frameworks whose arrays come from NumPy."""
    if dtype == "float32":
        return words.view(np.float32)
    if dtype == "float16":
        return words.view(np.float16).astype(np.float32)
    return (words.astype(np.uint32) << 16).view(np.float32)


def as_words(numbers, dtype="float32"):
    """The patterns of float32 numbers that are numbers of `dtype` already."""
    numbers = np.ascontiguousarray(numbers, np.float32)
    if dtype == "float32":
        return numbers.view(np.uint32).copy()
    if dtype == "float16":
        return numbers.astype(np.float16).view(np.uint16)
    assert not (numbers.view(np.uint32) & 0xFFFF).any()
    return (numbers.view(np.uint32) >> 16).astype(np.uint16)


def load(name):
    """(versions, {case: observations of its steps in order}) of a recorded file."""
    from samestep.verify.observation import Observation, Problem

    with np.load(HERE / f"{name}.npz") as file:
        about = json.loads(str(file["about"]))
        arrays = {key: file[key] for key in file.files if key != "about"}
    found = {}
    for case, facts in about["cases"].items():
        rule, lr, momentum = facts.pop("form"), facts.pop("lr"), facts.pop("momentum")
        gradients, parameters = arrays[f"{case}/gradient"], arrays[f"{case}/parameters"]
        steps = len(gradients)
        velocity, stat = ([None] * (steps + 1 - len(rows)) + list(rows)
                          for rows in (arrays.get(f"{case}/{tensor}", ()) for tensor in ("velocity", "stat")))
        found[case] = [
            Observation(
                Problem(shape=gradients[k].shape, parameters=parameters[k], gradient=gradients[k], accum=velocity[k],
                        stat=stat[k], learning_rate=lr, momentum=momentum, rule=rule, **facts),
                parameters[k + 1], velocity[k + 1], stat[k + 1])
            for k in range(steps)]
    return about["versions"], found
