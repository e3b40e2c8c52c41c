"""What else there is for suite "optim": pytorch_optimizer, tinygrad, and NumPy written plainly."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from typing import Any

import numpy as np

from samestep.bench.peer import Array, Case, Memory, Peer, Prepared, Settings, Written
from samestep.bench.peers import no_objection, not_installed
from samestep.bench.peers.optim_torch import prepares

SLOWLY_MOST = 1 << 24  # elements of 16 bits
MOST_CAPTURED = 1000  # tensors; tinygrad takes some 20 ms for each until it replays what it captured
_TRY = "from tinygrad import Tensor; assert Tensor([1.0], device='CPU').add(1).tolist() == [2.0]"


def _sgdw(parameters: list[Any], settings: Settings) -> Any:
    from pytorch_optimizer import SGDW

    return SGDW(parameters, **settings._asdict(), weight_decouple=False)


def _sgdw_cannot(case: Case) -> str | None:
    if case.settings.weight_decay != 0 or case.settings.maximize:
        return "with weight decay or maximize it overwrites the gradients, which all peers read"
    return None


@functools.cache
def _tinygrad_unavailable() -> str | None:
    """Tried in a process of its own: whether its CPU device works depends on the compiler, and importing it is slow."""
    missing = not_installed("tinygrad")
    if missing is not None:
        return missing
    compiler = os.environ.get("CC", "clang")
    if shutil.which(compiler) is None:
        return f"tinygrad compiles for its CPU device with {compiler}, which is not here: install clang"
    tried = subprocess.run([sys.executable, "-c", _TRY], capture_output=True, text=True, check=False)
    if tried.returncode == 0:
        return None
    return f"tinygrad's CPU device does not work with this {compiler}: {(tried.stderr.splitlines() or ['?'])[-1]}"


def _tinygrad_cannot(case: Case) -> str | None:
    if case.settings.dampening != 0:
        return "it has no dampening"
    if case.dtype == "float64":
        return "it keeps momentum and the learning rate in float32"
    if len(case.shapes) > MOST_CAPTURED:
        return (f"tinygrad takes minutes to capture a step for {len(case.shapes):,} tensors; up to "
                f"{MOST_CAPTURED:,} are captured")
    return None


def _tinygrad(case: Case, memory: Memory) -> Prepared:
    """`tinygrad.nn.optim.SGD` on the memory itself, captured by `TinyJit`; momentum is kept in float32."""
    from tinygrad import Context, Device, Tensor, TinyJit, dtypes
    from tinygrad.nn.optim import SGD

    settings, device = case.settings, Device["CPU"]
    dtype = getattr(dtypes, case.dtype)

    def over(array: Array) -> Any:
        return Tensor.from_blob(array.ctypes.data, array.shape, dtype=dtype, device="CPU")

    parameters, gradient = list(map(over, memory.parameters)), list(map(over, memory.gradient))
    optimizer = SGD(parameters, settings.lr, settings.momentum, settings.weight_decay, settings.nesterov, device="CPU")

    def whole() -> None:
        for parameter, array in zip(parameters, gradient, strict=True):
            parameter.grad = -array if settings.maximize else array
        optimizer.step()

    captured = TinyJit(whole)

    def step() -> None:
        captured()
        device.synchronize()  # a step only hands its kernels over

    def reset() -> None:
        if optimizer.b:
            Tensor.realize(*(buffer.assign(buffer.zeros_like()) for buffer in optimizer.b))
            device.synchronize()

    def written() -> Written:
        same = optimizer.b and case.dtype == "float32"
        return Written(memory.parameters, [buffer.numpy() for buffer in optimizer.b] if same else None, None)

    with Context(TRAINING=1):
        for _ in range(3):  # plainly, captured, replayed
            step()
    return Prepared(step, written, reset)


def _numpy_cannot(case: Case) -> str | None:
    """NumPy converts every element of 16 bits in software."""
    slow = case.dtype in ("float16", "bfloat16") and case.elements > SLOWLY_MOST
    return f"{case.elements:,} elements of {case.dtype} take seconds a step" if slow else None


def _numpy(case: Case, memory: Memory) -> Prepared:
    """One operation after the other, in place where the rule writes; every operation rounds to the case's dtype."""
    kind = memory.learning_rate.dtype.type  # NumPy makes float32 of a Python number and bfloat16
    settings = case.settings
    lr, momentum, kept, wd = map(kind, (settings.lr, settings.momentum, 1 - settings.dampening, settings.weight_decay))
    buffers: list[Array] = []

    def direction(gradient: Array, k: int) -> Array:
        if k == len(buffers):
            buffers.append(gradient.copy())
        else:
            buffers[k] *= momentum
            buffers[k] += kept * gradient
        return gradient + momentum * buffers[k] if settings.nesterov else buffers[k]

    def step() -> None:
        for k, (parameter, gradient) in enumerate(zip(memory.parameters, memory.gradient, strict=True)):
            update = -gradient if settings.maximize else gradient
            if settings.weight_decay != 0:
                update = update + wd * parameter
            if settings.momentum != 0:
                update = direction(update, k)
            np.subtract(parameter, lr * update, out=parameter)

    return Prepared(step, lambda: Written(memory.parameters, buffers or None, None), buffers.clear)


PEERS: dict[str, Peer] = {
    "pytorch_optimizer": Peer("pytorch_optimizer", "pytorch_optimizer.SGDW, weight_decouple=False", "torch",
                              functools.partial(not_installed, "pytorch_optimizer"), _sgdw_cannot, prepares(_sgdw)),
    "tinygrad": Peer("tinygrad", "tinygrad.nn.optim.SGD on its CPU device, captured by TinyJit", "real",
                     _tinygrad_unavailable, _tinygrad_cannot, _tinygrad),
    "NumPy": Peer("NumPy", "NumPy, operation by operation", "real", no_objection, _numpy_cannot, _numpy),
}
