"""Tensors of any layout: each element is updated once, where it lies, with scratch memory of bounded size."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import samestep.optim
from samestep.optim import layout
from torch_suite import differing, factors, flat, layouts, numbers, state_of, strided, transposed

MIB = 1 << 20


def numbered(shape: list[int], place: Callable[[Tensor], Tensor]) -> Tensor:
    """Every element holds its own number."""
    return place(torch.arange(torch.Size(shape).numel(), dtype=torch.float64).view(shape))


def expanded(values: Tensor) -> Tensor:
    return values.flatten()[:1].clone().expand(values.shape)


@functools.cache
def drawn_sets() -> list[tuple[list[int], list[Callable[[Tensor], Tensor]]]]:
    sets = []
    for seed in range(200):
        draw = random.Random(seed)
        shape = factors(draw.choice((1, 2, 5, 12, 64, 210, 4096)), draw.randint(1, 5), draw)
        sets.append((shape, [draw.choice(layouts(len(shape))) for _ in range(draw.randint(2, 4))]))
    piece = layout.PIECE
    big = [[3 * piece + 1], [2, piece], [200, 400], [64, 3, 30, 31], [piece + 1, 2], [2, 1, 40_001]]
    sets += [(shape, [place, flat, other]) for shape in big for place in layouts(len(shape))
             for other in layouts(len(shape))[-1:]]
    return sets


def test_pieces_cover_every_element_once_and_fit_together() -> None:
    for shape, places in drawn_sets():
        tensors = [numbered(shape, place) for place in places]
        written = [k % 2 == 0 for k in range(len(tensors))]
        seen = []
        for piece in layout.pieces(tensors, written):
            assert len(piece.parts) == len(piece.homes) == len(tensors)
            assert len({part.numel() for part in piece.parts}) == 1
            for part in piece.parts:
                assert part.is_contiguous()
                assert torch.equal(part.flatten(), piece.parts[0].flatten())
            seen.append(piece.parts[0].flatten().clone())
        assert torch.equal(torch.cat(seen).sort().values, torch.arange(torch.Size(shape).numel(), dtype=torch.float64))


def test_what_is_copied_is_small_and_only_what_is_written_goes_home() -> None:
    for shape, places in drawn_sets():
        tensors = [numbered(shape, place) for place in places]
        memory = {x.untyped_storage().data_ptr() for x in tensors}
        written = [k % 2 == 0 for k in range(len(tensors))]
        for piece in layout.pieces(tensors, written):
            copied = [part for part in piece.parts if part.untyped_storage().data_ptr() not in memory]
            assert sum(part.untyped_storage().nbytes() for part in copied) <= MIB
            for part, home, is_written in zip(piece.parts, piece.homes, written, strict=True):
                is_copy = part.untyped_storage().data_ptr() not in memory
                assert (home is not None) == (is_copy and is_written)
                if home is not None:
                    assert home.untyped_storage().data_ptr() in memory
                    assert torch.equal(home, part)


def test_there_are_not_many_more_pieces_than_needed() -> None:
    for shape, places in drawn_sets():
        count = sum(1 for _ in layout.pieces([numbered(shape, place) for place in places], [False] * len(places)))
        assert count <= 1 + 4 * torch.Size(shape).numel() // layout.PIECE


def test_one_order_is_claimed_exactly_where_memory_says_so() -> None:
    claimed = 0
    for shape, places in drawn_sets():
        tensors = [numbered(shape, place) for place in places]
        contents = []
        for x in tensors:
            start, count = x.storage_offset(), x.numel()
            fits = start + count <= x.untyped_storage().nbytes() // x.element_size()
            contents.append(x.as_strided([count], [1], start).tolist() if fits else None)
        if layout.in_one_order(tensors):
            claimed += 1
            assert all(content == contents[0] is not None for content in contents)
            assert sorted(contents[0]) == list(range(tensors[0].numel()))
    assert claimed > 50


@pytest.mark.parametrize("shape", [[6, 7], [2, 3, 4, 5], [4, 1, 3, 3], [1, 1], [5]])
def test_dense_tensors_in_one_order_are_known_as_such(shape: list[int]) -> None:
    for place in layouts(len(shape)):
        alike = [numbered(shape, place) for _ in range(3)]
        if place not in (strided,) and place.__name__ != "windowed":
            assert layout.in_one_order(alike)
            assert layout.memory_order(alike[0]).is_contiguous()


def test_an_expanded_tensor_is_in_no_order() -> None:
    x = numbered([4, 5], expanded)
    assert not layout.in_one_order([x, x])
    assert not layout.in_one_order([numbered([4, 5], flat), x])
    assert not layout.in_one_order([x, numbered([4, 5], flat)])


def steps(make: Any, values: Tensor, gradients: list[Tensor], place: Any, gradient_place: Any) -> list[Tensor]:
    p = place(values).requires_grad_()
    optimizer = make([p], lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True, foreach=False)
    for gradient in gradients:
        p.grad = gradient_place(gradient)
        optimizer.step()
    return [p, *state_of(optimizer)]


@pytest.mark.parametrize("shape", [[0], [0, 3], [3, 0, 2], [1], [], [1, 1, 1], [1, 0, 1], [2, 1, 3, 1]])
def test_shapes_without_extent_are_as_in_torch(shape: list[int]) -> None:
    generator = torch.Generator().manual_seed(2)
    values, *gradients = (numbers(shape, torch.float32, generator) for _ in range(4))
    for place, gradient_place in itertools.product(layouts(len(shape)), repeat=2):
        theirs = steps(torch.optim.SGD, values, gradients, place, gradient_place)
        ours = steps(samestep.optim.SGD, values, gradients, place, gradient_place)
        assert len(ours) == 2
        assert differing(theirs, ours) == 0


@pytest.mark.parametrize("rank", [8, 25, 64, 70])
@pytest.mark.parametrize("order", ["flat", "reversed", "expanded"])
def test_many_axes(rank: int, order: str) -> None:
    shape = [1] * (rank - 4) + [2, 3, 2, 5]
    random.Random(rank).shuffle(shape)
    generator = torch.Generator().manual_seed(3)
    values, *gradients = (numbers(shape, torch.float32, generator) for _ in range(3))

    def reversed_axes(x: Tensor) -> Tensor:
        axes = list(reversed(range(rank)))
        return x.permute(axes).clone(memory_format=torch.contiguous_format).permute(axes)

    if order == "expanded":
        gradients = [flat(expanded(gradient)) for gradient in gradients]
    place = {"flat": flat, "reversed": reversed_axes, "expanded": expanded}[order]
    plain = steps(torch.optim.SGD, values.flatten(), [gradient.flatten() for gradient in gradients], flat, flat)
    ours = steps(samestep.optim.SGD, values, gradients, flat if order == "expanded" else reversed_axes, place)
    assert differing(plain, [flat(x.detach()).flatten() for x in ours]) == 0


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.zeros(1, 3).expand(4, 3), lambda: torch.zeros(()).expand(5),
        lambda: torch.zeros(2, 1).expand(2, 7), lambda: torch.zeros(2, 1, 3).expand(2, 50_000, 3),
    ],
    ids=["rows", "scalar", "columns", "large"],
)
@pytest.mark.parametrize("place", [flat, expanded])
def test_an_expanded_parameter_is_refused_as_by_torch(make: Callable[[], Tensor], place: Any) -> None:
    for kind in (torch.optim.SGD, samestep.optim.SGD):
        p = make().requires_grad_()
        other = torch.ones(3, requires_grad=True)
        optimizer = kind([{"params": [p]}, {"params": [other]}], lr=1.0)
        p.grad, other.grad = place(torch.ones(p.shape)), torch.ones(3)
        with pytest.raises(RuntimeError):
            optimizer.step()
        assert not p.detach().any()
        assert torch.equal(other, torch.ones(3))


def test_the_memory_between_the_elements_is_not_written() -> None:
    base = torch.full((70, 90), float("nan"))
    p = base[3:60:2, 5:80:3].fill_(1.0).requires_grad_()
    inside = torch.zeros(70, 90, dtype=torch.bool)
    inside[3:60:2, 5:80:3] = True
    optimizer = samestep.optim.SGD([p], lr=0.5, momentum=0.9)
    for _ in range(3):
        p.grad = torch.ones_like(p)
        optimizer.step()
    assert base[~inside].isnan().all()
    assert not base[inside].isnan().any()
    assert p.detach().unique().numel() == 1


@pytest.mark.parametrize("warm", [0, 3])
def test_a_layout_may_change_between_steps(warm: int) -> None:
    generator = torch.Generator().manual_seed(4)
    values, *gradients = (numbers([6, 6], torch.float32, generator) for _ in range(8))
    results = []
    for changes in (False, True):
        p = flat(values).requires_grad_()
        optimizer = samestep.optim.SGD([p], lr=0.1, momentum=0.9)
        for step, gradient in enumerate(gradients):
            p.grad = flat(gradient)
            if changes and step == warm:
                p.data = transposed(p.data)
            if changes and step == warm + 1:
                p.grad = transposed(gradient)
            if changes and step == warm + 2:
                p.data = strided(p.data)
            if changes and step == warm + 3:
                p.data = flat(p.data)
            optimizer.step()
        results.append([p, *state_of(optimizer)])
    assert differing(*results) == 0


@pytest.mark.parametrize("others", [0, 1, 70])
@pytest.mark.parametrize("what", ["parameter", "gradient", "buffer"])
def test_axes_may_be_swapped_in_place_between_steps(what: str, others: int) -> None:
    # The same object at the same address with the same shape, and yet every element has another place.
    generator = torch.Generator().manual_seed(5)
    values, gradient = (numbers([6, 6], torch.float32, generator) for _ in range(2))
    results = []
    for make in (torch.optim.SGD, samestep.optim.SGD):
        parameters = [torch.ones(2, requires_grad=True) for _ in range(others)]
        p = flat(values).requires_grad_()
        p.grad = flat(gradient)
        for other in parameters:
            other.grad = torch.ones(2)
        optimizer = make([*parameters, p], lr=0.1, momentum=0.9, foreach=False)
        for step in range(6):
            if step == 3:
                changed = {"parameter": p, "gradient": p.grad, "buffer": optimizer.state[p]["momentum_buffer"]}[what]
                changed.data = changed.data.T
            optimizer.step()
        results.append([p, *state_of(optimizer)])
    assert differing(*results) == 0


@pytest.mark.parametrize("others", [0, 1, 70])
def test_a_parameter_may_become_a_part_of_itself(others: int) -> None:
    parameters = [torch.ones(4, requires_grad=True) for _ in range(others + 1)]
    optimizer = samestep.optim.SGD(parameters, lr=1.0)
    for p in parameters:
        p.grad = torch.ones(4)
    optimizer.step()
    optimizer.step()
    whole = parameters[-1].data
    parameters[-1].data = whole[:2]
    parameters[-1].grad.data = parameters[-1].grad.data[:2]
    optimizer.step()
    assert whole.tolist() == [-2.0, -2.0, -1.0, -1.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
def test_a_buffer_has_a_dense_layout_like_its_parameter(dtype: torch.dtype) -> None:
    for place in layouts(4):
        p = place(torch.ones(2, 3, 4, 5, dtype=dtype)).requires_grad_()
        p.grad = expanded(torch.ones(2, 3, 4, 5, dtype=dtype))
        optimizer = samestep.optim.SGD([p], lr=0.1, momentum=0.9)
        optimizer.step()
        buffer = optimizer.state[p]["momentum_buffer"]
        assert buffer.untyped_storage().nbytes() == buffer.numel() * buffer.element_size()
        assert layout.memory_order(buffer).is_contiguous()
