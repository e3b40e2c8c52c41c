"""`samestep verify` as a user meets it: what it prints, how it ends, what it refuses."""

from __future__ import annotations

import json
import re
import types
from pathlib import Path

import pytest
from click.testing import CliRunner

import verify_targets
from samestep.cli import main
from samestep.verify import fingerprint
from samestep.verify.suite import target

FILE = str(Path(verify_targets.__file__))


@pytest.fixture
def named(monkeypatch):
    """A fingerprint that costs nothing; what it says is tested where it is made."""
    calls = []

    def of_callable(function, **options):
        calls.append(options)
        return types.SimpleNamespace(sentence=f"{options['dtype']} follows another rule")

    monkeypatch.setattr(fingerprint, "of_callable", of_callable)
    return calls


def run(*arguments):
    return CliRunner().invoke(main, ["verify", *map(str, arguments)], catch_exceptions=False)


def test_a_correct_kernel_passes():
    result = run("--target", f"{FILE}:correct", "--dtype", "bfloat16", "--dtype", "bfloat16")
    assert result.exit_code == 0, result.output
    assert re.search(r"O6 write-back +bfloat16 +294 +294 +0 +[\d,]+ +0\n", result.stdout)
    assert "Refusals (dtypes, shapes, layout, ...) were not asked for; --refusals does." in result.stdout
    assert re.search(r"verify_targets.py:correct passes: 1,\d{3} items, [\d,]+ elements, [\d.]+ s\n", result.stdout)
    assert "O1 dtypes" not in result.stdout


def test_an_engine_is_asked_for_refusals_too():
    result = run("--engine", "cpu", "--dtype", "float16", "--order", "ascend950")
    assert result.exit_code == 0, result.output
    assert re.search(r"O1 dtypes +float16 +23 +23 +0 *\n", result.stdout)
    assert "order ascend950, level quick, seed 0" in result.stdout
    assert "not asked for" not in result.stdout


@pytest.mark.parametrize(("function", "lines"), [
    ("nothing", ["learning_rate=1.0, momentum=0.0, dampening=0.0, weight_decay=0.0",
                 "parameters          0x0000 (0)                  0xbf80 (-1)                 0x0000 (0)",
                 "gradient            0x3f80 (1)                  0x3f80 (1)                  0x3f80 (1)"]),
    ("undamped", ["learning_rate=1.0, momentum=0.0, dampening=1.0, weight_decay=0.0",
                  "parameters          0x0000 (0)                  0x0000 (0)                  0xbf80 (-1)"]),
    ("forgetful", ["learning_rate=1.0, momentum=1.0, dampening=0.0, weight_decay=0.0",
                   "accum               0x0000 (0)                  0x3f80 (1)                  0x0000 (0)"]),
])
def test_what_todays_rules_let_pass_is_red(named, function, lines):
    result = run("--target", f"{FILE}:{function}", "--dtype", "bfloat16", "--seed", 3)
    assert result.exit_code == 1
    assert "smallest input found: 1 element; bfloat16" in result.stdout
    for line in lines:
        assert line in result.stdout
    assert "Fingerprint, bfloat16: bfloat16 follows another rule" in result.stdout
    assert re.search(r"FAILS [\d,]+ of 1,\d{3} items", result.stdout)
    assert named == [{"dtype": "bfloat16", "rule": "cann", "order": "spec", "seed": 3}]


@pytest.mark.exhaustive
def test_the_fingerprints_own_sentence_is_shown():
    result = run("--target", f"{FILE}:nothing", "--dtype", "bfloat16")
    assert result.exit_code == 1
    assert "parameters not updated" in result.stdout


def test_a_failure_that_depends_on_the_length_shows_the_elements_around_it(named, tmp_path):
    (tmp_path / "tail.py").write_text(
        "import functools, verify_targets\n"
        "step = functools.partial(verify_targets.correct, fault='tail from float64')\n")
    result = run("--target", f"{tmp_path}/tail.py:step", "--dtype", "float32")
    assert result.exit_code == 1
    assert "smallest input found: 9 elements; float32" in result.stdout
    assert re.search(r"parameters\[8\] +0x0+ \(0.0\) +0xbf800000 \(-1.0\) +0xbf8020c5 \(-1.001\)", result.stdout)
    assert "parameters[4]" not in result.stdout


def test_a_target_that_raises_is_red_and_not_a_crash():
    result = run("--target", f"{FILE}:raises", "--dtype", "float32")
    assert result.exit_code == 1
    assert result.stdout.count("RuntimeError: the device is on fire") == 1
    assert "... and 1,9" in result.stdout
    assert "Traceback" not in result.output


def test_refusals_of_a_target_on_request(named):
    result = run("--target", f"{FILE}:correct", "--dtype", "float32", "--refusals")
    assert result.exit_code == 1
    assert "O10 aliasing" in result.stdout
    assert "expected an error with code unsupported_dtype, none came" in result.stdout
    assert not named  # no element was wrong


def test_rule_torch():
    result = run("--rule", "torch", "--target", f"{FILE}:raises", "--dtype", "float64")
    assert result.exit_code == 1
    assert re.search(r"T rule torch +float64 +[\d,]+ +0 ", result.stdout)
    assert "order" not in result.stdout


