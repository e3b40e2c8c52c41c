"""Small tables in a device's memory, kept from call to call, so that a step like the last one copies nothing.

A table is an int array that is never changed once it lies on a device; one with other contents is another table. It is
copied from pinned memory without waiting. Tables that a CUDA graph was captured with live as long as the process,
because the graph reads them at every replay.
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import numpy as np
import torch

KEPT = 16  # tables of a device; beyond it the one used longest ago is let go
_RESERVE = 1 << 20  # bytes of pinned memory held for captures, during which none can be had

_lock = threading.Lock()
_kept: dict[torch.device, list[_Table]] = {}
_captured: list[Any] = []  # what graphs read: never freed
_reserve: list[torch.Tensor] = []  # the unused rest of the pinned memory


class _Table(NamedTuple):
    content: bytes
    tensor: torch.Tensor
    stream: Any
    copied: Any  # an event of `stream`; these two are None on the CPU


def on_device(array: np.ndarray[Any, Any], device: torch.device) -> torch.Tensor:
    """`array` in the memory of `device`, ready for its current stream.

    Raises RuntimeError during the capture of a CUDA graph if more has to be copied than memory was set aside for.
    """
    content = array.tobytes()
    with _lock:
        kept = _kept.setdefault(device, [])
        for place, table in enumerate(kept):
            if table.content == content and table.tensor.numel() == array.size:
                kept.insert(0, kept.pop(place))
                if device.type != "cpu":
                    _share(table)
                return table.tensor
        if device.type != "cpu" and torch.cuda.is_current_stream_capturing():
            return _copied_by_graph(array, device)
        table = _Table(content, *_copied(array, device))
        kept.insert(0, table)
        del kept[KEPT:]
        return table.tensor


def _share(table: _Table) -> None:
    """Let the current stream use a table that another may have copied."""
    if torch.cuda.is_current_stream_capturing():
        _captured.append(table.tensor)  # copied before the capture, which began by waiting for the device
        return
    stream = torch.cuda.current_stream()
    if table.stream != stream:
        stream.wait_event(table.copied)
        table.tensor.record_stream(stream)


def _copied(array: np.ndarray[Any, Any], device: torch.device) -> tuple[torch.Tensor, Any, Any]:
    source = torch.from_numpy(array)
    if device.type == "cpu":
        return source.clone(), None, None
    if not _reserve or _reserve[0].numel() < _RESERVE // 2:
        _reserve[:] = [torch.empty(_RESERVE, dtype=torch.uint8, pin_memory=True)]
    tensor = torch.empty_like(source, device=device)
    tensor.copy_(source.pin_memory(), non_blocking=True)  # torch frees pinned memory when the copy has ended
    stream, copied = torch.cuda.current_stream(), torch.cuda.Event()
    copied.record(stream)
    return tensor, stream, copied


def _copied_by_graph(array: np.ndarray[Any, Any], device: torch.device) -> torch.Tensor:
    """A table that holds its content only once the graph is replayed, so it is for nobody else."""
    source = torch.from_numpy(array)
    pinned = _reserved(source.nbytes).view(source.dtype)
    pinned.copy_(source)
    tensor = torch.empty_like(source, device=device)
    tensor.copy_(pinned, non_blocking=True)
    _captured.extend((pinned, tensor))
    return tensor


def _reserved(size: int) -> torch.Tensor:
    """Pinned memory that was made before the capture."""
    padded = -(-size // 64) * 64
    if not _reserve or _reserve[0].numel() < padded:
        raise RuntimeError(f"samestep needs {size} bytes of pinned memory while a CUDA graph is captured; run the same "
                           "step once before the capture, on the same tensors if there are thousands")
    part, _reserve[0] = _reserve[0][:size], _reserve[0][padded:]
    return part
