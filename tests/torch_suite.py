"""What the tests of the drop-in optimizer share: tensors in drawn layouts, and the comparison of bits."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

INTEGER = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
SPECIALS = (
    0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45, -1e-45, 1e-40, 1.17549435e-38, 5e-324, -1e-310, 3.4e38, -3.4e38,
    1.7e308, 65504.0, 6e-8, 1.0, -1.0,
)


def bits(tensor: Tensor) -> Tensor:
    """The bit patterns of a real or complex tensor, in its logical order."""
    tensor = tensor.detach()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return tensor.contiguous().view(INTEGER[tensor.element_size()])


def differing(ones: Iterable[Tensor], others: Iterable[Tensor]) -> int:
    """How many computed elements differ; every NaN is equal to every other."""
    return sum(_differing(one, other) for one, other in zip(ones, others, strict=True))


def _differing(one: Tensor, other: Tensor) -> int:
    assert one.dtype == other.dtype
    assert one.shape == other.shape
    different = bits(one) != bits(other)
    if not different.any():
        return 0
    real = [torch.view_as_real(x.detach()) if x.is_complex() else x.detach() for x in (one, other)]
    return int((different & ~(real[0].isnan() & real[1].isnan())).sum())


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Is every bit the same? For what must not have been written."""
    return one.dtype == other.dtype and torch.equal(bits(one), bits(other))


def state_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """All tensors of the state, in the order of the parameters."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return [value for p in parameters if p in optimizer.state for _, value in sorted(optimizer.state[p].items())]


def factors(size: int, count: int, draw: random.Random) -> list[int]:
    """A shape of `count` axes for `size` elements; some axes have one element."""
    shape = []
    for _ in range(count - 1):
        divisor = draw.choice([d for d in range(1, min(size, 200) + 1) if size % d == 0])
        shape.append(divisor)
        size //= divisor
    shape.append(size)
    draw.shuffle(shape)
    return shape


def strided(values: Tensor) -> Tensor:
    base = torch.zeros([*values.shape[:-1], 3 * values.shape[-1]], dtype=values.dtype)
    return base[..., 1::3].copy_(values)


def offset(values: Tensor) -> Tensor:
    base = torch.zeros(values.numel() + 7, dtype=values.dtype)
    return base[3 : 3 + values.numel()].view(values.shape).copy_(values)


def transposed(values: Tensor) -> Tensor:
    return values.transpose(0, -1).clone(memory_format=torch.contiguous_format).transpose(0, -1)


def channels_last(values: Tensor) -> Tensor:
    return values.clone(memory_format=torch.channels_last)


def windowed(values: Tensor) -> Tensor:
    """A dense order with gaps between the rows."""
    base = torch.zeros([*values.shape[:-1], values.shape[-1] + 2], dtype=values.dtype)
    return base[..., 1:-1].copy_(values)


def flat(values: Tensor) -> Tensor:
    return values.clone(memory_format=torch.contiguous_format)


def layouts(dimensions: int) -> list[Callable[[Tensor], Tensor]]:
    """Functions that copy a tensor of so many dimensions into another layout."""
    found: list[Callable[[Tensor], Tensor]] = [flat, offset]
    if dimensions > 0:
        found += [strided, windowed]
    if dimensions > 1:
        found.append(transposed)
    if dimensions == 4:
        found.append(channels_last)
    return found


def numbers(shape: Iterable[int], dtype: torch.dtype, generator: torch.Generator, special: bool = False) -> Tensor:
    """Ordinary numbers; with `special`, every fourth or so of them replaced by what is not ordinary."""
    shape = list(shape)
    values = torch.randn(shape, generator=generator, dtype=torch.float64)
    if special:
        chosen = torch.tensor(SPECIALS, dtype=torch.float64)[torch.randint(len(SPECIALS), shape, generator=generator)]
        values = torch.where(torch.rand(shape, generator=generator) < 0.25, chosen, values)
    return values.to(dtype)
