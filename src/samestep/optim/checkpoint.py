"""Loading state: copies, of the dtype they were saved in if that is wider, refused if they do not fit."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from samestep.optim import hyperparameters, sharded

STATE = {"torch": ("momentum_buffer",), "cann": ("accum", "stat")}


class Ready:
    """State of one parameter that is loaded already; torch's loading code passes it on as it is."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values


@contextmanager
def loading(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """While it lasts, `load_state_dict` loads state by the rules of this file.

    It runs as the last of the hooks before loading, so that it sees what the user's hooks made of the state_dict.
    """
    handle = optimizer.register_load_state_dict_pre_hook(_prepare)
    try:
        yield
    finally:
        handle.remove()


def unpack(optimizer: torch.optim.Optimizer) -> None:
    """Put what `_prepare` loaded in its place, and give groups of older checkpoints what they lack."""
    for key, value in optimizer.state.items():
        if isinstance(value, Ready):
            optimizer.state[key] = value.values
    defaults = {"nesterov": False, "maximize": False, "foreach": None, "differentiable": False, "fused": None}
    chosen = {name: optimizer.defaults.get(name, usual) for name, usual in (("dialect", "torch"), ("order", "spec"))}
    for group in optimizer.param_groups:
        for name, value in defaults.items():
            group.setdefault(name, value)
        hyperparameters.leave_out_usual(group)
    for name, value in {**defaults, **chosen}.items():
        optimizer.defaults.setdefault(name, value)


def name_of(group: Mapping[str, Any], group_index: int, index: int) -> str:
    """What errors call a parameter: its own name if it has one."""
    if "param_names" in group:
        return f"parameter {group['param_names'][index]!r}"
    return f"parameter {index} of group {group_index}"


def _prepare(optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]) -> dict[str, Any] | None:
    groups, saved = optimizer.param_groups, state_dict["param_groups"]
    if [len(group["params"]) for group in groups] != [len(group["params"]) for group in saved]:
        return None  # torch says what is wrong
    saved = [{**{name: ours[name] for name in ("dialect", "order") if name in ours}, **theirs}
             for ours, theirs in zip(groups, saved, strict=True)]
    state = dict(state_dict["state"])
    for group_index, (ours, theirs) in enumerate(zip(groups, saved, strict=True)):
        for index, (parameter, key) in enumerate(zip(ours["params"], theirs["params"], strict=True)):
            if isinstance(state.get(key), dict):
                name = name_of(ours, group_index, index)
                state[key] = Ready(_loaded(state[key], parameter, theirs.get("dialect", "torch"), name))
    return {**state_dict, "state": state, "param_groups": saved}


def _loaded(values: dict[str, Any], parameter: Tensor, dialect: str, name: str) -> dict[str, Any]:
    foreign = set(values) & {key for other, keys in STATE.items() if other != dialect for key in keys}
    if foreign:
        raise ValueError(f"the loaded state of {name} has {sorted(foreign)}, which dialect {dialect!r} does not use")
    return {key: _fitted(key, value, parameter, name) if key in STATE[dialect] and value is not None
            else copy.deepcopy(value) for key, value in values.items()}


def _fitted(key: str, value: Any, parameter: Tensor, name: str) -> Tensor:
    if not isinstance(value, Tensor):
        raise ValueError(f"the loaded {key} of {name} is no tensor but {type(value).__name__}")
    if value.shape != parameter.shape:
        raise ValueError(f"the loaded {key} of {name} has shape {tuple(value.shape)}, "
                         f"the parameter has {tuple(parameter.shape)}")
    if sharded.is_sharded(value) != sharded.is_sharded(parameter):
        raise ValueError(f"the loaded {key} of {name} and the parameter are not both DTensors")
    if value.is_complex() and not parameter.is_complex():
        raise ValueError(f"the loaded {key} of {name} has dtype {value.dtype}, the parameter {parameter.dtype}")
    dtype = torch.promote_types(value.dtype, parameter.dtype)
    return value.detach().to(device=parameter.device, dtype=dtype, copy=True)
