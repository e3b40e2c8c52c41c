"""Defects that other implementations of this step have had in public; each test shows that one is absent here."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import samestep.optim
from samestep.optim import SGD
from torch_suite import differing, same_bits

HALVES = (torch.bfloat16, torch.float16)
DTYPES = (torch.float32, torch.float64, *HALVES)


def parameter(values: Any, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    return nn.Parameter(torch.as_tensor(values).clone().to(dtype))


def fma(x: float, y: Tensor, z: Tensor) -> Tensor:
    """x*y + z in float64, rounded to float32 by the caller's use: exact enough where the products are."""
    return (torch.tensor(x).float().double() * y.double() + z.double()).float()


def test_vector_body_and_first_momentum_step_of_halves_are_right() -> None:  # 1
    for dtype in HALVES:
        generator = torch.Generator().manual_seed(3)
        start, gradient = (torch.randn(100, generator=generator).to(dtype) for _ in range(2))
        p = nn.Parameter(start.clone())
        optimizer = SGD([p], lr=0.5, momentum=0.5)
        p.grad = gradient
        optimizer.step()
        assert same_bits(optimizer.state[p]["momentum_buffer"], gradient)
        assert same_bits(p, fma(-0.5, gradient.float(), start.float()).to(dtype))


def test_a_skipped_first_step_leaves_no_trace() -> None:  # 2
    p = parameter([1.0, 2.0])
    optimizer = SGD([p], lr=0.1, momentum=0.9, dampening=0.5)
    p.grad = torch.ones(2)
    optimizer.found_inf = torch.ones(())
    optimizer.step()
    assert dict(optimizer.state) == {}
    assert p.detach().tolist() == [1, 2]
    del optimizer.found_inf
    optimizer.step()
    assert optimizer.state[p]["momentum_buffer"].tolist() == [1, 1]  # undamped


@pytest.mark.parametrize("found", [1.0, 2.0, 0.5, float("nan"), float("inf")])
def test_any_found_inf_but_zero_skips(found: float) -> None:  # 3
    p = parameter([1.0])
    p.grad = torch.ones(1)
    optimizer = SGD([p], lr=0.1)
    optimizer.found_inf = torch.tensor(found)
    optimizer.step()
    assert p.item() == 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_flags_place_and_layout_change_no_bit(dtype: torch.dtype) -> None:  # 4
    generator = torch.Generator().manual_seed(0)
    start, *gradients = [torch.randn(7, 13, generator=generator).to(dtype) for _ in range(4)]

    def trained(layout: Callable[[Tensor], Tensor], columns: slice, **flags: Any) -> Tensor:
        p = nn.Parameter(layout(start[:, columns].clone()))
        optimizer = SGD([p], lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True, **flags)
        for g in gradients:
            p.grad = g[:, columns].clone()
            optimizer.step()
        return p.detach()

    whole = slice(None)
    wanted = trained(torch.clone, whole)
    for flags in ({"foreach": True}, {"fused": True}, {"foreach": False, "fused": False}):
        assert same_bits(trained(torch.clone, whole, **flags), wanted)
    assert same_bits(trained(lambda x: x.t().contiguous().t(), whole), wanted)
    assert same_bits(trained(torch.clone, slice(5, 9)), wanted[:, 5:9])


def test_gradients_are_only_read() -> None:  # 5
    for flags in ({"foreach": True}, {"fused": True}, {}):
        for maximize in (False, True):
            p = parameter(torch.arange(40.0))
            p.grad = torch.arange(40.0) / 7
            before, version = p.grad.clone(), p.grad._version
            optimizer = SGD([p], 0.1, 0.9, 0, torch.tensor(0.1), True, maximize=maximize, **flags)
            for _ in range(3):
                optimizer.step()
            assert same_bits(p.grad, before)
            assert p.grad._version == version


def test_differentiable_keeps_the_first_momentum_step_in_the_graph() -> None:  # 6
    gradient = torch.tensor([0.5, 2.0], requires_grad=True)
    p = parameter([1.0, 2.0]).clone()
    p.grad = gradient * 1
    weight_decay = torch.tensor(0.1, requires_grad=True)
    optimizer = SGD([p], lr=0.5, momentum=0.9, weight_decay=weight_decay, differentiable=True)
    before = p.grad.detach().clone()
    optimizer.step()
    assert same_bits(p.grad, before)
    p.sum().backward()
    assert gradient.grad.tolist() == [-0.5, -0.5]
    assert optimizer.state[p]["momentum_buffer"].requires_grad


