"""Ours, and the limit, for suite "optim"."""

from __future__ import annotations

from typing import Any

import numpy as np

from samestep.bench import limit
from samestep.bench.peer import Array, Case, Memory, Peer, Prepared, Settings, Written
from samestep.bench.peers import no_objection
from samestep.bench.peers.optim_torch import missing, prepares

_LINE = 64  # bytes


def _make(parameters: list[Any], settings: Settings) -> Any:
    from samestep.optim import SGD

    return SGD(parameters, **settings._asdict())


def _limit(case: Case, memory: Memory) -> Prepared:
    """Gradients are read; parameters, and with momentum its buffers, are read and written.

    What it writes are no numbers, so it writes to parameters of its own: on subnormal ones the other peers would take
    longer, and they go on with what is there.
    """
    own = [[_like(array) for array in memory.parameters] for _ in range(1 if case.settings.momentum == 0 else 2)]
    loop = limit.fastest(own, [memory.gradient])
    return Prepared(loop, lambda: Written(own[0], None, None), no_objection)


def _like(array: Array) -> Array:
    """A new array like it, which begins on a cache line too."""
    raw = np.zeros(array.nbytes + _LINE, np.uint8)
    start = -raw.ctypes.data % _LINE
    return raw[start:start + array.nbytes].view(array.dtype).reshape(array.shape)


PEERS: dict[str, Peer] = {
    "samestep": Peer("samestep", "samestep.optim.SGD", "torch", missing, no_objection, prepares(_make)),
    "limit": Peer("limit", "a plain loop with the same reads and writes", "", no_objection, no_objection, _limit),
}
