"""bench/device.py, the script for a machine with a device, as far as it goes without one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed here (pip install 'samestep[gpu]')")

ROOT = Path(__file__).parents[2]
# What such a machine may lack. A module that is None in sys.modules cannot be imported.
WITHOUT = """
import runpy, sys
sys.modules.update(dict.fromkeys(("platformdirs", "numba", "llvmlite", "click", "rich"))) if {lacking} else None
sys.path.insert(0, "bench")
sys.argv = ["device.py", *sys.argv[1:]]
runpy.run_path("bench/device.py", run_name="__main__")
"""


def run(*arguments, lacking, **environment):
    return subprocess.run(
        [sys.executable, "-c", WITHOUT.format(lacking=lacking), *arguments], cwd=ROOT, capture_output=True, text=True,
        check=False, env={**os.environ, "PYTHONPATH": "src", **environment})


def test_a_dry_run_with_packages_missing(tmp_path):
    done = run("--dry-run", "--out", str(tmp_path / "new" / "device.json"), lacking=True)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads((tmp_path / "new" / "device.json").read_text())
    assert figures["wrong"] == {}
    assert figures["skipped"] == []
    assert sum(name.startswith("operator") for name in figures["bits"]) == 36
    assert all(found["wrong"] == 0 and found["checked"] > 0 for found in figures["bits"].values())
    assert figures["run"]["versions"]["torch"]
    assert [len(figures[key]) for key in ("bandwidth", "cases", "models")] == [1, 2, 3]
    last = done.stdout.splitlines()
    assert last[-1].startswith("all figures: ")
    assert "nothing was measured" in last[-2]


def test_wrong_bits_are_shown_and_no_time_is(tmp_path):
    code = WITHOUT.replace("runpy.run", "import device_bits, numpy as np\n"
                           "device_bits.CHECKS['optimizer'] = lambda dry: (3, 10)\n"
                           "device_bits.all_checks = lambda dry: [('optimizer',), ('nothing',)]\nrunpy.run")
    done = subprocess.run([sys.executable, "-c", code.format(lacking=False), "--dry-run", "--out",
                           str(tmp_path / "device.json")], cwd=ROOT, capture_output=True, text=True, check=False,
                          env={**os.environ, "PYTHONPATH": "src"})
    assert done.returncode == 1, done.stderr
    assert "FAILED optimizer: 3 elements" in done.stdout
    assert "FAILED nothing: KeyError: 'nothing'" in done.stdout
    assert "skipped: all times, since bits are wrong or kernels failed" in done.stdout
    assert "cases" not in json.loads((tmp_path / "device.json").read_text())


def test_without_a_device_it_says_why():
    done = run(lacking=False, TRITON_INTERPRET="0", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 1
    assert "engine gpu is unavailable here: torch sees no CUDA device" in done.stderr
