"""What has to be refused, as cases: calls that must raise and must not write a byte (rules O1 to O4, O10 to O12)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from samestep.verify.patterns import TYPES
from samestep.verify.suite.variants import DTYPES_OF

INPUTS = ("parameters", "gradient", "learning_rate", "accum", "momentum", "stat")
TENSORS = ("parameters", "gradient", "accum", "stat")
SCALARS = ("learning_rate", "momentum")
SHAPE = (2, 3)
NAN, INF = math.nan, math.inf

# rule, code, names of the inputs, what they are: an array of that shape, or what is done to it
Row = tuple[str, str, Sequence[str], tuple[int, ...] | str]
TENSOR_ROWS: tuple[Row, ...] = (
    *(("O1", "unsupported_dtype", INPUTS, dtype) for dtype in ("float64", "int32", "bool")),
    ("O1", "dtype_mismatch", INPUTS[1:], "another dtype"),
    *(("O2", "rank_out_of_range", ("parameters",), shape) for shape in ((), (1,) * 9)),
    *(("O2", "null_input", ("parameters",), shape) for shape in ((0,), (0, 3), (2, 0))),
    *(("O2", "shape_mismatch", TENSORS[1:], shape) for shape in ((3, 2), (6,), (1, 3), (), (0,))),
    *(("O2", "scalar_shape", SCALARS, shape) for shape in ((2,), (0,), (1, 2))),
    *(("O3", "not_contiguous", TENSORS, layout) for layout in ("transposed", "strided")),
    ("O10", "read_only", ("parameters", "accum", "stat"), "read-only"),
)
ATTRIBUTE_ROWS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    *(("O4", "attribute_value_out_of_range", {"weight_decay": wd}) for wd in (-0.1, -1e-40, -INF, NAN)),
    *(("O4", "attribute_value_out_of_range", {"nesterov": True, "dampening": d}) for d in (0.5, 1e-40, NAN)),
    ("O12", "wrong_type", {"dampening": "0"}),
    ("O12", "wrong_type", {"weight_decay": None}),
    ("O12", "wrong_type", {"nesterov": 1}),
    ("O12", "unknown_order", {"order": "other"}),
    ("O12", "engine_unavailable", {"engine": "other"}),
)
OF_ENGINES_ONLY = ("wrong_type", "unknown_order", "engine_unavailable")  # what other signatures need not know
OVERLAPS = (("accum", "parameters"), ("stat", "accum"), ("gradient", "parameters"), ("stat", "gradient"))


class Call(NamedTuple):
    """One call of a target."""

    arguments: list[Any]
    attributes: dict[str, Any]


class Refusal(NamedTuple):
    """A call that must raise without having written; of an engine the error must also have the `code`, if there is one.

    `engines_only` says that it asks for what only engines of this package have.
    """

    name: str
    rule: str
    dtype: str
    code: str
    make: Callable[[], Call]
    engines_only: bool = False


def refusals(rule: str, dtypes: Sequence[str] | None = None) -> Iterator[Refusal]:
    """Every refusal that NumPy arrays and Python values can ask for."""
    for dtype in dtypes or DTYPES_OF[rule]:
        yield from _of_operator(dtype) if rule == "cann" else _of_optimizer(dtype)


def _of_operator(dtype: str) -> Iterator[Refusal]:
    for rule, code, names, what in TENSOR_ROWS:
        for name in names:
            yield Refusal(f"refusals/{dtype}/{code}/{name}: {what}", rule, dtype, code,
                          partial(_with_tensor, dtype, name, what))
    for one, other in OVERLAPS:
        yield Refusal(f"refusals/{dtype}/overlap/{one} is {other}", "O10", dtype, "overlap",
                      partial(_shared, dtype, one, other))
    for rule, code, attributes in ATTRIBUTE_ROWS:
        yield Refusal(f"refusals/{dtype}/{code}/{attributes}", rule, dtype, code,
                      partial(_with_attributes, dtype, attributes), code in OF_ENGINES_ONLY)


def _usual(dtype: str) -> dict[str, Any]:
    return {name: np.full((1,) if name in SCALARS else SHAPE, 0.5).astype(TYPES[dtype]) for name in INPUTS}


def _attributes(**changed: Any) -> dict[str, Any]:
    return {"dampening": 0.0, "weight_decay": 0.0, "nesterov": False, **changed}


def _with_tensor(dtype: str, name: str, what: tuple[int, ...] | str) -> Call:
    tensors = _usual(dtype)
    tensors[name] = _bad(tensors[name], what)
    return Call(list(tensors.values()), _attributes())


def _bad(array: Any, what: tuple[int, ...] | str) -> Any:
    """The array spoilt in one way."""
    if isinstance(what, tuple):
        return np.ones(what, array.dtype)
    if what == "transposed":
        return np.ones(array.shape[::-1], array.dtype).T
    if what == "strided":
        return np.ones((2, 6), array.dtype)[:, ::2]
    if what == "read-only":
        array.flags.writeable = False
        return array
    if what == "another dtype":
        return array.astype(np.float16 if array.dtype == np.float32 else np.float32)
    return array.astype(what)


def _shared(dtype: str, one: str, other: str) -> Call:
    tensors = _usual(dtype)
    tensors[one] = tensors[other]
    return Call(list(tensors.values()), _attributes())


def _with_attributes(dtype: str, attributes: dict[str, Any]) -> Call:
    return Call(list(_usual(dtype).values()), _attributes(**attributes))


def _of_optimizer(dtype: str) -> Iterator[Refusal]:
    """What the optimizer refuses at a step: NaN hyperparameters, and tensors that do not fit the parameter."""
    for name in ("lr", "momentum", "dampening", "weight_decay"):
        yield Refusal(f"refusals/{dtype}/NaN/{name}", "T", dtype, "", partial(_step, dtype, {name: NAN}))
    for place, name in ((1, "gradient"), (2, "momentum_buffer")):
        for shape in ((3, 2), (7,)):
            yield Refusal(f"refusals/{dtype}/shape/{name}: {shape}", "T", dtype, "",
                          partial(_step, dtype, {}, place, shape))


def _step(dtype: str, changed: dict[str, Any], place: int = 0, shape: tuple[int, ...] = SHAPE) -> Call:
    tensors = [np.full(shape if k == place else SHAPE, 0.5).astype(TYPES[dtype]) for k in range(3)]
    return Call(tensors, _attributes(**{"lr": 0.1, "momentum": 0.9, "maximize": False, **changed}))
