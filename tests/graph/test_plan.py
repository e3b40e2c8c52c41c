"""`samestep graph plan`: the key, the kernel and the split that a call really takes, and those of a device."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import samestep
from samestep.cli import main
from samestep.contract import DTYPES, ORDERS, ContractError
from samestep.engine import cpu, quick, threads
from samestep.graph.plan import SOCS, device_split, most_alive, plan, unified_buffer
from samestep.graph.trace import trace
from samestep.tiling import Split, encode, legal_kernels
from suite import KEYS, attributes

ASCEND = SOCS["ascend950"]
# The elementwise tiling fields of the operator's tests.
FIELDS = {"dim0", "coreNum", "ubFormer", "blockFormer", "blockNum", "ubLoopOfFormerBlock", "ubLoopOfTailBlock",
          "ubTailOfFormerBlock", "ubTailOfTailBlock", "elemNum", "scheMode"}


def invoke(*arguments):
    return CliRunner().invoke(main, ["graph", "plan", *map(str, arguments)])


# --- the device ------------------------------------------------------------------------------------------------------

def test_the_device():
    assert ASCEND == (64, 245_760)


@settings(max_examples=400, deadline=None)
@given(total=st.one_of(st.integers(1, 5000), st.integers(1, 10**7), st.integers(1, 10**12)),
       dtype=st.sampled_from(list(DTYPES)), key=st.sampled_from(KEYS), order=st.sampled_from(ORDERS))
def test_blocks_cover_all_elements_once_and_fit_the_buffer(total, dtype, key, order):
    found = plan((total,), dtype, **attributes(key)._asdict(), order=order, soc="ascend950")
    it = found.elementwise_tiling()
    assert set(it) == FIELDS
    assert (it["dim0"], it["coreNum"]) == (total, 64)
    assert 1 <= it["blockNum"] <= 64
    # From the fields alone, as a kernel reads them: each block's runs, one behind the other.
    blocks = []
    for k in range(it["blockNum"]):
        kind = "Tail" if k == it["blockNum"] - 1 else "Former"
        loops, tail = it[f"ubLoopOf{kind}Block"], it[f"ubTailOf{kind}Block"]
        assert 1 <= tail <= it["ubFormer"] <= it["elemNum"]
        blocks.append((k * it["blockFormer"], k * it["blockFormer"] + (loops - 1) * it["ubFormer"] + tail))
    assert blocks[0][0] == 0
    assert blocks[-1][1] == total
    assert all(one[1] == other[0] for one, other in itertools.pairwise(blocks))
    assert it["scheMode"] == (it["blockNum"] > 1) == found.key.sch_mode
    # What a core holds at once fits; every buffer begins on 32 bytes.
    ub = found.ub
    assert ub.elements * ub.bytes_per_element <= ASCEND.ub_bytes
    assert (ub.elements + 64) * ub.bytes_per_element > ASCEND.ub_bytes - 64
    assert ub.bytes_per_element == ub.tensor_buffers * DTYPES[dtype] + 4 * ub.float32_buffers
    assert ub.elements * DTYPES[dtype] % 32 == 0


def test_what_stands_in_the_buffer_counted_by_hand():
    # K0 in float32 reads p, g, a and writes p, a, stat, each twice; beside them accum_t and the step.
    assert unified_buffer(ASCEND, trace("K0"), "float32")[:3] == (12, 2, 56)
    # float16: p is widened late; accum_t, step and p at the end.
    assert unified_buffer(ASCEND, trace("K0"), "float16")[:3] == (12, 3, 36)
    # With dampening stat is read too: accum_t, grad and 1 - stat live together.
    assert unified_buffer(ASCEND, trace("K1"), "float32")[0] == 14
    assert most_alive(trace("K3"), "float32") == 3


@settings(max_examples=200, deadline=None)
@given(total=st.integers(1, 10**9), elements=st.integers(64, 10**5))
def test_the_split_of_a_device_has_runs_no_longer_than_a_block(total, elements):
    ub = unified_buffer(ASCEND, trace("K0"), "float32")._replace(elements=elements)
    split = device_split(total, ASCEND, ub)
    assert split.ub_former == min(elements, split.block_former)
    assert split.ub_loop_of_former_block == math.ceil(split.block_former / split.ub_former)


def test_the_cpu_engine_has_no_elementwise_tiling():
    with pytest.raises(ValueError, match="soc='ascend950'"):
        plan((3,)).elementwise_tiling()


# --- the cpu engine --------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("total", [60, 1 << 20])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("key", "dtype"), legal_kernels(), ids=str)
def test_the_plan_is_what_the_engine_is_given(monkeypatch, key, dtype, order, total):
    """Key, split and kernel of the batch that `sgd_` hands to the engine."""
    seen = []
    monkeypatch.setattr(cpu, "run", seen.append)
    monkeypatch.setattr(quick, "step", lambda *arguments: False)  # small calls go without an engine's `run`
    arrays = [np.zeros(total, np.uint16 if dtype != "float32" else np.float32) for _ in range(4)]
    if dtype == "bfloat16":
        import ml_dtypes

        arrays = [array.view(ml_dtypes.bfloat16) for array in arrays]
    elif dtype == "float16":
        arrays = [array.view(np.float16) for array in arrays]
    p, g, a, s = arrays
    given = attributes(key)._asdict()
    threads.set_num_threads(2)
    try:
        samestep.sgd_(p, g, 0.1, a, 0.9, s, **given, order=order)
        found = plan((total // 4, 4), dtype, **given, order=order)
    finally:
        threads.set_num_threads(None)
    (batch,) = seen
    assert found.key == batch.kernel.key
    assert found.split == batch.split
    assert found.kernel == cpu.kernel_name(batch.kernel)


# --- refusals --------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("given", "code"), [
    ({"shape": ()}, "rank_out_of_range"), ({"shape": (0, 3)}, "null_input"), ({"shape": (-1, 3)}, "wrong_type"),
    ({"shape": (-2,)}, "wrong_type"), ({"dtype": "float64"}, "unsupported_dtype"), ({"order": "x"}, "unknown_order"),
    ({"weight_decay": -1}, "attribute_value_out_of_range"),
    ({"nesterov": True, "dampening": 1}, "attribute_value_out_of_range")])
def test_refusals(given, code):
    with pytest.raises(ContractError) as caught:
        plan(**({"shape": (3,)} | given))
    assert caught.value.code == code


def test_an_unknown_device():
    with pytest.raises(ValueError, match="known are ascend950"):
        plan((3,), soc="ascend910")


# --- the command -----------------------------------------------------------------------------------------------------

def test_the_command_prints_key_variant_split_and_kernel():
    found = invoke("--shape", "3761,4,44,4", "--dtype", "float16", "--weight-decay", 0.01, "--threads", 2)
    assert found.exit_code == 0
    words = [line.split() for line in found.output.splitlines()]
    assert ["kernel", "samestep_spec_float16_K2_1"] in words
    assert ["variant", "K2"] in words
    assert ["key", "number", "5"] in words
    for field, value in (("schMode", "1"), ("useNesterov", "0"), ("hasWeightDecay", "1"), ("hasDampening", "0")):
        assert [field, value] in words
    shown = {line[-2] for line in words}
    assert set(Split._fields) <= shown
    assert ["block_num", "2"] in words


def test_the_command_for_a_device():
    facts = json.loads(invoke("--shape", "3761,4,44,4", "--dtype", "float16", "--weight-decay", 0.01, "--soc",
                              "ascend950", "--json").output)
    assert facts["device"] == "ascend950"
    assert set(facts["elementwise_tiling"]) == FIELDS
    assert facts["elementwise_tiling"]["coreNum"] == 64
    assert facts["elementwise_tiling"]["dim0"] == 3761 * 4 * 44 * 4
    text = invoke("--shape", "3761,4,44,4", "--soc", "ascend950").output
    assert {line.split()[-2] for line in text.splitlines()} >= FIELDS


def test_the_command_s_json():
    facts = json.loads(invoke("--shape", 100, "--nesterov", "--json").output)
    assert facts["variant"] == "K5"
    assert facts["key"]["number"] == encode(plan((100,), nesterov=True).key) == 2
    assert facts["split"] == plan((100,), nesterov=True).split._asdict()
    assert "elementwise_tiling" not in facts


@pytest.mark.parametrize("count", [1, 3, 64])
def test_threads_are_those_asked_for_and_no_setting_stays(count):
    before = threads.get_num_threads()
    facts = json.loads(invoke("--shape", 1 << 24, "--threads", count, "--json").output)
    assert facts["split"]["core_num"] == facts["split"]["block_num"] == count
    assert threads.get_num_threads() == before


@pytest.mark.parametrize(("arguments", "message"), [
    (("--shape", "a,3"), "lengths with commas between"),
    (("--shape", ""), "lengths with commas between"),
    (("--shape", "2,0"), "[null_input]"),
    (("--shape", "-1,3"), "known lengths"),
    (("--shape", "3", "--dtype", "int8"), "[unsupported_dtype]"),
    (("--shape", "3", "--soc", "x"), "known are ascend950"),
    (("--shape", "3", "--soc", "ascend950", "--threads", "2"), "has its own cores"),
    (("--shape", "3", "--threads", "0"), "x>=1"),
    (("--shape", "3", "--weight-decay", "nan"), "weight_decay"),
    ((), "--shape"),
])
def test_the_command_says_what_is_wrong(arguments, message):
    found = invoke(*arguments)
    assert found.exit_code == 2
    assert message in found.output
