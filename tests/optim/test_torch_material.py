"""PyTorch's own test material for optimizers, which ships inside the torch wheel, against the drop-in class."""

from __future__ import annotations

import copy
import itertools
import re
import sys
import types
import unittest
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import samestep.optim
from torch_suite import differing, state_of

STEPS = 6


def material() -> Any:
    """torch's module of optimizer test material."""
    mutable = torch.backends.__allow_nonbracketed_mutation_flag
    # torch's test code wants a package of its own for inline expectations, which nothing here uses.
    stub = types.ModuleType("expecttest")
    stub.TestCase = unittest.TestCase
    missing = sys.modules.setdefault("expecttest", stub)
    try:
        from torch.testing._internal import common_optimizers
    finally:
        if missing is stub:
            del sys.modules["expecttest"]
        # The import forbids to change flags of torch.backends for the rest of the process.
        torch.backends.__allow_nonbracketed_mutation_flag = mutable
    return common_optimizers


MATERIAL = material()
INFO = next(info for info in MATERIAL.optim_db if info.optim_cls is torch.optim.SGD)
GOOD = INFO.optim_inputs_func("cpu", torch.float32)
BAD = INFO.optim_error_inputs_func("cpu", torch.float32)
FLAGS = [{}, *({name: value} for name in INFO.supported_impls for value in (False, True))]
CHANGED_ON_PURPOSE = {
    # A warning of torch: the parameter would be stepped twice.
    "a param group cannot have duplicate parameters": ValueError,
}


