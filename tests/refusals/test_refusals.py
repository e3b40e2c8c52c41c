"""Dtypes, shapes, layout, attributes, orders and engines (rules O1 to O4, O12), each case in single calls and as the
last of a batch of 100. What counts as bad is a table; what a refusal has to be is `Call.refused`."""

from __future__ import annotations

import itertools
import pickle
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import samestep
from samestep.engine import cpu, engines, quick, reference

INPUTS = ("parameters", "gradient", "learning_rate", "accum", "momentum", "stat")
TENSORS = ("parameters", "gradient", "accum", "stat")
NAN, INF = float("nan"), float("inf")


def test_a_good_call_changes_what_the_picture_shows(call: Any) -> None:
    before = call.picture()
    call.run()
    changed = [a != b for a, b in zip(before, call.picture(), strict=True)]
    n = len(call.columns["gradient"])
    assert changed == [True] * n + [False] * n + [True] * 2 * n + [False] * 2


# --- O1: dtypes ------------------------------------------------------------------------------------------------------

UNSUPPORTED: dict[str, tuple[Any, str]] = {
    "float64": (np.float64, "float64"),
    "int8": (np.int8, "int8"),
    "int32": (np.int32, "int32"),
    "uint16": (np.uint16, "uint16"),  # the bits of bfloat16, but not the dtype
    "bool": (np.bool_, "bool"),
    "complex64": (np.complex64, "complex64"),
    "big-endian float32": (">f4", "float32 in foreign byte order"),
    "big-endian float16": (">f2", "float16 in foreign byte order"),
    "big-endian bfloat16": (np.dtype(ml_dtypes.bfloat16).newbyteorder(">"), "bfloat16 in foreign byte order"),
    "structured": ([("value", np.float32)], "void"),
    "object": (object, "object"),
    "float8": (ml_dtypes.float8_e4m3fn, "float8_e4m3fn"),
    "string": ("S4", "bytes"),
    "datetime": ("M8[s]", "datetime64"),
}
SHAPE_OF = {name: (1,) if name in ("learning_rate", "momentum") else (2, 3) for name in INPUTS}


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("dtype", UNSUPPORTED)
def test_unsupported_dtype(call: Any, name: str, dtype: str) -> None:
    kind, came = UNSUPPORTED[dtype]
    call[name] = np.zeros(SHAPE_OF[name], kind)
    call.refused("unsupported_dtype", call.label(name), came, "float32")


@pytest.mark.parametrize("dtype", UNSUPPORTED)
def test_unsupported_dtype_of_all_six(call: Any, dtype: str) -> None:
    kind, came = UNSUPPORTED[dtype]
    for name in INPUTS:
        call[name] = np.zeros(SHAPE_OF[name], kind)
    call.refused("unsupported_dtype", call.label("parameters"), came, "float32")


@pytest.mark.parametrize("kind", [torch.float64, torch.int64, torch.bool, torch.complex64, torch.float8_e5m2])
def test_unsupported_torch_dtype(call: Any, kind: torch.dtype) -> None:
    call["accum"] = torch.zeros(2, 3, dtype=kind)
    call.refused("unsupported_dtype", call.label("accum"), str(kind).removeprefix("torch."), "float32")


PAIRS = list(itertools.permutations([np.float32, np.float16, ml_dtypes.bfloat16], 2))


@pytest.mark.parametrize("name", INPUTS[1:])
@pytest.mark.parametrize(("dtype", "other"), PAIRS, ids=lambda kind: np.dtype(kind).name)
def test_dtype_mismatch(make_call: Any, name: str, dtype: Any, other: Any) -> None:
    for call in (make_call(None, dtype=dtype), make_call(100, dtype=dtype)):
        call[name] = np.zeros(SHAPE_OF[name], other)
        call.refused("dtype_mismatch", call.label(name), np.dtype(other).name, np.dtype(dtype).name)


