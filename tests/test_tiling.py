"""Kernel keys and the split of the work (rules K1, K2)."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import samestep
from samestep.contract import check_attributes
from samestep.engine import cpu, reference, threads
from samestep.tiling import Split, TilingKey, decode, encode, legal_kernels, legal_keys, select, split

# Rule K1's table: the business variant, `key >> 1`, and the terms that exist (nesterov, weight decay, dampening).
VARIANTS = {
    "K0": (0, (False, False, False)),
    "K1": (4, (False, False, True)),
    "K2": (2, (False, True, False)),
    "K3": (6, (False, True, True)),
    "K4": (3, (True, True, False)),
    "K5": (1, (True, False, False)),
}


@pytest.mark.parametrize("sch_mode", [0, 1])
@pytest.mark.parametrize("variant", VARIANTS)
def test_variants(variant: str, sch_mode: int) -> None:
    number, terms = VARIANTS[variant]
    key = TilingKey(sch_mode, *terms)
    assert encode(key) == number << 1 | sch_mode
    assert encode(key) >> 1 == number
    assert decode(number << 1 | sch_mode) == key
    assert key.variant == variant


def test_the_variants_in_order() -> None:
    by_name = sorted(legal_keys(), key=lambda key: (key.variant, key.sch_mode))
    assert [encode(key) >> 1 for key in by_name[::2]] == [0, 4, 2, 6, 3, 1]


def test_twelve_keys_thirty_six_kernels() -> None:
    keys, kernels = legal_keys(), legal_kernels()
    assert len(keys) == len(set(keys)) == 12
    assert len(kernels) == len(set(kernels)) == 36
    assert {dtype for _, dtype in kernels} == {"float32", "float16", "bfloat16"}
    assert {key for key, _ in kernels} == set(keys)
    assert sorted(map(encode, keys)) == [n for n in range(16) if not (n & 2 and n & 8)]


def test_round_trip() -> None:
    for key in legal_keys():
        again = decode(encode(key))
        assert again == key
        assert [type(field) for field in again] == [int, bool, bool, bool]
    assert [encode(decode(encode(key))) for key in legal_keys()] == [encode(key) for key in legal_keys()]


@pytest.mark.parametrize("number", [10, 11, 14, 15, 16, 17, -1, -2, 1 << 60, 2.5, "0", None])
def test_illegal_numbers(number: Any) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        decode(number)
    assert str(number) in str(caught.value)


@pytest.mark.parametrize("key", [TilingKey(0, True, False, True), TilingKey(1, True, True, True),
                                 TilingKey(2, False, False, False), TilingKey(-1, True, False, False)], ids=str)
def test_illegal_keys(key: TilingKey) -> None:
    with pytest.raises(ValueError, match="no legal key"):
        encode(key)
    with pytest.raises(ValueError, match="no legal key"):
        key.variant  # noqa: B018


@pytest.mark.parametrize("variant", VARIANTS)
def test_select(variant: str) -> None:
    nesterov, weight_decay, dampening = VARIANTS[variant][1]
    attributes = check_attributes(0.5 * dampening, 0.5 * weight_decay, nesterov)
    for sch_mode in (0, 1):
        assert select(sch_mode, attributes) == TilingKey(sch_mode, nesterov, weight_decay, dampening)


@pytest.mark.parametrize(
    ("attributes", "variant"),
    [((0.0, 0.0, False), "K0"), ((1e-50, -1e-50, False), "K0"), ((-0.0, -0.0, True), "K5"), ((1e-50, 1, True), "K4"),
     ((2.0**-149, 0, False), "K1"), ((float("nan"), 2.0**-149, False), "K3"), ((-1, 0, False), "K1")],
)
def test_select_sees_float32(attributes: Any, variant: str) -> None:
    """What rounds to zero in float32 is no term (rule O4)."""
    assert select(0, check_attributes(*attributes)).variant == variant


# --- the split -------------------------------------------------------------------------------------------------------

def blocks(it: Split) -> list[tuple[int, int]]:
    """First and one past the last element of every block."""
    return [(k * it.block_former, min((k + 1) * it.block_former, it.dim0)) for k in range(it.block_num)]


def runs(length: int, it: Split) -> tuple[int, int]:
    """How many runs of at most ub_former elements a block takes, and how long the last one is."""
    starts = range(0, length, it.ub_former)
    return len(starts), length - starts[-1]


def check(it: Split, total: int, core_num: int) -> None:
    assert (it.dim0, it.core_num) == (total, core_num)
    assert 1 <= it.block_num <= core_num
    assert it.sch_mode == (0 if it.block_num == 1 else 1)
    assert all(isinstance(field, int) and field >= 0 for field in it)
    # Every element in exactly one block, and no block without any.
    edges = blocks(it)
    assert edges[0][0] == 0
    assert edges[-1][1] == total
    assert all(a[1] == b[0] for a, b in itertools.pairwise(edges))
    assert all(start < stop for start, stop in edges)
    # The loops and tails of the first kind of block and of the last one.
    former, tail = (runs(edges[k][1] - edges[k][0], it) for k in (0, -1))
    assert (it.ub_loop_of_former_block, it.ub_tail_of_former_block) == former
    assert (it.ub_loop_of_tail_block, it.ub_tail_of_tail_block) == tail
    assert 1 <= it.ub_tail_of_former_block <= it.ub_former
    assert 1 <= it.ub_tail_of_tail_block <= it.ub_former
    # The same from the fields alone, as a kernel reads them.
    in_former = (it.ub_loop_of_former_block - 1) * it.ub_former + it.ub_tail_of_former_block
    in_tail = (it.ub_loop_of_tail_block - 1) * it.ub_former + it.ub_tail_of_tail_block
    assert (it.block_num - 1) * in_former + in_tail == total
    assert in_former == it.block_former


SIZES = st.one_of(st.integers(1, 200), st.integers(1, 10**6), st.integers(1, 10**13))


@settings(max_examples=500, deadline=None)
@given(total=SIZES, core_num=st.integers(1, 300), block_least=st.one_of(st.integers(1, 50), st.integers(1, 10**7)),
       block_align=st.sampled_from([1, 2, 3, 8, 64, 1000, 1024]), ub_former=st.one_of(st.integers(1, 64), SIZES))
def test_split(total: int, core_num: int, block_least: int, block_align: int, ub_former: int) -> None:
    it = split(total, core_num, block_least=block_least, block_align=block_align, ub_former=ub_former)
    check(it, total, core_num)
    assert it.ub_former == ub_former
    assert it.block_num == 1 or it.block_former % block_align == 0
    assert it.block_num <= max(1, total // block_least)


@settings(deadline=None)
@given(total=st.integers(1, 10**7), dtype=st.sampled_from(["float32", "float16", "bfloat16"]), count=st.integers(1, 64))
def test_the_splits_of_the_engines(total: int, dtype: str, count: int) -> None:
    threads.set_num_threads(count)
    try:
        for engine in (cpu, reference):
            it = engine.plan(total, dtype)
            check(it, total, it.core_num)
            assert it.block_num <= (count if engine is cpu else 1)
    finally:
        threads.set_num_threads(None)


def test_a_large_update_uses_several_blocks() -> None:
    threads.set_num_threads(4)
    try:
        assert cpu.plan(1 << 22, "float32").block_num == 4
        assert cpu.plan(100, "float32").block_num == 1
    finally:
        threads.set_num_threads(None)


@pytest.mark.parametrize("shape", [(33, 2), (7, 7, 33, 2), (1,), (1 << 16,)], ids=str)
def test_unaligned_tails_are_written(shape: tuple[int, ...]) -> None:
    """Every element is updated, whatever the tail."""
    p, g, a, s = (np.full(shape, value, np.float32) for value in (2, 1, 1, 1))
    samestep.sgd_(p, g, 0.5, a, 0.5, s)
    assert (p == 1.25).all()
    assert (a == 1.5).all()
    assert (s == 0).all()


def test_public_names() -> None:
    assert samestep.TilingKey is TilingKey
    assert samestep.encode is encode
    assert samestep.decode is decode
    assert samestep.legal_keys is legal_keys
    assert samestep.legal_kernels is legal_kernels
