"""The quick way through a step: one compiled call for a group in which only gradients and learning rate have changed.

It is there for a single group on the CPU (engine/plain_step.py); for all else the ordinary way is as quick, or has to
look more closely.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from torch import Tensor

from samestep.engine import cpu, threads
from samestep.engine.python_function import addresses_of, function_of, method_of
from samestep.engine.quick import layout_is_known
from samestep.optim import cpu_path
from samestep.optim.exchange import Group
from samestep.optim.work import Work

_NAMES = ("params", "lr", "momentum", "dampening", "weight_decay", "nesterov", "maximize", "dialect", "order")
_PLAIN = (float, int, bool, str, type(None))  # types whose objects cannot change

Step = Callable[[Mapping[str, Any], Mapping[Tensor, Any]], bool]


def step_of(asked: Any, work: Work, group: Mapping[str, Any]) -> tuple[Step, Any] | None:
    """A function of the group's dict and the optimizer's state: True if it has done the step, False if nothing.

    What is written has still to be marked. The second value has to live as long as the function. `work` is what the
    last step did with the hyperparameters that the group still has. None where there is no quick way.
    """
    values, known = [group.get(name) for name in _NAMES], work.known
    if known is None or known.dtypes is None or not isinstance(asked, Group) or work.engine != "cpu":
        return None
    total = int(known.table[-1][4])
    split = cpu.plan(total, known.dtypes[0])
    team = threads.team() if split.block_num > 1 else (0, 0, 0)
    if (team is None or type(group["lr"]) is not float or {type(x) for x in values[2:]}.difference(_PLAIN)
            or not layout_is_known()):
        return None
    rule = cpu_path.rule_of(work)
    kernel = rule.kernel(known.dtypes, split.sch_mode)
    stream = cpu.streams(total, kernel.dtype, kernel.key.dampening)
    lr, held, single = np.array([work.lr]), *asked.single_elements()
    own = [np.array(column, np.int64) for column in (
        [id(name) for name in _NAMES], [id(group[name]) if name in group else 0 for name in _NAMES], single,
        [id(x) for x in held])]
    is_cann = work.dialect == "cann"  # whose learning rate was rounded already: it has to be the same object
    at = _compiled()
    words: dict[int, Any] = {
        at.FUNCTION_TABLE: _functions().ctypes.data, at.JOB: asked.job, at.FLOAT: id(float), at.TRUE: id(True),
        at.FALSE: id(False), at.STATE: int(work.buffers[0] is not None), at.IS_NEG: id(Tensor.is_neg),
        at.NAMES: own[0].ctypes.data, at.VALUES: own[1].ctypes.data, at.SINGLE: own[2].ctypes.data,
        at.SINGLE_COUNT: len(single), at.HELD: own[3].ctypes.data, at.HELD_COUNT: len(held),
        at.SCALARS: rule.learning_rate if is_cann else lr.ctypes.data, at.MOMENTUM: rule.momentum,
        at.KERNEL: cpu.kernel_address(kernel, cpu.is_narrow(kernel, stream)), at.SIZES: cpu.sizes_of(kernel),
        at.STREAM: int(stream), at.RUN: split.ub_former,
        at.TOTAL: total, at.LR_SAME: int(is_cann), at.PIECE: cpu.piece(split, kernel.dtype),
        at.THREADS: split.block_num, at.PARALLEL: team[0], at.THREAD_NUM: team[1], at.NUM_THREADS: team[2],
        at.REGION: at.walk.REGION,
    }
    table = np.zeros(at.WORDS, np.int64)
    table[list(words)] = list(words.values())
    table.view(np.float64)[[at.UNDAMPED, at.DECAY]] = rule.dampening, rule.weight_decay
    # Not the rule itself, which knows the work, and so the gradients of this step.
    step = function_of(_method(), table)
    return (step if total < cpu.ONE_BLOCK else _with_threads(step)), (asked, rule.scalars, lr, own, values, held)


def _with_threads(step: Step) -> Step:
    """`step` as long as the number of threads is what it is now; it is 1 in a forked child, which has no team."""
    before, now = threads.get_num_threads(), threads.get_num_threads

    def same(group: Mapping[str, Any], state: Mapping[Tensor, Any]) -> bool:
        return now() == before and step(group, state)

    return same


@functools.cache
def _compiled() -> Any:
    from samestep.engine import cache

    return cache.build("plain_step", lambda _: importlib.import_module("samestep.engine.plain_step"))


@functools.cache
def _functions() -> Any:
    return np.array(addresses_of(_compiled().FUNCTIONS), np.int64)


@functools.cache
def _method() -> int:
    return method_of("step", _compiled().ADDRESS)
