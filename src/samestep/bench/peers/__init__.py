"""Everything that is timed, by suite: ours, what else a user could pick, and the machine's limit.

Each module of this folder has a dict ``PEERS`` from names to peers and imports nothing heavy before a peer is prepared.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable

from samestep.bench.peer import Memory, Peer, Prepared, Written

# In the order in which people see them.
PEERS: dict[str, tuple[str, ...]] = {
    "op": ("samestep", "NumPy", "torch eager", "torch foreach", "torch compiled", "JAX", "MindSpore", "limit"),
    "optim": (
        "samestep", "torch for-loop", "torch foreach", "torch fused", "torch compiled", "optax", "Keras",
        "pytorch_optimizer", "tinygrad", "NumPy", "limit",
    ),
}
_MODULES: dict[str, tuple[str, ...]] = {
    "op": ("op_own", "op_numpy", "op_torch", "op_jax", "op_mindspore"),
    "optim": ("optim_own", "optim_torch", "optim_jax", "optim_other"),
}


def load(suite: str, name: str) -> Peer:
    """The peer `name` of `suite`. KeyError with the names there are, where there is no such peer."""
    if name not in PEERS.get(suite, ()):
        there = "; ".join(f"{known}: {', '.join(names)}" for known, names in PEERS.items())
        raise KeyError(f"no peer {name!r} in suite {suite!r}; there are {there}")
    for module in _MODULES[suite]:
        peers: dict[str, Peer] = importlib.import_module(f"samestep.bench.peers.{module}").PEERS
        if name in peers:
            return peers[name]
    raise KeyError(f"none of the modules {', '.join(_MODULES[suite])} has the peer {name!r}")


def not_installed(*packages: str) -> str | None:
    """Which of these packages is missing, with the command that installs it; None if all are there. Imports none."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            return f"not installed: pip install {package}"
    return None


def no_objection(*_: object) -> None:
    """For `Peer.unavailable` and `Peer.cannot` of peers that can do everything, and for a reset with nothing to do."""


def in_place(step: Callable[[], object], memory: Memory) -> Prepared:
    """A peer of suite "op" that works on the memory itself and keeps nothing else."""
    return Prepared(step, lambda: Written(memory.parameters, memory.accum, memory.stat), no_objection)
