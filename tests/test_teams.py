"""Several threads: the compiled ways take as many as the ordinary one, each element is updated once, bits stay."""

from __future__ import annotations

import itertools
import multiprocessing
import threading

import numpy as np
import pytest
import torch

import samestep
import samestep.optim
import suite
from samestep.contract import DTYPES
from samestep.engine import cpu, plain_call, plain_run, quick, threads
from samestep.engine.cpu import BLOCK_LEAST, ONE_BLOCK
from samestep.engine.python_function import function_of, method_of
from samestep.optim import exchange

pytestmark = pytest.mark.skipif(threads.team() is None, reason="torch has no OpenMP team here")
COUNTS = (1, 2, 3, 5)
LENGTHS = (ONE_BLOCK - 1, ONE_BLOCK, 3 * BLOCK_LEAST + 17, 200_003)
ATTRIBUTES = {"dampening": 0.25, "weight_decay": 0.01}
HYPERPARAMETERS = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}


@pytest.fixture(autouse=True)
def number_of_threads(monkeypatch):
    """As it was, afterwards; and plain calls are recognised from the second on."""
    monkeypatch.setattr(quick, "PATIENCE", 0)
    before = torch.get_num_threads()
    yield
    samestep.set_num_threads(None)
    torch.set_num_threads(before)


@pytest.fixture
def little_cache(monkeypatch):
    """A last cache so small, and pieces so short, that every test's tensors are walked in many pieces."""
    monkeypatch.setattr(cpu, "last_cache", lambda: 1 << 12)
    monkeypatch.setattr(cpu, "_PIECE", 1 << 12)
    monkeypatch.setattr(quick, "meet_team", lambda *arguments: None)  # it would remember the size


def tensors(length, dtype="float32", kind="numpy"):
    """Moderate numbers, since which NaN a computed NaN is may differ (rule O9)."""
    rng = np.random.default_rng(2)
    columns = [rng.standard_normal(length, np.float32).astype(suite.NUMPY[dtype]) for _ in range(4)]
    p, g, a, s = [torch.from_numpy(c) for c in columns] if kind == "torch" else columns
    return [p, g, 0.1, a, 0.9, s]


def bits(columns):
    return [np.asarray(columns[k]).tobytes() for k in (0, 3, 5)]


def ask(columns):
    return quick.step(*columns, *ATTRIBUTES.values(), False, "spec", None)


def expected(length, dtype="float32"):
    columns = tensors(length, dtype)
    samestep.sgd_(*columns, **ATTRIBUTES, engine="reference")
    return bits(columns)


def meet_team(dtype="float32"):
    """A first large call goes the ordinary way, and makes team and kernel known."""
    samestep.set_num_threads(2)
    for kind in ("numpy", *(["torch"] if dtype != "bfloat16" else [])):
        samestep.sgd_(*tensors(ONE_BLOCK, dtype, kind), **ATTRIBUTES)


# --- one call of the operator -----------------------------------------------------------------------------------------

@pytest.mark.parametrize("dtype", DTYPES)
def test_any_number_of_threads_gives_the_same_bits(dtype):
    meet_team(dtype)
    for length in LENGTHS:
        wanted = expected(length, dtype)
        for count in COUNTS:
            samestep.set_num_threads(count)
            columns = tensors(length, dtype)
            assert ask(columns) is True
            assert bits(columns) == wanted


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("stat", [0, 1])
def test_past_the_last_cache(dtype, stat):
    """A call that is longer than two pieces, with stores past the caches."""
    meet_team(dtype)
    words = quick.known().copy()
    words[quick.CACHE] = 1 << 12
    compiled = function_of(method_of("step", plain_call.ADDRESS), words)
    length = 2 * cpu._PIECE + 4095
    for dampening, count in itertools.product((0.0, 0.25), (1, 2, 3)):
        samestep.set_num_threads(count)
        one, other = [[*tensors(length, dtype)[:5], np.full(length, stat, suite.NUMPY[dtype])] for _ in range(2)]
        attributes = {**ATTRIBUTES, "dampening": dampening}
        samestep.sgd_(*other, **attributes, engine="reference")
        samestep.sgd_(*tensors(8, dtype), **attributes)  # its kernel is known then
        words[quick.KERNELS:] = quick.known()[quick.KERNELS:]
        assert compiled(*one, *attributes.values(), False, "spec", None) is True
        assert bits(one) == bits(other)


def test_a_torch_tensor_on_several_threads():
    meet_team()
    columns = tensors(200_003, kind="torch")
    assert ask(columns) is None
    assert bits(columns) == expected(200_003)


