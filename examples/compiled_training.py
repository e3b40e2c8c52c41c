"""A whole training step as one graph: compiled, and exported to a file that another process trains with.

Run it with `python examples/compiled_training.py`; it needs `pip install 'samestep[torch,demo]'`. A classifier of
handwritten digits takes 20 steps four times from the same weights on the same minibatches: step by step in Python,
compiled by two backends of `torch.compile`, and in a new process from the `.pt2` file. Every bit is the same.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from samestep.torch_ops import sgd_

STEPS = 20
BATCH = 64
SHAPES = ((64, 128), (128,), (128, 10), (10,))  # weights and biases of the two layers


def loss_of(parameters: list[Tensor], images: Tensor, labels: Tensor) -> Tensor:
    weights, biases = parameters[::2], parameters[1::2]
    hidden = torch.relu(images @ weights[0] + biases[0])
    return torch.nn.functional.cross_entropy(hidden @ weights[1] + biases[1], labels)


def step(
    parameters: list[Tensor], accum: list[Tensor], stat: list[Tensor], images: Tensor, labels: Tensor, lr: Tensor
) -> Tensor:
    """Forward, backward and update of one minibatch; the loss before it."""
    gradient, loss = torch.func.grad_and_value(loss_of)(parameters, images, labels)
    for p, g, a, s in zip(parameters, gradient, accum, stat, strict=True):
        sgd_(p, g.contiguous(), lr, a, 0.9, s, weight_decay=1e-4, nesterov=True)
    return loss


class Training(torch.nn.Module):
    """The state of a training; a call is one step of it."""

    def __init__(self, step: Callable[..., Tensor]) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.step = step
        for k, shape in enumerate(SHAPES):
            self.register_buffer(f"parameters{k}", torch.randn(shape, generator=generator) / 8)
            self.register_buffer(f"accum{k}", torch.zeros(shape))
            self.register_buffer(f"stat{k}", torch.ones(shape))

    def state(self) -> list[list[Tensor]]:
        """Parameters, accum and stat, each a list."""
        return [[getattr(self, f"{name}{k}") for k in range(len(SHAPES))] for name in ("parameters", "accum", "stat")]

    def forward(self, images: Tensor, labels: Tensor, lr: Tensor) -> Tensor:
        """Take one step; the loss before it."""
        return self.step(*self.state(), images, labels, lr)


def minibatches() -> list[tuple[Tensor, Tensor, Tensor]]:
    """Images, labels and the learning rate of each step; the rate falls from step to step."""
    digits = load_digits()
    images, labels = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(1))
    return [(images[chosen], labels[chosen], torch.tensor(0.1 / (1 + k)))
            for k, chosen in enumerate(order.split(BATCH)[:STEPS])]


def export(file: Path) -> None:
    """Write the step and the state it starts from to `file`, for minibatches of any size.

    `torch.export` does not follow a function that differentiates, so `make_fx` makes one graph of it first.
    """
    example = minibatches()[0]
    graph = make_fx(step, tracing_mode="symbolic")(*Training(step).state(), *example)
    batch = torch.export.Dim("batch")
    program = torch.export.export(Training(graph), example, dynamic_shapes=({0: batch}, {0: batch}, None))
    torch.export.save(program, file)


def train(training: Callable[..., Tensor]) -> float:
    """Take all steps; the last loss."""
    return [training(*minibatch) for minibatch in minibatches()][-1].item()


def train_exported(file: Path, result: Path) -> None:
    """What the other process does: it knows the program from its file only, and needs samestep for the operator."""
    training = torch.export.load(file).module()
    train(training)
    torch.save(dict(training.named_buffers()), result)


def differing(one: dict[str, Tensor], other: dict[str, Tensor]) -> int:
    """Elements whose bits differ."""
    return sum(int((one[name].view(torch.int32) != other[name].view(torch.int32)).sum()) for name in one)


def main() -> int:
    eager = Training(step)
    first = step(*Training(step).state(), *minibatches()[0]).item()
    print(f"loss {first:.3f} before, {train(eager):.3f} after {STEPS} steps")
    expected, found = dict(eager.named_buffers()), {}
    for backend in ("eager", "aot_eager"):
        training = Training(step)
        train(torch.compile(training, backend=backend, fullgraph=True))
        found[f"torch.compile, {backend}"] = dict(training.named_buffers())
    with tempfile.TemporaryDirectory() as folder:
        file, result = Path(folder, "training.pt2"), Path(folder, "result.pt")
        export(file)
        subprocess.run([sys.executable, __file__, str(file), str(result)], check=True)
        found["torch.export, new process"] = torch.load(result)
    wrong = {name: differing(expected, state) for name, state in found.items()}
    for name, count in wrong.items():
        print(f"{name:26}{count} of {sum(x.numel() for x in expected.values()):,} elements differ")
    return int(any(wrong.values()))


if __name__ == "__main__":
    sys.exit(train_exported(*map(Path, sys.argv[1:])) if len(sys.argv) > 1 else main())
