"""What is to be updated with which hyperparameters: the one thing that the paths of the update are given."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch


class Work(NamedTuple):
    """Tensor sets of one parameter group on one device, ready to be updated: nothing in them can be refused any more.

    `engine` is "cpu", "gpu", or "" for torch's operations. `lr` is a number, or a one-element tensor on a CUDA device.

    The four lists are of equal length and in equal order. `buffers` holds the momentum buffers (in dialect cann:
    accum), all None without momentum; where `first` is true the buffer's memory is uninitialised and is only written.
    `stats` is for dialect cann. A set has one shape; layouts and dtypes may be mixed. Gradients are only read.

    `memory` is a dict kept from step to step for as long as every tensor is contiguous and nothing but the gradients'
    addresses can have changed: dtypes, shapes and the addresses of all that is written are those of the last step.
    Then `addresses` holds, for parameters, gradients, buffers and stats in turn where they are there, an int64 array.
    """

    parameters: list[torch.Tensor]
    gradients: list[torch.Tensor]
    buffers: list[torch.Tensor | None]
    first: list[bool]
    lr: Any
    momentum: float
    dampening: float
    weight_decay: float
    nesterov: bool
    maximize: bool
    stats: list[torch.Tensor] | None = None
    dialect: str = "torch"
    order: str = "spec"
    memory: dict[str, Any] | None = None
    addresses: list[Any] | None = None
    engine: str = "cpu"
