"""The gpu engine's bits on a device: each check returns how many elements are wrong and how many it looked at.

Checks are named by plain tuples, so that processes of their own can share them: most of the time goes into compiling.
"""

from __future__ import annotations

import functools
import itertools
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from multiprocessing import get_context
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).parents[1] / folder) for folder in ("src", "tests")]

LENGTHS = (1, 7, 1023, 1024, 1025, 2048, 4099, 100_003)
SHORT = (1, 1024, 2051)  # where an interpreter does the work
TRIPLES = (
    ("float32",) * 3, ("float64",) * 3, ("bfloat16",) * 3, ("float16",) * 3, ("bfloat16", "float32", "float32"),
    ("float16", "float16", "float32"), ("float32", "bfloat16", "float32"), ("float64", "float32", "float64"),
)
# maximize, weight decay, momentum, nesterov, first step
TERMS = [terms for terms in itertools.product((False, True), repeat=5) if terms[2] or not (terms[3] or terms[4])]


def all_checks(dry: bool) -> list[tuple[object, ...]]:
    """The names of all checks: kernels of rule O, kernels of rule torch, and what only a device can show."""
    import suite

    operator = [("operator", dtype, order, tuple(key)) for dtype, order, key in suite.KERNELS]
    triples, chosen = (TRIPLES[:4], TERMS[5::7]) if dry else (TRIPLES, TERMS[1::3])
    rule = [("rule torch", *triple, terms) for triple in triples for terms in chosen]
    on_device = [("rounding",), ("no waiting",), ("graph",), ("whole graph",)]
    return [*operator, *rule, ("optimizer",), *([] if dry else on_device)]


def run(checks: list[tuple[object, ...]], dry: bool, workers: int) -> dict[str, dict[str, object]]:
    """Every check's result by its name, from as many processes."""
    work = functools.partial(_timed, dry=dry)
    if workers > 1:
        with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
            found = list(pool.map(work, checks))
    else:
        found = [work(check) for check in checks]
    return {" ".join(map(str, check)): result for check, result in zip(checks, found, strict=True)}


def _timed(check: tuple[object, ...], dry: bool) -> dict[str, object]:
    start = time.perf_counter()
    try:
        with exactly(dry):
            wrong, checked = CHECKS[check[0]](*check[1:], dry=dry)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:2000]}
    return {"wrong": wrong, "checked": checked, "seconds": round(time.perf_counter() - start, 2)}


def exactly(dry: bool):
    """Within it, the interpreter of an older Triton has an fma that rounds once; a device has its own."""
    if not dry:
        return nullcontext()
    from gpu_interpreter import exact_fma, rounds_once

    return nullcontext() if rounds_once() else exact_fma()


def device(dry: bool) -> str:
    return "cpu" if dry else "cuda:0"


def put(words, dtype: str, where: str, offset: int = 0):
    """A copy of patterns as a tensor, `offset` elements after a multiple of 512 bytes."""
    import torch

    signed = torch.from_numpy(words.view(np.dtype(f"i{words.itemsize}")))
    memory = torch.zeros(len(words) + offset, dtype=signed.dtype, device=where)
    memory[offset:].copy_(signed)
    return memory[offset:].view(getattr(torch, dtype))


def get(tensor, like):
    """The patterns of a tensor."""
    import torch

    signed = {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.itemsize]
    return tensor.detach().contiguous().view(signed).cpu().numpy().reshape(-1).view(like.dtype)


def operator(dtype: str, order: str, key: tuple[int, ...], dry: bool) -> tuple[int, int]:
    """`sgd_` and `sgd_batch_` on the device against engine reference: all momenta, lengths, special values, tails."""
    import samestep
    import suite
    from samestep.tiling import TilingKey

    named, rng, wrong, checked = TilingKey(*key), np.random.default_rng(1), 0, 0
    where, lengths = device(dry), SHORT if dry else LENGTHS
    for momentum in suite.MOMENTA[:2] if dry else suite.MOMENTA:
        lr, m = suite.scalar(0.1, dtype), suite.scalar(momentum, dtype)
        sets = [suite.tensors(rng, length, dtype) for length in lengths]
        right = [suite.run("reference", columns, dtype, named, order, lr, m) for columns in sets]
        settings = {**suite.attributes(named)._asdict(), "order": order, "engine": "gpu"}
        scalars = [put(x.view(suite.BITS[dtype]), dtype, where) for x in (lr, m)]
        for together in (True, False):
            placed = [[put(c, dtype, where, k * (i % 3 == 1)) for k, c in enumerate(columns)]
                      for i, columns in enumerate(sets)]
            if together:
                p, g, a, s = zip(*placed, strict=True)
                samestep.sgd_batch_(p, g, scalars[0], a, scalars[1], s, **settings)
            else:
                for p, g, a, s in placed:
                    samestep.sgd_(p, g, scalars[0], a, scalars[1], s, **settings)
            for columns, row, expected in zip(sets, placed, right, strict=True):
                got = [get(x, c) for x, c in zip(row, columns, strict=True)]
                wrong += suite.differing(expected, got, dtype, momentum == 0)
                checked += len(columns[0])
    return wrong, checked


