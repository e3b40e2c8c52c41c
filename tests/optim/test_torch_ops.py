"""The operators of torch: rule T in place, opaque to compilers, all or nothing."""

from __future__ import annotations

import pytest
import torch

from compiled_pair import backends, bits
from samestep import torch_ops
from samestep.optim import SGD

# Inductor itself scripts a function when it is imported.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")

SETTINGS = [
    {}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True, "weight_decay": 1e-3},
    {"momentum": 0.9, "dampening": 0.1, "maximize": True},
]
IDS = ["plain", "momentum", "nesterov", "dampening-maximize"]


def draw(n, dtype=torch.float32):
    return [torch.randn(33, k + 1).to(dtype) for k in range(n)]


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("settings", SETTINGS, ids=IDS)
def test_one_set_and_a_list_have_the_bits_of_the_optimizer(settings, dtype):
    start = draw(3, dtype)
    params = [torch.nn.Parameter(p.clone()) for p in start]
    optimizer = SGD(params, lr=0.1, **settings)
    single, listed = [p.clone() for p in start], [p.clone() for p in start]
    buffers = [[torch.full_like(p, float("nan")) for p in start] for _ in range(2)]
    for k in range(4):
        gradients = draw(3, dtype)
        for p, g in zip(params, gradients, strict=True):
            p.grad = g
        optimizer.step()
        first = k == 0
        for p, g, b in zip(single, gradients, buffers[0], strict=True):
            torch.ops.samestep.step_(p, g, b if settings else None, first, 0.1, **settings)
        given = buffers[1] if settings else []
        torch.ops.samestep.step_list_(listed, gradients, given, [first] * 3, 0.1, **settings)
        for p, q, r in zip(params, single, listed, strict=True):
            assert torch.equal(bits(p), bits(q)) and torch.equal(bits(p), bits(r))
    for p, b, c in zip(params, *buffers, strict=True):
        if settings:
            state = optimizer.state[p]["momentum_buffer"]
            assert torch.equal(bits(state), bits(b)) and torch.equal(bits(state), bits(c))
        else:
            assert b.isnan().all()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_they_declare_what_they_do(momentum, requires_grad):
    p, g, b = draw(2), draw(2), draw(2) if momentum else []
    for x in p:
        x.requires_grad_(requires_grad)
    torch.library.opcheck(torch.ops.samestep.step_list_.default, (p, g, b, [False, True], 0.1, momentum))
    single = (p[0], g[0], b[0] if b else None, False, 0.1, momentum)
    torch.library.opcheck(torch.ops.samestep.step_.default, single)


@backends
def test_a_compiled_call_rounds_numbers_as_eager_does(backend):
    torch._dynamo.reset()

    def act(p, g, b, lr, momentum):
        g = g * 2
        torch.ops.samestep.step_(p, g, b, False, lr, momentum, 0.1, 1e-4)
        return p + 1

    compiled = torch.compile(act, backend=backend, fullgraph=True)
    (p,), (b,) = draw(1), draw(1)
    q, c = p.clone(), b.clone()
    for k in range(4):  # from the second on, the numbers are symbols of the graph
        (g,) = draw(1)
        lr, momentum = 0.1 / (k + 3), 1 - 0.1 / (k + 3)
        assert torch.equal(act(p, g, b, lr, momentum), compiled(q, g, c, lr, momentum))
        assert torch.equal(bits(p), bits(q)) and torch.equal(bits(b), bits(c))


def test_a_parameter_that_requires_gradients_is_updated_and_its_version_goes_up():
    p = torch.nn.Parameter(torch.ones(4))
    version = p._version
    torch.ops.samestep.step_(p, torch.ones(4), None, False, 0.5)
    assert p.is_leaf and p.requires_grad and p._version > version
    assert torch.equal(p.detach(), torch.full((4,), 0.5))


@pytest.mark.parametrize(("change", "error", "text"), [
    ({"gradients": [torch.ones(33, 1), torch.ones(3)]}, RuntimeError, "gradient of parameter 1 has shape"),
    ({"gradients": [torch.ones(33, 1)]}, RuntimeError, "lists of one length"),
    ({"momentum_buffers": []}, RuntimeError, "lists of one length"),
    ({"momentum_buffers": [torch.ones(33, 1), torch.ones(33, 2, dtype=torch.float16)]}, RuntimeError, "narrower dtype"),
    ({"lr": float("nan")}, ValueError, "Invalid learning rate: nan"),
])
def test_what_does_not_fit_is_refused_and_nothing_written(change, error, text):
    given = {"parameters": draw(2), "gradients": draw(2), "momentum_buffers": draw(2), "first_step": [False, True],
             "lr": 0.1, "momentum": 0.9, **change}
    before = [x.clone() for x in given["parameters"] + given["momentum_buffers"]]
    for call in (torch.ops.samestep.step_list_, torch_ops.step_list_):
        with pytest.raises(error, match=text):
            call(**given)
    assert all(map(torch.equal, before, given["parameters"] + given["momentum_buffers"]))
