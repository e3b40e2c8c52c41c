"""The engines by name. Each is a module with the same four functions.

``unavailable()`` gives the reason why the engine cannot run here, or None; ``plan(total, dtype)`` the split of the work
it wants (rule K2); ``run(batch)`` the update itself, in place; ``device_type()`` the type of torch device whose memory
it updates. No engine ever stands in for another.
"""

from __future__ import annotations

from types import ModuleType

from samestep.engine import cpu, gpu, reference

ENGINES: dict[str, ModuleType] = {"reference": reference, "cpu": cpu, "gpu": gpu}
DEFAULT = "cpu"  # for memory of the host; "gpu" for that of CUDA devices


def engines() -> dict[str, str | None]:
    """Every engine's name, with None if it can be used here, else the reason why it cannot."""
    return {name: engine.unavailable() for name, engine in ENGINES.items()}