def random_words(rng, length: int, dtype: str):
    """Two thirds ordinary numbers, one third patterns at random."""
    from samestep.verify import patterns

    word = patterns.WORDS[dtype]
    anything = rng.integers(0, np.iinfo(word).max, length, word, endpoint=True)
    ordinary = rng.standard_normal(length).astype(patterns.TYPES[dtype]).view(word)
    return np.where(rng.integers(0, 3, length) > 0, ordinary, anything)


def rule_torch(dtype: str, grad: str, state: str, terms: tuple[bool, ...], dry: bool) -> tuple[int, int]:
    """A kernel of rule torch against the vectorised judge, for one set and for a table."""
    from samestep.engine import gpu
    from samestep.engine.batch import Batch, Kernel, table_of
    from samestep.tiling import TilingKey
    from samestep.verify import patterns, vectorised

    maximize, decayed, momentum, nesterov, first = terms
    hyper = {"lr": 0.1, "weight_decay": 0.01 * decayed, "momentum": 0.9 * momentum, "nesterov": nesterov,
             "dampening": 0.3 * (not nesterov), "maximize": maximize, "first": first}
    key = TilingKey(0, nesterov, decayed, False)
    kernel = Kernel("", dtype, key, "torch", grad, state, momentum, maximize)
    rng, where, wrong, checked = np.random.default_rng(2), device(dry), 0, 0
    scalars = np.array([hyper["lr"], hyper["momentum"]])
    at = scalars.ctypes.data
    for lengths in ((3000,), SHORT if dry else LENGTHS):
        sets = [[random_words(rng, n, name) for name in (dtype, grad, state)] for n in lengths]
        placed = [[put(c, name, where) for c, name in zip(row, (dtype, grad, state), strict=True)] for row in sets]
        table = table_of(*([row[k].data_ptr() for row in placed] for k in range(3)), [first] * len(sets), lengths)
        gpu.run(Batch(kernel, table, at, at + 8, 1 - hyper["dampening"], hyper["weight_decay"],
                      gpu.plan(sum(lengths), dtype), where))
        for before, after in zip(sets, placed, strict=True):
            p, b = vectorised.torch(*before, **hyper, dtype=dtype, grad_dtype=grad, state_dtype=state)
            wrong += int(patterns.differs(p, get(after[0], p), dtype).sum())
            wrong += int(patterns.differs(b, get(after[2], b), state, computed=momentum).sum())
            checked += len(p)
    return wrong, checked


def optimizer(dry: bool) -> tuple[int, int]:
    """Five steps of `samestep.optim.SGD` on a list of parameters against the judge."""
    return steps(dry, lambda number, step: step())


def steps(dry: bool, how) -> tuple[int, int]:
    """The same, each step but the first two done by `how(number, step)`, which may change nothing but how it runs."""
    import torch

    from samestep.optim import SGD, plan
    from samestep.verify import patterns, vectorised

    if dry:
        plan.engine_of = lambda p: "gpu"
    rng, where, wrong, checked = np.random.default_rng(3), device(dry), 0, 0
    words = [rng.standard_normal(n).astype(np.float32).view(np.uint32) for n in (3, 1024, 5000)]
    params = [torch.nn.Parameter(put(x, "float32", where)) for x in words]
    for p in params:
        p.grad = torch.zeros_like(p)
    buffers = [None] * len(words)
    hyper = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "nesterov": True}
    ours = SGD(params, **hyper)
    for number in range(5):
        gradients = [rng.standard_normal(len(x)).astype(np.float32).view(np.uint32) for x in words]
        for p, g in zip(params, gradients, strict=True):
            p.grad.copy_(put(g, "float32", where))
        if number < 2:
            ours.step()
        else:
            how(number, ours.step)
        for k, p in enumerate(params):
            words[k], buffers[k] = vectorised.torch(words[k], gradients[k], buffers[k], first=number == 0, **hyper)
            got = get(p, words[k]), get(ours.state[p]["momentum_buffer"], words[k])
            wrong += sum(int(patterns.differs(x, y, "float32").sum())
                         for x, y in zip((words[k], buffers[k]), got, strict=True))
            checked += len(words[k])
    return wrong, checked


