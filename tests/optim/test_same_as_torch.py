"""What torch.optim.SGD does, this class does: arguments, errors, groups, hooks, checkpoints, copies, schedules."""

from __future__ import annotations

import copy
import inspect
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.optim.sgd import sgd as torch_sgd

from samestep.optim import SGD, sgd
from torch_suite import differing

KINDS = (SGD, torch.optim.SGD)
FUNCTIONS = (sgd, torch_sgd)


def parameter(*values: float) -> nn.Parameter:
    return nn.Parameter(torch.tensor(values or (1.0, 2.0, 3.0)))


def model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def train(net: nn.Module, optimizer: Any, steps: int = 4, scheduler: Any = None) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        optimizer.zero_grad()
        net(torch.randn(5, 4, generator=generator)).square().mean().backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
    return [p.detach().clone() for p in net.parameters()]


def pair(arguments: dict[str, Any], **trained: Any) -> tuple[list[Tensor], list[Tensor]]:
    results = []
    for kind in KINDS:
        net = model()
        results.append(train(net, kind(net.parameters(), **arguments), **trained))
    return results[0], results[1]


def error_of(call: Callable[[], Any]) -> tuple[type, str]:
    with pytest.raises(Exception) as caught:  # noqa: PT011  # the type is compared with torch's
        call()
    return caught.type, str(caught.value)


def test_signature_begins_with_torchs() -> None:
    ours, torchs = (list(inspect.signature(kind).parameters.values()) for kind in KINDS)
    assert [(p.name, p.default, p.kind) for p in ours[: len(torchs)]] == [(p.name, p.default, p.kind) for p in torchs]
    assert all(p.kind is inspect.Parameter.KEYWORD_ONLY for p in ours[len(torchs):])
    mine, other = (inspect.signature(f).parameters.values() for f in FUNCTIONS)
    assert [(p.name, p.default, p.kind) for p in mine] == [(p.name, p.default, p.kind) for p in other]


BAD_ARGUMENTS: list[dict[str, Any]] = [
    {"lr": -0.1}, {"lr": -1}, {"lr": torch.tensor(-0.5)}, {"lr": torch.tensor([0.1, 0.2])}, {"lr": torch.ones(0)},
    {"momentum": -0.5}, {"weight_decay": -1e-3}, {"weight_decay": torch.tensor(-1.0)}, {"nesterov": True},
    {"nesterov": True, "momentum": 0.9, "dampening": 0.1}, {"lr": "fast"}, {"lr": None}, {"momentum": None},
    {"fused": True, "foreach": True}, {"fused": True, "differentiable": True},
    {"fused": True, "foreach": True, "differentiable": True}, {"lr": -1, "momentum": -1}, {"learning_rate": 1},
]


@pytest.mark.parametrize("arguments", BAD_ARGUMENTS, ids=repr)
def test_bad_arguments_raise_torchs_errors(arguments: dict[str, Any]) -> None:
    ours, torchs = (error_of(lambda kind=kind: kind([parameter()], **arguments)) for kind in KINDS)
    assert ours == torchs


BAD_PARAMETERS: list[Callable[[], Any]] = [
    list, parameter, lambda: [1.0], lambda: [parameter() * 2], lambda: [{"params": {parameter()}}],
    lambda: [{"lr": 1.0}], lambda: [{"params": [parameter()]}, [parameter()]],
    lambda: [("a", parameter()), parameter()],
    lambda: 3, lambda: [{"params": [p], "lr": k} for k, p in enumerate([parameter()] * 2)],
]


@pytest.mark.parametrize("make", BAD_PARAMETERS)
def test_bad_parameters_raise_torchs_errors(make: Callable[[], Any]) -> None:
    ours, torchs = (error_of(lambda kind=kind: kind(make(), lr=0.1)) for kind in KINDS)
    assert ours == torchs


def test_an_iterator_of_parameters_is_read_once() -> None:
    ps = [parameter(), parameter()]
    assert SGD(iter(ps)).param_groups[0]["params"] == ps
    assert SGD([{"params": iter(ps)}]).param_groups[0]["params"] == ps
    assert SGD([{"params": ps[0]}]).param_groups[0]["params"] == ps[:1]


def test_named_parameters() -> None:
    net = model()
    ours, torchs = (kind(net.named_parameters(), lr=0.1) for kind in KINDS)
    assert ours.param_groups[0]["param_names"] == torchs.param_groups[0]["param_names"]
    assert ours.state_dict()["param_groups"] == torchs.state_dict()["param_groups"]


@pytest.mark.parametrize("lr", [torch.tensor(0.05), torch.tensor([0.05]), torch.full((1, 1), 0.05)], ids=str)
def test_lr_may_be_a_tensor_with_one_element(lr: Tensor) -> None:
    ours, torchs = pair({"lr": lr, "momentum": 0.9, "foreach": False})
    assert differing(ours, torchs) == 0


