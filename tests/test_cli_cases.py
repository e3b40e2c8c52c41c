"""`samestep cases` as a user meets it."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from samestep.cli import main
from samestep.cli.cases import NEXT
from samestep.verify.export.golden_files import FORMS


def run(*arguments):
    return CliRunner().invoke(main, ["cases", *map(str, arguments)])


@pytest.mark.parametrize("form", FORMS)
def test_it_says_what_it_wrote_and_what_to_do_next(tmp_path, form):
    done = run("--format", form, "-o", tmp_path / "new" / "folder", "--count", 12, "--dtype", "bfloat16",
               "--max-elements", 100, "--seed", 5)
    assert done.exit_code == 0, done.output
    manifest = json.loads((tmp_path / "new" / "folder" / "manifest.json").read_text())
    assert manifest["choice"]["seed"] == 5
    assert manifest["dtypes"] == {"bfloat16": 12}
    assert f"12 cases, {len(manifest['sha256'])} files" in done.output
    assert f"{manifest['left_out']} cases with more than 100 elements were left out" in done.output
    assert NEXT[form] in done.output


def test_every_form_is_offered():
    assert list(NEXT) == list(FORMS)


@pytest.mark.parametrize(("arguments", "text"), [
    (["--format", "ttk", "--rule", "torch"], "rule cann; got rule 'torch'"),
    (["--format", "npz", "--dtype", "float64"], "--dtype float64: rule cann has float32, float16, bfloat16"),
    (["--format", "xml"], "'xml' is not one of"),
    (["--format", "npz", "--count", 0], "0 is not in the range"),
])
def test_refused_options_exit_with_2_and_write_nothing(tmp_path, arguments, text):
    done = run(*arguments, "-o", tmp_path / "new")
    assert done.exit_code == 2
    assert text in done.output
    assert not (tmp_path / "new").exists()


def test_a_folder_that_cannot_be_used_exits_with_2(tmp_path):
    (tmp_path / "file").write_text("mine")
    done = run("--format", "npz", "-o", tmp_path)
    assert done.exit_code == 2
    assert "is not empty" in done.output
    done = run("--format", "npz", "-o", tmp_path / "file" / "below", "--count", 3)
    assert done.exit_code == 2
    assert "cannot write" in done.output
    assert (tmp_path / "file").read_text() == "mine"
