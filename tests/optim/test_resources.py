"""Memory: no large temporaries, nothing that grows, no gradient kept alive, state only where there is momentum."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import textwrap
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

import samestep.optim

MIB = 1 << 20
SLACK = MIB // 4  # the kernel counts pages in batches
# Blocks of 64 KiB and more are given back at once, so that the peak shows every temporary, whoever makes it.
ALLOCATION = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_TOP_PAD_": "0",
              "MALLOC_ARENA_MAX": "1"}
SETUP = """
import gc, json, mmap
import torch, samestep.optim

def status(key):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key + ":"))

def at_the_peak():
    "Memory that is held and touched until what the process has is what it ever had."
    size = max(status("VmHWM") - status("VmRSS"), 0) + (2 << 20)
    ballast = mmap.mmap(-1, size)
    for at in range(0, size, mmap.PAGESIZE):
        ballast[at] = 1
    return ballast

def growth(step):
    "How far the step brings the process above the most memory it ever had."
    ballast = at_the_peak()
    before = status("VmHWM")
    step()
    grown = status("VmHWM") - before
    del ballast
    return grown

def flat(x):
    return x.clone()

def transposed(x):
    return x.T.clone(memory_format=torch.contiguous_format).T

def strided(x):
    base = torch.zeros(x.shape[0], 2 * x.shape[1], dtype=x.dtype)
    return base[:, ::2].copy_(x)

def offset(x):
    return torch.zeros(x.numel() + 1, dtype=x.dtype)[1:].view(x.shape).copy_(x)

def channels_last(x):
    return x.view(-1, 4, 32, 32).clone(memory_format=torch.channels_last)

def expanded(x):
    return torch.ones(1, dtype=x.dtype).expand(x.shape)

def rows(x):
    return torch.ones(1, x.shape[1], dtype=x.dtype).expand(x.shape)

def columns(x):
    return torch.ones(x.shape[0], 1, dtype=x.dtype).expand(x.shape)
