"""What is to be updated with which hyperparameters: the one thing that the paths of the update are given."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch


class Known(NamedTuple):
    """What a step need not find out again: dtypes (None where they are mixed), the kernel's table, what is written.

    The table has the gradients' addresses of this step.
    """

    dtypes: tuple[str, ...] | None
    table: Any
    written: list[torch.Tensor]


class Work(NamedTuple):
    """Tensor sets of one parameter group on one device, ready to be updated: nothing in them can be refused any more.

    `engine` is "cpu", "gpu", or "" for torch's operations. `lr` is a number, or a one-element tensor on a CUDA device.

    The four lists are of equal length and in equal order. `buffers` holds the momentum buffers (in dialect cann:
    accum), all None without momentum; where `first` is true the buffer's memory is uninitialised and is only written.
    `stats` is for dialect cann. A set has one shape; layouts and dtypes may be mixed. Gradients are only read.

    `known` is there if all of this is that of the last step but for the gradients, every tensor contiguous.
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
    known: Known | None = None
    engine: str = "cpu"