def test_weight_decay_may_be_a_tensor() -> None:
    ours, torchs = pair({"lr": 0.1, "weight_decay": torch.tensor(0.01), "foreach": False})
    assert differing(ours, torchs) == 0


@pytest.mark.parametrize("flags", [{}, *({flag: x} for flag in ("foreach", "fused") for x in (True, False))], ids=str)
def test_foreach_and_fused_are_accepted_and_choose_nothing(flags: dict[str, Any]) -> None:
    net = model()
    ours = train(net, SGD(net.parameters(), 0.1, 0.9, **flags))
    _, torchs = pair({"lr": 0.1, "momentum": 0.9, "foreach": False})
    assert differing(ours, torchs) == 0


def test_groups_have_their_own_hyperparameters() -> None:
    results = []
    for kind in KINDS:
        net = model()
        optimizer = kind([{"params": net[0].parameters(), "momentum": 0.9, "nesterov": True},
                          {"params": net[2].parameters(), "lr": 0.5, "maximize": True}], lr=0.1, foreach=False)
        results.append(train(net, optimizer))
    assert differing(*results) == 0


def test_add_param_group_after_steps() -> None:
    results = []
    for kind in KINDS:
        net = model()
        optimizer = kind(net[0].parameters(), lr=0.1, momentum=0.9, dampening=0.5, foreach=False)
        train(net, optimizer, 2)
        optimizer.add_param_group({"params": net[2].parameters(), "lr": 0.01})
        results.append(train(net, optimizer, 3))
        assert [len(group["params"]) for group in optimizer.param_groups] == [2, 2]
    assert differing(*results) == 0


def test_add_param_group_raises_torchs_errors_and_changes_nothing() -> None:
    p = parameter()
    for group in ([p], {"params": [p]}, {"params": [1]}, {"params": {p}}, {}):
        optimizers = [kind([p], lr=0.1) for kind in KINDS]
        ours, torchs = (error_of(lambda o=o, group=group: o.add_param_group(group)) for o in optimizers)
        assert ours == torchs
        assert len(optimizers[0].param_groups) == 1


def test_a_closure_is_called_once_with_gradients_enabled() -> None:
    p = parameter()
    optimizer = SGD([p], lr=0.1)
    calls = []

    def closure() -> Tensor:
        calls.append(torch.is_grad_enabled())
        optimizer.zero_grad()
        loss = (p * p).sum()
        loss.backward()
        return loss

    with torch.no_grad():
        loss = optimizer.step(closure)
    assert calls == [True]
    assert loss.item() == 14
    assert p.detach().tolist() != [1.0, 2.0, 3.0]
    assert SGD([parameter()]).step() is None


def test_all_six_hooks_run() -> None:
    p = parameter()
    p.grad = torch.ones(3)
    optimizer = SGD([p], lr=1.0)
    seen: list[str] = []

    def note(name: str) -> Callable[..., None]:
        return lambda *_: seen.append(name)

    optimizer.register_step_pre_hook(note("before step"))
    optimizer.register_step_post_hook(note("after step"))
    optimizer.register_state_dict_pre_hook(note("before save"))
    optimizer.register_state_dict_post_hook(note("after save"))
    optimizer.register_load_state_dict_pre_hook(note("before load"))
    optimizer.register_load_state_dict_post_hook(note("after load"))
    optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
    assert seen == ["before step", "after step", "before save", "after save", "before load", "after load"]


def test_a_hook_before_loading_may_change_what_is_loaded() -> None:
    p = parameter()
    optimizer = SGD([p], lr=1.0, momentum=0.9)

    def double(_: Any, state_dict: dict[str, Any]) -> dict[str, Any]:
        state = {k: {"momentum_buffer": 2 * v["momentum_buffer"]} for k, v in state_dict["state"].items()}
        return {**state_dict, "state": state}

    optimizer.register_load_state_dict_pre_hook(double)
    optimizer.load_state_dict({**optimizer.state_dict(), "state": {0: {"momentum_buffer": torch.ones(3)}}})
    assert optimizer.state[p]["momentum_buffer"].tolist() == [2.0, 2.0, 2.0]
    assert len(optimizer._optimizer_load_state_dict_pre_hooks) == 1


def test_global_step_hooks_run() -> None:
    seen = []
    handle = register_optimizer_step_post_hook(lambda o, *_: seen.append(type(o)))
    try:
        SGD([parameter()]).step()
    finally:
        handle.remove()
    assert seen == [SGD]