def test_dtype_mismatch_of_parameters(make_call: Any) -> None:
    single, batch = make_call(None), make_call(100)
    for call in (single, batch):
        call["parameters"] = np.zeros((2, 3), np.float16)
    single.refused("dtype_mismatch", "gradient", "float32", "float16")
    batch.refused("dtype_mismatch", "parameters[99]", "float16", "float32")


@pytest.mark.parametrize("name", ["learning_rate", "momentum"])
def test_dtype_mismatch_of_a_torch_or_numpy_scalar(call: Any, name: str) -> None:
    call[name] = torch.tensor(0.5, dtype=torch.bfloat16)
    call.refused("dtype_mismatch", name, "bfloat16", "float32")
    call[name] = np.float16(0.5)
    call.refused("dtype_mismatch", name, "float16", "float32")


# --- O2: shapes ------------------------------------------------------------------------------------------------------

UNEQUAL = [(3, 2), (1, 3), (2, 1), (1, 1), (2, 4), (6,), (3,), (1,), (), (1, 2, 3), (2, 3, 1), (0,), (2, 0), (0, 3)]


@pytest.mark.parametrize("name", ["gradient", "accum", "stat"])
@pytest.mark.parametrize("shape", UNEQUAL, ids=str)
def test_shape_mismatch(call: Any, name: str, shape: tuple[int, ...]) -> None:
    call[name] = np.ones(shape, np.float32)
    call.refused("shape_mismatch", call.label(name), str(shape), "(2, 3)")


@pytest.mark.parametrize("shape", [shape for shape in UNEQUAL if shape and 0 not in shape], ids=str)
def test_shape_mismatch_of_parameters(call: Any, shape: tuple[int, ...]) -> None:
    call["parameters"] = np.ones(shape, np.float32)
    call.refused("shape_mismatch", call.label("gradient"), "(2, 3)", str(shape))


@pytest.mark.parametrize("rank", [0, 9, 12])
@pytest.mark.parametrize("names", [TENSORS, ("parameters",)], ids=["all", "parameters"])
def test_rank_out_of_range(call: Any, rank: int, names: tuple[str, ...]) -> None:
    for name in names:
        call[name] = np.ones((1,) * rank, np.float32)
    call.refused("rank_out_of_range", call.label("parameters"), f"rank {rank}", "1 to 8")


def test_rank_comes_before_emptiness(call: Any) -> None:
    call["parameters"] = np.ones((0,) + (1,) * 8, np.float32)
    call.refused("rank_out_of_range", call.label("parameters"), "rank 9", "1 to 8")


def empties() -> list[tuple[int, ...]]:
    """Every form of an empty shape: 1-D, 2-D each axis and both, 3-D each axis, pairs and all, 8-D the last."""
    three = [tuple(0 if axis in gone else axis + 2 for axis in range(3))
             for n in (1, 2, 3) for gone in itertools.combinations(range(3), n)]
    return [(0,), (0, 3), (2, 0), (0, 0), *three, (1, 2, 1, 2, 1, 2, 1, 0)]


@pytest.mark.parametrize("shape", empties(), ids=str)
@pytest.mark.parametrize(
    "names", [TENSORS, ("parameters",), ("parameters", "gradient"), ("parameters", "accum", "stat")], ids="+".join
)
def test_empty(call: Any, shape: tuple[int, ...], names: tuple[str, ...]) -> None:
    for name in names:
        call[name] = np.ones(shape, np.float32)
    call.refused("null_input", call.label("parameters"), str(shape), "no axis of length 0")


@pytest.mark.parametrize("names", [("gradient",), ("accum",), ("stat",), ("accum", "stat"), TENSORS[1:]], ids="+".join)
@pytest.mark.parametrize("shape", empties(), ids=str)
def test_empty_beside_full_parameters(call: Any, shape: tuple[int, ...], names: tuple[str, ...]) -> None:
    for name in names:
        call[name] = np.ones(shape, np.float32)
    call.refused("shape_mismatch", call.label(names[0]), str(shape), "(2, 3)")


