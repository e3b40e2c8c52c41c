"""The operator's peers do the operator's step, and the limit touches all the memory that a step touches."""

from __future__ import annotations

import shutil
import subprocess
import sys

import numpy as np
import pytest

import samestep
from samestep.bench import cases, judge, limit, memory, peers
from samestep.bench.peer import Case, Settings
from samestep.bench.peers import op_torch

DTYPES = cases.OP_DTYPES
KEYS = {**cases.KEYS, "m=0": Settings(0.0, dampening=0.1, weight_decay=1e-4)}
NAMES = [name for name in peers.PEERS["op"] if name not in ("torch compiled", "limit")]
ONE = ((3, 347),)
MANY = ((1,), (16, 3), (2, 2, 65), (5003,))


def graded(name, dtype, key, shapes):
    peer = peers.load("op", name)
    case = Case("op", dtype, key, "made up", KEYS[key], shapes)
    reason = peer.unavailable() or peer.cannot(case)
    if reason:
        pytest.skip(reason)
    state = memory.allocate(case)
    return judge.check(case, peer, peer.prepare(case, state), state)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_peers_do_the_step_for_one_tensor_set_and_for_lists(name, dtype):
    for key in KEYS:
        for shapes in (ONE, MANY) if name != "torch foreach" else (MANY,):
            found = graded(name, dtype, key, shapes)
            exact = name in ("samestep", "NumPy")
            assert found.grade == "same bits" if exact else found.grade != "wrong", (key, shapes, found)


@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
def test_the_compiled_step_is_right_also_after_one_of_other_shapes():
    for dtype, key, shapes in (("float32", "K3", MANY[:2]), ("bfloat16", "m=0", ONE)):
        assert graded("torch compiled", dtype, key, shapes).grade != "wrong"


@pytest.mark.parametrize("name", ["samestep", "NumPy", "torch eager"])
def test_peers_that_work_in_place_work_on_the_memory_itself(name):
    case = Case("op", "bfloat16", "K3", "made up", KEYS["K3"], MANY)
    state = memory.allocate(case)
    written = peers.load("op", name).prepare(case, state).written()
    assert written.parameters is state.parameters
    assert written.accum is state.accum


def test_tensors_lie_over_the_memory_in_every_dtype():
    for dtype in DTYPES:
        state = memory.allocate(Case("op", dtype, "K0", "made up", KEYS["K0"], ONE))
        tensor = op_torch.tensor_over(state.parameters[0])
        assert str(tensor.dtype) == f"torch.{dtype}"
        assert tensor.data_ptr() == state.parameters[0].ctypes.data
        assert tensor.shape == ONE[0]


def test_what_takes_minutes_or_is_the_same_is_left_out_with_the_reason():
    def cannot(name, count, dtype="float32", key="K0"):
        return peers.load("op", name).cannot(Case("op", dtype, key, "made up", KEYS[key], ((16,),) * count))

    assert cannot("torch foreach", 1) == "one tensor set: that is torch eager"
    assert cannot("torch compiled", 100) is None
    assert "101 tensor sets" in cannot("torch compiled", 101)
    assert cannot("torch compiled", 200, key="K2") is None
    assert "201 tensor sets" in cannot("torch compiled", 201, key="K2")
    assert cannot("JAX", 1000) is None
    assert "1001 tensor sets" in cannot("JAX", 1001)
    assert cannot("MindSpore", 1, "bfloat16") == "mindspore.ops.SGD has no bfloat16"


