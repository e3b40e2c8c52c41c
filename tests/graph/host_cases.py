"""What a graph must accept and refuse before it has data: one table of cases for every kind of graph.

Used by the tests of shape inference, of the GE node and of the torch operator. A case that is accepted gives the
parameters' shape and dtype, and selects `variant`; one that is refused says the code and the input at fault.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

INPUTS = ("parameters", "gradient", "learning_rate", "accum", "momentum", "stat")
TENSORS = ("parameters", "gradient", "accum", "stat")
SCALARS = ("learning_rate", "momentum")
DTYPES = ("float32", "float16", "bfloat16")
UNKNOWN_RANK = (-2,)

Shape = tuple[int, ...]


class Case(NamedTuple):
    """Six shapes and dtypes in the order of `INPUTS`, the attributes that are given (omitted ones have their
    defaults), and either the business variant selected or the code and the input refused."""

    name: str
    shapes: tuple[Shape, ...]
    dtypes: tuple[str, ...]
    attributes: dict[str, Any]
    variant: str | None
    code: str | None
    input: str | None

    @property
    def accepted(self) -> bool:
        return self.code is None

    @property
    def output(self) -> tuple[Shape, str]:
        """Shape and dtype of the declared output of an accepted case (rule S1)."""
        return self.shapes[0], self.dtypes[0]

    @property
    def static(self) -> bool:
        """Whether every length is known."""
        return all(dim >= 0 for shape in self.shapes for dim in shape)


def accepted(
    name: str, shape: Shape = (2, 3), *, scalar: Shape = (1,), dtype: str = "float32", variant: str = "K0",
    attributes: dict[str, Any] | None = None, **shapes: Shape,
) -> Case:
    return Case(name, _shapes(shape, scalar, shapes), (dtype,) * 6, attributes or {}, variant, None, None)


def refused(
    name: str, code: str, input: str, shape: Shape = (2, 3), *, dtypes: dict[str, str] | None = None,
    attributes: dict[str, Any] | None = None, **shapes: Shape,
) -> Case:
    types = tuple((dtypes or {}).get(name, "float32") for name in INPUTS)
    return Case(name, _shapes(shape, (1,), shapes), types, attributes or {}, None, code, input)


def _shapes(shape: Shape, scalar: Shape, changed: dict[str, Shape]) -> tuple[Shape, ...]:
    return tuple(changed.get(name, scalar if name in SCALARS else shape) for name in INPUTS)


# key >> 1 of rule K1, and attributes that select it; what is left out has its default.
VARIANTS: dict[str, tuple[int, dict[str, Any]]] = {
    "K0": (0, {}),
    "K1": (4, {"dampening": 0.1}),
    "K2": (2, {"weight_decay": 0.01}),
    "K3": (6, {"dampening": 0.1, "weight_decay": 0.01}),
    "K4": (3, {"weight_decay": 0.01, "nesterov": True}),
    "K5": (1, {"nesterov": True}),
}
ALL = {"dampening": 0.0, "weight_decay": 0.0, "nesterov": False}
NAN = float("nan")

EMPTY: list[Shape] = [
    (0,), (0, 3), (2, 0), (0, 0),
    *(tuple(0 if axis in gone else axis + 2 for axis in range(3))
      for n in (1, 2) for gone in itertools.combinations(range(3), n)),
    (0, 0, 0), (2, 1, 2, 1, 2, 1, 2, 0),
]
SHAPES: list[Shape] = [(1,), (33, 2), (7, 7, 33, 2), (2, 30), (1,) * 8, (3761, 4, 44, 4)]
UNKNOWN: list[Shape] = [UNKNOWN_RANK, (-1, 3), (-1,), (2, -1), (-1,) * 8]

ACCEPTED = [
    *(accepted(f"{variant} {dtype}", dtype=dtype, variant=variant, attributes=given)
      for variant, (_, given) in VARIANTS.items() for dtype in DTYPES),
    *(accepted(f"{variant} with every attribute given", variant=variant, attributes=ALL | given)
      for variant, (_, given) in VARIANTS.items()),
    accepted("dampening that float32 rounds to zero, with nesterov", variant="K5",
             attributes={"nesterov": True, "dampening": 1e-50}),
    accepted("weight decay -0", attributes={"weight_decay": -0.0}),
    accepted("negative weight decay that float32 rounds to zero", attributes={"weight_decay": -1e-50}),
    accepted("negative dampening", variant="K1", attributes={"dampening": -1.0}),
    accepted("dampening NaN", variant="K1", attributes={"dampening": NAN}),
    *(accepted(f"shape {shape} {dtype}", shape, dtype=dtype) for shape in SHAPES for dtype in DTYPES),
    *(accepted(f"scalars {scalar}", scalar=scalar) for scalar in [(1,), (), (1, 1), (-1,), UNKNOWN_RANK]),
    accepted("scalars of two ranks", learning_rate=(), momentum=(1, 1)),
    *(accepted(f"unknown {shape} {dtype}", shape, dtype=dtype) for shape in UNKNOWN for dtype in DTYPES),
    *(accepted(f"unknown {name} {shape}", **{name: shape})
      for name in TENSORS for shape in [UNKNOWN_RANK, (-1, 3), (2, -1), (-1, -1)]),
]

REFUSED = [
    refused("nesterov with dampening", "attribute_value_out_of_range", "dampening",
            attributes={"nesterov": True, "dampening": 0.1}),
    refused("nesterov with dampening NaN", "attribute_value_out_of_range", "dampening",
            attributes={"nesterov": True, "dampening": NAN}),
    *(refused(f"weight decay {value}", "attribute_value_out_of_range", "weight_decay",
              attributes={"weight_decay": value}) for value in (-0.1, NAN, -float("inf"))),
    refused("rank 0", "rank_out_of_range", "parameters", ()),
    refused("rank 9", "rank_out_of_range", "parameters", (1,) * 9),
    *(refused(f"empty {shape}", "null_input", "parameters", shape) for shape in EMPTY),
    *(refused(f"parameters empty {shape}", "null_input", "parameters", parameters=shape) for shape in EMPTY),
    *(refused(f"{name} empty {shape}", "shape_mismatch", name, **{name: shape})
      for name in TENSORS[1:] for shape in EMPTY),
    refused("gradient and stat empty", "shape_mismatch", "gradient", gradient=(2, 0), stat=(2, 0)),
    *(refused(f"{name} {shape}", "shape_mismatch", name, **{name: shape})
      for name in TENSORS[1:] for shape in [(1, 3), (2, 1), (3,), (1,), (), (3, 2), (6,), (2, 3, 1), (1,) * 9]),
    refused("parameters (1, 3)", "shape_mismatch", "gradient", parameters=(1, 3)),
    *(refused(f"{name} {shape}", "scalar_shape", name, **{name: shape})
      for name in SCALARS for shape in [(2,), (0,), (1, 2), (2, 1)]),
    *(refused(f"{name} float16 among float32", "dtype_mismatch", name, dtypes={name: "float16"})
      for name in INPUTS[1:]),
    *(refused(f"{name} bfloat16 among float32", "dtype_mismatch", name, dtypes={name: "bfloat16"})
      for name in INPUTS[1:]),
    refused("parameters float16 among float32", "dtype_mismatch", "gradient", dtypes={"parameters": "float16"}),
    *(refused(f"{name} {dtype}", "unsupported_dtype", name, dtypes={name: dtype})
      for name in INPUTS for dtype in ("float64", "int32")),
    *(refused(f"all {dtype}", "unsupported_dtype", "parameters", dtypes=dict.fromkeys(INPUTS, dtype))
      for dtype in ("float64", "int32", "int8", "bool")),
    refused("known lengths that disagree beside unknown ones", "shape_mismatch", "stat",
            (-1, 3), gradient=(2, 3), stat=(4, 3)),
    refused("unknown length beside a known 0", "null_input", "parameters", (-1, 0)),
]

CASES = [*ACCEPTED, *REFUSED]
IDS = [case.name for case in CASES]
assert len(set(IDS)) == len(IDS), "two cases of one name"
