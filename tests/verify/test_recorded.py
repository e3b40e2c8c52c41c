"""Real implementations, recorded: what each computes is measured here by hand, and the fingerprint names it.

`TRUTHS` says, without the fingerprint, which rule each file follows and which of its sums are fused; the first test
proves that to the bit. The fingerprint must then name that rule, and never another one as certain.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
import pytest

from samestep.rules import RULES, Terms
from samestep.verify import fingerprint, vectorised
from samestep.verify.patterns import TYPES, differs, values_of, words_of
from samestep.verify.vectorised import fma32
from verify.recorded import recording

BODY = 256  # elements of a recorded tensor that fused kernels handle as whole vectors; the last 5 are the tail


class Truth(NamedTuple):
    """What a recorded case follows.

    `predict(problem, first)` gives the patterns of (parameters, velocity), every operation rounded to the tensors'
    dtype; `fused` are the names of the sums that its compiler fused, where a case has them.
    """

    rule: str
    predict: Callable
    fused: frozenset[str] = frozenset()


def by_rule(name):
    """`name` of samestep.rules on NumPy arrays of the tensors' own dtype: every operation rounded to it."""
    def predict(problem, first):
        kind, rule = TYPES[problem.dtype], RULES[name]
        momentum = problem.momentum > 0 if name in ("mlx", "mindspore-cpu") else problem.momentum != 0

        def outcome(start):
            p, g, v = (values_of(words, problem.dtype)
                       for words in (problem.parameters, problem.gradient, problem.accum))
            lr, m, d, wd, undamped = (kind(number) for number in (
                problem.learning_rate, problem.momentum, problem.dampening, problem.weight_decay,
                1.0 - problem.dampening))
            return rule.function(Terms(
                p, g, v, None, lr, m, d, wd, kind(1), problem.nesterov, problem.weight_decay != 0,
                problem.dampening != 0, start, momentum, undamped))

        if problem.stat is None:
            p, v = outcome(first)
        else:
            seen = values_of(problem.stat, problem.dtype) > 0
            p, v = (np.where(seen, one, other) for one, other in zip(outcome(True), outcome(False), strict=True))
        return words_of(p, problem.dtype), words_of(v, problem.dtype)

    return predict


def wide(problem):
    """parameters, gradient, velocity, lr, m, wd as float32 numbers held in float64."""
    p, g, v = (values_of(words, "float32").astype(np.float64)
               for words in (problem.parameters, problem.gradient, problem.accum))
    return p, g, v, *(np.float64(np.float32(number))
                      for number in (problem.learning_rate, problem.momentum, problem.weight_decay))


def narrow(*numbers):
    return tuple(words_of(values.astype(np.float32), "float32") for values in numbers)


def trace_fused(step_fused):
    def predict(problem, first):
        p, g, v, lr, m, wd = wide(problem)
        g = fma32(wd, p, g) if wd else g
        v = fma32(m, v, g)
        u = fma32(m, v, g) if problem.nesterov else v
        moved = fma32(-lr, u, p) if step_fused else vectorised.to_float32(p - vectorised.to_float32(lr * u))
        return narrow(moved, v)

    return predict


def keras_xla(problem, first):
    p, g, v, lr, m, wd = wide(problem)
    single = vectorised.to_float32
    p = fma32(-single(p * wd), lr, p) if wd else p
    v = fma32(m, v, single(-g * lr))
    return narrow(single(p + (fma32(m, v, single(-g * lr)) if problem.nesterov else v)), v)


def by_judge(problem, first):
    """Rule T, as the vectorised judge has it."""
    return vectorised.torch(
        problem.parameters, problem.gradient, problem.accum, lr=problem.learning_rate, first=problem.accum is None,
        momentum=problem.momentum, dampening=problem.dampening, weight_decay=problem.weight_decay,
        nesterov=problem.nesterov, dtype=problem.dtype)


