"""The steps whose time is told over the number of tensors and of elements, each with the check of its bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from samestep import op
from samestep.bench import memory
from samestep.bench.one_case import RefusedError
from samestep.bench.peer import LR, Array, Case, Memory, Settings
from samestep.optim import SGD
from samestep.verify import patterns, vectorised

SETTINGS = Settings(momentum=0.9, weight_decay=1e-4)
DAMPENING = 0.1  # of the operator, so that it reads all four tensors
BYTES = 16  # an element's: the operator's four tensors; the optimizer's two, its buffer, and one that is put there
OF_A_TENSOR = 16  # elements, where the tensors are many
PICKED = 4096  # elements that are checked
SWEPT = 1 << 23  # elements of the longest steps that are repeated within a round


class Point(NamedTuple):
    """One step of so many `tensors` with so many `elements` together.

    `visit` is how many steps a round times. `check` raises RefusedError where elements picked at random have not the
    bits of the exact rule in each of three steps; the third is what all later ones repeat.
    """

    tensors: int
    elements: int
    visit: int
    step: Callable[[], object]
    check: Callable[[], None]


def of_tensors(counts: Sequence[int]) -> list[Point]:
    """Steps of the optimizer on so many tensors of 16 elements, each with memory of its own, as a model has them."""
    points = []
    for count in counts:
        held = _allocated("optim", ((OF_A_TENSOR,),) * count)
        points.append(_optimizer(held.parameters, held.gradient, max(3, min(20, 100_000 // count))))
    return points


def of_optimizer(sizes: Sequence[int]) -> list[Point]:
    """One optimizer for each size: parameters, gradients and buffers begin at the same places.

    Where memory lies can move a time by a third, and would bend the line where each size had memory of its own. The
    buffer is one that an optimizer has made, which asks for large pages.
    """
    held = _allocated("optim", ((max(sizes),),))
    p, g = held.parameters[0], held.gradient[0]
    whole = torch.nn.Parameter(torch.from_numpy(p))
    whole.grad = torch.from_numpy(g)
    optimizer = SGD([whole], lr=LR, momentum=SETTINGS.momentum)
    optimizer.step()
    buffer = optimizer.state[whole]["momentum_buffer"]
    return [_optimizer([p[:size]], [g[:size]], _visit(size), buffer[:size]) for size in sizes]


def of_operator(sizes: Sequence[int]) -> list[Point]:
    """`sgd_` on the first so many elements of the same four tensors; stat is 0 after the first step, as in use."""
    held = _allocated("op", ((max(sizes),),))
    columns = [column[0] for column in (held.parameters, held.gradient, held.accum, held.stat)]
    return [_operator([column[:size] for column in columns], held) for size in sizes]


def _allocated(suite: str, shapes: tuple[tuple[int, ...], ...]) -> Memory:
    return memory.allocate(Case(suite, "float32", "scaling", "scaling", SETTINGS, shapes))


def _optimizer(parameters: Sequence[Array], gradients: Sequence[Array], visit: int,
               place: torch.Tensor | None = None) -> Point:
    """A single parameter's buffer moves to `place` after the first step."""
    held = [torch.nn.Parameter(torch.from_numpy(x)) for x in parameters]
    for parameter, gradient in zip(held, gradients, strict=True):
        parameter.grad = torch.from_numpy(gradient)
    attributes: dict[str, Any] = {"lr": LR, "momentum": SETTINGS.momentum, "weight_decay": SETTINGS.weight_decay}
    optimizer = SGD(held, **attributes)
    size = parameters[0].size
    some, places = _picked(len(held), PICKED // OF_A_TENSOR), _picked(size, PICKED)

    def words(array_of: Callable[[int], Array]) -> Array:
        return np.concatenate([patterns.words_of(array_of(k), "float32")[places] for k in some])

    def buffer(k: int) -> Array:
        array: Array = optimizer.state[held[k]]["momentum_buffer"].numpy()
        return array

    def check() -> None:
        for turn in range(3):
            first = turn == 0
            p, g, b = words(parameters.__getitem__), words(gradients.__getitem__), None if first else words(buffer)
            optimizer.step()
            if first and place is not None:
                optimizer.state[held[0]]["momentum_buffer"] = place.copy_(optimizer.state[held[0]]["momentum_buffer"])
            expected = vectorised.torch(p, g, b, first=first, **attributes)
            got = words(parameters.__getitem__), words(buffer), words(gradients.__getitem__)
            _compare(f"samestep.optim.SGD, {len(held):,} tensors of {size:,} elements, step {turn + 1}",
                     (*expected, g), got)

    return Point(len(held), size * len(held), visit, optimizer.step, check)


def _operator(tensors: Sequence[Array], held: Memory) -> Point:
    p, g, a, s = tensors
    attributes: dict[str, Any] = {"weight_decay": SETTINGS.weight_decay, "dampening": DAMPENING}
    lr, m = (int(patterns.words_of(scalar, "float32")[0]) for scalar in (held.learning_rate, held.momentum))
    places = _picked(p.size, PICKED)

    def words() -> list[Array]:
        return [patterns.words_of(x, "float32")[places] for x in tensors]

    def step() -> None:
        op.sgd_(p, g, held.learning_rate, a, held.momentum, s, **attributes)

    def check() -> None:
        s.fill(1)
        for turn in range(3):
            before = words()
            step()
            expected = vectorised.cann(before[0], before[1], lr, before[2], m, before[3], dtype="float32", **attributes)
            _compare(f"sgd_, {p.size:,} elements, step {turn + 1}", (expected[0], before[1], *expected[1:]), words())

    return Point(1, p.size, _visit(p.size), step, check)


def _compare(what: str, expected: Sequence[Array | None], got: Sequence[Array]) -> None:
    wrong = sum(int(patterns.differs(words, found, "float32").sum())
                for words, found in zip(expected, got, strict=True) if words is not None)
    if wrong:
        raise RefusedError(f"{what}: {wrong:,} of {sum(map(len, got)):,} numbers looked at have other bits than the "
                           "rule, so nothing is timed")


def _visit(size: int) -> int:
    """A round takes about as long for every size, but no more than eight steps."""
    return max(1, min(8, SWEPT // size))


def _picked(size: int, most: int) -> list[int]:
    """Where to look: everywhere, or at `most` places at random and at both ends."""
    if size <= most:
        return list(range(size))
    return sorted({0, size - 1, *np.random.default_rng(0).integers(0, size, most).tolist()})
