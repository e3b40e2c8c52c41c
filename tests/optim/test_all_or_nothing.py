"""An error in any tensor or hyperparameter of any group leaves everything as it was (rule O11)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import samestep.optim
from samestep import ContractError

SHAPES = [[(5,), (3, 4)], [(70,), (2, 3, 2)], [(7,), (4, 3)]]
ERRORS = (RuntimeError, ValueError, TypeError)

Change = Callable[[torch.optim.Optimizer], None]


def optimizer_of(dialect: str = "torch", momentum: float = 0.9) -> samestep.optim.SGD:
    """Three groups of two parameters with gradients, contiguous and not; the last parameter is the one to spoil."""
    generator = torch.Generator().manual_seed(1)
    groups = []
    for number, shapes in enumerate(SHAPES):
        parameters = []
        for shape in shapes:
            p = torch.randn(shape, generator=generator)
            p = p.T.contiguous().T if p.dim() == 2 and number == 0 else p
            parameters.append(p.requires_grad_())
        groups.append({"params": parameters, "lr": 0.1 * (number + 1), "weight_decay": 0.01 * number})
    optimizer = samestep.optim.SGD(groups, momentum=momentum, dialect=dialect)
    renew_gradients(optimizer, generator)
    return optimizer


def renew_gradients(optimizer: torch.optim.Optimizer, generator: torch.Generator) -> None:
    for group in optimizer.param_groups:
        for p in group["params"]:
            p.grad = torch.randn(p.shape, generator=generator)


def last(optimizer: torch.optim.Optimizer) -> Tensor:
    return optimizer.param_groups[-1]["params"][-1]


def raw(value: Any) -> Any:
    """What cannot change without a bit changing: identity, version, dtype, layout and memory of a tensor."""
    if isinstance(value, Tensor):
        memory = value.detach()
        if memory.layout is torch.strided and memory.device.type == "cpu":
            content = bytes(memory.untyped_storage())
        else:
            content = repr(memory)
        return id(value), value._version, value.dtype, value.shape, str(value.layout), content
    return repr(value)


def everything(optimizer: torch.optim.Optimizer) -> list[Any]:
    found: list[Any] = [sorted(map(id, optimizer.state))]
    for group in optimizer.param_groups:
        found.append({key: raw(value) for key, value in group.items() if key != "params"})
        for p in group["params"]:
            found += [raw(p), raw(p.grad), {key: raw(value) for key, value in optimizer.state.get(p, {}).items()}]
    return found


def of_last_group(**hyperparameters: Any) -> Change:
    def change(optimizer: torch.optim.Optimizer) -> None:
        optimizer.param_groups[-1].update(hyperparameters)

    return change


def gradient(make: Callable[[Tensor], Tensor]) -> Change:
    """Replace the last gradient by what `p.grad = ...` would refuse."""

    def change(optimizer: torch.optim.Optimizer) -> None:
        last(optimizer).grad.data = make(last(optimizer).grad)

    return change


def sparse_gradient(optimizer: torch.optim.Optimizer) -> None:
    last(optimizer).grad = torch.ones(4, 3).to_sparse()
    last(optimizer).grad.data = torch.ones(9, 3).to_sparse()


class Elsewhere(torch.nn.Parameter):
    """A parameter that was moved while its gradient stayed."""

    @property
    def grad(self) -> Tensor:
        return self.gradient


def gradient_elsewhere(optimizer: torch.optim.Optimizer) -> None:
    p = Elsewhere(last(optimizer).detach())
    p.gradient = torch.ones(p.shape, device="meta")
    optimizer.param_groups[-1]["params"][-1] = p


def parameter(make: Callable[[Tensor], Tensor]) -> Change:
    """Replace the last parameter, and its gradient by one of the same kind."""

    def change(optimizer: torch.optim.Optimizer) -> None:
        p = make(last(optimizer).detach().clone())
        p.grad = torch.ones(p.shape, dtype=p.dtype) if p.dtype != torch.float8_e5m2 else p.clone()
        optimizer.param_groups[-1]["params"][-1] = p

    return change


def state(key: str, make: Callable[[Tensor], Any]) -> Change:
    def change(optimizer: torch.optim.Optimizer) -> None:
        p = last(optimizer)
        optimizer.state[p] = {**optimizer.state.get(p, {}), key: make(p.detach())}

    return change


HYPERPARAMETERS = {
    "nan-lr": of_last_group(lr=math.nan),
    "nan-tensor-lr": of_last_group(lr=torch.tensor(math.nan)),
    "two-element-lr": of_last_group(lr=torch.tensor([0.1, 0.2])),
    "no-number-lr": of_last_group(lr="fast"),
    "no-lr": of_last_group(lr=None),
    "nan-momentum": of_last_group(momentum=math.nan),
    "nan-dampening": of_last_group(dampening=math.nan),
    "nan-weight-decay": of_last_group(weight_decay=math.nan),
    "nan-tensor-weight-decay": of_last_group(weight_decay=torch.tensor(math.nan)),
}
TENSORS = {
    "integer-gradient": gradient(lambda g: g.to(torch.int64)),
    "boolean-gradient": gradient(lambda g: g > 0),
    "complex-gradient": gradient(lambda g: g.to(torch.complex64)),
    "float8-gradient": gradient(lambda g: g.to(torch.float8_e4m3fn)),
    "long-gradient": gradient(lambda g: torch.ones(99)),
    "transposed-gradient": gradient(lambda g: g.T.contiguous()),
    "flat-gradient": gradient(lambda g: g.flatten().clone()),
    "broadcast-gradient": gradient(lambda g: g[:1].clone()),
    "empty-gradient": gradient(lambda g: g[:0]),
    "flat-gradient-in-place": gradient(torch.flatten),
    "broadcast-gradient-in-place": gradient(lambda g: g[:1]),
    "gradient-resized-in-place": lambda optimizer: last(optimizer).grad.resize_(2, 3),
    "sparse-gradient-of-another-shape": sparse_gradient,
    "gradient-elsewhere": gradient_elsewhere,
    "integer-parameter": parameter(lambda p: p.to(torch.int32)),
    "boolean-parameter": parameter(lambda p: p > 0),
    "float8-parameter": parameter(lambda p: p.to(torch.float8_e5m2)),
    "expanded-parameter": parameter(lambda p: p[:1].expand(4, 3)),
    "scalar-expanded-parameter": parameter(lambda p: p[0, 0].expand(4, 3)),
}
STATE = {
    "flat": lambda p: torch.ones(p.numel()),
    "broadcast": lambda p: torch.ones(1),
    "scalar": lambda p: torch.tensor(1.0),
    "long": lambda p: torch.ones(5, 3),
    "complex": lambda p: torch.ones(p.shape, dtype=torch.complex64),
    "expanded": lambda p: torch.ones(1, 3).expand(4, 3),
    "number": lambda p: 1.0,
    "list": lambda p: [1.0],
    "elsewhere": lambda p: torch.ones(p.shape, device="meta"),
}


def refuses(optimizer: samestep.optim.SGD, change: Change, errors: Any = ERRORS) -> None:
    change(optimizer)
    before = everything(optimizer)
    with pytest.raises(errors):
        optimizer.step()
    assert everything(optimizer) == before


@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize("momentum", [0.9, 0.0])
@pytest.mark.parametrize("name", [*HYPERPARAMETERS, *TENSORS])
def test_an_error_in_the_last_group_leaves_everything_as_it_was(name: str, momentum: float, steps: int) -> None:
    optimizer = optimizer_of(momentum=momentum)
    for _ in range(steps):
        optimizer.step()
    refuses(optimizer, {**HYPERPARAMETERS, **TENSORS}[name])


@pytest.mark.parametrize("name", STATE)
def test_unfit_state_in_the_last_group_leaves_everything_as_it_was(name: str) -> None:
    optimizer = optimizer_of()
    optimizer.step()
    refuses(optimizer, state("momentum_buffer", STATE[name]), (*ERRORS, AttributeError))


@pytest.mark.parametrize("key", ["accum", "stat"])
@pytest.mark.parametrize("name", STATE)
def test_unfit_state_of_dialect_cann_leaves_everything_as_it_was(name: str, key: str) -> None:
    optimizer = optimizer_of("cann")
    optimizer.step()
    refuses(optimizer, state(key, STATE[name]), (*ERRORS, AttributeError))


@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize("name", [*HYPERPARAMETERS, *TENSORS])
def test_an_error_in_dialect_cann_leaves_everything_as_it_was(name: str, steps: int) -> None:
    optimizer = optimizer_of("cann")
    for _ in range(steps):
        optimizer.step()
    refuses(optimizer, {**HYPERPARAMETERS, **TENSORS}[name], (*ERRORS, ContractError))


@pytest.mark.parametrize("name", [*HYPERPARAMETERS, *TENSORS])
def test_an_error_leaves_scaled_gradients_scaled(name: str) -> None:
    optimizer = optimizer_of()
    optimizer.step()
    optimizer.grad_scale, optimizer.found_inf = torch.tensor(1024.0), torch.tensor(0.0)
    refuses(optimizer, {**HYPERPARAMETERS, **TENSORS}[name])


@pytest.mark.parametrize("name", TENSORS)
def test_after_an_error_training_goes_on_as_if_it_had_not_been(name: str) -> None:
    interrupted, other = optimizer_of(), optimizer_of()
    for optimizer in (interrupted, other):
        optimizer.step()
    p = last(interrupted)
    gradient = p.grad
    with torch.no_grad():
        kept = gradient.clone()
    refuses(interrupted, TENSORS[name])
    interrupted.param_groups[-1]["params"][-1] = p
    p.grad = None
    p.grad = kept
    for optimizer in (interrupted, other):
        optimizer.step()
    for one, two in zip(interrupted.param_groups, other.param_groups, strict=True):
        for mine, theirs in zip(one["params"], two["params"], strict=True):
            assert torch.equal(mine, theirs)
            assert torch.equal(interrupted.state[mine]["momentum_buffer"], other.state[theirs]["momentum_buffer"])


def test_an_error_in_the_closure_leaves_everything_as_it_was() -> None:
    optimizer = optimizer_of()
    optimizer.step()
    before = everything(optimizer)

    def closure() -> float:
        raise KeyError("no data")

    with pytest.raises(KeyError):
        optimizer.step(closure)
    assert everything(optimizer) == before


@pytest.mark.parametrize("name", ["transposed-gradient", "integer-gradient", "expanded-parameter"])
def test_the_functional_form_is_all_or_nothing(name: str) -> None:
    optimizer = optimizer_of()
    TENSORS[name](optimizer)
    params = [p.detach() for group in optimizer.param_groups for p in group["params"]]
    gradients = [p.grad.detach() for group in optimizer.param_groups for p in group["params"]]
    buffers: list[Tensor | None] = [None, *(torch.ones_like(p) for p in params[1:])]
    before = [raw(x) for x in (*params, *gradients, *buffers)]
    with pytest.raises(RuntimeError):
        samestep.optim.sgd(params, gradients, buffers, weight_decay=0.1, momentum=0.9, lr=0.1, dampening=0,
                           nesterov=False, maximize=False)
    assert [raw(x) for x in (*params, *gradients, *buffers)] == before
