"""Whole trainings: schedulers, averaged weights, gradient scaling, accumulation, clipping and a real data set."""

from __future__ import annotations

import copy
import importlib.util
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler, swa_utils

import samestep.optim
from torch_suite import differing, state_of

MAKERS = (torch.optim.SGD, samestep.optim.SGD)
ARGUMENTS = {"lr": 0.05, "momentum": 0.9, "weight_decay": 1e-3, "nesterov": True, "foreach": False}
STEPS = 12

Make = Callable[..., torch.optim.Optimizer]


@pytest.fixture(autouse=True)
def one_thread_of_torch() -> Iterator[None]:
    """So small a model gains nothing from more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Drawn(lr_scheduler.LRScheduler):
    """A user's own subclass of the base class."""

    def get_lr(self) -> list[float]:
        return [base * (1 + self.last_epoch % 3) for base in self.base_lrs]


SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "LRScheduler": Drawn,
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 0.95**epoch),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda epoch: 0.9),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 3, 0.5),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [2, 5], 0.3),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, 0.3, 4),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, 0.1, 1.0, 6),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o, 0.1, 3), lr_scheduler.ExponentialLR(o, 0.9)], [3]),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 8),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o, 0.1, 3), lr_scheduler.ExponentialLR(o, 0.9)]),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, factor=0.5, patience=0, threshold=10.0),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 1e-3, 0.1, 3, 4),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3, 2),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.2, total_steps=STEPS + 1),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 6, 2.0),
    "SWALR": lambda o: swa_utils.SWALR(o, 0.01, 4),
}


def model(*, norm: bool = False) -> torch.nn.Sequential:
    torch.manual_seed(11)
    middle = [torch.nn.BatchNorm1d(9)] if norm else []
    return torch.nn.Sequential(torch.nn.Linear(4, 9), *middle, torch.nn.Tanh(), torch.nn.Linear(9, 1))


def batches(count: int = STEPS) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(12)
    return [torch.randn(16, 4, generator=generator) for _ in range(count)]


