"""Dumps for the tests: a step of the operator or of the optimizer, and files of every format that hold it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from samestep.verify.observation import Observation, Problem
from samestep.verify.patterns import TYPES, WORDS
from samestep.verify.suite import judge

FORMATS = ("bin", "npy", "npz", "safetensors", "pt")
CONTAINERS = ("npz", "safetensors", "pt")


def step(dtype="float32", shape=(33, 2), seed=0, *, rule="cann", learning_rate=0.125, momentum=0.75, **attributes):
    """A right step on random words: the observation of a kernel that keeps the rule."""
    rng = np.random.default_rng(seed)
    size = int(np.prod(shape))
    p, g, a = (rng.standard_normal(size).astype(np.float32).astype(TYPES[dtype]).view(WORDS[dtype]) for _ in range(3))
    s = rng.choice([0.0, 1.0, 0.5], size).astype(TYPES[dtype]).view(WORDS[dtype]) if rule == "cann" else None
    problem = Problem(dtype, shape, p, g, a, s, learning_rate, momentum, rule=rule, **attributes)
    right = judge.expected(problem)
    return Observation(problem, right.parameters, right.accum, right.stat)


def tensors(observation, *, scalars=True):
    """The arrays of a step by their conventional names."""
    problem = observation.problem
    kind = TYPES[problem.dtype]
    found = {"parameters": problem.parameters, "gradient": problem.gradient, "accum": problem.accum,
             "stat": problem.stat, "parameters_out": observation.parameters, "accum_out": observation.accum,
             "stat_out": observation.stat}
    arrays = {name: words.view(kind).reshape(problem.shape) for name, words in found.items() if words is not None}
    if scalars:
        arrays |= {name: np.array([getattr(problem, name)]).astype(kind) for name in ("learning_rate", "momentum")}
    return arrays


def as_torch(array):
    import torch

    if array.dtype == TYPES["bfloat16"]:
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16).reshape(array.shape)
    return torch.from_numpy(array.copy()).reshape(array.shape)


def save(path: Path, arrays):
    """Write named arrays to one file by its suffix; a .bin or .npy file takes one array."""
    if path.suffix == ".bin":
        path.write_bytes(np.ascontiguousarray(arrays).tobytes())
    elif path.suffix == ".npy":
        np.save(path, arrays)
    elif path.suffix == ".npz":
        np.savez(path, **arrays)
    elif path.suffix == ".safetensors":
        from safetensors.torch import save_file

        save_file({name: as_torch(array) for name, array in arrays.items()}, path)
    else:
        import torch

        torch.save({name: as_torch(array) for name, array in arrays.items()}, path)


def write(folder: Path, observation, form="npy", *, scalars=True):
    """A dump by conventional names: one file a tensor for bin and npy, else inputs.* and outputs.*."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays = tensors(observation, scalars=scalars)
    if form in ("bin", "npy"):
        for name, array in arrays.items():
            save(folder / f"{name}.{form}", array)
    else:
        outputs = {name: array for name, array in arrays.items() if name.endswith("_out")}
        save(folder / f"inputs.{form}", {name: array for name, array in arrays.items() if name not in outputs})
        save(folder / f"outputs.{form}", {name.removesuffix("_out"): array for name, array in outputs.items()})
    return folder


def write_case(folder: Path, **fields):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "case.json"
    path.write_text(json.dumps(fields), encoding="utf-8")
    return path


def same(one, other):
    """Are two observations the same, words and numbers?"""
    def plain(value):
        return value.tolist() if isinstance(value, np.ndarray) else value

    pairs = [*zip(one.problem, other.problem, strict=True), *zip(one[1:], other[1:], strict=True)]
    return all(plain(left) == plain(right) for left, right in pairs)
