"""The made-up peers beside an engine cpu that changes one bit of what it wrote last: a kernel gone wrong."""

from __future__ import annotations

import ctypes

from bench_fakes import PEERS, load
from samestep.engine import cpu

__all__ = ["PEERS", "load"]
right = cpu.run


def run(batch):
    right(batch)
    last = ctypes.c_ubyte.from_address(int(batch.table[0][0]))
    last.value ^= 1


cpu.run = run
