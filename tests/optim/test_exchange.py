"""What a whole group is asked before a step repeats the last one: both ways of asking, one answer."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

import samestep.optim
from samestep import dlpack
from samestep.optim import exchange, guards, hyperparameters

needs_table = pytest.mark.skipif(exchange.functions() is None, reason="torch < 2.10 has no DLPack exchange table")
WAYS = [pytest.param(exchange, marks=needs_table, id="exchange"), pytest.param(guards, id="guards")]


def conjugated_imaginary_part() -> torch.Tensor:
    """One element, contiguous by its strides, and lazily negated."""
    return torch.tensor([1.0 + 2.0j]).conj().imag


def resized(x: torch.Tensor, size: int) -> torch.Tensor:
    x.untyped_storage().resize_(size)
    return x


# What the gradient of a (4, 4) parameter becomes: how, and whether the step may be repeated.
GRADIENTS = {
    "nothing": (lambda x: x, True),
    "a new tensor of the kind": (lambda x: torch.randn(4, 4), True),
    "a part of another": (lambda x: torch.randn(8, 4)[4:], True),
    "transposed": (lambda x: x.t(), False),
    "flat": (lambda x: x.flatten(), False),
    "strided": (lambda x: torch.randn(4, 8)[:, ::2], False),
    "expanded": (lambda x: x[:1].expand(4, 4), False),
    "of another dtype": (lambda x: x.bfloat16(), False),
    "sparse": (torch.Tensor.to_sparse, False),
    "lazily negated": (torch._neg_view, False),
    "without memory": (lambda x: resized(torch.randn(4, 4), 0), False),
    "of a subclass": (lambda x: x.as_subclass(torch.nn.Buffer), False),
    "not there": (lambda x: None, False),
}


def optimizer_of(monkeypatch, way, *, sizes=(3, 16, 5), **settings):
    """An optimizer after one step, whose next one is asked for in one of the two ways."""
    if way is guards:
        monkeypatch.setattr(exchange, "functions", lambda: None)
    parameters = [torch.nn.Parameter(torch.randn(4, 4)) for _ in sizes]
    for p in parameters:
        p.grad = torch.randn(4, 4)
    optimizer = samestep.optim.SGD(parameters, **{"lr": 0.1, "momentum": 0.9, **settings})
    optimizer.step()
    group = optimizer._seen[0]._group
    assert type(group) is way.Group
    return optimizer, parameters


def may_repeat(optimizer, index=0) -> bool:
    group = optimizer.param_groups[index]
    work = optimizer._seen[index].again(hyperparameters.settings(group), group, optimizer.state)
    if work is None:
        return False
    present = [p for p in group["params"] if p.grad is not None]
    assert [id(g) for g in work.gradients] == [id(p.grad) for p in present]
    assert [row[1] for row in work.known.table] == [p.grad.data_ptr() for p in present]
    return True


def put(p: torch.Tensor, gradient: torch.Tensor | None) -> None:
    """Make it p.grad, also where torch asks that the parameter be of its kind: for the moment of the assignment."""
    held = p.data
    p.grad = None
    if gradient is not None and gradient.layout is torch.strided:
        p.data = torch.empty(gradient.shape, dtype=gradient.dtype)
    p.grad = gradient
    p.data = held


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("change", GRADIENTS)
@pytest.mark.parametrize("settings", [{}, {"momentum": 0}, {"dialect": "cann"}], ids=["momentum", "plain", "cann"])
def test_gradients(monkeypatch, way, change, settings):
    optimizer, parameters = optimizer_of(monkeypatch, way, **settings)
    assert may_repeat(optimizer)
    make, may = GRADIENTS[change]
    put(parameters[1], make(parameters[1].grad))
    assert may_repeat(optimizer) is may
    parameters[1].grad = None
    parameters[1].grad = torch.randn(4, 4)
    assert may_repeat(optimizer)


STATES = {
    "another tensor": lambda state: state.update(momentum_buffer=state["momentum_buffer"].clone()),
    "elsewhere in memory": lambda state: state["momentum_buffer"].set_(torch.randn(4, 4)),
    "transposed in place": lambda state: state["momentum_buffer"].t_(),
    "of another shape": lambda state: state["momentum_buffer"].resize_(2, 8),
    "no tensor": lambda state: state.update(momentum_buffer=None),
    "not there": lambda state: state.clear(),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("change", STATES)
def test_state(monkeypatch, way, change):
    optimizer, parameters = optimizer_of(monkeypatch, way)
    STATES[change](optimizer.state[parameters[2]])
    assert not may_repeat(optimizer)


PARAMETERS = {
    "elsewhere in memory": lambda p: setattr(p, "data", torch.randn(4, 4)),
    "transposed in place": lambda p: setattr(p, "data", p.data.t()),
    "of another shape": lambda p: setattr(p, "data", p.data.view(2, 8)),
    "of another dtype": lambda p: setattr(p, "data", p.data.double()),
    "without memory": lambda p: p.untyped_storage().resize_(0),
    "of another type": lambda p: setattr(p, "__class__", type("Mine", (torch.nn.Parameter,), {})),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("change", PARAMETERS)
def test_parameters(monkeypatch, way, change):
    optimizer, parameters = optimizer_of(monkeypatch, way)
    PARAMETERS[change](parameters[1])
    assert not may_repeat(optimizer)


@pytest.mark.parametrize("way", WAYS)
def test_the_list_of_parameters(monkeypatch, way):
    optimizer, parameters = optimizer_of(monkeypatch, way)
    other = torch.nn.Parameter(torch.randn(4, 4))
    other.grad = torch.randn(4, 4)
    listed = optimizer.param_groups[0]["params"]
    for now in ([*parameters, other], parameters[:2], [parameters[1], parameters[0], parameters[2]],
                [*parameters[:2], other], [*parameters[:2], None]):
        listed[:] = now
        assert not may_repeat(optimizer)
    listed[:] = parameters
    assert may_repeat(optimizer)


@pytest.mark.parametrize("way", WAYS)
def test_a_parameter_without_a_gradient_may_stay_without_one(monkeypatch, way):
    optimizer, parameters = optimizer_of(monkeypatch, way)
    parameters[1].grad = None
    optimizer.step()
    before = parameters[1].detach().clone()
    assert may_repeat(optimizer)
    optimizer.step()
    assert torch.equal(parameters[1], before)
    parameters[1].grad = torch.randn(4, 4)
    assert not may_repeat(optimizer)
    optimizer.step()
    assert not torch.equal(parameters[1], before)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("role", ["parameter", "gradient", "momentum_buffer"])
def test_a_single_element_may_be_lazily_negated(monkeypatch, way, role):
    """Its stride says nothing, and it may lie where another was."""
    if way is guards:
        monkeypatch.setattr(exchange, "functions", lambda: None)
    held = torch.tensor([1.0 + 2.0j])
    plain, negated = held.imag, held.conj().imag
    assert negated.is_neg()
    assert plain.data_ptr() == negated.data_ptr()
    p = torch.nn.Parameter(torch.ones(1))
    p.grad = torch.ones(1)
    optimizer = samestep.optim.SGD([p], lr=0.1, momentum=0.9)
    optimizer.step()

    def place(x):
        if role == "parameter":
            p.data = x
        elif role == "gradient":
            p.grad = x
        else:
            optimizer.state[p]["momentum_buffer"].data = x

    place(plain)
    optimizer.step()
    assert may_repeat(optimizer)
    place(negated)
    assert not may_repeat(optimizer)


@pytest.mark.parametrize("way", WAYS)
def test_groups_are_asked_each_on_its_own(monkeypatch, way):
    if way is guards:
        monkeypatch.setattr(exchange, "functions", lambda: None)
    parameters = [torch.nn.Parameter(torch.randn(4, 4)) for _ in range(9)]
    for p in parameters:
        p.grad = torch.randn(4, 4)
    groups = [{"params": parameters[k::3], "lr": 0.1 + k} for k in range(3)]
    optimizer = samestep.optim.SGD(groups, momentum=0.9)
    optimizer.step()
    optimizer.step()
    assert all(may_repeat(optimizer, index) for index in range(3))
    del optimizer.state[parameters[0]]  # the state's dict has a hole now, and loses the first entry of group 0
    assert [may_repeat(optimizer, index) for index in range(3)] == [False, True, True]
    optimizer.step()
    assert [may_repeat(optimizer, index) for index in range(3)] == [True, True, True]
    parameters[4].grad = parameters[4].grad.t()
    assert [may_repeat(optimizer, index) for index in range(3)] == [True, False, True]


@pytest.mark.parametrize("way", WAYS)
def test_state_may_be_in_another_order(monkeypatch, way):
    optimizer, parameters = optimizer_of(monkeypatch, way)
    for p in (parameters[0], parameters[2], parameters[0]):
        optimizer.state[p] = optimizer.state.pop(p)
        optimizer.step()
    assert may_repeat(optimizer)
    optimizer.state[parameters[1]]["momentum_buffer"] = torch.zeros(4, 4)
    assert not may_repeat(optimizer)


@pytest.mark.parametrize("way", WAYS)
def test_nothing_keeps_a_gradient_alive_or_counts_it_wrong(monkeypatch, way):
    import sys

    optimizer, parameters = optimizer_of(monkeypatch, way)
    counts = [sys.getrefcount(p.grad) for p in parameters]
    for _ in range(100):
        optimizer.step()
        assert may_repeat(optimizer)
    parameters[0].grad = parameters[0].grad.t()
    none = sys.getrefcount(None)
    for _ in range(1000):
        assert not may_repeat(optimizer)
    assert abs(sys.getrefcount(None) - none) < 500
    assert [sys.getrefcount(p.grad) for p in parameters] == counts
    references = [weakref.ref(p.grad) for p in parameters]
    for p in parameters:
        p.grad = None
    gc.collect()
    assert [r() for r in references] == [None] * len(parameters)


@needs_table
def test_a_table_of_another_version_is_not_used(monkeypatch):
    import ctypes

    words = (ctypes.c_uint64 * 8)(2, 0, 1, 1, 1, 1, 1, 0)  # DLPack 2
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    monkeypatch.setattr(torch.Tensor, dlpack.EXCHANGE_TABLE,
                        new(ctypes.addressof(words), b"dlpack_exchange_api", None))
    assert exchange.functions.__wrapped__() is None
    words[0] = 1
    assert exchange.functions.__wrapped__() is not None
    words[5] = 0  # the function is optional
    assert exchange.functions.__wrapped__() is None
    monkeypatch.delattr(torch.Tensor, dlpack.EXCHANGE_TABLE)
    assert exchange.functions.__wrapped__() is None


def test_both_ways_train_alike(monkeypatch):
    results = []
    for way in (exchange, guards) if exchange.functions() is not None else (guards,):
        torch.manual_seed(0)
        with monkeypatch.context() as patch:
            if way is guards:
                patch.setattr(exchange, "functions", lambda: None)
            parameters = [torch.nn.Parameter(torch.randn(n, 3)) for n in range(1, 40)]
            optimizer = samestep.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01)
            for step in range(8):
                for k, p in enumerate(parameters):
                    p.grad = torch.randn(3, len(p)).t() if step == 5 else torch.randn(p.shape)
                    if k == 7 and step in (2, 3):
                        p.grad = None
                optimizer.step()
            results.append(parameters)
    assert all(map(torch.equal, results[0], results[-1]))


def test_a_question_that_fails_leaves_no_error_behind(monkeypatch):
    optimizer, parameters = optimizer_of(monkeypatch, exchange if exchange.functions() is not None else guards)
    put(parameters[1], torch.randn(4, 4).to_sparse())
    for _ in range(50):
        assert not may_repeat(optimizer)
    optimizer.step()


def test_a_gradient_without_memory_is_refused_before_anything_is_written(monkeypatch):
    optimizer, parameters = optimizer_of(monkeypatch, exchange if exchange.functions() is not None else guards)
    before = [p.detach().clone() for p in parameters]
    put(parameters[1], resized(torch.randn(4, 4), 0))
    with pytest.raises(RuntimeError, match="no memory"):
        optimizer.step()
    assert all(map(torch.equal, parameters, before))
