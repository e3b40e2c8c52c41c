"""Objects that are no tensor the operator takes: an error with a code, never a crash, never another exception."""

from __future__ import annotations

import array
import ctypes
import decimal
import faulthandler
import fractions
import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses import FakeTensorMode

import samestep

INPUTS = ("parameters", "gradient", "learning_rate", "accum", "momentum", "stat")
TENSORS = ("parameters", "gradient", "accum", "stat")
SCALARS = ("learning_rate", "momentum")


class Exporter:
    """An object that is nothing but DLPack; `export` makes the capsule or raises."""

    def __init__(self, export: Callable[..., Any], device: Any = (1, 0)) -> None:
        self._export, self._device = export, device

    def __dlpack__(self, **options: Any) -> Any:
        return self._export(**options)

    def __dlpack_device__(self) -> Any:
        return self._device


def failing(*_: Any, **__: Any) -> Any:
    raise ZeroDivisionError("exported badly")


class _Header(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("lengths", ctypes.c_void_p), ("strides", ctypes.c_void_p), ("byte_offset", ctypes.c_uint64),
    ]


_kept: list[Any] = []  # what the hand-made capsules point to


def capsule(shape: tuple[int, ...] = (2, 3), **changed: int) -> Exporter:
    """A hand-made capsule of a float32 tensor, with some fields of the C struct changed."""
    lengths, data = (ctypes.c_int64 * len(shape))(*shape), (ctypes.c_float * 6)(0, 1, 2, 3, 4, 5)
    fields = {"major": 1, "data": ctypes.addressof(data), "device_type": 1, "ndim": len(shape), "code": 2, "bits": 32,
              "lanes": 1, "lengths": ctypes.addressof(lengths)}
    header = _Header(**{**fields, **changed})
    _kept.append((lengths, data, header))
    new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
        ("PyCapsule_New", ctypes.pythonapi))
    return Exporter(lambda **_: new(ctypes.addressof(header), b"dltensor_versioned", None))


def consumed(**_: Any) -> Any:
    taken = torch.ones(2, 3).__dlpack__()
    torch.utils.dlpack.from_dlpack(taken)
    return taken


class Sub(torch.Tensor):
    """A subclass that may mean anything by its memory."""


class Array(np.ndarray):
    """Another one."""


