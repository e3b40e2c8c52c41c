"""The fingerprint: each stage of its search alone, what its verdict says, and when it is certain.

Kernels come from mutants.py, which is written apart from the fingerprint; whole sets of them are judged in
test_fingerprint_mutants.py.
"""

import numpy as np
import pytest

from samestep.verify import fingerprint, vectorised
from samestep.verify.fingerprint.asking import Asking
from samestep.verify.fingerprint.evaluate import Case
from samestep.verify.fingerprint.hypotheses import FAULTS, FLUSHES, INNERS, MASKS, STATS, Hypothesis, complexity, plain
from samestep.verify.fingerprint.naming import MOST, of_callable, of_dump
from samestep.verify.fingerprint.numbers import STORES
from samestep.verify.fingerprint.probe import KEYS, Setting, cancelling, problem, settings, tensors
from samestep.verify.fingerprint.residual import index_pattern, residual
from samestep.verify.fingerprint.rivals import explaining, minimal
from samestep.verify.observation import Problem, TargetError, observe
from samestep.verify.patterns import TYPES, WORDS, differs, word_of
from verify.mutants import Kernel

SPEC = plain("cann", "spec")
MAIN = Setting(0.1, 0.9, 0.3, 0.01)
NESTEROV = Setting(0.1, 0.9, 0.0, 0.01, True)


