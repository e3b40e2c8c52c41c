"""torch's ways of doing a step of `torch.optim.SGD`, for suite "optim".

All peers that are torch optimizers, ours too, step the very same Parameter objects with the very same gradients: a user
has one set of them. Each keeps momentum buffers of its own.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from samestep.bench.memory import numpy_type
from samestep.bench.peer import Array, Case, Memory, Peer, Prepared, Settings, Written
from samestep.bench.peers import no_objection, not_installed, op_torch

Make = Callable[[list[Any], Settings], Any]


class Shared:
    """The parameters of a `Memory` as torch's Parameter objects, with their gradients, both over its arrays."""

    def __init__(self, memory: Memory) -> None:
        import torch

        self.arrays = memory.parameters  # alive as long as this is, so that its id names no other list
        self.parameters = [torch.nn.Parameter(op_torch.tensor_over(array)) for array in memory.parameters]
        for parameter, array in zip(self.parameters, memory.gradient, strict=True):
            parameter.grad = op_torch.tensor_over(array)


_shared: weakref.WeakValueDictionary[int, Shared] = weakref.WeakValueDictionary()


def shared(memory: Memory) -> Shared:
    """The tensors of `memory`: the same ones for as long as a peer holds on to them."""
    found = _shared.get(id(memory.parameters))
    if found is None:
        found = _shared[id(memory.parameters)] = Shared(memory)
    return found


def array_of(tensor: Any) -> Array:
    """The memory of a tensor on the CPU as a NumPy array of the dtype of that name."""
    import torch

    if tensor.dtype == torch.bfloat16:
        return np.asarray(tensor.detach().view(torch.int16).numpy()).view(numpy_type("bfloat16"))
    return np.asarray(tensor.detach().numpy())


def stepping(optimizer: Any, tensors: Shared, memory: Memory, step: Callable[[], object] | None = None,
             reset: Callable[[], None] | None = None) -> Prepared:
    """A torch optimizer made ready, whose state has torch's keys; `step` and `reset` where they are not its own."""
    def written() -> Written:
        buffers = [optimizer.state.get(p, {}).get("momentum_buffer") for p in tensors.parameters]
        kept = None if any(buffer is None for buffer in buffers) else list(map(array_of, buffers))
        return Written(memory.parameters, kept, None)

    return Prepared(step or optimizer.step, written, reset or optimizer.state.clear)


def prepares(make: Make) -> Callable[[Case, Memory], Prepared]:
    """`Peer.prepare` for the optimizer that `make` makes of parameters and settings."""
    def prepare(case: Case, memory: Memory) -> Prepared:
        tensors = shared(memory)
        return stepping(make(tensors.parameters, case.settings), tensors, memory)

    return prepare


def sgd(**way: bool) -> Make:
    """Make `torch.optim.SGD` with the settings of a case."""
    def make(parameters: list[Any], settings: Settings) -> Any:
        import torch

        return torch.optim.SGD(parameters, **settings._asdict(), **way)

    return make


def _compiled(case: Case, memory: Memory) -> Prepared:
    """`torch.compile` of the whole step. The first step is one graph, all later ones another; both are made here.

    The later one is for the very buffers that the first step made then. So after a reset and the next first step, those
    come back with what the new ones hold: else it would be compiled again.
    """
    import torch

    torch.compiler.reset()  # torch knows what it compiled by code, and after eight parameter lists compiles no more
    tensors = shared(memory)
    optimizer = sgd()(tensors.parameters, case.settings)
    compiled = torch.compile(optimizer.step, fullgraph=False)
    compiled()
    kept = [(state, state["momentum_buffer"]) for state in optimizer.state.values() if state]
    compiled()
    is_first = False

    def step() -> None:
        nonlocal is_first
        compiled()
        if is_first:
            is_first = False
            for state, buffer in kept:
                state["momentum_buffer"] = buffer.copy_(state["momentum_buffer"])

    def reset() -> None:
        nonlocal is_first
        is_first = True
        for state, _ in kept:  # there but empty, as the first graph found them
            state.clear()

    return stepping(optimizer, tensors, memory, step, reset)


def _overwrites(case: Case) -> str | None:
    settings = case.settings
    if settings.nesterov and settings.weight_decay == 0 and not settings.maximize:
        return "with Nesterov momentum and no weight decay it overwrites the gradients, which all peers read"
    return None


def missing() -> str | None:
    """Why there is no torch, or None."""
    return not_installed("torch")


def _peer(name: str, title: str, cannot: Callable[[Case], str | None] = no_objection, **way: bool) -> Peer:
    return Peer(name, title, "torch", missing, cannot, prepares(sgd(**way)))


PEERS: dict[str, Peer] = {
    "torch for-loop": _peer("torch for-loop", "torch.optim.SGD, foreach=False: torch's default on the CPU",
                            foreach=False),
    "torch foreach": _peer("torch foreach", "torch.optim.SGD, foreach=True", _overwrites, foreach=True),
    "torch fused": _peer("torch fused", "torch.optim.SGD, fused=True", fused=True),
    "torch compiled": op_torch.PEERS["torch compiled"]._replace(title="torch.compile(torch.optim.SGD(...).step)",
                                                                prepare=_compiled),
}