def test_a_missing_package_is_named_with_the_command(monkeypatch):
    monkeypatch.setattr(peers.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert peers.load("op", "JAX").unavailable() == "not installed: pip install jax"
    assert peers.load("op", "torch compiled").unavailable() == "not installed: pip install torch"
    monkeypatch.setattr(peers.importlib.util, "find_spec", lambda name: name)
    assert "needs a C++ compiler" in peers.load("op", "torch compiled").unavailable()


@pytest.mark.parametrize("suite", peers.PEERS)
def test_every_name_has_a_peer(suite):
    for name in peers.PEERS[suite]:
        assert peers.load(suite, name).name == name


def test_an_unknown_peer_is_refused_with_the_known_ones():
    with pytest.raises(KeyError, match="no peer 'tensorflow' in suite 'op'; there are op: samestep, NumPy"):
        peers.load("op", "tensorflow")
    with pytest.raises(KeyError, match="no peer 'limit' in suite 'operator'"):
        peers.load("operator", "limit")


def test_finding_peers_imports_none_of_their_packages():
    script = (
        "import sys\nfrom samestep.bench import peers\n"
        "found = [peers.load('op', name).unavailable() for name in peers.PEERS['op']]\n"
        "print([name for name in ('torch', 'jax', 'mindspore', 'numba') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# The limit.

LOOPS = {"op": (3, 1, 0), "no dampening": (2, 1, 1), "m == 0": (1, 3, 0)}


def columns_of(count, word, lengths):
    rng = np.random.default_rng(0)
    return [[rng.integers(0, 256, n * np.dtype(word).itemsize, np.uint8).view(word) for n in lengths]
            for _ in range(count)]


@pytest.fixture(params=["torch's team", "own threads"])
def pool(request, monkeypatch):
    if request.param == "own threads":
        monkeypatch.setattr(limit.threads, "team", lambda: None)
    else:
        pytest.importorskip("torch")


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("compiler", ["numba", "C"])
def test_a_limit_loop_reads_and_writes_every_element_once(compiler, loop, pool):
    updated, read, cleared = LOOPS[loop]
    for word in (np.uint16, np.uint32):
        shape = (np.dtype(word).itemsize, updated, read, cleared)
        compiled = (limit._numba if compiler == "numba" else limit._c)(*shape)
        if compiled is None:
            pytest.skip("no C compiler here")
        for lengths in ([1], [5003], [64, 1, 129, 3000], [7] * 300):
            for count in (1, 2, 3):
                tensors = columns_of(updated + read + cleared, word, lengths)
                expected = [[array.copy() for array in arrays] for arrays in tensors]
                for k in range(len(lengths)):
                    total = sum(arrays[k] for arrays in expected[updated:updated + read])
                    for arrays in expected[:updated]:
                        arrays[k] += total
                    for arrays in expected[updated + read:]:
                        arrays[k][:] = 0
                limit._step(compiled, tensors, count, mask=-1)()
                for found, wanted in zip(tensors, expected, strict=True):
                    for one, other in zip(found, wanted, strict=True):
                        np.testing.assert_array_equal(one, other)


def test_the_threads_of_a_limit_loop_share_the_elements_evenly():
    tables = limit._tables(columns_of(2, np.uint32, [100, 1000, 12, 5000]), 3, 0)
    assert [int(table[:, 2].sum()) for table in tables] == [1984, 2048, 2080]


@pytest.mark.parametrize(("key", "cleared"), [("K0", True), ("K3", False), ("m=0", False)])
def test_the_limit_leaves_values_as_they_are(key, cleared):
    case = Case("op", "float16", key, "made up", KEYS[key], ((9001,), (8,)))
    state = memory.allocate(case)
    arrays = [*state.parameters, *state.gradient, *state.accum]
    before = [array.copy() for array in arrays]
    peers.load("op", "limit").prepare(case, state).step()
    for array, kept in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(array.view(np.uint16), kept.view(np.uint16))
    assert all((array == (0 if cleared else 1)).all() for array in state.stat)


def test_the_limit_takes_the_faster_loop(monkeypatch):
    made = []
    monkeypatch.setattr(limit, "_step", lambda loop, tensors, count: made.append((loop, count)) or (loop, count))
    monkeypatch.setattr(limit, "_numba", lambda *shape: "numba")
    monkeypatch.setattr(limit, "_c", lambda *shape: "C")
    monkeypatch.setattr(limit.threads, "get_num_threads", lambda: 2)
    monkeypatch.setattr(limit, "_seconds", {("numba", 1): 4, ("numba", 2): 2, ("C", 1): 3, ("C", 2): 1}.__getitem__)
    large, small = columns_of(2, np.uint32, [20_000]), columns_of(2, np.uint32, [100])
    assert limit.fastest([large[0]], [large[1]]) == ("C", 2)
    assert limit.fastest([small[0]], [small[1]]) == ("C", 1)
    monkeypatch.setattr(limit, "_c", lambda *shape: None)
    assert limit.fastest([large[0]], [large[1]]) == ("numba", 2)
    assert made == [("numba", 1), ("numba", 2), ("C", 1), ("C", 2), ("numba", 1), ("C", 1), ("numba", 1), ("numba", 2)]


def test_without_a_working_compiler_there_is_no_loop_in_c(monkeypatch):
    limit._c.cache_clear()
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert limit._c(4, 3, 1, 0) is None
    limit._c.cache_clear()
    monkeypatch.setattr(shutil, "which", lambda name: shutil.os.path.join(shutil.os.sep, "bin", "false"))
    assert limit._c(4, 3, 1, 0) is None
    limit._c.cache_clear()


def test_samestep_uses_one_call_for_a_list(monkeypatch):
    calls = []
    monkeypatch.setattr(samestep, "sgd_batch_", lambda *arguments, **attributes: calls.append(attributes))
    case = Case("op", "float32", "K3", "made up", Settings(0.9, 0.1, 1e-4), MANY)
    peers.load("op", "samestep").prepare(case, memory.allocate(case)).step()
    assert calls == [{"dampening": 0.1, "weight_decay": 1e-4, "nesterov": False}]
