"""The other frameworks' rules: the identities between them hold exactly, and each reads only what it says."""

from __future__ import annotations

import ast
from fractions import Fraction
from pathlib import Path

import pytest

import samestep
from samestep import formula
from samestep.rules import RULES, Terms

ONE = Fraction(1)
STEPS = 5
LR, M, D, WD = Fraction(1, 10), Fraction(9, 10), Fraction(3, 10), Fraction(1, 100)
GRADIENTS = [Fraction(n, 7) for n in (3, -5, 2, 11, -1)]
P0 = Fraction(5, 3)
FLAGS = [(nesterov, decay) for nesterov in (False, True) for decay in (False, True)]


def terms(**changes):
    usual = Terms(p=P0, g=GRADIENTS[0], v=Fraction(0), s=Fraction(0), lr=LR, m=M, d=D, wd=WD, one=ONE, nesterov=False,
                  weight_decay=False, dampening=False, first=False)
    return usual._replace(**changes)


def steps_of(name, *, first_v=Fraction(0), rates=(LR,) * STEPS, **changes):
    """(parameters, velocity) after each step of rule `name` over GRADIENTS."""
    p, v, made = P0, first_v, []
    for number, (g, lr) in enumerate(zip(GRADIENTS, rates, strict=True)):
        p, v = RULES[name].function(terms(p=p, g=g, v=v, lr=lr, first=number == 0, **changes))
        made.append((p, v))
    return made


def torch_steps(*, rates=(LR,) * STEPS, nesterov=False, weight_decay=False, dampening=False, m=M):
    """The same of rule torch, through formula.py, with exact numbers."""
    p, b, made = P0, None, []
    for number, (g, lr) in enumerate(zip(GRADIENTS, rates, strict=True)):
        p, b = formula.torch(p, g, b, -lr, m, ONE - D if dampening else ONE, WD, lambda x, y, z: x * y + z,
                             False, weight_decay, True, nesterov, number == 0)
        made.append((p, b))
    return made


def cann_steps(*, stat, nesterov=False, weight_decay=False, dampening=False):
    p, a, s, made = P0, Fraction(0), stat, []
    for g in GRADIENTS:
        p, a = formula.cann(p, g, LR, a, M, s, D, WD, ONE, nesterov, weight_decay, dampening, False)
        s = Fraction(0)
        made.append((p, a))
    return made


@pytest.mark.parametrize(("nesterov", "decay"), FLAGS)
def test_rules_with_the_learning_rate_outside_are_torch_without_dampening(nesterov, decay):
    expected = torch_steps(nesterov=nesterov, weight_decay=decay)
    for name in ("mindspore-cpu", "onnx", "trace", "mlx"):
        assert steps_of(name, nesterov=nesterov, weight_decay=decay) == expected, name
    if not decay:
        assert steps_of("tf1", nesterov=nesterov) == expected


@pytest.mark.parametrize("decay", [False, True])
def test_damped_mindspore_and_onnx_are_torch_and_the_operator_with_stat_1(decay):
    expected = torch_steps(dampening=True, weight_decay=decay)
    assert cann_steps(stat=ONE, dampening=True, weight_decay=decay) == expected
    for name in ("mindspore-cpu", "onnx"):
        assert steps_of(name, dampening=True, weight_decay=decay) == expected, name
        # ONNX gives beta = 1-d itself; mindspore-cpu always subtracts.
        assert steps_of(name, dampening=True, weight_decay=decay, undamped=ONE - D) == expected, name


@pytest.mark.parametrize("decay", [False, True])
def test_damped_mlx_is_the_operator_that_starts_with_stat_0(decay):
    assert steps_of("mlx", dampening=True, weight_decay=decay) == cann_steps(
        stat=Fraction(0), dampening=True, weight_decay=decay)
    assert steps_of("mlx", dampening=True) != torch_steps(dampening=True)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("name", ["keras", "tf-keras", "mxnet"])
def test_a_velocity_with_the_learning_rate_inside_is_minus_lr_times_the_buffer(name, nesterov):
    for (p, v), (p_torch, b) in zip(steps_of(name, nesterov=nesterov), torch_steps(nesterov=nesterov), strict=True):
        assert p == p_torch
        assert v == -LR * b


@pytest.mark.parametrize(("nesterov", "decay"), FLAGS)
def test_caffe_history_is_lr_times_the_buffer(nesterov, decay):
    made = steps_of("caffe", nesterov=nesterov, weight_decay=decay)
    for (p, v), (p_torch, b) in zip(made, torch_steps(nesterov=nesterov, weight_decay=decay), strict=True):
        assert p == p_torch
        assert v == LR * b


