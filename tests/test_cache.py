"""Compiled kernels kept between processes: never stale, never mixed up, never needed."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import samestep

STEP = """
import numpy as np, samestep
x = [np.full(5, v, np.float32) for v in (1.0, 0.5, 3.5, 1.0)]
samestep.sgd_(x[0], x[1], 0.1, x[2], 0.9, x[3])
print([float(v[0]) for v in x])
"""
ALL = """
import sys
sys.path.insert(0, sys.argv[1])
import suite
print(sum(suite.check("cpu", *kernel, length=40)[0] for kernel in suite.KERNELS))
"""


def start(script, cache, source, *arguments):
    environment = {**os.environ, "SAMESTEP_CACHE_DIR": str(cache), "PYTHONPATH": str(source)}
    return subprocess.Popen([sys.executable, "-c", script, *arguments], env=environment, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)


def output(process):
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return out.strip()


@pytest.fixture
def source(tmp_path):
    """A copy of the package whose sources a test may edit."""
    copy = tmp_path / "src"
    shutil.copytree(Path(samestep.__file__).parent, copy / "samestep", ignore=shutil.ignore_patterns("__pycache__"))
    return copy


def test_an_edit_of_the_formula_is_never_answered_from_an_old_cache(source, tmp_path):
    cache = tmp_path / "cache"
    formula = source / "samestep" / "formula.py"
    first = output(start(STEP, cache, source))
    assert output(start(STEP, cache, source)) == first
    before = formula.stat()
    text = formula.read_text()
    assert "return p - step, accum_t" in text
    formula.write_text(text.replace("return p - step, accum_t", "return p + step, accum_t"))
    os.utime(formula, ns=(before.st_atime_ns, before.st_mtime_ns))  # same size, same time: only the text differs
    shutil.rmtree(source / "samestep" / "__pycache__", ignore_errors=True)  # Python's own cache does go by the time
    edited = output(start(STEP, cache, source))
    assert eval(first)[0] == float(np.float32(1) - np.float32(3.6499999) * np.float32(0.1))
    assert eval(edited)[0] == float(np.float32(1) + np.float32(3.6499999) * np.float32(0.1))


def test_processes_that_fill_the_cache_at_once_do_no_harm(source, tmp_path):
    cache = tmp_path / "cache"
    tests = str(Path(__file__).parent)
    assert [output(p) for p in [start(ALL, cache, source, tests) for _ in range(3)]] == ["0"] * 3
    kernels = sorted(cache.rglob("*.nbi"))
    assert len(kernels) >= 36
    assert output(start(ALL, cache, source, tests)) == "0"  # and what they left behind is right
    assert sorted(cache.rglob("*.nbi")) == kernels


def test_the_cache_is_used(source, tmp_path):
    cache = tmp_path / "cache"
    output(start(STEP, cache, source))
    times = {path: path.stat().st_mtime_ns for path in cache.rglob("*.nb*")}
    assert times
    output(start(STEP, cache, source))
    assert {path: path.stat().st_mtime_ns for path in cache.rglob("*.nb*")} == times


def test_the_cache_is_the_users_own(source, tmp_path):
    cache = tmp_path / "cache"
    output(start(STEP, cache, source))
    (folder,) = cache.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_without_a_writable_cache_kernels_are_compiled_all_the_same(source, tmp_path):
    (tmp_path / "file").write_text("")
    assert output(start(STEP, tmp_path / "file" / "cache", source)) == output(start(STEP, tmp_path / "cache", source))


def test_a_damaged_cache_does_no_harm(source, tmp_path):
    cache = tmp_path / "cache"
    first = output(start(STEP, cache, source))
    for path in cache.rglob("*.nb*"):
        path.write_bytes(path.read_bytes()[:40])
    assert output(start(STEP, cache, source)) == first
