"""The suite passes what is right, fails what is wrong, and shows the smallest input that tells."""

from __future__ import annotations

import functools
import itertools
import types

import numpy as np
import pytest

import verify_targets
from samestep import contract
from samestep.verify import fingerprint, observation, oracle
from samestep.verify.patterns import number_of, word_of
from samestep.verify.suite import cases, judge, refusals, target
from samestep.verify.suite import runner as suite
from samestep.verify.suite.guard import JudgesEnvironment
from samestep.verify.suite.results import BINS
from samestep.verify.suite.variants import DTYPES_OF

torch = pytest.importorskip("torch")
DTYPES = DTYPES_OF["cann"]
ORDERS = ("spec", "ascend950")


def subject(function):
    return target.Subject("mine", function, False, "")


def assert_green(results, least):
    assert [(check.name, check.message) for check in results.failed] == []
    assert len(results.checks) >= least
    judged = {}
    for check in results.checks:
        judged[check.dtype] = judged.get(check.dtype, 0) + check.elements
    assert judged == {dtype: sum(sum(bins) for (name, _), bins in results.histogram.items() if name == dtype)
                      for dtype in judged}
    assert all(bins[1:] == [0] * len(BINS) for bins in results.histogram.values())
    assert results.sentences == {}
    return judged


# --- what is right passes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ORDERS)
def test_quick_is_green_for_engine_cpu(order):
    results = suite.run(target.of_engine("cpu", order=order), order=order)
    assert_green(results, 5_000)
    assert {check.family for check in results.checks} == {*cases.FAMILIES["cann"], "refusals"}
    assert {check.rule for check in results.checks} == {"O1", "O2", "O3", "O4", "O5", "O6", "O7", "O8", "O10", "O12"}


def test_quick_is_green_for_engine_reference_in_one_dtype():
    assert_green(suite.run(target.of_engine("reference"), dtypes=["float16"]), 1_600)


def test_quick_is_green_for_the_optimizer_in_one_dtype():
    results = suite.run(target.of_engine("cpu", "torch"), rule="torch", dtypes=["float32"])
    assert_green(results, 1_800)
    assert "momentum_buffer" in {tensor for _, tensor in results.histogram}


@pytest.mark.exhaustive
@pytest.mark.parametrize("engine", ["reference", "cpu"])
@pytest.mark.parametrize("order", ORDERS)
def test_full_is_green(engine, order):
    assert_green(suite.run(target.of_engine(engine, order=order), order=order, level="full"), 100_000)


@pytest.mark.exhaustive
def test_full_is_green_for_rule_torch():
    assert_green(suite.run(target.of_engine("cpu", "torch"), rule="torch", level="full"), 100_000)


def test_a_correct_kernel_is_never_called_wrong():
    right = functools.partial(verify_targets.any_nan, order="ascend950")
    judged = assert_green(suite.run(subject(right), order="ascend950"), 5_000)
    assert all(judged[dtype] >= 1_000_000 for dtype in DTYPES)


def test_a_correct_kernel_may_return_new_tensors():
    assert_green(suite.run(subject(verify_targets.returns_new), dtypes=["bfloat16"]), 1_600)


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_torchs_own_loop_is_never_called_wrong(dtype):
    judged = assert_green(suite.run(subject(verify_targets.torch_loop), rule="torch", dtypes=[dtype]), 1_700)
    assert judged[dtype] >= 1_000_000


# --- what is wrong fails ---------------------------------------------------------------------------------------------


def first_failure(function, dtype, rule="cann", families=None):
    """The first item that fails."""
    with JudgesEnvironment() as environment, np.errstate(all="ignore"):
        judging = suite.Judging(functools.partial(environment.call, function), "spec")
        chosen = (item for item in cases.items(rule, dtypes=[dtype]) if families is None or item.family in families)
        return next((check for check in map(judging.check, chosen) if not check.passed), None)


def oracle_says(problem, tensor, position):
    """The pattern that the exact oracle expects in one place."""
    words = (problem.parameters, problem.gradient, problem.accum, problem.stat)
    p, g, a, s = (int(column[position]) for column in words)
    lr, m = (word_of(number, problem.dtype) for number in (problem.learning_rate, problem.momentum))
    after = oracle.cann(p, g, lr, a, m, s, dtype=problem.dtype, dampening=problem.dampening,
                        weight_decay=problem.weight_decay, nesterov=problem.nesterov)
    return {"parameters": after[0], "accum": after[1], "stat": after[2], "gradient": g}[tensor]


# Families in which a fault shows at the latest, for those that do not show at once.
LATE = {"weight decay compared before float32": ["hyperparameters"], "mask through float16": ["mask"]}
FAULTS = [*itertools.product(verify_targets.FAULTS, DTYPES), ("fused", "float32")]
# 1e-8 is zero in float16 itself, whose subnormals are normal numbers in float32; NumPy keeps its NaNs as they are.
HARMLESS = {("mask through float16", "float16"), ("flushed", "float16"), ("kept NaNs made quiet", "float16")}
FAULTS = [pair for pair in FAULTS if pair not in HARMLESS]


