"""What is judged, from a name; and what cannot be had says why."""

from __future__ import annotations

import sys

import ml_dtypes
import numpy as np
import pytest

import samestep
from samestep import optim
from samestep.verify.suite import target
from samestep.verify.suite.target import LoadError

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def import_state(monkeypatch, tmp_path):
    """The modules and the search path as they were; the current folder is an empty one."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    yield
    for name in ("mine", "beside", "needs", "target_mine"):
        sys.modules.pop(name, None)


def test_an_engine_of_a_device_says_how_it_is_judged(monkeypatch):
    monkeypatch.setattr(target, "engines", lambda: {"gpu": None})
    monkeypatch.setattr(target.ENGINES["gpu"], "device_type", lambda: "cuda")
    for rule in ("cann", "torch"):
        with pytest.raises(LoadError, match=r"memory of cuda devices.*bench/device.py, or by a --target"):
            target.of_engine("gpu", rule)


@pytest.mark.parametrize(("engine", "order"), [("cpu", "spec"), ("reference", "ascend950")])
def test_an_engine_writes_in_place(engine, order):
    subject = target.of_engine(engine, order=order)
    tensors = [np.array([x], np.float32) for x in (1.0, 0.7, 0.1, 0.3, 0.9, 1.0)]
    expected = [x.copy() for x in tensors]
    options = {"dampening": 0.0, "weight_decay": 0.01, "nesterov": True}
    assert subject.run(*tensors, **options) is None
    samestep.sgd_(*expected, **options, order=order, engine="reference")
    assert [x.tobytes() for x in tensors] == [x.tobytes() for x in expected]
    assert (subject.name, subject.engine) == (f"engine {engine}", True)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("momentum", [0.9, 0.0])
def test_rule_torch_is_the_optimizer_on_the_arrays_memory(dtype, first, momentum):
    p, g, b = (np.array([x, 2 * x], dtype) for x in (1.0, 0.7, 0.3))
    parameter = torch.nn.Parameter(torch.tensor(p.astype(np.float64)).to(getattr(torch, p.dtype.name)))
    parameter.grad = torch.tensor(g.astype(np.float64)).to(parameter.dtype)
    optimizer = optim.SGD([parameter], lr=0.1, momentum=momentum, weight_decay=0.01)
    if not first:
        optimizer.state[parameter]["momentum_buffer"] = torch.tensor(b.astype(np.float64)).to(parameter.dtype)
    optimizer.step()
    gradient = g.copy()
    returned = target.of_engine("cpu", "torch").run(
        p, g, None if first else b, lr=0.1, momentum=momentum, dampening=0.0, weight_decay=0.01, nesterov=False,
        maximize=False)
    assert returned[0] is p
    assert np.array_equal(p.astype(np.float64), parameter.detach().double().numpy())
    assert np.array_equal(g, gradient)
    buffer = optimizer.state[parameter].get("momentum_buffer")
    assert (buffer is None) == (returned[1] is None)
    if buffer is not None:
        assert returned[1].dtype == p.dtype
        assert np.array_equal(returned[1].astype(np.float64), buffer.double().numpy())


def test_rule_torch_computes_what_a_schedule_may_set():
    p, g = np.ones(1, np.float32), np.ones(1, np.float32)
    target.optimizer_step(p, g, None, lr=-0.5, momentum=0.0, dampening=0.0, weight_decay=0.0, nesterov=False,
                          maximize=False)
    assert p == 1.5


@pytest.mark.parametrize(("engine", "rule", "why"), [
    ("gpux", "cann", "does not exist; the engines are reference, cpu"),
    ("gpux", "torch", "does not exist"),
    ("reference", "torch", "has no rule torch"),
])
def test_engines_that_cannot_be_had(engine, rule, why):
    with pytest.raises(LoadError, match=why):
        target.of_engine(engine, rule)


def test_an_unavailable_engine_says_why(monkeypatch):
    monkeypatch.setattr(target, "engines", lambda: {"cpu": "no processor"})
    with pytest.raises(LoadError, match="unavailable here: no processor"):
        target.of_engine("cpu")


def test_rule_torch_without_torch_says_what_to_install(monkeypatch):
    monkeypatch.setattr(target.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(LoadError, match=r"pip install 'samestep\[torch\]'"):
        target.of_engine("cpu", "torch")


def test_a_function_of_a_module_of_a_file_and_of_a_class(tmp_path):
    (tmp_path / "beside.py").write_text("number = 5\n")
    (tmp_path / "mine.py").write_text(
        "import beside\ndef step(): return beside.number\nclass Kernel:\n    @staticmethod\n    def run(): return 7\n")
    assert target.load("mine:step").run() == 5
    subject = target.load("mine.py:step")
    assert subject.run() == 5
    assert (subject.name, subject.engine) == ("mine.py:step", False)
    assert target.load(f"{tmp_path}/mine.py:Kernel.run").run() == 7


def test_a_file_named_as_a_package_does_not_stand_for_it(tmp_path):
    (tmp_path / "torch.py").write_text("def step(): return 1\n")
    assert target.load(f"{tmp_path}/torch.py:step").run() == 1
    assert sys.modules["torch"] is torch


def test_another_source_is_another_identity(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("def step(): return 1\n")
    one = target.load("mine.py:step").identity
    assert target.load("mine.py:step").identity == one
    path.write_text("def step(): return 2 \n")
    assert target.load("mine.py:step").identity != one


@pytest.mark.parametrize(("name", "why"), [
    ("mine", "expected module:function or path/to/file.py:function"),
    (":step", "expected module:function"),
    ("mine:", "expected module:function"),
    ("absent:step", "there is no module 'absent'"),
    ("absent.part:step", "there is no module 'absent'"),
    ("os.absent:step", "there is no module"),
    ("absent.py:step", "there is no file absent.py"),
    ("mine.py:stepp", "has no 'stepp'; it has step"),
    ("mine.py:number", "'number' is a int, not a function"),
    ("raises.py:step", "importing raises.py raised ZeroDivisionError"),
    ("exits.py:step", "importing exits.py raised SystemExit"),
    ("needs.py:step", "importing needs.py needs 'absent', which is not installed"),
    ("needs:step", "importing needs needs 'absent', which is not installed"),
    ("broken.py:step", "importing broken.py raised SyntaxError"),
])
def test_targets_that_cannot_be_had(tmp_path, name, why):
    for file, text in {
        "mine.py": "def step(): pass\nnumber = 3\n", "raises.py": "1 / 0\n", "exits.py": "raise SystemExit(3)\n",
        "needs.py": "import absent\n", "broken.py": "def step(:\n",
    }.items():
        (tmp_path / file).write_text(text)
    with pytest.raises(LoadError) as caught:
        target.load(name)
    assert why in str(caught.value)
    assert repr(name) in str(caught.value)
