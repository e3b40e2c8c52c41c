"""Shape and dtype inference: what a graph knows before it has data (rules S1, S2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from samestep.contract import (
    INPUTS,
    UNKNOWN_DIM,
    UNKNOWN_RANK,
    Shape,
    check_attributes,
    check_dtypes,
    check_shapes,
    refuse,
)


class TensorSpec(NamedTuple):
    """Shape (with -1 for an unknown dimension, (-2,) for unknown rank) and dtype name of a tensor."""

    shape: Shape
    dtype: str


def infer(
    parameters: Sequence[int],
    gradient: Sequence[int],
    learning_rate: Sequence[int],
    accum: Sequence[int],
    momentum: Sequence[int],
    stat: Sequence[int],
    *,
    dtype: str | Sequence[str] = "float32",
    dampening: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
) -> TensorSpec:
    """Shape and dtype of the operator's one output, from the shapes of its six inputs.

    Arguments: six shapes as tuples of ints, -1 for an unknown dimension, ``(-2,)`` for an unknown rank; ``dtype`` one
    of float32, float16, bfloat16, or six names in input order; the three attributes.

    Returns the shape and dtype of ``parameters`` (rule S1). Raises `ContractError` with the codes the operator itself
    would raise: ``wrong_type``, ``unsupported_dtype``, ``dtype_mismatch``, ``rank_out_of_range``, ``null_input``,
    ``shape_mismatch``, ``scalar_shape``, ``attribute_value_out_of_range``.
    """
    given = (parameters, gradient, learning_rate, accum, momentum, stat)
    shapes = tuple(_shape(name, shape) for name, shape in zip(INPUTS, given, strict=True))
    dtypes = [dtype] * len(INPUTS) if isinstance(dtype, str) else dtype
    names = isinstance(dtypes, (list, tuple)) and all(isinstance(name, str) for name in dtypes)
    if not names or len(dtypes) != len(INPUTS):
        refuse("wrong_type", "dtype", repr(dtype), "one dtype name, or six in input order")
    check_dtypes(INPUTS, tuple(dtypes))
    check_shapes(INPUTS, shapes, 1)
    check_attributes(dampening, weight_decay, nesterov)
    return TensorSpec(shapes[0], dtypes[0])


def _shape(name: str, shape: Sequence[int]) -> Shape:
    if isinstance(shape, (tuple, list)) and all(type(dim) is int for dim in shape):
        known = tuple(shape)
        if known == UNKNOWN_RANK or all(dim >= UNKNOWN_DIM for dim in known):
            return known
    refuse("wrong_type", name, f"shape {shape!r}", "a tuple of lengths, -1 for an unknown one, or (-2,)")
