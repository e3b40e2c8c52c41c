"""Steps recorded on some device: a folder of tensors, or a CASE.json that names them, as observations.

The layout is described in docs/dumps.md. Nothing in a dump is trusted and nothing is executed: see files.py,
archives.py and formats.py for how it is read.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from samestep import contract
from samestep.engine import fpenv
from samestep.verify.dumps import case_file, layout
from samestep.verify.dumps.case_file import Entry
from samestep.verify.dumps.files import LIMIT, DumpError, Folder
from samestep.verify.dumps.formats import Found
from samestep.verify.dumps.reader import Reader
from samestep.verify.observation import Observation, Problem
from samestep.verify.patterns import WORDS, Words, number_of, word_of

__all__ = ["Dump", "DumpError", "Given", "load", "read"]


class Given(NamedTuple):
    """What a dump does not say itself, or what it says once more: a contradiction is refused. None is not given."""

    rule: str | None = None
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    learning_rate: float | None = None
    momentum: float | None = None
    dampening: float | None = None
    weight_decay: float | None = None
    nesterov: bool | None = None
    maximize: bool | None = None


class Dump(NamedTuple):
    """The steps of a dump, and the evaluation order it names (None if it names none)."""

    observations: list[Observation]
    order: str | None


def load(path: Path, given: Given | None = None, limit: int = LIMIT) -> list[Observation]:
    """The steps recorded in the folder or CASE.json `path`, in order; reads at most `limit` bytes.

    Raises `DumpError`, which says what was found and what would be accepted; nothing in the dump is ever executed.
    """
    return read(path, given, limit).observations


def read(path: Path, given: Given | None = None, limit: int = LIMIT) -> Dump:
    """As `load`, with the order that the dump names."""
    if os.path.isdir(path):  # unlike Path.is_dir it raises nothing
        folder = Folder(path, limit)
        names = [name for name in folder.names() if name.lower() == "case.json"]
    else:
        folder, names = Folder(path.parent, limit), [path.name]
    if len(names) > 1:
        raise DumpError(f"{path} has {' and '.join(map(repr, names))}; expected one")
    steps: list[dict[str, Any]] = [{}]
    if names:
        steps = case_file.parse(folder.read(names[0], most=case_file.SIZE), names[0])
    reader, observations = Reader(folder), list[Observation]()
    steps = layout.placed(folder, reader, [_with_given(step, given or Given()) for step in steps])
    with fpenv.default(), np.errstate(all="ignore"):
        for k, step in enumerate(steps):
            try:
                observations.append(_observation(reader, step, observations[-1] if observations else None))
            except (DumpError, contract.ContractError) as error:
                raise DumpError(f"step {k}: {error}" if len(steps) > 1 else str(error)) from None
    orders = {step.get("order") for step in steps}
    if len(orders) > 1:
        raise DumpError("the steps name different orders; a dump has one")
    return Dump(observations, orders.pop())


def _with_given(step: dict[str, Any], given: Given) -> dict[str, Any]:
    """The fields of a step, completed by what was given; the two may not disagree."""
    told = {field: value for field, value in given._asdict().items() if value is not None}
    for field in set(told) & set(step):
        if repr(step[field]) != repr(told[field]):
            said = step[field].file if isinstance(step[field], Entry) else step[field]
            raise DumpError(f"{field}: the dump says {said!r}, but {told[field]!r} was given; give it once")
    return {**told, **step}


def _observation(reader: Reader, step: dict[str, Any], previous: Observation | None) -> Observation:
    rule, inputs, outputs = step.get("rule", "cann"), dict(step["inputs"]), step["outputs"]
    dtype, shape = step.get("dtype"), step.get("shape")
    before: dict[str, Words | None] = {}
    if "parameters" in inputs:
        found = reader.found(inputs["parameters"], "parameters", dtype, shape)
        dtype, shape = found.dtype, shape or found.array.shape
        before["parameters"] = _flat(found, inputs["parameters"], "inputs.parameters", shape)
    elif previous is not None:
        dtype, shape = dtype or previous.problem.dtype, shape or previous.problem.shape
    else:
        raise DumpError("the parameters before the step are missing; expected inputs.parameters in CASE.json, a file "
                        f"such as parameters.npy, or inputs.npz. {layout.HINT}")
    assert dtype is not None
    numbers = {name: _number(reader, step, inputs, name, dtype, rule) for name in ("learning_rate", "momentum")}
    _check(rule, step, inputs, outputs, dtype, shape)
    for role in ("parameters", "gradient", "accum", "stat")[len(before):4 if rule == "cann" else 3]:
        before[role] = _words(reader, inputs, role, dtype, shape, "inputs")
        if role not in inputs and previous is not None and role != "gradient":
            before[role] = _carried(previous, role, (rule, dtype, math.prod(shape)))
        if before[role] is None and not (rule == "torch" and role == "accum"):
            raise DumpError(f"inputs.{role} is missing; rule {rule} reads it. {layout.HINT}")
    problem = Problem(
        dtype, shape, before["parameters"], before["gradient"], before["accum"],  # type: ignore[arg-type]
        before.get("stat"), **numbers, dampening=step.get("dampening", 0.0), weight_decay=step.get("weight_decay", 0.0),
        nesterov=step.get("nesterov", False), maximize=step.get("maximize", False), rule=rule)
    after = {role: _words(reader, outputs, role, dtype, shape, "outputs") for role in case_file.OUTPUTS}
    return Observation(problem, **after)  # type: ignore[arg-type]


def _carried(previous: Observation, role: str, kind: tuple[str, str, int]) -> Words | None:
    """A tensor as the step before left it; the two steps must be of one kind."""
    problem = previous.problem
    before = (problem.rule, problem.dtype, problem.parameters.size)
    if before != kind:
        raise DumpError(f"inputs.{role} is not there, and cannot come from the step before: its rule, dtype and "
                        f"elements were {before}, and now are {kind}")
    words: Words | None = getattr(previous, role)
    return words


def _check(rule: str, step: dict[str, Any], inputs: dict[str, Entry], outputs: dict[str, Entry], dtype: str,
           shape: tuple[int, ...]) -> None:
    """Refuse what no step of `rule` can be; for rule cann that is the operator's contract."""
    if "parameters" not in outputs:
        raise DumpError("the parameters after the step are missing; expected outputs.parameters in CASE.json, a file "
                        f"such as parameters_out.npy, or outputs.npz. {layout.HINT}")
    if 0 in shape:
        raise DumpError(f"parameters have the empty shape {list(shape)}; accepted: no axis of length 0")
    if rule == "torch":
        if "stat" in inputs or "stat" in outputs:
            raise DumpError("rule torch has no stat, but the dump has one; is it rule cann?")
        return
    if step.get("maximize", False):
        raise DumpError("rule cann has no maximize; negate the gradient, or is it rule torch?")
    contract.check_dtypes(contract.INPUTS, [dtype] * 6)
    contract.check_shapes(contract.INPUTS, [shape, shape, (1,), shape, (1,), shape], 1)
    contract.check_attributes(step.get("dampening", 0.0), step.get("weight_decay", 0.0), step.get("nesterov", False))