def test_loading_copies_buffers() -> None:  # 7
    p, q = parameter([1.0, 2.0]), parameter([1.0, 2.0])
    first, second = SGD([p], 0.1, 0.9), SGD([q], 0.1, 0.9)
    p.grad = q.grad = torch.ones(2)
    first.step()
    second.load_state_dict(first.state_dict())
    assert first.state[p]["momentum_buffer"].data_ptr() != second.state[q]["momentum_buffer"].data_ptr()
    second.step()
    assert first.state[p]["momentum_buffer"].tolist() == [1, 1]


@pytest.mark.parametrize("dtype", HALVES)
def test_loading_keeps_a_wider_momentum(dtype: torch.dtype) -> None:  # 7
    p = parameter([1.0, 2.0], dtype)
    optimizer = SGD([p], 0.1, 0.9)
    buffer = torch.tensor([1 + 2**-20, 3.0])
    optimizer.load_state_dict({**optimizer.state_dict(), "state": {0: {"momentum_buffer": buffer}}})
    assert same_bits(optimizer.state[p]["momentum_buffer"], buffer)
    p.grad = torch.zeros(2, dtype=dtype)
    for _ in range(2):
        optimizer.step()
    wanted = (buffer * 0.9) * 0.9
    assert same_bits(optimizer.state[p]["momentum_buffer"], wanted)


def test_loading_refuses_a_buffer_of_the_wrong_shape_and_names_the_parameter() -> None:  # 7
    net = nn.Linear(3, 2)
    optimizer = SGD(net.named_parameters(), 0.1, 0.9)
    before = optimizer.state_dict()
    state = {0: {"momentum_buffer": torch.ones(2, 3)}, 1: {"momentum_buffer": torch.ones(1)}}
    with pytest.raises(ValueError, match=r"'bias' has shape \(1,\), the parameter has \(2,\)"):
        optimizer.load_state_dict({**before, "state": state})
    assert optimizer.state_dict() == before


@pytest.mark.parametrize("flags", [{"fused": True}, {}], ids=str)
def test_a_layer_thawed_late_has_its_own_undamped_first_step(flags: dict[str, Any]) -> None:  # 8
    p, q = parameter([1.0]), parameter([1.0])
    optimizer = SGD([p, q], 1.0, 0.5, dampening=0.5, **flags)
    p.grad = torch.ones(1)
    optimizer.step()
    q.grad = torch.ones(1)
    optimizer.step()
    assert optimizer.state[p]["momentum_buffer"].item() == 1.0
    assert optimizer.state[q]["momentum_buffer"].item() == 1.0
    assert (p.item(), q.item()) == (-1.0, 0.0)


@pytest.mark.parametrize("arguments", [
    {"weight_decay": 0.1}, {"momentum": 0.9}, {"momentum": 0.9, "weight_decay": 0.1, "nesterov": True},
], ids=str)
def test_sparse_gradients_with_weight_decay_or_momentum_have_dense_meaning(arguments: dict[str, Any]) -> None:  # 9
    p, q = parameter(torch.ones(4, 2)), parameter(torch.ones(4, 2))
    first, second = SGD([p], 0.1, **arguments), SGD([q], 0.1, **arguments)
    for rows in ([0, 2], [3, 3], None):
        dense = torch.full((4, 2), 0.5)
        if rows is not None:
            p.grad = torch.sparse_coo_tensor([rows], torch.ones(2, 2), (4, 2), check_invariants=True)
            dense = p.grad.to_dense()
        else:
            p.grad = None
            p.grad = dense.clone()  # sparse, then dense
        q.grad = dense
        first.step()
        second.step()
        assert differing([p], [q]) == 0


