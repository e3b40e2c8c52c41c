"""Sparse gradients: only the rows they name when that is the same, else as if they were dense."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from samestep.optim import SGD
from torch_suite import differing, same_bits


def sparse(indices: list[list[int]], values: Tensor, size: tuple[int, ...]) -> Tensor:
    return torch.sparse_coo_tensor(indices, values, size, check_invariants=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64])
@pytest.mark.parametrize("maximize", [False, True])
def test_named_rows_equal_the_dense_step_and_others_keep_their_bits(dtype: torch.dtype, maximize: bool) -> None:
    start = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)).to(dtype)
    start[5] = -0.0
    p, q = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    p.grad = sparse([[4, 1, 4]], torch.ones(3, 3).cumsum(0).to(dtype), (6, 3))
    q.grad = p.grad.to_dense()
    before = p.grad.clone()
    for x in (p, q):
        SGD([x], lr=0.3, maximize=maximize).step()
    assert differing([p[:5]], [q[:5]]) == 0
    assert same_bits(p[5], start[5])
    assert same_bits(p.grad._values(), before._values())
    assert not p.grad.is_coalesced()


def test_embedding_rows_named_once_have_the_bits_of_torch() -> None:
    results = []
    for kind in (SGD, torch.optim.SGD):
        torch.manual_seed(0)
        net = nn.Embedding(50, 7, sparse=True)
        optimizer = kind(net.parameters(), lr=0.1)
        for step in range(3):
            optimizer.zero_grad()
            net(torch.tensor([1, 5, 9 + step])).square().sum().backward()
            optimizer.step()
        results.append([net.weight.detach()])
    assert differing(*results) == 0


def test_single_elements_may_be_named() -> None:
    p = nn.Parameter(torch.zeros(3, 2))
    p.grad = sparse([[0, 2, 0], [1, 0, 1]], torch.ones(3), (3, 2))
    SGD([p], lr=1.0).step()
    assert p.detach().tolist() == [[0, -2], [0, 0], [-1, 0]]


def test_an_empty_sparse_gradient_changes_nothing() -> None:
    p = nn.Parameter(torch.ones(3, 2))
    p.grad = sparse([[]], torch.empty(0, 2), (3, 2))
    SGD([p], lr=1.0).step()
    assert p.detach().tolist() == [[1, 1]] * 3


def test_a_parameter_of_any_layout_has_its_rows_updated() -> None:
    p = nn.Parameter(torch.zeros(2, 4).t())
    p.grad = sparse([[3]], torch.ones(1, 2), (4, 2))
    version = p._version
    SGD([p], lr=1.0).step()
    assert p.detach().tolist() == [[0, 0], [0, 0], [0, 0], [-1, -1]]
    assert p._version > version


@pytest.mark.parametrize("arguments", [{"momentum": 0.5}, {"weight_decay": 0.5}, {"dialect": "cann"}], ids=str)
def test_everything_else_has_dense_meaning(arguments: dict[str, Any]) -> None:
    p, q = nn.Parameter(torch.ones(4, 3)), nn.Parameter(torch.ones(4, 3))
    first, second = SGD([p], 0.1, **arguments), SGD([q], 0.1, **arguments)
    for row in (0, 3):
        p.grad = sparse([[row, 1]], torch.ones(2, 3), (4, 3))
        q.grad = p.grad.to_dense()
        first.step()
        second.step()
    assert differing([p], [q]) == 0


def test_sparse_and_dense_parameters_share_a_group() -> None:
    p, q = nn.Parameter(torch.ones(4, 3)), nn.Parameter(torch.ones(2))
    optimizer = SGD([p, q], 1.0)
    for _ in range(2):
        p.grad, q.grad = sparse([[1]], torch.ones(1, 3), (4, 3)), torch.ones(2)
        optimizer.step()
    assert p.detach()[:, 0].tolist() == [1, -1, 1, 1]
    assert q.detach().tolist() == [-1, -1]