def test_empty_torch_tensors(call: Any) -> None:
    for name in TENSORS:
        call[name] = torch.ones(2, 0)
    call.refused("null_input", call.label("parameters"), "(2, 0)", "no axis of length 0")


@pytest.mark.parametrize("name", ["learning_rate", "momentum"])
@pytest.mark.parametrize("shape", [(2,), (0,), (1, 2), (2, 1), (1, 0), (2, 3), (1, 1, 3)], ids=str)
def test_scalar_shape(call: Any, name: str, shape: tuple[int, ...]) -> None:
    call[name] = np.full(shape, 0.5, np.float32)
    call.refused("scalar_shape", name, str(shape), "one element")
    call[name] = torch.full(shape, 0.5)
    call.refused("scalar_shape", name, str(shape), "one element")


@pytest.mark.parametrize("name", ["learning_rate", "momentum"])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (1,) * 9], ids=str)
def test_accepted_scalar_shapes(make_call: Any, name: str, shape: tuple[int, ...]) -> None:
    for kind in (np.full, torch.full):
        call, plain = make_call(), make_call()
        call[name] = kind(shape, 0.125, dtype=np.float32 if kind is np.full else torch.float32)
        plain[name] = 0.125
        call.run()
        plain.run()
        for tensor in TENSORS:
            assert call[tensor].tobytes() == plain[tensor].tobytes()


# --- O3: layout ------------------------------------------------------------------------------------------------------

NON_CONTIGUOUS: dict[str, Any] = {
    "transposed": lambda: np.ones((3, 2), np.float32).T,
    "Fortran": lambda: np.ones((2, 3), np.float32, order="F"),
    "every second column": lambda: np.ones((2, 6), np.float32)[:, ::2],
    "every second row": lambda: np.ones((4, 3), np.float32)[::2],
    "inner columns": lambda: np.ones((2, 5), np.float32)[:, 1:4],
    "rows reversed": lambda: np.ones((2, 3), np.float32)[::-1],
    "columns reversed": lambda: np.ones((2, 3), np.float32)[:, ::-1],
    "one row twice": lambda: np.lib.stride_tricks.as_strided(np.ones(3, np.float32), (2, 3), (0, 4)),
    "a field of records": lambda: np.ones((2, 3), [("a", np.float32), ("b", np.float32)])["a"],
    "torch transposed": lambda: torch.ones(3, 2).t(),
    "torch strided": lambda: torch.ones(2, 6)[:, ::2],
    "torch expanded": lambda: torch.ones(1, 3).expand(2, 3),
    "torch expanded scalar": lambda: torch.ones(()).expand(2, 3),
}


@pytest.mark.parametrize("name", TENSORS)
@pytest.mark.parametrize("form", NON_CONTIGUOUS)
def test_not_contiguous(call: Any, name: str, form: str) -> None:
    call[name] = NON_CONTIGUOUS[form]()
    call.refused("not_contiguous", call.label(name), "(2, 3)", "C-contiguous")


def test_channels_last_is_not_contiguous(make_call: Any) -> None:
    call = make_call(shape=(2, 3, 2, 2))
    call["parameters"] = torch.ones(2, 3, 2, 2).to(memory_format=torch.channels_last)
    call.refused("not_contiguous", "parameters", "(2, 3, 2, 2)", "C-contiguous")


@pytest.mark.parametrize("name", ["learning_rate", "momentum"])
def test_strided_scalar_of_two_elements(call: Any, name: str) -> None:
    call[name] = np.ones(4, np.float32)[::2]
    call.refused("not_contiguous", name, "(2,)", "C-contiguous")


def test_strides_of_axes_of_length_one_do_not_matter(make_call: Any) -> None:
    call = make_call(shape=(1, 3))
    call["gradient"] = np.ones((4, 3), np.float32)[::4]
    call["stat"] = torch.ones(4, 3)[::4]
    call["learning_rate"] = np.ones(4, np.float32)[::4]
    call.run()
    assert call["stat"].tolist() == [[0, 0, 0]]


