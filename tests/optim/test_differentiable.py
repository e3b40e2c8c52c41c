"""differentiable=True: torch's values, and gradients through everything the step reads."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from samestep.optim import SGD
from torch_suite import differing

FLAGS = [
    {"momentum": m, "nesterov": n, "dampening": d, "weight_decay": w, "maximize": x}
    for m, n, d, w, x in itertools.product((0, 0.9), (False, True), (0, 0.5), (0, 0.1), (False, True))
    if not n or (m and not d)
]


def run(kind: Any, flags: dict[str, Any], start: Tensor, gradients: list[Tensor], lr: Any = 0.1) -> list[Tensor]:
    p = start.clone()
    optimizer = kind([p], lr=lr, differentiable=True, **flags)
    for g in gradients:
        p.grad = g
        optimizer.step()
    return [p, *optimizer.state[p].values()]


def numbers(count: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(5, generator=generator, dtype=dtype).requires_grad_() for _ in range(count)]


@pytest.mark.parametrize("flags", FLAGS, ids=str)
def test_values_are_those_of_torch(flags: dict[str, Any]) -> None:
    for dtype in (torch.float32, torch.float64):
        start, *gradients = numbers(4, dtype)
        assert differing(run(SGD, flags, start, gradients), run(torch.optim.SGD, flags, start, gradients)) == 0


@pytest.mark.parametrize("flags", FLAGS[::3], ids=str)
def test_gradients_flow_through_every_step(flags: dict[str, Any]) -> None:
    start, *gradients = numbers(4)
    lr = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
    weight_decay = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)

    def steps(start: Tensor, lr: Tensor, weight_decay: Tensor, *gradients: Tensor) -> tuple[Tensor, ...]:
        return tuple(run(SGD, {**flags, "weight_decay": weight_decay}, start, list(gradients), lr))

    assert torch.autograd.gradcheck(steps, (start, lr, weight_decay, *gradients))


def test_a_learning_rate_of_any_rank_gets_its_gradient() -> None:
    for shape in ((), (1,), (1, 1)):
        lr = torch.full(shape, 0.5, requires_grad=True)
        start, gradient = numbers(2, torch.float32)
        run(SGD, {}, start, [gradient], lr)[0].sum().backward()
        assert lr.grad.shape == lr.shape
        assert differing([lr.grad.reshape(())], [-gradient.sum()]) == 0


def test_complex_numbers() -> None:
    start, *gradients = [torch.complex(a, b) for a, b in zip(*[iter(numbers(6))] * 2, strict=True)]
    results = run(SGD, {"momentum": 0.9}, start, gradients), run(torch.optim.SGD, {"momentum": 0.9}, start, gradients)
    assert differing(*results) == 0


def test_a_first_buffer_shares_no_memory_with_the_gradient() -> None:
    p, gradient = torch.ones(3), torch.ones(3)
    optimizer = SGD([p], momentum=0.9, differentiable=True)
    p.grad = gradient
    optimizer.step()
    gradient.fill_(7)
    assert optimizer.state[p]["momentum_buffer"].tolist() == [1, 1, 1]


def test_a_leaf_is_refused_before_anything_is_written() -> None:
    p, leaf = torch.ones(3), torch.ones(3, requires_grad=True)
    optimizer = SGD([p, leaf], lr=0.1, momentum=0.9, differentiable=True)
    p.grad, leaf.grad = torch.ones(3), torch.ones(3)
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad is being used in an in-place operation"):
        optimizer.step()
    assert p.tolist() == [1, 1, 1]
    assert dict(optimizer.state) == {}


def test_the_closure_and_the_callers_mode() -> None:
    p = torch.ones(2, requires_grad=True) * 1
    optimizer = SGD([p], differentiable=True)
    p.grad = torch.ones(2)
    with torch.no_grad():
        optimizer.step()
        assert not torch.is_grad_enabled()
    assert p.requires_grad
