"""float32 and float64: the bits of torch.optim.SGD(foreach=False), whatever the flags, sizes, layouts and threads."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import samestep
import samestep.optim
from samestep.engine import cpu, quick
from torch_suite import bits, differing, factors, layouts, numbers, same_bits, state_of

STEPS = 20
CONFIGURATIONS, CHUNK = 520, 20
THREADS = (1, 2, 3, 8)
WIDE = (torch.float32, torch.float64)
SIZES = tuple(range(1, 71))


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before, torchs = samestep.get_num_threads(), torch.get_num_threads()
    torch.set_num_threads(1)  # the tensors are small
    yield
    samestep.set_num_threads(before)
    torch.set_num_threads(torchs)


class Case(NamedTuple):
    """One drawn training: hyperparameters of the constructor and of every step, and values for every tensor."""

    arguments: dict[str, Any]
    schedule: list[tuple[float, float]]
    parameters: list[Tensor]
    gradients: list[list[Tensor]]
    places: list[Callable[[Tensor], Tensor]]
    gradient_places: list[Callable[[Tensor], Tensor]]


def repeated(values: Tensor) -> Tensor:
    """The first number of every row, or the first row, expanded: no memory of its own for each element."""
    if values.dim() > 1 and values.shape[-1] > 1:
        return values[..., :1].clone().expand(values.shape)
    return values.flatten()[:1].clone().expand(values.shape) if values.dim() else values.clone()


def draw_case(number: int) -> Case:
    draw = random.Random(number)
    nesterov = draw.random() < 0.3
    momentum = draw.choice((0.9, 0.99, 0.5, 1.0, 1.7, 1e-8, 1e-50) if nesterov else (0, 0.0, 0.9, 0.3, 1.0, 1e-8, -0.0))
    arguments = {
        "lr": draw.choice((0.1, 1e-3, 1.0, 0.0, 1e-40)),
        "momentum": momentum,
        "dampening": 0 if nesterov else draw.choice((0, 0, 0.1, 0.9, 1.0, 1.5, -0.5, 1e-9)),
        "weight_decay": draw.choice((0, 0, 1e-4, 0.5, 3.0, 1e-40)),
        "nesterov": nesterov,
        "maximize": draw.random() < 0.3,
    }
    changing = draw.random() < 0.6
    schedule = []
    for _ in range(STEPS):
        lr = draw.choice((0.1, 0.03, 1e-3, 1e-40, 0.0, 2.5, -1e-19, draw.random()))
        m = draw.choice((0.0, 0.9, 0.8, draw.random(), 1e-8)) if changing else momentum
        schedule.append((lr, m))
    sizes = [(SIZES[(3 * number + k) % len(SIZES)], dtype) for k in range(3) for dtype in WIDE]
    if number % 8 == 0:
        sizes.append((4109, WIDE[number // 8 % 2]))
    if number % 40 == 1:
        sizes.append((100_003, WIDE[number // 40 % 2]))
    generator = torch.Generator().manual_seed(number)
    case = Case(arguments, schedule, [], [], [], [])
    for index, (size, dtype) in enumerate(sizes):
        shape = [] if size == 1 and draw.random() < 0.5 else factors(size, draw.choice((1, 2, 3, 4)), draw)
        special = draw.random() < 0.3
        place = draw.choice(layouts(len(shape)))
        alike = draw.random() < 0.3
        gradient_place = place if alike else draw.choice([*layouts(len(shape)), repeated])
        case.parameters.append(numbers(shape, dtype, generator, special and index % 2 == 0))
        steps = [numbers(shape, dtype, generator, special) for _ in range(STEPS)]
        case.gradients.append([bare(gradient_place(values)) for values in steps])
        case.places.append(place)
        case.gradient_places.append(gradient_place)
    return case


def bare(values: Tensor) -> Tensor:
    return values.clone(memory_format=torch.contiguous_format)


def train(
    make: Callable[..., torch.optim.Optimizer], case: Case, as_drawn: bool = True, **more: Any
) -> Iterator[tuple[list[Tensor], torch.optim.Optimizer]]:
    """Parameters and optimizer after every step; in the drawn layouts, or all contiguous."""
    places = case.places if as_drawn else [bare] * len(case.places)
    gradient_places = case.gradient_places if as_drawn else [bare] * len(case.places)
    parameters = [place(values).requires_grad_() for place, values in zip(places, case.parameters, strict=True)]
    optimizer = make(parameters, **case.arguments, **more)
    for step, (lr, momentum) in enumerate(case.schedule):
        optimizer.param_groups[0].update(lr=lr, momentum=momentum)
        for p, place, values in zip(parameters, gradient_places, case.gradients, strict=True):
            p.grad = place(values[step])
        optimizer.step()
        yield parameters, optimizer


def test_every_layout_is_drawn() -> None:
    names = {place.__name__ for number in range(40) for place in draw_case(number).gradient_places}
    assert names == {"flat", "offset", "strided", "windowed", "transposed", "channels_last", "repeated"}


@pytest.mark.parametrize("chunk", range(CONFIGURATIONS // CHUNK))
def test_every_bit_is_that_of_torch_in_drawn_configurations(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if chunk % 2:  # the kernels for what lies past the caches
        monkeypatch.setattr(cpu, "last_cache", lambda: 0)
        monkeypatch.setattr(quick, "meet_team", lambda *arguments: None)  # it would remember the size
    compared = 0
    for number in range(chunk * CHUNK, (chunk + 1) * CHUNK):
        case = draw_case(number)
        flag = {"foreach": True} if number % 2 else {"fused": True}
        runs = [
            train(torch.optim.SGD, case, as_drawn=False, foreach=False),
            train(samestep.optim.SGD, case),
            train(samestep.optim.SGD, case, as_drawn=number % 4 < 2, **flag),
        ]
        for step in range(STEPS):
            results = []
            for run in runs:
                samestep.set_num_threads(THREADS[(number + len(results) + step) % len(THREADS)])
                results.append(next(run))
            (theirs, torchs), *others = results
            for ours, optimizer in others:
                assert differing(theirs, ours) == 0, (number, step, case.arguments)
                assert differing(state_of(torchs), state_of(optimizer)) == 0, (number, step, case.arguments)
            compared += sum(p.numel() for p in theirs)
    assert compared > CHUNK * STEPS * 6


@pytest.mark.parametrize("number", range(1000, 1024))
def test_torch_in_the_same_layout_has_the_same_bits(number: int) -> None:
    case = draw_case(number)
    # Of an expanded gradient torch multiplies and adds in two roundings, at some places of some shapes.
    case = case._replace(gradient_places=[bare if place is repeated else place for place in case.gradient_places])
    runs = zip(train(torch.optim.SGD, case, foreach=False), train(samestep.optim.SGD, case), strict=True)
    for step, ((theirs, torchs), (ours, optimizer)) in enumerate(runs):
        assert differing(theirs, ours) == 0, step
        assert differing(state_of(torchs), state_of(optimizer)) == 0, step


@pytest.mark.parametrize("dtype", WIDE)
@pytest.mark.parametrize("size", [1, 7, 70, 4109, 100_003])
def test_threads_and_place_in_the_list_change_no_bit(dtype: torch.dtype, size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    values, *gradients = (numbers([size], dtype, generator, special=True) for _ in range(4))
    results = []
    for threads in THREADS:
        samestep.set_num_threads(threads)
        for before in (0, 1, 3):
            parameters = [torch.ones(before + k, dtype=dtype, requires_grad=True) for k in range(before)]
            parameters.append(values.clone().requires_grad_())
            optimizer = samestep.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True)
            for gradient in gradients:
                for p in parameters:
                    p.grad = torch.ones_like(p)
                parameters[-1].grad = gradient.clone()
                optimizer.step()
            results.append([parameters[-1], optimizer.state[parameters[-1]]["momentum_buffer"]])
    for result in results[1:]:
        assert differing(results[0], result) == 0


@pytest.mark.parametrize("dtype", WIDE)
def test_without_momentum_a_buffer_keeps_every_bit(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(5)
    p = numbers([70], dtype, generator).requires_grad_()
    optimizer = samestep.optim.SGD([p], lr=0.1, momentum=0.9)
    p.grad = numbers([70], dtype, generator, special=True)
    optimizer.step()
    buffer = optimizer.state[p]["momentum_buffer"]
    # A signalling NaN: reading and writing it would set its quiet bit.
    quiet = bits(torch.tensor([float("nan")], dtype=dtype))
    signalling = {torch.float32: 0x7F800001, torch.float64: 0x7FF0000000000001}[dtype]
    buffer[:1] = torch.full_like(quiet, signalling).view(dtype)
    kept, version = buffer.clone(), buffer._version
    optimizer.param_groups[0]["momentum"] = 0.0
    for _ in range(3):
        optimizer.step()
    assert optimizer.state[p]["momentum_buffer"] is buffer
    assert same_bits(kept, buffer)
    assert buffer._version == version


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_parameters_have_the_bits_of_torch_on_real_pairs(dtype: torch.dtype) -> None:
    # On complex numbers themselves torch's loop rounds more often than its foreach and fused paths, which see pairs.
    for seed in range(20):
        draw = random.Random(seed)
        arguments = {"lr": 0.1, "momentum": draw.choice((0, 0.9)), "weight_decay": draw.choice((0, 0.01)),
                     "maximize": draw.random() < 0.5}
        place = draw.choice(layouts(2))
        generator = torch.Generator().manual_seed(seed)
        values, *gradients = (torch.randn(5, 3, dtype=dtype, generator=generator) for _ in range(6))
        pairs = torch.view_as_real(values.clone()).requires_grad_()
        theirs = torch.optim.SGD([pairs], foreach=False, **arguments)
        p = place(values).requires_grad_()
        ours = samestep.optim.SGD([p], **arguments)
        for gradient in gradients:
            pairs.grad = torch.view_as_real(gradient)
            p.grad = place(gradient).conj_physical().conj() if seed % 2 else place(gradient)
            theirs.step()
            ours.step()
        for one, other in zip([pairs, *state_of(theirs)], [p, *state_of(ours)], strict=True):
            assert differing([one], [torch.view_as_real(other.detach())]) == 0


@pytest.mark.parametrize("seed", range(40))
def test_whatever_happens_between_steps_the_bits_are_those_of_torch(seed: int) -> None:
    draw, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    shapes = [factors(draw.randint(1, 40), draw.choice((1, 2, 4)), draw) for _ in range(draw.choice((1, 2, 5, 80)))]
    shapes.append([0])
    dtypes = [draw.choice(WIDE) if seed % 2 else torch.float32 for _ in shapes]
    values = [numbers(shape, dtype, generator) for shape, dtype in zip(shapes, dtypes, strict=True)]
    theirs, ours = ([bare(value).requires_grad_() for value in values] for _ in range(2))
    torchs = torch.optim.SGD(theirs, lr=0.1, momentum=0.9, foreach=False)
    optimizer = samestep.optim.SGD(ours, lr=0.1, momentum=0.9)
    for step in range(30):
        calm = draw.random() < 0.4  # steps that are alike in all but the numbers
        for p, q in zip(theirs, ours, strict=True):
            events = ("new", "new", "kept", "added", "gone", "laid out", "data", "moved")
            happens = "new" if calm else draw.choice(events)
            gradient = numbers(p.shape, p.dtype, generator)
            place = draw.choice([*layouts(p.dim()), repeated]) if happens == "laid out" and p.numel() else bare
            if happens == "gone":
                p.grad = q.grad = None
            elif happens == "added" and p.grad is not None and q.grad.is_contiguous():
                p.grad += gradient
                q.grad += gradient
            elif happens == "data" and q.grad is not None:
                p.grad.data, q.grad.data = bare(gradient), bare(gradient)
            elif happens != "kept":
                p.grad, q.grad = bare(place(gradient)), place(gradient)
            if happens == "moved" and q.numel():
                q.data = draw.choice(layouts(q.dim()))(q.data)
        happens = "" if calm else draw.choice(("", "", "momentum", "loaded", "copied", "undone"))
        if happens == "momentum":
            torchs.param_groups[0]["momentum"] = optimizer.param_groups[0]["momentum"] = draw.choice((0.0, 0.8))
        elif happens == "loaded":
            torchs.load_state_dict(copy.deepcopy(torchs.state_dict()))
            optimizer.load_state_dict(optimizer.state_dict())
        elif happens == "copied":
            torchs.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        elif happens == "undone" and optimizer.state:
            one = draw.choice([k for k, q in enumerate(ours) if q in optimizer.state])
            del torchs.state[theirs[one]], optimizer.state[ours[one]]
        torchs.param_groups[0]["lr"] = optimizer.param_groups[0]["lr"] = draw.random() / 100
        torchs.step()
        optimizer.step()
        assert differing(theirs, ours) == 0, (step, happens)
        assert differing(state_of(torchs), state_of(optimizer)) == 0, (step, happens)
