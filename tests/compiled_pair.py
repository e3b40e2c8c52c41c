"""Two optimizers on equal parameters, one of them to be compiled; for the tests of compiled steps."""

from __future__ import annotations

import os
import shutil

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from samestep.optim import SGD

COMPILER = any(map(shutil.which, filter(None, (os.environ.get("CXX"), "g++", "clang++"))))
inductor = pytest.param("inductor", marks=pytest.mark.skipif(not COMPILER, reason="inductor needs a C++ compiler"))
backends = pytest.mark.parametrize("backend", ["eager", "aot_eager", inductor])


def bits(tensor):
    return tensor.detach().contiguous().flatten().view(torch.uint8)


class Pair:
    """Two optimizers on equal parameters; the second is the one to be compiled."""

    def __init__(self, backend="eager", dtypes=(torch.float32,) * 3, groups=None, layout=lambda x: x, **settings):
        self.generator = torch.Generator().manual_seed(0)
        self.eager = [torch.nn.Parameter(layout(self.draw(d))) for d in dtypes]
        self.compiled = [torch.nn.Parameter(p.detach().clone()) for p in self.eager]
        settings = {"lr": 0.1, **settings}
        self.optimizers = [SGD(groups(x) if groups else x, **settings) for x in (self.eager, self.compiled)]
        self.counter = CompileCounterWithBackend(backend)

    def draw(self, dtype):
        return torch.randn(2, 3, 4, 5, generator=self.generator).to(dtype)

    def compile(self, function=None, fullgraph=True):
        return torch.compile(function or self.optimizers[1].step, backend=self.counter, fullgraph=fullgraph)

    def give_gradients(self, without=()):
        for index, (p, q) in enumerate(zip(self.eager, self.compiled, strict=True)):
            p.grad = q.grad = None
            if index not in without:
                p.grad = self.draw(p.dtype)
                q.grad = p.grad.clone()

    def set(self, **values):
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group.update(values)

    def check(self):
        a, b = self.optimizers
        for p, q in zip(self.eager, self.compiled, strict=True):
            assert torch.equal(bits(p), bits(q))
            assert a.state.get(p, {}).keys() == b.state.get(q, {}).keys()
            for key, value in a.state.get(p, {}).items():
                other = b.state[q][key]
                assert value.dtype == other.dtype and value.stride() == other.stride()
                assert torch.equal(bits(value), bits(other))
        # Dynamo itself adds "capturable" where a compiled function writes in a group.
        groups = [{**group, "capturable": None} for group in b.state_dict()["param_groups"]]
        assert groups == [{**group, "capturable": None} for group in a.state_dict()["param_groups"]]

    def step(self, step, **gradients):
        self.give_gradients(**gradients)
        self.optimizers[0].step()
        step()
        self.check()


def by_two(params):
    return [{"params": params[::2]}, {"params": params[1::2], "lr": 0.03, "weight_decay": 0.01, "momentum": 0.5}]


def loss_of(params, x):
    return torch.sin(x * params[0] + params[1]).square().sum() + params[2].sum()