RULE_T = Truth("torch", by_judge, frozenset({"weight decay", "velocity/grad", "nesterov/accum", "step"}))
XLA = frozenset({"weight decay", "velocity/accum", "nesterov/accum", "step"})
# By the longest beginning of FILE/CASE.
TRUTHS = {
    "optax_eager/": Truth("trace", by_rule("trace")),
    "optax_jit/float32": Truth("trace", trace_fused(True), XLA),
    "optax_jit/bfloat16": Truth("trace", by_rule("trace")),
    "paddle/": Truth("trace", by_rule("trace")),
    "tinygrad/": Truth("trace", trace_fused(False), XLA - {"step"}),
    "keras/eager": Truth("keras", by_rule("keras")),
    "keras/xla": Truth("keras", keras_xla, frozenset({"decay", "velocity/accum", "nesterov/accum"})),
    "chainer/momentum_sgd": Truth("keras", by_rule("keras")),
    "tf1_momentum/": Truth("tf1", by_rule("tf1")),
    "tf_keras_momentum/": Truth("tf-keras", by_rule("tf-keras")),
    "tf_keras/": Truth("tf-keras", by_rule("tf-keras")),
    "mxnet/": Truth("mxnet", by_rule("mxnet")),
    "mlx/": Truth("mlx", by_rule("mlx")),
    "onnx/": Truth("onnx", by_rule("onnx")),
    "mindspore/": Truth("mindspore-cpu", by_rule("mindspore-cpu")),
    "torch_loop/float32": RULE_T,
    "torch_foreach/float32": RULE_T,
    "pytorch_optimizer/sgdw-": RULE_T,
}
# No rule of the table: a scaled weight decay, a weighted mean of gradient and velocity, another look-ahead.
UNKNOWN = ("pytorch_optimizer/sgdw-decoupled", "pytorch_optimizer/qhm", "chainer/nesterov_ag")
# torch disagrees with itself here, also inside one tensor; see the tests below.
MIXED = ("torch_loop/bfloat16", "torch_foreach/bfloat16", "torch_fused/")
load = cache(recording.load)
CASES = [f"{path.stem}/{case}" for path in sorted(recording.HERE.glob("*.npz")) for case in load(path.stem)[1]]


def observations(case):
    name, _, chain = case.partition("/")
    return load(name)[1][chain]


def truth_of(case):
    found = [beginning for beginning in TRUTHS if case.startswith(beginning)]
    return None if case in UNKNOWN or not found else TRUTHS[max(found, key=len)]


def test_every_recorded_case_has_its_truth():
    assert len(CASES) >= 100
    for case in CASES:
        assert (truth_of(case) is None) == case.startswith((*UNKNOWN, *MIXED)), case
    for name in {case.split("/")[0] for case in CASES}:
        assert (recording.HERE / f"{name}.npz").stat().st_size < 100_000
        assert "numpy" in load(name)[0]


@pytest.mark.parametrize("case", [case for case in CASES if truth_of(case)])
def test_what_was_recorded_is_what_we_say_it_is(case):
    for k, seen in enumerate(observations(case)):
        problem = seen.problem
        parameters, velocity = truth_of(case).predict(problem, k == 0)
        assert not differs(parameters, seen.parameters, problem.dtype).any()
        kept = problem.momentum == 0 and RULES[truth_of(case).rule].at_zero == "kept" if (
            truth_of(case).rule in RULES) else problem.momentum == 0
        assert not differs(problem.accum if kept else velocity, seen.accum, problem.dtype, computed=not kept).any()
        if seen.stat is not None:
            assert (seen.stat == (0 if problem.momentum > 0 else problem.stat)).all()


@pytest.mark.parametrize("case", UNKNOWN)
def test_no_rule_of_the_table_computes_the_unknown_ones(case):
    for name in RULES:
        for seen in observations(case)[1:]:
            assert differs(by_rule(name)(seen.problem, False)[0], seen.parameters, "float32").any(), name


