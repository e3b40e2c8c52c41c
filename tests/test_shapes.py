"""Shape and dtype inference (rules S1, S2): a graph is refused what the operator would refuse."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import samestep

INPUTS = ("parameters", "gradient", "learning_rate", "accum", "momentum", "stat")
TENSORS = ("parameters", "gradient", "accum", "stat")
SCALARS = ("learning_rate", "momentum")
NUMPY: dict[str, Any] = {"bfloat16": ml_dtypes.bfloat16}
UNKNOWN = (-2,)
NAN = float("nan")


class Case(NamedTuple):
    """Shapes of all four tensors and of both scalars, what differs from them, and the code and input refused."""

    shape: tuple[int, ...] = (2, 3)
    scalar: tuple[int, ...] = (1,)
    shapes: dict[str, tuple[int, ...]] = {}  # noqa: RUF012  (never changed)
    dtype: str | tuple[str, ...] = "float32"
    attributes: dict[str, Any] = {}  # noqa: RUF012
    code: str | None = None
    input: str = "parameters"

    def all_shapes(self) -> dict[str, tuple[int, ...]]:
        default = {name: self.scalar if name in SCALARS else self.shape for name in INPUTS}
        return {**default, **self.shapes}

    def dtypes(self) -> tuple[str, ...]:
        return (self.dtype,) * 6 if isinstance(self.dtype, str) else self.dtype


def changed(name: str, dtype: str, base: str = "float32") -> tuple[str, ...]:
    return tuple(dtype if other == name else base for other in INPUTS)


EMPTY = [(0,), (0, 3), (2, 0), (0, 0), (1, 2, 1, 2, 1, 2, 1, 0),
         *(tuple(0 if axis in gone else axis + 2 for axis in range(3))
           for n in (1, 2, 3) for gone in itertools.combinations(range(3), n))]

STATIC: dict[str, Case] = {
    # accepted
    **{f"shape {shape}": Case(shape) for shape in [(1,), (33, 2), (7, 7, 33, 2), (2, 1, 3), (1,) * 8, (100003,)]},
    **{f"scalars {shape}": Case(scalar=shape) for shape in [(), (1,), (1, 1), (1,) * 9]},
    "scalars of two ranks": Case(shapes={"learning_rate": (), "momentum": (1, 1)}),
    **{dtype: Case(dtype=dtype) for dtype in ("float32", "float16", "bfloat16")},
    **{f"attributes {kept}": Case(attributes=kept) for kept in [
        {"dampening": 0.5, "weight_decay": 0.1}, {"nesterov": True}, {"nesterov": True, "weight_decay": 1e-4},
        {"nesterov": True, "dampening": 1e-50}, {"weight_decay": -1e-50}, {"dampening": NAN}, {"dampening": -1}]},
    # dtypes
    **{f"dtype {dtype}": Case(dtype=dtype, code="unsupported_dtype")
       for dtype in ("float64", "int32", "uint16", "bool", "complex64")},
    **{f"{name} float64": Case(dtype=changed(name, "float64"), code="unsupported_dtype", input=name)
       for name in INPUTS},
    **{f"{name} {other} among {base}": Case(dtype=changed(name, other, base), code="dtype_mismatch", input=name)
       for name in INPUTS[1:] for base, other in itertools.permutations(["float32", "float16", "bfloat16"], 2)},
    "parameters float16": Case(dtype=changed("parameters", "float16"), code="dtype_mismatch", input="gradient"),
    # shapes
    "rank 0": Case((), code="rank_out_of_range"),
    "rank 9": Case((1,) * 9, code="rank_out_of_range"),
    "rank 9, empty": Case((1,) * 8 + (0,), code="rank_out_of_range"),
    "parameters rank 0": Case(shapes={"parameters": ()}, code="rank_out_of_range"),
    "parameters rank 9": Case(shapes={"parameters": (1,) * 9}, code="rank_out_of_range"),
    **{f"empty {shape}": Case(shape, code="null_input") for shape in EMPTY},
    **{f"parameters empty {shape}": Case(shapes={"parameters": shape}, code="null_input") for shape in EMPTY},
    **{f"{name} empty {shape}": Case(shapes={name: shape}, code="shape_mismatch", input=name)
       for name in TENSORS[1:] for shape in EMPTY},
    "gradient and stat empty": Case(shapes={"gradient": (0,), "stat": (0,)}, code="shape_mismatch", input="gradient"),
    **{f"{name} {shape}": Case(shapes={name: shape}, code="shape_mismatch", input=name)
       for name in TENSORS[1:]
       for shape in [(1, 3), (2, 1), (3,), (1,), (), (3, 2), (6,), (2, 3, 1), (1, 2, 3), (1,) * 9]},
    "parameters (1, 3)": Case(shapes={"parameters": (1, 3)}, code="shape_mismatch", input="gradient"),
    **{f"{name} {shape}": Case(shapes={name: shape}, code="scalar_shape", input=name)
       for name in SCALARS for shape in [(2,), (0,), (1, 2), (2, 1), (1, 0), (2, 3)]},
    # attributes
    "nesterov with dampening": Case(attributes={"nesterov": True, "dampening": 0.1},
                                    code="attribute_value_out_of_range", input="dampening"),
    "nesterov with NaN dampening": Case(attributes={"nesterov": True, "dampening": NAN},
                                        code="attribute_value_out_of_range", input="dampening"),
    "weight_decay -1": Case(attributes={"weight_decay": -1}, code="attribute_value_out_of_range", input="weight_decay"),
    "weight_decay NaN": Case(attributes={"weight_decay": NAN}, code="attribute_value_out_of_range",
                             input="weight_decay"),
    **{f"{name} {value!r}": Case(attributes={name: value}, code="wrong_type", input=name)
       for name in ("dampening", "weight_decay", "nesterov") for value in ("0.1", None, [0.1])},
    # two faults: the earlier check wins
    "dtype before shape": Case((), dtype="int32", code="unsupported_dtype"),
    "shape before attribute": Case(shapes={"stat": (1, 3)}, attributes={"weight_decay": -1}, code="shape_mismatch",
                                   input="stat"),
    "shape before scalar": Case(shapes={"stat": (1, 3), "learning_rate": (2,)}, code="shape_mismatch", input="stat"),
    "scalar before attribute": Case(scalar=(2,), attributes={"weight_decay": -1}, code="scalar_shape",
                                    input="learning_rate"),
}


@pytest.mark.parametrize("case", STATIC.values(), ids=STATIC)
def test_static_shapes(case: Case) -> None:
    """One table, through inference and through the operator: the same answer."""
    if case.code is None:
        spec = samestep.infer(*case.all_shapes().values(), dtype=case.dtype, **case.attributes)
        assert spec == samestep.TensorSpec(case.shape, case.dtypes()[0])
        assert (spec.shape, spec.dtype) == (case.shape, case.dtypes()[0])
        assert run(case) is None
        return
    with pytest.raises(samestep.ContractError) as caught:
        samestep.infer(*case.all_shapes().values(), dtype=case.dtype, **case.attributes)
    error, other = caught.value, run(case)
    assert other is not None
    assert (error.code, error.input) == (case.code, case.input)
    assert (error.code, error.input, error.got, error.accepted) == (other.code, other.input, other.got, other.accepted)
    assert str(error) == str(other)


def run(case: Case) -> samestep.ContractError | None:
    tensors = [np.ones(shape, NUMPY.get(dtype, dtype))
               for shape, dtype in zip(case.all_shapes().values(), case.dtypes(), strict=True)]
    try:
        samestep.sgd_(*tensors, engine="reference", **case.attributes)
    except samestep.ContractError as error:
        return error
    return None


# --- unknown dimensions and ranks ------------------------------------------------------------------------------------

def infer(p: Any, g: Any, a: Any, s: Any, lr: Any = (1,), m: Any = (1,)) -> samestep.TensorSpec:
    return samestep.infer(p, g, lr, a, m, s, dtype="float16")


@pytest.mark.parametrize(
    "shapes",
    [
        [(-1, 3)] * 4,
        [(-1,)] * 4,
        [(-1,) * 8] * 4,
        [UNKNOWN] * 4,
        [(-1, 3), (2, 3), (2, 3), (2, 3)],
        [(2, 3), (-1, 3), (2, -1), (-1, -1)],
        [(-1, 3), (2, -1), (-1, -1), (2, 3)],
        [(2, 3), UNKNOWN, UNKNOWN, UNKNOWN],
        [UNKNOWN, (2, 3), (-1, 3), (2, -1)],
        [UNKNOWN, (2, 3), UNKNOWN, (2, 3)],
        [(-1, 3), UNKNOWN, (2, 3), (-1, -1)],
    ],
    ids=str,
)
def test_unknowns_pass(shapes: list[tuple[int, ...]]) -> None:
    assert infer(*shapes) == (shapes[0], "float16")  # the shape of parameters as it was given


@pytest.mark.parametrize(
    ("shapes", "name"),
    [
        ([(-1, 3), (2, 4), (2, 3), (2, 3)], "gradient"),
        ([(-1, 3), (2, 3), (4, 3), (2, 3)], "accum"),
        ([(-1, 3), (2, 3), (2, 3), (4, 3)], "stat"),
        ([(-1, 3), (-1, 3), (2, 3), (4, 3)], "stat"),
        ([(-1, -1), (2, -1), (-1, 3), (4, 3)], "stat"),
        ([(2, 3), (2, -1), (-1, 3), (-1, 4)], "stat"),
        ([(-1,), (-1, -1), (-1,), (-1,)], "gradient"),
        ([(-1, 3), (-1,), (-1, 3), (-1, 3)], "gradient"),
        ([(1, 3), (-1, 3), (2, 3), (1, 3)], "accum"),  # 1 does not stretch
        ([UNKNOWN, (2, 3), (2, 3), (2, 4)], "stat"),
        ([UNKNOWN, (2, 3), UNKNOWN, (2,)], "stat"),
        ([UNKNOWN, UNKNOWN, (-1, 3), (2, 4)], "stat"),
    ],
    ids=str,
)
def test_contradictions_between_known_dimensions(shapes: list[tuple[int, ...]], name: str) -> None:
    with pytest.raises(samestep.ContractError) as caught:
        infer(*shapes)
    assert (caught.value.code, caught.value.input) == ("shape_mismatch", name)


@pytest.mark.parametrize(
    ("shape", "code"),
    [((-1, 0), "null_input"), ((0, -1), "null_input"), ((-1, -1, 0), "null_input"), ((), "rank_out_of_range"),
     ((-1,) * 9, "rank_out_of_range"), ((-1,) * 8 + (0,), "rank_out_of_range")],
    ids=str,
)
def test_refused_though_partly_unknown(shape: tuple[int, ...], code: str) -> None:
    for others in (shape, UNKNOWN):
        with pytest.raises(samestep.ContractError) as caught:
            infer(shape, others, others, others)
        assert (caught.value.code, caught.value.input) == (code, "parameters")


@pytest.mark.parametrize("name", TENSORS[1:])
@pytest.mark.parametrize("shape", [(0,), (2, 0), (0, -1), (), (1,) * 9, (-1,) * 9], ids=str)
@pytest.mark.parametrize("parameters", ["unknown rank", "unknown lengths"])
def test_what_no_parameters_could_agree_with(name: str, shape: tuple[int, ...], parameters: str) -> None:
    """A known axis of length 0, rank 0 or rank 9 is refused wherever it is known: the shapes have to be equal."""
    known = UNKNOWN if parameters == "unknown rank" else (-1,) * len(shape)
    shapes = {tensor: shape if tensor == name else known for tensor in TENSORS}
    with pytest.raises(samestep.ContractError) as caught:
        infer(*shapes.values())
    assert caught.value.code in ("null_input", "rank_out_of_range", "shape_mismatch")


@pytest.mark.parametrize("scalar", [UNKNOWN, (-1,), (-1, 1), (1, -1, -1), (), (1, 1), (-1,) * 9], ids=str)
def test_unknown_scalars_pass(scalar: tuple[int, ...]) -> None:
    assert infer((2,), (2,), (2,), (2,), lr=scalar, m=scalar).shape == (2,)


@pytest.mark.parametrize("scalar", [(2,), (-1, 2), (0,), (-1, 0), (3, -1)], ids=str)
def test_refused_scalars(scalar: tuple[int, ...]) -> None:
    for name, place in (("learning_rate", "lr"), ("momentum", "m")):
        with pytest.raises(samestep.ContractError) as caught:
            infer(UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, **{place: scalar})
        assert (caught.value.code, caught.value.input) == ("scalar_shape", name)
        assert str(scalar) in caught.value.got


def test_attributes_are_checked_though_nothing_is_known() -> None:
    with pytest.raises(samestep.ContractError, match=r"weight_decay.*\[attribute_value_out_of_range\]"):
        samestep.infer(*[UNKNOWN] * 6, weight_decay=NAN)


shapes_or_unknown = st.one_of(
    st.just(UNKNOWN), st.lists(st.sampled_from([-1, -1, 1, 2, 3]), min_size=1, max_size=3).map(tuple)
)


@settings(max_examples=500, deadline=None)
@given(st.lists(shapes_or_unknown, min_size=4, max_size=4))
def test_refused_exactly_if_no_shape_fits_all(shapes: list[tuple[int, ...]]) -> None:
    known = [shape for shape in shapes if shape != UNKNOWN]
    fits = len({len(shape) for shape in known}) <= 1 and all(
        len({dim for dim in axis if dim != -1}) <= 1 for axis in zip(*known, strict=False))
    if fits:
        assert infer(*shapes).shape == shapes[0]
    else:
        with pytest.raises(samestep.ContractError, match=r"\[shape_mismatch\]"):
            infer(*shapes)


# --- what is no shape, no dtype ------------------------------------------------------------------------------------

@pytest.mark.parametrize(
    "shape",
    [None, 3, "23", b"23", (2.0, 3), (True,), ("2", "3"), (-3,), (-2, 3), (3, -2), (-2, -2), (None,), ((2, 3),), {2: 3},
     {2, 3}, np.ones((2, 3), np.float32)],
    ids=repr,
)
@pytest.mark.parametrize("name", INPUTS)
def test_what_is_no_shape(name: str, shape: Any) -> None:
    shapes: dict[str, Any] = {other: (1,) if other in SCALARS else (2, 3) for other in INPUTS}
    shapes[name] = shape
    with pytest.raises(samestep.ContractError) as caught:
        samestep.infer(**shapes)
    assert (caught.value.code, caught.value.input) == ("wrong_type", name)
    assert repr(shape)[:10] in caught.value.got
    assert "-1" in caught.value.accepted


def test_lists_and_torch_sizes_are_shapes() -> None:
    spec = samestep.infer([2, 3], torch.Size([2, 3]), torch.ones(1).shape, np.ones((2, 3)).shape, [], [2, 3])
    assert spec == ((2, 3), "float32")
    assert type(spec.shape) is tuple


@pytest.mark.parametrize("dtype", [None, 3, 1.5, np.float32, np.dtype("float32"), torch.float32, [], ["float32"] * 5,
                                   ["float32"] * 7, [None] * 6, [[]] * 6, [np.float32] * 6, b"float32", "", "double",
                                   "Float32", "float32 "], ids=repr)
def test_what_is_no_dtype_name(dtype: Any) -> None:
    with pytest.raises(samestep.ContractError) as caught:
        samestep.infer(*[(1,)] * 6, dtype=dtype)
    assert caught.value.code in ("wrong_type", "unsupported_dtype")
    assert caught.value.input in ("dtype", "parameters")


def test_six_dtype_names_in_any_sequence() -> None:
    assert samestep.infer(*[(1,)] * 6, dtype=("bfloat16",) * 6).dtype == "bfloat16"
    assert samestep.infer(*[(1,)] * 6, dtype=["float16"] * 6).dtype == "float16"
