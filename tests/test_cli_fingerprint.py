"""`samestep fingerprint`: what it prints, its exit status, and what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner

import dump_files
from samestep.cli import main

FILE = """
import numpy as np
import samestep

def still(p, g, lr, a, m, s, **attributes):
    "Updates everything but parameters."
    samestep.sgd_(p.copy(), g, lr, a, m, s, engine="reference", **attributes)

def half(p, g, lr, a, m, s, **attributes):
    "What no hypothesis says: half the learning rate."
    samestep.sgd_(p, g, lr / np.float32(2), a, m, s, engine="reference", **attributes)

def broken(*arrays, **attributes):
    raise OSError("the device is gone")

def wide(p, g, lr, a, m, s, **attributes):
    return p.astype(np.float64), a, s
"""


def run(*args):
    return CliRunner().invoke(main, ["fingerprint", *(str(arg) for arg in args)])


@pytest.fixture
def kernels(tmp_path):
    path = tmp_path / "kernels.py"
    path.write_text(FILE)
    return path


def test_help_is_quick_and_says_what_the_exit_status_means():
    code = ("import sys; from samestep.cli import main\ntry: main(['fingerprint', '--help'])\nexcept SystemExit: pass\n"
            "print(sorted({'numpy', 'numba', 'torch', 'rich'} & set(sys.modules)))")
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert out.strip().endswith("[]")
    assert "Exit status: 0 if one rule is named" in " ".join(out.split())


def test_an_engine_follows_its_rule():
    result = run("--engine", "reference", "--dtype", "float32", "--order", "ascend950")
    assert result.exit_code == 0, result.output
    assert result.output.startswith("float32: follows cann / ascend950 exactly; ")


def test_a_target_that_goes_wrong_is_named(kernels):
    result = run("--target", f"{kernels}:still", "--dtype", "float32", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)["float32"]
    assert "parameters, accum and stat follow cann / spec, but with parameters not updated; " in found["sentence"]
    assert found["certain"] is True
    assert found["hypotheses"][0]["faults"] == ["parameters not updated"]


def test_what_nothing_explains_is_no_success(kernels):
    result = run("--target", f"{kernels}:half", "--dtype", "float32")
    assert result.exit_code == 1, result.output
    assert "float32: not everything is explained" in result.output
    assert "unexplained" in result.output


def test_a_dump_that_several_rules_explain(tmp_path):
    path = dump_files.write(tmp_path / "right", dump_files.step("float16", (33, 2)))
    result = run("--dump", path)
    assert result.exit_code == 1, result.output
    assert result.output.startswith("follows cann / spec exactly; 66 of 66 elements; the data do not exclude ")
    assert "  or " in result.output
    assert json.loads(run("--dump", path, "--json").output)["dump"]["certain"] is False


@pytest.mark.parametrize(("args", "text"), [
    ((), "give one of --target, --engine and --dump"),
    (("--engine", "cpu", "--target", "a:b"), "give one of"),
    (("--engine", "cpu", "--lr", "0.1"), "learning_rate: only for a --dump"),
    (("--engine", "nonsense"), "'nonsense' does not exist"),
    (("--engine", "cpu", "--dtype", "float64"), "no dtype float64"),
    (("--engine", "cpu", "--order", "nonsense"), "nonsense"),
    (("--dump", "does-not-exist"), "does-not-exist"),
    (("--target", "does_not_exist:kernel"), "does_not_exist"),
    (("--target", "KERNELS:nothing"), "nothing"),
    (("--target", "KERNELS:broken", "--dtype", "float32"), "broken raised OSError: the device is gone"),
    (("--target", "KERNELS:wide", "--dtype", "float32"), "the target gave float64"),
])
def test_what_cannot_be_run_is_refused_with_status_2(args, text, kernels):
    result = run(*(arg.replace("KERNELS", str(kernels)) for arg in args))
    assert result.exit_code == 2, result.output
    assert text in result.output
    assert not isinstance(result.exception, (KeyError, TypeError, AttributeError))


def test_a_dump_of_raw_words_is_described_by_options(tmp_path):
    step = dump_files.step("bfloat16", (5, 3), learning_rate=1e-3, momentum=0.9)
    path = dump_files.write(tmp_path / "raw", step._replace(parameters=step.problem.parameters))
    result = run("--dump", path, "--dtype", "bfloat16")
    assert result.exit_code == 1, result.output
    assert "parameters not updated" in result.output
    assert np.count_nonzero(step.parameters != step.problem.parameters) > 0
