"""The standard Momentum node: where it is the operator, and the reasons where it is not."""

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest

import samestep
from graph.onnx_runs import Evaluator
from samestep.contract import ContractError
from samestep.graph.momentum import MomentumDiffersError, differences, momentum_model
from suite import scalar, tensors

N = 4000
# attributes and stat, and the kinds of what sets Momentum apart
CASES = [
    ({"weight_decay": 0.01}, set()),
    ({"weight_decay": 0.01, "nesterov": True, "order": "ascend950"}, set()),
    ({"weight_decay": 0.01, "stat": 1.0, "momentum": -0.5}, set()),
    ({"weight_decay": 0.01, "stat": [0.0, 1.0]}, set()),  # without dampening nobody reads stat
    ({}, {"special"}),
    ({"nesterov": True, "order": "ascend950"}, {"special"}),
    ({"dampening": 0.1, "weight_decay": 0.01, "stat": 1.0}, {"special"}),
    ({"dampening": 0.1, "stat": 1.0, "order": "ascend950"}, {"special"}),
    ({"nesterov": True, "weight_decay": 0.01}, {"rounding"}),
    ({"dampening": 0.1, "weight_decay": 0.01, "stat": 0.0}, {"rounding"}),
]


def both(given, special):
    """Words of (parameters, accum) by the reference engine and by the Momentum node."""
    rng = np.random.default_rng(7)
    if special:
        words = tensors(rng, N, "float32")[:3]
    else:
        words = [rng.standard_normal(N).astype(np.float32).view(np.uint32) for _ in range(3)]
    arguments = {"momentum": 0.9} | given
    model = momentum_model((N,), equal="mathematically", **arguments)
    feeds = dict(zip(("parameters", "gradient", "accum"), words, strict=True))
    lr, m = scalar(0.1, "float32"), scalar(arguments.pop("momentum"), "float32")
    found = Evaluator(model)(feeds | {"learning_rate": lr.view(np.uint32)}, "float32")
    stat = np.resize(np.array(arguments.pop("stat", 0.0), np.float32), N)
    p, g, a = (column.copy().view(np.float32) for column in words)
    samestep.sgd_(p, g, lr, a, m, stat, engine="reference", **arguments)
    return [p, a], [column.view(np.float32) for column in found]


def same_bits(one, other):
    return (one.view(np.uint32) == other.view(np.uint32)) | (np.isnan(one) & np.isnan(other))


@pytest.mark.parametrize(("given", "kinds"), CASES, ids=str)
def test_equal_as_said(given, kinds):
    """Nothing said: every bit, for any input. Special: the same numbers if all are finite. Rounding: nearly."""
    assert {one.kind for one in differences(**({"momentum": 0.9} | given))} == kinds
    for special in (False, True):
        want, got = both(given, special)
        for one, other in zip(want, got, strict=True):
            if not kinds:
                assert same_bits(one, other).all()
            elif not special:
                assert (one == other).all() == ("rounding" not in kinds) or one is want[1]
                np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("given", "kinds"), [case for case in CASES if case[1]], ids=str)
def test_what_is_said_to_differ_does(given, kinds):
    """No difference is claimed that does not exist."""
    want, got = both(given, special="special" in kinds)
    assert not all(same_bits(one, other).all() for one, other in zip(want, got, strict=True))


def test_the_model():
    model = momentum_model((2, -1), momentum=0.9, weight_decay=0.01, stat=1)
    (node,) = model.graph.node
    assert (node.domain, node.op_type) == ("ai.onnx.preview.training", "Momentum")
    given = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    assert given == {"alpha": float(np.float32(0.9)), "beta": 1.0, "norm_coefficient": float(np.float32(0.01)),
                     "mode": b"standard"}
    assert [value.name for value in model.graph.input] == ["parameters", "gradient", "learning_rate", "accum"]
    assert [onnx.numpy_helper.to_array(value).item() for value in model.graph.initializer] == [0]
    assert onnx.numpy_helper.to_array(momentum_model((2,), momentum=0.9).graph.initializer[0]).item() == 1


REFUSED = [
    ({"momentum": 0.0}, "overwrites accum"),
    ({"momentum": -0.0}, "overwrites accum"),
    ({"momentum": 1e-50}, "overwrites accum"),
    ({"momentum": None}, "must be a constant"),
    ({"dtype": "float16"}, "has no float16"),
    ({"dtype": "bfloat16"}, "has no bfloat16"),
    ({"dampening": 0.1}, "stat must be known"),
    ({"dampening": 0.1, "stat": [0.0, 1.0]}, "0 everywhere or 1 everywhere"),
    ({"dampening": 0.1, "stat": 0.5}, "0 everywhere or 1 everywhere"),
    ({"dampening": 0.1, "stat": math.nan}, "0 everywhere or 1 everywhere"),
    ({"dampening": 0.1, "stat": 0}, "multiplied by 1 - dampening once"),
    ({"nesterov": True}, "order 'ascend950'"),
]


@pytest.mark.parametrize(("given", "reason"), REFUSED, ids=str)
def test_refusals_say_why(given, reason):
    with pytest.raises(MomentumDiffersError, match=reason) as caught:
        momentum_model((2,), **({"momentum": 0.9} | given))
    rounding = {one.kind for one in caught.value.differences} == {"rounding"}
    assert ("equal='mathematically'" in str(caught.value)) == rounding
    assert "samestep.graph.onnx.model" in str(caught.value)


def test_all_reasons_come_at_once():
    with pytest.raises(MomentumDiffersError) as caught:
        momentum_model((2,), "float16", momentum=None, dampening=0.1, stat=[0, 1])
    assert len(caught.value.differences) == 3


def test_a_difference_in_value_is_refused_however_equal():
    with pytest.raises(MomentumDiffersError):
        momentum_model((2,), momentum=0.0, equal="mathematically")


@pytest.mark.parametrize(("given", "code"), [
    ({"weight_decay": -1}, "attribute_value_out_of_range"), ({"order": "x"}, "unknown_order"),
    ({"shape": ()}, "rank_out_of_range"), ({"dtype": "float64"}, "unsupported_dtype"),
    ({"shape": (-2,)}, "rank_out_of_range")])
def test_the_operators_own_refusals(given, code):
    with pytest.raises(ContractError) as caught:
        momentum_model(**({"shape": (2,), "momentum": 0.9} | given))
    assert caught.value.code == code


def test_how_equal_is_one_of_two():
    with pytest.raises(ValueError, match="bits, mathematically"):
        momentum_model((2,), momentum=0.9, equal="nearly")
