"""samestep: SGD with momentum, the same bits on every device; and where bits differ, it says why.

Public names load on first use: `import samestep` itself imports neither NumPy nor numba, torch or click.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from samestep import optim as optim
    from samestep.contract import ContractError
    from samestep.engine import engines
    from samestep.engine.threads import get_num_threads, set_num_threads
    from samestep.op import sgd_, sgd_batch_
    from samestep.shapes import TensorSpec, infer
    from samestep.tiling import TilingKey, decode, encode, legal_kernels, legal_keys

__version__ = "0.1.0"

_HOMES = {
    "ContractError": "contract",
    "TensorSpec": "shapes",
    "TilingKey": "tiling",
    "decode": "tiling",
    "encode": "tiling",
    "engines": "engine",
    "get_num_threads": "engine.threads",
    "infer": "shapes",
    "legal_kernels": "tiling",
    "legal_keys": "tiling",
    "set_num_threads": "engine.threads",
    "sgd_": "op",
    "sgd_batch_": "op",
}

__all__ = [
    "ContractError", "TensorSpec", "TilingKey", "decode", "encode", "engines", "get_num_threads", "infer",
    "legal_kernels", "legal_keys", "set_num_threads", "sgd_", "sgd_batch_",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES and name != "optim":
        raise AttributeError(f"module 'samestep' has no attribute {name!r}")
    import importlib

    if name == "optim":  # as torch.optim can be had of torch; not in __all__, since it needs torch
        return importlib.import_module("samestep.optim")
    value = getattr(importlib.import_module(f"samestep.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, "optim"})
