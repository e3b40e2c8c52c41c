"""The update by an engine, the cpu engine's: one call for all tensors of a group that share their dtypes.

gpu_path.py has the same walk with another engine in the rule.

What can be refused has been refused before; nothing here looks at values. Gradients are only read.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import operator
from collections.abc import Callable, Sequence
from itertools import chain, compress
from typing import Any, NamedTuple

import numpy as np
import torch

from samestep import tiling
from samestep.contract import Attributes, check_attributes
from samestep.engine import cpu
from samestep.engine.batch import Batch, Kernel
from samestep.optim import layout
from samestep.optim.work import Work
from samestep.rounding import round_number

_NAMES = {getattr(torch, name): name for name in cpu.SIZES}
_address = torch.Tensor.data_ptr
_length = torch.Tensor.numel
_contiguous = torch.Tensor.is_contiguous
_increment = torch.autograd.graph.increment_version
_dtype = operator.attrgetter("dtype")
_HUGE = 1 << 21  # bytes of a huge page
_MADV_HUGEPAGE = 14


class Rule(NamedTuple):
    """What a group of tensor sets shares: how to make its kernel, the scalars as the kernel reads them, the engine."""

    kernel: Callable[[tuple[str, ...], int], Kernel]
    scalars: Any  # keeps the memory of the two addresses alive
    learning_rate: int
    momentum: int
    dampening: float
    weight_decay: float
    run: Callable[[Any, tuple[str, ...], Any], None]  # of a rule, dtypes and a table


def step(work: Sequence[Work]) -> None:
    """Do all of `work`, in place (rule T, or rules O in dialect cann), and raise the written version counters."""
    step_by(work, rule_of)


def step_by(work: Sequence[Work], of: Callable[[Work], Rule]) -> None:
    """The same by the engine of the rules."""
    for item in work:
        if not item.parameters:
            continue
        if item.known is not None and item.known.dtypes is not None:
            rule = of(item)
            rule.run(rule, item.known.dtypes, item.known.table)
            mark(item.known.written)
            continue
        columns, written = columns_of(item)
        flags = item.first if item.dialect == "torch" else None
        if True in item.first and item.buffers[0] is not None:
            for buffer, first in zip(columns[2], item.first, strict=True):
                if first and buffer.is_cpu:
                    _on_huge_pages(buffer)
        rule = of(item)
        if not _run_flat(rule, item, columns, flags):
            _run_each(rule, columns, written, flags)
        mark(list(chain.from_iterable(compress(columns, written))))


def mark(tensors: list[torch.Tensor]) -> None:
    """Raise the version counters, in one call where torch can; tensors made in inference mode have none."""
    try:
        _increment(tensors)
    except (TypeError, RuntimeError):  # torch before 2.5 takes one tensor
        for x in tensors:
            if not x.is_inference():
                torch.autograd.graph.increment_version(x)


def columns_of(item: Work) -> tuple[list[list[torch.Tensor]], list[bool]]:
    """Parameters, gradients and state in the order of the kernel's table, and which of them are written."""
    columns, written = [item.parameters, item.gradients], [True, False]
    if item.buffers[0] is not None:
        columns.append(item.buffers)
        written.append(item.dialect == "torch" or item.momentum != 0)
    if item.stats is not None:
        columns.append(item.stats)
        written.append(item.momentum != 0)
    return columns, written


def rule_of(item: Work) -> Rule:
    """The rule of a work for the cpu engine."""
    return _cann(item) if item.dialect == "cann" else torch_rule(item, float(item.lr))


def torch_rule(item: Work, lr: float) -> Rule:
    """Rule T with the hyperparameters of `item`, but for `lr`."""
    given = (lr, item.momentum, item.dampening, item.weight_decay, bool(item.nesterov), bool(item.maximize))
    # A zero is not looked up: 0.0 and -0.0 are equal as keys, but not as factors.
    return _torch(*given) if lr else _torch.__wrapped__(*given)


@functools.lru_cache(maxsize=256)
def _torch(lr: float, m: float, dampening: float, weight_decay: float, nesterov: bool, maximize: bool) -> Rule:
    scalars = np.array([lr, m], np.float64)
    momentum, decayed = m != 0, weight_decay != 0

    @functools.cache
    def kernel(dtypes: tuple[str, ...], sch_mode: int) -> Kernel:
        key = tiling.TilingKey(sch_mode, nesterov and momentum, decayed, False)
        return Kernel("", dtypes[0], key, "torch", dtypes[1], dtypes[-1] if momentum else dtypes[0], momentum, maximize)

    at = scalars.ctypes.data
    return Rule(kernel, scalars, at, at + 8, 1 - dampening, weight_decay, _run)


