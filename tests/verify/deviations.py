"""The deviations of mutants.py: one at a time, in pairs, and in parts of a tensor, each with a step that shows it."""

from __future__ import annotations

import itertools
from typing import NamedTuple

from verify.mutants import Kernel, Split

DTYPES = ("float32", "float16", "bfloat16")
SIXTEEN = ("float16", "bfloat16")
WIDE = ("float32", "bfloat16")  # the exponents of float32: only these have subnormals of float32


class Step(NamedTuple):
    """The hyperparameters of a recorded step."""

    learning_rate: float = 0.1
    momentum: float = 0.9
    dampening: float = 0.3
    weight_decay: float = 0.01
    nesterov: bool = False


NESTEROV = Step(dampening=0.0, nesterov=True)


class Deviation(NamedTuple):
    """A mutant: the kernel, the dtypes in which it differs from the right one, and a step on which it can.

    `same` are other names of the same function: equal bits for every input. In float16 a*m is exact in float32, so a
    fused velocity is none there.
    """

    name: str
    kernel: Kernel | Split
    dtypes: tuple[str, ...] = DTYPES
    step: Step = Step()
    same: tuple[Kernel, ...] = ()


def fused(*sites, **also):
    return Kernel(fused=frozenset(sites), **also)


def fault(*names, **also):
    return Kernel(faults=frozenset(names), **also)


ASCEND = {"order": "ascend950"}
FUSED = [
    Deviation("weight decay fused", fused("weight decay")),
    Deviation("velocity fused", fused("velocity/accum"), WIDE),
    Deviation("dampening fused", fused("dampening")),
    Deviation("step fused", fused("step")),
    Deviation("nesterov fused, grad", fused("nesterov/grad"), step=NESTEROV),
    Deviation("nesterov fused, accum", fused("nesterov/accum"), step=NESTEROV),
    Deviation("velocity and step fused", fused("velocity/accum", "step")),
    Deviation("all of a plain step fused", fused("weight decay", "velocity/accum", "dampening", "step")),
    Deviation("ascend950: dampening fused", fused("dampening", **ASCEND)),
    Deviation("ascend950: nesterov fused", fused("nesterov/accum", **ASCEND), step=NESTEROV),
    Deviation("ascend950: step fused", fused("step", **ASCEND), step=NESTEROV),
    Deviation("ascend950: velocity fused", fused("velocity/accum", **ASCEND), step=NESTEROV),
]
ORDERS = [
    Deviation("ascend950", Kernel(order="ascend950")),
    Deviation("ascend950, nesterov", Kernel(order="ascend950"), step=NESTEROV),
    Deviation("ascend950 dampening", Kernel(order="ascend950 dampening")),
    Deviation("ascend950 nesterov", Kernel(order="ascend950 nesterov"), step=NESTEROV),
]
TYPES = [
    Deviation("every operation in the tensor's type", Kernel(inner="tensor"), SIXTEEN),
    Deviation("ascend950 in the tensor's type", Kernel(inner="tensor", order="ascend950"), SIXTEEN, NESTEROV),
    Deviation("float64 inside", Kernel(inner="float64")),
    Deviation("double attributes and arithmetic", Kernel(inner="float64", hyperparameters="float64")),
    Deviation("attributes rounded", Kernel(hyperparameters="rounded"), SIXTEEN),
    Deviation("dampening rounded", Kernel(hyperparameters="rounded dampening"), SIXTEEN),
    Deviation("weight decay rounded", Kernel(hyperparameters="rounded weight_decay"), SIXTEEN),
]
FLUSHES = [
    *(Deviation(f"flush {flush}", Kernel(flush=flush), WIDE) for flush in ("inputs", "outputs", "both")),
    *(Deviation(f"flush {flush}", Kernel(flush=flush)) for flush in ("loads", "stores", "loads and stores")),
]
# mask: a momentum at which it differs from m != 0.
MASKS = [
    Deviation(f"mask {mask}", Kernel(mask=mask), dtypes, Step(momentum=momentum)) for mask, momentum, dtypes in (
        ("always", 0.0, DTYPES), ("positive", -0.5, DTYPES), ("bits", -0.0, DTYPES), ("ordered", float("nan"), DTYPES),
        ("float16", 1e-8, WIDE), ("float16 normal", 3e-5, DTYPES), ("float16-floor", 0.9, DTYPES),
        ("float16-ceil", -0.5, DTYPES), ("floor", 0.9, DTYPES), ("ceil", -0.5, DTYPES), ("truncated", 0.9, DTYPES),
        ("normal", 1e-39, WIDE), ("above 1e-8", 5e-9, WIDE), ("above 1e-6", 5e-7, DTYPES))
]
STATS = [Deviation(f"stat {stat}", Kernel(stat=stat), step=step) for stat, step in (
    ("product", Step()), ("stat*0", Step()), ("kept", Step()), ("with dampening", NESTEROV))]
