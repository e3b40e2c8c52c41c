"""Lists of plain arrays, read by compiled code: the ordinary way's bits, and its refusals."""

from __future__ import annotations

import itertools
import random

import ml_dtypes
import numpy as np
import pytest
import torch

import samestep
import suite
from samestep.contract import DTYPES, ContractError
from samestep.engine import bulk

SHAPES = [(1,), (7,), (2, 3), (1, 1, 5), (64,), (3, 1, 2, 1, 2, 1, 2, 1), (4099,), (100_003,)]
COLUMNS = ("parameters", "gradient", "accum", "stat")


def drawn(dtype="float32", shapes=SHAPES, seed=0):
    """Lists of arrays by name, and learning_rate and momentum."""
    rng = np.random.default_rng(seed)
    kind = suite.NUMPY[dtype]
    lists = {name: [rng.standard_normal(shape).astype(kind) for shape in shapes] for name in COLUMNS}
    return lists | {"learning_rate": np.full(1, 0.1, kind), "momentum": np.full((), 0.9, kind)}


def copied(call):
    return {name: [x.copy() for x in value] if isinstance(value, list) else value for name, value in call.items()}


@pytest.fixture
def ways(monkeypatch):
    """What the compiled reader has answered, and a way to turn it off."""
    answers = []
    read = bulk.table_of

    def watched(*columns):
        answers.append(read(*columns) is not None)
        return read(*columns)

    monkeypatch.setattr(bulk, "table_of", watched)
    return answers


def ordinary(monkeypatch, call, **attributes):
    with monkeypatch.context() as patch:
        patch.setattr(bulk, "table_of", lambda *columns: None)
        return samestep.sgd_batch_(**call, **attributes)


@pytest.mark.parametrize(("dtype", "order", "key"), suite.KERNELS, ids=suite.IDS)
def test_bits(monkeypatch, ways, dtype, order, key):
    settings = {**suite.attributes(key)._asdict(), "order": order}
    for momentum in (0.9, 0.0, -0.0, float("nan")):
        call = drawn(dtype)
        call["momentum"] = np.full(1, momentum, suite.NUMPY[dtype]) if momentum else momentum
        other = copied(call)
        assert samestep.sgd_batch_(**call, **settings) is call["parameters"]
        ordinary(monkeypatch, other, **settings)
        for name in COLUMNS:
            for one, two in zip(call[name], other[name], strict=True):
                assert one.tobytes() == two.tobytes()
    assert ways[1:] == [True] * 3  # bfloat16 is another package's, and known once it was seen


# One thing of one set that is not plain: what it becomes, and the code where it is refused.
CHANGES = {
    "torch": (torch.from_numpy, None),
    "a subclass": (lambda x: x.view(np.recarray), "wrong_type"),
    "a list": (lambda x: x.tolist(), "wrong_type"),
    "None": (lambda x: None, "wrong_type"),
    "another dtype": (lambda x: x.astype(np.float64), "dtype_mismatch"),
    "16 bits": (lambda x: x.astype(np.float16), "dtype_mismatch"),
    "foreign bytes": (lambda x: x.astype(">f4"), "dtype_mismatch"),
    "another shape": (lambda x: np.zeros((3, 2), x.dtype), "shape_mismatch"),
    "another rank": (lambda x: x.reshape(1, 2, 3), "shape_mismatch"),
    "strided": (lambda x: np.zeros((2, 6), x.dtype)[:, ::2], "not_contiguous"),
    "Fortran order": (np.asfortranarray, "not_contiguous"),
    "empty": (lambda x: np.zeros((0, 3), x.dtype), "shape_mismatch"),
    "unaligned": (lambda x: np.frombuffer(bytearray(25), np.float32, 6, 1).reshape(2, 3), None),
}


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("place", [0, 2, 7])
def test_what_is_not_plain_goes_the_ordinary_way(monkeypatch, ways, name, change, place):
    call = drawn(shapes=[(2, 3)] * 8)
    make, code = CHANGES[change]
    call[name][place] = make(call[name][place])
    before = [np.array(x).tobytes() for key in COLUMNS for x in call[key] if isinstance(x, np.ndarray)]
    if code is None:
        samestep.sgd_batch_(**call)
    else:
        with pytest.raises(ContractError) as ours:
            samestep.sgd_batch_(**call)
        with pytest.raises(ContractError) as theirs:
            ordinary(monkeypatch, call)
        assert str(ours.value) == str(theirs.value)
        assert [np.array(x).tobytes() for key in COLUMNS for x in call[key] if isinstance(x, np.ndarray)] == before
    assert ways == [False]


