"""What the last step found out about a group, so that the next one need not ask every tensor everything again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, compress
from typing import Any

import torch
from torch import Tensor

from samestep.optim import checkpoint, cpu_path, exchange, guards, quick
from samestep.optim.guards import same
from samestep.optim.hyperparameters import Settings
from samestep.optim.plan import REAL, Plan
from samestep.optim.work import Known, Work


def _no(*_: Any) -> bool:
    return False


_TRIES = 8  # making `quickly` costs as much as ten steps that go without it


class Seen:
    """One group after a step: the parameters' dtypes, and the work to repeat if all of it was of the plain kind."""

    def __init__(self, plan: Plan, params: Sequence[Tensor], work: Work | None, state: Mapping[Tensor, Any]) -> None:
        """`work` is the only work that came of `plan`, or None; `params` are all parameters of the group.

        `state` is the optimizer's, with that of this step.
        """
        self.dtypes = {id(p): p.dtype for p in plan.parameters}
        self._params = list(params)  # also keeps alive what `dtypes` knows by id
        self._kind = _kind(plan.settings)
        self._work: Work | None = None
        # Given the group's dict and the optimizer's state: has it done the whole step, but for marking `written`?
        self.quickly: quick.Step = _no
        self._kept: Any = None
        self._tries = _TRIES
        if work is not None and _is_plain(plan, work):
            columns, written = cpu_path.columns_of(work)
            dtypes, table = cpu_path.table_of(columns)
            names = checkpoint.STATE[plan.settings.dialect][:len(columns) - 2]
            way = guards if exchange.functions() is None else exchange
            self._group = way.Group(params, columns, names, table, state)
            # A single set goes to the kernel as a list, which is quicker to read than an array.
            self._row = table[0].tolist() if len(table) == 1 else None
            known = Known(dtypes, table if self._row is None else [self._row],
                          list(chain.from_iterable(compress(columns, written))))
            self._table, self.written = table, known.written
            self._work = work._replace(gradients=[], first=[False] * len(work.parameters), known=known)

    def dtype_of(self, parameter: Tensor) -> torch.dtype | None:
        """The dtype a parameter had at the last step."""
        return self.dtypes.get(id(parameter))

    def again(self, settings: Settings, group: Mapping[str, Any], state: Mapping[Tensor, Any]) -> Work | None:
        """The work of this step, if it is that of the last with other numbers, or with new gradients of that kind."""
        work = self._work
        if work is None or self._kind != _kind(settings):
            return None
        gradients = self._group.gradients(group["params"], state)
        if gradients is None:
            return None
        if self._row is not None:
            self._row[1] = self._table.item(1)
        lr, momentum, dampening, weight_decay, nesterov, maximize, _, _ = settings
        return Work(work.parameters, gradients, work.buffers, work.first, lr, momentum, dampening, weight_decay,
                    nesterov, maximize, work.stats, work.dialect, work.order, work.known, work.engine)

    def make_quick(self, work: Work, group: Mapping[str, Any]) -> None:
        """After a repeated step: have `quickly` do the next ones, if this is the optimizer's only group.

        Made anew where a hyperparameter has changed that it takes for granted, but not for ever.
        """
        if self._tries and work.known is not None:
            self._tries -= 1
            self.quickly, self._kept = quick.step_of(self._group, work, group) or (_no, None)


def _kind(settings: Settings) -> tuple[Any, ...]:
    return settings.dialect, settings.order, settings.maximize, settings.momentum != 0


def _is_plain(plan: Plan, work: Work) -> bool:
    """Does the work have the user's own tensors, all contiguous, so that asking for them again gives the work?"""
    return (
        same(plan.parameters, work.parameters) and same(plan.gradients, work.gradients)
        and REAL.issuperset([p.dtype for p in plan.parameters])
        and all(all(map(Tensor.is_contiguous, column)) for column in cpu_path.columns_of(work)[0])
    )
