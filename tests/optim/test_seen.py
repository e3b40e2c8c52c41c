"""What a step takes for granted from the last one, and what it must not."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

import samestep.optim
from samestep.optim import guards

CHANGES = {
    "nothing": (lambda x: x, True),
    "a new tensor of the kind": (lambda x: torch.randn(4, 4), True),
    "transposed": (lambda x: x.t(), False),
    "flat": (lambda x: x.flatten(), False),
    "smaller": (lambda x: x[:2], False),
    "strided": (lambda x: torch.randn(4, 8)[:, ::2], False),
    "expanded": (lambda x: x[:1].expand(4, 4), False),
    "of another dtype": (lambda x: x.bfloat16(), False),
    "a parameter": (torch.nn.Parameter, False),
    "requiring gradients": (lambda x: x.clone().requires_grad_(), False),
    "sparse": (torch.Tensor.to_sparse, False),
    "lazily negated": (torch._neg_view, False),
    "on another device": (lambda x: x.to("meta"), False),
    "not there": (lambda x: None, False),
}


@pytest.mark.parametrize("make", [guards.guard, guards.slow_guard], ids=["torch", "slow"])
@pytest.mark.parametrize("change", CHANGES)
def test_the_guard_notices_what_changes_the_work(make, change):
    tensors = [torch.randn(4, 4) for _ in range(3)]
    changed, alike = CHANGES[change]
    check = make(tensors)
    assert check(tensors)
    assert check([*tensors[:2], changed(tensors[2])]) is alike


def test_torchs_guard_is_the_one_used_here():
    assert guards.guard([torch.ones(2)]).__name__ == "<lambda>"


def test_the_step_is_the_same_with_the_slow_guard(monkeypatch):
    results = []
    for make in (guards.guard, guards.slow_guard):
        monkeypatch.setattr(guards, "guard", make)
        torch.manual_seed(0)
        parameters = [torch.nn.Parameter(torch.randn(n, 3)) for n in range(1, 30)]
        optimizer = samestep.optim.SGD(parameters, lr=0.1, momentum=0.9)
        for step in range(6):
            for parameter in parameters:
                parameter.grad = torch.randn(parameter.shape) if step % 2 else torch.randn(3, len(parameter)).t()
            optimizer.step()
        results.append(parameters)
    assert all(map(torch.equal, *results))


@pytest.mark.parametrize("make", [guards.guard, guards.slow_guard], ids=["torch", "slow"])
def test_nothing_keeps_a_gradient_alive(make):
    gradient = torch.randn(4)
    check, reference = make([gradient]), weakref.ref(gradient)
    del gradient
    gc.collect()
    assert reference() is None
    assert check([torch.randn(4)])


def test_sparse_momentum_of_a_torch_checkpoint_is_taken_as_dense():
    def parameter():
        return torch.nn.Parameter(torch.ones(4, 2))

    def sparse(row):
        return torch.sparse_coo_tensor([[row]], [[1.0, 2.0]], (4, 2), check_invariants=True)

    theirs, ours, dense = parameter(), parameter(), parameter()
    torch_sgd = torch.optim.SGD([theirs], lr=0.1, momentum=0.9)
    dense_sgd = torch.optim.SGD([dense], lr=0.1, momentum=0.9, foreach=False)
    for row in (1, 2):
        theirs.grad, dense.grad = sparse(row), sparse(row).to_dense()
        torch_sgd.step()
        dense_sgd.step()
    assert torch_sgd.state[theirs]["momentum_buffer"].is_sparse
    our_sgd = samestep.optim.SGD([ours], lr=0.1, momentum=0.9)
    our_sgd.load_state_dict(torch_sgd.state_dict())
    ours.data.copy_(dense.data)
    ours.grad, dense.grad = sparse(0), sparse(0).to_dense()
    our_sgd.step()
    dense_sgd.step()
    assert torch.equal(ours, dense)