def graph(dry: bool) -> tuple[int, int]:
    """A step captured once as a CUDA graph and replayed."""
    import torch

    made: list[torch.cuda.CUDAGraph] = []

    def replay(number, step):
        if not made:
            made.append(torch.cuda.CUDAGraph())
            with torch.cuda.graph(made[0]):
                step()
        made[0].replay()

    return steps(dry, replay)


def whole_graph(dry: bool) -> tuple[int, int]:
    """Backward and step captured together, as torch's notes on CUDA graphs have it: gradients are the graph's own."""
    import torch

    from samestep.optim import SGD
    from samestep.verify import patterns, vectorised

    rng = np.random.default_rng(4)
    words = [rng.standard_normal(n).astype(np.float32).view(np.uint32) for n in (3, 1024, 5000)]
    buffers = [None] * len(words)
    params = [torch.nn.Parameter(put(x, "float32", "cuda")) for x in words]
    factors = [torch.zeros_like(p) for p in params]
    ours = SGD(params, lr=0.1, momentum=0.9)

    def step():
        ours.zero_grad(set_to_none=True)
        sum((p * x).sum() for p, x in zip(params, factors, strict=True)).backward()
        ours.step()

    aside, made = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    for number in range(6):
        gradients = [rng.standard_normal(len(x)).astype(np.float32).view(np.uint32) for x in words]
        for x, g in zip(factors, gradients, strict=True):
            x.copy_(put(g, "float32", "cuda"))
        if number < 3:
            aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(aside):
                step()
            torch.cuda.current_stream().wait_stream(aside)
        elif number == 3:
            with torch.cuda.graph(made):
                step()
        if number >= 3:
            made.replay()
        for k, g in enumerate(gradients):
            words[k], buffers[k] = vectorised.torch(words[k], g, buffers[k], lr=0.1, momentum=0.9, first=number == 0)
    wrong = sum(int(patterns.differs(x, get(p, x), "float32").sum()) for x, p in zip(words, params, strict=True))
    return wrong, sum(map(len, words))


def no_waiting(dry: bool) -> tuple[int, int]:
    """Steady steps, also with a scaler's tensors, while torch refuses whatever waits for the device."""
    import torch

    from samestep.optim import SGD

    def strictly(number, step):
        torch.cuda.set_sync_debug_mode("error")
        try:
            step()
        finally:
            torch.cuda.set_sync_debug_mode("default")

    found = steps(dry, strictly)
    p = torch.nn.Parameter(torch.ones(5000, device="cuda"))
    p.grad = torch.ones_like(p)
    ours = SGD([p], lr=torch.tensor(0.5, device="cuda"), momentum=0.9)
    ours.step()
    wrong = 0
    for infinite, values in ((1.0, (0.5, 1.0, 1.0)), (0.0, (0.5 - 0.5 * (0.9 + 0.25), 0.9 + 0.25, 0.25))):
        ours.grad_scale, ours.found_inf = torch.tensor(4.0, device="cuda"), torch.tensor([infinite], device="cuda")
        strictly(0, ours.step)
        for tensor, value in zip((p, ours.state[p]["momentum_buffer"], p.grad), values, strict=True):
            wrong += int((tensor.detach() - value).abs().gt(1e-6).sum())  # that it was scaled or skipped, not its bits
    return found[0] + wrong, found[1] + 6 * len(p)


def rounding(dry: bool) -> tuple[int, int]:
    """All 2**32 float32 patterns rounded to bfloat16 by the kernels' conversion, against integer arithmetic."""
    import torch

    from device_kernels import to_bfloat16

    part, wrong = 1 << 27, 0
    for start in range(0, 1 << 32, part):
        bits = torch.arange(start, start + part, device="cuda")
        words = bits.to(torch.int32)
        out = torch.empty(part, dtype=torch.bfloat16, device="cuda")
        to_bfloat16[(part // 1024,)](words, out, BLOCK=1024, num_warps=4, enable_fp_fusion=False)
        expected = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        nan = (bits & 0x7FFFFFFF) > 0x7F800000
        got = out.view(torch.int16).to(torch.int64) & 0xFFFF
        wrong += int(torch.where(nan, (got & 0x7FFF) <= 0x7F80, got != (expected & 0xFFFF)).sum())
    return wrong, 1 << 32


CHECKS = {"operator": operator, "rule torch": rule_torch, "optimizer": optimizer, "graph": graph,
          "whole graph": whole_graph, "no waiting": no_waiting, "rounding": rounding}