def test_gradients_may_lie_otherwise_than_their_parameter() -> None:  # 10
    generator = torch.Generator().manual_seed(5)
    start, g = (torch.randn(2, 3, 4, 4, generator=generator) for _ in range(2))
    layouts: list[Callable[[Tensor], Tensor]] = [
        torch.clone, lambda x: x.clone(memory_format=torch.channels_last),
        lambda x: x.transpose(0, 3).contiguous().transpose(0, 3), lambda x: torch.stack([x, x], -1)[..., 1],
    ]
    expected = torch.randn(3, 1, 1, generator=generator).expand(2, 3, 4, 4)
    results = []
    for of_parameter in layouts:
        for of_gradient in layouts:
            p = nn.Parameter(of_parameter(start))
            optimizer = SGD([p], 0.1, 0.9, weight_decay=0.1)
            p.grad = of_gradient(g)
            optimizer.step()
            p.grad = expected
            optimizer.step()
            results.append(p.detach())
    assert all(same_bits(result, results[0]) for result in results)


@pytest.mark.parametrize("dtype", HALVES)
def test_a_half_gradient_of_a_float32_parameter_makes_a_float32_buffer(dtype: torch.dtype) -> None:  # 11
    p = parameter(torch.linspace(1, 2, 33))
    params, buffers = [p.detach().clone()], [None]
    g = torch.linspace(-1, 1, 33).to(dtype)
    for _ in range(3):
        samestep.optim.sgd(params, [g], buffers, lr=0.1, momentum=0.9, weight_decay=0.0, dampening=0.0, nesterov=False,
                           maximize=False)
    assert buffers[0].dtype == torch.float32
    optimizer = SGD([p], 0.1, 0.9)
    for _ in range(3):
        p.grad = g.float()
        optimizer.step()
    assert differing([p, optimizer.state[p]["momentum_buffer"]], [params[0], buffers[0]]) == 0


def test_hyperparameters_are_not_rounded_to_the_parameters_dtype() -> None:  # 12
    p = parameter([0.0], torch.float16)
    p.grad = torch.full((1,), 1000.0, dtype=torch.float16)
    SGD([p], lr=1e-8).step()
    assert same_bits(p, torch.tensor([-1e-5]).half())
    p.grad = torch.full((1,), 1e-3, dtype=torch.float16)
    SGD([p], lr=1e5).step()
    assert p.item() == -100.0625


@pytest.mark.parametrize(("group", "error", "text"), [
    ({"lr": -1.0}, ValueError, "Invalid learning rate: -1.0"),
    ({"lr": torch.ones(2)}, ValueError, "Tensor lr must be 1-element"),
    ({"lr": float("nan")}, ValueError, "Invalid learning rate: nan"),
    ({"momentum": float("nan")}, ValueError, "Invalid momentum value: nan"),
    ({"momentum": -0.1}, ValueError, "Invalid momentum value: -0.1"),
    ({"weight_decay": float("nan")}, ValueError, "Invalid weight_decay value: nan"),
    ({"dampening": float("nan")}, ValueError, "Invalid dampening value: nan"),
    ({"nesterov": True}, ValueError, "Nesterov momentum requires a momentum and zero dampening"),
    ({"fused": True, "foreach": True}, RuntimeError, "`fused` and `foreach` cannot be `True` together."),
], ids=str)
def test_a_groups_own_hyperparameters_are_checked(group: dict[str, Any], error: type, text: str) -> None:  # 13
    with pytest.raises(error, match=text):
        SGD([{"params": [parameter([1.0])], **group}], lr=0.1)
    optimizer = SGD([parameter([1.0])], lr=0.1)
    with pytest.raises(error, match=text):
        optimizer.add_param_group({"params": [parameter([1.0])], **group})
    assert len(optimizer.param_groups) == 1
    if len(group) == 1:
        with pytest.raises(error, match=text):
            SGD([parameter([1.0])], **group)


def test_at_a_step_only_nan_is_refused() -> None:  # 13
    p = parameter([1.0])
    p.grad = torch.ones(1)
    optimizer = SGD([p], 0.1, 0.9, nesterov=True)
    for key in ("lr", "momentum", "dampening", "weight_decay"):
        before = optimizer.param_groups[0][key]
        optimizer.param_groups[0][key] = float("nan")
        with pytest.raises(ValueError, match="nan"):
            optimizer.step()
        optimizer.param_groups[0][key] = before
    assert (p.item(), dict(optimizer.state)) == (1.0, {})
    optimizer.param_groups[0].update(momentum=0.0, lr=-1e-19)
    optimizer.step()


