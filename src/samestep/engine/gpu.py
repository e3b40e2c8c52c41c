"""Engine ``gpu``: formula.py compiled by Triton, for the memory of CUDA devices; one launch for all sets of a batch.

Under TRITON_INTERPRET=1 Triton's interpreter runs the same kernels on the CPU, on CPU memory: slow, and for tests.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import struct
from typing import Any

import numpy as np

from samestep import tiling
from samestep.contract import DTYPES
from samestep.engine import fpenv
from samestep.engine.batch import Batch, Kernel

SIZES = {**DTYPES, "float64": 8}  # rule T has one dtype more
BLOCKS = {"float32": 1024, "float16": 2048, "bfloat16": 2048, "float64": 512}  # elements a program updates
_WARPS = 4
_LEAST_TRITON = (3, 6)
_LEAST_CAPABILITY = (8, 0)  # older devices cannot round to bfloat16


@functools.cache
def unavailable() -> str | None:
    """Why the engine cannot run here, or None. torch is imported only where Triton is installed."""
    missing = [name for name in ("triton", "torch") if importlib.util.find_spec(name) is None]
    if missing:
        return f"{' and '.join(missing)} not installed (pip install 'samestep[gpu,torch]')"
    import torch
    import triton

    version = tuple(int(part) for part in triton.__version__.split(".")[:2])
    if version < _LEAST_TRITON:
        return f"Triton {triton.__version__} is too old (pip install 'triton>=3.6')"
    if interpreted():
        return None
    if not torch.cuda.is_available():
        return "torch sees no CUDA device"
    capability = max(torch.cuda.get_device_capability(k) for k in range(torch.cuda.device_count()))
    if capability < _LEAST_CAPABILITY:
        return f"the device has compute capability {capability[0]}.{capability[1]}, the kernels need 8.0"
    return None


def interpreted() -> bool:
    """Does Triton's interpreter stand in for a device?"""
    from samestep.engine import triton_kernels

    return triton_kernels.INTERPRETED


def device_type() -> str:
    """The type of torch device whose memory the engine updates."""
    return "cpu" if interpreted() else "cuda"


