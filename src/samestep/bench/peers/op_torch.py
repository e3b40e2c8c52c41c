"""The operator composed of torch's operations, for suite "op": eager, with foreach for lists, and compiled.

All three follow the formula of rules O with the mask of rule O6, written as torch.optim writes its own steps: few
temporaries, factors given to `add` as alpha. torch rounds elsewhere than the rule does: alpha is multiplied in with a
fused multiply-add, 16-bit intermediates are stored in 16 bits (eager and foreach), a compiler fuses as it likes. So
they claim the formula in real arithmetic, not the bits. The tensors lie over the very memory of the case.
"""

from __future__ import annotations

import functools
import shutil
from typing import Any, NamedTuple

import numpy as np

from samestep.bench.peer import Array, Case, Memory, Peer, Prepared, Settings
from samestep.bench.peers import in_place, no_objection, not_installed

COMPILED_TENSORS = 200
COMPILED_ONCE = 100  # more take half a minute, for each dtype and all hyperparameters


class Tensors(NamedTuple):
    """A case's memory as torch tensors."""

    parameters: list[Any]
    gradient: list[Any]
    learning_rate: Any
    accum: list[Any]
    momentum: Any
    stat: list[Any]


def tensor_over(array: Array) -> Any:
    """A torch tensor over the memory of a NumPy array; torch knows nothing of ml_dtypes' bfloat16."""
    import torch

    if str(array.dtype) == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def tensors_over(memory: Memory) -> Tensors:
    """All of them."""
    p, g, a, s = ([tensor_over(array) for array in arrays]
                  for arrays in (memory.parameters, memory.gradient, memory.accum, memory.stat))
    return Tensors(p, g, tensor_over(memory.learning_rate), a, tensor_over(memory.momentum), s)


def eager(tensors: Tensors, settings: Settings) -> None:
    """One step, tensor set by tensor set."""
    import torch

    _, d, wd, nesterov, _, _ = settings
    lr, m = tensors.learning_rate.item(), tensors.momentum.item()
    with torch.no_grad():
        for p, g, a, s in zip(tensors.parameters, tensors.gradient, tensors.accum, tensors.stat, strict=True):
            grad = g.add(p, alpha=wd) if wd != 0 else g
            velocity = (a.mul_(m) if m != 0 else a.mul(m)).add_(grad)
            if d != 0:
                velocity.addcmul_(grad, s - 1, value=d)
            p.add_(grad.add(velocity, alpha=m) if nesterov else velocity, alpha=-lr)
            if m != 0:
                s.zero_()


def foreach(tensors: Tensors, settings: Settings) -> None:
    """One step, operation by operation for all tensor sets."""
    import torch

    _, d, wd, nesterov, _, _ = settings
    lr, m = tensors.learning_rate.item(), tensors.momentum.item()
    p, g, a, s = tensors.parameters, tensors.gradient, tensors.accum, tensors.stat
    with torch.no_grad():
        grad = torch._foreach_add(g, p, alpha=wd) if wd != 0 else g
        if m != 0:
            torch._foreach_mul_(a, m)
            velocity = a
        else:
            velocity = torch._foreach_mul(a, m)
        torch._foreach_add_(velocity, grad)
        if d != 0:
            torch._foreach_addcmul_(velocity, grad, torch._foreach_sub(s, 1), value=d)
        torch._foreach_add_(p, torch._foreach_add(grad, velocity, alpha=m) if nesterov else velocity, alpha=-lr)
        if m != 0:
            torch._foreach_zero_(s)


def composed(
    p: list[Any], g: list[Any], lr: Any, a: list[Any], m: Any, s: list[Any], settings: Settings, write: bool
) -> None:
    """What is compiled: learning_rate and momentum stay tensors, the mask is a constant of the compiled function."""
    _, d, wd, nesterov, _, _ = settings
    for k in range(len(p)):
        grad = g[k] + wd * p[k] if wd != 0 else g[k]
        velocity = m * a[k] + grad
        if d != 0:
            velocity = velocity - grad * (1 - s[k]) * d
        p[k].sub_(((grad + m * velocity) if nesterov else velocity) * lr)
        if write:
            a[k].copy_(velocity)
            s[k].zero_()


def _prepare(function: Any, case: Case, memory: Memory) -> Prepared:
    return in_place(functools.partial(function, tensors_over(memory), case.settings), memory)


def _prepare_compiled(case: Case, memory: Memory) -> Prepared:
    """Compiled before this returns. The mask is read from momentum in every step; each of its values is a graph."""
    import torch

    # torch keeps what it compiled by code, and stops compiling after eight shapes of the same code.
    torch.compiler.reset()
    compiled = torch.compile(composed, fullgraph=True, dynamic=False)
    p, g, lr, a, m, s = tensors_over(memory)
    settings = case.settings

    def step() -> None:
        with torch.no_grad():
            compiled(p, g, lr, a, m, s, settings, m.item() != 0)

    step()
    return in_place(step, memory)


def _no_compiler() -> str | None:
    missing = not_installed("torch")
    if missing is None and not any(map(shutil.which, ("g++", "clang++", "c++"))):
        return "torch.compile needs a C++ compiler: apt-get install g++"
    return missing


def _only_lists(case: Case) -> str | None:
    return None if len(case.shapes) > 1 else "one tensor set: that is torch eager"


def _only_short_lists(case: Case) -> str | None:
    """Why a case is not compiled; of lists that take long only those with the commonest hyperparameters are."""
    count = len(case.shapes)
    if count > COMPILED_TENSORS:
        return f"{count} tensor sets: a function of more than {COMPILED_TENSORS} takes minutes to compile"
    if count > COMPILED_ONCE and case.setting not in ("K2", "decay"):
        return f"{count} tensor sets take half a minute to compile: compared with momentum and weight decay only"
    return None


def _peer(name: str, title: str, unavailable: Any, cannot: Any, prepare: Any) -> Peer:
    return Peer(name, title, "real", unavailable, cannot, prepare)


_torch = functools.partial(not_installed, "torch")
PEERS = {
    "torch eager": _peer("torch eager", "torch operations, in place", _torch, no_objection,
                         functools.partial(_prepare, eager)),
    "torch foreach": _peer("torch foreach", "torch._foreach operations, in place", _torch, _only_lists,
                           functools.partial(_prepare, foreach)),
    "torch compiled": _peer("torch compiled", "torch.compile, inductor", _no_compiler, _only_short_lists,
                            _prepare_compiled),
}