@pytest.mark.parametrize("suffix", ["json", "csv", "html"])
def test_reports(tmp_path, suffix):
    path = tmp_path / f"report.{suffix}"
    result = run("--target", f"{FILE}:raises", "--dtype", "float16", "--report", path)
    assert result.exit_code == 1
    text = path.read_text()
    assert "the device is on fire" in text
    if suffix == "json":
        whole = json.loads(text)
        assert whole["checks_failed"] == whole["checks_total"] == len(whole["checks"]) > 1_600


def test_exhaustive_by_parts_and_again(tmp_path):
    arguments = ("--level", "exhaustive", "--target", f"{FILE}:correct", "--key", "K5", "--dtype", "float16",
                 "--resume", tmp_path / "state")
    result = run(*arguments, "--limit", 3)
    assert result.exit_code == 0, result.output
    assert re.search(r"O5 arithmetic +float16 +1 +1 +0 +589,824 +0\n", result.stdout)
    assert json.loads(next((tmp_path / "state").iterdir()).read_text())["rounds"] == 3
    result = run(*arguments, "--limit", 4)
    assert "786,432" in result.stdout


@pytest.mark.parametrize(("arguments", "why"), [
    (["--engine", "gpux"], "engine 'gpux' does not exist; the engines are reference, cpu"),
    (["--engine", "reference", "--rule", "torch"], "engine 'reference' has no rule torch"),
    (["--engine", "cpu", "--target", "m:f"], "exclude each other"),
    (["--target", "absent_module:f"], "there is no module 'absent_module'"),
    (["--target", f"{FILE}:absent"], "has no 'absent'; it has"),
    (["--target", f"{FILE}:not_callable"], "'not_callable' is a int, not a function"),
    (["--target", "absent.py:f"], "there is no file absent.py"),
    (["--target", "nonsense"], "expected module:function"),
    (["--dtype", "float64"], "rule cann has float32, float16, bfloat16"),
    (["--level", "exhaustive", "--dtype", "float32"], "--level exhaustive has bfloat16, float16"),
    (["--level", "exhaustive", "--rule", "torch"], "rule torch has the levels quick and full"),
    (["--rule", "torch", "--order", "ascend950"], "--order is a choice of rule cann"),
    (["--key", "K1"], "--key and --limit choose a part of --level exhaustive"),
    (["--limit", "7"], "--key and --limit choose a part of --level exhaustive"),
    (["--report", "result.txt"], "accepted: .html, .json or .csv"),
    (["--level", "slow"], "'slow' is not one of"),
    (["--seed", "-1"], "-1 is not in the range"),
])
def test_what_cannot_be_run_ends_with_2(arguments, why, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    result = run(*arguments)
    assert result.exit_code == 2
    assert why in result.stderr
    assert result.stdout == ""


def test_a_report_that_cannot_be_written_ends_with_2(tmp_path):
    (tmp_path / "taken.json").mkdir()
    arguments = ("--target", f"{FILE}:raises", "--dtype", "float16", "--report")
    result = run(*arguments, tmp_path / "absent" / "r.json")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "there is no folder" in result.stderr
    result = run(*arguments, tmp_path / "r.json" / "..")
    assert result.exit_code == 2
    result = run(*arguments, tmp_path / "taken.json")
    assert result.exit_code == 2


def test_a_report_that_fails_late_comes_after_the_results(monkeypatch, tmp_path):
    from samestep.verify import report

    def full(results, path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(report, "write", full)
    result = run("--target", f"{FILE}:raises", "--dtype", "float16", "--report", tmp_path / "r.json")
    assert result.exit_code == 2
    assert "No space left on device" in result.stderr
    assert "FAILS 1,8" in result.stdout


def test_a_state_folder_that_cannot_be_used_ends_with_2(tmp_path):
    (tmp_path / "file").write_text("")
    result = run("--level", "exhaustive", "--target", f"{FILE}:correct", "--limit", 1, "--resume",
                 tmp_path / "file" / "state")
    assert result.exit_code == 2
    assert "cannot use" in result.stderr


def test_a_damaged_state_ends_with_2(tmp_path):
    arguments = ("--level", "exhaustive", "--target", f"{FILE}:correct", "--key", "K0", "--dtype", "float16",
                 "--limit", 1, "--resume", tmp_path)
    assert run(*arguments).exit_code == 0
    next(tmp_path.iterdir()).write_text("{")
    result = run(*arguments)
    assert result.exit_code == 2
    assert "delete it to begin that part again" in result.stderr


def test_an_interrupted_exhaustive_run_says_how_to_go_on(monkeypatch, tmp_path):
    from samestep.verify.suite import exhaustive

    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(exhaustive, "run", interrupted)
    result = run("--level", "exhaustive", "--resume", tmp_path)
    assert result.exit_code == 2
    assert f"the same command goes on from what {tmp_path} holds" in result.stderr


def test_without_torch_the_optimizers_rule_says_what_to_install(monkeypatch):
    monkeypatch.setattr(target.importlib.util, "find_spec", lambda name: None)
    result = run("--rule", "torch")
    assert result.exit_code == 2
    assert "pip install 'samestep[torch]'" in result.stderr