def _words(reader: Reader, entries: dict[str, Entry], role: str, dtype: str, shape: tuple[int, ...], side: str,
           ) -> Words | None:
    """The flat words of one tensor, None if the dump has none of that role."""
    if role not in entries:
        return None
    return _flat(reader.found(entries[role], role, dtype, shape), entries[role], f"{side}.{role}", shape)


def _flat(found: Found, entry: Entry, name: str, shape: tuple[int, ...]) -> Words:
    array = found.array
    if array.shape != shape and (array.size != math.prod(shape) or array.ndim > 1):
        raise DumpError(f"{name} in {entry.file!r} has the shape {list(array.shape)}; accepted: {list(shape)}, or flat "
                        "with as many elements")
    words: Words = np.ascontiguousarray(array).reshape(-1).view(WORDS[str(found.dtype)])
    return words


def _number(reader: Reader, step: dict[str, Any], inputs: dict[str, Entry], name: str, dtype: str, rule: str) -> float:
    """learning_rate or momentum: told as a number, or in a file of the tensors' dtype (or of Python's numbers)."""
    told, entry = step.get(name), inputs.pop(name, None)
    if isinstance(told, Entry):
        if entry is not None:
            raise DumpError(f"{name} stands twice: in {told.file!r} and in {entry.file!r}")
        told, entry = None, told
    if entry is None:
        if told is None:
            raise DumpError(f"{name} is missing; give it in CASE.json, in a file such as {name}.npy, or on the command "
                            f"line. {layout.HINT}")
        return float(told)
    found = reader.found(entry, name, None if entry.dtype or not reader.is_raw(entry, name) else dtype, (1,))
    if found.array.size != 1:
        raise DumpError(f"{name} in {entry.file!r} has {found.array.size} elements; accepted: one")
    value = float(found.array.reshape(-1)[0])
    rounded = number_of(word_of(value, dtype), dtype) if rule == "cann" else value
    if found.dtype != "float64" and not math.isnan(value) and rounded != value:
        raise DumpError(f"{name} in {entry.file!r} is {value!r} in {found.dtype}, which {dtype} has not; rule O1: all "
                        "tensors are of one dtype")
    if told is not None and word_of(float(told), dtype) != word_of(value, dtype):
        raise DumpError(f"{name} is {value!r} in {entry.file!r}, but {told!r} was told; give it once")
    return value