@pytest.mark.parametrize(("fault", "dtype"), FAULTS)
def test_a_fault_fails_and_its_smallest_input_is_right(fault, dtype):
    wrong = functools.partial(verify_targets.correct, fault=fault)
    check = first_failure(wrong, dtype, families=LATE.get(fault))
    assert check is not None
    failure = check.failure
    assert f"elements of {failure.tensor} differ" in check.message
    problem = failure.problem
    size = problem.parameters.size
    assert size == (9 if fault == "tail from float64" else 1)
    assert failure.expected == oracle_says(problem, failure.tensor, failure.position)
    with np.errstate(all="ignore"):
        again = {found.tensor: found for found in judge.judge(observation.observe(wrong, problem))}
    assert again[failure.tensor].wrong[failure.position]
    assert int(again[failure.tensor].got[failure.position]) == failure.got
    assert sum(part.size for part in (problem.parameters, problem.gradient)) == 2 * size


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_smallest_input_is_as_simple_as_can_be(dtype):
    def seen(fault):
        problem = first_failure(functools.partial(verify_targets.correct, fault=fault), dtype).failure.problem
        numbers = [number_of(int(column[0]), dtype) for column in problem[2:6]]
        return numbers, problem[6:11]

    assert seen("parameters not updated") == ([0.0, 1.0, 0.0, 0.0], (1.0, 0.0, 0.0, 0.0, False))
    assert seen("dampening ignored") == ([0.0, 1.0, 0.0, 0.0], (1.0, 0.0, 1.0, 0.0, False))
    assert seen("accum not written") == ([0.0, 1.0, 0.0, 0.0], (1.0, 1.0, 0.0, 0.0, False))
    assert seen("no mask") == ([0.0, 1.0, 0.0, 0.0], (1.0, 0.0, 0.0, 0.0, False))


@pytest.mark.parametrize("fault", ["parameters not updated", "dampening ignored", "accum not written"])
def test_what_todays_rules_let_pass_fails_in_bfloat16_at_lr_1e_3(fault):
    wrong = functools.partial(verify_targets.correct, fault=fault)
    trained = (item for item in cases.items(dtypes=["bfloat16"]) if item.family == "training")
    chosen = [item for item in trained if "lr=0.001" in item.name]
    with np.errstate(all="ignore"):
        judging = suite.Judging(wrong, "spec")
        checks = [judging.check(item) for item in chosen]
    assert not all(check.passed for check in checks)


@pytest.mark.parametrize(("function", "message"), [
    (verify_targets.raises, "RuntimeError: the device is on fire"),
    (verify_targets.exits, "SystemExit: 0"),
    (verify_targets.wrong_dtype, "TargetError: parameters: the target gave float64"),
    (verify_targets.too_few, "TargetError: the target returned tuple; it must return None"),
])
def test_what_cannot_be_judged_fails(function, message):
    results = suite.run(subject(function), dtypes=["float16"])
    assert len(results.failed) == len(results.checks)
    assert all(check.message.startswith(message) and check.failure is None for check in results.checks)
    assert results.sentences == {}


@pytest.mark.parametrize(("function", "message"), [
    (verify_targets.writes_behind, "argument 0: the target wrote into the memory before or behind"),
    (verify_targets.changes_momentum, "momentum: the target changed it"),
])
@pytest.mark.parametrize("dtype", DTYPES)
def test_memory_around_the_tensors_is_watched(function, message, dtype):
    guarded = [item for item in cases.items(dtypes=[dtype]) if item.guarded]
    judging = suite.Judging(function, "spec")
    with np.errstate(all="ignore"):
        found = [judging.check(item).message for item in guarded]
    assert len(found) == 72
    assert all(message in text for text in found if text)
    assert sum(map(bool, found)) > 40  # momentum may be zero already, and a zero may be written over a guard


def test_a_lost_buffer_fails():
    def loses(parameters, gradient, momentum_buffer, **attributes):
        target.optimizer_step(parameters, gradient, momentum_buffer, **attributes)
        return parameters, None

    check = first_failure(loses, "float32", "torch")
    assert check.message == "no momentum buffer came back"


def test_a_buffer_out_of_nothing_fails():
    def makes(parameters, gradient, momentum_buffer, **attributes):
        returned = target.optimizer_step(parameters, gradient, momentum_buffer, **attributes)
        return parameters, gradient.copy() if returned[1] is None else returned[1]

    assert "a momentum buffer came back" in first_failure(makes, "float32", "torch").message


@pytest.mark.parametrize("dtype", DTYPES_OF["torch"])
@pytest.mark.parametrize("changed", [{"maximize": False}, {"weight_decay": 0.0}, {"nesterov": False},
                                     {"dampening": 0.0}])
def test_an_ignored_argument_of_the_optimizer_fails(dtype, changed):
    def ignores(*tensors, **attributes):
        return target.optimizer_step(*tensors, **{**attributes, **changed})

    assert first_failure(ignores, dtype, "torch").failure.problem.parameters.size == 1


