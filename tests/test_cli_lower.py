"""`samestep lower`."""

from __future__ import annotations

import importlib.util
import json

import pytest
from click.testing import CliRunner

from samestep.cli.lower import lower

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")


def run(*arguments, env=None):
    return CliRunner().invoke(lower, [str(argument) for argument in arguments], env=env)


@needs_triton
def test_a_table_a_manifest_and_the_files(tmp_path):
    done = run("--target", "sm_90", "--target", "gfx942", "--key", "K4", "--key", "6", "--dtype", "float32",
               "--order", "spec", "-o", tmp_path)
    assert done.exit_code == 0, done.output
    assert "spec_float32_K4_list" in done.output
    assert "regs  fma  mul  add  ld128  st128  spill  flush" in done.output
    assert "4 kernels for sm_90, 2 of them with the code of schMode 0: " in done.output
    assert str(tmp_path / "sm_90" / "manifest.json") in done.output
    for target in ("sm_90", "gfx942"):
        manifest = json.loads((tmp_path / target / "manifest.json").read_text())
        assert [kernel["key"]["number"] for kernel in manifest["kernels"]] == [6, 6, 7, 7]


@needs_triton
def test_rule_torch(tmp_path):
    done = run("--target", "sm_80", "--key", "K5", "--dtype", "float64", "--rule", "torch", "--entry", "one",
               "-o", tmp_path)
    assert done.exit_code == 0, done.output
    manifest = json.loads((tmp_path / "sm_80" / "manifest.json").read_text())
    assert [kernel["terms"] for kernel in manifest["kernels"]] == [
        {"nesterov": True, "weight_decay": False, "momentum": True, "maximize": maximize} for maximize in (False, True)]
    assert all(kernel["instructions"]["fma"] for kernel in manifest["kernels"])


REFUSED = {
    "no key": ((), "name keys with --key K3 or --key 12, or ask for --all"),
    "both": (("--all", "--key", "K3"), "but not for both"),
    "no such key": (("--key", "K9"), "accepted are K0 .. K5 and the numbers [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13]"),
    "an illegal key": (("--key", "10"), "accepted are K0 .. K5"),
    "dampening in rule torch": (("--key", "K1", "--rule", "torch"), "accepted are K0, K2, K4, K5"),
    "schMode in rule torch": (("--key", "1", "--rule", "torch"), "accepted are K0, K2, K4, K5"),
    "order of rule torch": (("--all", "--rule", "torch", "--order", "spec"), "--order is of rule cann"),
    "float64 in rule cann": (("--all", "--dtype", "float64"), "rule cann has float32, float16, bfloat16"),
    "rule torch on Ascend": (("--all", "--rule", "torch", "--target", "ascend950"), "--target ascend950 has rule cann"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name, tmp_path):
    arguments, said = REFUSED[name]
    done = run("--target", "sm_90", *arguments, "-o", tmp_path / "out")
    assert done.exit_code == 2
    assert said in done.output
    assert not (tmp_path / "out").exists()


@needs_triton
def test_missing_compilers_are_named_with_the_command(tmp_path):
    done = run("--target", "ascend950", "--key", "K3", "--ascend-tools", tmp_path, "-o", tmp_path / "out",
               env={"PATH": str(tmp_path)})
    assert done.exit_code == 2
    assert f"--python-version 3.11 --target {tmp_path} triton-ascend==3.2.0 ascendnpu-ir==1.2.0" in done.output
    assert not (tmp_path / "out").exists()


def test_without_triton(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    done = run("--target", "sm_90", "--key", "K3", "-o", tmp_path / "out")
    assert done.exit_code == 2
    assert "pip install 'triton>=3.6'" in done.output


@needs_triton
def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "gfx942").write_text("")
    done = run("--target", "gfx942", "--key", "0", "--entry", "one", "-o", tmp_path)
    assert done.exit_code == 2
    assert "cannot write" in done.output
