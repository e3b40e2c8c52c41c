"""What a kernel may do instead of its rule: a hypothesis names one choice for everything that can vary."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from samestep.rules import RULES

RULE_NAMES = ("cann", "torch", "trace", "keras", *(name for name in RULES if name not in ("trace", "keras")))
# The two terms whose evaluation the orders of rule cann choose; the last two mix them.
ORDERS = ("spec", "ascend950", "ascend950 dampening", "ascend950 nesterov")
INNERS = ("float32", "tensor", "float64")
FLUSHES = ("", "inputs", "outputs", "both", "loads", "stores", "loads and stores")
STATS = ("zero", "product", "stat*0", "kept", "with dampening")
IN_SUMS = "rounded in sums"
TORCH_FUSED = frozenset({"weight decay", "velocity/grad", "nesterov/accum", "step"})

_FLOAT16_MAX = 65504.0


def _float16(m: float) -> float:
    return float(np.float16(max(-_FLOAT16_MAX, min(_FLOAT16_MAX, m)))) if math.isfinite(m) else m


def _cut(m: float, function: Callable[[float], int]) -> bool:
    return not math.isfinite(m) or function(m) != 0


# name: whether accum and stat are written at this momentum; of two that fit alike the first is named
MASKS: dict[str, Callable[[float], bool]] = {
    "ieee": lambda m: m != 0,
    "always": lambda m: True,
    "positive": lambda m: m > 0,
    "float16": lambda m: _float16(m) != 0,
    "floor": lambda m: _cut(m, math.floor),
    "ceil": lambda m: _cut(m, math.ceil),
    "float16-floor": lambda m: _cut(_float16(m), math.floor),
    "float16-ceil": lambda m: _cut(_float16(m), math.ceil),
    "truncated": lambda m: _cut(m, math.trunc),
    "ordered": lambda m: m < 0 or m > 0,
    "bits": lambda m: m != 0 or math.copysign(1.0, m) < 0,
    "normal": lambda m: not abs(m) < 2.0**-126,
    "float16 normal": lambda m: not abs(_float16(m)) < 2.0**-14,
    "above 1e-8": lambda m: abs(m) > 1e-8,
    "above 1e-6": lambda m: abs(m) > 1e-6,
}
_MASK_TEXTS = {
    "ieee": "accum and stat written if momentum != 0",
    "always": "accum and stat written also when momentum is 0",
    "positive": "accum and stat written only if momentum > 0",
    "float16": "momentum tested for zero after rounding to float16",
    "float16-floor": "floor(momentum), of momentum in float16, tested for zero",
    "float16-ceil": "ceil(momentum), of momentum in float16, tested for zero",
    "floor": "floor(momentum) tested for zero",
    "ceil": "ceil(momentum) tested for zero",
    "truncated": "momentum tested for zero after truncating to an integer",
    "ordered": "a NaN momentum taken for zero by the mask",
    "bits": "a momentum of -0 taken for non-zero by the mask",
    "normal": "a subnormal momentum taken for zero by the mask",
    "float16 normal": "momentum tested for zero in float16, whose subnormals count as zero",
    "above 1e-8": "a momentum of at most 1e-8 taken for zero by the mask",
    "above 1e-6": "a momentum of at most 1e-6 taken for zero by the mask",
}
_STAT_TEXTS = {
    "zero": "stat cleared to +0", "product": "stat written as (1-stat)*0", "stat*0": "stat written as stat*0",
    "kept": "stat not cleared", "with dampening": "stat cleared only with dampening",
}
_FLUSH_TEXTS = {
    "inputs": "subnormal operands taken as zero", "outputs": "subnormal results flushed to zero",
    "both": "subnormal operands and results flushed to zero", "loads": "subnormal inputs read as zero",
    "stores": "subnormal outputs stored as zero", "loads and stores": "subnormal inputs and outputs flushed to zero",
}
_INNER_TEXTS = {
    "float32": "computed in float32", "tensor": "every operation rounded to the tensors' dtype",
    "float64": "computed in float64",
}
_STORE_TEXTS = {
    "nearest-even": "rounded to nearest even when stored", "truncate": "truncated when stored",
    "half-away": "ties rounded away from zero when stored", "through float32": "rounded twice, through float32",
}

# Faults by where they act. Each is a deviation of its own.
DAMPENING_FAULTS = ("dampening ignored", "stat not read", "stat read as a flag", "stat inverted",
                    "dampening inside the momentum test")
VELOCITY_FAULTS = ("weight decay ignored", "accum not read", "accum not read at momentum 0")
STEP_FAULTS = ("nesterov ignored", "parameters not updated", "p from the stored accum", "maximize ignored",
               "maximize after weight decay")
WRITE_FAULTS = ("accum not written", "overflow saturated", "accum truncated", "parameters truncated",
                "gradient overwritten")
FAULTS = DAMPENING_FAULTS + VELOCITY_FAULTS + STEP_FAULTS + WRITE_FAULTS
_FAULT_TEXTS = {
    "dampening inside the momentum test": "dampening left out where momentum is 0",
    "p from the stored accum": "parameters computed from the stored accum",
    "stat inverted": "stat taken for 1-stat", "maximize after weight decay": "maximize applied after weight decay",
    "overflow saturated": "overflows stored as the largest number",
}


class Hypothesis(NamedTuple):
    """One way to compute and write a step.

    Fields:
        rule: "cann", "torch" or a name of `samestep.rules.RULES`.
        order: for rule cann one of `ORDERS`, else "".
        fused: names of the sums that take a product unrounded; see `samestep.verify.fingerprint.numbers`.
        inner: type of the arithmetic, one of `INNERS`; "tensor" is the dtype of the tensors, operation by operation.
        flush: "" or one of `FLUSHES`: of operations (inputs, outputs, both) or of whole tensors (loads, stores).
        hyperparameters: "given", "float64" (never rounded), "rounded in sums" (`IN_SUMS`: to the tensors' dtype where
            torch's ``add(x, alpha=...)`` takes them), or "rounded" to the tensors' dtype, also "rounded NAME
            NAME" for some of them (lr, momentum, dampening, weight_decay).
        mask: when accum and stat are written, one of `MASKS`.
        stat: what is written into stat, one of `STATS`.
        store: how results are rounded to the tensors' dtype, one of `samestep.verify.fingerprint.numbers.STORES`.
        faults: names from `FAULTS`.
        where: "all", or the part of the tensor that this is said of ("body of vectors of 16", "tail", ...).
    """

    rule: str = "cann"
    order: str = "spec"
    fused: frozenset[str] = frozenset()
    inner: str = "float32"
    flush: str = ""
    hyperparameters: str = "given"
    mask: str = "ieee"
    stat: str = "zero"
    store: str = "nearest-even"
    faults: frozenset[str] = frozenset()
    where: str = "all"

    def __str__(self) -> str:
        """The rule and everything that sets this apart from it."""
        return self.sentence

    @property
    def sentence(self) -> str:
        """The rule and everything that sets this apart from it, in words."""
        name = f"{self.rule} / {self.order}" if self.order else self.rule
        place = "" if self.where == "all" else f" in the {self.where}"
        base = plain(self.rule, self.order)
        computed = f", {_INNER_TEXTS[self.inner]}" if self.inner != base.inner else ""
        stored = f", {_STORE_TEXTS[self.store]}" if self.store != base.store else ""
        arithmetic = _with(_arithmetic(self, base))
        wrong = _with(_faults(self, base))
        return (f"{name}{place}{computed}" + (f"{computed and ','} {arithmetic}" if arithmetic else "") + stored
                + (f", but {wrong}" if wrong else ""))

    def with_fault(self, fault: str) -> Hypothesis:
        """The same, and one fault more."""
        return self._replace(faults=self.faults | {fault})


def plain(rule: str, order: str = "spec", dtype: str = "float32") -> Hypothesis:
    """The rule itself, without deviation, for tensors of `dtype`."""
    inner = "float64" if dtype == "float64" else "float32"
    if rule == "cann":
        return Hypothesis("cann", order, inner=inner)
    if rule == "torch":
        return Hypothesis("torch", "", TORCH_FUSED, inner=inner)
    mask = "always" if RULES[rule].at_zero == "overwritten" else "ieee"
    return Hypothesis(rule, "", mask="positive" if rule in ("mindspore-cpu", "mlx") else mask, inner=inner)


def _with(texts: list[str]) -> str:
    return f"with {_listed(texts)}" if texts else ""


def _listed(texts: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(texts[:-1]), texts[-1])))


def _arithmetic(h: Hypothesis, base: Hypothesis) -> list[str]:
    """What `h` does otherwise than its rule in the arithmetic, in words."""
    texts: list[str] = []
    if h.fused != base.fused:
        expressions = _expressions(h)
        for sites, text in ((h.fused - base.fused, "fused"), (base.fused - h.fused, "not fused")):
            if text == "not fused" and not h.fused:
                texts.append("no multiply-add fused")
            elif sites:
                texts.append(f"{_listed([expressions.get(site, site) for site in sorted(sites)])} {text}")
    if h.hyperparameters == IN_SUMS:
        texts.append("hyperparameters rounded to the tensors' dtype where a sum scales by them")
    elif h.hyperparameters.startswith("rounded"):
        names = [name.replace("_", " ") for name in h.hyperparameters.split()[1:]] or ["hyperparameters"]
        texts.append(f"{_listed(names)} rounded to the tensors' dtype")
    elif h.hyperparameters != base.hyperparameters:
        texts.append("hyperparameters in float64")
    if h.flush != base.flush:
        texts.append(_FLUSH_TEXTS[h.flush])
    return texts


def _faults(h: Hypothesis, base: Hypothesis) -> list[str]:
    """What `h` forgets or writes otherwise, in words."""
    texts = [_FAULT_TEXTS.get(fault, fault) for fault in sorted(h.faults)]
    if h.mask != base.mask:
        texts.append(_MASK_TEXTS[h.mask])
    if h.stat != base.stat:
        texts.append(_STAT_TEXTS[h.stat])
    return texts


@functools.lru_cache(maxsize=1 << 16)
def complexity(h: Hypothesis, reference: Hypothesis) -> tuple[int, int, int, int, str]:
    """For sorting: what takes fewest words beyond `reference` first; a known rule is simpler than an altered one."""
    base = plain(h.rule, h.order)
    strange = h.rule != reference.rule and "cann" in (h.rule, reference.rule) and h.rule != "mindspore-cpu"
    cost = 6 * strange + 2 * (h.rule != reference.rule) + 2 * (h.rule == reference.rule and h.order != reference.order)
    changed = h.fused ^ base.fused
    swapped = len(changed) - len({stem(name) for name in changed})
    cost += 4 * (h.order not in (*ORDERS[:2], "")) + (4 + len(changed) + 6 * swapped if changed else 0)
    for value, usual in ((h.inner, reference.inner), (h.flush, base.flush), (h.mask, base.mask), (h.stat, base.stat),
                         (h.store, base.store), (h.where, "all")):
        cost += 6 * (value != usual)
    cost += 2 * (h.hyperparameters != "given") + 2 * max(1, len(h.hyperparameters.split())) + 8 * len(h.faults)
    cost -= sum(fault.endswith("momentum 0") for fault in h.faults)  # says less than its like
    return cost, RULE_NAMES.index(h.rule), list(MASKS).index(h.mask), len(h.sentence), h.sentence


def _expressions(h: Hypothesis) -> dict[str, str]:
    from samestep.verify.fingerprint.evaluate import sites_of

    return sites_of(h.rule, h.order)


def stem(site: str) -> str:
    """The name of a sum, without which of its products is fused."""
    return site.replace("/accum", "").replace("/grad", "")


def rounded_names(h: Hypothesis) -> frozenset[str]:
    """Which hyperparameters are rounded to the tensors' dtype."""
    if not h.hyperparameters.startswith("rounded") or h.hyperparameters == IN_SUMS:
        return frozenset()
    return frozenset(h.hyperparameters.split()[1:] or ("lr", "momentum", "dampening", "weight_decay"))
