"""Rule T in the gpu engine's kernels, all dtypes, against the judges; the learning rate and found_inf on the device."""

from __future__ import annotations

import itertools
from contextlib import nullcontext

import numpy as np
import pytest
import torch

from gpu_interpreter import exact_fma, rounds_once
from samestep.engine import gpu
from samestep.engine.batch import Batch, Kernel, table_of
from samestep.tiling import TilingKey
from samestep.verify import oracle_torch, patterns, vectorised

pytest.importorskip("triton", reason="Triton is not installed here (pip install 'samestep[gpu]')")

DTYPES = (
    ("float32",) * 3, ("float64",) * 3, ("bfloat16",) * 3, ("float16",) * 3, ("bfloat16", "float32", "float32"),
    ("float16", "float16", "float32"), ("float32", "bfloat16", "float32"), ("float32", "float64", "float64"),
    ("float64", "bfloat16", "float64"), ("float64", "float32", "float64"),
)
FLOATS = DTYPES[0]
TERMS = [terms for terms in itertools.product((False, True), repeat=5) if terms[2] or not (terms[3] or terms[4])]


@pytest.fixture(autouse=True)
def fma():
    with nullcontext() if rounds_once() else exact_fma():
        yield


def random_words(rng, length, dtype):
    """Two thirds ordinary numbers, one third patterns at random."""
    word = patterns.WORDS[dtype]
    anything = rng.integers(0, np.iinfo(word).max, length, word, endpoint=True)
    ordinary = rng.standard_normal(length).astype(patterns.TYPES[dtype]).view(word)
    return np.where(rng.integers(0, 3, length) > 0, ordinary, anything)


def settings_of(dtypes, terms, lr=0.1):
    maximize, weight_decay, momentum, nesterov, first = terms
    return {"lr": lr, "weight_decay": 0.01 * weight_decay, "momentum": 0.9 * momentum,
            "dampening": 0.3 * (not nesterov), "first": first, "nesterov": nesterov, "maximize": maximize,
            **dict(zip(("dtype", "grad_dtype", "state_dtype"), dtypes, strict=True))}


def update(columns, dtypes, settings, **on_device):
    """Copies of parameters and buffer after one step."""
    momentum, first = settings["momentum"] != 0, int(settings["first"])
    key = TilingKey(0, settings["nesterov"], settings["weight_decay"] != 0, False)
    kernel = Kernel("", dtypes[0], key, "torch", dtypes[1], dtypes[2], momentum, settings["maximize"])
    p, g, b = (column.copy() for column in columns)
    scalars = np.array([settings["lr"], settings["momentum"]])
    table = table_of([p.ctypes.data], [g.ctypes.data], [b.ctypes.data * momentum], [first], [len(p)])
    at = scalars.ctypes.data
    gpu.run(Batch(kernel, table, at, at + 8, 1 - settings["dampening"], settings["weight_decay"],
                  gpu.plan(len(p), dtypes[0])), **on_device)
    return p, b


def wrong(got, expected, dtypes, momentum):
    return int(patterns.differs(expected[0], got[0], dtypes[0]).sum()
               + patterns.differs(expected[1], got[1], dtypes[2], computed=momentum).sum())


@pytest.mark.parametrize("dtypes", DTYPES, ids="-".join)
def test_every_kernel_of_a_dtype(dtypes):
    rng = np.random.default_rng(1)
    length = gpu.BLOCKS[dtypes[0]] + 40
    for terms in TERMS:
        columns = [random_words(rng, length, dtype) for dtype in dtypes]
        settings = settings_of(dtypes, terms)
        got = update(columns, dtypes, settings)
        assert wrong(got, vectorised.torch(*columns, **settings), dtypes, terms[2]) == 0, terms


def test_the_exact_oracle_agrees():
    rng = np.random.default_rng(2)
    chosen = (True, True, True, True, False), (False, True, True, False, True)
    for dtypes, terms in itertools.product(DTYPES[:5], chosen):
        columns = [random_words(rng, 60, dtype) for dtype in dtypes]
        settings = settings_of(dtypes, terms)
        got = update(columns, dtypes, settings)
        found = oracle_torch.torch_differing([column.tolist() for column in columns], [x.tolist() for x in got],
                                             **settings)
        assert found == []


