"""A recorded step against the rule: what is counted, where, and what is said of it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import dump_files
from samestep.verify.compare import comparison as comparing
from samestep.verify.compare import metrics
from samestep.verify.compare.comparison import compare, verdict
from samestep.verify.patterns import TYPES, WORDS, word_of

DTYPES = ("float32", "float16", "bfloat16")


def words(values, dtype):
    return np.asarray(values, np.float64).astype(TYPES[dtype]).view(WORDS[dtype])


def by_name(comparison):
    return {tensor.name: tensor for tensor in comparison.tensors}


def trained(dtype="bfloat16", size=4096, **attributes):
    """A right step as in training: weights of 0.05 to 0.5, smaller gradients, lr 1e-3, momentum 0.9, a later step."""
    rng = np.random.default_rng(0)
    step = dump_files.step(dtype, (size,), learning_rate=1e-3, momentum=0.9, **attributes)
    problem = step.problem._replace(
        parameters=words(rng.uniform(0.05, 0.5, size), dtype), gradient=words(rng.normal(0, 0.3, size), dtype),
        accum=words(rng.normal(0, 0.3, size), dtype), stat=words(np.zeros(size), dtype))
    right = comparing.judge.expected(problem)
    return step._replace(problem=problem, parameters=right.parameters, accum=right.accum, stat=right.stat)


@pytest.mark.parametrize("order", ["spec", "ascend950"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_right_step_of_rule_cann(dtype, order):
    step = dump_files.step(dtype, (33, 3), dampening=0.25, weight_decay=0.5)
    right = comparing.judge.expected(step.problem, order)
    found = compare(step._replace(parameters=right.parameters, accum=right.accum, stat=right.stat), order)
    assert found.same
    assert found.order == order
    assert found.passing == list(metrics.NAMES)
    assert [(tensor.name, tensor.elements, tensor.differing) for tensor in found.tensors] == [
        ("parameters", 99, 0), ("accum", 99, 0), ("stat", 99, 0)]
    assert verdict([found]) == (f"The same bits as rule cann, order {order}: parameters, accum and stat, 297 elements.")


def test_the_orders_differ_where_they_should():
    step = dump_files.step("float32", (4096,), nesterov=True, learning_rate=0.1, momentum=0.9)
    assert compare(step, "spec").same
    found = by_name(compare(step, "ascend950"))
    assert found["parameters"].differing > 100
    assert found["parameters"].places.kind == "scattered"
    assert found["accum"].differing == 0


@pytest.mark.parametrize("dtype", [*DTYPES, "float64"])
@pytest.mark.parametrize("first", [True, False])
def test_a_right_step_of_rule_torch(dtype, first):
    step = dump_files.step(dtype, rule="torch", weight_decay=0.5, maximize=True, nesterov=True)
    problem = step.problem._replace(accum=None if first else step.problem.accum)
    right = comparing.judge.expected(problem)
    found = compare(step._replace(problem=problem, parameters=right.parameters, accum=right.accum))
    assert found.same
    assert found.order is None
    assert [tensor.name for tensor in found.tensors] == ["parameters", "momentum_buffer"]
    assert verdict([found]).startswith("The same bits as rule torch: parameters and momentum_buffer, 132 elements.")


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_figure_of_a_known_difference(dtype):
    step = dump_files.step(dtype, (100,))
    got = step.parameters.copy()
    got[[7, 9, 50]] += np.array([1, 3, 300], got.dtype)
    found = compare(step._replace(parameters=got), step=4)
    tensor = by_name(found)["parameters"]
    assert not found.same
    assert found.step == 4
    assert (tensor.differing, tensor.first, tensor.max_ulp, tensor.mean_ulp) == (3, 7, 300, 3.04)
    assert (tensor.expected, tensor.got) == (step.parameters[7], step.parameters[7] + 1)
    assert tensor.histogram == [97, 1, 0, 1, 0, 0, 1, 0]
    assert tensor.nan_against_number == 0
    assert by_name(found)["accum"].differing == 0
    assert verdict([found]).startswith("NOT the bits of rule cann, order spec: parameters in 3 of 100 elements.")


def test_nan_against_a_number_and_signs_of_zero():
    step = dump_files.step("float32", (4,))
    got = step.parameters.copy()
    got[1] = 0x7FC00000
    stat = step.stat.copy()
    stat[2] = 0x80000000
    found = by_name(compare(step._replace(parameters=got, stat=stat)))
    assert found["parameters"].max_ulp == math.inf
    assert found["parameters"].mean_ulp == 0
    assert found["parameters"].nan_against_number == 1
    assert found["parameters"].histogram == [3, 0, 0, 0, 0, 0, 0, 1]
    assert (found["stat"].differing, found["stat"].max_ulp, found["stat"].first) == (1, 0, 2)


def test_a_computed_nan_is_any_nan_and_kept_memory_is_not():
    step = dump_files.step("float32", (3,))
    problem = step.problem._replace(accum=np.array([0x7FC00000, 0x3F800000, 0x7F800001], np.uint32))
    right = comparing.judge.expected(problem)
    other = np.where(right.accum > 0x7F800000, np.uint32(0xFFFFFFFF), right.accum)
    assert compare(step._replace(problem=problem, parameters=right.parameters, accum=other)).same
    kept = problem._replace(momentum=0.0)
    right = comparing.judge.expected(kept)
    assert compare(step._replace(problem=kept, parameters=right.parameters, accum=right.accum, stat=right.stat)).same
    payloads = right.accum ^ np.array([1, 0, 2], np.uint32)
    found = compare(step._replace(problem=kept, parameters=right.parameters, accum=payloads, stat=right.stat))
    assert by_name(found)["accum"].differing == 2
    assert by_name(found)["accum"].max_ulp == 0


def test_what_was_not_recorded_and_what_should_not_be_there():
    step = dump_files.step()
    found = compare(step._replace(accum=None, stat=None))
    assert found.same
    assert found.missing == ["accum", "stat"]
    assert verdict([found]) == ("The same bits as rule cann, order spec: parameters, 66 elements; not recorded, so not "
                                "judged: accum and stat.")
    torch_step = dump_files.step(rule="torch", momentum=0.0)
    right = comparing.judge.expected(torch_step.problem._replace(accum=None))
    found = compare(torch_step._replace(problem=torch_step.problem._replace(accum=None), parameters=right.parameters))
    assert found.unexpected == ["momentum_buffer"]
    assert not found.same
    assert "a momentum_buffer that this step does not make" in verdict([found])
    gradient = step.problem.gradient.copy()
    assert compare(step._replace(gradient=gradient.copy())).same
    gradient[5] ^= 1
    found = compare(step._replace(gradient=gradient))
    assert not found.same
    assert found.gradient_differing == 1
    assert "the gradient, which is only read, in 1" in verdict([found])


def test_the_update_in_ulps_by_hand():
    """float16, lr 1, no momentum: p - g, with g in last places of p."""
    p = np.array([0x3C00, 0x3C05, 0x3C00, 0x3C00, 0x0000], np.uint16)  # 1, 1 + 5 ulp, 1, 1, 0
    g = words([-2 * 2**-10, 3 * 2**-10, 0, -(2**-10), 2.0**-24], "float16")
    step = dump_files.step("float16", (5,), learning_rate=1.0, momentum=0.0)
    problem = step.problem._replace(parameters=p, gradient=g, accum=np.zeros(5, np.uint16))
    expected = comparing.judge.expected(problem).parameters
    assert expected.tolist() == [0x3C02, 0x3C02, 0x3C00, 0x3C01, 0x8001]
    found = compare(step._replace(problem=problem, parameters=p)).update
    assert found == comparing.Update(5, 4, 0, 4, 0, (2 + 3 + 0 + 1 + 1) / 5, 0, 3, 0)
    got = np.array([0x3C01, 0x3C08, 0x3C01, 0x3C00, 0x0001], np.uint16)
    found = compare(step._replace(problem=problem, parameters=got)).update
    assert found == comparing.Update(5, 4, 4, 1, 2, 7 / 5, (1 + 3 + 1 + 0 + 1) / 5, 3, 3)


def test_wrong_kernels_that_todays_rules_pass():
    """bf16 at lr 1e-3: nothing updated, ignored dampening, lost state; all red here."""
    step = trained(dampening=0.1)
    problem = step.problem
    still = compare(step._replace(parameters=problem.parameters))
    assert not still.same
    assert still.update.got_moved == 0
    assert still.update.expected_moved > 100
    assert {"mixed tolerance", "MERE", "MARE", "cosine"} <= set(still.passing)
    text = verdict([still])
    assert f"No parameter was updated; {still.update.expected_moved:,} should have changed." in text
    assert "Of today's rules, mixed tolerance, MERE, MARE and cosine would pass it." in text
    assert still.update.still == by_name(still)["parameters"].differing
    undamped = comparing.judge.expected(problem._replace(dampening=0.0))
    found = by_name(compare(step._replace(parameters=undamped.parameters, accum=undamped.accum)))
    assert found["parameters"].differing
    assert found["accum"].differing > 3000
    rules = {metric.name: metric.passed for metric in found["parameters"].metrics}
    assert rules["mixed tolerance"]
    assert rules["cosine"]
    lost = compare(step._replace(accum=problem.accum, stat=problem.stat))
    assert by_name(lost)["accum"].differing > 3000
    assert by_name(lost)["parameters"].differing == 0


def test_a_kernel_that_is_wrong_in_its_vector_body():
    step = trained("float32", 4099)
    got = step.parameters.copy()
    got[:4096] = step.problem.parameters[:4096]
    tensor = by_name(compare(step._replace(parameters=got)))["parameters"]
    assert tensor.places.kind == "body"
    assert "not in the tail of the last 3" in tensor.places.text


def test_several_steps_in_one_sentence():
    step = dump_files.step()
    wrong = step._replace(parameters=step.parameters ^ np.uint32(1))
    right = [compare(step, step=k) for k in range(3)]
    assert verdict(right) == ("The same bits as rule cann, order spec in all 3 steps: parameters, accum and stat, 594 "
                              "elements.")
    text = verdict([right[0], compare(wrong, step=1), compare(wrong, step=2)])
    assert "in 2 of 3 steps, first in step 1: parameters in 66 of 66 elements" in text


def test_pieces_make_the_same_comparison(monkeypatch):
    step = trained("float16", 1000)
    got = step.parameters.copy()
    got[::3] ^= 5
    whole = compare(step._replace(parameters=got))
    monkeypatch.setattr(comparing, "PIECE", 7)
    pieces = compare(step._replace(parameters=got))
    assert pieces.update == whole.update
    assert pieces.tensors == whole.tensors


def test_the_callers_arithmetic_does_not_matter():
    step = dump_files.step("float32", (64,), learning_rate=1.0, momentum=1.0)
    tiny = np.arange(64, dtype=np.uint32)
    problem = step.problem._replace(parameters=tiny * 3, gradient=tiny, accum=tiny)
    right = comparing.judge.expected(problem)
    recorded = step._replace(problem=problem, parameters=right.parameters, accum=right.accum, stat=right.stat)
    assert right.parameters.tolist()[:3] == [0, 1, 2]
    torch.set_flush_denormal(True)
    try:
        assert compare(recorded).same
    finally:
        torch.set_flush_denormal(False)
    assert word_of(1e-45, "float32") == 1
