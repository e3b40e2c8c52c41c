"""`samestep.optim.SGD` against `torch.optim.SGD`: `python bench/optim.py` (or `make bench-optim`).

Whole calls of `step()`, momentum 0.9 and weight decay 1e-4, ours and torch's fused, foreach and for-loop in turn within
one process, on the same parameters and gradients; ratios round by round, medians over fresh processes. Nothing is timed
before ours was compared bit for bit with the for-loop.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import method

RESNET50_STAGES = [(64, 3), (128, 4), (256, 6), (512, 3)]
DTYPES = ("float32", "bfloat16", "float16")
GOALS = {  # case: most of fused's time, by threads
    2: {"1000 x 64": 0.27, "ResNet-50": 0.98, "GPT-2 small": 1.00, "64K float32": 0.35, "1M float32": 0.80,
        "32M float32": 0.97, "1M bfloat16": 0.75, "1M float16": 0.75, "32M bfloat16": 1.00, "32M float16": 1.00},
    1: {"1000 x 64": 0.40},
}
LOOP_GOALS = {2: {"1000 x 64": 0.08}}


def resnet50() -> list[tuple[int, ...]]:
    """The shapes of ResNet-50's 161 parameters."""
    shapes: list[tuple[int, ...]] = [(64, 3, 7, 7), (64,), (64,)]
    inputs = 64
    for width, blocks in RESNET50_STAGES:
        for block in range(blocks):
            shapes += [(width, inputs, 1, 1), (width,), (width,), (width, width, 3, 3), (width,), (width,),
                       (4 * width, width, 1, 1), (4 * width,), (4 * width,)]
            if block == 0:
                shapes += [(4 * width, inputs, 1, 1), (4 * width,), (4 * width,)]
            inputs = 4 * width
    return [*shapes, (1000, 2048), (1000,)]


def gpt2_small() -> list[tuple[int, ...]]:
    """The shapes of GPT-2 small's 148 parameters."""
    width = 768
    layer = [(width,), (width,), (width, 3 * width), (3 * width,), (width, width), (width,), (width,), (width,),
             (width, 4 * width), (4 * width,), (4 * width, width), (width,)]
    return [(50257, width), (1024, width), *layer * 12, (width,), (width,)]


CASES = {
    "1000 x 64": ("float32", [(64,)] * 1000), "ResNet-50": ("float32", resnet50()),
    "GPT-2 small": ("float32", gpt2_small()), "64K float32": ("float32", [(1 << 16,)]),
    **{f"{name} {dtype}": (dtype, [(size,)]) for name, size in (("1M", 1 << 20), ("32M", 1 << 25)) for dtype in DTYPES},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=5)
    parser.add_argument("--threads", type=int, nargs="*", default=[2, 1])
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure(options.child[0], int(options.child[1]))))
        return
    figures = {}
    print(f"time / time of torch.optim.SGD.step(): median (least .. most) of {options.processes} processes")
    for threads in options.threads:
        for case in options.cases:
            rows = method.of_fresh_processes(options.processes, __file__, ["--child", case, str(threads)])
            figures[f"{case}, {threads}"] = rows
            print(f"\n{case}, {threads} thread{'s' * (threads > 1)}")
            goals = {"for-loop": LOOP_GOALS.get(threads, {}).get(case, 0.55)}
            if case in GOALS.get(threads, {}):
                goals["fused"] = GOALS[threads][case]
            method.show(rows, goals)
    if options.out:
        options.out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def measure(case: str, threads: int) -> dict[str, float]:
    """One process: median ratios of our time to each of torch's ways."""
    import numpy as np
    import torch

    from samestep.optim import SGD

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    dtype, shapes = CASES[case]
    refuse_wrong_bits(dtype)
    parameters = [torch.nn.Parameter(torch.randn(shape).to(getattr(torch, dtype))) for shape in shapes]
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape).to(parameter.dtype)
    settings = {"lr": 1e-6, "momentum": 0.9, "weight_decay": 1e-4}
    steps = {"ours": SGD(parameters, **settings).step}
    for name, flags in (("fused", {"fused": True}), ("foreach", {"foreach": True}), ("for-loop", {"foreach": False})):
        steps[name] = torch.optim.SGD(parameters, **settings, **flags).step
    for step in steps.values():
        step()
    rounds = max(9, min(200, 3_000_000_000 // max(1, 100 * sum(p.numel() for p in parameters))))
    times = method.interleaved(steps, rounds)
    ours = np.array(times.pop("ours"))
    return {name: float(np.median(ours / np.array(values))) for name, values in times.items()}


def refuse_wrong_bits(dtype: str) -> None:
    """Compare a step with torch's for-loop, in 16 bits with its float32 step rounded once (rule T)."""
    import torch

    from samestep.optim import SGD

    start, gradient = torch.randn(5003), torch.randn(5003)
    kind = getattr(torch, dtype)
    ours = torch.nn.Parameter(start.to(kind))
    theirs = torch.nn.Parameter(start.to(kind).float())
    optimizers = [SGD([ours], 0.1, 0.9, weight_decay=1e-4), torch.optim.SGD([theirs], 0.1, 0.9, weight_decay=1e-4,
                                                                            foreach=False)]
    ours.grad, theirs.grad = gradient.to(kind), gradient.to(kind).float()
    for optimizer in optimizers:  # one step: later ones would need the buffer rounded to 16 bits
        optimizer.step()
    if not torch.equal(ours, theirs.to(kind)):
        raise SystemExit(f"{dtype}: the bits are wrong, so no time is printed")


if __name__ == "__main__":
    main()