@pytest.fixture(autouse=True)
def one_thread_of_torch() -> Iterator[None]:
    """So small a model gains nothing from more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def model(dtype: torch.dtype = torch.float32) -> torch.nn.Sequential:
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(5, 11), torch.nn.Tanh(), torch.nn.Linear(11, 2)).to(dtype)


def train(
    make: Callable[..., torch.optim.Optimizer], arguments: dict[str, Any], schedulers: Any = (),
    groups: Callable[[torch.nn.Sequential], Any] = torch.nn.Module.parameters, dtype: torch.dtype = torch.float32,
) -> tuple[list[torch.Tensor], list[float]]:
    """Final parameters and state, and the loss before each step."""
    trained = model(dtype)
    optimizer = make(groups(trained), **copy.deepcopy(arguments))
    followers = [follower(optimizer) for follower in schedulers]
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(32, 5, generator=generator).to(dtype)
    sign = -1 if arguments.get("maximize") else 1
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = trained(x).square().mean()
        (sign * loss).backward()
        optimizer.step()
        losses.append(loss.item())
        for follower in followers:
            with_loss = isinstance(follower, torch.optim.lr_scheduler.ReduceLROnPlateau)
            follower.step(*[loss.detach()] * with_loss)
    return [*trained.parameters(), *state_of(optimizer)], losses


def flags_id(flags: dict[str, Any]) -> str:
    return "-".join(f"{name}={value}" for name, value in flags.items()) or "plain"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("flags", [f for f in FLAGS if f != {"differentiable": True}], ids=flags_id)
@pytest.mark.parametrize("good", GOOD, ids=lambda good: good.desc)
def test_every_good_input_trains_to_the_bits_of_torch(good: Any, flags: dict[str, Any], dtype: torch.dtype) -> None:
    theirs, _ = train(torch.optim.SGD, {**good.kwargs, "foreach": False}, dtype=dtype)
    ours, losses = train(samestep.optim.SGD, {**good.kwargs, **flags}, dtype=dtype)
    assert differing(theirs, ours) == 0
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("good", GOOD, ids=lambda good: good.desc)
def test_every_good_input_trains_with_maximize_flipped(good: Any) -> None:
    arguments = {**good.kwargs, "maximize": not good.kwargs.get("maximize", False)}
    theirs, _ = train(torch.optim.SGD, {**arguments, "foreach": False})
    ours, losses = train(samestep.optim.SGD, arguments)
    assert differing(theirs, ours) == 0
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("good", GOOD, ids=lambda good: good.desc)
def test_every_good_input_trains_in_groups_of_its_own_lr(good: Any) -> None:
    def groups(trained: torch.nn.Sequential) -> Any:
        return [{"params": trained[0].parameters(), "lr": 0.05}, {"params": trained[2].named_parameters().__iter__()}]

    def unnamed(trained: torch.nn.Sequential) -> Any:
        return [{"params": trained[0].parameters(), "lr": 0.05}, {"params": list(trained[2].parameters())}]

    theirs, _ = train(torch.optim.SGD, {**good.kwargs, "foreach": False}, groups=unnamed)
    ours, losses = train(samestep.optim.SGD, good.kwargs, groups=unnamed)
    assert differing(theirs, ours) == 0
    assert losses[-1] < losses[0]
    for make in (torch.optim.SGD, samestep.optim.SGD):
        with pytest.raises(ValueError, match="all optimizer param groups should be with/without names"):
            train(make, good.kwargs, groups=groups)


@pytest.mark.parametrize("number", range(len(INFO.scheduler_inputs)))
def test_torchs_choice_of_schedulers_leads_to_the_bits_of_torch(number: int) -> None:
    schedulers = INFO.scheduler_inputs[number]
    for good in GOOD:
        if isinstance(good.kwargs.get("lr"), torch.Tensor):
            continue
        theirs, _ = train(torch.optim.SGD, {**good.kwargs, "foreach": False}, schedulers)
        ours, losses = train(samestep.optim.SGD, good.kwargs, schedulers)
        assert differing(theirs, ours) == 0, good.desc
        assert losses[-1] < losses[0], good.desc


@pytest.mark.parametrize("good", GOOD, ids=lambda good: good.desc)
def test_every_good_input_continues_from_a_state_dict_of_torch(good: Any) -> None:
    generator = torch.Generator().manual_seed(5)
    gradients = torch.randn(6, 7, generator=generator)
    p, q = (torch.ones(7, requires_grad=True) for _ in range(2))
    theirs = torch.optim.SGD([p], foreach=False, **good.kwargs)
    for gradient in gradients[:3]:
        p.grad = gradient.clone()
        theirs.step()
    with torch.no_grad():
        q.copy_(p)
    ours = samestep.optim.SGD([q], lr=123.0)
    ours.load_state_dict(theirs.state_dict())
    for gradient in gradients[3:]:
        for parameter, optimizer in ((p, theirs), (q, ours)):
            parameter.grad = gradient.clone()
            optimizer.step()
    assert differing([p, *state_of(theirs)], [q, *state_of(ours)]) == 0
    theirs.load_state_dict(copy.deepcopy(ours.state_dict()))  # torch would share the buffers
    for parameter, optimizer in ((p, theirs), (q, ours)):
        optimizer.step()
        assert parameter.isfinite().all()
    assert differing([p, *state_of(theirs)], [q, *state_of(ours)]) == 0


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.optimizer_error_input.desc)
def test_every_error_input_raises_torchs_error(bad: Any) -> None:
    given = bad.optimizer_error_input
    expected = CHANGED_ON_PURPOSE.get(given.desc, bad.error_type)
    for make in (torch.optim.SGD, samestep.optim.SGD):
        params = [torch.nn.Parameter(torch.ones(1, 1))] if given.params is None else given.params
        with pytest.raises(bad.error_type if make is torch.optim.SGD else expected, match=bad.error_regex) as caught:
            construct(make, params, given.kwargs, bad)
        if make is torch.optim.SGD:
            text = str(caught.value)
        elif expected is bad.error_type:
            assert str(caught.value) == text


def construct(make: Callable[..., torch.optim.Optimizer], params: Any, arguments: dict[str, Any], bad: Any) -> None:
    optimizer = make(params, **arguments)
    if bad.error_on is MATERIAL.OptimizerErrorEnum.STEP_ERROR:
        optimizer.step()


@pytest.mark.parametrize(
    "arguments",
    [
        {"lr": -0.1}, {"momentum": -0.5}, {"weight_decay": -1}, {"nesterov": True},
        {"nesterov": True, "momentum": 0.9, "dampening": 0.5}, {"lr": torch.tensor([0.1, 0.2])},
        {"lr": torch.tensor(-0.1)}, {"weight_decay": torch.tensor(-1.0)}, {"fused": True, "foreach": True},
        {"fused": True, "differentiable": True}, {"fused": True, "differentiable": True, "foreach": True},
        {"lr": -1, "momentum": -1, "weight_decay": -1, "nesterov": True, "fused": True, "foreach": True},
        {"momentum": -1, "weight_decay": -1}, {"lr": "0.1"}, {"lr": None}, {"momentum": None}, {"learning_rate": 1},
    ],
    ids="-".join,
)
def test_bad_arguments_raise_what_torch_raises(arguments: dict[str, Any]) -> None:
    errors = []
    for make in (torch.optim.SGD, samestep.optim.SGD):
        with pytest.raises(Exception) as caught:  # noqa: PT011  # compared below
            make([torch.nn.Parameter(torch.ones(1))], **arguments)
        errors.append((caught.type, re.sub(r"\(.*?\)|\w+\.", "", str(caught.value))))
    assert errors[0] == errors[1]


@pytest.mark.parametrize(
    "params", [[], {}, 5, None, [5], ["name"], [torch.ones(1, requires_grad=True) * 2], [{"params": []}, 3], [{}]],
    ids=["empty", "dict", "number", "none", "numbers", "text", "no_leaf", "no_group", "no_params"],
)
def test_bad_parameters_raise_what_torch_raises(params: Any) -> None:
    errors = []
    for make in (torch.optim.SGD, samestep.optim.SGD):
        try:
            make(params)
        except Exception as error:  # compared below
            errors.append((type(error), str(error)))
        else:
            errors.append((None, ""))
    assert errors[0] == errors[1]


def test_the_flags_that_torch_supports_are_accepted_as_arguments() -> None:
    for flags in itertools.chain(FLAGS, ({name: None} for name in INFO.supported_impls[:1])):
        optimizer = samestep.optim.SGD([torch.nn.Parameter(torch.ones(1))], **flags)
        assert {name: optimizer.param_groups[0][name] for name in flags} == flags


def test_differentiable_trains_every_good_input() -> None:
    # A leaf cannot be written in a graph: as torch's tests do, the parameters are made by an operation.
    for good in GOOD:
        results = []
        for make in (torch.optim.SGD, samestep.optim.SGD):
            source = torch.linspace(-1, 1, 12, requires_grad=True)
            p = source.detach().clone().requires_grad_()
            optimizer = make([p], differentiable=True, **copy.deepcopy(good.kwargs))
            for parameter_group in optimizer.param_groups:
                parameter_group["params"] = [source.clone()]
            (changing,) = optimizer.param_groups[0]["params"]
            for step in range(3):
                changing.grad = torch.linspace(1, 2, 12) * (step + 1)
                optimizer.step()
            results.append(changing.detach())
        assert differing(results[:1], results[1:]) == 0, good.desc
