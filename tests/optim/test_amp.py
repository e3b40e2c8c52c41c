"""Gradient scaling: what GradScaler sets is honoured, for every gradient, without a trace of skipped steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import samestep.optim
from samestep.optim import SGD
from torch_suite import differing, same_bits


def parameter(values: Any, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    return nn.Parameter(torch.as_tensor(values).clone().to(dtype))


def scaled_step(optimizer: SGD, scale: float | None, found: float = 0.0) -> None:
    optimizer.grad_scale = None if scale is None else torch.tensor(scale)
    optimizer.found_inf = torch.tensor(found)
    optimizer.step()
    del optimizer.grad_scale
    del optimizer.found_inf


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64])
def test_gradients_are_unscaled_before_the_step_and_stay_so(dtype: torch.dtype) -> None:
    p, q = parameter(torch.arange(9.0), dtype), parameter(torch.arange(9.0), dtype)
    ours, plain = SGD([p], 0.1, 0.9, weight_decay=0.1), SGD([q], 0.1, 0.9, weight_decay=0.1)
    for step in range(4):
        g = torch.linspace(-1, 1 + step, 9).to(dtype)
        p.grad, q.grad = g * 1024, g.clone()
        scaled_step(ours, 1024.0)
        plain.step()
        assert same_bits(p.grad, g)
        assert differing([p], [q]) == 0


def test_a_scale_that_is_no_power_of_two_divides_as_torchs_fused_step() -> None:
    results = []
    for kind in (SGD, torch.optim.SGD):
        p = parameter(torch.arange(64.0))
        p.grad = torch.linspace(-3, 3, 64)
        optimizer = kind([p], lr=0.1, fused=True)
        scaled_step(optimizer, 3.0)
        results.append([p.detach(), p.grad])
    assert differing(*results) == 0


def test_float16_gradients_are_unscaled_in_float32() -> None:
    p = parameter([0.0], torch.float16)
    p.grad = torch.tensor([2.0**-10], dtype=torch.float16)
    optimizer = SGD([p], lr=2.0**10)
    scaled_step(optimizer, 2.0**16)
    assert p.item() == -(2.0**-16)
    assert p.grad.item() == 0  # 2**-26 is below float16


def test_a_skipped_step_leaves_gradients_scaled_and_state_alone() -> None:
    p = parameter([1.0])
    optimizer = SGD([p], 0.1, 0.9)
    p.grad = torch.full((1,), 8.0)
    scaled_step(optimizer, 8.0, found=1.0)
    assert (p.item(), p.grad.item(), dict(optimizer.state)) == (1.0, 8.0, {})
    scaled_step(optimizer, 8.0)
    before = optimizer.state[p]["momentum_buffer"].clone()
    scaled_step(optimizer, 8.0, found=2.0)
    assert same_bits(optimizer.state[p]["momentum_buffer"], before)


def test_without_a_scale_gradients_are_taken_as_they_are() -> None:
    p = parameter([1.0])
    p.grad = torch.ones(1)
    scaled_step(SGD([p], 0.5), None)
    assert (p.item(), p.grad.item()) == (0.5, 1.0)


def test_expanded_and_sparse_gradients_are_unscaled() -> None:
    p, q = parameter(torch.zeros(3, 2)), parameter(torch.zeros(3, 2))
    p.grad = torch.full((1, 1), 4.0).expand(3, 2)
    q.grad = torch.sparse_coo_tensor([[1, 1]], torch.full((2, 2), 2.0), (3, 2), check_invariants=True)
    scaled_step(SGD([p, q], 1.0), 4.0)
    assert p.grad.tolist() == [[1.0, 1.0]] * 3
    assert p.detach().tolist() == [[-1.0, -1.0]] * 3
    assert q.detach().tolist() == [[0.0, 0.0], [-1.0, -1.0], [0.0, 0.0]]
    assert q.grad.to_dense().tolist() == [[0.0, 0.0], [1.0, 1.0], [0.0, 0.0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_gradient_that_parameters_share_is_unscaled_once(dtype: torch.dtype) -> None:
    ps = [parameter(torch.zeros(2, 2), dtype) for _ in range(3)]
    for gradient in (torch.full((2, 2), 4.0, dtype=dtype), torch.full((1,), 4.0, dtype=dtype).expand(2, 2)):
        for p in ps:
            p.grad = gradient
        scaled_step(SGD([{"params": ps[:2]}, {"params": ps[2:]}], 1.0), 4.0)
        assert all(p.grad.tolist() == [[1, 1], [1, 1]] for p in ps)
    assert all(p.detach().tolist() == [[-2, -2], [-2, -2]] for p in ps)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_scaling_in_a_differentiable_step(dtype: torch.dtype) -> None:
    p = torch.zeros(2, dtype=dtype)
    p.grad = torch.full((2,), 4.0, dtype=dtype)
    scaled_step(SGD([p], 1.0, differentiable=True), 4.0)
    assert (p.tolist(), p.grad.tolist()) == ([-1, -1], [1, 1])


def test_a_refused_step_leaves_gradients_scaled() -> None:
    p = parameter([1.0])
    p.grad = torch.full((1,), 8.0)
    optimizer = SGD([p], 0.1)
    optimizer.param_groups[0]["lr"] = float("nan")
    with pytest.raises(ValueError, match="nan"):
        scaled_step(optimizer, 8.0)
    assert p.grad.item() == 8.0


@pytest.mark.parametrize("unscaled_first", [False, True])
def test_grad_scaler_trains_as_without_it(unscaled_first: bool) -> None:
    def trained(scaled: bool) -> list[Tensor]:
        torch.manual_seed(0)
        net = nn.Linear(4, 2)
        optimizer = SGD(net.parameters(), 0.1, 0.9)
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0, enabled=scaled)
        for step in range(4):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = net(torch.ones(3, 4)).float().square().mean()
            scaler.scale(loss).backward()
            if scaled and step == 1:
                next(net.parameters()).grad[0, 0] = float("inf")
            if unscaled_first:
                scaler.unscale_(optimizer)
            if scaled or step != 1:
                scaler.step(optimizer)
            scaler.update()
        assert not hasattr(optimizer, "grad_scale")
        return [p.detach() for p in net.parameters()]

    assert differing(trained(True), trained(False)) == 0


def test_the_functional_form_takes_scale_and_found_inf() -> None:
    call: dict[str, Any] = {"lr": 1.0, "momentum": 0.5, "weight_decay": 0.0, "dampening": 0.0, "nesterov": False,
                            "maximize": False}
    params, gradients, buffers = [torch.zeros(2)], [torch.full((2,), 4.0)], [None]
    samestep.optim.sgd(params, gradients, buffers, grad_scale=torch.tensor(4.0), found_inf=torch.ones(()), **call)
    assert (params[0].tolist(), gradients[0].tolist(), buffers) == ([0, 0], [4, 4], [None])
    samestep.optim.sgd(params, gradients, buffers, grad_scale=torch.tensor(4.0), found_inf=torch.zeros(()), **call)
    assert (params[0].tolist(), gradients[0].tolist(), buffers[0].tolist()) == ([-1, -1], [1, 1], [1, 1])
