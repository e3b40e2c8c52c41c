"""A whole training step of the digit classifier, forward, backward and update, as one graph."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

import samestep
from compiled_pair import inductor
from samestep.torch_ops import sgd_
from torch_suite import same_bits

pytestmark = [
    # Inductor itself scripts a function when it is imported.
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
    # torch.export copies tree specifications in a way that torch deprecates.
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec:FutureWarning"),
]
SETTINGS = {"weight_decay": 1e-4, "nesterov": True}


@pytest.fixture(scope="module")
def example():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parents[2] / "examples")
        return importlib.import_module("compiled_training")


@pytest.fixture(scope="module")
def trained(example):
    """The state after 20 steps that no graph has a part in, and the loss of each."""
    parameters, accum, stat = example.Training(example.step).state()
    losses = []
    for images, labels, lr in example.minibatches():
        gradient, loss = torch.func.grad_and_value(example.loss_of)(parameters, images, labels)
        for p, g, a, s in zip(parameters, gradient, accum, stat, strict=True):
            samestep.sgd_(p, g.contiguous(), lr, a, 0.9, s, **SETTINGS)
        losses.append(loss)
    assert len(losses) == 20
    assert losses[-1] < 0.8 * losses[0]
    return [*parameters, *accum, *stat], losses


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def train(example, training):
    return [training(*minibatch) for minibatch in example.minibatches()]


def state_of(training):
    names = [f"{name}{k}" for name in ("parameters", "accum", "stat") for k in range(4)]
    return [getattr(training, name) for name in names]


def same(trained, losses, state):
    return all(map(same_bits, trained[0] + trained[1], state + losses))


def updates(graph):
    return [node.target for node in graph.nodes].count(torch.ops.samestep.sgd_.default)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_to_one_graph_it_trains_to_the_same_bits(example, trained, backend):
    counter = CompileCounterWithBackend(backend)
    training = example.Training(example.step)
    losses = train(example, torch.compile(training, backend=counter, fullgraph=True))
    assert counter.frame_count == 1
    calls = [node.target for node in counter.graphs[0].graph.nodes]
    assert sum("samestep.sgd_" in str(target) for target in calls) == 4
    assert same(trained, losses, state_of(training))


@pytest.mark.exhaustive
@pytest.mark.parametrize("backend", [inductor])
def test_in_a_step_compiled_by_inductor_the_update_has_the_bits_of_the_operator(example, backend):
    """Inductor fuses forward and backward, so its gradients are its own; what is made of them is not."""
    training = example.Training(example.step)

    def step(*given):
        gradient, loss = torch.func.grad_and_value(example.loss_of)(given[0], *given[3:5])
        for p, g, a, s in zip(given[0], gradient, *given[1:3], strict=True):
            sgd_(p, g.contiguous(), given[5], a, 0.9, s, **SETTINGS)
        return loss, gradient

    training.step = torch.compile(step, backend=backend, fullgraph=True)
    for minibatch in example.minibatches():
        parameters, accum, stat = [[x.clone() for x in column] for column in training.state()]
        _, gradient = training(*minibatch)
        for p, g, a, s in zip(parameters, gradient, accum, stat, strict=True):
            samestep.sgd_(p, g.contiguous(), minibatch[2], a, 0.9, s, **SETTINGS)
        assert all(map(same_bits, [*parameters, *accum, *stat], state_of(training)))


@pytest.fixture(scope="module")
def file(example, tmp_path_factory):
    """The exported step; that it trains in another process is shown by the example itself."""
    path = tmp_path_factory.mktemp("program") / "training.pt2"
    example.export(path)
    return path


def test_exported_and_loaded_it_trains_to_the_same_bits(example, trained, file):
    program = torch.export.load(file)
    assert updates(program.graph) == 4
    training = program.module()
    assert same(trained, train(example, training), state_of(training))


@pytest.mark.exhaustive
def test_the_functional_form_of_the_exported_step_has_the_bits_too(example, trained, file):
    functional = torch.export.load(file).run_decompositions({})
    assert updates(functional.graph) == 0
    training = functional.module()
    assert same(trained, train(example, training), state_of(training))


def test_the_exported_step_takes_minibatches_of_any_size(example, file):
    exported, eager = torch.export.load(file).module(), example.Training(example.step)
    images, labels, lr = example.minibatches()[0]
    for size in (64, 33, 2):
        assert same_bits(exported(images[:size], labels[:size], lr), eager(images[:size], labels[:size], lr))
    assert all(map(same_bits, state_of(exported), state_of(eager)))


def test_the_example_counts_an_element_that_differs(example):
    one = dict(example.Training(example.step).named_buffers())
    other = {name: x.clone() for name, x in one.items()}
    assert example.differing(one, other) == 0
    other["accum1"][3] = -0.0
    assert example.differing(one, other) == 1
