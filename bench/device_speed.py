"""Times on a device, by its own events: `samestep.optim.SGD` and torch's, interleaved, on the same tensors.

Small steps are bound by the host that launches them: they are timed a few at a time, and the host's own time is kept.
"""

from __future__ import annotations

import signal
import statistics
import time
from contextlib import contextmanager

from samestep.bench.models import gpt2_small, resnet50

SIZES = {"64": 1 << 6, "1K": 1 << 10, "8K": 1 << 13, "64K": 1 << 16, "256K": 1 << 18, "1M": 1 << 20, "4M": 1 << 22,
         "16M": 1 << 24, "64M": 1 << 26, "256M": 1 << 28}
DTYPES = ("float32", "float64", "bfloat16", "float16")
SETTINGS = {
    "plain": {}, "momentum": {"momentum": 0.9}, "decay": {"momentum": 0.9, "weight_decay": 1e-4},
    "nesterov": {"momentum": 0.9, "weight_decay": 1e-4, "nesterov": True},
    "dampening": {"momentum": 0.9, "weight_decay": 1e-4, "dampening": 0.1},
}
CASES = [(size, dtype, name) for size in SIZES for dtype in DTYPES for name in SETTINGS]  # 200
LISTS = {"1000 x 64": [(64,)] * 1000, "ResNet-50": resnet50(), "GPT-2 small": gpt2_small()}
WAYS = {"fused": {"fused": True}, "foreach": {"foreach": True}, "for-loop": {"foreach": False}}


class Clock:
    """Events on the device; without one (a dry run), the host's clock."""

    def __init__(self, dry: bool) -> None:
        self.dry = dry

    def seconds(self, call, repeats: int) -> tuple[float, float]:
        """Time of a call on the device and on the host, over `repeats` in a row."""
        start = time.perf_counter()
        if self.dry:
            for _ in range(repeats):
                call()
            taken = (time.perf_counter() - start) / repeats
            return taken, taken
        import torch

        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        for _ in range(repeats):
            call()
        after.record()
        host = time.perf_counter() - start
        after.synchronize()
        return before.elapsed_time(after) / 1e3 / repeats, host / repeats


def compare(clock: Clock, calls, rounds: int, repeats: int) -> dict[str, dict[str, float]]:
    """Medians of all calls, interleaved, and the median of ours against each of the others round by round."""
    found = {name: [] for name in calls}
    for call in calls.values():
        call()
        call()
    for _ in range(rounds):
        for name, call in calls.items():
            found[name].append(clock.seconds(call, repeats))
    medians = {name: {"device_us": statistics.median(x for x, _ in times) * 1e6,
                      "host_us": statistics.median(x for _, x in times) * 1e6} for name, times in found.items()}
    for name, times in found.items():
        ratios = [ours / theirs for (ours, _), (theirs, _) in zip(found["ours"], times, strict=True)]
        medians[name]["ours / it"] = statistics.median(ratios)
    return medians


def parameters(shapes, dtype: str, where: str):
    import torch

    made = [torch.nn.Parameter(torch.randn(shape, device=where).to(getattr(torch, dtype))) for shape in shapes]
    for p in made:
        p.grad = torch.randn(p.shape, device=where).to(p.dtype)
    return made


def steps_of(params, settings, compiled: bool = False):
    import torch

    from samestep.optim import SGD

    calls = {"ours": SGD(params, lr=1e-6, **settings).step}
    for name, flags in WAYS.items():
        calls[name] = torch.optim.SGD(params, lr=1e-6, **settings, **flags).step
    if compiled:
        calls["compiled"] = torch.compile(torch.optim.SGD(params, lr=1e-6, **settings, foreach=True).step)
    return calls


def single(clock: Clock, case: tuple[str, str, str]) -> dict[str, dict[str, float]]:
    """One tensor of a size and dtype, with some settings."""
    size, dtype, name = case
    n = SIZES[size]
    params = parameters([(n,)], dtype, "cpu" if clock.dry else "cuda")
    rounds, repeats = (1, 1) if clock.dry else (9, 20) if n < 1 << 22 else (7, 1)
    return compare(clock, steps_of(params, SETTINGS[name]), rounds, repeats)


def model(clock: Clock, name: str, compiled: bool) -> dict[str, dict[str, float]]:
    """A model's list of parameters, also against a compiled step where asked for."""
    shapes = [(64,)] * 3 if clock.dry else LISTS[name]
    params = parameters(shapes, "float32", "cpu" if clock.dry else "cuda")
    return compare(clock, steps_of(params, SETTINGS["decay"], compiled), 1 if clock.dry else 15, 1)


def bandwidth(clock: Clock) -> dict[str, dict[str, dict[str, float]]]:
    """Bytes a second of the optimizer and the operator, as parts of what a copy on the device has in turn with them."""
    if clock.dry:
        return {"3,000 elements a tensor": bandwidth_at(clock, 3000)}
    return {f"{megabytes} MiB a tensor": bandwidth_at(clock, megabytes * (1 << 20) // 4) for megabytes in (256, 1024)}


def bandwidth_at(clock: Clock, n: int) -> dict[str, dict[str, float]]:
    """The same for float32 tensors of `n` elements."""
    import torch

    import samestep
    from samestep.optim import SGD

    where = "cpu" if clock.dry else "cuda"
    params = parameters([(n,)], "float32", where)
    gradient, accum, stat = (torch.ones(n, device=where) for _ in range(3))
    lr, m = (torch.full((1,), value, device=where) for value in (1e-6, 0.9))

    def operator(dampening: float) -> None:
        samestep.sgd_(params[0], gradient, lr, accum, m, stat, dampening=dampening, engine="gpu")

    calls = {  # and the bytes that each moves
        "copy": (lambda: gradient.copy_(accum), 8 * n),
        "optimizer": (SGD(params, lr=1e-6, **SETTINGS["decay"]).step, 20 * n),
        "operator": (lambda: operator(0.0), 24 * n),
        "operator, dampening": (lambda: operator(0.1), 28 * n),
    }
    for call, _ in [*calls.values()] * 2:
        call()
    speeds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(1 if clock.dry else 11):
        for name, (call, moved) in calls.items():
            speeds[name].append(moved / clock.seconds(call, 1)[0])
    return {name: {
        "GB/s": statistics.median(values) / 1e9,
        "of the copy": statistics.median(x / y for x, y in zip(values, speeds["copy"], strict=True)),
    } for name, values in speeds.items()}


@contextmanager
def at_most(seconds: float):
    """Within it, TimeoutError after that long."""
    def stop(*_):
        raise TimeoutError(f"took longer than {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(max(1, int(seconds)))
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
