"""The update on CUDA devices: one launch for all tensors of a group that share their dtypes and lie on one device.

Nothing here waits for a device. The walk over tensors is that of cpu_path.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from samestep.engine import gpu
from samestep.engine.batch import Batch
from samestep.optim import cpu_path
from samestep.optim.cpu_path import Rule
from samestep.optim.work import Work


def step(work: Sequence[Work], found_inf: Tensor | None = None) -> None:
    """Do all of `work`, in place (rule T, or rules O in dialect cann), and raise the written version counters.

    In dialect torch nothing is written on the device if `found_inf`, a float32 there, is not 0 then.
    """
    cpu_path.step_by(work, lambda item: _rule(item, found_inf))


def _rule(item: Work, found_inf: Tensor | None) -> Rule:
    device = item.parameters[0].device
    if item.dialect == "cann":
        dtype, bits = cpu_path.cann_scalars(item)
        lr, m = (gpu.scalar(pattern, dtype, str(device)) for pattern in bits)
        return cpu_path.cann_rule(item, (lr, m), lr.data_ptr(), m.data_ptr(), _Launch(str(device)))
    lr = item.lr.detach().to(device, non_blocking=True) if isinstance(item.lr, Tensor) else None
    found = None if found_inf is None else found_inf.to(device, torch.float32, non_blocking=True)
    return cpu_path.torch_rule(item, item.lr if lr is None else 0.0)._replace(run=_Launch(str(device), lr, found))


@dataclass(frozen=True)
class _Launch:
    """How a rule is run on a device."""

    device: str
    lr: Tensor | None = None
    found_inf: Tensor | None = None

    def __call__(self, rule: Rule, dtypes: tuple[str, ...], table: Any) -> None:
        split = gpu.plan(int(table[-1][4]), dtypes[0])
        kernel = rule.kernel(dtypes, split.sch_mode)
        gpu.run(Batch(kernel, table, rule.learning_rate, rule.momentum, rule.dampening, rule.weight_decay, split,
                      self.device), self.lr, self.found_inf)
