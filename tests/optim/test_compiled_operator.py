"""The operator inside a compiled step: it gets the optimizer's own tensors, and declares what it writes."""

from __future__ import annotations

import gc

import pytest
import torch

from compiled_pair import Pair, backends, inductor
from samestep.optim import SGD, compiled

pytestmark = [
    # Dynamo reads .grad of every tensor and hides torch's warning about it, unless warnings are errors.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
    # Inductor itself scripts a function when it is imported.
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
]


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("backend", ["eager", inductor])
def test_the_operator_gets_the_very_tensors(backend, monkeypatch):
    pair = Pair(backend, momentum=0.9)
    own, found = compiled._are_own, []
    monkeypatch.setattr(compiled, "_are_own", lambda *given: found.append(own(*given)) or found[-1])
    step = pair.compile()
    for _ in range(3):
        pair.step(step)
    assert found == [True] * 3  # no copies are made and written back


@backends
def test_a_backward_after_a_compiled_step_notices_it(backend):
    pair = Pair(backend, momentum=0.9)
    step = pair.compile()
    pair.step(step)
    pair.step(step)
    p = pair.compiled[0]
    product = (p * p).sum()
    step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


def test_a_compiled_step_does_not_keep_its_optimizer_alive_for_the_operator():
    pair = Pair(momentum=0.9)
    pair.step(pair.compile())
    number = pair.optimizers[1]._number
    assert compiled._optimizers[number] is pair.optimizers[1]
    del pair
    torch._dynamo.reset()
    gc.collect()
    assert number not in compiled._optimizers
    p, g = torch.zeros(2), torch.ones(2)
    with pytest.raises(RuntimeError, match="no longer exists"):
        torch.ops.samestep.optimizer_step_([p], [g], [], number, [0], [0], [], True)


def test_the_operator_declares_what_it_does():
    params = [torch.nn.Parameter(torch.randn(4)) for _ in range(2)]
    optimizer = SGD(params, momentum=0.9)
    optimizer.state[params[1]]["momentum_buffer"] = torch.randn(4)
    compiled._optimizers["test"] = optimizer
    gradients = [torch.randn(4) for _ in params]
    given = (params, gradients, [optimizer.state[params[1]]["momentum_buffer"]], "test", [0, 0], [0, 1], [1], True)
    torch.library.opcheck(torch.ops.samestep.optimizer_step_.default, given)
