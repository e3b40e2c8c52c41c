"""What this installation is: versions, processor, threads, engines and the cache of compiled kernels."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from samestep import __version__
from samestep.engine import cache, engines, threads

VARIABLES = {
    "SAMESTEP_CACHE_DIR": "where compiled kernels are kept",
    "SAMESTEP_NUM_THREADS": "how many threads a large update uses",
}
_PACKAGES = {"NumPy": "numpy", "numba": "numba", "llvmlite": "llvmlite", "ml_dtypes": "ml_dtypes", "torch": "torch"}
_X86 = ("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512bf16", "avx512fp16")
_ARM = ("neon", "fullfp16", "bf16", "sve", "sve2")
_VERSION_FOLDER = re.compile(r"[0-9a-f]{20}")


class Cleared(NamedTuple):
    """What `clear_cache` deleted below `root`, and what it could not delete."""

    root: Path
    kernels: int
    freed: int  # bytes
    left: int  # bytes


def facts() -> dict[str, Any]:
    """Return everything `samestep info` shows, as values that JSON can hold.

    torch is imported only where Triton is installed.
    """
    return {
        "versions": {"samestep": __version__, "Python": platform.python_version(),
                     **{name: _version(package) for name, package in _PACKAGES.items()}, "system": platform.platform()},
        "processor": _processor(),
        "threads": {"count": threads.get_num_threads(), "pool": _pool()},
        "engines": engines(),
        "cache": _cache(),
        "environment": {name: os.environ.get(name) for name in VARIABLES},
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _processor() -> dict[str, Any]:
    """Name the processor as its maker and as LLVM does; the features are those that numba compiles for."""
    import llvmlite.binding as llvm

    present = llvm.get_host_cpu_features()
    known = _ARM if platform.machine().lower() in ("aarch64", "arm64") else _X86
    return {"name": _model() or platform.processor() or platform.machine(), "architecture": platform.machine(),
            "llvm_name": llvm.get_host_cpu_name(), "features": {name: bool(present.get(name)) for name in known}}


def _model() -> str | None:
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        return None
    return found[1] if found else None


def _pool() -> str:
    if threads.forked():
        return "none: a forked process has one thread"
    return "torch's OpenMP team" if threads.team() else "own Python threads; torch's team once torch is imported"


def _cache() -> dict[str, Any]:
    current = cache.folder()
    versions = list(_version_folders())
    return {
        "root": str(cache.root()), "folder": str(current) if current else None,
        "kernels": _kernels(current) if current else 0, "bytes": _bytes(current) if current else 0,
        "kernels_of_all_versions": sum(map(_kernels, versions)), "bytes_of_all_versions": sum(map(_bytes, versions)),
    }


def clear_cache() -> Cleared:
    """Delete the compiled kernels of every version.

    Only folders that samestep makes are touched: SAMESTEP_CACHE_DIR may name a folder with other things in it.
    """
    folders = list(_version_folders())
    kernels, before = sum(map(_kernels, folders)), sum(map(_bytes, folders))
    for path in folders:
        shutil.rmtree(path, ignore_errors=True)
    left = sum(map(_bytes, _version_folders()))
    return Cleared(cache.root(), kernels, before - left, left)


def _version_folders() -> Iterator[Path]:
    root = cache.root()
    for path in sorted(root.iterdir()) if root.is_dir() else ():
        if _VERSION_FOLDER.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
            yield path


def _kernels(folder: Path) -> int:
    """Count the kernels kept in one version's folder; its other folders hold what calls them."""
    return len({path.parents[1] for path in folder.glob("samestep_*/*/*.nbc")})


def _bytes(folder: Path) -> int:
    """Add up the files in `folder`; another process may delete some of them meanwhile."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:
            continue
    return total