@pytest.mark.parametrize("maximize", [False, True])
def test_the_sign_of_zero_follows_the_rule(maximize):
    # b = g on the first step: a gradient of 0 negated is -0, which 0 - g is not.
    g = np.array([0.0, -0.0, 1.0], np.float32).view(np.uint32)
    columns = [np.zeros(3, np.uint32), g, np.zeros(3, np.uint32)]
    settings = settings_of(FLOATS, (maximize, False, True, False, True))
    got, expected = update(columns, FLOATS, settings), vectorised.torch(*columns, **settings)
    assert (got[1] == expected[1]).all()
    assert (got[0] == expected[0]).all()


@pytest.mark.parametrize("lr", [0.0, -0.0, 1e-50, 0.1, 1 / 3, float("inf")])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_a_learning_rate_on_the_device_has_the_bits_of_a_number(dtype, lr):
    rng = np.random.default_rng(3)
    columns = [random_words(rng, 100, dtype) for _ in range(3)]
    for tensor in (torch.tensor(lr, dtype=torch.float64), torch.tensor([lr], dtype=torch.float32)):
        settings = settings_of((dtype,) * 3, (False, True, True, False, False), lr=float(tensor))
        expected = vectorised.torch(*columns, **settings)
        got = update(columns, (dtype,) * 3, {**settings, "lr": 123.0}, lr=tensor)
        assert wrong(got, expected, (dtype,) * 3, True) == 0


@pytest.mark.parametrize("found", [0.0, 1.0, 2.0, float("nan")])
@pytest.mark.parametrize("length", [40, 1024])
def test_found_inf_on_the_device_leaves_everything_as_it_was(found, length):
    rng = np.random.default_rng(4)
    columns = [random_words(rng, length, "float32") for _ in range(3)]
    settings = settings_of(FLOATS, (False, True, True, False, False))
    got = update(columns, FLOATS, settings, found_inf=torch.tensor([found]))
    if found == 0:
        assert wrong(got, vectorised.torch(*columns, **settings), FLOATS, True) == 0
    else:
        assert (got[0] == columns[0]).all()
        assert (got[1] == columns[2]).all()


def test_a_table_with_first_steps_among_others():
    rng = np.random.default_rng(5)
    lengths, firsts = (3, 1500, 1024, 70), (1, 0, 1, 0)
    sets = [[random_words(rng, n, "float32") for _ in range(3)] for n in lengths]
    copies = [[column.copy() for column in columns] for columns in sets]
    kernel = Kernel("", "float32", TilingKey(0, True, True, False), "torch", "float32", "float32", True, False)
    scalars = np.array([0.1, 0.9])
    table = table_of(*([row[k].ctypes.data for row in copies] for k in range(3)), firsts, lengths)
    at = scalars.ctypes.data
    gpu.run(Batch(kernel, table, at, at + 8, 1.0, 0.01, gpu.plan(sum(lengths), "float32")))
    for before, after, first in zip(sets, copies, firsts, strict=True):
        expected = vectorised.torch(*before, lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True, first=bool(first))
        assert wrong((after[0], after[2]), expected, FLOATS, True) == 0


def test_two_roundings_would_be_noticed():
    # The judge against an fma of two roundings: the tests above could fail.
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    rng = np.random.default_rng(6)
    columns = [random_words(rng, 300, "float32") for _ in range(3)]
    settings = settings_of(FLOATS, (False, True, True, False, False))
    own = InterpreterBuilder.create_fma
    try:
        InterpreterBuilder.create_fma = lambda self, x, y, z: TensorHandle(x.data * y.data + z.data, z.dtype.scalar)
        got = update(columns, FLOATS, settings)
    finally:
        InterpreterBuilder.create_fma = own
    assert wrong(got, vectorised.torch(*columns, **settings), FLOATS, True) > 10
