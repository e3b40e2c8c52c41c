"""The compilers that lowering calls: found, never downloaded."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = "SAMESTEP_ASCEND_TOOLS"  # environment variable: where the Ascend compilers were installed
_NO_TRITON = "kernels are compiled by Triton, which is not installed; install it with: pip install 'triton>=3.6'"
LONGEST = 300  # seconds that one call of a compiler may take


class MissingToolError(Exception):
    """A compiler is not installed; the message says how to get it."""


class CompilerError(Exception):
    """A compiler was called and failed; the message holds what it said."""


class Ascend(NamedTuple):
    """The compilers for Ascend 950. ``hivmc`` makes the binary, comes with CANN >= 9.1, and is None where it is not."""

    adapter: Path
    compile: Path
    hivmc: Path | None


class Wheel(NamedTuple):
    """Where pip puts a compiler: the wheel's package, the path inside it, and the wheel itself."""

    package: str
    path: str
    requirement: str


# The programs in them stand alone, so wheels for Python 3.11 serve any.
PIP = "pip install --no-deps --only-binary :all: --python-version 3.11"
# triton-ascend brings a package named triton, which would replace Triton's: it is never looked for in the environment.
ADAPTER = Wheel("triton", "backends/ascend/triton-adapter-opt", "triton-ascend==3.2.0")
COMPILE = Wheel("ascendnpuir", "bin/bishengir-compile-a5", "ascendnpu-ir==1.2.0")


def triton() -> Any:
    """The module triton; `MissingToolError` where it cannot be imported."""
    try:
        import triton
        import triton.language  # is not imported by the line above in every version

    except ImportError as error:
        raise MissingToolError(f"{_NO_TRITON} ({error})") from None
    if triton.knobs.runtime.interpret:
        raise MissingToolError("Triton's compiler is switched off by its interpreter; unset TRITON_INTERPRET")
    return triton


def check_triton() -> None:
    """`MissingToolError` where Triton is not installed; it is not imported."""
    if importlib.util.find_spec("triton") is None:
        raise MissingToolError(_NO_TRITON)


def versions(found: Ascend | None) -> dict[str, str]:
    """Triton's number, and the hashes of the compilers for Ascend, not all of which say a number."""
    named = {"triton": importlib.metadata.version("triton")}
    if found is not None:
        for path in (found.adapter, found.compile, *([found.hivmc] if found.hivmc else [])):
            named[path.name] = f"sha256 {hashlib.sha256(path.read_bytes()).hexdigest()}"
    return named


def ascend(folder: str | Path | None = None) -> Ascend:
    """The compilers for Ascend 950, from `folder`, else the one that ``SAMESTEP_ASCEND_TOOLS`` names, else the PATH.

    `MissingToolError` names what is missing and the command that brings it.
    """
    folder = folder or os.environ.get(FOLDER)
    adapter, compiler, hivmc = _find(ADAPTER, folder), _find(COMPILE, folder), shutil.which("hivmc-a5")
    if adapter is None or compiler is None:
        missing = [wheel for wheel, path in ((ADAPTER, adapter), (COMPILE, compiler)) if path is None]
        raise MissingToolError(_how_to_get(missing, folder))
    return Ascend(adapter, compiler, Path(hivmc) if hivmc else None)


def _find(wheel: Wheel, folder: str | Path | None) -> Path | None:
    name = Path(wheel.path).name
    places = [shutil.which(name)]
    if folder:
        places.insert(0, str(Path(folder) / wheel.package / wheel.path))
    if wheel is COMPILE and (spec := importlib.util.find_spec(wheel.package)) is not None and spec.origin:
        places.append(str(Path(spec.origin).parent / wheel.path))
    return next((Path(place) for place in places if place and os.access(place, os.X_OK)), None)


def _how_to_get(missing: Sequence[Wheel], folder: str | Path | None) -> str:
    names = " and ".join(Path(wheel.path).name for wheel in missing)
    wheels = " ".join(wheel.requirement for wheel in missing)
    place = folder or "ascend-tools"
    looked = f"in {folder} and on PATH" if folder else f"on PATH ({FOLDER} is not set)"
    return (
        f"{names} not found {looked}; install into a folder of its own, never into the environment (triton-ascend "
        f"replaces triton):\n  {PIP} --target {place} {wheels}\n"
        f"and name it: --ascend-tools {place}, or {FOLDER}={place}"
    )


def run(*command: str | Path, env: dict[str, str] | None = None) -> str:
    """Call a compiler and return what it printed; `CompilerError` if it fails."""
    try:
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=LONGEST, env=env,
                              check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CompilerError(f"{Path(command[0]).name}: {error}") from None
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise CompilerError(f"{Path(command[0]).name} ended with status {done.returncode}:\n" + "\n".join(said[-12:]))
    return done.stdout
