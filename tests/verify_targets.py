"""Kernels to be judged: a correct one in plain NumPy float32, written apart from the package, and faults planted in it.

``module:function`` names of this file are given to `samestep verify --target` too.
"""

from __future__ import annotations

import functools
import os
import time

import numpy as np

f32 = np.float32


def correct(p, g, lr, a, m, s, *, dampening, weight_decay, nesterov, order="spec", fault=""):
    """Rule O in float32, one NumPy operation a rounding; in place."""
    with np.errstate(all="ignore"):
        p32, g32, a32, s32 = (x.astype(f32) for x in (p, g, a, s))
        rate, mom, d, wd = f32(lr[0]), f32(m[0]), f32(dampening), f32(weight_decay)
        if fault == "dampening ignored":
            d = f32(0)
        if fault == "nesterov ignored":
            nesterov = False
        if fault == "weight decay compared before float32":
            grad = g32 + p32 * wd if weight_decay != 0 else g32
        else:
            grad = g32 + p32 * wd if wd != 0 or fault == "weight decay never absent" else g32
        acc = a32 * mom + grad
        if fault == "fused":
            acc = (a32.astype(np.float64) * np.float64(mom) + grad).astype(f32)
        if d != 0 and not (fault == "dampening inside" and mom == 0):
            unseen = f32(1) - s32
            acc = acc - (grad * (unseen * d) if order == "ascend950" else (grad * unseen) * d)
        ahead = acc * mom
        if not nesterov:
            step = acc * rate
        elif order == "ascend950":
            step = (grad + ahead) * rate
        else:
            step = grad * rate + ahead * rate
        out = p32 - step
        if fault == "tail from float64" and out.size > 8:
            n = out.size // 8 * 8
            out.reshape(-1)[n:] = (p32.astype(np.float64) - step.astype(np.float64) * 1.001).reshape(-1)[n:]
        store(p, g, a, m, s, out, acc, mom, fault)


def store(p, g, a, m, s, out, acc, mom, fault):
    if fault == "flushed":
        out, acc = (np.where(np.abs(x) < f32(1.17549435e-38), f32(0) * x, x) for x in (out, acc))
    if fault == "truncated":
        drop = {"float32": 1, "float16": 13, "bfloat16": 16}[p.dtype.name]
        cut = (out.view(np.uint32) >> np.uint32(drop) << np.uint32(drop)).view(f32)
        out = np.where(np.isfinite(out), cut, out)
    if fault != "parameters not updated":
        p[...] = out.astype(p.dtype)
    writes = mom != 0
    if fault == "mask m > 0":
        writes = mom > 0
    if fault == "mask through float16":
        writes = np.float16(mom) != 0
    if fault == "no mask" or (fault == "negative zero is a number" and np.signbit(mom)):
        writes = True
    if writes:
        if fault != "accum not written":
            a[...] = acc.astype(a.dtype)
        if fault == "stat times zero":
            s[...] = ((f32(1) - s.astype(f32)) * f32(0)).astype(s.dtype)
        elif fault != "stat not cleared":
            s[...] = 0
    elif fault == "stat cleared without momentum":
        s[...] = 0
    elif fault == "kept NaNs made quiet":
        a[...] = a.astype(f32).astype(a.dtype) if a.dtype != f32 else np.where(np.isnan(a), f32(np.nan), a)
    if fault == "gradient overwritten":
        g[...] = acc.astype(g.dtype)


FAULTS = (
    "dampening ignored", "nesterov ignored", "weight decay compared before float32", "weight decay never absent",
    "dampening inside", "tail from float64", "flushed", "truncated", "parameters not updated", "mask m > 0",
    "mask through float16", "no mask", "negative zero is a number", "accum not written", "stat times zero",
    "stat not cleared", "stat cleared without momentum", "gradient overwritten", "kept NaNs made quiet",
)
IN_FLOAT32_ONLY = ("fused",)  # a product of two 16-bit numbers is exact in float32

nothing = functools.partial(correct, fault="parameters not updated")
undamped = functools.partial(correct, fault="dampening ignored")
forgetful = functools.partial(correct, fault="accum not written")


def raises(*tensors, **attributes):
    raise RuntimeError("the device is on fire")


def exits(*tensors, **attributes):
    raise SystemExit(0)


def crashes(*tensors, **attributes):
    os.abort()


def wrong_dtype(p, g, lr, a, m, s, **attributes):
    return p.astype(np.float64), a, s


def too_few(p, g, lr, a, m, s, **attributes):
    return p, a


def returns_new(p, g, lr, a, m, s, **attributes):
    """Correct, and leaves its arguments alone."""
    p, a, s = p.copy(), a.copy(), s.copy()
    correct(p, g, lr, a, m, s, **attributes)
    return p, a, s


def any_nan(p, g, lr, a, m, s, **attributes):
    """Correct: the payload of a computed NaN is its own affair."""
    correct(p, g, lr, a, m, s, **attributes)
    for x in (p, a) if f32(m[0]) != 0 else (p,):
        words = x.view(np.uint32 if x.dtype == f32 else np.uint16)
        words[np.isnan(x.astype(f32))] = np.iinfo(words.dtype).max  # negative, all of the payload set


def writes_behind(p, g, lr, a, m, s, **attributes):
    """Computes whole vectors: also the element behind the last one. To be called between guards only."""
    correct(p, g, lr, a, m, s, **attributes)
    np.lib.stride_tricks.as_strided(p.reshape(-1), (p.size + 1,))[p.size] = 0


def changes_momentum(p, g, lr, a, m, s, **attributes):
    correct(p, g, lr, a, m, s, **attributes)
    m[...] = 0


def wrong_for_some(p, g, lr, a, m, s, **attributes):
    """Slow, and wrong in up to four elements of stat: as many as the first pattern of parameters says."""
    word = int(p.view(np.uint16)[0])
    correct(p, g, lr, a, m, s, **attributes)
    time.sleep(0.002)
    s.view(np.uint16)[:word % 5] ^= 1


def torch_loop(parameters, gradient, momentum_buffer, *, lr, momentum, dampening, weight_decay, nesterov, maximize):
    """torch.optim.SGD's own for-loop."""
    import torch

    p = torch.from_numpy(parameters)
    p.grad = torch.from_numpy(gradient)
    optimizer = torch.optim.SGD([p], foreach=False)
    optimizer.param_groups[0].update(lr=lr, momentum=momentum, dampening=dampening, weight_decay=weight_decay,
                                     nesterov=nesterov, maximize=maximize)
    if momentum_buffer is not None:
        optimizer.state[p]["momentum_buffer"] = torch.from_numpy(momentum_buffer)
    optimizer.step()
    buffer = optimizer.state[p].get("momentum_buffer") if p in optimizer.state else None
    return parameters, None if buffer is None else buffer.numpy()


not_callable = 3