def test_a_duplicate_parameter_is_refused() -> None:  # 14
    p = parameter([1.0])
    with pytest.raises(ValueError, match="duplicate parameters"):
        SGD([p, p])
    with pytest.raises(ValueError, match="duplicate parameters"):
        SGD([("a", p), ("b", p)])


def test_the_callers_group_dicts_are_left_alone() -> None:  # 15
    group = {"params": [parameter([1.0])]}
    SGD([group], lr=0.1).param_groups[0]["params"].append(None)
    assert list(group) == ["params"]
    assert len(group["params"]) == 1


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_keep_support_for_gradient_scaling(copied: Callable[[Any], Any]) -> None:  # 17
    for optimizer in (SGD([parameter([1.0])]), SGD([{"params": [parameter([1.0])], "fused": True}])):
        assert optimizer._step_supports_amp_scaling
        assert copied(optimizer)._step_supports_amp_scaling


def test_an_old_checkpoint_does_not_set_fused() -> None:  # 17
    optimizer = SGD([parameter([1.0])])
    saved = optimizer.state_dict()
    del saved["param_groups"][0]["fused"]
    optimizer.load_state_dict(saved)
    assert optimizer.param_groups[0]["fused"] is None


@pytest.mark.parametrize("dtype", [torch.float64, *HALVES])
def test_state_follows_the_model_to_another_dtype(dtype: torch.dtype) -> None:  # 18
    net = nn.Linear(3, 2)
    optimizer = SGD(net.parameters(), 0.1, 0.9)
    for _ in range(2):
        for p in net.parameters():
            p.grad = torch.ones_like(p)
        optimizer.step()
    before = [optimizer.state[p]["momentum_buffer"] for p in net.parameters()]
    net.to(dtype)
    optimizer.step()
    arithmetic = torch.promote_types(dtype, torch.float32)
    for p, buffer in zip(net.parameters(), before, strict=True):
        wanted = (buffer.to(dtype).to(arithmetic) * 0.9 + 1).to(dtype)
        assert same_bits(optimizer.state[p]["momentum_buffer"], wanted)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.0])
def test_without_momentum_the_buffer_is_neither_read_nor_written(value: float) -> None:  # 21
    p = parameter([1.0, 2.0])
    optimizer = SGD([p], 0.5, 0.9)
    p.grad = torch.ones(2)
    optimizer.step()
    buffer = optimizer.state[p]["momentum_buffer"].fill_(value)
    before, version = buffer.clone(), buffer._version
    optimizer.param_groups[0]["momentum"] = 0
    optimizer.step()
    assert p.detach().tolist() == [0.0, 1.0]
    assert optimizer.state[p]["momentum_buffer"] is buffer
    assert same_bits(buffer, before)
    assert buffer._version == version


def spoilt_gradient(p: nn.Parameter, _: SGD) -> None:
    p.grad.data = torch.ones(5)


def spoilt_buffer(p: nn.Parameter, optimizer: SGD) -> None:
    optimizer.state[p]["momentum_buffer"] = torch.ones(5)


def spoilt_rate(_: nn.Parameter, optimizer: SGD) -> None:
    optimizer.param_groups[1]["lr"] = float("nan")


def spoilt_parameter(p: nn.Parameter, _: SGD) -> None:
    p.data = torch.ones(5)


@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.parametrize("spoil", [spoilt_gradient, spoilt_buffer, spoilt_rate, spoilt_parameter])
def test_an_error_leaves_everything_as_it_was(spoil: Callable[..., None], steps: int) -> None:  # 22
    ps = [parameter([1.0, 2.0]) for _ in range(4)]
    optimizer = SGD([{"params": ps[:2]}, {"params": ps[2:]}], 0.1, 0.9)
    for p in ps:
        p.grad = torch.ones(2)
    for _ in range(steps):
        optimizer.step()
    spoil(ps[3], optimizer)
    before = copy.deepcopy((ps[:3], optimizer.state_dict()["state"]))
    versions = [p._version for p in ps]
    with pytest.raises((RuntimeError, ValueError)):
        optimizer.step()
    assert differing(ps[:3], before[0]) == 0
    assert versions == [p._version for p in ps]
    state = optimizer.state_dict()["state"]
    assert state.keys() == before[1].keys()
    assert all(same_bits(state[k]["momentum_buffer"], before[1][k]["momentum_buffer"]) for k in state)
