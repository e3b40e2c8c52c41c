"""The step under torch.compile: one graph, no recompilation for a hyperparameter, and the bits and state of eager."""

from __future__ import annotations

import copy

import pytest
import torch

from compiled_pair import Pair, backends, bits, by_two, inductor, loss_of

pytestmark = [
    # Dynamo reads .grad of every tensor and hides torch's warning about it, unless warnings are errors.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
    # Inductor itself scripts a function when it is imported.
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
]

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@backends
@pytest.mark.parametrize("settings", [
    {}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True, "weight_decay": 1e-3},
    {"momentum": 0.9, "dampening": 0.1, "maximize": True},
], ids=["plain", "momentum", "nesterov", "dampening-maximize"])
def test_one_graph_with_the_bits_of_eager_for_every_dtype_and_group(backend, settings):
    groups = None if settings.get("nesterov") else by_two
    pair = Pair(backend, DTYPES * 2, groups, **settings)
    step = pair.compile()  # the whole step is one graph or an error
    pair.step(step, without=(2,))
    pair.step(step, without=(2,))
    warm = pair.counter.frame_count
    assert warm <= 2  # the first step makes state
    with torch._dynamo.config.patch(error_on_recompile=True):
        for k in range(10):
            pair.set(lr=0.1 / (k + 3))
            pair.step(step, without=(2,))
    assert pair.counter.frame_count == warm


@backends
def test_no_hyperparameter_recompiles(backend):
    pair = Pair(backend)
    step = pair.compile()
    pair.set(momentum=0.9)
    pair.step(step)
    pair.step(step)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for k, momentum in enumerate((0.8, 0, 0.7, 0.99)):
            pair.set(lr=0.1 / (k + 1), momentum=momentum, weight_decay=0.01 * k, dampening=0.1 * k, maximize=k == 1)
            pair.step(step)
        pair.set(momentum=0.9, dampening=0, nesterov=True)
        pair.step(step)


@pytest.mark.parametrize("early", [False, True], ids=["after-compile", "before-compile"])
def test_a_scheduler_does_not_recompile(early):
    pair = Pair(momentum=0.9)
    step = None if early else pair.compile(fullgraph=False)
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9) for optimizer in pair.optimizers]
    step = step or pair.compile(fullgraph=False)  # a scheduler wraps step() in what dynamo does not trace
    for _ in range(10):
        pair.step(step)
        with torch._dynamo.config.patch(error_on_recompile=True):
            for optimizer, scheduler in zip(pair.optimizers, schedulers, strict=True):
                optimizer._opt_called = True  # a step compiled before the scheduler came does not tell it
                scheduler.step()
    assert pair.counter.frame_count == 2


@backends
def test_forward_backward_and_step_in_one_compiled_function(backend):
    pair = Pair(backend, momentum=0.9)
    x = pair.draw(torch.float32)
    seen = []

    def train(params, optimizer):
        optimizer.zero_grad()
        loss = loss_of(params, x)
        loss.backward()
        optimizer.step()
        return loss

    train_compiled = pair.compile(train, fullgraph=False)  # dynamo breaks the graph at backward()
    for k in range(6):
        pair.set(lr=0.01 / (k + 1))
        train_compiled(pair.compiled, pair.optimizers[1])
        for p, q in zip(pair.eager, pair.compiled, strict=True):
            p.grad = q.grad.clone()  # inductor's forward and backward have bits of their own
        pair.optimizers[0].step()
        pair.check()
        seen.append(pair.counter.frame_count)
    assert seen == [2, 3, 3, 3, 3, 3]  # forward, step; step with state


@pytest.mark.skipif(not hasattr(torch._dynamo.config, "trace_autograd_ops"), reason="this torch never traces backward")
@pytest.mark.parametrize("backend", ["eager", "aot_eager", inductor])
def test_backward_and_step_in_one_graph(backend):
    pair = Pair(backend, momentum=0.9)
    x = pair.draw(torch.float32)

    def train(params, optimizer):
        for p, grad in zip(params, torch.autograd.grad(loss_of(params, x), params), strict=True):
            p.grad = grad
        optimizer.step()

    with torch._dynamo.config.patch(trace_autograd_ops=True):
        train_compiled = pair.compile(train)
        for k in range(5):
            pair.set(lr=0.01 / (k + 1))
            train_compiled(pair.compiled, pair.optimizers[1])
            for p, q in zip(pair.eager, pair.compiled, strict=True):
                p.grad = q.grad.clone()
            pair.optimizers[0].step()
            pair.check()
    assert pair.counter.frame_count == 2


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_change_in_the_compiled_function_counts_for_its_step(backend):
    pair = Pair(backend, momentum=0.9)

    def act(optimizer, lr):
        optimizer.param_groups[0]["lr"] = lr
        optimizer.step()
        optimizer.step()
        optimizer.param_groups[0]["lr"] = 5.0

    compiled_act = pair.compile(act, fullgraph=False)
    for k in range(5):
        pair.give_gradients()
        act(pair.optimizers[0], 0.1 / (k + 1))
        compiled_act(pair.optimizers[1], 0.1 / (k + 1))
        pair.check()


