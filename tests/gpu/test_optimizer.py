"""`samestep.optim.SGD` through the gpu engine, run by the interpreter on CPU tensors: the bits of the cpu engine."""

from __future__ import annotations

import itertools
from contextlib import nullcontext

import pytest
import torch

from gpu_interpreter import exact_fma, rounds_once
from samestep.engine import gpu
from samestep.optim import SGD, amp, hyperparameters, plan

pytest.importorskip("triton", reason="Triton is not installed here (pip install 'samestep[gpu]')")

SHAPES = ((3,), (40, 30), (), (2, 3, 5), (1100,))


@pytest.fixture(autouse=True)
def fma():
    with nullcontext() if rounds_once() else exact_fma():
        yield


@pytest.fixture
def on_gpu(monkeypatch):
    """Parameters of the CPU go to the gpu engine; the fixture counts its calls."""
    calls, run = [], gpu.run

    def counted(*arguments):
        calls.append(arguments)
        run(*arguments)

    monkeypatch.setattr(gpu, "run", counted)
    engine = {"name": "gpu"}
    monkeypatch.setattr(plan, "engine_of", lambda p: engine["name"])
    return engine, calls


def make(dtype=torch.float32, shapes=SHAPES, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype))
            for shape in shapes]


def give_gradients(params, seed, dtype=None):
    for k, (p, g) in enumerate(zip(params, make(shapes=[p.shape for p in params], seed=seed), strict=True)):
        p.grad = None if (k + seed) % 4 == 3 else g.detach().to(dtype or p.dtype)


def train(engine, name, params, steps=3, prepare=give_gradients, **settings):
    engine["name"] = name
    optimizer = SGD(params, **settings)
    for step in range(steps):
        prepare(params, step)
        optimizer.step()
    return optimizer


def same(params, others, optimizer, other):
    """Are all parameters and states equal bit for bit?"""
    pairs = list(zip(params, others, strict=True))
    for p, q in list(pairs):
        assert optimizer.state[p].keys() == other.state[q].keys()
        pairs += [(optimizer.state[p][key], other.state[q][key]) for key in optimizer.state[p]]
    return all(p.dtype == q.dtype and p.stride() == q.stride() and words(p).equal(words(q)) for p, q in pairs)


def words(x):
    x = torch.view_as_real(x.detach()) if x.is_complex() else x.detach()
    return x.contiguous().view({2: torch.int16, 4: torch.int32, 8: torch.int64}[x.itemsize])


SETTINGS = [dict(zip(("momentum", "dampening", "weight_decay", "nesterov", "maximize"), values, strict=True))
            for values in itertools.product((0, 0.9), (0, 0.3), (0, 0.01), (False, True), (False, True))]
SETTINGS = [s for s in SETTINGS if not s["nesterov"] or (s["momentum"] and not s["dampening"])]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_every_setting_has_the_bits_of_the_cpu_engine(on_gpu, dtype):
    engine, calls = on_gpu
    for settings in SETTINGS if dtype is torch.float32 else SETTINGS[3::4]:
        params, others = make(dtype), make(dtype)
        before = len(calls)
        optimizer = train(engine, "gpu", params, lr=0.1, **settings)
        assert len(calls) - before == 3  # a step is one launch
        other = train(engine, "cpu", others, lr=0.1, **settings)
        assert same(params, others, optimizer, other), settings