# --- O4: attributes --------------------------------------------------------------------------------------------------

WRONG_VALUES: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "nesterov with dampening": ({"nesterov": True, "dampening": 0.1}, "dampening", "0.1", "0 when nesterov"),
    "nesterov with negative dampening": ({"nesterov": True, "dampening": -1}, "dampening", "-1", "0 when nesterov"),
    "nesterov with NaN dampening": ({"nesterov": True, "dampening": NAN}, "dampening", "nan", "0 when nesterov"),
    "nesterov with least dampening": ({"nesterov": True, "dampening": 2.0**-149}, "dampening", "e-45", "0 when"),
    "weight_decay -1": ({"weight_decay": -1}, "weight_decay", "-1", ">= 0"),
    "weight_decay -1e-45": ({"weight_decay": -1e-45}, "weight_decay", "-1e-45", ">= 0"),
    "weight_decay NaN": ({"weight_decay": NAN}, "weight_decay", "nan", ">= 0"),
    "weight_decay -inf": ({"weight_decay": -INF}, "weight_decay", "-inf", ">= 0"),
    "weight_decay -10**400": ({"weight_decay": -(10**400)}, "weight_decay", "", ">= 0"),
}


@pytest.mark.parametrize("case", WRONG_VALUES)
def test_attribute_value_out_of_range(call: Any, case: str) -> None:
    call.options, name, came, accepts = WRONG_VALUES[case]
    call.refused("attribute_value_out_of_range", name, came, accepts)


NO_NUMBERS = ["0.1", b"0.1", None, [0.1], (0.1,), {}, np.array([0.1]), np.array(0.1), np.array([]), torch.tensor(0.1),
              True, False, np.True_, 0.1j, float, object()]
NO_BOOLS = [0, 1, 0.0, "True", "", None, [], [True], np.array(True), np.array([True, False]), torch.tensor(True), bool]


@pytest.mark.parametrize(
    ("attribute", "value", "accepts"),
    [(name, value, "number") for name in ("dampening", "weight_decay") for value in NO_NUMBERS]
    + [("nesterov", value, "True or False") for value in NO_BOOLS],
    ids=lambda value: f"{type(value).__name__}",
)
def test_attribute_of_the_wrong_type(call: Any, attribute: str, value: Any, accepts: str) -> None:
    call.options = {attribute: value}
    call.refused("wrong_type", attribute, type(value).__name__, accepts)


HUGE = {"long int": 10**400, "int too long to print": 10**5000, "Fraction": Fraction(10**400),
        "small Fraction": Fraction(1, 10**400), "longdouble": np.longdouble("1e4000")}


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("value", HUGE)
@pytest.mark.parametrize("attribute", ["dampening", "weight_decay"])
def test_numbers_beyond_every_float(call: Any, attribute: str, value: str, sign: int) -> None:
    """Refused or computed, as the rules for their value say: but no other exception, and no byte lost."""
    call.options = {attribute: sign * HUGE[value]}
    before, refusal = call.picture(), None
    try:
        call.run()
    except samestep.ContractError as error:
        refusal = error
    if refusal is not None:
        assert call.picture() == before
        assert refusal.code in ("attribute_value_out_of_range", "wrong_type")


def outcome(make_call: Any, **options: Any) -> list[bytes]:
    call = make_call()
    call.options = options
    call.run()
    return [call[name].tobytes() for name in TENSORS]


