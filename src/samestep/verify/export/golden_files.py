"""The forms in which cases and their golden outputs are written: npz, bin, json and ttk."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from samestep.verify.export import ttk
from samestep.verify.notation import json_number
from samestep.verify.observation import Problem
from samestep.verify.patterns import TYPES, WORDS, Words
from samestep.verify.suite.draw import Item

SCALARS = ("learning_rate", "momentum")


class Case(NamedTuple):
    """One case: a file name for it, the item it was drawn from, its inputs, and the same after a right step."""

    name: str
    item: Item
    problem: Problem
    golden: Problem


class Sink:
    """Files below the folder `root`: their sha256 by name (with ``/``), and their size in bytes together."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.hashes: dict[str, str] = {}
        self.size = 0

    def write(self, name: str, data: bytes) -> None:
        """Write a whole file, and the folders above it."""
        with self.open(name) as write:
            write(data)

    @contextmanager
    def open(self, name: str) -> Iterator[Callable[[bytes], None]]:
        """A new file, written piece by piece with the function that comes."""
        path = self._root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256()
        with path.open("xb") as file:
            def write(data: bytes) -> None:
                file.write(data)
                digest.update(data)
                self.size += len(data)

            yield write
        self.hashes[name] = digest.hexdigest()


def inputs(problem: Problem) -> dict[str, Words]:
    """The patterns of the input tensors by name, flat; learning_rate and momentum are tensors in rule cann only."""
    if problem.rule == "cann":
        return ttk.input_words(problem)
    tensors = {"parameters": problem.parameters, "gradient": problem.gradient, "momentum_buffer": problem.accum}
    return {name: words for name, words in tensors.items() if words is not None}


def outputs(golden: Problem) -> dict[str, Words]:
    """The patterns of the written tensors by name, flat."""
    state = "accum" if golden.rule == "cann" else "momentum_buffer"
    tensors = {"parameters": golden.parameters, state: golden.accum, "stat": golden.stat}
    return {name: words for name, words in tensors.items() if words is not None}


def numbers(problem: Problem) -> dict[str, Any]:
    """What is no tensor: the operator's attributes; for rule torch all of the optimizer's hyperparameters."""
    found = {name: float(getattr(problem, name)) for name in ("dampening", "weight_decay")}
    if problem.rule == "cann":
        return {**found, "nesterov": problem.nesterov}
    return {**{name: float(getattr(problem, name)) for name in SCALARS}, **found, "nesterov": problem.nesterov,
            "maximize": problem.maximize}


def _shape(name: str, problem: Problem) -> tuple[int, ...]:
    return (1,) if name in SCALARS else problem.shape


def _raw(words: Words) -> bytes:
    return words.astype(words.dtype.newbyteorder("<")).tobytes()


def npz(cases: Iterator[Case], sink: Sink, rule: str, order: str) -> None:
    """One .npz a case, to be read without unpickling; bfloat16 tensors as their bits, uint16."""
    for case in cases:
        dtype = case.problem.dtype
        stored: Any = WORDS[dtype] if dtype == "bfloat16" else TYPES[dtype]
        arrays: dict[str, NDArray[Any]] = {
            name: words.view(stored).reshape(_shape(name, case.problem)) for name, words in (
                *inputs(case.problem).items(),
                *((f"golden_{name}", words) for name, words in outputs(case.golden).items()))
        }
        arrays |= {name: np.array(number) for name, number in numbers(case.problem).items()}
        texts = {"name": case.item.name, "rule": rule, "order": order, "dtype": dtype}
        file = io.BytesIO()
        np.savez(file, **arrays, **{name: np.array(text) for name, text in texts.items()})  # type: ignore[arg-type]
        sink.write(f"{case.name}.npz", file.getvalue())


def bin_(cases: Iterator[Case], sink: Sink, rule: str, order: str) -> None:
    """One folder a case: raw little-endian words, and the CASE.json that `samestep compare` reads (docs/dumps.md)."""
    for case in cases:
        problem = case.problem
        told: dict[str, Any] = {"comment": case.item.name, "rule": rule}
        if rule == "cann":
            told["order"] = order
        told |= {"dtype": problem.dtype, "shape": list(problem.shape)}
        told |= {name: number if isinstance(number, bool) else json_number(number)
                 for name, number in numbers(problem).items()}
        told["inputs"] = {}
        for name, words in inputs(problem).items():
            sink.write(f"{case.name}/inputs/{name}.bin", _raw(words))
            file = f"inputs/{name}.bin"
            told["inputs"][name] = {"file": file, "shape": [1]} if name in SCALARS else file
        for name, words in outputs(case.golden).items():
            sink.write(f"{case.name}/golden/{name}.bin", _raw(words))
        told["outputs"] = {name: f"outputs/{name}.bin" for name in outputs(case.golden)}
        sink.write(f"{case.name}/CASE.json", (json.dumps(told, indent=1) + "\n").encode())


def json_(cases: Iterator[Case], sink: Sink, rule: str, order: str) -> None:
    """One file, one case a line; tensors as hex words separated by spaces."""
    with sink.open("cases.json") as write:
        start = json.dumps({"format": 1, "kind": "samestep cases", "rule": rule, "order": order})
        write(f'{start[:-1]}, "cases": [\n'.encode())
        for number, case in enumerate(cases):
            told = {
                "name": case.item.name, "family": case.item.family, "rule": case.item.rule,
                "dtype": case.problem.dtype, "shape": list(case.problem.shape),
                **{name: number if isinstance(number, bool) else json_number(number)
                   for name, number in numbers(case.problem).items()},
                "inputs": {name: _hex(words) for name, words in inputs(case.problem).items()},
                "golden": {name: _hex(words) for name, words in outputs(case.golden).items()},
            }
            write(((",\n" if number else "") + json.dumps(told, allow_nan=False)).encode())
        write(b"\n]}\n")


def _hex(words: Words) -> str:
    big = words.astype(words.dtype.newbyteorder(">")).tobytes()
    return big.hex(" ", -words.itemsize) if words.size else ""


def ttk_(cases: Iterator[Case], sink: Sink, rule: str, order: str) -> None:
    """A case file and a golden plugin for the operator test kit; the tensors as raw files beside them."""
    with sink.open("sgd_cases.csv") as write:
        write(ttk.header().encode())
        for case in cases:
            files: dict[str, list[str]] = {"inputs": [], "golden": []}
            for kind, tensors in (("inputs", inputs(case.problem)), ("golden", outputs(case.golden))):
                for name, words in tensors.items():
                    files[kind].append(f"{case.name}/{kind}/{name}.bin")
                    sink.write(files[kind][-1], _raw(words))
            write(ttk.row(f"sgd_{case.name}", case.problem, case.item.name, files["inputs"], files["golden"]).encode())
    sink.write("sgd_golden.py", ttk.plugin(order).encode())


FORMS: dict[str, Callable[[Iterator[Case], Sink, str, str], None]] = {
    "npz": npz, "bin": bin_, "json": json_, "ttk": ttk_,
}
