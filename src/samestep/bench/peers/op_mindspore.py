"""MindSpore's own operator, `mindspore.ops.SGD`, for suite "op", where MindSpore happens to be installed.

Written from its public documentation and never run where this was written. On CPUs its rule is not the operator's:
where stat is positive it takes the gradient for the velocity instead of adding the decayed accum. accum is not zero and
stat is 1 at the start of a case here, so it is expected to be marked wrong.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

from samestep.bench.peer import Case, Memory, Peer, Prepared, Written
from samestep.bench.peers import not_installed


def _prepare(case: Case, memory: Memory) -> Prepared:
    mindspore: Any = importlib.import_module("mindspore")
    mindspore.set_context(device_target="CPU")
    settings = case.settings
    sgd = mindspore.ops.SGD(settings.dampening, settings.weight_decay, settings.nesterov)
    state: dict[str, Any] = {}

    def reset() -> None:
        for name in ("parameters", "accum", "stat"):
            state[name] = [mindspore.Parameter(mindspore.Tensor(array)) for array in getattr(memory, name)]
        state["gradient"] = [mindspore.Tensor(array) for array in memory.gradient]
        state["scalars"] = [mindspore.Tensor(array.reshape(())) for array in (memory.learning_rate, memory.momentum)]

    def step() -> None:
        lr, m = state["scalars"]
        for p, g, a, s in zip(*(state[name] for name in ("parameters", "gradient", "accum", "stat")), strict=True):
            sgd(p, g, lr, a, m, s)
        mindspore.runtime.synchronize()

    def written() -> Written:
        return Written(*([tensor.asnumpy() for tensor in state[name]] for name in ("parameters", "accum", "stat")))

    reset()
    return Prepared(step, written, reset)


def _cannot(case: Case) -> str | None:
    return "mindspore.ops.SGD has no bfloat16" if case.dtype == "bfloat16" else None


PEERS = {"MindSpore": Peer("MindSpore", "mindspore.ops.SGD", "real", functools.partial(not_installed, "mindspore"),
                           _cannot, _prepare)}
