"""The command line: what it prints, what it refuses, and its exit status."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner

import samestep
from samestep import demo, info
from samestep.cli import main
from samestep.engine import cache, engines


def _run(*args):
    return CliRunner().invoke(main, [str(arg) for arg in args])


@pytest.fixture
def cache_dir(tmp_path, monkeypatch):
    """An empty cache folder with one version's folder, one kernel and things that are not samestep's."""
    root = tmp_path / "kernels"
    kernel = root / ("0123456789" * 2) / "samestep_spec_float32_K0_0" / "engines_1"
    kernel.mkdir(parents=True)
    (kernel / "kernels.plain-1.nbc").write_bytes(bytes(200_000))
    (kernel / "kernels.plain-1.nbi").write_bytes(bytes(1_000))
    (root / "thesis.txt").write_text("keep", encoding="utf-8")
    (root / "photos").mkdir()
    (root / ("f" * 20)).symlink_to(tmp_path)
    monkeypatch.setenv("SAMESTEP_CACHE_DIR", str(root))
    return root


def test_help_and_version_load_nothing_heavy():
    code = ("import sys; from samestep.cli import main\ntry: main(sys.argv[1:])\nexcept SystemExit: pass\n"
            "print(sorted({'numpy', 'numba', 'torch', 'rich', 'matplotlib', 'sklearn'} & set(sys.modules)))")
    for args in (["--help"], ["--version"], ["demo", "--help"], ["info", "--help"]):
        out = subprocess.run([sys.executable, "-c", code, *args], check=True, capture_output=True, text=True).stdout
        assert out.strip().endswith("[]")
    assert _run("--version").output.strip() == f"samestep, version {samestep.__version__}"
    assert "demo" in _run("--help").output


def test_the_options_have_the_defaults_of_the_function():
    from samestep.cli.demo import demo as command

    assert command.make_context("demo", []).params == demo.Options()._asdict()


def test_demo_prints_the_figures_and_writes_them(tmp_path):
    result = _run("demo", "--epochs", 2, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    figures = json.loads((tmp_path / "out" / "figures.json").read_text(encoding="utf-8"))
    assert f"{100 * figures['test_accuracy']:.1f} % (" in result.stdout
    assert f"{figures['element_updates']:,} (90 calls of sgd_batch_" in result.stdout
    assert "ns per element inside sgd_batch_" in result.stdout
    assert "is not counted" in result.stdout
    assert f"0 of {figures['replay']['bits']:,} bits differ (16 steps, engine reference)" in result.stdout
    assert "0 of 4,096 elements differ" in result.stdout
    assert figures["parameters_sha256"][:16] in result.stdout
    assert str(tmp_path / "out" / "learning_curve.png") in result.stdout
    assert (tmp_path / "out" / "learning_curve.png").exists()
    assert "epoch 2/2" in result.stderr
    assert "Training" not in result.stdout
    assert "\x1b" not in result.output


def test_demo_takes_every_option(tmp_path):
    chosen = {"--dtype": "bfloat16", "--lr": 0.05, "--momentum": 0.8, "--dampening": 0.25, "--weight-decay": 0.001,
              "--order": "ascend950", "--engine": "reference", "--epochs": 1, "--seed": 3, "--out": tmp_path}
    result = _run("demo", "--no-nesterov", *(x for option in chosen.items() for x in option))
    assert result.exit_code == 0, result.output
    assert "engine cpu" in result.stdout
    assert json.loads((tmp_path / "figures.json").read_text(encoding="utf-8"))["options"] == {
        "dtype": "bfloat16", "learning_rate": 0.05, "momentum": 0.8, "dampening": 0.25, "weight_decay": 0.001,
        "nesterov": False, "order": "ascend950", "engine": "reference", "epochs": 1, "seed": 3, "out": str(tmp_path),
    }


def test_demo_with_nesterov_in_float16(tmp_path):
    result = _run("demo", "--nesterov", "--dtype", "float16", "--epochs", 1, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert "in float16" in result.stdout


@pytest.mark.parametrize(("args", "said"), [
    (["--nesterov", "--dampening", 0.1], "dampening: got 0.1 with nesterov=True; accepted: 0 when nesterov is True"),
    (["--weight-decay", -1], "weight_decay: got -1.0; accepted: a number >= 0"),
    (["--weight-decay", "nan"], "weight_decay: got nan"),
    (["--engine", "abacus"], "engine: got 'abacus'; accepted:"),
    (["--order", "random"], "order: got 'random'; accepted: 'spec' or 'ascend950'"),
])
def test_demo_says_in_one_line_what_the_operator_refuses(args, said, tmp_path):
    result = _run("demo", "--out", tmp_path, *args)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith(f"Error: {said}")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("args", [["--dtype", "float64"], ["--epochs", 0], ["--seed", -1], ["--lr", "fast"]])
def test_demo_refuses_values_of_the_wrong_kind(args, tmp_path):
    assert _run("demo", "--out", tmp_path, *args).exit_code == 2


def test_demo_says_how_to_install_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = _run("demo", "--out", tmp_path)
    assert result.exit_code == 2
    assert result.stderr == ("Error: the demo needs scikit-learn and matplotlib; "
                             "install with: pip install 'samestep[demo]'\n")


def test_demo_says_where_it_cannot_write(tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    result = _run("demo", "--out", tmp_path / "file" / "folder")
    assert result.exit_code == 2
    assert result.stderr.startswith(f"Error: cannot use {tmp_path / 'file' / 'folder'}: ")


def test_demo_exits_1_when_a_recorded_bit_is_not_what_the_rule_gives(tmp_path, monkeypatch):
    train = demo.train

    def corrupted(*args):
        training = train(*args)
        for record in training.records:
            record.after[0].view(np.uint32)[:] ^= 1
        return training

    monkeypatch.setattr(demo, "train", corrupted)
    result = _run("demo", "--epochs", 1, "--out", tmp_path)
    figures = json.loads((tmp_path / "figures.json").read_text(encoding="utf-8"))
    assert result.exit_code == 1
    assert f"{16 * figures['parameters']:,} of {figures['replay']['bits']:,} bits differ" in result.stdout
    assert "4,096 of 4,096 elements differ" in result.stdout
    assert result.stderr.endswith("Error: the replayed steps are NOT the same as those of training\n")


def test_info_shows_engines_processor_and_cache(cache_dir):
    result = _run("info")
    assert result.exit_code == 0, result.output
    shown = " ".join(result.stdout.split())
    assert f"samestep {samestep.__version__}" in shown
    assert f"NumPy {np.__version__}" in shown
    assert "reference available" in shown
    assert "cpu available" in shown
    assert f"count {samestep.get_num_threads()}" in shown
    assert "all versions 1 kernel, 0.2 MB" in shown
    assert "SAMESTEP_NUM_THREADS" in shown
    assert str(cache_dir) in result.stdout.replace("\n", "").replace(" ", "")


def test_info_gives_the_reason_of_an_unavailable_engine(monkeypatch):
    monkeypatch.setattr(info, "engines", lambda: {"cpu": None, "abacus": "no beads"})
    assert "unavailable: no beads" in _run("info").stdout
    assert json.loads(_run("info", "--json").stdout)["engines"] == {"cpu": None, "abacus": "no beads"}


def test_info_as_json(cache_dir):
    facts = json.loads(_run("info", "--json").stdout)
    assert set(facts) == {"versions", "processor", "threads", "engines", "cache", "environment"}
    assert facts["versions"]["samestep"] == samestep.__version__
    assert facts["engines"] == engines()
    assert facts["threads"]["count"] == samestep.get_num_threads()
    assert facts["cache"] == {
        "root": str(cache_dir), "folder": str(cache.folder()), "kernels": 0, "bytes": 0,
        "kernels_of_all_versions": 1, "bytes_of_all_versions": 201_000,
    }
    assert facts["environment"]["SAMESTEP_CACHE_DIR"] == str(cache_dir)
    assert set(facts["processor"]["features"]) >= {"avx2"} or set(facts["processor"]["features"]) >= {"neon"}


def test_info_counts_the_kernels_this_version_compiled(tmp_path):
    code = ("import numpy as np, samestep; x = [np.ones(4, np.float32) for _ in range(4)]\n"
            "samestep.sgd_(x[0], x[1], 0.1, x[2], 0.9, x[3])\n"
            "from samestep.cli import main; main(['info', '--json'])")
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True,
                         env={"SAMESTEP_CACHE_DIR": str(tmp_path / "cache"), "PATH": ""}).stdout
    facts = json.loads(out)
    assert facts["cache"]["kernels"] == facts["cache"]["kernels_of_all_versions"] == 1
    assert facts["cache"]["bytes"] > 10_000


def test_info_where_the_cache_folder_cannot_be_made(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("SAMESTEP_CACHE_DIR", str(tmp_path / "file" / "cache"))
    assert "cannot be written" in " ".join(_run("info").stdout.split())
    assert json.loads(_run("info", "--json").stdout)["cache"]["folder"] is None
    assert _run("info", "--clear-cache").stdout.startswith("freed 0.0 kB (0 kernels)")


def test_clear_cache_deletes_kernels_and_nothing_else(cache_dir):
    beside = cache_dir.parent / "beside.txt"
    beside.write_text("keep", encoding="utf-8")
    result = _run("info", "--clear-cache")
    assert result.exit_code == 0, result.output
    assert result.stdout == f"freed 0.2 MB (1 kernel) in {cache_dir}\n"
    assert sorted(path.name for path in cache_dir.iterdir()) == ["f" * 20, "photos", "thesis.txt"]
    assert beside.read_text(encoding="utf-8") == "keep"
    assert _run("info", "--clear-cache").stdout == f"freed 0.0 kB (0 kernels) in {cache_dir}\n"


def test_clear_cache_says_what_it_could_not_delete(cache_dir, monkeypatch):
    monkeypatch.setattr(info.shutil, "rmtree", lambda *args, **kwargs: None)
    result = _run("info", "--clear-cache")
    assert result.exit_code == 1
    assert "0.2 MB could not be deleted" in result.stderr


def test_clear_cache_and_json_exclude_each_other():
    assert _run("info", "--json", "--clear-cache").exit_code == 2
