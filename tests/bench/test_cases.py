"""The cases, the parameter lists they use, and their tensors."""

from __future__ import annotations

import math
from collections import Counter, defaultdict

import numpy as np
import pytest

from samestep.bench import cases, memory, models
from samestep.bench.cases import CASES


def of(suite):
    return [case for case in CASES if case.suite == suite]


def test_there_are_200_with_names_of_their_own():
    assert Counter(case.suite for case in CASES) == {"op": 100, "optim": 100}
    assert len({case.name for case in CASES}) == 200


@pytest.mark.parametrize(("suite", "dtypes", "settings"), [
    ("op", cases.OP_DTYPES, cases.KEYS), ("optim", cases.OPTIM_DTYPES, cases.HYPERPARAMETERS)])
def test_every_pair_of_dtype_and_hyperparameters_occurs(suite, dtypes, settings):
    assert {(case.dtype, case.setting) for case in of(suite)} == {(d, s) for d in dtypes for s in settings}
    assert all(case.settings == settings[case.setting] for case in of(suite))


@pytest.mark.parametrize("suite", ["op", "optim"])
def test_every_shape_occurs_in_every_dtype(suite):
    found = defaultdict(set)
    for case in of(suite):
        found[case.shape].add(case.dtype)
    small = {"float32", "float16", "bfloat16"}
    wide = small | {"float64"} if suite == "optim" else small
    for shape, dtypes in found.items():
        assert dtypes == (small if shape in ("ResNet-50", "ViT-B/16", "GPT-2 small", "Llama, 4 blocks") else wide)


def test_the_shapes_asked_for_are_there():
    sizes = {case.suite: set() for case in CASES}
    for case in CASES:
        sizes[case.suite].add(case.shapes if len(case.shapes) < 2 else case.shape)
    for suite in ("op", "optim"):
        assert {((n,),) for n in (1, 7, 64, 1000, 65_537, 1_000_003)} < sizes[suite]
        assert {"1000 x 64", "10,000 x 16", "ResNet-50"} < sizes[suite]
    assert {((31, 6, 3, 4),), ((6, 5, 16, 17, 5, 2, 4),), ((1 << 24,),)} < sizes["op"]  # least and largest of TTK
    assert {((1 << 25,),), "ViT-B/16", "GPT-2 small", "Llama, 4 blocks"} < sizes["optim"]
    assert all(n % k for n in (65_537, 1_000_003, 10_000_019, memory.BLOCK) for k in range(2, math.isqrt(n) + 1))


def test_whole_lists_weigh_more_in_the_optimizers_cases():
    assert sum(len(case.shapes) > 1 for case in of("optim")) == sum(cases.LIST_CASES.values()) == 60


def test_no_case_needs_more_than_24_gib():
    # Parameters, gradient, eight states, three copies of JAX's two peers.
    assert max(case.elements * cases.ITEMSIZE[case.dtype] for case in CASES) * 16 < 24 << 30


def test_quick_is_small_and_representative():
    quick = cases.quick()
    assert len(quick) == 21
    assert set(quick) < set(CASES)
    assert max(case.elements for case in quick) == 1 << 22
    assert {case.setting for case in quick} == {*cases.KEYS, *cases.HYPERPARAMETERS}
    assert any(len(case.shapes) > 1 for case in quick)


def test_cases_are_found_by_name():
    assert cases.named([CASES[3].name, CASES[0].name]) == (CASES[0], CASES[3])
    with pytest.raises(ValueError, match="there is no case 'op float32 K9 1'; one of the 200 names is 'op float32 K0"):
        cases.named(["op float32 K9 1"])


@pytest.mark.parametrize(("shapes", "tensors", "elements"), [
    (models.resnet50(), 161, 25_557_032), (models.vit_b16(), 152, 86_567_656), (models.gpt2_small(), 148, 124_439_808),
    (models.llama_blocks(1), 9, 60_821_504), (models.llama_blocks(4), 36, 4 * 60_821_504)])
def test_parameter_lists_have_the_known_totals(shapes, tensors, elements):
    assert (len(shapes), sum(map(math.prod, shapes))) == (tensors, elements)


def test_bytes_are_those_of_the_tensors_that_a_step_needs():
    by_name = {case.name: case for case in CASES}
    assert cases.bytes_of(by_name["op float32 K0 1"]) == 4 * 6
    assert cases.bytes_of(by_name["op float16 K1 1"]) == 2 * 7  # dampening reads stat
    assert cases.bytes_of(by_name["optim float64 momentum 1"]) == 8 * 5
    plain = next(case for case in CASES if case.setting == "plain")
    assert cases.bytes_of(plain) == cases.ITEMSIZE[plain.dtype] * plain.elements * 3


@pytest.mark.parametrize("dtype", cases.OPTIM_DTYPES)
def test_memory_is_aligned_and_filled_with_what_it_says(dtype):
    case = CASES[0]._replace(dtype=dtype, shapes=((3, 5), (200_003,), (1,)))
    made = memory.allocate(case)
    lists = [made.parameters, made.gradient, made.accum, made.stat]
    for arrays in lists:
        for array, shape in zip(arrays, case.shapes, strict=True):
            assert (str(array.dtype), array.shape, array.ctypes.data % 64) == (dtype, shape, 0)
            assert array.flags.c_contiguous
    for arrays in lists[:3]:
        numbers = np.concatenate([array.reshape(-1) for array in arrays]).astype(np.float64)
        assert abs(numbers.mean()) < 0.02
        assert abs(numbers.std() - 1) < 0.02
        assert not np.array_equal(numbers[:15], numbers[15:30])
    assert not np.array_equal(made.parameters[1], made.gradient[1])
    assert all((array == 1).all() for array in made.stat)
    assert float(made.learning_rate[0]) == pytest.approx(0.05, rel=4e-3)
    assert float(made.momentum[0]) == pytest.approx(0.9, rel=4e-3)
    before = [array.tobytes() for arrays in lists for array in arrays]
    for arrays in lists:
        for array in arrays:
            array.fill(7)
    made.fill()
    assert [array.tobytes() for arrays in lists for array in arrays] == before


def test_memory_of_the_optimizer_has_no_state():
    made = memory.allocate(next(case for case in CASES if case.suite == "optim"))
    assert made.accum == made.stat == []


def test_only_large_steps_of_the_operator_find_stat_filled_again():
    large = CASES[0]._replace(shapes=((1 << 21,), (1 << 21,)), dtype="float16")
    made = memory.allocate(large)
    again = memory.refill(large, made)
    made.stat[1].fill(0)
    made.accum[0].fill(5)
    again()
    assert (made.stat[1] == 1).all()
    assert (made.accum[0] == 5).all()
    assert memory.refill(large._replace(shapes=((1 << 21,),)), made) is None
    assert memory.refill(large._replace(suite="optim"), made) is None


def test_a_case_larger_than_the_free_memory_is_not_begun():
    assert memory.lacking(CASES[0]) is None
    reason = memory.lacking(CASES[0]._replace(shapes=((1 << 46,),)))
    assert reason.startswith("it may need 1688849.9 GB of memory beside what is in use, and ")
