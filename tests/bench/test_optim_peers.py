"""The optimizers do the step they claim, keep off what others use, and say why where they are left out."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref

import numpy as np
import pytest
import torch

from samestep.bench import cases, judge, memory, peers
from samestep.bench.peer import Case, Settings
from samestep.bench.peers import optim_other, optim_torch

SETTINGS = {
    **cases.HYPERPARAMETERS,
    "nesterov, no decay": Settings(0.9, nesterov=True), "decay only": Settings(weight_decay=0.1),
    "dampened, no decay": Settings(0.9, dampening=0.1), "maximize, no decay": Settings(0.9, maximize=True),
    "much decay": Settings(0.9, weight_decay=0.1),
}
SHAPES = ((3, 5), (64,), (1003,))
NAMES = [name for name in peers.PEERS["optim"] if name not in ("torch compiled", "limit")]
SIXTEEN = ("bfloat16", "float16")


def case_of(setting="decay", dtype="float32", shapes=SHAPES):
    return Case("optim", dtype, setting, "made up", SETTINGS[setting], shapes)


def there(name):
    peer = peers.load("optim", name)
    if peer.unavailable():
        pytest.skip(peer.unavailable())
    return peer


@pytest.mark.parametrize("dtype", cases.OPTIM_DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_peers_do_the_step_also_after_a_reset(name, dtype):
    peer = there(name)
    settings = cases.HYPERPARAMETERS if name == "samestep" else SETTINGS  # ours has tests of its own
    possible = [case for case in (case_of(setting, dtype) for setting in settings) if peer.cannot(case) is None]
    assert possible or (name, dtype) == ("tinygrad", "float64")
    for case in possible:
        state = memory.allocate(case)
        prepared = peer.prepare(case, state)
        found = judge.check(case, peer, prepared, state)
        if name == "samestep" or (name in ("torch for-loop", "torch foreach") and dtype not in SIXTEEN):
            assert found.grade == "same bits", case.setting
        elif name == "torch fused" and dtype in SIXTEEN:
            if torch.__version__.startswith("2.13"):  # it does not store most of the parameters
                assert found.grade == "wrong", case.setting
            continue
        assert found.grade != "wrong", (case.setting, found)
        assert judge.check(case, peer, prepared, state) == found, case.setting
        has_buffers = case.settings.momentum != 0 and name != "Keras" and (name != "tinygrad" or dtype not in SIXTEEN)
        assert (prepared.written().accum is not None) == has_buffers


@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
def test_the_compiled_step_is_compiled_once_and_right_also_after_a_reset():
    peer, case = there("torch compiled"), case_of(shapes=((67,), (5, 3)))
    state = memory.allocate(case)
    torch._dynamo.utils.counters.clear()
    prepared = peer.prepare(case, state)
    compiled = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    found = judge.check(case, peer, prepared, state)
    assert found.grade != "wrong"
    assert judge.check(case, peer, prepared, state) == found
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == compiled == 2


def test_torch_optimizers_step_the_same_parameters_on_the_memory():
    case = case_of(dtype="bfloat16")
    state = memory.allocate(case)
    ready = [peers.load("optim", name).prepare(case, state) for name in ("samestep", "torch for-loop", "torch foreach")]
    tensors = optim_torch.shared(state)
    assert [prepared.step.__self__.param_groups[0]["params"] for prepared in ready] == [tensors.parameters] * 3
    for parameter, array, gradient in zip(tensors.parameters, state.parameters, state.gradient, strict=True):
        assert parameter.dtype == torch.bfloat16
        assert parameter.data_ptr() == array.ctypes.data
        assert parameter.grad.data_ptr() == gradient.ctypes.data
    assert optim_torch.shared(memory.allocate(case)).parameters is not tensors.parameters


@pytest.mark.parametrize("name", ["samestep", "torch for-loop", "torch fused"])
def test_parameters_are_let_go_with_the_last_peer_that_steps_them(name):
    case = case_of()
    state = memory.allocate(case)
    prepared = peers.load("optim", name).prepare(case, state)
    prepared.step()
    parameter = weakref.ref(optim_torch.shared(state).parameters[0])
    gc.collect()
    assert parameter() is not None
    del prepared
    gc.collect()
    assert parameter() is None


@pytest.mark.parametrize("name", ["optax", "Keras", "limit"])
def test_peers_with_copies_leave_the_memory_alone(name):
    peer, case = there(name), case_of("momentum")
    state = memory.allocate(case)
    before = [array.copy() for array in (*state.parameters, *state.gradient)]
    prepared = peer.prepare(case, state)
    prepared.reset()
    prepared.step()
    assert all(map(np.array_equal, before, (*state.parameters, *state.gradient)))
    assert not np.array_equal(prepared.written().parameters[0], state.parameters[0])


@pytest.mark.parametrize("setting", ["plain", "momentum"])
@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_the_limit_reads_gradients_and_updates_as_many_tensors_as_a_step(setting, dtype, monkeypatch):
    from samestep.bench.peers import optim_own

    given = []
    monkeypatch.setattr(optim_own.limit, "fastest", lambda *lists: given.append(lists))
    case = case_of(setting, dtype)
    state = memory.allocate(case)
    prepared = optim_own.PEERS["limit"].prepare(case, state)
    (updated, read), = given
    assert read == [state.gradient]
    assert len(updated) == (1 if setting == "plain" else 2)
    assert updated[0] is prepared.written().parameters
    for arrays in updated:
        assert [array.shape for array in arrays] == list(SHAPES)
        assert all(str(array.dtype) == dtype and array.ctypes.data % 64 == 0 for array in arrays)


def test_what_cannot_be_done_is_said():
    def cannot(name, setting="decay", dtype="float32", count=1):
        return peers.load("optim", name).cannot(case_of(setting, dtype, ((16,),) * count))

    assert "201" in cannot("torch compiled", count=201)
    assert cannot("torch compiled", count=200) is None
    assert "overwrites" in cannot("torch foreach", "nesterov, no decay")
    for name in ("optax", "Keras", "tinygrad"):
        assert cannot(name, "dampened, no decay") == "it has no dampening"
        assert cannot(name, "momentum", count=1000) is None
        assert "10,000 tensors" in cannot(name, "momentum", count=10_000)
    assert "decoupled" in cannot("Keras", "decay")
    assert cannot("Keras", "decay only") is None
    assert "overwrite" in cannot("pytorch_optimizer", "decay")
    assert "float32" in cannot("tinygrad", "momentum", "float64")
    for name in ("samestep", "torch for-loop", "torch foreach", "torch fused", "NumPy", "limit"):
        assert cannot(name, "dampened", "float16", 10_000) is None


@pytest.mark.parametrize(("name", "setting"), [
    ("torch foreach", "nesterov, no decay"), ("pytorch_optimizer", "decay"),
    ("pytorch_optimizer", "maximize, no decay"),
])
def test_what_is_said_to_overwrite_gradients_does(name, setting):
    peer, case = there(name), case_of(setting)
    assert "overwrite" in peer.cannot(case)
    state = memory.allocate(case)
    before = state.gradient[0].copy()
    prepared = peer.prepare(case, state)
    prepared.step()
    assert not np.array_equal(state.gradient[0], before)


def test_what_is_said_to_be_another_rule_is():
    peer, case = there("Keras"), case_of("much decay")
    state = memory.allocate(case)
    assert judge.check(case, peer, peer.prepare(case, state), state).grade == "wrong"


def test_float64_in_jax_is_switched_on_for_its_steps_only():
    peer, case = there("optax"), case_of(dtype="float64")
    import jax

    prepared = peer.prepare(case, memory.allocate(case))
    prepared.step()
    assert prepared.written().parameters[0].dtype == np.float64
    assert jax.numpy.ones(1).dtype == np.float32


def test_missing_packages_are_named_with_the_command(monkeypatch):
    optim_other._tinygrad_unavailable.cache_clear()
    monkeypatch.setattr(peers.importlib.util, "find_spec", lambda name: None)
    for name in ("samestep", *NAMES[1:-1]):
        said = peers.load("optim", name).unavailable()
        assert said.startswith("not installed: pip install ")
    assert peers.load("optim", "NumPy").unavailable() is None
    optim_other._tinygrad_unavailable.cache_clear()


def test_keras_with_another_backend_is_not_taken_for_keras_on_jax(monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    assert "'torch'" in peers.load("optim", "Keras").unavailable()


def test_tinygrad_without_a_compiler_that_works_says_which_it_needs(monkeypatch, tmp_path):
    monkeypatch.setattr(optim_other, "not_installed", lambda name: None)
    unavailable = optim_other._tinygrad_unavailable.__wrapped__
    monkeypatch.setenv("CC", "no-such-compiler")
    assert "install clang" in unavailable()
    monkeypatch.setenv("CC", "false")  # a command that is there and fails
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # or what clang compiled before is taken
    assert "does not work with this false: " in unavailable()


def test_asking_what_is_available_loads_nothing_heavy():
    script = ("import sys\nfrom samestep.bench import peers\n"
              "found = [peers.load('optim', name).unavailable() for name in peers.PEERS['optim']]\n"
              "print([name for name in ('torch', 'numba', 'jax', 'optax', 'keras', 'tinygrad', 'pytorch_optimizer') "
              "if name in sys.modules])")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
