"""Start-up costs: every value is a fresh process, its caches are what the name says, and wrong bits have no time."""

from __future__ import annotations

import importlib.util
import re
import statistics
import subprocess

import numpy as np
import pytest

import samestep
from samestep.bench import startup
from samestep.bench.startup import Cost

# Prints how many processes used each of its three folders for caches before, and how many processes it is in.
COUNT = """
import os, pathlib
print("a line before")
counts = set()
for name in ("SAMESTEP_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "JAX_COMPILATION_CACHE_DIR"):
    folder = pathlib.Path(os.environ[name])
    folder.mkdir(parents=True, exist_ok=True)
    counts.add(len(list(folder.iterdir())))
    (folder / str(os.getpid())).touch()
(count,) = counts
print(count)
"""
NAMES = [cost.name for cost in startup.COSTS]


def measured(monkeypatch, *costs, quick=False):
    seen = []
    monkeypatch.setattr(startup, "COSTS", costs)
    return startup.measure(quick, seen.append), seen


def test_every_process_without_a_cache_has_an_empty_one_and_the_others_a_filled_one(monkeypatch, tmp_path):
    for name in ("SAMESTEP_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "JAX_COMPILATION_CACHE_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    (cold, warm, plain), seen = measured(
        monkeypatch, Cost("first", "words", COUNT, caches=True), Cost("one", "more", COUNT, ours=True, unit="us"))
    assert seen == ["first, nothing cached", "first, cached", "one"]
    assert cold == {"name": "first, nothing cached", "unit": "s", "values": [0.0] * 5, "median": 0.0,
                    "counted": "words", "ours": False}
    assert (warm["name"], warm["values"], warm["median"]) == ("first, cached", [1.0, 2.0, 3.0, 4.0, 5.0], 3.0)
    assert (plain["unit"], plain["counted"], plain["ours"]) == ("us", "more", True)
    assert plain["values"] == [0.0, 1.0, 2.0, 3.0, 4.0]  # the user's caches


def test_a_quick_benchmark_starts_one_process_each(monkeypatch):
    rows, _ = measured(monkeypatch, Cost("a", "", "print(1)"), Cost("b", "", "print(1)"), quick=True)
    assert [len(row["values"]) for row in rows] == [1, 1]


def test_a_package_that_is_missing_is_named(monkeypatch):
    (row,), _ = measured(monkeypatch, Cost("a", "words", "print(1)", ("os", "no_such_package")), quick=True)
    assert row == {"name": "a", "unit": "s", "values": [], "median": None, "counted": "words", "ours": False,
                   "left out": "no_such_package not installed (pip install no_such_package)"}


def test_a_peer_that_fails_is_left_out_with_its_last_word(monkeypatch):
    fails = Cost("a", "", "raise SystemExit('no compiler')", caches=True)
    (cold, warm, other), _ = measured(monkeypatch, fails, Cost("b", "", "print(2)"), quick=True)
    assert (cold["values"], cold["median"]) == (warm["values"], warm["median"]) == ([], None)
    assert cold["left out"] == warm["left out"] == "the process ended with status 1: no compiler"
    assert other["values"] == [2.0]


def test_a_peer_that_takes_forever_is_left_out(monkeypatch):
    monkeypatch.setattr(startup, "TIMEOUT", 0.2)
    (row,), _ = measured(monkeypatch, Cost("a", "", "import time; time.sleep(60)"))
    assert (row["median"], row["left out"]) == (None, "it took more than 0.2 s")


@pytest.mark.parametrize("script", ["raise SystemExit('wrong bits')", "import no_such_module", "pass"])
def test_a_failure_of_ours_ends_the_benchmark(monkeypatch, script):
    with pytest.raises(RuntimeError, match=r"^mine: the process ended with status [01]: \w+"):
        measured(monkeypatch, Cost("mine", "", script, ours=True))


@pytest.mark.parametrize("cost", startup.COSTS, ids=NAMES)
def test_scripts_print_a_time(cost, capsys):
    if "torch.compile" in cost.name:
        pytest.skip("it takes a quarter of a minute: make verify-full runs it")
    for package in cost.needs:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    exec(cost.script, {})
    seconds = float(capsys.readouterr().out)
    assert 0 < seconds < (1e6 if cost.unit == "us" else 100)


@pytest.mark.parametrize("written", [0, 3, 5], ids=["parameters", "accum", "stat"])
def test_a_first_call_with_a_wrong_bit_has_no_time(written, monkeypatch, capsys):
    right = samestep.sgd_

    def wrong(*tensors, **attributes):
        right(*tensors, **attributes)
        tensors[written].view(np.uint32)[-1] ^= 1

    monkeypatch.setattr(samestep, "sgd_", wrong)
    with pytest.raises(SystemExit, match="wrong bits"):
        exec(startup.FIRST_CALL, {})
    assert capsys.readouterr().out == ""


def test_a_first_step_with_a_wrong_bit_has_no_time(monkeypatch, capsys):
    pytest.importorskip("torch")
    from samestep.optim import SGD

    right = SGD.step

    def wrong(self):
        right(self)
        self.param_groups[0]["params"][-1].detach().numpy().view(np.uint32)[-1] ^= 1

    monkeypatch.setattr(SGD, "step", wrong)
    with pytest.raises(SystemExit, match="wrong bits"):
        exec(startup.FIRST_STEP, {})
    assert capsys.readouterr().out == ""


def test_a_step_that_does_nothing_has_no_time(monkeypatch, capsys):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.optim.SGD, "step", lambda self: None)
    (cost,) = (cost for cost in startup.COSTS if cost.name.endswith("for-loop"))
    with pytest.raises(SystemExit, match="left a parameter as it was"):
        exec(cost.script, {})
    assert capsys.readouterr().out == ""


@pytest.mark.exhaustive
def test_all_costs_that_can_be_measured_here_are():
    seen = []
    rows = startup.measure(True, seen.append)
    assert [row["name"] for row in rows] == seen == [
        cost.name + kind for cost in startup.COSTS
        for kind in ((", nothing cached", ", cached") if cost.caches else ("",))]
    for row in rows:
        if "left out" in row:
            assert re.search("^(jax|optax).* not installed", row["left out"]), row
        else:
            assert row["median"] == statistics.median(row["values"]) > 0


def test_the_timeout_is_a_processs(monkeypatch):
    def run(*_, timeout, **__):
        assert timeout == startup.TIMEOUT
        return subprocess.CompletedProcess([], 0, "1.5\n", "")

    monkeypatch.setattr(subprocess, "run", run)
    assert measured(monkeypatch, Cost("a", "", ""), quick=True)[0][0]["values"] == [1.5]
