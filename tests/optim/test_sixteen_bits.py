"""bfloat16 and float16: rule T, computed in float32 and rounded once where stored, as the exact oracle has it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import samestep
import samestep.optim
from samestep.verify.oracle_torch import torch_differing
from torch_suite import INTEGER, bits, flat, layouts, numbers, offset, strided

STEPS = 4
NAMES = {torch.float32: "float32", torch.float64: "float64", torch.float16: "float16", torch.bfloat16: "bfloat16"}


class Types(NamedTuple):
    """The dtypes of a parameter, its gradient and its momentum buffer."""

    parameter: torch.dtype
    gradient: torch.dtype
    state: torch.dtype


HALVES = (torch.bfloat16, torch.float16)
TYPES = [
    *(Types(half, half, half) for half in HALVES),
    *(Types(half, half, torch.float32) for half in HALVES),
    *(Types(torch.float32, half, torch.float32) for half in HALVES),
    *(Types(half, torch.float32, half) for half in HALVES),
    Types(torch.bfloat16, torch.float16, torch.bfloat16),
    Types(torch.float32, torch.float64, torch.float32),
]
IDS = ["-".join(NAMES[dtype] for dtype in types) for types in TYPES]
RULES = [
    {"momentum": momentum, "dampening": dampening, "weight_decay": weight_decay, "nesterov": nesterov,
     "maximize": maximize}
    for momentum, dampening, weight_decay, nesterov, maximize in itertools.product(
        (0, 0.9), (0, 0.3), (0, 0.01), (False, True), (False, True))
    if not nesterov or (momentum and not dampening)
]


def drawn(shape: list[int], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """A third each: ordinary and special numbers, any bit patterns, near-ties of small numbers."""
    values = numbers(shape, dtype, generator, special=True)
    size = INTEGER[dtype.itemsize]
    patterns = torch.randint(torch.iinfo(size).min, torch.iinfo(size).max, shape, generator=generator, dtype=size)
    near = (1 + torch.randint(-9, 9, shape, generator=generator) * torch.finfo(dtype).eps).to(dtype)
    kind = torch.randint(3, shape, generator=generator)
    return torch.where(kind == 0, values, torch.where(kind == 1, patterns.view(dtype), near))


def assign(p: Tensor, gradient: Tensor) -> None:
    """Set a gradient of any dtype: torch allows that only where it has been told so, or through `data`."""
    if p.grad is None or p.grad.shape != gradient.shape:
        p.grad = torch.zeros_like(p)
    p.grad.data = gradient


def patterns(tensor: Tensor) -> list[int]:
    width = 1 << (8 * tensor.element_size())
    return [pattern % width for pattern in bits(tensor).flatten().tolist()]


def columns(p: Tensor, optimizer: torch.optim.Optimizer) -> tuple[list[int], list[int] | None]:
    buffer = optimizer.state.get(p, {}).get("momentum_buffer")
    return patterns(p), None if buffer is None else patterns(buffer)


def checked_step(
    optimizer: torch.optim.Optimizer, parameters: list[Tensor], gradients: list[Tensor], types: Types,
) -> int:
    """One step, judged; how many elements were."""
    group = optimizer.param_groups[0]
    rule = {key: group[key] for key in ("lr", "momentum", "dampening", "weight_decay", "nesterov", "maximize")}
    before = [columns(p, optimizer) for p in parameters]
    for p, gradient in zip(parameters, gradients, strict=True):
        assign(p, gradient)
    optimizer.step()
    for p, gradient, (old, buffer) in zip(parameters, gradients, before, strict=True):
        wrong = torch_differing(
            (old, patterns(gradient), buffer), columns(p, optimizer), first=buffer is None,
            dtype=NAMES[types.parameter], grad_dtype=NAMES[types.gradient], state_dtype=NAMES[types.state], **rule)
        assert wrong == [], (p.shape, p.stride(), rule)
        assert patterns(p.grad) == patterns(gradient)
    return sum(p.numel() for p in parameters)


def widen(optimizer: torch.optim.Optimizer, parameters: list[Tensor], dtype: torch.dtype, draw: Any) -> None:
    """Load momentum buffers of `dtype`; loading keeps a wider one."""
    saved = optimizer.state_dict()
    saved["state"] = {k: {"momentum_buffer": drawn(list(p.shape), dtype, draw)} for k, p in enumerate(parameters)}
    optimizer.load_state_dict(saved)


@pytest.mark.parametrize("rule", RULES, ids=["-".join(map(str, rule.values())) for rule in RULES])
@pytest.mark.parametrize("types", TYPES, ids=IDS)
def test_every_element_is_rule_t(types: Types, rule: dict[str, Any]) -> None:
    number = 100 * TYPES.index(types) + RULES.index(rule)
    draw, generator = random.Random(number), torch.Generator().manual_seed(number)
    shapes = [[draw.randint(1, 70)], [33], [3, 7], [2, 3, 1, 2], []]
    places: list[Callable[[Tensor], Tensor]] = [offset, flat]
    places += [draw.choice(layouts(len(shape))) for shape in shapes[2:]]
    parameters = [place(drawn(shape, types.parameter, generator)).requires_grad_()
                  for place, shape in zip(places, shapes, strict=True)]
    optimizer = samestep.optim.SGD(parameters, lr=0.1, **rule)
    if types.state != types.parameter:
        widen(optimizer, parameters, types.state, generator)
    checked = 0
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = (0.1, 1e-8, 0.0, 1e5)[step]
        if rule["momentum"]:
            optimizer.param_groups[0]["momentum"] = (0.9, 0.0, 0.95, 1e-8)[step]
        gradients = [place(drawn(shape, types.gradient, generator))
                     for place, shape in zip(places, shapes, strict=True)]
        checked += checked_step(optimizer, parameters, gradients, types)
    # 10 combinations of dtypes x 20 rules: more than 50,000 elements, and as many of momentum.
    assert checked >= STEPS * (33 + 21 + 12 + 2)


def test_the_rules_are_enough_for_fifty_thousand_elements() -> None:
    assert len(TYPES) * len(RULES) * STEPS * (33 + 21 + 12 + 2) > 50_000


@pytest.mark.parametrize("types", TYPES[:6], ids=IDS[:6])
def test_vector_bodies_tails_and_blocks_are_rule_t(types: Types) -> None:
    generator = torch.Generator().manual_seed(TYPES.index(types))
    p = offset(drawn([4109], types.parameter, generator)).requires_grad_()
    optimizer = samestep.optim.SGD([p], lr=0.3, momentum=0.9, dampening=0.1, weight_decay=0.01)
    if types.state != types.parameter:
        widen(optimizer, [p], types.state, generator)
    for _ in range(2):
        checked_step(optimizer, [p], [offset(drawn([4109], types.gradient, generator))], types)


@pytest.mark.parametrize("types", TYPES, ids=IDS)
def test_layout_and_threads_change_no_bit(types: Types) -> None:
    results = []
    for place, threads in ((flat, 1), (offset, 3), (strided, 2)):
        generator = torch.Generator().manual_seed(7)
        before = samestep.get_num_threads()
        samestep.set_num_threads(threads)
        try:
            p = place(drawn([20_011], types.parameter, generator)).requires_grad_()
            optimizer = samestep.optim.SGD([p], lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True)
            for _ in range(2):
                assign(p, place(drawn([20_011], types.gradient, generator)))
                optimizer.step()
        finally:
            samestep.set_num_threads(before)
        results.append([p.detach(), optimizer.state[p]["momentum_buffer"]])
    for one, other in itertools.product(results[:1], results[1:]):
        for x, y in zip(one, other, strict=True):
            different = bits(x) != bits(y)
            assert not (different & ~(x.isnan() & y.isnan())).any()


@pytest.mark.parametrize("dtype", HALVES)
def test_hyperparameters_stay_float32(dtype: torch.dtype) -> None:
    # In float16 1e-8 is zero and 1e5 is infinite; in bfloat16 0.999 is 1.
    p = torch.ones(3, dtype=dtype, requires_grad=True)
    optimizer = samestep.optim.SGD([p], lr=1e5)
    p.grad = torch.full_like(p, 1e-5)
    optimizer.step()
    expected = torch.ones(3) - 1e5 * p.grad.float()
    assert torch.equal(p.detach(), expected.to(dtype))
    buffer = torch.full((3,), 100.0, dtype=dtype)
    optimizer = samestep.optim.SGD([p], lr=0.0, momentum=0.99)
    optimizer.state[p]["momentum_buffer"] = buffer
    p.grad = torch.zeros_like(p)
    optimizer.step()
    assert torch.equal(buffer, torch.full((3,), 99.0).to(dtype))


PAYLOADS = {torch.float32: [0x7FFFFFFF, -1, 0x7F800001, 0x7F80FFFF, 0x7FC00000], torch.float16: [0x7FFF, -1, 0x7C01]}


@pytest.mark.parametrize("grad_dtype", PAYLOADS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_nan_of_a_wider_gradient_stays_nan_whatever_its_payload(dtype, grad_dtype, momentum):
    integers = torch.int32 if grad_dtype is torch.float32 else torch.int16
    patterns = torch.tensor(PAYLOADS[grad_dtype] * 20, dtype=integers)  # a vector body and a tail
    parameter = torch.ones(len(patterns), dtype=dtype)
    buffers = [None]
    samestep.optim.sgd([parameter], [patterns.view(grad_dtype)], buffers, weight_decay=0, momentum=momentum, lr=0.1,
                       dampening=0, nesterov=False, maximize=False)
    assert parameter.isnan().all()
    assert buffers[0] is None or buffers[0].isnan().all()