"""


def run(script: str, **variables: str) -> Any:
    """What `script`, after the set-up, prints as JSON in a process of its own."""
    done = subprocess.run([sys.executable, "-c", SETUP + textwrap.dedent(script)], env={**os.environ, **variables},
                          capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


on_linux = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the kernel's figures of memory")


@on_linux
def test_the_measure_sees_a_temporary_of_two_mib() -> None:
    grown = run("""
        held = torch.ones(1 << 24)
        def use(mib):
            x = torch.ones(mib << 18)
            return float(x[0])
        use(4)
        print(json.dumps([growth(lambda: use(2)), growth(lambda: use(16)), growth(lambda: None)]))
    """, **ALLOCATION)
    assert grown[0] > MIB + 2 * SLACK
    assert grown[1] > 15 * MIB
    assert grown[2] < SLACK


SIDE = 4096  # 64 MiB in float32
LARGE = [("flat", "flat"), ("strided", "flat"), ("flat", "expanded")]
LAYOUTS = [
    ("offset", "offset"), ("flat", "transposed"), ("transposed", "transposed"), ("strided", "strided"),
    ("flat", "strided"), ("flat", "rows"), ("transposed", "columns"), ("channels_last", "channels_last"),
]


@on_linux
@pytest.mark.parametrize(
    ("dtype", "grad_dtype", "side", "layouts"),
    [
        ("float32", "float32", SIDE, LARGE), ("float32", "float32", SIDE // 4, LAYOUTS),
        ("bfloat16", "bfloat16", SIDE // 2, LAYOUTS), ("float32", "bfloat16", SIDE // 4, [*LARGE, *LAYOUTS]),
    ],
    ids=["large", "float32", "bfloat16", "mixed"],
)
def test_a_step_makes_no_temporary_above_one_mib(dtype: str, grad_dtype: str, side: int, layouts: Any) -> None:
    grown = run(f"""
        dtype, grad_dtype = torch.{dtype}, torch.{grad_dtype}
        found = {{}}
        for place, gradient_place in {layouts!r}:
            for size in (128, {side}):  # the small one compiles the kernels
                p = globals()[place](torch.ones(size, size, dtype=dtype)).requires_grad_()
                p.grad = torch.empty_like(p)
                p.grad.data = globals()[gradient_place](torch.ones(size, size, dtype=grad_dtype))
                optimizer = samestep.optim.SGD([p], lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True)
                first = growth(optimizer.step)
                buffer = optimizer.state[p]["momentum_buffer"]
                found[f"{{place}}-{{gradient_place}}-first"] = first - buffer.nbytes
                found[f"{{place}}-{{gradient_place}}"] = growth(optimizer.step)
                del p, optimizer, buffer
        print(json.dumps(found))
    """, **ALLOCATION)
    assert {name: size for name, size in grown.items() if size > MIB + SLACK} == {}
    assert len(grown) == 2 * len(layouts)


@on_linux
def test_a_long_list_makes_no_temporary_above_one_mib() -> None:
    grown = run("""
        parameters = [torch.ones(20_000 if k % 2 else (200, 100), requires_grad=True) for k in range(300)]
        for k, p in enumerate(parameters):
            p.grad = torch.ones(p.shape) if k % 4 else torch.ones(p.shape[::-1]).permute(*reversed(range(p.dim())))
        optimizer = samestep.optim.SGD(parameters, lr=0.1, momentum=0.9)
        optimizer.step()
        print(json.dumps([growth(optimizer.step) for _ in range(3)]))
    """, **ALLOCATION)
    assert max(grown) <= MIB + SLACK


@on_linux
def test_ten_thousand_steps_leave_memory_as_it_was() -> None:
    memory, objects, tensors = run("""
        torch.manual_seed(0)
        shapes = [(100,), (7, 9), (3, 4, 5, 6)]
        parameters = [torch.ones(shape, requires_grad=True) for shape in shapes]
        parameters.append(torch.ones(40, 50).T[::2].requires_grad_())
        parameters.append(torch.ones(33, dtype=torch.bfloat16, requires_grad=True))
        parameters.append(torch.ones(9, dtype=torch.complex64, requires_grad=True))
        table = torch.ones(50, 3, requires_grad=True)
        groups = [{"params": parameters[:3]}, {"params": parameters[3:], "nesterov": True},
                  {"params": [table], "momentum": 0}]
        optimizer = samestep.optim.SGD(groups, lr=0.1, momentum=0.9)

        def step(number):
            for group in optimizer.param_groups:
                group["lr"] = 1e-6 / (1 + number)
            for p in parameters:
                p.grad = torch.ones(1, dtype=p.dtype).expand(p.shape) if number % 3 == 0 else torch.ones_like(p)
            if number % 5 == 0:
                parameters[number % len(parameters)].grad = None
            if number % 100 == 0:
                table.grad = torch.eye(50, 3).to_sparse(1)
            optimizer.step()
            optimizer.zero_grad()

        figures = []
        for number in range(12_000):
            step(number)
            if number in (1999, 11_999):
                gc.collect()
                alive = gc.get_objects()
                figures.append((status("VmRSS"), len(alive), sum(issubclass(type(x), torch.Tensor) for x in alive)))
                del alive
        print(json.dumps([after - before for before, after in zip(*figures)]))
    """)
    assert memory < MIB
    assert objects <= 5  # the list of figures
    assert tensors == 0


def parameters_with_gradients() -> list[torch.Tensor]:
    parameters = [torch.ones(5), torch.ones(4, 6).T, torch.ones(3, dtype=torch.bfloat16), torch.ones(8, 8)[:, ::2]]
    for p in parameters:
        p.requires_grad_().grad = torch.ones_like(p)
    return parameters


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("arguments", [{}, {"dialect": "cann"}, {"maximize": True}, {"weight_decay": 0.1}])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_no_gradient_is_kept_alive(arguments: dict[str, Any], momentum: float, count: int) -> None:
    parameters = parameters_with_gradients()[:count]
    optimizer = samestep.optim.SGD(parameters, lr=0.1, momentum=momentum, **arguments)
    for _ in range(3):
        for p in parameters:
            p.grad = torch.ones_like(p)
        gradients = [weakref.ref(p.grad) for p in parameters]
        memory = [weakref.ref(p.grad.untyped_storage()) for p in parameters]
        optimizer.step()
        optimizer.zero_grad()
        gc.collect()
        assert [gradient() for gradient in gradients] == [None] * count
        assert [storage() for storage in memory] == [None] * count


def test_no_gradient_is_kept_alive_by_a_scaled_differentiable_or_sparse_step() -> None:
    scaled = torch.ones(5, dtype=torch.float16, requires_grad=True)
    optimizer = samestep.optim.SGD([scaled], lr=0.1, momentum=0.9)
    optimizer.grad_scale, optimizer.found_inf = torch.tensor(4.0), torch.tensor(0.0)
    differentiable = torch.ones(5)
    graph = samestep.optim.SGD([differentiable], lr=0.1, momentum=0.9, differentiable=True)
    sparse = torch.ones(5, 2, requires_grad=True)
    rows = samestep.optim.SGD([sparse], lr=0.1, momentum=0.9)
    for p, made in ((scaled, optimizer), (differentiable, graph), (sparse, rows)):
        for _ in range(3):
            p.grad = torch.ones_like(p) if p is not sparse else torch.eye(5, 2).to_sparse(1)
            gradient = weakref.ref(p.grad)
            made.step()
            made.zero_grad()
            gc.collect()
            assert gradient() is None


def test_an_optimizer_let_go_frees_its_parameters_and_state() -> None:
    parameters = parameters_with_gradients()
    optimizer = samestep.optim.SGD(parameters, lr=0.1, momentum=0.9)
    for _ in range(3):
        optimizer.step()
    alive = [weakref.ref(p) for p in parameters]
    alive += [weakref.ref(optimizer.state[p]["momentum_buffer"]) for p in parameters]
    alive.append(weakref.ref(optimizer))
    del parameters, optimizer
    gc.collect()
    assert [x() for x in alive] == [None] * len(alive)


def test_a_parameter_taken_out_of_the_optimizer_is_freed() -> None:
    parameters = parameters_with_gradients()
    optimizer = samestep.optim.SGD(parameters, lr=0.1, momentum=0.9)
    optimizer.step()
    gone = weakref.ref(parameters[0])
    del optimizer.state[parameters[0]]
    del optimizer.param_groups[0]["params"][0]
    del parameters[0]
    optimizer.step()
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("make", [torch.optim.SGD, samestep.optim.SGD])
def test_momentum_buffers_are_made_when_they_are_needed(make: Any) -> None:
    with_gradient, without, late = (torch.ones(3, requires_grad=True) for _ in range(3))
    plain = torch.ones(3, requires_grad=True)
    optimizer = make([{"params": [with_gradient, without, late]}, {"params": [plain], "momentum": 0}],
                     lr=0.1, momentum=0.9)
    assert not optimizer.state
    assert optimizer.state_dict()["state"] == {}
    optimizer.step()
    assert not optimizer.state
    for p in (with_gradient, plain):
        p.grad = torch.ones(3)
    optimizer.step()
    assert list(optimizer.state) == [with_gradient]
    assert list(optimizer.state[with_gradient]) == ["momentum_buffer"]
    late.grad = torch.ones(3)
    optimizer.step()
    assert set(map(id, optimizer.state)) == {id(with_gradient), id(late)}
    kept = optimizer.state[late]["momentum_buffer"]
    optimizer.param_groups[0]["momentum"] = 0
    optimizer.param_groups[1]["momentum"] = 0.5
    optimizer.step()
    assert optimizer.state[late]["momentum_buffer"] is kept
    assert "momentum_buffer" in optimizer.state[plain]
    assert without not in optimizer.state


def test_a_buffer_stays_the_same_object() -> None:
    parameters = parameters_with_gradients()
    optimizer = samestep.optim.SGD(parameters, lr=0.1, momentum=0.9)
    optimizer.step()
    buffers = [optimizer.state[p]["momentum_buffer"] for p in parameters]
    places = [buffer.data_ptr() for buffer in buffers]
    for _ in range(3):
        optimizer.step()
    assert all(optimizer.state[p]["momentum_buffer"] is buffer for p, buffer in zip(parameters, buffers, strict=True))
    assert [buffer.data_ptr() for buffer in buffers] == places
