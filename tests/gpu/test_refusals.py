"""What the gpu engine refuses, and which engine is chosen, also where there is no Triton and no device."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

import samestep
from samestep import contract, op
from samestep.contract import ContractError, Inputs, Unusual
from samestep.engine import cpu, gpu
from samestep.rounding import round_number

TRITON = importlib.util.find_spec("triton") is not None


@pytest.fixture
def no_triton(monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "triton" else found(name))
    gpu.unavailable.cache_clear()
    yield
    gpu.unavailable.cache_clear()


@pytest.fixture
def device(monkeypatch):
    """As if there was a CUDA device."""
    monkeypatch.setattr(gpu, "unavailable", lambda: None)
    monkeypatch.setattr(gpu, "device_type", lambda: "cuda")


def call(engine, x=None):
    x = np.ones(3, np.float32) if x is None else x
    samestep.sgd_(x, np.ones(3, np.float32), 0.1, np.ones(3, np.float32), 0.9, np.ones(3, np.float32), engine=engine)


def test_without_triton_the_engine_says_how_to_get_it(no_triton):
    reason = "triton not installed (pip install 'samestep[gpu,torch]')"
    assert samestep.engines()["gpu"] == reason
    with pytest.raises(ContractError) as caught:
        call("gpu")
    assert (caught.value.code, caught.value.input) == ("engine_unavailable", "engine")
    assert reason in caught.value.got


@pytest.mark.skipif(TRITON, reason="Triton is installed here")
def test_listing_engines_without_triton_imports_no_torch():
    import subprocess
    import sys

    code = "import sys, samestep; samestep.engines(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_memory_of_the_host_is_not_for_the_gpu_engine(device):
    with pytest.raises(ContractError) as caught:
        call("gpu")
    assert (caught.value.code, caught.value.input) == ("unsupported_device", "parameters")
    assert "'cpu'" in caught.value.got
    assert "'cuda'" in caught.value.accepted


def rows(*devices, counts=(1,) * 6):
    """Facts about tensors of shape (3,) on devices."""
    unusual = [None if name == "cpu" else Unusual(device=name) for name in devices]
    n = len(devices)
    owners = [np.zeros(1, np.uint32)] * n
    return Inputs(False, counts, tuple(unusual), ("float32",) * n, ((3,),) * n, tuple(range(64, 64 * n + 64, 64)),
                  (12,) * n, tuple(owners))


TENSORS = [object()] * 6


def test_cuda_parameters_choose_the_gpu_engine(device):
    inputs = rows(*["cuda:1"] * 6)
    assert op._place(cpu, None, TENSORS, inputs) == (gpu, "cuda:1", "", inputs)
    assert op._place(gpu, "gpu", TENSORS, inputs) == (gpu, "cuda:1", "", inputs)
    contract.check_inputs(inputs._replace(shapes=tuple([(3,)] * 2 + [()] + [(3,)] + [()] + [(3,)])), "cuda:1")


def test_the_cpu_engine_refuses_memory_of_a_device(device):
    module, where, reason, inputs = op._place(cpu, "cpu", TENSORS, rows(*["cuda:0"] * 6))
    assert module is cpu
    with pytest.raises(ContractError, match=r"parameters: got a tensor on device 'cuda:0'; accepted: one on 'cpu' \["):
        contract.check_inputs(inputs, where, reason)


def test_a_cuda_tensor_without_the_engine_is_told_why(no_triton):
    module, where, reason, inputs = op._place(cpu, None, TENSORS, rows(*["cuda:0"] * 6))
    assert module is cpu
    with pytest.raises(ContractError, match=r"accepted: one on 'cpu'; the engine for 'cuda:0', 'gpu', is unavailable "
                                            r"here: triton not installed .*\[unsupported_device\]"):
        contract.check_inputs(inputs, where, reason)


@pytest.mark.parametrize("where", ["cpu", "cuda:1"])
def test_an_empty_batch_is_nothing_to_do_wherever_its_scalars_are(where, device):
    inputs = rows(where, where, counts=(0, 0, 1, 0, 1, 0))._replace(batch=True, shapes=((), ()))
    _, device, reason, inputs = op._place(gpu, "gpu", [0.1, 0.9], inputs)
    contract.check_inputs(inputs, device, reason)


def test_an_empty_batch_on_the_engine(device):
    assert samestep.sgd_batch_([], [], 0.1, [], 0.9, [], engine="gpu") == []


@pytest.mark.parametrize("odd", range(1, 6))
@pytest.mark.parametrize("other", ["cpu", "cuda:1", "meta", "cuda:0, by DLPack"])
def test_all_tensors_lie_on_the_device_of_parameters(odd, other, device):
    names = ["cuda:0"] * 6
    names[odd] = other
    inputs = rows(*names)
    _, where, reason, inputs = op._place(cpu, None, TENSORS, inputs)
    with pytest.raises(ContractError) as caught:
        contract.check_inputs(inputs, where, reason)
    assert (caught.value.code, caught.value.input) == ("unsupported_device", contract.INPUTS[odd])
    assert caught.value.got == f"a tensor on device {other!r}"
    assert caught.value.accepted == "one on 'cuda:0'"


def test_parameters_by_dlpack_on_a_device_are_refused(device):
    _, where, reason, inputs = op._place(cpu, None, TENSORS, rows(*["cuda:0, by DLPack"] * 6))
    with pytest.raises(ContractError, match="by DLPack"):
        contract.check_inputs(inputs, where, reason)


def test_numbers_beside_cuda_tensors_are_put_beside_them(device, monkeypatch):
    import torch

    made = []

    def scalar(bits, dtype, where):
        made.append((bits, dtype, where))
        return torch.tensor([7.0])

    monkeypatch.setattr(gpu, "scalar", scalar)
    inputs = rows("cuda:0", "cuda:0", "cpu", "cuda:0", "cpu", "cuda:0")
    inputs.owners[2][0] = 0x3F800000
    _, _, _, placed = op._place(cpu, None, [*TENSORS[:2], 1.0, *TENSORS[:3]], inputs)
    assert made == [(0x3F800000, "float32", "cuda:0")]
    assert placed.addresses[2] != inputs.addresses[2]
    assert placed.addresses[4] == inputs.addresses[4]  # an array of the host, which is refused


def test_a_bool_is_no_number_on_a_device_either(device):
    inputs = rows("cuda:0", "cuda:0", "cpu", "cuda:0", "cuda:0", "cuda:0")
    inputs = inputs._replace(unusual=(*inputs.unusual[:2], Unusual("an object of type bool"), *inputs.unusual[3:]))
    _, where, reason, inputs = op._place(cpu, None, [*TENSORS[:2], True, *TENSORS[:3]], inputs)
    with pytest.raises(ContractError, match=r"learning_rate: .*wrong_type"):
        contract.check_inputs(inputs, where, reason)


@pytest.mark.skipif(not TRITON, reason="Triton is not installed here (pip install 'samestep[gpu]')")
def test_numbers_go_to_the_memory_of_the_device():
    import torch

    for dtype, value in (("float32", -0.1), ("bfloat16", 0.9), ("float16", -0.0)):
        bits = round_number(value, dtype)[1]
        scalar = gpu.scalar(bits, dtype, "cpu")
        assert scalar.dtype == getattr(torch, dtype)
        word = scalar.view(torch.int32 if scalar.itemsize == 4 else torch.int16).item()
        assert word & ((1 << 8 * scalar.itemsize) - 1) == bits
        assert gpu.scalar(bits, dtype, "cpu").data_ptr() == scalar.data_ptr()


@pytest.mark.skipif(not TRITON, reason="Triton is not installed here (pip install 'samestep[gpu]')")
def test_the_contract_holds_for_the_engine_too():
    p = np.ones(6, np.float32)
    with pytest.raises(ContractError, match="overlap"):
        samestep.sgd_(p[:3], np.ones(3, np.float32), 0.1, p[2:5], 0.9, np.ones(3, np.float32), engine="gpu")
    assert (p == 1).all()
