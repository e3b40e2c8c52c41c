"""The tables behind one launch for many tensor sets: which block is whose, what is copied again and what is not."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from samestep.engine import device_memory, gpu
from samestep.engine.batch import table_of
from samestep.optim import SGD, plan

pytest.importorskip("triton", reason="Triton is not installed here (pip install 'samestep[gpu]')")

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch):
    monkeypatch.setattr(device_memory, "_kept", {})


@pytest.fixture
def copies(monkeypatch):
    """The arrays that were copied to a device."""
    made, copied = [], device_memory._copied

    def counted(array, device):
        made.append(array.copy())
        return copied(array, device)

    monkeypatch.setattr(device_memory, "_copied", counted)
    return made


def test_every_element_belongs_to_one_block():
    from samestep.engine import triton_kernels

    rng = np.random.default_rng(0)
    for _ in range(200):
        block = int(rng.choice([1, 3, 64, 1024]))
        lengths = rng.integers(1, 5 * block + 2, rng.integers(1, 9))
        columns = rng.integers(0, 1 << 62, (4, len(lengths)))
        rows, owners = gpu.blocks_of(table_of(*columns, lengths), block)
        assert rows.shape == (len(lengths), triton_kernels.COLUMNS)
        assert (rows[:, :4] == columns.T).all()
        assert (rows[:, 4] == lengths).all()
        assert owners.dtype == np.int32
        covered = [np.zeros(n, int) for n in lengths]
        for number, owner in enumerate(owners):  # what the kernel does with its program's number
            start = (number - rows[owner, 5]) * block
            assert 0 <= start < lengths[owner]
            covered[owner][start:start + block] += 1
        assert all((part == 1).all() for part in covered)


def test_lengths_beyond_two_to_the_31():
    lengths = [(1 << 33) + 5, 7]
    rows, owners = gpu.blocks_of(table_of([0, 0], [0, 0], [0, 0], [0, 0], lengths), 1 << 20)
    assert rows[:, 4].tolist() == lengths
    assert rows[1, 5] == (1 << 13) + 1 == len(owners) - 1


def test_an_equal_table_is_not_copied_again(copies):
    one = device_memory.on_device(np.arange(6, dtype=np.int64), CPU)
    assert device_memory.on_device(np.arange(6, dtype=np.int64), CPU) is one
    assert len(copies) == 1
    other = device_memory.on_device(np.arange(1, 7, dtype=np.int64), CPU)
    assert other is not one
    assert one.tolist() == list(range(6))
    assert other.tolist() == list(range(1, 7))


def test_the_same_bytes_of_another_width_are_another_table():
    wide = device_memory.on_device(np.array([1], np.int64), CPU)
    narrow = device_memory.on_device(np.array([1, 0], np.int32), CPU)
    assert (wide.dtype, narrow.dtype) == (torch.int64, torch.int32)


def test_a_changed_array_leaves_the_device_as_it_was():
    array = np.arange(4, dtype=np.int64)
    tensor = device_memory.on_device(array, CPU)
    array[0] = 99
    assert tensor.tolist() == [0, 1, 2, 3]


def test_only_the_tables_used_last_are_kept(copies):
    first = device_memory.on_device(np.array([0], np.int64), CPU)
    for k in range(1, device_memory.KEPT):
        device_memory.on_device(np.array([k], np.int64), CPU)
        assert device_memory.on_device(np.array([0], np.int64), CPU) is first
    device_memory.on_device(np.array([1000], np.int64), CPU)  # pushes out 1, which was used longest ago
    made = len(copies)
    device_memory.on_device(np.array([0], np.int64), CPU)
    assert len(copies) == made
    device_memory.on_device(np.array([1], np.int64), CPU)
    assert len(copies) == made + 1


def test_a_steady_step_copies_nothing_and_new_gradients_one_table(copies, monkeypatch):
    monkeypatch.setattr(plan, "engine_of", lambda p: "gpu")
    params = [torch.nn.Parameter(torch.randn(n)) for n in (5, 2000, 64)]
    for p in params:
        p.grad = torch.ones_like(p)
    optimizer = SGD(params, lr=0.1, momentum=0.9)
    optimizer.step()
    optimizer.step()  # no longer the first momentum step
    assert [array.dtype for array in copies] == [np.int64, np.int32, np.int64]
    optimizer.param_groups[0]["lr"] = 0.05
    optimizer.step()
    assert len(copies) == 3
    params[1].grad = torch.ones_like(params[1])
    optimizer.step()
    assert [array.dtype for array in copies[3:]] == [np.int64]


def test_a_capture_without_memory_set_aside_says_what_to_do(monkeypatch):
    monkeypatch.setattr(device_memory, "_reserve", [])
    with pytest.raises(RuntimeError, match=r"4000 bytes of pinned memory.*run the same step once before the capture"):
        device_memory._reserved(4000)
    monkeypatch.setattr(device_memory, "_reserve", [torch.zeros(256, dtype=torch.uint8)])
    one, other = device_memory._reserved(100), device_memory._reserved(100)
    assert (one.numel(), other.numel()) == (100, 100)
    assert one.data_ptr() + 128 == other.data_ptr()
    with pytest.raises(RuntimeError, match="100 bytes"):
        device_memory._reserved(100)


class Streams:
    """torch.cuda as far as tables use it, on the device without memory; everything asked of it is written down."""

    def __init__(self, monkeypatch):
        self.current, self.capturing, self.log = "first", False, []
        for name, value in (("current_stream", lambda: Stream(self, self.current)), ("Event", lambda: Event(self)),
                            ("is_current_stream_capturing", lambda: self.capturing)):
            monkeypatch.setattr(torch.cuda, name, value)
        monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: self.note("pinned") or tensor)
        monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: self.note("used by", stream.name))
        monkeypatch.setattr(device_memory, "_reserve", [torch.zeros(1 << 20, dtype=torch.uint8)])
        monkeypatch.setattr(device_memory, "_captured", [])

    def note(self, *line):
        self.log.append(line)

    def table(self, *numbers):
        """What was asked while a table was put on the device, and its tensor."""
        self.log.clear()
        tensor = device_memory.on_device(np.array(numbers, np.int64), torch.device("meta"))
        return tensor, list(self.log)


class Stream:
    def __init__(self, cuda, name):
        self.cuda, self.name = cuda, name

    def __eq__(self, other):
        return self.name == other.name

    __hash__ = None

    def wait_event(self, event):
        self.cuda.note("waits", self.name, event.stream)


class Event:
    def __init__(self, cuda):
        self.cuda = cuda

    def record(self, stream):
        self.stream = stream.name


def test_a_table_is_copied_once_and_other_streams_wait_for_it(monkeypatch):
    cuda = Streams(monkeypatch)
    tensor, log = cuda.table(1, 2)
    assert log == [("pinned",)]
    assert cuda.table(1, 2) == (tensor, [])
    cuda.current = "second"
    assert cuda.table(1, 2) == (tensor, [("waits", "second", "first"), ("used by", "second")])


def test_a_graph_keeps_the_tables_it_was_captured_with(monkeypatch):
    cuda = Streams(monkeypatch)
    before, _ = cuda.table(1, 2)
    cuda.current, cuda.capturing = "capture", True
    assert cuda.table(1, 2) == (before, [])  # no event is waited for: that is not allowed in a capture
    made, log = cuda.table(3, 4)
    assert log == []  # neither are pinned memory and events made
    pinned = device_memory._captured[1]
    assert [id(x) for x in device_memory._captured] == [id(before), id(pinned), id(made)]
    assert pinned.tolist() == [3, 4]
    assert device_memory._reserve[0].numel() == (1 << 20) - 64


def test_a_table_that_only_a_graph_has_is_for_nobody_else(monkeypatch):
    # Its content is copied when the graph is replayed, which may be never.
    cuda = Streams(monkeypatch)
    cuda.capturing = True
    made, _ = cuda.table(3, 4)
    cuda.capturing = False
    other, log = cuda.table(3, 4)
    assert other is not made
    assert log == [("pinned",)]
