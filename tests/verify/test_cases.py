"""The suite as data: every family there, with what it is for in it; the same for the same seed; large enough."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest

from samestep.verify.patterns import is_nan, number_of, word_of
from samestep.verify.suite import cases, draw, judge, refusals
from samestep.verify.suite.families import LENGTHS, SHAPES
from samestep.verify.suite.variants import DTYPES_OF, KEYS, VARIANTS_OF

RULES = ("cann", "torch")


def family(name, rule="cann", dtype="float32", **options):
    return [item for item in cases.items(rule, dtypes=[dtype], **options) if item.family == name]


def same(one, other):
    return all(np.array_equal(x, y) if isinstance(x, np.ndarray) else repr(x) == repr(y)
               for x, y in zip(one, other, strict=True))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("level", "least"), [("quick", 5_000), ("full", 100_000)])
def test_levels_are_as_large_as_they_say_and_names_are_unique(rule, level, least):
    names = [item.name for item in cases.items(rule, level=level)]
    assert len(names) >= least
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("rule", RULES)
def test_every_family_is_there_in_every_dtype_and_goes_through_every_variant(rule):
    found = Counter((item.dtype, item.family) for item in cases.items(rule))
    assert set(found) == set(itertools.product(DTYPES_OF[rule], cases.FAMILIES[rule]))
    for dtype in DTYPES_OF[rule]:
        kernels = {item.name.split("/")[2] for item in cases.items(rule, dtypes=[dtype]) if item.family == "kernels"}
        assert kernels == {variant.name for variant in VARIANTS_OF[rule]}


def test_the_full_level_begins_with_the_quick_one():
    quick = [item.name for item in cases.items(dtypes=["float16"])]
    assert [item.name for item in itertools.islice(cases.items(level="full", dtypes=["float16"]), len(quick))] == quick


@pytest.mark.parametrize("rule", RULES)
def test_a_seed_makes_the_same_items_and_another_one_others(rule):
    def drawn(seed):
        chosen = itertools.islice(cases.items(rule, dtypes=["bfloat16"], seed=seed), 0, None, 61)
        return [item.problem() for item in chosen if item.family != "ttk"]

    with np.errstate(all="ignore"):
        ones, again, others = drawn(3), drawn(3), drawn(4)
    assert all(map(same, ones, again))
    assert sum(map(same, ones, others)) < 0.1 * len(ones)


def test_an_item_does_not_depend_on_those_before_it():
    with np.errstate(all="ignore"):
        first = {item.name: item.problem() for item in family("steps")}
        for item in reversed(family("steps")):
            assert same(item.problem(), first[item.name])


def test_keys_are_those_of_rule_k1():
    assert {name: key[2:5] for name, key in KEYS.items()} == {
        "K0": (False, False, False), "K1": (False, False, True), "K2": (False, True, False),
        "K3": (False, True, True), "K4": (True, True, False), "K5": (True, False, False)}


@pytest.mark.parametrize("rule", RULES)
def test_problems_are_of_their_variant(rule):
    variants = {variant.name: variant for variant in VARIANTS_OF[rule]}
    for item in family("kernels", rule) + family("training", rule):
        problem, variant = item.problem(), variants[item.name.split("/")[2]]
        assert (problem.dampening != 0, problem.weight_decay != 0) == (variant.dampening, variant.weight_decay)
        assert (problem.nesterov, problem.maximize) == (variant.nesterov, variant.maximize)
        if rule == "torch":
            assert (problem.momentum != 0) == (variant.momentum != "none")
            assert problem.stat is None
            if variant.momentum in ("first", "later"):
                assert (problem.accum is None) == (variant.momentum == "first")
            assert not (variant.nesterov and (variant.dampening or problem.momentum == 0))


@pytest.mark.parametrize("dtype", DTYPES_OF["cann"])
def test_mask_goes_around_zero_over_memory_that_must_survive(dtype):
    items = family("mask", dtype=dtype)
    numbers = {repr(item.problem().momentum) for item in items}
    assert {"0.0", "-0.0", "1e-30", "1e-08", "nan", "inf", "-inf", "-0.5", "0.9"} <= numbers
    for key in KEYS:
        kept = [item.problem() for item in items if key in item.name and "m=-0.0" in item.name]
        assert all(is_nan(p.accum, dtype).any() and (p.stat == word_of(-0.0, dtype)).any() for p in kept)
        assert kept


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_specials_meet_in_all_pairs_and_as_scalars(rule, dtype):
    items = family("specials", rule, dtype)
    words = draw.specials(dtype).tolist()
    roles = "pgas" if rule == "cann" else "pga"
    wanted = set(itertools.product(words, words))
    for one, other in itertools.combinations(roles, 2):
        pairs = [item for item in items if item.name.split("/")[3] == one + other]
        assert len(pairs) == len(VARIANTS_OF[rule])
        problem = pairs[0].problem()
        columns = {"p": problem.parameters, "g": problem.gradient, "a": problem.accum, "s": problem.stat}
        if columns[one] is not None and columns[other] is not None:
            assert set(zip(columns[one].tolist(), columns[other].tolist(), strict=True)) == wanted
    for name in ("learning_rate", "momentum"):
        numbers = {item.name.split("=")[1].split("/")[0] for item in items if name in item.name}
        assert {"inf", "-inf", "0.0", "-0.0"} <= numbers
        assert ("nan" in numbers) == (rule == "cann")


@pytest.mark.parametrize("dtype", DTYPES_OF["torch"])
def test_specials_hold_every_kind_of_number(dtype):
    words = draw.specials(dtype)
    numbers = [number_of(int(word), dtype) for word in words[~is_nan(words, dtype)]]
    assert is_nan(words, dtype).sum() >= 3
    assert {math.inf, -math.inf, 0.0, 1.0, -1.0} <= set(numbers)
    assert sum(math.copysign(1, number) < 0 for number in numbers if number == 0) == 1
    least, most = min(n for n in numbers if n > 0), max(n for n in numbers if n < math.inf)
    assert int(np.array(least).astype(draw.TYPES[dtype]).view(draw.WORDS[dtype])) == 1
    assert math.isinf(number_of(word_of(most, dtype) + 1, dtype))


def test_tails_alignments_and_shapes():
    assert {item.problem().parameters.size for item in family("tails")} == set(LENGTHS)
    assert set(range(1, 71)) | {127, 128, 129, 4109} <= set(LENGTHS)
    for dtype, size in (("float32", 4), ("float16", 2)):
        places = {item.offset * size % 64 for item in family("alignment", dtype=dtype, level="full")}
        assert places == set(range(size, 64, size))
    shapes = {item.problem().shape for item in family("shapes")}
    assert shapes == set(SHAPES)
    assert {len(shape) for shape in shapes} == set(range(1, 9))


def test_stat_and_accum():
    problems = {item.name: item.problem() for item in family("stat")}
    numbers = {number_of(word, "float32") for problem in problems.values() for word in problem.stat.tolist()}
    assert {0.0, 1.0, 0.25, 1.5, -0.5, math.inf} <= numbers
    assert all((p.accum != 0).all() for name, p in problems.items() if "all 1" in name)
    for p in (p for name, p in problems.items() if "0 and 1" in name):
        assert 0 < (p.stat == 0).sum() < p.stat.size


def test_hyperparameters_reach_the_extremes():
    for rule, named in (("cann", "O4"), ("torch", "T")):
        items = family("hyperparameters", rule)
        assert {item.rule for item in items} == {named}
        text = " ".join(item.name for item in items)
        for part in ("weight_decay=1e-50", "weight_decay=inf", "dampening=-inf", "learning_rate=1e-45",
                     "learning_rate=-0.1", "momentum=3.4e+38"):
            assert part in text
        assert ("learning_rate=nan" in text) == (rule == "cann")
    absent = next(item for item in family("hyperparameters") if "weight_decay=1e-50" in item.name)
    assert np.isinf(absent.problem().parameters.view(np.float32)).any()  # 0*inf would be seen


@pytest.mark.parametrize(("rule", "order"), [("cann", "spec"), ("cann", "ascend950"), ("torch", "spec")])
def test_steps_carry_the_state_and_pass_through_zero(rule, order):
    sequences = itertools.groupby(family("steps", rule, order=order), key=lambda item: item.stream)
    count = 0
    for stream, items in sequences:
        problems = [item.problem() for item in items]
        count += 1
        assert len(problems) == 10
        momenta = [problem.momentum for problem in problems]
        assert momenta.count(0.0) == 3
        assert sum(math.copysign(1, m) < 0 for m in momenta) == 1
        assert len({problem.learning_rate for problem in problems}) > 1
        for one, after in itertools.pairwise(problems):
            expected = judge.expected(one, order)
            assert np.array_equal(expected.parameters, after.parameters)
            assert (expected.accum is None) == (after.accum is None)
            assert expected.accum is None or np.array_equal(expected.accum, after.accum)
            assert not np.array_equal(one.gradient, after.gradient)
        if "fresh" in stream and rule == "cann":
            assert not problems[0].accum.any()
            assert (problems[0].stat == word_of(1.0, "float32")).all()
    assert count >= 12


def test_one_element_everywhere_is_the_same_element():
    for _, items in itertools.groupby(family("determinism"), key=lambda item: item.name.split("/n=")[0]):
        elements = {(*(words[0] for words in problem[2:6]), *map(repr, problem[6:]))
                    for problem in (item.problem() for item in items)}
        assert len(elements) == 1


def test_ttk_shapes_and_ranges():
    items = [item for item in cases.items() if item.family == "ttk"]
    assert len(items) == 91
    with np.errstate(all="ignore"):
        problems = [item.problem() for item in items]
    assert max(problem.parameters.size for problem in problems) == 326_400
    assert {len(problem.shape) for problem in problems} == {1, 3, 4, 5, 6, 7, 8}
    one_of = [p for p in problems if len(np.unique(p.parameters)) == 4]
    assert len(one_of) == 20
    for problem in one_of:
        assert is_nan(problem.parameters, problem.dtype).any()
    within = [p for p in problems if np.min(_values(p)) >= 0 and np.max(_values(p)) <= 1]
    assert len(within) == 12


def _values(problem):
    return problem.parameters.view(draw.TYPES[problem.dtype]).astype(np.float64)


def test_refusals_ask_for_every_code_that_arrays_and_values_can_cause():
    from samestep.contract import CODES

    codes = {case.code for case in refusals.refusals("cann")}
    assert codes == set(CODES) - {"unsupported_device", "unsupported_format", "batch_length"}
    names = [case.name for case in refusals.refusals("cann")]
    assert len(set(names)) == len(names)


def test_rounding_lies_halfway():
    for dtype in DTYPES_OF["cann"]:
        unit = number_of(word_of(1.0, dtype) + 1, dtype) - 1
        halves = 0
        for item in family("rounding", dtype=dtype):
            problem = item.problem()
            if problem.momentum == 0 and not (problem.nesterov or problem.dampening or problem.weight_decay):
                exact = _values(problem) - 0.5 * problem.gradient.view(draw.TYPES[dtype]).astype(np.float64)
                halves += int(((exact / unit) % 1 == 0.5).sum())
        assert halves > 20, dtype