@pytest.mark.parametrize("kinds", [KINDS, KINDS[::-1], (SGD, SGD)])
@pytest.mark.parametrize("momentum", [0, 0.9])
def test_state_dicts_load_both_ways(kinds: tuple[Any, Any], momentum: float) -> None:
    net, twin = model(), model()
    first = kinds[0](net.parameters(), lr=0.1, momentum=momentum, foreach=False)
    train(net, first)
    twin.load_state_dict(net.state_dict())
    second = kinds[1](twin.parameters(), lr=7.0, foreach=False)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second.load_state_dict(torch.load(file, weights_only=True))
    assert second.param_groups[0]["lr"] == 0.1
    assert differing(train(net, first), train(twin, second)) == 0


def test_the_state_has_torchs_form() -> None:
    for momentum in (0, 0.9):
        states = []
        for kind in KINDS:
            net = model()
            optimizer = kind(net.parameters(), lr=0.1, momentum=momentum)
            train(net, optimizer)
            states.append({k: {n: v.shape for n, v in s.items()} for k, s in optimizer.state_dict()["state"].items()})
        assert states[0] == states[1]


def test_loading_raises_torchs_errors() -> None:
    for groups in ([parameter()], [{"params": [parameter()]}, {"params": [parameter()]}]):
        saved = torch.optim.SGD(groups, lr=0.1).state_dict()
        ours, torchs = (error_of(lambda kind=kind, saved=saved: kind([parameter()] * 1 + [parameter()]).load_state_dict(
            saved)) for kind in KINDS)
        assert ours == torchs


def test_an_older_checkpoint_lacks_keys() -> None:
    saved = SGD([parameter()], lr=0.1).state_dict()
    for key in ("nesterov", "maximize", "foreach", "differentiable", "fused"):
        del saved["param_groups"][0][key]
    optimizer = SGD([parameter()], lr=3.0)
    optimizer.load_state_dict(saved)
    group = optimizer.param_groups[0]
    assert (group["nesterov"], group["maximize"], group["foreach"], group["fused"]) == (False, False, None, None)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_go_on_alike_and_apart(copied: Callable[[Any], Any]) -> None:
    p = parameter()
    optimizer = SGD([p], lr=0.1, momentum=0.9)
    p.grad = torch.ones(3)
    optimizer.step()
    twin = copied(optimizer)
    q = twin.param_groups[0]["params"][0]
    q.grad = torch.ones(3)
    before = p.detach().clone()
    twin.step()
    assert torch.equal(p, before)
    optimizer.step()
    assert differing([p, optimizer.state[p]["momentum_buffer"]], [q, twin.state[q]["momentum_buffer"]]) == 0


def test_zero_grad() -> None:
    p = parameter()
    optimizer = SGD([p])
    p.grad = torch.ones(3)
    optimizer.zero_grad(set_to_none=False)
    assert p.grad.tolist() == [0, 0, 0]
    optimizer.zero_grad()
    assert p.grad is None


def test_repr_names_class_and_hyperparameters() -> None:
    ours, torchs = (repr(kind([parameter()], lr=0.25, momentum=0.5)) for kind in KINDS)
    assert ours == torchs


def test_a_missing_gradient_leaves_parameter_and_state_alone() -> None:
    p, q = parameter(), parameter()
    optimizer = SGD([p, q], lr=0.1, momentum=0.9)
    q.grad = torch.ones(3)
    for _ in range(3):
        optimizer.step()
    assert p.detach().tolist() == [1, 2, 3]
    assert p not in optimizer.state
    assert "momentum_buffer" in optimizer.state[q]


SCHEDULERS: list[Callable[[Any], Any]] = [
    lambda o: torch.optim.lr_scheduler.StepLR(o, 2, 0.1),
    lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 5),
    lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.5, total_steps=10),
    lambda o: torch.optim.lr_scheduler.CyclicLR(o, 0.01, 0.1),
    lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda k: 1 - k),
]


@pytest.mark.parametrize("make", SCHEDULERS)
def test_schedulers(make: Callable[[Any], Any]) -> None:
    results = []
    for kind in KINDS:
        net = model()
        optimizer = kind(net.parameters(), lr=0.1, momentum=0.9, foreach=False)
        results.append(train(net, optimizer, 6, make(optimizer)))
    assert differing(*results) == 0


def test_the_step_raises_the_version_of_what_it_writes() -> None:
    w = parameter()
    optimizer = SGD([w], lr=0.1)
    loss = (w * w).sum()
    w.grad = torch.ones(3)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_gradients_keep_no_memory_between_steps() -> None:
    import weakref

    p = parameter()
    optimizer = SGD([p], lr=0.1, momentum=0.9)
    for _ in range(3):
        p.grad = torch.ones(3)
        gradient = weakref.ref(p.grad)
        optimizer.step()
        optimizer.zero_grad()
        assert gradient() is None


