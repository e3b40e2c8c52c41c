"""The results file: what surrounds the measured cases, and writing it. docs/benchmark.md describes every field."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import samestep
from samestep.bench import method
from samestep.engine import cpu

Results = dict[str, Any]
SCHEMA = 1
PACKAGES = ("torch", "numpy", "numba", "llvmlite", "ml_dtypes", "jax", "jaxlib", "optax", "keras", "pytorch_optimizer",
            "tinygrad", "mindspore")


def of(runs: Sequence[dict[str, Any]], quick: bool) -> Results:
    """Results of these runs, one per thread count, on this machine, now; no scaling, no start-up, no seconds yet."""
    now = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    return {"schema": SCHEMA, "created": f"{now:%Y-%m-%dT%H:%M:%SZ}", "seconds": 0.0, "quick": quick,
            "machine": machine(), "versions": versions(), "runs": list(runs), "scaling": [], "startup": [],
            "left out": {}}


def machine() -> dict[str, Any]:
    """The processor, how many of its cores this process may use, the system, and bytes of the caches."""
    from samestep import info

    return {"processor": info.facts()["processor"]["name"], "cores": len(method.usable() or ()) or os.cpu_count() or 1,
            "system": f"{platform.system()} {platform.release()} {platform.machine()}", "caches": cpu.caches()}


def versions() -> dict[str, str]:
    """Of samestep, Python and the packages that are installed, whether or not they took part."""
    found = {"samestep": samestep.__version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def save(results: Results, path: Path) -> None:
    """Write the file, and the folders above it; whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(f".{os.getpid()}")
    beside.write_text(json.dumps(results, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    os.replace(beside, path)