@functools.lru_cache(maxsize=1024)
def plan(total: int, dtype: str) -> tiling.Split:
    """A block for each program of the launch."""
    block = BLOCKS[dtype]
    return tiling.split(total, -(-total // block), block_least=1, block_align=block, ub_former=block)


def run(batch: Batch, lr: Any = None, found_inf: Any = None) -> None:
    """Update every tensor set of the batch in place (rules O5, O6, or rule T), on the current stream of its device.

    All addresses are of `batch.device`, but for learning rate and momentum of rule T, which are float64 on the host.
    Rule T takes `lr`, a one-element tensor on the device, instead of that, and writes nothing if the float32 tensor
    `found_inf` is not 0 when the kernel runs.
    """
    import torch

    device = torch.device(batch.device)
    if device.type == "cpu":  # the interpreter, which computes with NumPy
        with np.errstate(all="ignore"), fpenv.default():
            _launch(batch, device, lr, found_inf)
    elif device.index not in (None, torch.cuda.current_device()):
        with torch.cuda.device(device):
            _launch(batch, device, lr, found_inf)
    else:
        _launch(batch, device, lr, found_inf)


def _launch(batch: Batch, device: Any, lr: Any, found_inf: Any) -> None:
    kernel, table = batch.kernel, batch.table
    values = _values(batch, lr, found_inf)
    block = BLOCKS[kernel.dtype]
    one, many, constants = _compiled(kernel, None if lr is None else str(lr.dtype), found_inf is not None)
    if len(table) == 1:
        *addresses, n = map(int, table[0])
        one[(-(-n // block),)](*addresses, n, *values, **constants)
        return
    from samestep.engine.device_memory import on_device

    rows, owners = blocks_of(np.asarray(table, np.int64), block)
    many[(len(owners),)](on_device(rows, device), on_device(owners, device), *values, **constants)


def blocks_of(table: np.ndarray[Any, Any], block: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The kernels' own table (triton_kernels.py) for a batch's, and the row that each block belongs to.

    No block spans two sets: a set's last one is as short as need be.
    """
    lengths = np.diff(table[:, 4], prepend=0)
    counts = -(-lengths // block)
    rows = np.empty((len(table), 6), np.int64)
    rows[:, :4] = table[:, :4]
    rows[:, 4] = lengths
    rows[:, 5] = np.cumsum(counts) - counts
    return rows, np.repeat(np.arange(len(table), dtype=np.int32), counts)


def _values(batch: Batch, lr: Any, found_inf: Any) -> tuple[int, ...]:
    """The arguments of the kernels that follow the tensor sets."""
    d, wd = _pattern(batch.dampening), _pattern(batch.weight_decay)
    if batch.kernel.rule == "cann":
        return batch.learning_rate, batch.momentum, d, wd
    lr_ = _word(batch.learning_rate) if lr is None else lr.data_ptr()
    return lr_, _word(batch.momentum), d, wd, 0 if found_inf is None else found_inf.data_ptr()


def _pattern(value: float) -> int:
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


def _word(address: int) -> int:
    return ctypes.c_int64.from_address(address).value


@functools.cache
def _compiled(kernel: Kernel, lr_dtype: str | None, found_inf: bool) -> tuple[Any, Any, dict[str, Any]]:
    """The Triton kernels for one set and for a table, and their constants; Triton compiles at the first launch."""
    if kernel.key.sch_mode:
        return _compiled(kernel._replace(key=kernel.key._replace(sch_mode=0)), lr_dtype, found_inf)
    from samestep.engine import triton_kernels

    constants = {**constants_of(kernel), **launch_options(), "INTEGER": interpreted()}
    if kernel.rule == "cann":
        return triton_kernels.cann_one, triton_kernels.cann_list, constants
    constants["LR"] = None if lr_dtype is None else _dtype(lr_dtype.removeprefix("torch."))
    constants["FOUND_INF"] = found_inf
    return triton_kernels.torch_one, triton_kernels.torch_list, constants


def constants_of(kernel: Kernel) -> dict[str, Any]:
    """The constants that `kernel` gives the Triton kernels of its rule, but for LR, FOUND_INF and INTEGER."""
    key, dtype = kernel.key, _dtype(kernel.dtype)
    shared = {"DTYPE": dtype, "NESTEROV": key.nesterov, "WEIGHT_DECAY": key.weight_decay, "BLOCK": BLOCKS[kernel.dtype]}
    if kernel.rule == "cann":
        return {**shared, "DAMPENING": key.dampening, "ASCEND950": kernel.order == "ascend950"}
    return {**shared, "GRAD": _dtype(kernel.grad_dtype), "STATE": _dtype(kernel.state_dtype),
            "MAXIMIZE": kernel.maximize, "MOMENTUM": kernel.momentum}


def launch_options() -> dict[str, Any]:
    """How the kernels are compiled: no operation may be fused with another."""
    return {"num_warps": _WARPS, "enable_fp_fusion": False}


def _dtype(name: str) -> Any:
    import triton.language as tl

    return getattr(tl, name)


@functools.lru_cache(maxsize=256)
def _scalar(bits: int, size: int, device: str, stream: int) -> Any:
    import torch

    width = {2: torch.int16, 4: torch.int32}[size]
    signed = bits - (1 << 8 * size) if bits >> 8 * size - 1 else bits
    return torch.full((1,), signed, dtype=width, device=device)


def scalar(bits: int, dtype: str, device: str) -> Any:
    """One element of `dtype` with the pattern `bits` in the memory of `device`, made without waiting for it."""
    import torch

    if device == "cpu":
        made = _scalar(bits, SIZES[dtype], device, 0)
    elif torch.cuda.is_current_stream_capturing():
        made = _scalar.__wrapped__(bits, SIZES[dtype], device, 0)  # of the graph: its memory and its fill
    else:
        made = _scalar(bits, SIZES[dtype], device, torch.cuda.current_stream(device).cuda_stream)
    return made.view(getattr(torch, dtype))
