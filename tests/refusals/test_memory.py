"""Read-only arrays and shared memory (rule O10), in single calls and in batches."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import samestep

INPUTS = ("parameters", "gradient", "learning_rate", "accum", "momentum", "stat")
TENSORS = ("parameters", "gradient", "accum", "stat")
WRITTEN = ("parameters", "accum", "stat")


class Exporter:
    """An object that is nothing but DLPack."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


class Immutable(Exporter):
    """What JAX hands out: memory that may not change, in a capsule of the old style, which cannot say so."""

    __module__ = "jaxlib._jax"

    def __dlpack__(self, **options: Any) -> Any:
        if options:
            raise TypeError("the old protocol takes no options")
        return self.array.__dlpack__()


def overlaps(call: Any, one: str, other: str) -> None:
    """The call is refused for these two inputs: one is named as the culprit, the other in what came."""
    with pytest.raises(samestep.ContractError) as caught:
        call.run()
    named = {one, other} & {caught.value.input}
    assert named, str(caught.value)
    call.refused("overlap", named.pop(), ({one, other} - {caught.value.input}).pop() + "'s", "no shared memory")


def frozen(array: Any) -> Any:
    array.flags.writeable = False
    return array


def mapped(folder: Any) -> Any:
    np.ones((2, 3), np.float32).tofile(folder / "mapped")
    return np.memmap(folder / "mapped", np.float32, "r", shape=(2, 3))


READ_ONLY: dict[str, Any] = {
    "flag": lambda folder: frozen(np.ones((2, 3), np.float32)),
    "view of a frozen array": lambda folder: frozen(np.ones(6, np.float32)).reshape(2, 3),
    "bytes": lambda folder: np.frombuffer(bytes(24), np.float32).reshape(2, 3),
    "broadcast": lambda folder: np.broadcast_to(np.ones((2, 3), np.float32), (2, 3)),
    "mapped": mapped,
    "DLPack": lambda folder: Exporter(frozen(np.ones((2, 3), np.float32))),
    "DLPack of JAX": lambda folder: Immutable(np.ones((2, 3), np.float32)),
}


@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize("form", READ_ONLY)
def test_read_only(call: Any, tmp_path: Any, name: str, form: str) -> None:
    call[name] = READ_ONLY[form](tmp_path)
    call.behind.append(getattr(call[name], "array", None))
    call.refused("read_only", call.label(name), "read-only", "writable")


@pytest.mark.parametrize("form", READ_ONLY)
def test_read_only_gradient_is_welcome(call: Any, tmp_path: Any, form: str) -> None:
    call["gradient"] = READ_ONLY[form](tmp_path)
    call["learning_rate"] = frozen(np.full(1, 0.5, np.float32))
    call["momentum"] = Exporter(frozen(np.full(1, 0.5, np.float32)))
    call.run()


def test_read_only_gradient_twice_in_a_batch(make_call: Any) -> None:
    call = make_call(3)
    call.columns["gradient"] = [frozen(np.ones((2, 3), np.float32))] * 3
    call.run()


# --- the same object in two places -----------------------------------------------------------------------------------

# Where the pair's shapes differ (a tensor and a scalar), the call has one element.
SHARED = [pair for pair in itertools.combinations(INPUTS, 2) if set(pair) & set(WRITTEN)]


@pytest.mark.parametrize(("first", "second"), SHARED)
@pytest.mark.parametrize("count", [None, 100])
def test_one_array_in_two_places(make_call: Any, count: int | None, first: str, second: str) -> None:
    call = make_call(count, shape=(1,))
    call[second] = call[first]
    overlaps(call, call.label(first), call.label(second))


@pytest.mark.parametrize(("first", "second"), SHARED)
def test_torch_view_of_an_array(make_call: Any, first: str, second: str) -> None:
    call = make_call(None, shape=(1,))
    call[second] = torch.from_numpy(call[first])
    overlaps(call, first, second)


@pytest.mark.parametrize(("first", "second"), [pair for pair in SHARED if set(pair) <= set(TENSORS)])
@pytest.mark.parametrize("shift", [4, 20, 1, 23], ids="{} bytes".format)
def test_views_that_overlap_partly(call: Any, first: str, second: str, shift: int) -> None:
    memory = np.arange(48, dtype=np.uint8)
    memory[3::4] &= 0x3F
    places = memory[:24], memory[shift : shift + 24]
    for name, place in zip((first, second), places, strict=True):
        call[name] = place.view(np.float32).reshape(2, 3)
    overlaps(call, call.label(first), call.label(second))
    for name, place in zip((first, second), places[::-1], strict=True):
        call[name] = place.view(np.float32).reshape(2, 3)
    overlaps(call, call.label(first), call.label(second))


