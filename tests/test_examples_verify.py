"""The adapters of examples/verify_kernel, and docs/verify.md: its commands are run and print what it shows."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from samestep.verify.compare.comparison import compare
from samestep.verify.observation import observe
from samestep.verify.patterns import TYPES
from samestep.verify.suite import judge, target
from samestep.verify.suite.cases import items

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "verify_kernel"
DOCUMENTATION = (ROOT / "docs" / "verify.md").read_text(encoding="utf-8")
ELIDED = "..."  # as a line: some lines; at the end of one: some of its text
FIX = re.search(r"\$ (sed -i .*)", DOCUMENTATION)[1]
EXACT = "-O3 -march=native -ffp-contract=off"
PROCESSOR = Path("/proc/cpuinfo")


def has_compiler():
    return shutil.which(os.environ.get("CC", "cc")) is not None


def fuses():
    """Whether compilers make fused multiply-adds for this processor when nobody asks."""
    return PROCESSOR.exists() and re.search(r"\bfma\b|\basimd\b", PROCESSOR.read_text()) is not None


@pytest.fixture
def example(tmp_path, monkeypatch):
    """A copy of the example's folder, in which adapters find their files."""
    folder = tmp_path / "verify_kernel"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return folder


def wrong_tensors(run, dtype, count=40):
    """By whether momentum is zero: the tensors in which some element is wrong."""
    pool = [item for item in items(dtypes=[dtype]) if item.family in ("training", "stat", "kernels", "steps")]
    wrong = {True: set(), False: set()}
    for item in pool[::len(pool) // count]:
        problem = item.problem()
        compared = compare(observe(run, problem))
        wrong[judge.keeps_state(problem)] |= {tensor.name for tensor in compared.tensors if tensor.differing}
    return wrong


@pytest.mark.skipif(not has_compiler(), reason="needs a C compiler (cc, or what CC names)")
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_c_kernel_is_wrong_where_it_says_and_right_once_mended(example, monkeypatch, dtype):
    monkeypatch.setenv("CFLAGS", EXACT)
    wrong = wrong_tensors(target.load("adapter_c.py:sgd").run, dtype)
    assert wrong == {True: {"accum", "stat"}, False: set()}
    subprocess.run(FIX, shell=True, check=True, cwd=example)
    assert wrong_tensors(target.load("adapter_c.py:sgd").run, dtype) == {True: set(), False: set()}
    if fuses() and dtype == "float32":  # it seldom shows in 16 bits
        monkeypatch.delenv("CFLAGS")
        assert "parameters" in wrong_tensors(target.load("adapter_c.py:sgd").run, dtype)[False]


def test_the_torch_adapter_is_torch_s_fused_step(example):
    torch = pytest.importorskip("torch")
    run = target.load("adapter_torch.py:fused").run
    rng = np.random.default_rng(0)
    p, g = (rng.standard_normal(100).astype(np.float32) for _ in range(2))
    parameter = torch.nn.Parameter(torch.tensor(p))
    optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True, fused=True)
    parameter.grad = torch.tensor(g)
    buffer = None
    for _ in range(3):
        optimizer.step()
        p, buffer = run(p, g, buffer, lr=0.1, momentum=0.9, dampening=0.0, weight_decay=0.01, nesterov=True,
                        maximize=False)
    assert p.tobytes() == parameter.detach().numpy().tobytes()
    assert buffer.tobytes() == optimizer.state[parameter]["momentum_buffer"].numpy().tobytes()
    p, buffer = run(p.astype(TYPES["bfloat16"]), g.astype(TYPES["bfloat16"]), None, lr=0.1, momentum=0.0,
                    dampening=0.0, weight_decay=0.0, nesterov=False, maximize=True)
    assert p.dtype == TYPES["bfloat16"]
    assert buffer is None


def test_the_program_is_started_once_and_computes_in_float64(example):
    run = target.load("adapter_program.py:sgd").run
    program = run.__globals__["PROGRAM"]
    wrong = wrong_tensors(run, "float32")
    assert wrong[False] >= {"parameters"}
    assert "stat" not in wrong[True] | wrong[False]
    assert wrong_tensors(run, "bfloat16")[True] <= {"parameters"}
    assert program.poll() is None
    program.stdin.close()
    assert program.wait(10) == 0
    program.stdout.close()
    run.__globals__["TEMPORARY"].cleanup()


def sessions():
    """The console blocks of the documentation: pairs of a command and the lines it is shown to print."""
    for block in re.findall(r"```console\n(.*?)```", DOCUMENTATION, re.DOTALL):
        for part in re.split(r"(?m)^\$ ", block)[1:]:
            command, _, shown = part.partition("\n")
            yield command, shown.splitlines()


def essential(line):
    """A line with spaces as one, and with counts and times, which differ from compiler to compiler, as N (0 stays)."""
    return re.sub(r"(?<![\w.=/\[(-])[1-9][\d,]*(\.\d+)?(?![\w.=\]])", "N", re.sub(r" +", " ", line)).strip()


@pytest.mark.skipif(not (has_compiler() and fuses()), reason="needs a C compiler and fused multiply-adds")
def test_the_documented_commands_print_what_is_shown(example):
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "COLUMNS": "120",
                   "NO_COLOR": "1"}
    environment.pop("CFLAGS", None)
    told = list(sessions())
    script = "\n".join(f"echo '@@@'\n{command}" for command, _ in told)
    done = subprocess.run(["bash"], input=script, cwd=example, env=environment, text=True, timeout=200,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    outputs = done.stdout.split("@@@\n")[1:]
    for (command, shown), output in zip(told, outputs, strict=True):
        printed = iter([essential(line) for line in output.splitlines()])
        for line in shown:
            if line == ELIDED:
                continue
            wanted = essential(line.removesuffix(ELIDED))
            found = any(text.startswith(wanted) if line.endswith(ELIDED) else text == wanted for text in printed)
            assert found, f"{command}\ndid not print {line!r}:\n{output}"
    assert len(told) > 6


def test_every_adapter_and_its_file_are_in_the_documentation():
    for path in EXAMPLE.glob("adapter_*.py"):
        assert path.name in DOCUMENTATION
        assert "samestep" not in re.sub(r'""".*?"""', "", path.read_text(), flags=re.DOTALL)  # none is needed there