def test_mxnet_weight_decay_is_torch_without_nesterov_and_not_with_it():
    """NAG's velocity reads the parameters it has just written."""
    for nesterov in (False, True):
        made = [p for p, _ in steps_of("mxnet", weight_decay=True, nesterov=nesterov)]
        expected = [p for p, _ in torch_steps(weight_decay=True, nesterov=nesterov)]
        assert made[0] == expected[0]
        assert (made[1:] == expected[1:]) == (not nesterov)


@pytest.mark.parametrize("name", ["keras", "tf-keras", "mxnet", "caffe"])
def test_after_a_change_of_lr_a_velocity_with_lr_inside_must_be_rescaled(name):
    rates = (LR, LR, LR / 2, LR / 2, LR)
    expected = [p for p, _ in torch_steps(rates=rates)]
    p, v, before, made = P0, Fraction(0), LR, []
    for g, lr in zip(GRADIENTS, rates, strict=True):
        p, v = RULES[name].function(terms(p=p, g=g, v=v * (lr / before), lr=lr))
        before = lr
        made.append(p)
    assert made == expected
    assert [p for p, _ in steps_of(name, rates=rates)] != expected


def test_ema_is_torch_with_lr_times_1_minus_m():
    rates = (LR * (ONE - M),) * STEPS
    for (p, v), (p_torch, b) in zip(steps_of("ema"), torch_steps(rates=rates), strict=True):
        assert p == p_torch
        assert v == -(ONE - M) * b


def test_decoupled_weight_decay_is_torch_only_without_momentum():
    def first_two(name_steps):
        return [p for p, _ in name_steps][:2]

    assert first_two(steps_of("keras", weight_decay=True, m=Fraction(0))) == first_two(
        torch_steps(weight_decay=True, m=Fraction(0)))
    assert first_two(steps_of("keras", weight_decay=True)) != first_two(torch_steps(weight_decay=True))


@pytest.mark.parametrize("name", sorted(RULES))
def test_absent_terms_are_not_read_and_the_start_is_what_it_says(name):
    rule = RULES[name]
    unread = object()  # has no arithmetic: reading it raises
    assert rule.function(terms(d=unread, wd=unread, s=unread)) != (P0, 0)
    if rule.start == "stat":
        assert rule.function(terms(v=unread, first=True))[1] == GRADIENTS[0]
    else:
        with pytest.raises(TypeError):
            rule.function(terms(v=unread, first=True))


@pytest.mark.parametrize("name", sorted(RULES))
def test_what_a_rule_says_of_itself_is_what_it_does(name):
    rule = RULES[name]
    v = Fraction(2)
    usual = rule.function(terms(v=v))
    assert (rule.function(terms(v=v, nesterov=True)) != usual) == rule.nesterov
    assert (rule.function(terms(v=v, dampening=True)) != usual) == rule.dampening
    decayed = rule.function(terms(v=v, weight_decay=True))
    assert (decayed != usual) == (rule.weight_decay != "none")
    assert (decayed[1] == usual[1]) == (rule.weight_decay != "L2")
    assert (rule.function(terms(v=Fraction(0)))[1] == (GRADIENTS[0] * LR)) == (name == "caffe")
    assert (abs(rule.function(terms(v=Fraction(0), lr=2 * LR))[1]) != abs(rule.function(terms(v=Fraction(0)))[1])) == (
        rule.lr == "inside")
    at_zero = rule.function(terms(v=v, m=Fraction(0), momentum=False))[1]
    assert (at_zero == v) == (rule.at_zero == "kept")


@pytest.mark.parametrize("name", sorted(name for name, rule in RULES.items() if rule.at_zero == "kept"))
@pytest.mark.parametrize("decay", [False, True])
def test_without_momentum_a_kept_velocity_does_not_reach_the_parameters(name, decay):
    function = RULES[name].function
    one, other = (function(terms(v=v, m=Fraction(0), momentum=False, weight_decay=decay)) for v in (Fraction(2), None))
    assert one[0] == other[0]
    p = P0 - LR * (GRADIENTS[0] + (WD * P0 if decay else 0))
    assert one[0] == p


def test_the_rules_hold_no_numbers_and_need_no_numpy():
    folder = Path(samestep.__file__).parent / "rules"
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            assert not (isinstance(node, ast.Constant) and type(node.value) in (int, float)), path
            if isinstance(node, ast.Import):
                raise AssertionError(f"{path} imports {ast.unparse(node)}")
            if isinstance(node, ast.ImportFrom):
                assert node.module.split(".")[0] in ("samestep", "typing", "collections", "__future__"), path
