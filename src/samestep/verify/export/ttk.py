"""Cases for the operator test kit: a case file with the columns that the kit reads, and a golden plugin."""

from __future__ import annotations

import csv
import inspect
import io
from collections.abc import Sequence
from importlib import resources
from typing import Any

import numpy as np

from samestep import formula
from samestep.contract import INPUTS
from samestep.verify.observation import Problem
from samestep.verify.patterns import Words, values_of, word_of

WRITTEN = ("parameters", "accum", "stat")
COLUMNS = (
    "testcase_name", "network_name", "op_name", "input_shapes", "input_dtypes", "input_formats", "output_shapes",
    "output_dtypes", "output_formats", "input_ori_shapes", "input_ori_formats", "output_ori_shapes",
    "output_ori_formats", "attributes", "input_data_ranges", "precision_tolerances", "absolute_precision",
    "output_inplace_indexes", "output_shape_unknown_indexes", "is_enabled", "remark", "soc_series", "priority",
    "dump_file_prefix", "manual_input_binaries", "manual_golden_binaries",
)


def plugin(order: str) -> str:
    """The golden plugin for `order` as Python source that needs NumPy only; its arithmetic is formula.py's own text."""
    template = (resources.files("samestep.verify") / "data" / "golden_plugin.py.txt").read_text(encoding="utf-8")
    return template.format(order=order, formula=inspect.getsource(formula.cann))


def header() -> str:
    """The first line of a case file."""
    return _line(COLUMNS)


def row(name: str, problem: Problem, remark: str, inputs: Sequence[str], golden: Sequence[str]) -> str:
    """The line of one case of rule cann. `inputs` and `golden` name its files, in the order of INPUTS and WRITTEN.

    Tolerances are 0: the golden outputs are right to the bit.
    """
    shapes = tuple((1,) if scalar else problem.shape for scalar in _scalars())
    fields: dict[str, Any] = {
        "testcase_name": name, "network_name": "UNKNOWN", "op_name": "sgd", "input_shapes": shapes,
        "input_dtypes": (problem.dtype,) * len(INPUTS), "output_shapes": (problem.shape,),
        "output_dtypes": (problem.dtype,), "input_ori_shapes": shapes,
        "attributes": {"dampening": problem.dampening, "weight_decay": problem.weight_decay,
                       "nesterov": problem.nesterov},
        "input_data_ranges": tuple(_range(words, problem.dtype) for words in input_words(problem).values()),
        "precision_tolerances": ((0.0, 0.0),), "absolute_precision": 0.0,
        "output_inplace_indexes": tuple(INPUTS.index(tensor) for tensor in WRITTEN),
        "output_shape_unknown_indexes": (), "is_enabled": 1, "remark": remark, "manual_input_binaries": tuple(inputs),
        "manual_golden_binaries": tuple(golden),
    }
    return _line([fields.get(column, "") for column in COLUMNS])


def input_words(problem: Problem) -> dict[str, Words]:
    """The patterns of all six inputs of a problem of rule cann, in the operator's order."""
    assert problem.accum is not None
    assert problem.stat is not None
    lr, m = (np.array([word_of(number, problem.dtype)], problem.parameters.dtype)
             for number in (problem.learning_rate, problem.momentum))
    return dict(zip(INPUTS, (problem.parameters, problem.gradient, lr, problem.accum, m, problem.stat), strict=True))


def _scalars() -> list[bool]:
    return [name in ("learning_rate", "momentum") for name in INPUTS]


def _range(words: Words, dtype: str) -> tuple[float, ...]:
    """The least and the greatest value; where not all are finite, the kit's own range of everything."""
    with np.errstate(all="ignore"):
        values = values_of(words, dtype).astype(np.float64)
    if not np.isfinite(values).all():
        return (-np.inf, np.inf, np.nan, 0)
    return float(values.min()), float(values.max())


def _line(cells: Sequence[Any]) -> str:
    file = io.StringIO(newline="")
    csv.writer(file, lineterminator="\n").writerow(cells)
    return file.getvalue()