def test_two_roundings_for_one_fail_in_the_optimizers_rule():
    def unfused(parameters, gradient, momentum_buffer, *, lr, momentum, dampening, weight_decay, nesterov, maximize):
        g = -gradient if maximize else gradient
        g = g + np.float32(weight_decay) * parameters if weight_decay else g
        b = momentum_buffer
        if momentum:
            b = g.copy() if b is None else b * np.float32(momentum) + np.float32(1 - dampening) * g
        u = g if not momentum else g + np.float32(momentum) * b if nesterov else b
        parameters -= np.float32(lr) * u
        return parameters, b

    assert first_failure(unfused, "float32", "torch").failure.ulps >= 1


# --- what a run counts, and where it runs ----------------------------------------------------------------------------


def test_a_run_counts_and_names(monkeypatch):
    def named(asked, *, dtype, rule, order, seed):
        assert (rule, order, seed) == ("cann", "spec", 5)
        return types.SimpleNamespace(sentence=f"parameters of {dtype} stay where they are")

    monkeypatch.setattr(fingerprint, "of_callable", named)
    seen = []
    results = suite.run(subject(verify_targets.nothing), dtypes=["bfloat16"], seed=5,
                        watch=lambda *counts: seen.append(counts))
    total = sum(1 for _ in cases.items(dtypes=["bfloat16"]))
    assert seen[-1] == (total, total, len(results.failed))
    assert [done for done, _, _ in seen] == list(range(1, total + 1))
    assert results.sentences == {"bfloat16": "parameters of bfloat16 stay where they are"}
    assert (results.subject, results.rule, results.order, results.level, results.seed) == (
        "mine", "cann", "spec", "quick", 5)
    bins = results.histogram["bfloat16", "parameters"]
    assert sum(bins[1:]) > 1_000_000
    assert results.histogram["bfloat16", "accum"][1:] == [0] * len(BINS)
    shrunk = [check for check in results.failed if check.failure.problem is not None]
    rules = {check.rule for check in results.failed}
    assert {rule: sum(check.rule == rule for check in shrunk) for rule in rules} == dict.fromkeys(rules, 2)
    assert all(check.ulps > 0 for check in results.failed if check.family == "training")
    assert {"samestep", "python", "numpy"} <= set(results.versions)


def test_results_survive_a_target_that_cannot_be_named(monkeypatch):
    def raises(asked, **options):
        raise TypeError("no such shape")

    monkeypatch.setattr(fingerprint, "of_callable", raises)
    check = first_failure(verify_targets.nothing, "bfloat16")
    sentences = suite.named(verify_targets.nothing, [check], "cann", "spec", 0)
    assert sentences == {"bfloat16": "not found, because asking raised TypeError: no such shape"}


def test_a_changed_floating_point_environment_changes_the_target_and_not_the_judge():
    chosen = ["hyperparameters", "specials"]
    try:
        assert torch.set_flush_denormal(True)
        assert first_failure(target.of_engine("cpu").run, "float32", families=chosen) is None
        assert first_failure(target.of_engine("cpu").run, "bfloat16", families=chosen) is None
        flushed = first_failure(verify_targets.correct, "float32", families=chosen)
        assert np.float32(1e-45) * np.float32(1) == 0  # the environment is still the one that was set
    finally:
        torch.set_flush_denormal(False)
    assert flushed is not None
    assert first_failure(verify_targets.correct, "float32", families=chosen) is None


# --- refusals --------------------------------------------------------------------------------------------------------


def asked(function, engine, dtype="float32", rule="cann"):
    kept = [case for case in refusals.refusals(rule, [dtype]) if engine or not case.engines_only]
    return [suite.refused(function, case, engine) for case in kept]


@pytest.mark.parametrize("dtype", DTYPES_OF["torch"])
def test_the_optimizer_refuses(dtype):
    checks = asked(target.optimizer_step, True, dtype, "torch")
    assert len(checks) == 8
    assert [check.message for check in checks if not check.passed] == []


def test_a_target_that_computes_on_fails_the_refusals():
    checks = asked(lambda *tensors, **attributes: None, False)
    assert not any(check.passed for check in checks)
    assert {check.message[:31] for check in checks} == {"expected an error with code " + check.message[28:31]
                                                       for check in checks}


def test_an_engine_must_give_the_right_code_and_others_need_not():
    def refuses(*tensors, **attributes):
        raise contract.ContractError("overlap", "stat", "x", "y")

    assert {check.name.split("/")[2] for check in asked(refuses, True) if check.passed} == {"overlap"}
    assert all(check.passed for check in asked(refuses, False))


def test_a_refusal_after_a_write_fails():
    def writes_first(p, *tensors, **attributes):
        if p.flags.writeable and p.size:
            p[...] = 7
        raise ValueError("no")

    found = [check.message for check in asked(writes_first, False) if not check.passed]
    assert set(found) == {"memory was written"}
    assert len(found) > 40


def test_refusals_are_asked_of_engines_and_of_others_on_request():
    def families(with_refusals):
        results = suite.run(subject(verify_targets.raises), dtypes=["float16"], with_refusals=with_refusals)
        return {check.family for check in results.checks}

    assert "refusals" not in families(None)
    assert "refusals" in families(True)