def blocks_of(length):
    """How many blocks a plain call makes."""
    return -(-length // plain_run.block_of(quick.known().ctypes.data, length))


def test_the_compiled_call_takes_the_threads_that_the_ordinary_one_takes():
    meet_team()
    for set_threads in (samestep.set_num_threads, torch.set_num_threads):
        samestep.set_num_threads(None)
        for count in COUNTS:
            set_threads(count)
            for length in LENGTHS:
                assert blocks_of(length) == cpu.plan(length, "float32").block_num, (set_threads, count, length)


def test_a_new_thread_has_torchs_number_too():
    """There OpenMP's own number is not yet the one that torch was told."""
    meet_team()
    samestep.set_num_threads(None)
    torch.set_num_threads(1)
    found = []
    worker = threading.Thread(target=lambda: found.append(blocks_of(200_003)))
    worker.start()
    worker.join()
    assert found == [1]


def in_a_fork(work):
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe()
    child = context.Process(target=lambda: sender.send(work()))
    child.start()
    assert receiver.poll(60), "the child hangs"
    found = receiver.recv()
    child.join()
    return found


def answers_of_a_fork():
    columns, again = tensors(200_003), tensors(200_003)
    small = tensors(ONE_BLOCK - 1)
    answers = ask(columns), ask(small)
    samestep.sgd_(*again, **ATTRIBUTES)
    return answers, bits(again)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_has_no_team():
    meet_team()
    answers, found = in_a_fork(answers_of_a_fork)
    assert answers == (False, True)
    assert found == expected(200_003)


# --- pieces that threads take as they come ----------------------------------------------------------------------------

@pytest.mark.parametrize("has_team", [True, False], ids=["team", "pool"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_piece_is_updated_once(monkeypatch, little_cache, dtype, has_team):
    """An element that is left out, or updated twice, has other bits."""
    if not has_team:
        monkeypatch.setattr(threads, "team", lambda: None)
    for length in (ONE_BLOCK, 4 * BLOCK_LEAST + 4095, 300_007):
        wanted = expected(length, dtype)
        for count in COUNTS:
            samestep.set_num_threads(count)
            split = cpu.plan(length, dtype)
            assert cpu.piece(split, dtype) == 1 << 12 < split.block_former
            columns = tensors(length, dtype)
            with monkeypatch.context() as no_quick_way:
                no_quick_way.setattr(quick, "step", quick._nothing)
                samestep.sgd_(*columns, **ATTRIBUTES)
            assert bits(columns) == wanted


def test_pieces_go_across_the_sets_of_a_batch(little_cache):
    lengths = [1, 4096, 70_001, 3, 5000, 9000, 64]
    one, other = [[tensors(n) for n in lengths] for _ in range(2)]
    samestep.set_num_threads(3)
    columns = [[x[k] for x in one] for k in (0, 1, 3, 5)]
    samestep.sgd_batch_(columns[0], columns[1], 0.1, columns[2], 0.9, columns[3], **ATTRIBUTES)
    for x, y in zip(one, other, strict=True):
        samestep.sgd_(*y, **ATTRIBUTES, engine="reference")
        assert bits(x) == bits(y)


def test_within_the_last_cache_a_thread_keeps_its_part():
    split = cpu.plan(1_000_003, "float32")
    assert cpu.piece(split, "float32") == split.block_former


# --- a step of the optimizer ------------------------------------------------------------------------------------------

def optimizers(*lengths):
    """torch's and ours over equal parameters, with gradients."""
    found = []
    for kind in (torch.optim.SGD, samestep.optim.SGD):
        torch.manual_seed(0)
        parameters = [torch.nn.Parameter(torch.randn(n)) for n in lengths]
        for p in parameters:
            p.grad = torch.randn_like(p)
        found.append((parameters, kind(parameters, **HYPERPARAMETERS)))
    return found


def quickly(optimizer):
    """The compiled step's own answer; what it has written is not marked."""
    return optimizer._seen[0].quickly(optimizer.param_groups[0], optimizer.state)


def same(one, other):
    return all(torch.equal(x.detach().view(torch.int32), y.detach().view(torch.int32))
               for x, y in zip(one, other, strict=True))


needs_table = pytest.mark.skipif(exchange.functions() is None,
                                 reason="torch < 2.10 has no DLPack exchange table")


@needs_table
@pytest.mark.parametrize("lengths", [(200_003,), (5, 100_000, 77, 1, 60_000)], ids=["one", "several"])
def test_the_compiled_step_follows_the_number_of_threads(lengths):
    (expected_parameters, torchs), (parameters, ours) = optimizers(*lengths)
    samestep.set_num_threads(2)
    for _ in range(3):
        ours.step(), torchs.step()
    for count in (2, 3, 1, 2):
        samestep.set_num_threads(count)
        was_made_for = count == 2
        assert quickly(ours) is was_made_for
        torchs.step()
        if not was_made_for:
            ours.step()  # the ordinary way, which makes another compiled one
            assert quickly(ours)
            torchs.step()
            samestep.set_num_threads(2)
            ours.step(), torchs.step()
        assert same(parameters, expected_parameters)


@needs_table
def test_the_compiled_step_takes_pieces_past_the_last_cache(little_cache):
    (expected_parameters, torchs), (parameters, ours) = optimizers(100_000, 33, 100_001)
    samestep.set_num_threads(3)
    for _ in range(2):
        ours.step(), torchs.step()
    for _ in range(3):
        assert quickly(ours)
        torchs.step()
    assert same(parameters, expected_parameters)


@needs_table
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_step_in_a_fork_goes_the_ordinary_way():
    (expected_parameters, torchs), (parameters, ours) = optimizers(200_003)
    samestep.set_num_threads(2)
    for _ in range(3):
        ours.step(), torchs.step()

    def work():
        answer = quickly(ours)
        ours.step()
        return answer, parameters[0].detach().numpy().tobytes()

    answer, found = in_a_fork(work)
    torchs.step()
    assert answer is False
    assert found == expected_parameters[0].detach().numpy().tobytes()
