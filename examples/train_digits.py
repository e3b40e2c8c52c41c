"""One import line changed: a digit classifier trained by torch.optim.SGD and by samestep.optim.SGD, weights compared.

Run it with `python examples/train_digits.py`; it needs `pip install 'samestep[torch,demo]'`. Both trainings start from
the same weights and see the same minibatches, with momentum, weight decay, Nesterov's look-ahead and a cosine schedule
of the learning rate. After 200 steps every bit of the weights and of the momentum is the same.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
from sklearn.datasets import load_digits

import samestep.optim

STEPS = 200


def train(make_optimizer: Callable[..., torch.optim.Optimizer]) -> tuple[list[torch.Tensor], float]:
    """Train for `STEPS` minibatches of 64; final weights and buffers, and the accuracy on 360 other digits."""
    torch.manual_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(images))
    training, test = order[360:], order[:360]
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    optimizer = make_optimizer(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4, nesterov=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for _ in range(STEPS):
        batch = training[torch.randint(len(training), (64,))]
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()
        schedule.step()
    accuracy = (model(images[test]).argmax(1) == labels[test]).float().mean().item()
    state = [optimizer.state[weight]["momentum_buffer"] for weight in model.parameters()]
    return [weight.detach() for weight in model.parameters()] + state, accuracy


def differing(one: list[torch.Tensor], other: list[torch.Tensor]) -> int:
    """Elements whose bits differ."""
    return sum(int((a.view(torch.int32) != b.view(torch.int32)).sum()) for a, b in zip(one, other, strict=True))


def main() -> int:
    theirs, their_accuracy = train(torch.optim.SGD)
    ours, our_accuracy = train(samestep.optim.SGD)
    different = differing(theirs, ours)
    print(f"torch.optim.SGD     test accuracy {100 * their_accuracy:.1f} %")
    print(f"samestep.optim.SGD  test accuracy {100 * our_accuracy:.1f} %")
    print(f"{different} of {sum(x.numel() for x in ours):,} elements differ after {STEPS} steps")
    return int(different != 0)


if __name__ == "__main__":
    sys.exit(main())