def loss_of(trained: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    return (trained(x) - x.sum(1, keepdim=True)).square().mean()


def results(trained: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [*trained.parameters(), *state_of(optimizer)]


def test_no_scheduler_is_left_out() -> None:
    assert set(SCHEDULERS) == {*lr_scheduler.__all__, "SWALR"}
    classes = {name for name, kind in inspect.getmembers(lr_scheduler, inspect.isclass)
               if issubclass(kind, lr_scheduler.LRScheduler) and not name.startswith("_")}
    assert classes <= {*SCHEDULERS, "LRScheduler"}


@pytest.mark.parametrize("tensor_lr", [False, True], ids=["number", "tensor"])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduled_training_has_the_bits_of_torch(name: str, tensor_lr: bool) -> None:
    found = []
    for make in MAKERS:
        trained = model()
        lr = torch.tensor(0.05) if tensor_lr else 0.05
        optimizer = make(trained.parameters(), **{**ARGUMENTS, "lr": lr})
        scheduler = SCHEDULERS[name](optimizer)
        rates = []
        for x in batches():
            optimizer.zero_grad()
            loss = loss_of(trained, x)
            loss.backward()
            optimizer.step()
            scheduler.step(*[loss.item()] * (name == "ReduceLROnPlateau"))
            rates.append([(float(group["lr"]), group["momentum"]) for group in optimizer.param_groups])
        found.append((rates, results(trained, optimizer)))
    assert found[0][0] == found[1][0]
    assert len({rate for rates in found[1][0] for rate in rates}) > 1
    assert differing(found[0][1], found[1][1]) == 0


@pytest.mark.parametrize("name", ["OneCycleLR", "CyclicLR", "CosineAnnealingLR"])
def test_a_scheduled_training_resumes(name: str) -> None:
    def start(saved: Any = None) -> tuple[Any, Any, Any]:
        trained = model()
        optimizer = samestep.optim.SGD(trained.parameters(), **ARGUMENTS)
        scheduler = SCHEDULERS[name](optimizer)
        if saved is not None:
            for part, state in zip((trained, optimizer, scheduler), saved, strict=True):
                part.load_state_dict(state)
        return trained, optimizer, scheduler

    def run(parts: tuple[Any, Any, Any], xs: list[torch.Tensor]) -> None:
        trained, optimizer, scheduler = parts
        for x in xs:
            optimizer.zero_grad()
            loss_of(trained, x).backward()
            optimizer.step()
            scheduler.step()

    whole, first = start(), start()
    run(whole, batches())
    run(first, batches()[:5])
    resumed = start([copy.deepcopy(part.state_dict()) for part in first])
    run(resumed, batches()[5:])
    assert differing(results(*whole[:2]), results(*resumed[:2])) == 0


def averaged(make: Make, **how: Any) -> list[torch.Tensor]:
    trained = model(norm=True)
    average = swa_utils.AveragedModel(trained, **how)
    optimizer = make(trained.parameters(), **ARGUMENTS)
    scheduler = swa_utils.SWALR(optimizer, swa_lr=0.01, anneal_epochs=3)
    for step, x in enumerate(batches()):
        optimizer.zero_grad()
        loss_of(trained, x).backward()
        optimizer.step()
        if step >= 4:
            average.update_parameters(trained)
            scheduler.step()
    swa_utils.update_bn(batches(3), average)
    return [*results(trained, optimizer), *average.parameters(), *average.buffers()]


@pytest.mark.parametrize(
    "how",
    [
        {}, {"avg_fn": swa_utils.get_swa_avg_fn()}, {"multi_avg_fn": swa_utils.get_swa_multi_avg_fn()},
        {"avg_fn": swa_utils.get_ema_avg_fn(0.9)}, {"multi_avg_fn": swa_utils.get_ema_multi_avg_fn(0.9)},
        {"multi_avg_fn": swa_utils.get_ema_multi_avg_fn(0.99), "use_buffers": True},
    ],
    ids=["default", "swa", "swa-multi", "ema", "ema-multi", "ema-buffers"],
)
def test_averaged_weights_have_the_bits_of_torch(how: dict[str, Any]) -> None:
    assert differing(*(averaged(make, **how) for make in MAKERS)) == 0


def scaled(make: Make, dtype: torch.dtype, unscales: bool) -> tuple[list[torch.Tensor], list[float]]:
    """A training in mixed precision with two batches that overflow."""
    trained = model()
    optimizer = make(trained.parameters(), **ARGUMENTS)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)
    scales = []
    for step, x in enumerate(batches()):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype):
            loss = loss_of(trained, x)
        if step in (0, 6):
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        if unscales:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(trained.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        if step == 0:
            assert not any(optimizer.state.values())
    return results(trained, optimizer), scales


@pytest.mark.parametrize("unscales", [False, True], ids=["scaled", "unscaled-and-clipped"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_mixed_precision_with_a_scaler_has_the_bits_of_torch(dtype: torch.dtype, unscales: bool) -> None:
    (theirs, their_scales), (ours, our_scales) = (scaled(make, dtype, unscales) for make in MAKERS)
    assert their_scales == our_scales
    assert set(our_scales) == {512.0, 1024.0}
    assert differing(theirs, ours) == 0


def accumulated(make: Make) -> list[torch.Tensor]:
    trained = model()
    optimizer = make(trained.parameters(), **ARGUMENTS)
    for step, x in enumerate(batches()):
        (loss_of(trained, x) / 4).backward()
        if step % 4 == 3:
            optimizer.step()
            optimizer.zero_grad(set_to_none=step % 8 == 3)
    return results(trained, optimizer)


def test_accumulated_gradients_have_the_bits_of_torch() -> None:
    assert differing(*map(accumulated, MAKERS)) == 0


@pytest.mark.parametrize(
    "clip",
    [
        lambda parameters: torch.nn.utils.clip_grad_norm_(parameters, 0.1),
        lambda parameters: torch.nn.utils.clip_grad_norm_(parameters, 0.1, norm_type=float("inf")),
        lambda parameters: torch.nn.utils.clip_grad_value_(parameters, 0.01),
    ],
    ids=["norm", "maximum", "value"],
)
def test_clipped_gradients_have_the_bits_of_torch(clip: Callable[[Any], Any]) -> None:
    found = []
    for make in MAKERS:
        trained = model()
        optimizer = make(trained.parameters(), **ARGUMENTS)
        for x in batches():
            optimizer.zero_grad()
            loss_of(trained, x).backward()
            clip(trained.parameters())
            optimizer.step()
        found.append(results(trained, optimizer))
    assert differing(*found) == 0


def closed(make: Make) -> list[torch.Tensor]:
    trained = model()
    optimizer = make(trained.parameters(), **ARGUMENTS)
    xs = iter(batches())

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(trained, next(xs))
        loss.backward()
        return loss

    losses = [optimizer.step(closure).detach() for _ in range(STEPS)]
    return [*results(trained, optimizer), *losses]


def test_closures_have_the_bits_of_torch() -> None:
    assert differing(*map(closed, MAKERS)) == 0


def test_a_step_in_the_backward_pass_has_the_bits_of_torch() -> None:
    found = []
    for make in MAKERS:
        trained = model()
        optimizers = {p: make([p], **ARGUMENTS) for p in trained.parameters()}

        def step(p: torch.Tensor, optimizers: Any = optimizers) -> None:
            optimizers[p].step()
            optimizers[p].zero_grad()

        for p in trained.parameters():
            p.register_post_accumulate_grad_hook(step)
        for x in batches():
            loss_of(trained, x).backward()
        found.append([*trained.parameters(), *(x for o in optimizers.values() for x in state_of(o))])
    assert differing(*found) == 0


def test_the_example_trains_digits_to_equal_weights(capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(__file__).parents[2] / "examples" / "train_digits.py"
    spec = importlib.util.spec_from_file_location("train_digits", path)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    assert example.main() == 0
    *accuracies, last = capsys.readouterr().out.splitlines()
    assert last.startswith("0 of ")
    assert all(float(line.split()[-2]) > 90 for line in accuracies)
    assert example.STEPS == 200