STORES = [
    Deviation("truncated when stored", Kernel(store="truncate"), SIXTEEN),
    Deviation("ties away from zero", Kernel(store="half-away"), SIXTEEN),
    Deviation("accum truncated", fault("accum truncated"), SIXTEEN),
    Deviation("parameters truncated", fault("parameters truncated"), SIXTEEN),
    Deviation("overflow saturated", fault("overflow saturated"), SIXTEEN),
]
FAULTS = [
    Deviation("dampening ignored", fault("dampening ignored")),
    Deviation("stat not read", fault("stat not read")),
    Deviation("stat read as a flag", fault("stat read as a flag")),
    Deviation("stat inverted", fault("stat inverted")),
    Deviation("dampening inside the momentum test", fault("dampening inside the momentum test"),
              step=Step(momentum=0.0)),
    Deviation("weight decay ignored", fault("weight decay ignored")),
    Deviation("accum not read", fault("accum not read")),
    Deviation("accum not read at momentum 0", fault("accum not read at momentum 0"), step=Step(momentum=0.0)),
    Deviation("nesterov ignored", fault("nesterov ignored"), step=NESTEROV),
    Deviation("parameters not updated", fault("parameters not updated")),
    Deviation("p from the stored accum", fault("p from the stored accum"), SIXTEEN),
    Deviation("accum not written", fault("accum not written")),
    Deviation("gradient overwritten", fault("gradient overwritten")),
]
_TORCH_FUSED = frozenset({"weight decay", "velocity/grad", "nesterov/accum", "step"})
_UNFUSED_TORCH = Kernel(rule="torch", order="", mask="positive")
_TRACE = fault("dampening ignored", order="ascend950", mask="always")
_TF1 = fault("dampening ignored", "weight decay ignored", mask="always")
RULES = [
    Deviation("torch", Kernel(rule="torch", order="", fused=_TORCH_FUSED)),
    Deviation("mindspore-cpu", Kernel(rule="mindspore-cpu", order="", mask="positive"), same=(_UNFUSED_TORCH,)),
    Deviation("onnx", Kernel(rule="onnx", order="", mask="always")),
    Deviation("trace", Kernel(rule="trace", order="", mask="always"), step=NESTEROV, same=(_TRACE,)),
    Deviation("tf1", Kernel(rule="tf1", order="", mask="always"), same=(_TF1,)),
    Deviation("keras", Kernel(rule="keras", order="")),
    Deviation("tf-keras", Kernel(rule="tf-keras", order="", mask="always"), step=Step(0.1, 0.0)),
    Deviation("mxnet", Kernel(rule="mxnet", order="", faults=frozenset({"nesterov ignored"})), step=NESTEROV),
    Deviation("mlx", Kernel(rule="mlx", order="", mask="positive")),
    Deviation("caffe", Kernel(rule="caffe", order="", mask="always")),
    Deviation("ema", Kernel(rule="ema", order="", mask="always")),
]
TORCH = RULES[0].kernel
PARTS = [
    Deviation("velocity fused in a tail of 8", Split(Kernel(), fused("velocity/accum"), 8), WIDE),
    Deviation("step fused in the body of 16", Split(fused("step"), Kernel(), 16)),
    Deviation("tail of 16 keeps stat", Split(Kernel(), Kernel(stat="kept"), 16)),
    Deviation("tail of 32 without dampening", Split(Kernel(), fault("dampening ignored"), 32)),
    Deviation("body of 32 never stored", Split(fault("parameters not updated"), Kernel(), 32)),
    Deviation("tail of 64 by torch's rule", Split(Kernel(), TORCH, 64)),
    Deviation("tail of 128 truncated", Split(Kernel(), Kernel(store="truncate"), 128), SIXTEEN),
    Deviation("ascend950 in the body of 64", Split(Kernel(order="ascend950"), Kernel(), 64)),
]
SINGLE = FUSED + ORDERS + TYPES + FLUSHES + MASKS + STATS + STORES + FAULTS + RULES + PARTS


def both(one, other):
    """The pair of two deviations of rule cann, or None where they contradict or one step cannot show both."""
    right, usual = Kernel(), Step()
    fields = {}
    for name in Kernel._fields:
        values = [getattr(one.kernel, name), getattr(other.kernel, name)]
        changed = [value for value in values if value != getattr(right, name)]
        if len(changed) == 2 and isinstance(changed[0], frozenset):
            changed = [changed[0] | changed[1]]
        if len(changed) == 2 and changed[0] != changed[1]:
            return None
        fields[name] = changed[0] if changed else getattr(right, name)
    steps = [step for step in (one.step, other.step) if step != usual]
    if len(steps) == 2 and steps[0] != steps[1]:
        return None
    dtypes = tuple(dtype for dtype in DTYPES if dtype in one.dtypes and dtype in other.dtypes)
    return Deviation(f"{one.name} + {other.name}", Kernel(**fields), dtypes, steps[0] if steps else usual)


def named(*names):
    return [deviation for name in names for deviation in SINGLE if deviation.name == name]


_ONE = named("velocity fused", "step fused", "weight decay fused", "ascend950", "nesterov fused, grad",
             "attributes rounded", "float64 inside")
_OTHER = named("stat kept", "stat product", "mask positive", "truncated when stored", "ties away from zero",
               "flush stores", "weight decay ignored", "dampening ignored", "stat inverted", "accum not written",
               "parameters not updated", "gradient overwritten", "p from the stored accum", "overflow saturated")
# A double that is rounded to bfloat16 is rounded to float32 before, by everybody; ties then mean another thing.
_ONE_STORE = {("float64 inside", "ties away from zero"), ("float64 inside", "truncated when stored")}
# One deviation would hide the other: the first is in a term the second leaves out, or in a result it does not write.
_HIDDEN = {("weight decay fused", "weight decay ignored"), ("ascend950", "dampening ignored"),
           ("nesterov fused, grad", "dampening ignored"), ("nesterov fused, grad", "stat inverted"),
           ("nesterov fused, grad", "parameters not updated"), ("step fused", "parameters not updated"),
           ("float64 inside", "p from the stored accum")}
PAIRS = [pair for one, other in itertools.product(_ONE, _OTHER)
         if (one.name, other.name) not in _HIDDEN | _ONE_STORE and (pair := both(one, other)) is not None]