@pytest.mark.parametrize("shape", [(), (0,), (2, 0), (1,) * 9], ids=str)
def test_shapes_that_are_refused(ways, shape):
    call = drawn(shapes=[(2, 3), shape])
    with pytest.raises(ContractError, match=r"rank_out_of_range|null_input"):
        samestep.sgd_batch_(**call)
    assert ways == [False]


@pytest.mark.parametrize("name", COLUMNS)
def test_read_only_arrays(ways, name):
    call = drawn()
    call[name][3].flags.writeable = False
    if name == "gradient":
        samestep.sgd_batch_(**call)
    else:
        with pytest.raises(ContractError, match="read_only"):
            samestep.sgd_batch_(**call)
    assert ways == [name == "gradient"]


@pytest.mark.parametrize("wrong", [
    {"learning_rate": np.zeros(2, np.float32)}, {"momentum": np.zeros(1)}, {"momentum": None},
    {"weight_decay": -1.0}, {"dampening": 0.5, "nesterov": True}, {"nesterov": 1}, {"order": "none"},
    {"engine": "none"}, {"dampening": "0"},
], ids=str)
def test_refusals_of_what_the_sets_share(monkeypatch, wrong):
    call = drawn() | wrong
    before = [x.tobytes() for name in COLUMNS for x in call[name]]
    with pytest.raises(ContractError) as ours:
        samestep.sgd_batch_(**call)
    with pytest.raises(ContractError) as theirs:
        ordinary(monkeypatch, call)
    assert str(ours.value) == str(theirs.value)
    assert [x.tobytes() for name in COLUMNS for x in call[name]] == before


def test_lists_of_other_lengths(monkeypatch):
    for name in COLUMNS:
        call = drawn()
        call[name] = call[name][:-1]
        with pytest.raises(ContractError, match="batch_length"):
            samestep.sgd_batch_(**call)
    call = {name: [] if isinstance(value, list) else value for name, value in drawn().items()}
    assert samestep.sgd_batch_(**call) == []
    tuples = {name: tuple(value) if isinstance(value, list) else value for name, value in drawn().items()}
    assert samestep.sgd_batch_(**tuples) is tuples["parameters"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_overlap_is_exactly_what_the_rule_says(monkeypatch, ways, dtype):
    """Two sets at random places of one small memory: refused by one way if and only if by the other."""
    rng, refused = random.Random(1), 0
    memory = np.ones(64, suite.NUMPY[dtype])
    for _ in range(1500):
        lengths = rng.choices((1, 2, 5), k=2)
        call = {name: [memory[at:at + n] for n in lengths for at in [rng.randrange(60)]] for name in COLUMNS}
        call |= {name: memory[at:at + 1] for name in ("learning_rate", "momentum") for at in [rng.randrange(64)]}
        errors = []
        for step in (lambda call: samestep.sgd_batch_(**call), lambda call: ordinary(monkeypatch, call)):
            try:
                step(call)
                errors.append(None)
            except ContractError as error:
                errors.append(str(error))
        assert errors[0] == errors[1]
        refused += errors[0] is not None
    assert 300 < refused < 1500
    assert all(ways)


def test_thread_counts_and_many_sets():
    shapes = [(n % 5 + 1, 16) for n in range(5000)]
    results = []
    for threads in (1, 2):
        samestep.set_num_threads(threads)
        call = drawn(shapes=shapes)
        samestep.sgd_batch_(**call, dampening=0.1)
        results.append([x.tobytes() for name in COLUMNS for x in call[name]])
    samestep.set_num_threads(None)
    assert results[0] == results[1]


def test_bfloat16_of_another_origin_is_the_ordinary_ways(ways):
    call = drawn("bfloat16")
    assert call["parameters"][0].dtype == ml_dtypes.bfloat16
    samestep.sgd_batch_(**call)
    samestep.sgd_batch_(**call)
    assert ways[-1]


def test_engine_reference_reads_for_itself(ways):
    samestep.sgd_batch_(**drawn(), engine="reference")
    assert ways == []


def test_table():
    call = drawn(shapes=SHAPES[:4])
    table = bulk.table_of(*(call[name] for name in COLUMNS))
    assert table[:, :4].tolist() == [[call[name][k].ctypes.data for name in COLUMNS] for k in range(4)]
    assert table[:, 4].tolist() == list(itertools.accumulate((1, 7, 6, 5)))
