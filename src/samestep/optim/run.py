"""Carry out checked plans: unscale, choose the path for each tensor, update."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from samestep.optim import amp, cpu_path, gpu_path, overlap, plan, sharded, torch_path
from samestep.optim.plan import Plan
from samestep.optim.work import Work


def step(work: Sequence[Work], found_inf: torch.Tensor | None = None) -> None:
    """Do the work of the engines, in place; on CUDA devices nothing if `found_inf` is not 0 there."""
    on_cpu = [item for item in work if item.engine == "cpu"]
    if len(on_cpu) < len(work):
        gpu_path.step([item for item in work if item.engine == "gpu"], found_inf)
    cpu_path.step(on_cpu)


def run(
    plans: Sequence[Plan], grad_scale: torch.Tensor | None = None, known: Sequence[Work] = (),
    found_inf: torch.Tensor | None = None,
) -> list[Work | None]:
    """Update everything in place: `plans`, and `known` work of the engines.

    With `found_inf`, on a CUDA device, there are no plans, and nothing is written if it is not 0 there.
    State that the plans made is written; to store it is the caller's. Returns for each plan its work, if that is one
    call of the engine.
    """
    done: amp.Done = {}
    if grad_scale is not None:
        known = [w._replace(gradients=amp.unscale(w.parameters, w.gradients, grad_scale, done, found_inf), known=None)
                 for w in known]
    work, others, rows, whole = list(known), [], [], []
    for item in plans:
        gradients = item.gradients
        if grad_scale is not None:
            gradients = amp.unscale(item.parameters, gradients, grad_scale, done)
        for_engine, for_torch, scattered = plan.works(item, gradients)
        in_turn = [part for whole_work in for_engine for part in overlap.in_turn(whole_work)]
        work += in_turn
        others += for_torch
        rows += scattered
        whole.append(in_turn[0] if len(in_turn) == 1 and not for_torch and not scattered else None)
    step(work, found_inf)
    torch_path.step(others)
    for part in rows:
        part.put_back()
    for p in [p for item in plans for p in item.parameters]:
        if type(p) not in sharded.PLAIN and sharded.is_sharded(p):
            torch.autograd.graph.increment_version(p)
    return whole
