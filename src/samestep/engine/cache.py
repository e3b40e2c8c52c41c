"""Where compiled kernels are kept between processes.

numba keys a cached kernel by the file that holds it and does not notice edits of what that file imports; so the
folder's name carries a hash of every source file of the package and of the versions that compile it. One kernel, one
folder: two processes that fill numba's index of one folder at once can exchange entries.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import llvmlite
import numba
import platformdirs
from numba.core import config

_lock = threading.RLock()


@functools.cache
def source_hash() -> str:
    """A hash of the package's sources and of everything else that decides what a kernel compiles to."""
    digest = hashlib.sha256(f"{sys.version} {numba.__version__} {llvmlite.__version__}".encode())
    package = Path(__file__).parents[1]
    for path in sorted(package.rglob("*.py")):
        digest.update(str(path.relative_to(package)).encode() + path.read_bytes())
    return digest.hexdigest()[:20]


def root() -> Path:
    """The user's cache folder, or the one that SAMESTEP_CACHE_DIR names."""
    chosen = os.environ.get("SAMESTEP_CACHE_DIR")
    return Path(chosen) if chosen else Path(platformdirs.user_cache_dir("samestep", appauthor=False))


def folder() -> Path | None:
    """This version's cache folder; None where it cannot be written, and kernels are then compiled in each process."""
    path = root() / source_hash()
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return None
    return path if os.access(path, os.W_OK | os.X_OK) else None


@contextlib.contextmanager
def cached(name: str) -> Iterator[bool]:
    """Within it, numba functions made with `cache=` the yielded value are kept in the folder of kernel `name`."""
    path = folder()
    with _lock:
        before = config.CACHE_DIR
        config.CACHE_DIR = str(path / name) if path else before
        try:
            yield path is not None
        finally:
            config.CACHE_DIR = before


def build(name: str, make: Callable[[bool], Any]) -> Any:
    """What `make(cached?)` builds for kernel `name`; where the cache is damaged, once more without what is there."""
    with cached(name) as writable:
        try:
            return make(writable)
        except Exception:
            if not writable:
                raise
            shutil.rmtree(root() / source_hash() / name, ignore_errors=True)
            return make(writable)