def quietly(make: Callable[[], Any]) -> Any:
    """Some of these kinds warn that they are old or young when they are made."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make()


def fake(device: str) -> Any:
    with FakeTensorMode():
        return torch.empty(2, 3, device=device)


WRONG_TYPE: dict[str, Callable[[], Any]] = {
    "list": lambda: [[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]],
    "tuple": lambda: (1.0,),
    "None": lambda: None,
    "str": lambda: "0.1",
    "bytes": lambda: bytes(24),
    "bool": lambda: True,
    "complex": lambda: 0.1j,
    "Decimal": lambda: decimal.Decimal("0.1"),
    "Fraction": lambda: fractions.Fraction(1, 10),
    "array.array": lambda: array.array("f", [1, 2, 3]),
    "memoryview": lambda: memoryview(np.ones((2, 3), np.float32)),
    "the type ndarray": lambda: np.ndarray,
    "the type Tensor": lambda: torch.Tensor,
    "dtype": lambda: np.dtype(np.float32),
    "module": lambda: np,
    "masked array": lambda: np.ma.masked_array(np.ones((2, 3), np.float32), np.eye(2, 3)),
    "matrix": lambda: quietly(lambda: np.matrix(np.ones((2, 3), np.float32))),
    "recarray": lambda: np.ones((2, 3), np.float32).view(np.recarray),
    "ndarray subclass": lambda: np.ones((2, 3), np.float32).view(Array),
    "sparse COO": lambda: torch.ones(2, 3).to_sparse(),
    "sparse CSR": lambda: quietly(torch.ones(2, 3).to_sparse_csr),
    "sparse BSR": lambda: quietly(lambda: torch.ones(2, 4).to_sparse_bsr((1, 2))),
    "mkldnn": lambda: torch.ones(2, 3).to_mkldnn(),
    "nested": lambda: quietly(lambda: torch.nested.nested_tensor([torch.ones(3), torch.ones(2)])),
    "jagged": lambda: quietly(lambda: torch.nested.nested_tensor([torch.ones(3)], layout=torch.jagged)),
    "negated view": lambda: torch._neg_view(torch.ones(2, 3)),
    "conjugate's imaginary part": lambda: torch.ones(2, 3, dtype=torch.complex64).conj().imag,
    "Tensor subclass": lambda: torch.ones(2, 3).as_subclass(Sub),
    "uninitialized Parameter": torch.nn.UninitializedParameter,
    "fake": lambda: fake("cpu"),
    "fake on a GPU": lambda: fake("cuda"),
    "DLPack raises": lambda: Exporter(failing),
    "DLPack device raises": type("Broken", (), {"__dlpack__": failing, "__dlpack_device__": failing}),
    "DLPack device is None": lambda: Exporter(failing, None),
    "DLPack device is text": lambda: Exporter(failing, ("cpu", 0)),
    "DLPack gives None": lambda: Exporter(lambda **_: None),
    "DLPack gives a used capsule": lambda: Exporter(consumed),
    "DLPack version 2": lambda: capsule(major=2),
    "DLPack copy": lambda: capsule(flags=2),
    "DLPack of a tensor that requires grad": lambda: Exporter(torch.ones(2, 3, requires_grad=True).__dlpack__),
    "DLPack class": lambda: Exporter,
}

OTHERS: dict[str, tuple[Callable[[], Any], str, str]] = {
    "meta": (lambda: torch.ones(2, 3, device="meta"), "unsupported_device", "meta"),
    "meta Parameter": (lambda: torch.nn.Parameter(torch.ones(2, 3, device="meta")), "unsupported_device", "meta"),
    "DLPack on cuda": (lambda: Exporter(failing, (2, 1)), "unsupported_device", "cuda:1"),
    "DLPack on cuda_host": (lambda: Exporter(failing, (3, 0)), "unsupported_device", "cuda_host"),
    "DLPack on rocm": (lambda: Exporter(failing, (10, 0)), "unsupported_device", "rocm"),
    "DLPack on device 99": (lambda: Exporter(failing, (99, 0)), "unsupported_device", "99"),
    "quantized": (
        lambda: quietly(lambda: torch.quantize_per_tensor(torch.ones(2, 3), 0.1, 0, torch.quint8)),
        "unsupported_dtype", "quint8",
    ),
    "NumPy text": (lambda: np.str_("0.1"), "unsupported_dtype", "str"),
    "NumPy bool": (lambda: np.True_, "unsupported_dtype", "bool"),
    "NumPy int": (lambda: np.int64(1), "unsupported_dtype", "int64"),
    "DLPack int32": (lambda: Exporter(np.ones((2, 3), np.int32).__dlpack__), "unsupported_dtype", "int32"),
    "DLPack float64": (lambda: Exporter(np.ones((2, 3)).__dlpack__), "unsupported_dtype", "float64"),
    "DLPack bool": (lambda: Exporter(np.ones((2, 3), bool).__dlpack__), "unsupported_dtype", "bool"),
    "DLPack vectors": (lambda: capsule(lanes=4), "unsupported_dtype", "float32x4"),
    "DLPack kind 77": (lambda: capsule(code=77), "unsupported_dtype", "77"),
    "DLPack transposed": (lambda: Exporter(torch.ones(3, 2).t().__dlpack__), "not_contiguous", "(2, 3)"),
    "DLPack expanded": (lambda: Exporter(torch.ones(1, 3).expand(2, 3).__dlpack__), "not_contiguous", "(2, 3)"),
    "DLPack reversed": (lambda: Exporter(np.ones((2, 3), np.float32)[::-1].__dlpack__), "not_contiguous", "(2, 3)"),
}


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("kind", WRONG_TYPE)
def test_wrong_type(call: Any, name: str, kind: str) -> None:
    call[name] = WRONG_TYPE[kind]()
    accepts = "DLPack, or a Python number" if name in SCALARS else "NumPy array"
    call.refused("wrong_type", call.label(name), "", accepts)


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("kind", OTHERS)
def test_tensors_of_other_worlds(call: Any, name: str, kind: str) -> None:
    make, code, came = OTHERS[kind]
    call[name] = make()
    accepts = {"unsupported_device": "cpu", "unsupported_dtype": "float32", "not_contiguous": "C-contiguous"}
    call.refused(code, call.label(name), came, accepts[code])


@pytest.mark.parametrize("name", TENSORS)
@pytest.mark.parametrize("value", [1, 0.5, float("nan"), np.float64(0.5)], ids=repr)
def test_number_for_a_tensor(call: Any, name: str, value: Any) -> None:
    call[name] = value
    call.refused("wrong_type", call.label(name), f"{value}", "NumPy array")


def test_numpy_scalar_for_parameters(call: Any) -> None:
    call["parameters"] = np.float32(1)
    call.refused("rank_out_of_range", call.label("parameters"), "rank 0")


def test_dlpack_scalar_without_lengths(call: Any) -> None:
    """Rank 0 needs none, and without strides a tensor is contiguous."""
    call["momentum"] = capsule((), lengths=0)
    call.run()
    call["momentum"] = capsule((1, 1))
    call.run()


def test_dlpack_offset_in_bytes(make_call: Any) -> None:
    call, plain = make_call(), make_call()
    call["momentum"], plain["momentum"] = capsule((1,), byte_offset=12), 3.0
    call["gradient"] = Exporter(torch.from_numpy(plain["gradient"]).__dlpack__)
    call.run()
    plain.run()
    assert call.picture()[:1] == plain.picture()[:1]


def test_dlpack_strides_of_axes_of_length_one_do_not_matter(make_call: Any) -> None:
    call = make_call(shape=(1, 3))
    call["stat"] = Exporter(torch.ones(3, 1).t().__dlpack__)
    call["accum"] = Exporter(np.ones((8, 3), np.float32)[::8].__dlpack__)
    call.run()


def test_memmap_is_an_array(call: Any, tmp_path: Any) -> None:
    call["stat"] = np.memmap(tmp_path / "stat", np.float32, "w+", shape=(2, 3))
    call["stat"][:] = 1
    call.run()
    call["stat"].flush()
    assert (tmp_path / "stat").read_bytes() == bytes(24)


@pytest.mark.parametrize("name", TENSORS)
@pytest.mark.parametrize("value", [np.ones((3, 2, 3), np.float32), torch.ones(3, 2, 3), None, "abc", b"abc", 3,
                                   {0: np.ones(3)}, {1, 2}, iter([np.ones(3)])], ids=lambda value: type(value).__name__)
def test_what_is_no_sequence_of_tensors(make_call: Any, name: str, value: Any) -> None:
    call = make_call(3)
    call.columns[name] = value
    call.refused("wrong_type", name, type(value).__name__, "list or tuple")


# --- tensors that look plain and have no memory of their own: tried in a child, which they may crash ------------------

def left_with(size: int, shape: tuple[int, ...]) -> torch.Tensor:
    """As sharding frameworks leave a parameter whose memory they took away for a while: `size` bytes are left."""
    tensor = torch.ones(shape)
    tensor.untyped_storage().resize_(size)
    return tensor


WITHOUT_MEMORY: dict[str, Callable[[tuple[int, ...]], Any]] = {
    "storage freed": lambda shape: left_with(0, shape),
    "storage too small": lambda shape: left_with(2, shape),
    "Parameter with storage freed": lambda shape: torch.nn.Parameter(left_with(0, shape)),
    "zero tensor": torch._efficientzerotensor,
    "functional wrapper": lambda shape: torch._to_functional_tensor(torch.ones(shape)),
    "DLPack without data": lambda shape: capsule(shape, data=0),
    "DLPack without lengths": lambda shape: capsule(shape, lengths=0),
}


def in_a_child(body: Callable[[], Any]) -> str:
    """What `body` ends with in a fork of this process, which it may crash."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the child does nothing that needs other threads
        child = os.fork()
    if child == 0:
        faulthandler.disable()
        text = "no exception"
        try:
            body()
        except BaseException as error:
            text = f"{type(error).__name__} {getattr(error, 'code', '')} {error}"
        os.write(write, text.encode()[:4000])
        os._exit(0)
    os.close(write)
    with open(read, "rb") as pipe:
        text = pipe.read().decode()
    status = os.waitpid(child, 0)[1]
    return text if status == 0 else f"died of signal {os.WTERMSIG(status)}"


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("kind", WITHOUT_MEMORY)
def test_a_tensor_without_memory_does_not_crash(make_call: Any, name: str, kind: str) -> None:
    def body() -> None:
        call = make_call()
        call.options = {"engine": "reference"}
        call[name] = WITHOUT_MEMORY[kind]((1,) if name in SCALARS else (2, 3))
        call.refused("wrong_type", name)

    assert in_a_child(body) == "no exception"


@pytest.mark.parametrize("name", TENSORS)
@pytest.mark.parametrize(
    "transform", [torch.func.vmap, torch.func.functionalize, torch.func.grad], ids=["vmap", "functionalize", "grad"]
)
def test_inside_a_function_transform(make_call: Any, name: str, transform: Any) -> None:
    call, behind = make_call(), torch.ones(4, 2, 3)
    call.options = {"engine": "reference"}
    call.behind.append(behind)

    def body(wrapped: torch.Tensor) -> torch.Tensor:
        call[name] = wrapped
        call.refused("wrong_type", name)
        return wrapped.sum()

    assert in_a_child(lambda: transform(body)(behind if transform is torch.func.vmap else behind[0])) == "no exception"


@pytest.fixture(autouse=True)
def warnings_of_torch() -> Iterator[None]:
    """torch warns of young features only once per process, whenever that is."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="torch", category=UserWarning)
        yield


def test_an_unreadable_object_is_named(call: Any) -> None:
    call["accum"] = Exporter(failing)
    call.refused("wrong_type", call.label("accum"), "ZeroDivisionError: exported badly", "DLPack")
    with pytest.raises(samestep.ContractError, match="exported badly"):
        call.run()
