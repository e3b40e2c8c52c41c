"""Hyperparameters: what is refused when a group is made, and the numbers a step computes with.

Exception types and texts are those of `torch.optim.SGD`, so that code that catches them keeps working.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isnan
from typing import Any, NamedTuple

from torch import Tensor

from samestep.contract import check_attributes, check_order
from samestep.engine import gpu

DIALECTS = ("torch", "cann")


class Settings(NamedTuple):
    """The hyperparameters of one group for one step, as Python numbers; `lr` may be a tensor on a CUDA device."""

    lr: Any
    momentum: float
    dampening: float
    weight_decay: float
    nesterov: bool
    maximize: bool
    dialect: str
    order: str


def check(group: Mapping[str, Any]) -> None:
    """Refuse the hyperparameters of a group, or the constructor's, that make no sense.

    Raises ValueError; in dialect ``cann`` that is `ContractError` for what rule O4 refuses (a negative learning rate
    is computed there). NaN is refused in both dialects.
    """
    if group["dialect"] not in DIALECTS:
        raise ValueError(f"Invalid dialect: {group['dialect']!r} (known: {', '.join(map(repr, DIALECTS))})")
    check_order(group["order"])
    lr = group["lr"]
    if isinstance(lr, Tensor) and lr.numel() != 1:
        raise ValueError("Tensor lr must be 1-element")
    if group["dialect"] == "torch":
        _check_torch(group)
    _check_nan(lr, group["momentum"], group["dampening"], group["weight_decay"])
    if group["dialect"] == "cann":
        check_attributes(group["dampening"], group["weight_decay"], group["nesterov"])


def _check_torch(group: Mapping[str, Any]) -> None:
    lr, momentum, weight_decay = group["lr"], group["momentum"], group["weight_decay"]
    if lr < 0.0:
        raise ValueError(f"Invalid learning rate: {lr}")
    if momentum < 0.0:
        raise ValueError(f"Invalid momentum value: {momentum}")
    if weight_decay < 0.0:
        raise ValueError(f"Invalid weight_decay value: {weight_decay}")
    if group["nesterov"] and (momentum <= 0 or group["dampening"] != 0):
        raise ValueError("Nesterov momentum requires a momentum and zero dampening")


def _check_nan(lr: Any, momentum: Any, dampening: Any, weight_decay: Any) -> None:
    if lr != lr:  # noqa: PLR0124  # only NaN differs from itself
        raise ValueError(f"Invalid learning rate: {lr}")
    if momentum != momentum:  # noqa: PLR0124
        raise ValueError(f"Invalid momentum value: {momentum}")
    if dampening != dampening:  # noqa: PLR0124
        raise ValueError(f"Invalid dampening value: {dampening}")
    if weight_decay != weight_decay:  # noqa: PLR0124
        raise ValueError(f"Invalid weight_decay value: {weight_decay}")


def leave_out_usual(group: dict[str, Any]) -> None:
    """Give a group of dialect ``torch`` the keys that torch's groups have and no others.

    Distributed checkpoints look for every key that the optimizer's groups have.
    """
    if group.get("dialect", "torch") == "torch":
        group.pop("dialect", None)
        group.pop("order", None)


def check_flags(group: Mapping[str, Any]) -> None:
    """Refuse the combinations of `fused` that torch refuses; otherwise `foreach` and `fused` choose nothing."""
    if group["fused"] and group["differentiable"]:
        raise RuntimeError("`fused` does not support `differentiable`")
    if group["fused"] and group["foreach"]:
        raise RuntimeError("`fused` and `foreach` cannot be `True` together.")


def settings(group: Mapping[str, Any]) -> Settings:
    """The numbers of a group for the step at hand. Only NaN is refused: schedules may do the rest.

    Tensors are read, but for a learning rate that an engine reads on its device, where nobody looks for NaN.
    """
    momentum, dampening, weight_decay = _number(group["momentum"]), _number(group["dampening"]), _number(
        group["weight_decay"])
    lr = group["lr"]
    if type(lr) is not float:
        lr = lr.detach() if _stays_on_device(lr, group) else _number(lr)
    if isnan((lr if type(lr) is float else 0.0) + momentum + dampening + weight_decay):
        _check_nan(lr, momentum, dampening, weight_decay)
    return Settings(lr, momentum, dampening, weight_decay, bool(group["nesterov"]), bool(group["maximize"]),
                    group.get("dialect", "torch"), group.get("order", "spec"))


def _stays_on_device(lr: Any, group: Mapping[str, Any]) -> bool:
    return (isinstance(lr, Tensor) and lr.is_cuda and group.get("dialect", "torch") == "torch"
            and gpu.unavailable() is None)


def _number(value: Any) -> float:
    return value if type(value) is float else float(value.item() if isinstance(value, Tensor) else value)
