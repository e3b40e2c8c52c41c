"""Which kernel a call takes and how its work is split (rules K1, K2), on the cpu engine or on a device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from samestep import tiling
from samestep.contract import DTYPES, check_attributes, check_order, refuse
from samestep.engine import cpu
from samestep.engine.batch import Kernel
from samestep.graph.trace import TENSORS, Trace, trace
from samestep.shapes import infer


class Soc(NamedTuple):
    """A device: its vector cores, and the bytes of unified buffer (UB) each of them has."""

    cores: int
    ub_bytes: int


SOCS = {"ascend950": Soc(64, 245_760)}
_BLOCK_ALIGN = 512  # elements; no core is woken for less
_VECTOR = 64  # float32 numbers in a vector register: a run holds a multiple, and every buffer then begins on 32 bytes
_SCALARS = 64  # bytes for learning_rate and momentum
_DEPTH = 2  # buffers of each tensor that is copied in or out, so that copying and arithmetic overlap

_WRITTEN = 3  # parameters, accum, stat

# the elementwise tiling fields: where each stands in a Split
FIELDS = {
    "dim0": "dim0", "coreNum": "core_num", "ubFormer": "ub_former", "blockFormer": "block_former",
    "blockNum": "block_num", "ubLoopOfFormerBlock": "ub_loop_of_former_block",
    "ubLoopOfTailBlock": "ub_loop_of_tail_block", "ubTailOfFormerBlock": "ub_tail_of_former_block",
    "ubTailOfTailBlock": "ub_tail_of_tail_block",
}


class UnifiedBuffer(NamedTuple):
    """What a core's unified buffer holds at once, for every element of a run.

    ``tensor_buffers`` of the dtype for copying in and out, ``float32_buffers`` for values between; of each there are
    ``elements`` (the field elemNum). All together take ``bytes_per_element``.
    """

    tensor_buffers: int
    float32_buffers: int
    bytes_per_element: int
    elements: int


class Plan(NamedTuple):
    """The kernel of a call, by the name of `samestep.engine.cpu.kernel_name`, and the split of its work.

    ``ub`` is None for the cpu engine.
    """

    kernel: str
    key: tiling.TilingKey
    split: tiling.Split
    ub: UnifiedBuffer | None

    def elementwise_tiling(self) -> dict[str, int]:
        """The split under the names of the elementwise tiling; only for a device."""
        if self.ub is None:
            raise ValueError("the cpu engine has no elementwise tiling; plan for a device: soc='ascend950'")
        fields = {name: getattr(self.split, field) for name, field in FIELDS.items()}
        return {**fields, "elemNum": self.ub.elements, "scheMode": self.split.sch_mode}


def plan(
    shape: Sequence[int], dtype: str = "float32", *, dampening: float = 0.0, weight_decay: float = 0.0,
    nesterov: bool = False, order: str = "spec", soc: str | None = None,
) -> Plan:
    """The kernel and split that `samestep.sgd_` takes for tensors of a shape, or with ``soc`` those for that device.

    Arguments: ``shape`` with all dimensions known; ``soc`` a name from `SOCS`; the others as for `samestep.sgd_`. The
    split of the cpu engine is that of its number of threads now, see `samestep.set_num_threads`.

    Raises `ContractError` as `samestep.infer` and `samestep.sgd_` do, ``wrong_type`` for an unknown dimension;
    ValueError for an unknown device.
    """
    check_order(order)
    spec = infer(shape, shape, (1,), shape, (1,), shape, dtype=dtype, dampening=dampening, weight_decay=weight_decay,
                 nesterov=nesterov)
    if min(spec.shape) < 0:
        refuse("wrong_type", "shape", f"{spec.shape}, of unknown length", "known lengths: a split needs them")
    if soc is not None and soc not in SOCS:
        raise ValueError(f"the device {soc!r} is not known; known are {', '.join(SOCS)}")
    attributes = check_attributes(dampening, weight_decay, nesterov)
    total, ub = math.prod(spec.shape), None
    if soc is None:
        split = cpu.plan(total, dtype)
    else:
        ub = unified_buffer(SOCS[soc], trace(tiling.select(0, attributes), order), dtype)
        split = device_split(total, SOCS[soc], ub)
    key = tiling.select(split.sch_mode, attributes)
    return Plan(cpu.kernel_name(Kernel(order, dtype, key)), key, split, ub)


def device_split(total: int, soc: Soc, ub: UnifiedBuffer) -> tiling.Split:
    """`total` elements over the cores of a device, in runs that fit the unified buffer."""
    split = tiling.split(total, soc.cores, block_least=_BLOCK_ALIGN, block_align=_BLOCK_ALIGN, ub_former=ub.elements)
    return split._replace(ub_former=min(ub.elements, split.block_former))


def unified_buffer(soc: Soc, steps: Trace, dtype: str) -> UnifiedBuffer:
    """How many elements of a kernel fit a core's unified buffer at once, from the values its steps keep alive."""
    read = [name for name in TENSORS if name in steps.reads]
    tensor_buffers = _DEPTH * (len(read) + _WRITTEN)
    float32_buffers = most_alive(steps, dtype)
    size = tensor_buffers * DTYPES[dtype] + float32_buffers * DTYPES["float32"]
    elements = (soc.ub_bytes - _SCALARS) // size
    return UnifiedBuffer(tensor_buffers, float32_buffers, size, elements - elements % _VECTOR)


def most_alive(steps: Trace, dtype: str) -> int:
    """The most float32 tensors that are needed at one time: results not yet used up, and what was widened for them.

    A tensor of 16-bit numbers is widened when it is first used. A result may take the place of an operand that is not
    needed again. The two results of the formula stay to the end, where they are rounded and stored.
    """
    widened = set(TENSORS) if dtype != "float32" else set()
    last = {operand: k for k, step in enumerate(steps.steps) for operand in (step.left, step.right)}
    last[steps.p_out] = last[steps.accum_t] = len(steps.steps)
    alive: set[str] = set()
    most = 0
    for k, step in enumerate(steps.steps):
        alive |= {step.left, step.right} & widened
        most = max(most, len(alive))
        alive = {name for name in alive if last[name] > k} | {step.name}
        most = max(most, len(alive))
    return most
