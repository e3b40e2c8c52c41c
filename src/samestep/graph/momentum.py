"""The operator as the standard ONNX operator Momentum (domain ai.onnx.preview.training), where the two are equal.

Momentum computes V = alpha*V + beta*G and X = X - R*V (or X - R*(G + alpha*V)), where norm_coefficient*X was added to G
and beta counts as 1 while T is 0. So alpha is momentum, beta 1 - dampening, norm_coefficient weight_decay, R the
learning rate, and T == 0 is a stat of 1, T > 0 one of 0 (rule D, row onnx).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from samestep.contract import Attributes, check_attributes, check_order
from samestep.graph.onnx import OUTPUTS, finished, value_info
from samestep.graph.onnx_functions import package
from samestep.rounding import round_number
from samestep.shapes import TensorSpec, infer

if TYPE_CHECKING:
    from onnx import ModelProto

DOMAIN, VERSION = "ai.onnx.preview.training", 1
GRADES = ("bits", "mathematically")


class Difference(NamedTuple):
    """Where Momentum departs from the operator.

    ``kind``: ``value``, other results, even with exact numbers; ``rounding``, other last bits; ``special``, only where
    infinities or NaNs are, or in the sign of a zero.
    """

    kind: str
    text: str


class MomentumDiffersError(ValueError):
    """Momentum cannot stand for the operator; ``differences`` says why."""

    def __init__(self, differences: Sequence[Difference]) -> None:
        super().__init__(differences)
        self.differences = tuple(differences)

    def __str__(self) -> str:
        reasons = "; ".join(difference.text for difference in self.differences)
        hint = "use samestep.graph.onnx.model, which has all of the operator"
        if all(difference.kind == "rounding" for difference in self.differences):
            hint = f"pass equal='mathematically' to accept that, or {hint}"
        return f"the standard Momentum differs from SGD here: {reasons}; {hint}"


def differences(
    dtype: str = "float32", *, momentum: float | None, stat: Any = None, dampening: float = 0.0,
    weight_decay: float = 0.0, nesterov: bool = False, order: str = "spec",
) -> tuple[Difference, ...]:
    """All that sets Momentum apart from the operator in a case; empty where every bit is the same for every input.

    Arguments: ``momentum`` the constant, None if it is known only when the model runs; ``stat`` a number or an array,
    None if unknown (it is not read without dampening); the others as for `samestep.sgd_`, and refused like there.
    """
    check_order(order)
    attributes = check_attributes(dampening, weight_decay, nesterov)
    found = _values(dtype, momentum, stat, attributes)
    damped = attributes.dampening != 0
    if damped and _uniform(stat) == 0:
        found.append(Difference("rounding", "the gradient is multiplied by 1 - dampening once, where the operator "
                                "subtracts (gradient*(1 - stat))*dampening"))
    if nesterov and order == "spec":
        found.append(Difference("rounding", "with Nesterov the sum is multiplied by lr, as in order 'ascend950'; order "
                                "'spec' multiplies each of the two by lr"))
    if attributes.weight_decay == 0:
        found.append(Difference("special", "0*parameters is added to the gradient although weight_decay is 0: NaN "
                                "where parameters are not finite, +0 where the gradient is -0"))
    if damped and _uniform(stat) == 1:
        found.append(Difference("special", "the damped gradient of a first step, 0, is not subtracted: the operator "
                                "gets NaN where the gradient is not finite, and may get another sign of a zero"))
    return tuple(found)


def _values(dtype: str, momentum: float | None, stat: Any, attributes: Attributes) -> list[Difference]:
    found = []
    if dtype != "float32":
        found.append(Difference("value", f"Momentum has no {dtype}: it takes float32 or float64"))
    if momentum is None:
        found.append(Difference("value", "momentum is a tensor of the operator but an attribute of Momentum: it must "
                                "be a constant"))
    elif round_number(float(momentum), "float32")[0] == 0:
        found.append(Difference("value", "with momentum 0 Momentum overwrites accum, where the operator writes no byte "
                                "of accum and stat (rule O6)"))
    if attributes.dampening != 0 and _uniform(stat) not in (0, 1):
        found.append(Difference("value", "stat is one number per element, T one for all: with dampening stat must be "
                                "known, and 0 everywhere or 1 everywhere"))
    return found


def _uniform(stat: Any) -> float | None:
    """The one value that stat has everywhere, or None."""
    import numpy as np

    if stat is None:
        return None
    values = np.asarray(stat, np.float64).reshape(-1)
    return float(values[0]) if values.size and (values == values[0]).all() else None


def momentum_model(
    shape: Sequence[int], dtype: str = "float32", *, momentum: float | None, stat: Any = None, dampening: float = 0.0,
    weight_decay: float = 0.0, nesterov: bool = False, order: str = "spec", equal: str = "bits",
) -> ModelProto:
    """A model of one update as a Momentum node.

    Inputs: parameters, gradient, learning_rate, accum. Outputs: parameters_out, accum_out. Afterwards stat is +0
    everywhere, which Momentum does not say.

    ``equal`` is how equal it has to be: ``"bits"``, the same bits for finite numbers, but for the sign of zeros; or
    ``"mathematically"``, up to rounding. The bits are those of onnx's reference evaluator; the standard leaves rounding
    to each runtime, and onnxruntime's CPU provider has no Momentum. The other arguments are those of `differences`.

    Raises `MomentumDiffersError` where the two are not that equal, `ContractError` for what the operator refuses.
    """
    if equal not in GRADES:
        raise ValueError(f"equal={equal!r}; it is one of {', '.join(GRADES)}")
    spec = infer(shape, shape, (1,), shape, (1,), shape, dtype=dtype, dampening=dampening, weight_decay=weight_decay,
                 nesterov=nesterov)
    apart = differences(dtype, momentum=momentum, stat=stat, dampening=dampening, weight_decay=weight_decay,
                        nesterov=nesterov, order=order)
    refused = [one for one in apart if one.kind == "value" or (one.kind == "rounding" and equal == "bits")]
    if refused:
        raise MomentumDiffersError(refused)
    attributes = check_attributes(dampening, weight_decay, nesterov)
    return _model(spec, momentum, attributes, 0 if _uniform(stat) == 1 else 1)


def _model(spec: TensorSpec, momentum: Any, attributes: Attributes, count: int) -> ModelProto:
    onnx, helper = package(), package("onnx.helper")
    node = helper.make_node(
        "Momentum", ["learning_rate", "T", "parameters", "gradient", "accum"], list(OUTPUTS[:2]), domain=DOMAIN,
        alpha=round_number(float(momentum), "float32")[0], beta=1.0 - attributes.dampening,
        norm_coefficient=attributes.weight_decay, mode="nesterov" if attributes.nesterov else "standard")
    names = ("parameters", "gradient", "learning_rate", "accum")
    inputs = [value_info(name, spec._replace(shape=(1,)) if name == "learning_rate" else spec) for name in names]
    outputs = [value_info(name, spec) for name in OUTPUTS[:2]]
    count_of_updates = helper.make_tensor("T", onnx.TensorProto.INT64, [], [count])
    return finished("sgd_as_momentum", [node], inputs, outputs, (), [count_of_updates], (DOMAIN, VERSION))
