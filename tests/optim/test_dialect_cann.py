"""dialect="cann": the operator's rules, bit for bit what calling `sgd_` by hand does."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import nn

import samestep
from samestep.optim import SGD
from torch_suite import bits, differing, same_bits

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
FLAGS = [
    {"momentum": m, "nesterov": n, "dampening": d, "weight_decay": w}
    for m, n, d, w in itertools.product((0, 0.9, 1e-50), (False, True), (0, 0.3), (0, 0.1)) if not (n and d)
]


@pytest.mark.parametrize("order", ["spec", "ascend950"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("flags", FLAGS, ids=str)
def test_equals_the_operator_called_by_hand(flags: dict[str, Any], dtype: torch.dtype, order: str) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = [(5,), (3, 4), (1,), (2, 3, 2, 2)]
    starts = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    ps = [nn.Parameter(x.clone()) for x in starts]
    sets = [(x.clone(), torch.zeros_like(x), torch.ones_like(x)) for x in starts]
    optimizer = SGD(ps, lr=0.1, dialect="cann", order=order, **flags)
    attributes = {key: flags[key] for key in ("dampening", "weight_decay", "nesterov")}
    for lr in (0.1, 0.03, 1e-9):
        optimizer.param_groups[0]["lr"] = lr
        for p, (parameters, accum, stat) in zip(ps, sets, strict=True):
            p.grad = torch.randn(p.shape, generator=generator).to(dtype)
            samestep.sgd_(parameters, p.grad, lr, accum, flags["momentum"], stat, order=order, **attributes)
        optimizer.step()
    assert differing(ps, [s[0] for s in sets]) == 0
    for p, (_, accum, stat) in zip(ps, sets, strict=True):
        assert set(optimizer.state[p]) == {"accum", "stat"}
        assert same_bits(optimizer.state[p]["accum"], accum)
        assert same_bits(optimizer.state[p]["stat"], stat)


def test_any_layout_and_rank_is_taken() -> None:
    start, g = torch.randn(2, 4, 4, 3, 2).unbind(0)
    plain = nn.Parameter(start.clone())
    other = nn.Parameter(start.transpose(0, 3).contiguous().transpose(0, 3))
    scalar = nn.Parameter(torch.tensor(1.0))
    plain.grad, other.grad, scalar.grad = g, g.transpose(1, 2).contiguous().transpose(1, 2), torch.tensor(2.0)
    for p in (plain, other, scalar):
        optimizer = SGD([p], 0.25, 0.9, dampening=0.1, dialect="cann")
        optimizer.step()
        optimizer.step()
    assert differing([plain], [other]) == 0


def test_maximize_takes_the_negative_gradient() -> None:
    p, q = nn.Parameter(torch.ones(9)), nn.Parameter(torch.ones(9))
    first = SGD([p], 0.1, 0.9, weight_decay=0.1, maximize=True, dialect="cann")
    second = SGD([q], 0.1, 0.9, weight_decay=0.1, dialect="cann")
    for k in range(3):
        p.grad = torch.arange(9.0) + k
        q.grad = -p.grad
        before = p.grad.clone()
        first.step()
        second.step()
        assert same_bits(p.grad, before)
    assert differing([p], [q]) == 0


@pytest.mark.parametrize(("arguments", "code"), [
    ({"nesterov": True, "momentum": 0.9, "dampening": 0.1}, "attribute_value_out_of_range"),
    ({"weight_decay": -0.1}, "attribute_value_out_of_range"),
    ({"weight_decay": torch.tensor(0.1)}, "wrong_type"),
    ({"nesterov": 1}, "wrong_type"),
    ({"order": "other"}, "unknown_order"),
], ids=str)
def test_the_operators_refusals(arguments: dict[str, Any], code: str) -> None:
    p = nn.Parameter(torch.ones(2))
    with pytest.raises(samestep.ContractError) as caught:
        SGD([p], dialect="cann", **arguments)
    assert caught.value.code == code
    with pytest.raises(samestep.ContractError):
        SGD([{"params": [p], **arguments}], dialect="cann")


def test_what_the_operator_computes_is_accepted_except_nan() -> None:
    p = nn.Parameter(torch.ones(2))
    p.grad = torch.ones(2)
    SGD([p], lr=-1.0, momentum=-0.5, nesterov=True, dialect="cann").step()
    for arguments in ({"lr": float("nan")}, {"momentum": float("nan")}, {"dampening": float("nan")}):
        with pytest.raises(ValueError, match="nan"):
            SGD([p], dialect="cann", **arguments)
    with pytest.raises(ValueError, match="Invalid dialect: 'keras'"):
        SGD([p], dialect="keras")


@pytest.mark.parametrize(("dtype", "grad_dtype", "code"), [
    (torch.float64, torch.float64, "unsupported_dtype"), (torch.complex64, torch.complex64, "unsupported_dtype"),
    (torch.float32, torch.bfloat16, "dtype_mismatch"),
])
def test_dtypes_of_the_operator_only(dtype: torch.dtype, grad_dtype: torch.dtype, code: str) -> None:
    p, q = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2, dtype=dtype))
    p.grad, q.grad = torch.ones(2), torch.ones(2, dtype=dtype)
    q.grad.data = torch.ones(2, dtype=grad_dtype)
    optimizer = SGD([p, q], dialect="cann")
    with pytest.raises(samestep.ContractError) as caught:
        optimizer.step()
    assert caught.value.code == code
    assert (p.detach().tolist(), dict(optimizer.state)) == ([1, 1], {})


def test_state_dicts_of_the_dialect() -> None:
    p, q = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    first, second = SGD([p], 0.1, 0.9, dampening=0.5, dialect="cann", order="ascend950"), SGD([q], 0.1)
    p.grad = q.grad = torch.tensor([1.0, 2.0, 3.0])
    first.step()
    with torch.no_grad():
        q.copy_(p)
    second.load_state_dict(first.state_dict())
    assert second.param_groups[0]["dialect"] == "cann"
    first.step()
    second.step()
    assert differing([p, *first.state[p].values()], [q, *second.state[q].values()]) == 0
    torchs = torch.optim.SGD([p], 0.1, 0.9)
    torchs.step()
    with pytest.raises(ValueError, match="momentum_buffer"):
        first.load_state_dict(torchs.state_dict())


def test_groups_may_have_different_dialects() -> None:
    p, q = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    p.grad = q.grad = torch.ones(3)
    optimizer = SGD([{"params": [p], "dialect": "cann"}, {"params": [q]}], 0.1, 0.9)
    optimizer.step()
    assert set(optimizer.state[p]) == {"accum", "stat"}
    assert set(optimizer.state[q]) == {"momentum_buffer"}


def test_differentiable() -> None:
    start = torch.ones(3, requires_grad=True)
    p = start * 1
    gradient = torch.tensor([0.5, 1.0, 2.0], requires_grad=True)
    q = nn.Parameter(start.detach().clone())
    first = SGD([p], 0.25, 0.5, dampening=0.25, weight_decay=0.5, dialect="cann", differentiable=True)
    second = SGD([q], 0.25, 0.5, dampening=0.25, weight_decay=0.5, dialect="cann")
    for _ in range(3):
        p.grad, q.grad = gradient * 1, gradient.detach()
        first.step()
        second.step()
    assert torch.equal(bits(p), bits(q))
    p.sum().backward()
    assert gradient.grad is not None
    assert start.grad is not None