def test_fused_torch_float32_differs_in_the_tail_only():
    wrong_in_tail = 0
    for case in (name for name in CASES if name.startswith("torch_fused/float32")):
        for seen in observations(case):
            parameters, velocity = by_judge(seen.problem, seen.problem.accum is None)
            for expected, got in ((parameters, seen.parameters), (velocity, seen.accum)):
                wrong = differs(expected, got, "float32")
                assert not wrong[:BODY].any()
                wrong_in_tail += int(wrong.sum())
    assert wrong_in_tail > 10


def test_fused_torch_bfloat16_never_stores_the_vector_body_of_the_parameters():
    for case in (name for name in CASES if name.startswith("torch_fused/bfloat16")):
        for seen in observations(case):
            assert (seen.parameters[:BODY] == seen.problem.parameters[:BODY]).all()
            assert (seen.parameters[BODY:] != seen.problem.parameters[BODY:]).any()


def group_of(case):
    """Steps of one file and dtype are given to the fingerprint together; of the unknown ones each case by itself."""
    return case if case in UNKNOWN else case.partition("-")[0]


GROUPS: dict[str, list[str]] = {}
for _case in CASES:
    GROUPS.setdefault(group_of(_case), []).append(_case)
FEW = ("torch_loop/float32", "optax_eager/float32", "keras/eager")


@cache
def verdict_of(group):
    return fingerprint.of_dump([seen for case in GROUPS[group] for seen in observations(case)])


def complete(verdict):
    return all(explained == elements for explained, elements in verdict.explained.values())


@pytest.mark.parametrize("group", [pytest.param(group, marks=[] if group in FEW else [pytest.mark.exhaustive])
                                   for group in GROUPS if truth_of(GROUPS[group][0])])
def test_the_fingerprint_names_the_rule_and_its_fused_sums(group):
    verdict, truth = verdict_of(group), truth_of(GROUPS[group][0])
    assert complete(verdict), verdict.sentence
    inner = "float32" if observations(GROUPS[group][0])[0].problem.dtype == "float32" else "tensor"
    named = {(h.rule, h.fused, h.inner) for h in verdict.hypotheses}
    assert (truth.rule, truth.fused, inner) in named, verdict.sentence
    assert verdict.hypotheses[0].rule == truth.rule or not verdict.certain


@pytest.mark.parametrize("group", [UNKNOWN[0], *(pytest.param(group, marks=pytest.mark.exhaustive)
                                                 for group in UNKNOWN[1:])])
def test_the_fingerprint_is_not_certain_of_a_rule_it_does_not_know(group):
    verdict = verdict_of(group)
    assert not complete(verdict)
    assert not verdict.certain
    assert verdict.residual


def test_the_fingerprint_finds_the_tail_of_fused_torch_float32():
    verdict = verdict_of("torch_fused/float32")
    assert complete(verdict), verdict.sentence
    body, tail = verdict.hypotheses
    assert (body.rule, body.fused) == ("torch", RULE_T.fused)
    assert tail.rule == "torch"
    assert tail.fused == RULE_T.fused - {"velocity/grad"} | {"velocity/accum"}
    assert tail.where == "tail"


def test_the_fingerprint_finds_that_fused_torch_bfloat16_does_not_update_the_body():
    verdict = fingerprint.of_dump(observations("torch_fused/bfloat16-plain"))
    assert not verdict.certain
    assert "parameters not updated" in verdict.hypotheses[0].faults


@pytest.mark.exhaustive
@pytest.mark.parametrize("group", ["torch_loop/bfloat16", "torch_foreach/bfloat16"])
def test_the_fingerprint_names_torch_where_it_disagrees_with_itself(group):
    """Body and tail round differently, and each operation takes its scalar in another type."""
    verdict = verdict_of(group)
    assert not verdict.certain
    assert verdict.hypotheses[0].rule == "torch"