def seen(kernel, setting=MAIN, dtype="float32", size=600, seed=0, rich=True):
    """A step of a kernel; `rich` tensors hold cancelling sums and specials, others normal numbers."""
    rng = np.random.default_rng(seed)
    if rich:
        pairs = zip(tensors(rng, dtype, size // 2), cancelling(rng, dtype, "cann", setting, size - size // 2, SPEC),
                    strict=True)
        columns = [np.concatenate(pair) for pair in pairs]
    else:
        columns = [rng.standard_normal(size).astype(np.float32).astype(TYPES[dtype]).view(WORDS[dtype])
                   for _ in range(3)]
        columns.append(rng.integers(0, 2, size).astype(np.float32).astype(TYPES[dtype]).view(WORDS[dtype]))
    with np.errstate(all="ignore"):
        return observe(kernel, problem(setting, dtype, "cann", columns))


def fault(*names, **also):
    return Kernel(faults=frozenset(names), **also)


# By stage of the search: a kernel, and the steps that show what it does.
STAGES = {
    "inner type": (Kernel(inner="tensor"), "bfloat16", (MAIN,)),
    "hyperparameters": (Kernel(hyperparameters="rounded weight_decay"), "float16", (MAIN,)),
    "velocity's fault": (fault("stat read as a flag"), "float32", (MAIN,)),
    "two faults": (fault("stat inverted", "weight decay ignored"), "float32", (MAIN,)),
    "velocity's fused sums": (Kernel(fused=frozenset({"velocity/accum", "dampening"})), "float32", (MAIN,)),
    "flush": (Kernel(flush="outputs"), "float32", (MAIN,)),
    "order": (Kernel(order="ascend950 nesterov"), "float32", (MAIN, NESTEROV)),
    "step's fault": (fault("nesterov ignored"), "float32", (NESTEROV,)),
    "step's fused sums": (Kernel(fused=frozenset({"nesterov/grad"})), "float32", (NESTEROV,)),
    "store": (Kernel(store="half-away"), "bfloat16", (MAIN, Setting(0.5, 0.5))),
    "overflow": (fault("overflow saturated"), "float16", (Setting(3.0, 0.9, 0.3, 2.5),)),
    "mask": (Kernel(mask="float16"), "float32", (MAIN, MAIN._replace(momentum=1e-8))),
    "at zero": (fault("dampening inside the momentum test"), "float32", (MAIN, MAIN._replace(momentum=0.0))),
    "accum lost": (fault("accum not written"), "float32", (MAIN,)),
    "stat": (Kernel(stat="product"), "float32", (MAIN,)),
    "nothing updated": (fault("parameters not updated", "accum not written"), "bfloat16", (MAIN,)),
}


def as_hypothesis(kernel):
    return Hypothesis(**kernel._asdict())


@pytest.mark.parametrize("stage", STAGES)
def test_each_stage_finds_what_it_looks_for(stage):
    kernel, dtype, chosen = STAGES[stage]
    cases = [Case(seen(kernel, setting, dtype, seed=k)) for k, setting in enumerate(chosen)]
    truth = as_hypothesis(kernel)
    assert all(case.matches(truth) for case in cases)
    assert not all(case.matches(SPEC) for case in cases)
    with np.errstate(all="ignore"):
        live, nearest = explaining(cases, SPEC)
        assert truth in live
        assert nearest == live[0]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_plain_rule_is_the_judges(dtype):
    for k, setting in enumerate(settings("cann")):
        for order in ("spec", "ascend950"):
            case = Case(seen(Kernel(order=order), setting, dtype, 120, k))
            q, s = case.problem, case.problem.stat
            after = vectorised.cann(
                q.parameters, q.gradient, word_of(q.learning_rate, dtype), q.accum, word_of(q.momentum, dtype), s,
                dtype=dtype, dampening=q.dampening, weight_decay=q.weight_decay, nesterov=q.nesterov, order=order)
            expected = case.predict(plain("cann", order))
            assert not any(differs(one, other, dtype).any() for one, other in zip(after, expected[:3], strict=True))


def torch_target(p, g, b, **options):
    """Rule T as the vectorised judge has it."""
    dtype = str(p.dtype)
    word = WORDS[dtype]
    after = vectorised.torch(p.view(word), g.view(word), None if b is None else b.view(word), first=b is None,
                             dtype=dtype, **options)
    return tuple(None if words is None else words.view(p.dtype) for words in after)


def test_a_right_kernel_follows_its_rule_exactly():
    verdict = of_callable(Kernel(), dtype="float32")
    total = verdict.explained["parameters"][1]
    assert verdict.sentence == f"follows cann / spec exactly; {total:,} of {total:,} elements"
    assert verdict.certain
    assert verdict.hypotheses == (SPEC,)
    assert verdict.explained == dict.fromkeys(("parameters", "accum", "stat", "gradient"), (total, total))
    assert set(verdict.differing.values()) == {0}
    assert verdict.alternatives == verdict.residual == ()


@pytest.mark.parametrize("dtype", ["float64", pytest.param("bfloat16", marks=pytest.mark.exhaustive)])
def test_rule_torch_of_a_callable(dtype):
    verdict = of_callable(torch_target, dtype=dtype, rule="torch")
    assert verdict.certain, verdict.sentence
    assert verdict.sentence.startswith("follows torch exactly; ")
    assert "momentum_buffer" in verdict.explained


def test_the_sentence_says_what_differs_and_in_how_many_elements():
    kernel = Kernel(order="ascend950", fused=frozenset({"velocity/accum"}))
    observation = seen(kernel, size=4096, rich=False)
    verdict = of_dump([observation])
    right = seen(Kernel(), size=4096, rich=False)
    astray = np.zeros(4096, bool)
    for name in ("parameters", "accum", "stat"):
        wrong = getattr(observation, name) != getattr(right, name)
        assert verdict.differing[name] == wrong.sum()
        astray |= wrong
    assert 0 < astray.sum() < 4096
    assert verdict.sentence.startswith(
        "parameters, accum and stat follow cann / ascend950 with accum*m+grad fused; 4,096 of 4,096 elements; "
        f"cann / spec would differ in {astray.sum():,}") or verdict.sentence.startswith(
        # with stat 0 or 1 only the orders agree
        "parameters, accum and stat follow cann / spec with accum*m+grad fused; 4,096 of 4,096 elements; "
        f"cann / spec would differ in {astray.sum():,}")
    assert as_hypothesis(kernel) in verdict.hypotheses


def test_a_dump_tells_only_what_it_shows():
    observation = seen(Kernel(), Setting(0.1, 0.9), rich=False)  # no subnormals, no stat that counts
    verdict = of_dump([observation])
    assert not verdict.certain
    assert verdict.hypotheses[0] == SPEC
    others = verdict.hypotheses[1:]
    assert verdict.sentence.endswith(
        f"; the data do not exclude {len(others)} other explanations, nearest {others[0]}; {others[1]}")
    assert SPEC._replace(flush="outputs") in verdict.hypotheses
    assert verdict.alternatives
    assert all(complete == total for complete, total in verdict.explained.values())


def test_tensors_that_were_not_recorded_are_not_spoken_of():
    kernel = fault("dampening ignored")
    whole = seen(kernel)
    verdict = of_dump([whole._replace(accum=None, stat=None, gradient=None)])
    assert list(verdict.explained) == ["parameters"]
    assert verdict.sentence.startswith("parameters follow")
    assert as_hypothesis(kernel) in verdict.hypotheses


def twice(p, g, lr, a, m, s, **options):
    Kernel()(p, g, lr, a, m, s, **options)
    Kernel()(p, g, lr, a, m, s, **options)


def clipped(p, g, lr, a, m, s, **options):
    Kernel()(p, g, lr, a, m, s, **options)
    np.clip(p, -4, 4, out=p)


def without_nan(p, g, lr, a, m, s, **options):
    Kernel()(p, g, lr, a, m, s, **options)
    for tensor in (p, a):
        tensor[np.isnan(tensor)] = 0


def lane(p, g, lr, a, m, s, **options):
    Kernel()(p, g, lr, a, m, s, **options)
    p[5::8] += p.dtype.type(1)


def nesterov_twice(p, g, lr, a, m, s, *, nesterov, **options):
    (twice if nesterov else Kernel())(p, g, lr, a, m, s, nesterov=nesterov, **options)


@pytest.mark.parametrize("kernel", [lane, *(pytest.param(kernel, marks=pytest.mark.exhaustive)
                                            for kernel in (twice, clipped, without_nan))])
def test_what_no_hypothesis_says_is_never_certain(kernel):
    verdict = of_dump([seen(kernel)])
    assert not verdict.certain
    assert verdict.sentence.startswith("not everything is explained; nearest is ")
    assert verdict.residual
    assert any(good < total for good, total in verdict.explained.values())


@pytest.mark.parametrize("kernel", [clipped, pytest.param(nesterov_twice, marks=pytest.mark.exhaustive)])
def test_a_callable_outside_the_hypotheses_is_never_certain(kernel):
    verdict = of_callable(kernel, dtype="float32")
    assert not verdict.certain
    assert verdict.residual


def test_the_residual_says_where_and_what():
    with np.errstate(all="ignore"):
        (line, *_) = residual([Case(seen(lane, rich=False))], SPEC)
    assert "parameters: 75 of 600 elements; lane: index = 5 modulo 8; values: " in line
    with np.errstate(all="ignore"):
        lines = residual([Case(seen(without_nan))], SPEC)
    assert any(" zero" in line and "ordinary" not in line for line in lines)


def test_index_patterns():
    assert index_pattern(range(7), 7) == "all indices"
    assert index_pattern([60, 61, 63], 64) == "tail: from index 60 on"
    assert index_pattern([63], 64) == "index 63, the last"
    assert index_pattern([0, 1, 2], 64) == "head: indices 0 to 2"
    assert index_pattern([9, 10, 11, 13], 64) == "range: indices 9 to 13"
    assert index_pattern([3, 11, 27], 64) == "lane: index = 3 modulo 8"
    assert index_pattern([1, 7, 19], 64) == "stride: index = 1 modulo 6"
    assert index_pattern([1, 20, 22], 64) == "scattered from index 1 to 22"


class Divided:
    """A kernel by vectors of `width`, whose tail another one computes."""

    def __init__(self, width, body, tail):
        self.width, self.body, self.tail = width, body, tail

    def __call__(self, p, g, lr, a, m, s, **options):
        end = p.size - p.size % self.width
        self.body(p[:end], g[:end], lr, a[:end], m, s[:end], **options)
        self.tail(p[end:], g[end:], lr, a[end:], m, s[end:], **options)


@pytest.mark.parametrize("width", [8, pytest.param(1024, marks=pytest.mark.exhaustive)])
def test_a_callable_whose_tail_follows_another_rule(width):
    tail = Kernel(fused=frozenset({"step"}))
    verdict = of_callable(Divided(width, Kernel(), tail), dtype="float32")
    assert verdict.certain, verdict.sentence
    assert verdict.hypotheses == (SPEC._replace(where=f"body of vectors of {width}"),
                                  as_hypothesis(tail)._replace(where="tail"))
    assert f"cann / spec in the body of vectors of {width} and cann / spec in the tail with " in verdict.sentence


@pytest.mark.parametrize("ends", [
    pytest.param(lambda size: size % 64, id="tails"),
    pytest.param(lambda size: size if size < 4 else 0, id="tensors of a few elements", marks=pytest.mark.exhaustive),
])
def test_an_end_that_almost_never_differs_is_found(ends):
    """In float16 random elements of a tail hardly tell the two orders apart."""
    def kernel(p, g, lr, a, m, s, **options):
        end = p.size - ends(p.size)
        Kernel(order="ascend950")(p[:end], g[:end], lr, a[:end], m, s[:end], **options)
        Kernel()(p[end:], g[end:], lr, a[end:], m, s[end:], **options)

    verdict = of_callable(kernel, dtype="float16")
    named = {(h.order, h.where) for h in verdict.hypotheses}
    assert not verdict.certain or named == {("ascend950", "body of vectors of 64"), ("spec", "tail")}, verdict.sentence
    assert ("ascend950", "all") not in named or verdict.residual


def test_attributes_that_round_to_zero_take_their_terms_with_them():
    for rounded in ("rounded", "given"):
        setting = Setting(0.1, 0.9, 1e-9, 1e-9)
        case = Case(seen(Kernel(hyperparameters=rounded), setting, "float16"))
        assert case.matches(SPEC._replace(hyperparameters=rounded))
        assert not case.matches(SPEC._replace(hyperparameters="given" if rounded == "rounded" else "rounded"))


def test_a_dump_whose_tail_follows_another_rule():
    kernel = Divided(16, Kernel(), fault("parameters not updated"))
    verdict = of_dump([seen(kernel, size=527)])
    body, tail = verdict.hypotheses
    assert body == SPEC._replace(where="body of vectors of 16")
    assert tail.where == "tail"
    assert tail.faults == {"parameters not updated"}
    assert not verdict.residual


def test_a_tail_that_looks_right_keeps_a_verdict_from_being_certain():
    tail = seen(Kernel(stat="kept"), size=527)  # stat 0 stays 0 in the last 15 elements
    words = tail.problem.stat.copy()
    words[512:] = 0
    rich = observe(Kernel(stat="kept"), tail.problem._replace(stat=words))
    whole = of_dump([rich])
    assert whole.hypotheses[0].stat == "kept"
    assert not whole.certain
    assert any("tails may follow cann / spec" in note for note in whole.alternatives)


def test_of_a_large_dump_a_part_is_looked_at_and_its_tail_is_found():
    size = MOST + 4103
    verdict = of_dump([seen(Divided(8, Kernel(), fault("parameters not updated")), size=size, rich=False)])
    body, tail = verdict.hypotheses
    assert (body.where, tail.where) == ("body of vectors of 8", "tail")
    assert tail.faults == {"parameters not updated"}
    assert not verdict.certain
    looked = verdict.explained["parameters"][1]
    assert f"{size - looked:,} elements of the dump were not looked at" in verdict.alternatives
    assert looked % 1024 == size % 1024


def only_nesterov(p, g, lr, a, m, s, *, nesterov, **options):
    (Kernel(stat="kept") if nesterov else Kernel())(p, g, lr, a, m, s, nesterov=nesterov, **options)


def test_a_callable_that_goes_wrong_with_some_keys_only():
    verdict = of_callable(only_nesterov, dtype="float32")
    assert not verdict.certain
    assert not verdict.residual
    named = {h.where: h.stat for h in verdict.hypotheses}
    assert sorted(named.values()) == ["kept", "zero"]
    assert "nesterov" in next(where for where, stat in named.items() if stat == "kept")


def test_what_a_target_refuses_is_noted_and_what_it_raises_always_passes_through():
    def positive(*arrays, **options):
        if not arrays[4][0] >= 0:
            raise ValueError("momentum must not be negative")
        Kernel()(*arrays, **options)

    verdict = of_callable(positive, dtype="float32")
    assert verdict.hypotheses[0] == SPEC
    assert any("refused" in note and "momentum must not be negative" in note for note in verdict.alternatives)

    def broken(*arrays, **options):
        raise OSError("no such device")

    with pytest.raises(OSError, match="no such device"):
        of_callable(broken, dtype="float32")
    with pytest.raises(TargetError, match="float64"):
        of_callable(lambda p, g, lr, a, m, s, **options: (p.astype(np.float64), a, s), dtype="float32")


def test_steps_of_several_dtypes_are_refused():
    with pytest.raises(ValueError, match="one dtype"):
        of_dump([seen(Kernel(), dtype="float32"), seen(Kernel(), dtype="float16")])
    with pytest.raises(ValueError, match="no kind"):
        of_dump([])


def test_the_same_seed_asks_the_same():
    answers = []

    def listening(p, g, lr, a, m, s, **options):
        answers[-1].append(p.tobytes() + g.tobytes() + a.tobytes() + s.tobytes())
        Kernel()(p, g, lr, a, m, s, **options)

    for seed in (0, 0, 1):
        answers.append([])
        Asking(listening, "float32", "cann", SPEC, seed).first()
    assert answers[0] == answers[1] != answers[2]


def test_every_key_and_every_mask_is_asked_about():
    for rule in ("cann", "torch"):
        chosen = settings(rule)
        assert {(bool(s.dampening), bool(s.weight_decay), s.nesterov) for s in chosen} == {
            (bool(d), bool(wd), nesterov) for d, wd, nesterov in KEYS}
        answers = [tuple(mask(s.momentum) for s in chosen) for mask in MASKS.values()]
        assert len(set(answers)) == len(MASKS)


def test_hypotheses_read_as_sentences():
    assert str(SPEC) == "cann / spec"
    assert str(plain("torch")) == "torch"
    h = Hypothesis(fused=frozenset({"step"}), mask="always", stat="product", faults=frozenset({"weight decay ignored"}))
    assert h.sentence == ("cann / spec with parameters-accum_t*lr fused, but with weight decay ignored, accum and stat "
                          "written also when momentum is 0 and stat written as (1-stat)*0")
    h = Hypothesis(inner="float64", fused=frozenset({"weight decay", "velocity/accum", "step"}), flush="loads",
                   store="truncate", where="tail")
    assert h.sentence == ("cann / spec in the tail, computed in float64, with parameters-accum_t*lr, accum*m+grad and "
                          "grad+parameters*wd fused and subnormal inputs read as zero, truncated when stored")
    assert SPEC.with_fault("parameters not updated").sentence == "cann / spec, but with parameters not updated"
    assert str(plain("torch")._replace(fused=frozenset())) == "torch with no multiply-add fused"
    changes = [SPEC.with_fault(name) for name in FAULTS]
    for field, values in (("stat", STATS), ("store", STORES), ("mask", MASKS), ("flush", FLUSHES), ("inner", INNERS)):
        changes += [SPEC._replace(**{field: value}) for value in values if value != getattr(SPEC, field)]
    for changed in changes:
        assert str(changed) != str(SPEC)
        assert complexity(changed, SPEC) > complexity(SPEC, SPEC)


def test_explanations_that_only_add_to_another_are_left_out():
    flush, kept = SPEC._replace(flush="outputs"), SPEC._replace(stat="kept")
    both = flush._replace(stat="kept")
    assert minimal([SPEC, flush, kept, both]) == [SPEC, flush, kept]
    assert minimal([flush, both]) == [flush, both]


def test_the_module_offers_what_others_call():
    assert set(fingerprint.__all__) == {"Hypothesis", "Verdict", "of_callable", "of_dump"}
    assert Problem._fields[0] == "dtype"
