"""What the acceptance rules in use today let pass: three broken bfloat16 kernels at a learning rate of 1e-3."""

from __future__ import annotations

import numpy as np
import pytest
from click.testing import CliRunner

from samestep.cli import main
from samestep.verify.compare import comparison as compare
from samestep.verify.compare import metrics
from samestep.verify.observation import Problem, observe
from samestep.verify.suite import runner as suite
from samestep.verify.suite.draw import ordinary
from verify.mutants import Kernel

ELEMENTS = 4096
KERNELS = {name: Kernel(faults=frozenset({fault})) for name, fault in (
    ("updates nothing", "parameters not updated"), ("ignores dampening", "dampening ignored"),
    ("loses state", "accum not written"))}
EVERY = set(metrics.NAMES)
# By kernel and tensor: today's rules that pass it although bits are wrong.
PASSING = {
    "updates nothing": {"parameters": {"mixed tolerance", "MERE", "cosine", "max abs"}},
    "ignores dampening": {"parameters": EVERY - {"double-1e-3", "double-1e-4"}, "accum": {"cosine"}},
    "loses state": {"accum": set()},
}


def step(**changes):
    """One step of a network in training: parameters of size 1, gradients and velocities of size 0.1."""
    rng = np.random.default_rng(1)
    p, g, a = (ordinary(rng, (ELEMENTS,), "bfloat16", scale) for scale in (1.0, 0.1, 0.1))
    return Problem("bfloat16", (ELEMENTS,), p, g, a, np.zeros(ELEMENTS, np.uint16), 1e-3, 0.9, 0.1)._replace(**changes)


@pytest.mark.parametrize("name", KERNELS)
def test_verify_fails_them(name):
    """Every seventh item of the suite is enough."""
    assert failed(KERNELS[name]) > 20
    assert failed(Kernel()) == 0


def failed(kernel):
    judging = suite.Judging(kernel, "spec")
    with np.errstate(all="ignore"):
        found = [judging.check(item)
                 for item in list(suite.cases.items(dtypes=("bfloat16",)))[::7] if item.family != "ttk"]
    assert len(found) > 200
    return sum(not check.passed for check in found)


@pytest.mark.parametrize("name", KERNELS)
def test_compare_shows_which_of_todays_rules_pass_them(name):
    comparison = compare.compare(observe(KERNELS[name], step()))
    assert not comparison.same
    passing = {tensor.name: {metric.name for metric in tensor.metrics if metric.passed}
               for tensor in comparison.tensors if tensor.differing}
    assert passing == PASSING[name]
    right = compare.compare(observe(Kernel(), step()))
    assert right.same
    assert all(metric.passed for tensor in right.tensors for metric in tensor.metrics)


def test_the_update_shows_that_nothing_moved():
    update = compare.compare(observe(KERNELS["updates nothing"], step())).update
    assert update.expected_moved > 100
    assert update.got_moved == 0
    assert update.still == update.expected_moved


def test_parameters_after_three_steps_without_state_pass_most_of_them():
    """What a comparison of the parameters alone sees of a kernel that never writes accum."""
    after = []
    for kernel in (Kernel(), KERNELS["loses state"]):
        problem = step(accum=np.zeros(ELEMENTS, np.uint16))
        for k in range(3):
            gradient = ordinary(np.random.default_rng(k), (ELEMENTS,), "bfloat16", 0.1)
            seen = observe(kernel, problem._replace(gradient=gradient))
            problem = problem._replace(parameters=seen.parameters, accum=seen.accum, stat=seen.stat)
        after.append(problem.parameters)
    assert (after[0] != after[1]).sum() > 100
    assert {metric.name for metric in metrics.judged(*after, "bfloat16") if metric.passed} == {
        "mixed tolerance", "MERE", "cosine", "max abs"}


def test_the_command_shows_them_side_by_side(tmp_path):
    problem = step()
    seen = observe(KERNELS["updates nothing"], problem)
    for name in ("parameters", "accum", "stat"):
        np.save(tmp_path / f"{name}.npy", getattr(problem, name))
        np.save(tmp_path / f"{name}_out.npy", getattr(seen, name))
    np.save(tmp_path / "gradient.npy", problem.gradient)
    told = ["--dtype", "bfloat16", "--lr", "1e-3", "--momentum", "0.9", "--dampening", "0.1"]
    shown = CliRunner().invoke(main, ["compare", str(tmp_path), *told])
    assert shown.exit_code == 1, shown.output
    text = " ".join(shown.output.split())
    assert "parameters not updated" in text
    for name in metrics.NAMES:
        assert name in text
