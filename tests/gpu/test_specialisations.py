"""What Triton compiles anew: other terms and dtypes, never other values, lengths, addresses or table sizes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="Triton is not installed here (pip install 'samestep[gpu]')")

# In a process of its own, since this one's kernels are the interpreter's. The arguments are those of gpu.run.
CODE = """
import numpy as np, torch, triton
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import make_backend
from triton.runtime.jit import create_function_from_signature
from samestep.engine import gpu, triton_kernels
from samestep.engine.batch import Batch, Kernel, table_of
from samestep.tiling import TilingKey

assert not triton_kernels.INTERPRETED
BACKEND = make_backend(GPUTarget("cuda", 90, 32))
seen, grids = set(), []

class Recorder:
    def __init__(self, kernel):
        self.kernel = kernel
        self.bind = create_function_from_signature(kernel.signature, kernel.params, BACKEND)
    def __getitem__(self, grid):
        def launch(*arguments, **constants):
            bound, specialization, options = self.bind(*arguments, **constants)
            assert options["enable_fp_fusion"] is False
            seen.add(str((self.kernel.__name__, specialization, sorted(options.items()))))
            grids.append(grid)
        return launch

for name in ("cann_one", "cann_list", "torch_one", "torch_list"):
    setattr(triton_kernels, name, Recorder(getattr(triton_kernels, name)))

KEY = TilingKey(0, False, True, True)
scalars = np.array([0.1, 0.9])
at = scalars.ctypes.data

def launch(kernel, lengths, address, d=0.3, wd=0.01, lr=0.1, m=0.9, on_device={}):
    scalars[:] = lr, m
    n = len(lengths)
    table = table_of([address] * n, [address + 4] * n, [address + 8] * n, [0] * n, lengths)
    where = (at, at + 8) if kernel.rule == "torch" else (address + 2, address + 16)
    gpu.run(Batch(kernel, table, *where, d, wd, gpu.plan(sum(lengths), kernel.dtype)), **on_device)

CANN = Kernel("spec", "float32", KEY)
TORCH = Kernel("", "float32", KEY, "torch", "float32", "float32", True, False)
VALUES = [0.0, -0.0, 1.0, 1e-45, 0.1, 2.0**-1074, float("nan"), float("inf"), 16.0]
for kernel in (CANN, TORCH):
    seen.clear()
    for value in VALUES:
        for lengths in ([1], [16], [1 << 33], [1, 2], [1 << 20, 16, 5], [7] * 100):
            for address in (1, 16, 4096, 1 << 40, 0x7F0000000003):
                launch(kernel, lengths, address, value, value, value, value)
    print(kernel.rule, len(seen))
launch(TORCH._replace(maximize=True), [1], 16)
launch(TORCH, [1], 16, lr=1.0)
print("maximize", len(seen))
found = torch.zeros(1)
launch(TORCH, [1], 16, on_device={"found_inf": found})
for lr in (torch.tensor(0.1), torch.tensor([0.2])):
    launch(TORCH, [5], 16, on_device={"lr": lr})
print("on the device", len(seen))
print("largest grid", max(grids))
"""


def test_only_other_terms_are_compiled_anew():
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", CODE], env=environment, capture_output=True, text=True,
                          check=False)
    assert done.returncode == 0, done.stderr
    # One kernel for a single set and one for a table; then one more each for a negated gradient, for found_inf, and
    # for a learning rate that lies on the device.
    assert done.stdout.splitlines() == [
        "cann 2", "torch 2", "maximize 3", "on the device 5", f"largest grid ({(1 << 33) // 1024},)",
    ]
