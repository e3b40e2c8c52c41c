"""The update by torch's own operations: for devices without an engine, and for graphs of autograd (rule T, rules O)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from samestep import formula
from samestep.optim.work import Work

_rule_torch: Any = formula.torch
_rule_cann: Any = formula.cann


def step(work: Sequence[Work]) -> None:
    """Do all of `work`, in place; the bits are those of torch's operations on that device."""
    for item in work:
        stats: Sequence[Tensor | None] = item.stats or [None] * len(item.parameters)
        for p, g, b, s, first in zip(item.parameters, item.gradients, item.buffers, stats, item.first, strict=True):
            p_out, b_out, s_out = update(item, p, g, b, s, first, item.lr, item.weight_decay)
            for place, value in ((b, b_out), (s, s_out), (p, p_out)):
                if place is not None and value is not None and value is not place:
                    place.copy_(value)


def update(
    item: Work, p: Tensor, g: Tensor, b: Tensor | None, s: Tensor | None, first: bool, lr: Any, weight_decay: Any,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """New parameter, buffer and stat of one set, in the type of the arithmetic; nothing is written.

    None, or the very tensor given, stands for what keeps its value. `lr` and `weight_decay` may be one-element
    tensors: those that require gradients get them.
    """
    wide = torch.promote_types(torch.promote_types(p.dtype, g.dtype), torch.float32)
    wide = torch.promote_types(wide, b.dtype) if b is not None else wide
    if isinstance(weight_decay, Tensor) and weight_decay.requires_grad:
        p = p.clone()  # autograd keeps it, and the caller overwrites the original
    if item.dialect == "cann":
        assert b is not None
        assert s is not None
        return _cann(item, p, g, b, s, lr)
    momentum = item.momentum != 0 and b is not None
    p_out, b_out = _rule_torch(
        p.to(wide), g.to(wide), None if b is None or first else b.to(wide), _scalar(-lr), item.momentum,
        1 - item.dampening, _scalar(weight_decay), _fma, item.maximize, _is_nonzero(weight_decay), momentum,
        item.nesterov, first,
    )
    return p_out, b_out if momentum else None, None


def _cann(
    item: Work, p: Tensor, g: Tensor, a: Tensor, s: Tensor, lr: Any,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    lr = (lr.reshape(()) if isinstance(lr, Tensor) else torch.tensor(lr, dtype=torch.float64)).to(p.dtype).float()
    m, d, wd = torch.tensor(item.momentum, dtype=torch.float64).to(p.dtype).item(), item.dampening, item.weight_decay
    d, wd = torch.tensor([d, wd], dtype=torch.float64).float().tolist()
    lr = lr if lr.requires_grad else lr.item()
    p_out, accum = _rule_cann(p.float(), g.float(), lr, a.float(), m, s.float(), d, wd, 1, item.nesterov, wd != 0,
                               d != 0, item.order == "ascend950")
    return (p_out, accum, torch.zeros_like(s)) if m != 0 else (p_out, None, None)


def _fma(x: Any, y: Tensor, z: Tensor) -> Tensor:
    """x*y + z; one rounding where torch's addition with a factor has one."""
    if isinstance(x, Tensor):
        return torch.addcmul(z, y, x.to(z.dtype))
    return torch.add(z, y, alpha=x)


def _scalar(value: Any) -> Any:
    """A tensor only where autograd needs one."""
    if isinstance(value, Tensor):
        return value.reshape(()) if value.requires_grad else value.item()
    return value


def _is_nonzero(value: Any) -> bool:
    return bool(value != 0)
