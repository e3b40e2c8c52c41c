"""`samestep compare`: what it prints, its exit status, and what it writes."""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import dump_files
from samestep.cli import main


def run(*args):
    return CliRunner().invoke(main, ["compare", *(str(arg) for arg in args)])


@pytest.fixture
def right(tmp_path):
    return dump_files.write(tmp_path / "right", dump_files.step("float16", (65, 63), learning_rate=0.1, momentum=0.9))


@pytest.fixture
def wrong(tmp_path):
    """A bfloat16 kernel that does not update parameters, as raw words."""
    step = dump_files.step("bfloat16", (25, 15), learning_rate=1e-3, momentum=0.9)
    return dump_files.write(tmp_path / "wrong", step._replace(parameters=step.problem.parameters))


def test_help_is_quick_and_says_what_the_exit_status_means():
    code = ("import sys; from samestep.cli import main\ntry: main(['compare', '--help'])\nexcept SystemExit: pass\n"
            "print(sorted({'numpy', 'numba', 'torch', 'rich'} & set(sys.modules)))")
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert out.strip().endswith("[]")
    assert "Exit status: 0 if the" in out


def test_the_same_bits(right):
    result = run(right)
    assert result.exit_code == 0, result.output
    lines = result.stdout.strip().split("\n")
    assert lines[0] == "Rule cann, order spec, float16 [65, 63]"
    assert lines[1] == "learning_rate 0.0999755859, momentum 0.899902344, dampening 0, weight_decay 0"
    assert lines[-1] == ("The same bits as rule cann, order spec: parameters, accum and stat, 12,285 elements.")
    assert "Fingerprint" not in result.stdout
    assert "FAIL" not in result.stdout


def test_other_bits(wrong):
    result = run(wrong, "--dtype", "bfloat16")
    assert result.exit_code == 1, result.output
    lines = result.stdout.strip().split("\n")
    assert lines[-1].startswith("NOT the bits of rule cann, order spec: parameters in ")
    assert "No parameter was updated; " in lines[-1]
    assert "cosine" in lines[-1]
    explained = next(line for line in lines if line.startswith("Fingerprint"))
    assert "parameters not updated" in explained
    columns = next(line for line in lines if line.startswith("tensor"))
    for word in ("elements", "bits differ", "max ULP", "mean ULP", "where they differ"):
        assert word in columns
    assert any(line.startswith("parameters[") and line.count("0x") == 2 for line in lines)
    accum = next(line for line in lines if line.startswith("accum"))
    assert accum.split()[:5] == ["accum", "375", "0", "0", "0"]
    got = next(line for line in lines if line.startswith("got "))
    assert got.split()[1] == "0"
    for name in ("mixed tolerance", "MERE", "MARE", "double-1e-3", "double-1e-4", "cosine", "max abs"):
        assert any(line.startswith(name) for line in lines)


def test_several_steps_and_the_other_order(tmp_path):
    step = dump_files.step("float32", (128,), nesterov=True, learning_rate=0.1, momentum=0.9)
    for k in range(3):
        dump_files.write(tmp_path / f"step_{k}", step)
    dump_files.write_case(tmp_path, nesterov=True)
    assert run(tmp_path).exit_code == 0
    result = run(tmp_path, "--order", "ascend950")
    assert result.exit_code == 1
    assert "Rule cann, order ascend950, float32 [128], 3 steps" in result.stdout
    assert "today's rules, step 0" in result.stdout
    assert "in 3 of 3 steps, first in step 0: parameters in" in result.stdout
    dump_files.write_case(tmp_path, nesterov=True, order="ascend950")
    assert run(tmp_path).exit_code == 1
    assert run(tmp_path, "--order", "spec").exit_code == 0


def test_raw_files_with_everything_told(tmp_path):
    step = dump_files.step("float32", (33, 2), rule="torch", weight_decay=0.25, nesterov=True)
    dump_files.write(tmp_path, step, "bin", scalars=False)
    told = ["--rule", "torch", "--dtype", "float32", "--lr", 0.125, "--momentum", 0.75, "--weight-decay", 0.25]
    result = run(tmp_path, *told, "--shape", "33,2", "--nesterov")
    assert result.exit_code == 0, result.output
    assert "learning_rate 0.125, momentum 0.75, dampening 0, weight_decay 0.25, nesterov" in result.stdout
    assert run(tmp_path, *told, "--shape", "33x2").exit_code == 1  # without nesterov
    result = run(tmp_path, *told, "--shape", "33,2", "--order", "spec")
    assert (result.exit_code, "rule torch has no evaluation order" in result.stderr) == (2, True)