@pytest.mark.parametrize("momentum", [0, 0.9])
def test_the_functional_form_updates_lists(momentum: float) -> None:
    results = []
    for function in FUNCTIONS:
        params, buffers = [torch.ones(3), torch.ones(2)], [torch.full((3,), 0.5), None] if momentum else []
        with torch.no_grad():
            function(params, [torch.full((3,), 0.3), torch.full((2,), 0.7)], buffers, foreach=False, weight_decay=0.1,
                     momentum=momentum, lr=0.1, dampening=0.2, nesterov=False, maximize=False)
        results.append([*params, *buffers])
    assert len(results[0]) == len(results[1])
    assert differing(*results) == 0


def test_the_functional_form_records_for_autograd_as_torchs() -> None:
    call = {"foreach": False, "weight_decay": 0.0, "momentum": 0.0, "lr": 0.1, "dampening": 0.0, "nesterov": False,
            "maximize": False}
    for function in FUNCTIONS:
        leaf = parameter()
        with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
            function([leaf], [torch.ones(3)], [], **call)
        assert leaf.detach().tolist() == [1, 2, 3]
        inner = leaf * 2
        function([inner], [leaf * 3], [], **call)
        inner.sum().backward()
        assert torch.equal(leaf.grad, torch.tensor([2 - 0.1 * 3] * 3))


@pytest.mark.parametrize("momentum", [0, 0.9])
def test_parameters_that_share_memory_are_updated_in_turn(momentum: float) -> None:
    results = []
    for kind in KINDS:
        memory = torch.arange(20000.0) / 7
        ps = [nn.Parameter(memory[:15000]), nn.Parameter(memory[5000:]), nn.Parameter(torch.ones(10000))]
        optimizer = kind(ps, lr=0.1, momentum=momentum, weight_decay=0.1, foreach=False)
        for _ in range(3):
            ps[0].grad, ps[1].grad, ps[2].grad = torch.ones(15000), torch.full((15000,), 0.3), ps[1].detach()[:10000]
            optimizer.step()
        results.append([memory, ps[2]])
    assert differing(*results) == 0


def test_an_expanded_parameter_is_refused() -> None:
    p, q = parameter(), nn.Parameter(torch.ones(1).expand(3))
    p.grad = q.grad = torch.ones(3)
    for kind in KINDS:
        with pytest.raises(RuntimeError, match="more than one element"):
            kind([p, q]).step()
        p.data = torch.tensor([1.0, 2.0, 3.0])
    with pytest.raises(RuntimeError, match="parameter 1 of group 0"):
        SGD([p, q]).step()
    assert p.detach().tolist() == [1, 2, 3]


def test_steps_go_on_after_data_was_exchanged() -> None:
    results = []
    for kind in KINDS:
        ps = [nn.Parameter(torch.arange(12.0).view(3, 4)) for _ in range(3)]
        optimizer = kind(ps, lr=0.1, momentum=0.9, foreach=False)
        for step in range(12):
            for p in ps:
                if step % 3 == 0:
                    p.grad = torch.full((3, 4), 0.3)
            if step == 4:
                ps[0].data = ps[0].data.clone()
            if step == 5:
                ps[1].grad.data = torch.arange(12.0).view(4, 3).t()
            if step == 7:
                optimizer.state[ps[2]]["momentum_buffer"] = torch.ones(3, 4)
            if step == 8:
                ps[0].data = ps[0].data.t().contiguous().t()
            if step == 10:
                ps[1].grad = None
            optimizer.step()
        results.append([*ps, *(optimizer.state[p]["momentum_buffer"] for p in ps)])
    assert differing(*results) == 0


def test_a_profiler_sees_the_step_as_torchs():
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = SGD([parameter], lr=0.1)
    parameter.grad = torch.ones(3)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        optimizer.step()
    assert "Optimizer.step#SGD.step" in {event.key for event in profile.key_averages()}


@pytest.mark.parametrize("count", [1, 3, 40])
def test_a_step_after_zero_grad_changes_nothing(count: int) -> None:
    parameters = [nn.Parameter(torch.ones(4)) for _ in range(count)]
    optimizer = SGD(parameters, lr=0.1, momentum=0.9)
    for _ in range(3):
        for parameter in parameters:
            parameter.grad = torch.ones(4)
        optimizer.step()
    before = [parameter.detach().clone() for parameter in parameters]
    optimizer.zero_grad()
    optimizer.step()
    assert all(map(torch.equal, parameters, before))
    parameters[0].grad = torch.ones(4)
    optimizer.step()
    assert not torch.equal(parameters[0], before[0])
    assert all(map(torch.equal, parameters[1:], before[1:]))