@backends
def test_state_used_in_the_compiled_function_is_what_the_step_uses(backend):
    pair = Pair(backend, momentum=0.9)
    pair.step(pair.optimizers[1].step)

    def act(optimizer, p):
        optimizer.state[p]["momentum_buffer"].mul_(0.5)
        optimizer.step()
        return optimizer.state[p]["momentum_buffer"] * 2

    compiled_act = pair.compile(act, fullgraph=False)
    for _ in range(3):
        pair.give_gradients()
        expected = act(pair.optimizers[0], pair.eager[0])
        assert torch.equal(expected, compiled_act(pair.optimizers[1], pair.compiled[0]))
        pair.check()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_tensor_as_learning_rate(backend):
    pair = Pair(backend, momentum=0.9)
    for optimizer in pair.optimizers:
        optimizer.param_groups[0]["lr"] = torch.tensor(0.1, dtype=torch.float64)
    step = pair.compile()
    for _ in range(4):
        pair.step(step)
        for optimizer in pair.optimizers:
            optimizer.param_groups[0]["lr"].mul_(0.7)
    assert pair.counter.frame_count == 2


@pytest.mark.parametrize("layout", [
    lambda x: x.to(memory_format=torch.channels_last), lambda x: x.transpose(1, 3), lambda x: x[:, ::2],
], ids=["channels_last", "transposed", "strided"])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_any_layout(backend, layout):
    pair = Pair(backend, layout=layout, momentum=0.9, weight_decay=0.1)
    pair.draw = lambda dtype: torch.randn(pair.eager[0].shape, generator=pair.generator)
    step = pair.compile()
    for _ in range(3):
        pair.step(step)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_dialect_cann(backend):
    pair = Pair(backend, momentum=0.9, dampening=0.1, dialect="cann")
    step = pair.compile()
    for k in range(4):
        pair.set(lr=0.1 / (k + 1))
        pair.step(step)
    assert pair.counter.frame_count <= 2


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_parameter_thawed_late_and_one_that_rests(backend):
    pair = Pair(backend, momentum=0.9, dampening=0.5)
    step = pair.compile()
    for without in ((1,), (1,), (), (0,), (), (0, 1, 2)):
        pair.step(step, without=without)


def test_what_one_graph_cannot_do_is_left_to_the_eager_step():
    pair = Pair(momentum=0.9)
    step = pair.compile(fullgraph=False)
    for found_inf in (0.0, 1.0, 0.0):
        pair.give_gradients()
        for optimizer, one_step in zip(pair.optimizers, (pair.optimizers[0].step, step), strict=True):
            optimizer.grad_scale, optimizer.found_inf = torch.tensor(4.0), torch.tensor(found_inf)
            one_step()
            del optimizer.grad_scale, optimizer.found_inf
        pair.check()
        assert torch.equal(pair.eager[0].grad, pair.compiled[0].grad)
    pair.give_gradients()
    for params in (pair.eager, pair.compiled):
        params[1].grad = params[1].grad.to_sparse()
    pair.optimizers[0].step()
    step()
    pair.check()
    pair.step(step)


def test_a_closure_is_evaluated():
    pair = Pair(momentum=0.9)
    x = pair.draw(torch.float32)

    def closure_of(params, optimizer):
        def closure():
            optimizer.zero_grad()
            loss = loss_of(params, x)
            loss.backward()
            return loss

        return closure

    step = pair.compile(fullgraph=False)
    closures = [closure_of(*each) for each in zip((pair.eager, pair.compiled), pair.optimizers, strict=True)]
    for k in range(4):
        pair.set(lr=0.01 / (k + 1))
        assert torch.equal(pair.optimizers[0].step(closures[0]), step(closures[1]))
        pair.check()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_loaded_and_copied_optimizers(backend):
    pair = Pair(backend, momentum=0.9)
    step = pair.compile()
    pair.step(step)
    saved = copy.deepcopy(pair.optimizers[1].state_dict())
    pair.step(step)
    for optimizer in pair.optimizers:
        optimizer.load_state_dict(saved)
    pair.step(step)
    other = copy.copy(pair)
    other.eager, other.compiled, other.optimizers = copy.deepcopy((pair.eager, pair.compiled, pair.optimizers))
    other.step(other.compile())
    pair.check()
    pair.step(step)
    other.check()


@backends
def test_nan_is_refused_and_nothing_written(backend):
    pair = Pair(backend, momentum=0.9)
    step = pair.compile()
    pair.step(step)
    pair.optimizers[1].param_groups[0]["lr"] = float("nan")
    before = [bits(p).clone() for p in pair.compiled]
    with pytest.raises(ValueError, match="Invalid learning rate: nan"):
        step()
    assert torch.is_grad_enabled()
    assert all(map(torch.equal, before, map(bits, pair.compiled)))