@pytest.mark.parametrize(
    ("accepted", "same"),
    [
        ({"dampening": 1e-50, "nesterov": True}, {"nesterov": True}),  # 1e-50 is 0.0f: no dampening
        ({"dampening": -0.0, "nesterov": np.True_}, {"nesterov": True}),
        ({"dampening": 2.0**-150}, {}),  # a tie with zero: to even
        ({"dampening": 2.0**-150 * 1.0001}, {"dampening": 2.0**-149}),
        ({"weight_decay": -1e-50}, {}),
        ({"weight_decay": -(2.0**-150)}, {}),
        ({"weight_decay": -0.0}, {}),
        ({"weight_decay": 1e39}, {"weight_decay": INF}),
        ({"weight_decay": 10**400}, {"weight_decay": INF}),
        ({"dampening": 0.1}, {"dampening": float(np.float32(0.1))}),
        ({"dampening": np.float64(0.1)}, {"dampening": np.float32(0.1)}),
        ({"dampening": np.int8(-3)}, {"dampening": -3}),
        ({"dampening": 2**24 + 1}, {"dampening": 2**24}),  # a tie, to even
        ({"dampening": 2**60 + 2**36 + 1}, {"dampening": 2**60 + 2**37}),  # not a tie, though it is one in float64
    ],
    ids=str,
)
def test_attributes_are_rounded_to_float32_first(make_call: Any, accepted: Any, same: Any) -> None:
    assert outcome(make_call, **accepted) == outcome(make_call, **same)


@pytest.mark.parametrize(
    "options", [{"dampening": NAN}, {"dampening": -2.5}, {"dampening": INF}, {"weight_decay": INF}], ids=str
)
def test_other_attribute_values_are_computed(make_call: Any, options: dict[str, float]) -> None:
    call = make_call()
    call.options = options
    call.run()
    value = next(iter(options.values()))
    finite = np.isfinite(call["parameters"])
    assert finite.all() if np.isfinite(value) else not finite.any()


@pytest.mark.parametrize("value", [NAN, INF, -INF, -3.0, -0.0, 1e30])
@pytest.mark.parametrize("name", ["learning_rate", "momentum"])
def test_no_value_of_a_scalar_is_refused(call: Any, name: str, value: float) -> None:
    call[name] = value
    call.run()


# --- orders and engines ----------------------------------------------------------------------------------------------

@pytest.mark.parametrize("order", ["SPEC", "", "torch", None, 0, b"spec", ["spec"], {}, np.array(["spec", "spec"]),
                                   np.array([]), torch.tensor([1, 2])], ids=repr)
def test_unknown_order(call: Any, order: Any) -> None:
    call.options = {"order": order}
    call.refused("unknown_order", "order", "", "'spec' or 'ascend950'")


@pytest.mark.parametrize("engine", ["CPU", "", "gpu0", 0, False, b"cpu", ["cpu"], {}, np.array(["cpu", "cpu"]),
                                    torch.tensor([1, 2])], ids=repr)
def test_unknown_engine(call: Any, engine: Any) -> None:
    call.options = {"engine": engine}
    call.refused("engine_unavailable", "engine", "", "cpu")


@pytest.mark.parametrize(
    ("module", "engine", "left"),
    [(reference, "reference", "cpu"), (cpu, "cpu", "reference"), (cpu, None, "reference")],
)
def test_unavailable_engine(call: Any, monkeypatch: pytest.MonkeyPatch, module: Any, engine: Any, left: str) -> None:
    monkeypatch.setattr(module, "unavailable", lambda: "it is being repainted")
    monkeypatch.setattr(quick, "step", lambda *arguments: False)  # it knows kernels of an engine that was available
    name = module.__name__.rpartition(".")[2]
    assert engines()[name] == "it is being repainted"
    call.options = {"engine": engine}
    error = call.refused("engine_unavailable", "engine", "it is being repainted", left)
    assert name in error.got
    call.options = {"engine": left}
    call.run()  # the others still run


def test_the_error_survives_pickling(call: Any) -> None:
    """As it has to on its way out of a worker process."""
    call["stat"] = np.ones((2, 3), np.float16)
    error = call.refused("dtype_mismatch", call.label("stat"))
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.code, again.input, again.got, again.accepted) == (
        str(error), error.code, error.input, error.got, error.accepted)