def test_json_to_the_terminal_and_reports(wrong, right, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    result = run(wrong, "--dtype", "bfloat16", "--json", "--report", tmp_path / "report.html")
    assert result.exit_code == 1
    told = json.loads(result.stdout)
    assert told["same"] is False
    assert told["steps"][0]["tensors"][0]["differing"] > 0
    assert told["sentences"][0] in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert run(right, "--json", "--report", tmp_path / "report.json").stdout == (tmp_path / "report.json").read_text(
        encoding="utf-8")
    assert run(right, "--report", tmp_path / "report.csv").exit_code == 0
    assert "parameters" in (tmp_path / "report.csv").read_text(encoding="utf-8")
    assert set(tmp_path.rglob("*")) - set(before) == {tmp_path / f"report.{each}" for each in ("html", "json", "csv")}


@pytest.mark.parametrize(("args", "match"), [
    (["nowhere"], "No such file or directory"), (["right/accum.npy"], "is not UTF-8 text|is no JSON"),
    (["right", "--report", "x.pdf"], "got the suffix '.pdf'; accepted: .html, .json or .csv"),
    (["right", "--report", "nowhere/x.json"], "cannot write nowhere/x.json: No such file or directory"),
    (["right", "--order", "best"], "order: got 'best'; accepted: 'spec' or 'ascend950'"),
    (["right", "--shape", "0,2"], "'0,2' is no shape; accepted: lengths such as 33,2 or 33x2"),
    (["right", "--shape", "-3"], "is no shape"), (["right", "--shape", "nan"], "is no shape"),
    (["right", "--memory", "0"], "0 is not in the range x>=1"), (["right", "--memory", "nan"], "not a valid integer"),
    (["large"], "'accum.npy' needs 5,368,709,120 bytes of memory; .* limit of 4,294,967,296 are left"),
    (["large", "--memory", "2"], "limit of 2,147,483,648 are left"),
    (["right", "--lr", "0.2"], "learning_rate is 0.0999.* in 'learning_rate.npy', but 0.2 was told"),
    (["right", "--dampening", "0.5", "--nesterov"], "dampening: got 0.5 with nesterov=True"),
    (["right", "--weight-decay", "-1"], "weight_decay: got -1.0; accepted: a number >= 0"),
    (["right", "--rule", "keras"], "'keras' is not one of"),
    (["right", "--rule", "torch"], "rule torch has no stat, but the dump has one"),
    (["wrong"], "holds raw words of 2 bytes; say what they are"), (["code"], "holds Python objects"),
    (["empty"], "the parameters before the step are missing"),
])
def test_what_cannot_be_judged_ends_with_2_and_a_reason(right, wrong, tmp_path, args, match, monkeypatch):
    monkeypatch.chdir(tmp_path)
    dump_files.write(tmp_path / "code", dump_files.step())
    np.save(tmp_path / "code" / "accum.npy", np.array([Payload()], object), allow_pickle=True)
    (tmp_path / "empty").mkdir()
    with open(dump_files.write(tmp_path / "large", dump_files.step()) / "accum.npy", "wb") as file:
        file.truncate(5 << 30)  # takes no room on disk
    before = sorted(tmp_path.rglob("*"))
    result = run(*args)
    assert result.exit_code == 2, result.output
    assert re.search(match, result.stderr), result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.output
    assert sorted(tmp_path.rglob("*")) == before


class Payload:
    def __reduce__(self):
        return os.mkdir, ("ran",)


def test_the_payload_would_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pickle.loads(pickle.dumps(Payload()))
    assert (tmp_path / "ran").is_dir()


def test_the_case_in_the_documentation(tmp_path):
    text = (Path(__file__).parent.parent / "docs" / "dumps.md").read_text(encoding="utf-8")
    start = text.index("    {\n")
    (tmp_path / "case.json").write_text(text[start:text.index("\n    }\n") + 7], encoding="utf-8")
    step = dump_files.step("bfloat16", (33, 2), learning_rate=0.001, momentum=0.9, weight_decay=0.0001)
    arrays = dump_files.tensors(step)
    for name, tensor in (("p", "parameters"), ("m", "momentum"), ("s", "stat")):
        dump_files.save(tmp_path / f"{name}.bin", arrays[tensor])
    (tmp_path / "all.bin").write_bytes(bytes(132) + arrays["gradient"].tobytes())
    dump_files.save(tmp_path / "state.safetensors", {"layer1.accum": arrays["accum"], "other": arrays["stat"]})
    dump_files.save(tmp_path / "outputs.npz",
                    {name: arrays[f"{name}_out"] for name in ("parameters", "accum", "stat")})
    for path in (tmp_path, tmp_path / "case.json"):
        result = run(path)
        assert result.exit_code == 0, result.output