def _cann(item: Work) -> Rule:
    dtype, bits = cann_scalars(item)
    scalars = np.array(bits, np.uint32 if cpu.SIZES[dtype] == 4 else np.uint16)
    at = scalars.ctypes.data
    return cann_rule(item, scalars, at, at + scalars.itemsize, _run)


def cann_scalars(item: Work) -> tuple[str, list[int]]:
    """The dtype of `item`, and the patterns of learning rate and momentum in it."""
    dtype = _NAMES[item.parameters[0].dtype]
    return dtype, [round_number(value, dtype)[1] for value in (item.lr, item.momentum)]


def cann_rule(item: Work, scalars: Any, learning_rate: int, momentum: int, run: Callable[..., None]) -> Rule:
    """Rule O with the attributes of `item` and scalars at two addresses."""
    attributes: Attributes = check_attributes(item.dampening, item.weight_decay, bool(item.nesterov))
    dtype = _NAMES[item.parameters[0].dtype]

    def kernel(dtypes: tuple[str, ...], sch_mode: int) -> Kernel:
        return Kernel(item.order, dtype, tiling.select(sch_mode, attributes))

    return Rule(kernel, scalars, learning_rate, momentum, attributes.dampening, attributes.weight_decay, run)


def _run_flat(rule: Rule, item: Work, columns: list[list[torch.Tensor]], flags: list[bool] | None) -> bool:
    """One engine call for all sets, if each column has one dtype and everything is contiguous; else False."""
    if not all(all(map(_contiguous, column)) for column in columns):
        return False
    dtypes, table = table_of(columns)
    if dtypes is None:
        return False
    if flags is not None:
        table[:, 3] = flags
    rule.run(rule, dtypes, table.tolist() if len(table) == 1 else table)
    return True


def table_of(columns: list[list[torch.Tensor]]) -> tuple[tuple[str, ...] | None, Any]:
    """The columns' dtypes, None where a column has two, and the kernel's table of tensors that are all contiguous."""
    n = len(columns[0])
    table = np.zeros((n, 5), np.int64)
    for k, column in enumerate(columns):
        table[:, k] = np.fromiter(map(_address, column), np.int64, n)
    np.cumsum(np.fromiter(map(_length, columns[0]), np.int64, n), out=table[:, 4])
    dtypes = [{*map(_dtype, column)} for column in columns]
    if max(map(len, dtypes)) > 1:
        return None, table
    return tuple([_NAMES[found.pop()] for found in dtypes]), table


def _run(rule: Rule, dtypes: tuple[str, ...], table: Any) -> None:
    split = cpu.plan(int(table[-1][4]), dtypes[0])
    cpu.run(Batch(rule.kernel(dtypes, split.sch_mode), table, rule[2], rule[3], rule[4], rule[5], split))


def _run_each(
    rule: Rule, columns: list[list[torch.Tensor]], written: list[bool], flags: list[bool] | None
) -> None:
    """The same for any mixture: sets that lie in one order together by dtypes, the others piece by piece."""
    rows: dict[tuple[str, ...], list[list[int]]] = {}
    for index, tensors in enumerate(zip(*columns, strict=True)):
        dtypes = tuple(_NAMES[x.dtype] for x in tensors)
        first = [] if flags is None else [int(flags[index])]
        if layout.in_one_order(tensors):
            rows.setdefault(dtypes, []).append(_row(tensors, first))
            continue
        for piece in layout.pieces([x.detach() for x in tensors], written):
            rule.run(rule, dtypes, [_row(piece.parts, first)])
            for part, home in zip(piece.parts, piece.homes, strict=True):
                if home is not None:
                    home.copy_(part)
    for dtypes, of_these in rows.items():
        table = np.array(of_these, np.int64)
        np.cumsum(table[:, 4], out=table[:, 4])
        rule.run(rule, dtypes, table)


def _row(tensors: Sequence[torch.Tensor], first: list[int]) -> list[int]:
    """A row of the kernel's table; without momentum the buffer's place is not looked at."""
    addresses = [x.data_ptr() for x in tensors]
    return [*addresses, *[0] * (4 - len(first) - len(addresses)), *first, tensors[0].numel()]


def _on_huge_pages(buffer: torch.Tensor) -> None:
    """Ask for 2 MiB pages before a large new buffer is touched: torch does not, and a step takes 0.9 of the time."""
    start = -(-buffer.data_ptr() // _HUGE) * _HUGE
    size = (buffer.data_ptr() + buffer.numel() * buffer.itemsize - start) // mmap.PAGESIZE * mmap.PAGESIZE
    if size >= _HUGE and _madvise() is not None:
        _madvise()(ctypes.c_void_p(start), ctypes.c_size_t(size), _MADV_HUGEPAGE)


@functools.cache
def _madvise() -> Any:
    """The C function, where the system has it; a refusal by the kernel costs nothing but the speed."""
    return getattr(ctypes.CDLL(None), "madvise", None)