@pytest.mark.parametrize("order", ["spec", "ascend950"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dialect_cann(on_gpu, dtype, order):
    engine, _ = on_gpu
    for settings in ({"momentum": 0.9, "dampening": 0.3, "weight_decay": 0.01}, {"momentum": 0.9, "nesterov": True},
                     {"momentum": 0, "dampening": 0.3}, {"momentum": 0.9, "maximize": True}):
        params, others = make(dtype), make(dtype)
        optimizer, other = (train(engine, name, those, lr=0.1, dialect="cann", order=order, **settings)
                            for name, those in (("gpu", params), ("cpu", others)))
        assert same(params, others, optimizer, other), settings


def channels_last(seed=0):
    return [torch.nn.Parameter(p.detach().to(memory_format=torch.channels_last))
            for p in make(shapes=[(2, 3, 4, 5), (8, 3, 3, 3)], seed=seed)]


def test_any_layout_and_gradients_of_another_dtype(on_gpu):
    engine, _ = on_gpu

    def prepare(params, step):
        give_gradients(params, 4 * step, torch.bfloat16)  # contiguous, so of another order in memory
        params[1].grad = params[1].grad.to(memory_format=torch.channels_last)

    params, others = channels_last(), channels_last()
    for p in params + others:
        if hasattr(p, "grad_dtype"):  # since 2.10 torch asks whether that is meant
            p.grad_dtype = None
    optimizer, other = (train(engine, name, those, lr=0.1, momentum=0.9, prepare=prepare)
                        for name, those in (("gpu", params), ("cpu", others)))
    assert not params[0].is_contiguous()
    assert same(params, others, optimizer, other)


def test_complex_parameters(on_gpu):
    engine, _ = on_gpu

    def prepare(params, step):
        for p in params:
            p.grad = torch.full_like(p, 0.3 + 0.1j * step)

    params, others = ([torch.nn.Parameter(torch.randn(7, dtype=torch.complex64,
                                                      generator=torch.Generator().manual_seed(1)))] for _ in range(2))
    optimizer, other = (train(engine, name, those, lr=0.1, momentum=0.9, prepare=prepare)
                        for name, those in (("gpu", params), ("cpu", others)))
    assert same(params, others, optimizer, other)


@pytest.mark.parametrize("flags", [{"foreach": True}, {"fused": True}, {"foreach": False}])
def test_foreach_and_fused_choose_nothing(on_gpu, flags):
    engine, calls = on_gpu
    params, others = make(), make()
    optimizer = train(engine, "gpu", params, lr=0.1, momentum=0.9, **flags)
    assert len(calls) == 3
    assert same(params, others, optimizer, train(engine, "gpu", others, lr=0.1, momentum=0.9))


def test_a_learning_rate_on_the_device_is_not_read(on_gpu, monkeypatch):
    engine, _ = on_gpu
    monkeypatch.setattr(hyperparameters, "_stays_on_device", lambda lr, group: True)
    lr = torch.tensor(0.25)
    params, others = make(), make()
    optimizer = SGD(params, lr=lr, momentum=0.9)
    with pytest.MonkeyPatch.context() as context:
        context.setattr(torch.Tensor, "item", lambda self: pytest.fail("the host read a tensor"))
        for step in range(3):
            give_gradients(params, step)
            optimizer.step()
            lr.mul_(0.5)
    other = SGD(others, lr=0.25, momentum=0.9)
    engine["name"] = "cpu"
    for step in range(3):
        give_gradients(others, step)
        other.step()
        other.param_groups[0]["lr"] *= 0.5
    assert all(words(p).equal(words(q)) for p, q in zip(params, others, strict=True))


class OnDevice(torch.Tensor):
    """A tensor that says it is on a CUDA device, and does not let the host read it once `secret`."""

    secret = False
    is_cuda = True

    def item(self):
        assert not self.secret, "the host read found_inf"
        return self.as_subclass(torch.Tensor).item()


@pytest.mark.parametrize("found", [0.0, 1.0])
def test_found_inf_is_read_at_a_first_step_only(on_gpu, found):
    engine, calls = on_gpu
    params, others = make(), make()
    optimizer = SGD(params, lr=0.1, momentum=0.9)
    optimizer.found_inf = torch.tensor([1.0]).as_subclass(OnDevice)
    give_gradients(params, 0)
    optimizer.step()  # skipped by the host: no state is left behind
    assert not calls
    assert not optimizer.state
    optimizer.found_inf = torch.tensor([0.0]).as_subclass(OnDevice)
    optimizer.step()
    optimizer.found_inf = torch.tensor([found]).as_subclass(OnDevice)
    optimizer.found_inf.secret = True
    optimizer.step()
    assert len(calls) == 2
    other = train(engine, "cpu", others, steps=1, lr=0.1, momentum=0.9)
    if not found:
        other.step()
    assert same(params, others, optimizer, other)


def test_the_scale_on_a_device_is_one_where_the_step_is_skipped():
    device = torch.device("cuda:0")
    for found, expected in ((0.0, 8.0), (1.0, 1.0), (float("nan"), 1.0)):
        scale = amp._scale(Movable.of([8.0]), Movable.of([found]), device)
        assert scale.shape == ()
        assert float(scale.as_subclass(torch.Tensor)) == expected
    assert amp._scale(torch.tensor(8.0), None, torch.device("cpu")) == 8.0


class Movable(torch.Tensor):
    """A CPU tensor that stays where it is when it is moved."""

    @staticmethod
    def of(values):
        return torch.tensor(values).as_subclass(Movable)

    def to(self, *arguments, **more):
        return self


def test_a_skipped_step_keeps_scaled_gradients(on_gpu, monkeypatch):
    monkeypatch.setattr(amp, "_scale", lambda scale, found, device: torch.where(found != 0, 1.0, scale).reshape(()))
    params = make()
    for p in params:
        p.grad = torch.full_like(p, 16.0)
    optimizer = SGD(params, lr=0.1, momentum=0.9)
    optimizer.step()
    before = [p.detach().clone() for p in params]
    optimizer.grad_scale = torch.tensor(8.0)
    optimizer.found_inf = torch.tensor([1.0]).as_subclass(OnDevice)
    optimizer.step()
    assert all(torch.equal(p, q) for p, q in zip(params, before, strict=True))
    assert all((p.grad == 16).all() for p in params)
    optimizer.found_inf = torch.tensor([0.0]).as_subclass(OnDevice)
    optimizer.step()
    assert all((p.grad == 2).all() for p in params)
    assert not any(torch.equal(p, q) for p, q in zip(params, before, strict=True))
