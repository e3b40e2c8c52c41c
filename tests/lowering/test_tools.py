"""Compilers are found, and what is missing is said with the command that brings it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from samestep.lowering import tools


def executable(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def nothing(monkeypatch, tmp_path):
    """Neither compilers nor a folder for them."""
    monkeypatch.delenv(tools.FOLDER, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(tools.importlib.util, "find_spec", lambda name: None)


def test_what_is_missing_comes_with_the_command(nothing):
    with pytest.raises(tools.MissingToolError) as caught:
        tools.ascend()
    said = str(caught.value)
    assert "triton-adapter-opt and bishengir-compile-a5 not found on PATH" in said
    assert f"{tools.PIP} --target ascend-tools triton-ascend==3.2.0 ascendnpu-ir==1.2.0" in said


def test_only_what_is_missing_is_named(nothing, tmp_path):
    executable(tmp_path / "bin" / "triton-adapter-opt")
    with pytest.raises(tools.MissingToolError) as caught:
        tools.ascend(tmp_path / "mine")
    said = str(caught.value)
    assert "bishengir-compile-a5 not found in" in said
    assert f"--target {tmp_path / 'mine'} ascendnpu-ir==1.2.0\n" in said


def test_a_folder_comes_before_the_variable_before_the_path(nothing, tmp_path, monkeypatch):
    for place in ("first", "second"):
        for wheel in (tools.ADAPTER, tools.COMPILE):
            executable(tmp_path / place / wheel.package / wheel.path)
    for name in ("triton-adapter-opt", "bishengir-compile-a5", "hivmc-a5"):
        executable(tmp_path / "bin" / name)
    assert tools.ascend().adapter.parent == tmp_path / "bin"
    assert tools.ascend().hivmc == tmp_path / "bin" / "hivmc-a5"
    monkeypatch.setenv(tools.FOLDER, str(tmp_path / "second"))
    assert tmp_path / "second" in tools.ascend().compile.parents
    assert tmp_path / "first" in tools.ascend(tmp_path / "first").compile.parents


def test_without_triton(nothing, monkeypatch):
    with pytest.raises(tools.MissingToolError, match=r"pip install 'triton>=3\.6'"):
        tools.check_triton()
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(tools.MissingToolError, match="not installed"):
        tools.triton()


def test_the_interpreter_is_no_compiler(triton_compiler, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(tools.MissingToolError, match="unset TRITON_INTERPRET"):
        tools.triton()


def test_a_compiler_that_fails_is_quoted(tmp_path):
    broken = executable(tmp_path / "broken")
    broken.write_text("#!/bin/sh\necho 'error: no such thing' >&2\nexit 3\n")
    with pytest.raises(tools.CompilerError, match=r"(?s)broken ended with status 3:.*no such thing"):
        tools.run(broken)
    with pytest.raises(tools.CompilerError, match="absent"):
        tools.run(tmp_path / "absent")


def test_the_stand_in_is_not_found_by_others(ascend_compilers):
    assert not any((Path(place) / "hivmc-a5").exists() and "tmp" in place for place in os.environ["PATH"].split(":"))