@pytest.mark.parametrize("scalar", ["learning_rate", "momentum"])
@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize("element", [0, 3, 5])
def test_scalar_inside_a_written_tensor(call: Any, scalar: str, name: str, element: int) -> None:
    call[scalar] = call[name].reshape(-1)[element]  # a NumPy scalar is a copy: accepted
    call.run()
    call[scalar] = call[name].reshape(-1)[element : element + 1]
    overlaps(call, scalar, call.label(name))


def test_torch_slices_of_one_storage(call: Any) -> None:
    storage = torch.arange(18.0)
    call["accum"], call["stat"] = storage[:6].reshape(2, 3), storage[5:11].reshape(2, 3)
    overlaps(call, call.label("stat"), call.label("accum"))


def test_dlpack_of_an_array(call: Any) -> None:
    call["gradient"] = Exporter(call["accum"])
    overlaps(call, call.label("accum"), call.label("gradient"))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_neighbours_do_not_overlap(make_call: Any, dtype: str) -> None:
    call = make_call(3, shape=(3,), dtype=dtype)
    memory = np.ones(38, dtype)
    places = iter(np.split(memory[:36], 12))
    for name in TENSORS:
        call.columns[name] = [next(places) for _ in range(3)]
    call["learning_rate"], call["momentum"] = memory[36:37], memory[37:]
    call.run()
    assert (memory[-2:] == 1).all()


# --- what may be shared, and what a batch may not ---------------------------------------------------------------------

def test_what_is_only_read_may_be_shared(call: Any) -> None:
    call["momentum"] = call["learning_rate"]
    call.run()
    call["learning_rate"] = call["momentum"] = call["gradient"].reshape(-1)[:1]
    call.run()


def test_gradient_shared_in_a_batch(make_call: Any) -> None:
    call, copies = make_call(4), make_call(4)
    call.columns["gradient"] = [call["gradient"]] * 4
    copies.columns["gradient"] = [copies["gradient"].copy() for _ in range(4)]
    call.run()
    copies.run()
    assert all((a == b).all() for a, b in zip(call.columns["accum"], copies.columns["accum"], strict=True))


@pytest.mark.parametrize("name", WRITTEN)
def test_one_tensor_twice_in_a_batch(make_call: Any, name: str) -> None:
    call = make_call(100)
    call[name] = call.columns[name][0]
    overlaps(call, f"{name}[99]", f"{name}[0]")


@pytest.mark.parametrize(("first", "second"), list(itertools.permutations(TENSORS, 2)))
def test_one_tensor_in_two_sets_of_a_batch(make_call: Any, first: str, second: str) -> None:
    call = make_call(100)
    call[second] = call.columns[first][0]
    overlaps(call, f"{first}[0]", f"{second}[99]")


def test_weights_tied_across_a_batch(make_call: Any) -> None:
    """A view of a tensor of another set, of another shape."""
    call = make_call(100, shape=(2, 3))
    for name in TENSORS:
        call[name] = np.ones(2, np.float32)
    call["parameters"] = call.columns["parameters"][50].reshape(-1)[4:]
    overlaps(call, "parameters[99]", "parameters[50]")


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_overlap_of_intervals(data: st.DataObject) -> None:
    """Any placement of the tensors of a batch in one stretch of memory, against the definition."""
    n = data.draw(st.integers(1, 3))
    lengths = data.draw(st.lists(st.sampled_from([1, 2, 3, 9]), min_size=n, max_size=n))
    memory = np.zeros(data.draw(st.sampled_from([120, 1000, 5000])), np.uint8)
    rows: list[tuple[str, int, int]] = []
    columns: dict[str, list[Any]] = {}
    for name in INPUTS:
        columns[name] = []
        for length in [1] if name in ("learning_rate", "momentum") else lengths:
            at = data.draw(st.integers(0, len(memory) - 4 * length))
            rows.append((name, at, at + 4 * length))
            columns[name].append(memory[at : at + 4 * length].view(np.float32))
    clash = any(a[1] < b[2] and b[1] < a[2] and {a[0], b[0]} & set(WRITTEN) for a, b in itertools.combinations(rows, 2))
    memory[:] = data.draw(st.integers(0, 127))
    before = memory.copy()
    tensors = [columns[name][0] if name in ("learning_rate", "momentum") else columns[name] for name in INPUTS]
    if clash:
        with pytest.raises(samestep.ContractError, match=r"\[overlap\]"):
            samestep.sgd_batch_(*tensors, engine="reference")
        assert (memory == before).all()
    else:
        samestep.sgd_batch_(*tensors, engine="reference")
