"""Kernels chosen, compiled side by side and written to a folder, with a manifest that names them."""

from __future__ import annotations

import hashlib
import itertools
import json
import multiprocessing
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

import samestep
from samestep.contract import DTYPES
from samestep.engine.batch import Kernel
from samestep.engine.cpu import kernel_name
from samestep.lowering import ascend, gpu, tools
from samestep.lowering.compiled import Compiled
from samestep.tiling import TilingKey, encode, legal_keys

ASCEND = "ascend950"
TARGETS = (*gpu.GPUS, ASCEND)
RULE_DTYPES = {"cann": tuple(DTYPES), "torch": (*DTYPES, "float64")}
MANIFEST = "manifest.json"


class Unit(NamedTuple):
    """What is compiled once: a kernel, and which of its functions."""

    target: str
    kernel: Kernel
    entry: str

    @property
    def name(self) -> str:
        """Of its files."""
        name = kernel_name(self.kernel)
        if self.target == ASCEND:
            return name
        return f"{name.removesuffix('_0') if self.kernel.rule == 'cann' else name}_{self.entry}"


def kernels(rule: str, keys: Iterable[TilingKey], dtypes: Iterable[str], orders: Iterable[str]) -> list[Kernel]:
    """The kernels of a rule for these keys; rule torch has no order, and each key with and without `maximize`.

    In rule torch dampening is a number and no term, so keys with it are left out, and so is schMode 1. What is without
    momentum has no nesterov.
    """
    if rule == "cann":
        return [Kernel(order, dtype, key) for order, dtype, key in itertools.product(orders, dtypes, keys)]
    found = itertools.product(dtypes, keys, (True, False), (False, True))
    return [
        Kernel("", dtype, key, "torch", dtype, dtype, momentum, maximize) for dtype, key, momentum, maximize in found
        if not (key.dampening or key.sch_mode or (key.nesterov and not momentum))
    ]


def lower(unit: Unit, found: tools.Ascend | None = None) -> Compiled:
    """Compile one unit in this process; `found` are the compilers for Ascend."""
    if unit.target != ASCEND:
        return gpu.lower(unit.kernel, gpu.GPUS[unit.target], unit.entry)
    assert found is not None
    return ascend.lower(unit.kernel, found)


def lower_all(
    units: Sequence[Unit], found: tools.Ascend | None = None,
    watch: Callable[[int, int], None] = lambda done, total: None,
) -> dict[Unit, Compiled]:
    """Compile in other processes, which Triton's interpreter is switched off in; `watch` is told done and total."""
    spawn = multiprocessing.get_context("spawn")
    workers = max(1, min(os.cpu_count() or 1, len(units)))
    with ProcessPoolExecutor(workers, spawn, _without_interpreter) as pool:
        futures = {pool.submit(lower, unit, found): unit for unit in units}
        try:
            for done, future in enumerate(as_completed(futures), 1):
                future.result()  # the first failure ends it
                watch(done, len(units))
            return {unit: future.result() for future, unit in futures.items()}
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _without_interpreter() -> None:
    """In a new process, before it imports Triton: the interpreter takes the compiler's place."""
    os.environ.pop("TRITON_INTERPRET", None)


def unit_of(target: str, kernel: Kernel, entry: str) -> Unit:
    """What a kernel is compiled as: on a GPU the number of blocks changes no code, so schMode 1 shares that of 0."""
    if target == ASCEND:
        return Unit(target, kernel, "plain")
    return Unit(target, kernel._replace(key=kernel.key._replace(sch_mode=0)), entry)


def build(
    target: str, wanted: Sequence[Kernel], folder: Path, *, entries: Sequence[str] = gpu.ENTRIES,
    ascend_tools: str | Path | None = None, watch: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Compile kernels for a target into `folder` and return the manifest, which is written there too.

    Raises `tools.MissingToolError` before anything is compiled, `tools.CompilerError` where a compiler fails.
    """
    tools.check_triton()
    found = tools.ascend(ascend_tools) if target == ASCEND else None
    pairs = [(kernel, unit_of(target, kernel, entry)) for kernel in wanted
             for entry in (entries if target != ASCEND else ("plain",))]
    folder.mkdir(parents=True, exist_ok=True)
    compiled = lower_all(list(dict.fromkeys(unit for _, unit in pairs)), found, watch)
    for unit, result in compiled.items():
        for form, content in result.files.items():
            (folder / f"{unit.name}.{form}").write_bytes(content)
    manifest = {"samestep": samestep.__version__, "target": target, "compilers": tools.versions(found),
                "kernels": [_described(kernel, unit, compiled[unit]) for kernel, unit in pairs]}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
    return manifest


def _described(kernel: Kernel, unit: Unit, result: Compiled) -> dict[str, Any]:
    """A kernel in the manifest."""
    key = kernel.key
    terms: dict[str, Any] = {"nesterov": key.nesterov, "weight_decay": key.weight_decay}
    named: dict[str, Any] = {"rule": kernel.rule, "dtype": kernel.dtype}
    if kernel.rule == "cann":
        number = {"number": encode(key), "variant": key.variant, "sch_mode": key.sch_mode}
        named |= {"order": kernel.order, "key": {**number, **terms, "dampening": key.dampening}}
    else:
        named |= {"terms": {**terms, "momentum": kernel.momentum, "maximize": kernel.maximize}}
    return {
        "name": unit.name, **named, "entry": unit.entry, "function": result.function, **result.facts,
        "instructions": {"counted_in": result.counted_in, **dict(sorted(result.instructions.items()))},
        "files": {form: {"file": f"{unit.name}.{form}", "bytes": len(content),
                         "sha256": hashlib.sha256(content).hexdigest()} for form, content in result.files.items()},
    }


def every_key(rule: str) -> list[TilingKey]:
    """All keys of a rule: 12 for rule cann, and for rule torch those that its kernels tell apart."""
    return [key for key in legal_keys() if rule == "cann" or not (key.sch_mode or key.dampening)]
